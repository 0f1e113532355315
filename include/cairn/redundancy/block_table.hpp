// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/wire.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The digests of an image or a piece: blocks of at most digest_block_bytes that lie behind one another and cover all
/// of it, so that any range is verified together with the rest of the blocks at its ends.
class block_table {
 public:
  /// The next block.
  void add(std::uint64_t bytes, std::uint64_t digest) {
    ends_.push_back(this->bytes() + bytes);
    digests_.push_back(digest);
  }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return ends_.empty() ? 0 : ends_.back(); }
  [[nodiscard]] std::size_t blocks() const noexcept { return ends_.size(); }
  [[nodiscard]] std::uint64_t begin(std::size_t block) const noexcept {
    return block == 0 ? 0 : ends_[block - 1];
  }
  [[nodiscard]] std::uint64_t end(std::size_t block) const noexcept { return ends_[block]; }
  /// The block that has this byte. @pre offset < bytes()
  [[nodiscard]] std::size_t block_at(std::uint64_t offset) const noexcept;
  /// Whether these are the bytes of the block. Reads them once.
  [[nodiscard]] bool fits(std::size_t block, std::span<const std::byte> bytes) const noexcept;
  friend bool operator==(const block_table&, const block_table&) = default;

 private:
  friend block_table decode_block_table(wire_reader& in);
  friend void encode(wire_writer& out, const block_table& table);
  std::vector<std::uint64_t> ends_;
  std::vector<std::uint64_t> digests_;
};

/// Digests `bytes` in blocks of digest_block_bytes.
[[nodiscard]] block_table blocks_of(std::span<const std::byte> bytes);
/// Adds the blocks of bytes that have no digests yet.
void add_blocks(block_table& table, std::span<const std::byte> bytes);
void encode(wire_writer& out, const block_table& table);
/// @throws wire_error
[[nodiscard]] block_table decode_block_table(wire_reader& in);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/redundancy/block_table.ipp>
#endif
