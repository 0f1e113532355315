// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <sys/resource.h>

#include <cstddef>
#include <optional>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A small file of the kernel's, whole, or about as much of it as `most` bytes; nothing if it cannot be read.
[[nodiscard]] std::optional<std::string> kernel_file(const std::string& path, std::size_t most = 64u << 10);

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
[[nodiscard]] std::size_t open_descriptors() noexcept;

/// Throws for a thread that the system did not start. `what_for`: "to copy".
[[noreturn]] void fail_for_threads(const std::string& what_for);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/process_limits.ipp>
#endif
