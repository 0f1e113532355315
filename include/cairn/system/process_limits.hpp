// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/error.hpp>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A small file of the kernel's, whole; nothing if it cannot be read.
[[nodiscard]] inline std::optional<std::string> kernel_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::string text;
  char part[4096];
  ::ssize_t got = 0;
  while (text.size() < 64 * 1024 && (got = ::read(file, part, sizeof part)) > 0)
    text.append(part, static_cast<std::size_t>(got));
  ::close(file);
  if (got < 0) return std::nullopt;
  return text;
}

/// A limit of this process for messages: "RLIMIT_FSIZE is 1048576 (ulimit -f; at most 2097152)".
/// `resource` is one of getrlimit's.
template <class Resource>
[[nodiscard]] std::string limit_text(Resource resource, const char* name, const char* ulimit) {
  const auto number = [](rlim_t n) { return n == RLIM_INFINITY ? "unlimited" : std::to_string(n); };
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return std::string(name) + " (" + ulimit + ")";
  return std::string(name) + " is " + number(limit.rlim_cur) + " (" + ulimit + "; at most " +
         number(limit.rlim_max) + ")";
}

/// Descriptors that this process has open, of the first million. Needs none itself, so that it can be asked
/// when none is left.
[[nodiscard]] inline std::size_t open_descriptors() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const int end = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1u << 20));
  std::size_t count = 0;
  for (int i = 0; i < end; ++i) count += ::fcntl(i, F_GETFD) >= 0 ? 1U : 0U;
  return count;
}

/// Throws for a thread that the system did not start. `what_for`: "to copy".
[[noreturn]] inline void fail_for_threads(const std::string& what_for) {
  fail(error_id::storage_limit, "no thread could be started " + what_for + ": " +
                                    limit_text(RLIMIT_NPROC, "RLIMIT_NPROC", "ulimit -u") +
                                    "; raise it, or the limit pids.max of the control group");
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
