// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_redundancy.hpp>
#include <cairn/redundancy/block_table.hpp>
#include <cairn/system/function_ref.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The tables of one member of a set: of its image, and of the piece that it keeps; empty where it keeps none.
struct member_tables {
  block_table image;
  block_table piece;
};

/// Reads bytes of an image or a piece, which need not be right: false where they cannot be had any more.
using read_member = function_ref<bool(const member_range& from, std::span<std::byte> out)>;

/// A source that could not be used.
struct bad_source {
  std::int32_t member = 0;
  bool piece = false;
  bool gone = false;        ///< it could not be read; else a block of it is wrong
  std::uint64_t begin = 0;  ///< of that block
};

/// Computes ranges of strips from sources that are verified, block by block, before they count. Ranges that ascend read
/// each byte of a source once. One thread.
class strip_reader {
 public:
  /// `tables`: one entry for each member. All outlive the reader, also what `read` refers to.
  strip_reader(const any_redundancy& by, std::span<const member_tables> tables, read_member read)
      : by_(by), tables_(tables), read_(read) {}

  /// Computes the bytes from `begin` on. Nothing where all was right; else the source that was not, and `out` is
  /// unspecified. @pre the strips cover the range
  [[nodiscard]] std::optional<bad_source> compute(std::span<const redundancy_strip> strips,
                                                  std::uint64_t begin, std::span<std::byte> out);

 private:
  /// Blocks of a source that are verified.
  struct window {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::vector<std::byte> room;
    std::size_t first = 0;  // of the bytes, in room
  };
  [[nodiscard]] const std::byte* verified(const member_range& from, std::uint64_t bytes, bad_source& bad);

  const any_redundancy& by_;
  std::span<const member_tables> tables_;
  read_member read_;
  std::map<std::pair<std::int32_t, bool>, window> windows_;
  std::vector<std::byte> spare_;
};

/// What rebuilding an image met with.
struct rebuild_report {
  std::vector<bad_source> bad;  ///< sources that were not used, or not for one block
};
/// Makes the image of a member from what survives, whose table its own image is verified with: where a source is wrong
/// or gone, another one of the same set is taken, as long as there is one. `out` has as many bytes as the image.
/// @throws peer_error (peer_lost) naming whose loss is too much, corrupt_error (corrupt_digest)
rebuild_report rebuild_image(const any_redundancy& by, const redundancy_set& set, std::int32_t member,
                             set_survivors survivors, std::span<const member_tables> tables, read_member read,
                             std::span<std::byte> out);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/redundancy/strip_reader.ipp>
#endif
