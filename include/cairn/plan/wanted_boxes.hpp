// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/metadata.hpp>
#include <cairn/model/rank_set.hpp>
#include <cairn/plan/summary.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The name under which wants hold which ranks' records are wanted; no item can have it.
inline constexpr std::string_view wanted_records_name = "\x01records";

/// What one rank wants of a checkpoint, as a plan that can be summarised: boxes of the stored tensors, and
/// the ranks whose records it needs. Per-rank items are nobody else's and left out. O(items of the plan).
[[nodiscard]] inline save_plan wants_of(const metadata& stored, const load_plan& plan) {
  save_plan out;
  std::vector<std::int32_t> records;
  const auto put = [&](const stored_item& item, const chunk& box) {
    write_item w{item.name, item.kind, item.type, item.global, box, {}, 0, 1};
    out.items.push_back(std::move(w));
  };
  for (std::size_t i = 0; i < plan.items.size();) {
    const auto& first = plan.items[i];
    const auto& item = stored.items.at(first.stored);
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
    if (!item.per_rank) {
      if (whole_box)
        put(item, all);
      else
        for (auto k = i; k < end; ++k)
          if (!plan.items[k].box.empty()) put(item, plan.items[k].box);
    }
    i = end;
  }
  std::sort(records.begin(), records.end());
  records.erase(std::unique(records.begin(), records.end()), records.end());
  for (std::size_t i = 0; i < records.size();) {
    auto end = i + 1;
    while (end < records.size() && records[end] == records[end - 1] + 1) ++end;
    const chunk box{{records[i]}, {static_cast<std::int64_t>(end - i)}};
    out.items.push_back(
        {std::string(wanted_records_name), item_kind::tensor, dtype::u8, {stored.world_size}, box, {}, 0, 1});
    i = end;
  }
  // The same box of two entries is one want.
  std::stable_sort(out.items.begin(), out.items.end(),
                   [](const auto& a, const auto& b) { return a.name < b.name; });
  for (auto i = out.items.begin(); i != out.items.end();) {
    const auto end = std::find_if(i, out.items.end(), [&](const auto& w) { return w.name != i->name; });
    std::sort(i, end, [](const auto& a, const auto& b) { return a.box < b.box; });
    i = end;
  }
  const auto same = [](const write_item& a, const write_item& b) {
    return a.box == b.box && a.name == b.name;
  };
  out.items.erase(std::unique(out.items.begin(), out.items.end(), same), out.items.end());
  return out;
}

/// What all ranks want, of the merged summary.
class wanted_boxes {
 public:
  static constexpr std::string_view records_name = wanted_records_name;

  explicit wanted_boxes(plan_summary summary) : summary_(std::move(summary)) {}

  /// The wanted boxes of an item that meet a box, in an order that is the same on all ranks.
  void overlapping(std::string_view name, const chunk& box, std::vector<wanted_part>& out) {
    out.clear();
    const auto at = std::lower_bound(summary_.items.begin(), summary_.items.end(), name,
                                     [](const summary_item& i, std::string_view n) { return i.name < n; });
    if (at == summary_.items.end() || at->name != name) return;
    for (const auto& b : at->boxes) {
      if (!intersect(b.box, box)) continue;
      std::vector<std::int32_t> ranks;
      for (const auto& run : b.holders)
        for (std::int32_t k = 0; k < run.count; ++k) ranks.push_back(run.first + k);
      out.push_back({b.box, sets_.of(std::move(ranks))});
    }
  }
  [[nodiscard]] rank_sets& sets() noexcept { return sets_; }

 private:
  plan_summary summary_;
  rank_sets sets_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
