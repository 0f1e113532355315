// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/process_limits.hpp>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::optional<std::string> kernel_file(const std::string& path, std::size_t most) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::string text;
  char part[4096];
  ::ssize_t got = 0;
  while (text.size() < most && (got = ::read(file, part, sizeof part)) > 0)
    text.append(part, static_cast<std::size_t>(got));
  ::close(file);
  if (got < 0) return std::nullopt;
  return text;
}

CAIRN_BODY std::size_t open_descriptors() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const int end = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1u << 20));
  std::size_t count = 0;
  for (int i = 0; i < end; ++i) count += ::fcntl(i, F_GETFD) >= 0 ? 1U : 0U;
  return count;
}

CAIRN_BODY void fail_for_threads(const std::string& what_for) {
  auto text = "no thread could be started " + what_for + ": " +
              limit_text(RLIMIT_NPROC, "RLIMIT_NPROC", "ulimit -u") +
              "; raise it, or the limit pids.max of the control group";
  rlimit memory{};
  if (::getrlimit(RLIMIT_AS, &memory) == 0 && memory.rlim_cur != RLIM_INFINITY)
    text += "; or there is no room for its stack: " + limit_text(RLIMIT_AS, "RLIMIT_AS", "ulimit -v");
  fail(error_id::storage_limit, text);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
