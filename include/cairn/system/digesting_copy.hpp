// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/digest.hpp>
#include <cairn/system/streaming_copy.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Bytes that are hashed and copied in turns: the hash brings them into the first cache, from where they are
/// copied. So few that a processor reads the next ones while it still writes these: 16 KiB take up to a quarter longer.
inline constexpr std::uint64_t copy_step_bytes = 4096;

/// Copies bytes and puts them into a digest, in one pass over memory; streamed_copies_done() must follow.
inline void digesting_copy(std::byte* to, const std::byte* from, std::uint64_t bytes,
                           hash_state& hash) noexcept {
  for (std::uint64_t at = 0; at < bytes; at += copy_step_bytes) {
    const auto step = std::min(copy_step_bytes, bytes - at);
    hash.put(from + at, step);
    streaming_copy(to + at, from + at, step);
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
