// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_layout.hpp>
#include <cairn/system/digest.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Digests the blocks of an image's items while the image is walked from front to back in spans of any
/// length. One thread at a time.
class block_hasher {
 public:
  /// Both outlive the hasher; `digests` has layout.blocks numbers.
  block_hasher(const image_layout& layout, std::span<std::uint64_t> digests)
      : layout_(layout), digests_(digests) {}
  /// The image's next bytes, which begin where the last ones ended.
  void feed(std::span<const std::byte> bytes) {
    const auto end = at_ + bytes.size();
    while (at_ < end && item_ < layout_.items.size()) {
      const auto& item = layout_.items[item_];
      const auto block = done_in_item_ / digest_block_bytes;
      const auto block_end = std::min((block + 1) * digest_block_bytes, item.bytes);
      const auto position = item.begin + done_in_item_;
      if (item.bytes == 0) {
        ++item_;
        continue;
      }
      if (position >= end) break;
      const auto stop = std::min(end, item.begin + block_end);
      const auto piece = bytes.subspan(static_cast<std::size_t>(position - (end - bytes.size())),
                                       static_cast<std::size_t>(stop - position));
      const bool begins = done_in_item_ % digest_block_bytes == 0;
      const bool ends = stop == item.begin + block_end;
      auto& out = digests_[static_cast<std::size_t>(item.first_block + block)];
      if (begins && ends) {
        out = digest(piece);
      } else {
        if (begins) hash_.reset();
        hash_.put(piece.data(), piece.size());
        if (ends) out = hash_.value();
      }
      done_in_item_ += piece.size();
      if (done_in_item_ == item.bytes) done_in_item_ = 0, ++item_;
      at_ = stop;
    }
    at_ = end;
  }
  /// Bytes of the image that were fed.
  [[nodiscard]] std::uint64_t position() const noexcept { return at_; }

 private:
  const image_layout& layout_;
  std::span<std::uint64_t> digests_;
  hash_state hash_;
  std::uint64_t at_ = 0;
  std::size_t item_ = 0;
  std::uint64_t done_in_item_ = 0;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
