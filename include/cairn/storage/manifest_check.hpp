// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/storage/manifest.hpp>

#include <cstddef>
#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Why a list of items is no content of a checkpoint. `what` is nullptr if it is one.
struct content_problem {
  const char* what = nullptr;
  std::size_t item = 0;
};

/// Why the chunks of one item are none; nullptr if they are fine. Boxes are not compared with each other:
/// that they cover the tensor is checked by their volume. O(chunks).
[[nodiscard]] inline const char* chunks_problem(const stored_item& item, std::int32_t world_size) noexcept {
  std::int64_t covered = 0;
  std::int64_t rank_before = -1;
  for (const auto& c : item.chunks) {
    if (c.rank < 0 || c.rank >= world_size) return "names a rank outside of its world";
    if (!inside(c.box, item.global)) return "has a chunk outside of its tensor";
    if (!checked_bytes(item.type, c.box.sizes)) return "has a chunk that does not fill whole bytes";
    if (item.per_rank) {
      if (c.rank <= rank_before) return "names a rank twice or out of order";
      if (!(c.box == whole(item.global))) return "has a per-rank chunk that is not the whole tensor";
      rank_before = c.rank;
    } else if (__builtin_add_overflow(covered, c.box.volume(), &covered)) {
      return "has chunks that together exceed the tensor";
    }
  }
  if (item.per_rank) return item.chunks.empty() ? "has no chunk" : nullptr;
  if (covered != item.global.volume()) return "has chunks that do not cover the tensor exactly";
  if (item.kind != item_kind::tensor && item.chunks.size() != 1) return "has more than one chunk";
  return nullptr;
}

/// Why an item, apart from its chunks, is none.
[[nodiscard]] inline const char* item_problem(const stored_item& item) noexcept {
  if (!name_problem(item.name).empty()) return "has a name that cannot be used";
  if (!checked_bytes(item.type, item.global)) return "has a size that overflows or fills no whole bytes";
  if (item.kind != item_kind::tensor && item.global.rank() != 0) return "is no tensor but has a shape";
  if (item.kind == item_kind::bytes && item.type != dtype::u8) return "is bytes but not of type U8";
  return nullptr;
}

/// The first problem of all items: names sorted and unique, and the checks above.
[[nodiscard]] inline content_problem find_problem(const metadata& content) noexcept {
  for (std::size_t i = 0; i < content.items.size(); ++i) {
    const auto& item = content.items[i];
    if (i != 0 && !(content.items[i - 1].name < item.name))
      return {"is not sorted by name, or there twice", i};
    if (const auto* what = item_problem(item)) return {what, i};
    if (const auto* what = chunks_problem(item, content.world_size)) return {what, i};
  }
  return {};
}

/// Why the table of records is none.
[[nodiscard]] inline const char* records_problem(const manifest& m) noexcept {
  if (m.step < 0) return "its step is negative";
  if (m.content.world_size < 1) return "its world size is not positive";
  if (m.records.size() != static_cast<std::size_t>(m.content.world_size))
    return "it has not one record for each rank";
  for (std::size_t r = 0; r < m.records.size(); ++r) {
    if (m.records[r].rank != static_cast<std::int64_t>(r)) return "its records are not in rank order";
    if (m.records[r].step < 0 || m.records[r].step > m.step) return "a record is of a later step";
  }
  return nullptr;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
