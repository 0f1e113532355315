// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_check.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY const char* chunks_problem(const stored_item& item, std::int32_t world_size) {
  std::int64_t covered = 0;
  const char* what = nullptr;
  item.chunks.for_each_progression([&](const chunk_progression& p) {
    const auto last = p.last_box();
    std::int64_t volume = 0;
    if (what != nullptr) return;
    if (p.rank < 0 || p.last_rank() >= world_size)
      what = "names a rank outside of its world";
    else if (!inside(p.first, item.global) || !inside(last, item.global))
      what = "has a chunk outside of its tensor";
    else if (!checked_bytes(item.type, p.first.sizes))
      what = "has a chunk that does not fill whole bytes";
    else if (item.per_rank) {
      if (!(p.first == whole(item.global) && last == p.first))
        what = "has a per-rank chunk that is not the whole tensor";
    } else if (__builtin_mul_overflow(p.first.volume(), p.count(), &volume) ||
               __builtin_add_overflow(covered, volume, &covered)) {
      what = "has chunks that together exceed the tensor";
    }
  });
  if (what != nullptr) return what;
  if (item.per_rank && item.chunks.progressions() > 1) {
    std::vector<bool> seen(static_cast<std::size_t>(world_size));
    for (const auto& c : item.chunks) {
      if (seen[static_cast<std::size_t>(c.rank)]) return "names a rank twice";
      seen[static_cast<std::size_t>(c.rank)] = true;
    }
  }
  if (item.per_rank) return item.chunks.empty() ? "has no chunk" : nullptr;
  if (covered != item.global.volume()) return "has chunks that do not cover the tensor exactly";
  if (item.kind != item_kind::tensor && item.chunks.size() != 1) return "has more than one chunk";
  return nullptr;
}

CAIRN_BODY const char* item_problem(const stored_item& item) noexcept {
  if (!name_problem(item.name).empty()) return "has a name that cannot be used";
  if (!checked_bytes(item.type, item.global)) return "has a size that overflows or fills no whole bytes";
  if (item.kind != item_kind::tensor && item.global.rank() != 0) return "is no tensor but has a shape";
  if (item.kind == item_kind::bytes && item.type != dtype::u8) return "is bytes but not of type U8";
  return nullptr;
}

CAIRN_BODY content_problem find_problem(const metadata& content) {
  for (std::size_t i = 0; i < content.items.size(); ++i) {
    const auto& item = content.items[i];
    if (i != 0 && !(content.items[i - 1].name < item.name))
      return {"is not sorted by name, or there twice", i};
    if (const auto* what = item_problem(item)) return {what, i};
    if (const auto* what = chunks_problem(item, content.world_size)) return {what, i};
  }
  return {};
}

CAIRN_BODY const char* records_problem(const manifest& m) noexcept {
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
