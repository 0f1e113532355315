// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stage/image_sources.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/digesting_copy.hpp>
#include <cairn/system/streaming_copy.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Copies [begin, end) of an item, within one digest block or (`digest` null) any range; `digest`: where the
/// digest of the range goes.
inline void copy_range(const item_source& source, std::uint64_t bytes, std::uint64_t begin, std::uint64_t end,
                       std::byte* out, std::uint64_t* digest, hash_state& hash) {
  if (digest == nullptr) {
    copy_item(source, bytes, begin, end, out, streaming_copy);
    return;
  }
  const bool straight = source.cast == nullptr && source.view.contiguous();
  if (end - begin <= copy_step_bytes) {
    copy_item(source, bytes, begin, end, out, plain_copy);
    *digest = cairn::digest(std::span<const std::byte>(out, end - begin));
    return;
  }
  hash.reset();
  if (straight) {
    digesting_copy(out, source.view.data + begin, end - begin, hash);
  } else {
    for (std::uint64_t at = begin; at < end; at += copy_step_bytes) {
      const auto step = std::min(copy_step_bytes, end - at);
      copy_item(source, bytes, at, at + step, out + (at - begin), plain_copy);
      hash.put(out + (at - begin), step);
    }
  }
  *digest = hash.value();
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
