// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/model/chunk_codec.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/progression_joiner.hpp>
#include <cairn/model/rank_set.hpp>
#include <cairn/plan/load/read_requests.hpp>
#include <cairn/system/algorithm.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What per_rank_key() adds to a name.
inline constexpr std::size_t max_per_rank_suffix = 24;

CAIRN_BODY wanted_items requests_of(const metadata& stored, const load_plan& plan, int rank, bool all_items) {
  std::map<std::uint32_t, std::vector<chunk>> wanted;                        // by stored item
  std::map<std::pair<std::uint32_t, std::int32_t>, std::vector<chunk>> own;  // and by the rank that saved it
  std::vector<std::int32_t> records;
  for (std::size_t i = 0; i < plan.items.size();) {
    const auto& first = plan.items[i];
    if (first.stored >= stored.items.size())
      fail(error_id::plan_out_of_bounds, "a load plan names an item that this checkpoint does not hold");
    const auto& item = stored.items[first.stored];
    auto end = i;
    auto low = first.box.offsets;
    auto high = first.box.offsets;
    std::int64_t volume = 0;
    for (; end < plan.items.size() && plan.items[end].stored == first.stored &&
           plan.items[end].entry == first.entry && plan.items[end].part == first.part &&
           plan.items[end].box.offsets.rank() == low.rank();
         ++end) {
      const auto& r = plan.items[end];
      if (r.chunk >= item.chunks.size())
        fail(error_id::plan_out_of_bounds, "a load plan names a chunk that this checkpoint does not hold",
             {.item = item.name});
      records.push_back(item.chunks[r.chunk].rank);
      volume += r.box.volume();
      for (int d = 0; d < low.rank(); ++d) {
        low.set(d, std::min(low[d], r.box.offsets[d]));
        high.set(d, std::max(high[d], r.box.offsets[d] + r.box.sizes[d]));
      }
    }
    chunk all{low, low};
    for (int d = 0; d < low.rank(); ++d) all.sizes.set(d, high[d] - low[d]);
    bool whole_box = all.volume() == volume;
    for (auto k = i; k < end && whole_box; ++k)
      whole_box = intersect(all, item.chunks[plan.items[k].chunk].box) == plan.items[k].box;
    if (item.per_rank) {
      for (auto k = i; k < end && all_items; ++k)
        own[{first.stored, item.chunks[plan.items[k].chunk].rank}].push_back(plan.items[k].box);
    } else {
      auto& boxes = wanted[first.stored];
      if (whole_box)
        boxes.push_back(all);
      else
        for (auto k = i; k < end; ++k)
          if (!plan.items[k].box.empty()) boxes.push_back(plan.items[k].box);
    }
    i = end;
  }
  const auto set_of = [rank](std::vector<chunk>& boxes) {
    // The same box of two entries is one want.
    detail::sort(boxes);
    detail::erase_repeated(boxes);
    chunk_set set;
    for (const auto& b : boxes) set.push_back({b, rank});
    return set;
  };
  wanted_items out;
  detail::sort(records);
  detail::erase_repeated(records);
  std::vector<chunk> ranges;
  for (std::size_t i = 0; i < records.size();) {
    auto end = i + 1;
    while (end < records.size() && records[end] == records[end - 1] + 1) ++end;
    ranges.push_back({{records[i]}, {static_cast<std::int64_t>(end - i)}});
    i = end;
  }
  if (!ranges.empty())
    out.push_back({std::string(shared_wants::records_name), {stored.world_size}, set_of(ranges)});
  for (auto& [at, boxes] : wanted)
    if (!boxes.empty()) out.push_back({stored.items[at].name, stored.items[at].global, set_of(boxes)});
  for (auto& [at, boxes] : own) {
    const auto& item = stored.items[at.first];
    out.push_back({per_rank_key(item.name, at.second), item.global, set_of(boxes)});
  }
  detail::sort(out, [](const auto& a, const auto& b) { return a.name < b.name; });
  return out;
}

CAIRN_BODY wanted_items merge_wants(wanted_items a, wanted_items b) {
  wanted_items out;
  out.reserve(std::max(a.size(), b.size()));
  auto x = a.begin();
  auto y = b.begin();
  while (x != a.end() || y != b.end()) {
    if (y == b.end() || (x != a.end() && x->name < y->name)) {
      out.push_back(std::move(*x++));
    } else if (x == a.end() || y->name < x->name) {
      out.push_back(std::move(*y++));
    } else {
      chunk_set both;
      const auto sink = [&](const chunk_progression& p) { both.append(p); };
      progression_joiner<decltype(sink)> joiner(sink);
      x->boxes.for_each_progression([&](const chunk_progression& p) { joiner.push(p); });
      y->boxes.for_each_progression([&](const chunk_progression& p) { joiner.push(p); });
      joiner.flush();
      x->boxes = std::move(both);
      out.push_back(std::move(*x++));
      ++y;
    }
  }
  return out;
}

CAIRN_BODY std::vector<std::byte> encode_wants(const wanted_items& wants) {
  compact_writer out;
  for (const auto& w : wants) {
    out.number(static_cast<std::uint64_t>(w.name.size())).raw(w.name);
    out.byte(static_cast<std::uint8_t>(w.global.rank()));
    for (const auto size : w.global) out.number(size);
    encode(out, w.boxes);
  }
  return out.take();
}

CAIRN_BODY wanted_items decode_wants(std::span<const std::byte> bytes, int world_size) {
  try {
    compact_reader in(bytes);
    wanted_items wants;
    while (in.left() != 0) {
      wanted_item w;
      w.name = in.text(static_cast<std::size_t>(in.number(max_item_name + max_per_rank_suffix)));
      const auto dimensions = in.byte();
      if (dimensions > extents::max_rank) in.fail_here("a shape has more than eight dimensions");
      w.global = extents::filled(dimensions, 0);
      for (int d = 0; d < dimensions; ++d) w.global.set(d, in.signed_number());
      w.boxes = decode_chunk_set(in, w.global, world_size);
      if (!wants.empty() && !(wants.back().name < w.name)) in.fail_here("items are out of order");
      wants.push_back(std::move(w));
    }
    return wants;
  } catch (const wire_error& e) {
    fail(error_id::peer_bad_message,
         std::string("the messages of the ranks about a load plan are damaged: ") + e.what());
  }
}

CAIRN_BODY void read_requests::find_overlapping(std::string_view name, const chunk& box,
                                                std::vector<wanted_box>& out) {
  out.clear();
  const auto at = std::lower_bound(items_.begin(), items_.end(), name,
                                   [](const wanted_item& i, std::string_view n) { return i.name < n; });
  if (at == items_.end() || at->name != name) return;
  std::map<chunk, std::vector<std::int32_t>> found;
  at->boxes.overlaps(
      box, [&](std::uint64_t, const stored_chunk& c, const chunk&) { found[c.box].push_back(c.rank); });
  for (auto& [wanted, ranks] : found) out.push_back({wanted, sets_.of(std::move(ranks))});
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
