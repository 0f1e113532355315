// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_redundancy.hpp>
#include <cairn/concepts/image_tier.hpp>
#include <cairn/redundancy/block_table.hpp>
#include <cairn/tiers/held_record.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What is known of the image of a member of a set: enough to verify each of its blocks, and to hold the image again
/// where it was rebuilt.
struct image_head {
  held_name name;
  std::vector<std::byte> record;  ///< of the tier, see held_image::description
  block_table blocks;
  friend bool operator==(const image_head&, const image_head&) = default;
};
/// Of an image that a tier holds. Reads what lies between its items. @throws corrupt_error
[[nodiscard]] image_head head_of(const held_image& image);
/// Which image it is. @throws corrupt_error
[[nodiscard]] held_name name_of(const held_image& image);
[[nodiscard]] std::vector<std::byte> encode_head(const image_head& head);
/// @throws corrupt_error naming `file` where the bytes are not those of a head
[[nodiscard]] image_head decode_head(std::span<const std::byte> bytes, const std::string& file);

/// What the record of a piece says: for whom it is, and what it was made of.
struct kept_piece {
  std::uint64_t made_by = 0;      ///< fingerprint_of() the redundancy
  std::int32_t member = 0;        ///< who keeps it, in `heads`
  std::vector<image_head> heads;  ///< of all members
  block_table blocks;             ///< of the piece
  [[nodiscard]] redundancy_set set() const;
};
/// Two redundancies that make the same pieces for a set have the same.
[[nodiscard]] std::uint64_t fingerprint_of(const any_redundancy& by, const redundancy_set& set,
                                           std::int32_t member);
[[nodiscard]] std::vector<std::byte> encode_kept(const held_name& name, const kept_piece& content);
/// @throws corrupt_error naming the file unless the bytes are those of the record of this name.
[[nodiscard]] kept_piece decode_kept(std::span<const std::byte> bytes, const held_name& name,
                                     const std::string& file);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/redundancy/kept_piece.ipp>
#endif
