// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/error_ids.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The number after `key` at the beginning of a line, or nothing. An empty key: the number that the text
/// begins with.
[[nodiscard]] std::optional<std::uint64_t> number_after(std::string_view text, std::string_view key);

/// What is left below a limit, and which limit that is.
struct memory_room {
  std::uint64_t bytes = std::numeric_limits<std::uint64_t>::max();
  std::string limit;       ///< for messages, such as "RLIMIT_AS (ulimit -v)"
  std::uint64_t most = 0;  ///< what that limit is set to
  error_id id = error_id::storage_limit;

  void take(std::uint64_t left, std::uint64_t limited_to, std::string_view name, error_id which);
};

/// Lowers `room` to what the control groups of `group` (as in /proc/self/cgroup: "0::/path" or
/// "4:memory:/path") under `root` leave. What the kernel takes back when memory
/// is short, such as page cache, counts as free.
void take_cgroup_room(memory_room& room, const std::string& root, std::string_view groups);

/// What this process may still allocate, by the tightest of the machine's free memory, its control groups and
/// its resource limits.
[[nodiscard]] memory_room room_for_memory();

/// Throws for a buffer that is not to be had.
[[noreturn]] void fail_for_memory(std::uint64_t needed, const memory_room& room);

/// Throws for memory that cannot be locked (mlock, or registered with a device). `code`: the errno.
[[noreturn]] void fail_for_locked_memory(std::uint64_t needed, int code);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stage/memory_limits.ipp>
#endif
