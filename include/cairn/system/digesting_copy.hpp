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
/// copied, two pages at once. So few that a processor reads the next ones while it still writes these.
inline constexpr std::uint64_t copy_step_bytes = 8192;

/// Copies bytes and puts them into a digest, in one pass over memory; streamed_copies_done() must follow.
inline void digesting_copy(std::byte* to, const std::byte* from, std::uint64_t bytes,
                           hash_state& hash) noexcept {
  // The first step is so much longer that all others begin where a line of the destination does.
  std::uint64_t step = copy_step_bytes + bytes_to_line(to);
  for (std::uint64_t at = 0; at < bytes; at += step, step = copy_step_bytes) {
    step = std::min(step, bytes - at);
    hash.put(from + at, step);
    streaming_copy(to + at, from + at, step);
  }
}

/// The same with the digest of these bytes alone, where one is wanted; no other call must follow.
inline void copy_and_digest(std::byte* to, const std::byte* from, std::uint64_t bytes,
                            std::uint64_t* digest) {
  if (digest != nullptr) {
    hash_state hash;
    digesting_copy(to, from, bytes, hash);
    *digest = hash.value();
  } else {
    streaming_copy(to, from, bytes);
  }
  streamed_copies_done();
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
