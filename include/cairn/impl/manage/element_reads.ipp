// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/manage/element_reads.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/placement.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/model/tensor_view.hpp>
#include <cairn/plan/load/load_planning.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void element_reads::want(std::uint32_t index, const cairn::chunk& box, std::uint64_t begin,
                                    std::uint64_t count, std::byte* to, std::optional<std::uint32_t> number) {
  const auto& item = stored_.items[index];
  slab s{to, {}, {}};
  const auto granule = static_cast<std::uint64_t>(granule_of(item.type));
  if (const int rank = box.sizes.rank();
      rank > 1 && static_cast<std::uint64_t>(box.sizes[rank - 1]) % granule != 0) {
    const auto all = static_cast<std::uint64_t>(box.volume());
    const auto unit = std::lcm(all / static_cast<std::uint64_t>(box.sizes[0]), granule);
    const auto first = begin / unit * unit;
    const auto last = std::min(all, (begin + count + unit - 1) / unit * unit);
    const auto bytes = [&](std::uint64_t elements) {
      return bytes_of(item.type, static_cast<std::int64_t>(elements));
    };
    s.wide.resize(static_cast<std::size_t>(bytes(last - first)));
    s.at = s.wide.data(), s.out = to;
    s.skipped = bytes(begin - first), s.bytes = bytes(count);
    begin = first, count = last - first;
  }
  s.boxes = boxes_of_range(box.sizes, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(count));
  std::uint64_t at = 0;
  vector<chunk_overlap> overlaps;
  for (std::uint32_t b = 0; b < s.boxes.size(); ++b) {
    auto& part = s.boxes[b];
    for (int d = 0; d < part.offsets.rank(); ++d) part.offsets.set(d, part.offsets[d] + box.offsets[d]);
    s.begins.push_back(at);
    at += bytes_of(item.type, part.volume());
    const auto slab_index = static_cast<std::uint32_t>(slabs_.size());
    if (number) {
      plan_.items.push_back({index, *number, slab_index, b, part});
      continue;
    }
    overlaps.clear();
    if (!find_overlaps(item, part, overlaps))
      fail(error_id::corrupt_bad_value, "the chunks of a tensor do not cover it", {.item = item.name});
    for (const auto& o : overlaps) plan_.items.push_back({index, o.chunk, slab_index, b, o.box});
  }
  slabs_.push_back(std::move(s));
}

CAIRN_BODY std::uint64_t element_reads::read() {
  const auto resolver = [&](const read_item& wanted) {
    const auto& s = slabs_[wanted.entry];
    const auto& box = s.boxes[wanted.part];
    auto inner = wanted.box;
    for (int d = 0; d < inner.offsets.rank(); ++d) inner.offsets.set(d, inner.offsets[d] - box.offsets[d]);
    const auto view =
        contiguous_view(s.at + s.begins[wanted.part], stored_.items[wanted.stored].type, box.sizes);
    return item_target{subview(view, inner)};
  };
  const auto bytes = plan_.items.empty() ? 0 : read_(plan_, resolver);
  for (const auto& s : slabs_)
    if (s.bytes != 0) std::memcpy(s.out, s.wide.data() + s.skipped, static_cast<std::size_t>(s.bytes));
  slabs_.clear(), plan_.items.clear();
  return bytes;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
