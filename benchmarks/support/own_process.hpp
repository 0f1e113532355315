// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <errno.h>
#include <malloc.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <vector>

namespace cairn_bench {

/// Lets malloc keep what is freed, from now on and in the processes that this one starts. Left to itself,
/// glibc gives large blocks back until larger ones have been freed: whether the next one costs page faults
/// depends on what the process did before. Elsewhere nothing is changed.
inline void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // what it comes to by itself at most
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
}

/// The numbers that `work()` gives, which runs in a process of its own: it begins with the memory of this one
/// as it is now, and leaves nothing of its own behind. For programs of one thread.
/// @throws std::runtime_error if it ends without them; why is on stderr.
template <class Work>
[[nodiscard]] std::vector<double> in_own_process(Work&& work) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("there is no pipe for a process of its own");
  const pid_t child = fork();
  if (child < 0) {
    close(ends[0]), close(ends[1]);
    throw std::runtime_error("a process of its own could not be started");
  }
  if (child == 0) {
    close(ends[0]);
    bool written = false;
    try {
      const std::vector<double> values = work();
      const auto* bytes = reinterpret_cast<const char*>(values.data());
      auto left = values.size() * sizeof(double);
      while (left > 0) {
        const auto n = write(ends[1], bytes, left);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        bytes += n;
        left -= static_cast<std::size_t>(n);
      }
      written = left == 0;
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
    }
    _exit(written ? 0 : 1);  // what the other process has buffered is not to be written twice
  }
  close(ends[1]);
  std::vector<char> bytes;
  char part[4096];
  for (ssize_t n = 0; (n = read(ends[0], part, sizeof part)) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    bytes.insert(bytes.end(), part, part + n);
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw std::runtime_error("a process of its own did not end well");
  std::vector<double> values(bytes.size() / sizeof(double));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(double));
  return values;
}

}  // namespace cairn_bench
