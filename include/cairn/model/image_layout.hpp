// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/metadata.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Segments of an image begin at multiples of this, in bytes: what direct I/O and devices want.
inline constexpr std::uint64_t image_alignment = 4096;
/// Items smaller than this are copied before save() returns, also when it is overlapped; of tensors, as many
/// as checkpointer_options::small_tensor_bytes allows.
inline constexpr std::uint64_t always_copied_below = 64 * 1024;

/// One run of an image that becomes one file, byte for byte.
struct image_segment {
  std::uint64_t begin = 0;  ///< in the image; a multiple of image_alignment
  std::uint64_t bytes = 0;  ///< of the file: header and items, without the padding that follows in the image
  std::vector<std::byte> header;  ///< the first bytes of the file; items follow directly
  bool frozen = false;            ///< a file of frozen items alone; these are the last segments
};

/// A file that a save links to one of an earlier save, instead of writing it.
struct linked_file {
  std::uint64_t bytes = 0;     ///< of the file
  std::uint64_t items = 0;     ///< in it
  std::uint64_t contents = 0;  ///< digest of its number, and of key, offset in the file and size of each item
  std::uint64_t header = 0;    ///< digest of its header
  friend bool operator==(const linked_file&, const linked_file&) = default;
};

/// Where one item of a plan lies.
struct item_placement {
  std::uint32_t item = 0;         ///< index in save_plan::items
  std::uint32_t segment = 0;      ///< index in image_layout::segments
  std::uint64_t begin = 0;        ///< in the image
  std::uint64_t bytes = 0;        ///< stored size at this save
  std::uint64_t first_block = 0;  ///< index of its first digest among all digests of the image
  item_key key;                   ///< in the record
  bool early = false;             ///< copied before save() returns
};

/// The image of one rank's save: every file that it writes, one after another. What StorageWriter::layout
/// gives; immutable.
struct image_layout {
  std::vector<image_segment> segments;  ///< one for each file, in image order
  std::vector<linked_file> linked;  ///< more files of the save, after those of the segments: not in the image
  std::vector<item_placement> items;  ///< in image order: ascending begin, no gap within a segment
  std::uint64_t bytes = 0;            ///< of the image; a multiple of image_alignment
  std::uint64_t blocks = 0;           ///< digests of all items together
};

/// What the files of frozen items of a layout are when they are linked: one for each frozen segment, in their order.
[[nodiscard]] std::vector<linked_file> frozen_files(const image_layout& layout);

/// A layout whose frozen segments are linked files. @pre they are its last segments, and it has no linked files.
[[nodiscard]] image_layout with_linked_files(const image_layout& layout);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/image_layout.ipp>
#endif
