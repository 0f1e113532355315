// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/digest.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/plan.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

/// One name of a checkpoint. The chunks cover the global shape exactly once; per-rank items have one chunk
/// for each rank that has the item, each the whole of it; values and bytes have one chunk `whole({})`.
struct stored_item {
  std::string name;
  item_kind kind = item_kind::tensor;
  dtype type = dtype::u8;
  extents global;
  bool per_rank = false;
  chunk_set chunks;
  std::uint16_t codec = 0;  ///< by which its bytes are compressed in files; 0: none
  friend bool operator==(const stored_item&, const stored_item&) = default;
};

/// What a checkpoint holds, without where in which file: sorted by name, names unique.
struct metadata {
  std::int32_t world_size = 1;
  std::vector<stored_item> items;

  /// The item of a name, or nullptr. O(log n).
  [[nodiscard]] const stored_item* find(std::string_view name) const noexcept {
    std::size_t low = 0;
    std::size_t high = items.size();
    while (low < high) {
      const auto middle = (low + high) / 2;
      if (items[middle].name < name)
        low = middle + 1;
      else
        high = middle;
    }
    return low < items.size() && items[low].name == name ? &items[low] : nullptr;
  }
};

/// Identifies a box of an item within a rank's record: digests of the key in the data file (name, or
/// name@rank00003) and of the box.
struct item_key {
  std::uint64_t name = 0;
  std::uint64_t box = 0;
  friend bool operator==(const item_key&, const item_key&) = default;
};

[[nodiscard]] inline item_key key_of(std::string_view file_key, const cairn::chunk& box) {
  wire_writer out;
  encode(out, box.offsets), encode(out, box.sizes);
  return {digest(file_key), digest(out.view())};
}

}  // namespace v1
}  // namespace cairn
