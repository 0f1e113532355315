// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/item.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/wire.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Consecutive ranks that hold the same thing.
struct rank_run {
  std::int32_t first = 0;
  std::int32_t count = 1;
  std::uint64_t bytes = 0;  ///< of a bytes item on each of these ranks; 0 for tensors and values
  friend bool operator==(const rank_run&, const rank_run&) = default;
};

/// Ascending runs. Runs that meet in a rank mean that the rank gave the same thing twice: a conflict that
/// validation reports.
using rank_runs = std::vector<rank_run>;

/// "rank 3", "ranks 0-3, 7"; at most a few runs, then "...".
[[nodiscard]] inline std::string to_string(const rank_runs& runs) {
  std::string text = runs.size() == 1 && runs[0].count == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (i == 8) return text + ", ...";
    text.append(i ? ", " : "").append(std::to_string(runs[i].first));
    if (runs[i].count > 1) text.append("-").append(std::to_string(runs[i].first + runs[i].count - 1));
  }
  return text;
}

/// A box and the ranks that hold it.
struct summary_box {
  chunk box;
  rank_runs holders;
  friend bool operator==(const summary_box&, const summary_box&) = default;
};

/// What ranks say of one name under one definition. Another definition of the same name is another
/// summary_item beside it: a conflict that validation reports.
struct summary_item {
  std::string name;
  item_kind kind = item_kind::tensor;
  dtype type = dtype::u8;
  bool per_rank = false;
  extents global;
  std::vector<summary_box> boxes;  ///< sorted by box; no two are equal
  rank_runs without;               ///< ranks that know the item but hold nothing of it (empty shards)
  friend bool operator==(const summary_item&, const summary_item&) = default;
};

/// What a set of ranks would write: the summary_type of default_planner. Sorted by name, then definition.
struct plan_summary {
  std::vector<summary_item> items;
  friend bool operator==(const plan_summary&, const plan_summary&) = default;
};

namespace detail {
/// True for an item that carries a definition and no data: what local_plan gives for an empty shard.
[[nodiscard]] inline bool definition_only(const write_item& i) noexcept {
  return i.kind != item_kind::bytes && i.bytes == 0;
}

[[nodiscard]] inline int compare(const summary_item& a, const summary_item& b) noexcept {
  if (const int c = a.name.compare(b.name); c != 0) return c;
  const auto key = [](const summary_item& i) { return std::tuple(i.kind, i.type, i.per_rank); };
  if (key(a) != key(b)) return key(a) < key(b) ? -1 : 1;
  return a.global == b.global ? 0 : a.global < b.global ? -1 : 1;
}

/// Appends a run behind runs that begin no later; neighbours become one.
inline void append_run(rank_runs& to, const rank_run& run) {
  if (!to.empty() && to.back().bytes == run.bytes && to.back().first + to.back().count == run.first)
    to.back().count += run.count;
  else
    to.push_back(run);
}

inline void merge_runs(rank_runs& a, rank_runs&& b) {
  if (b.empty()) return;
  if (a.empty()) {
    a = std::move(b);
    return;
  }
  if (a.back().first <= b.front().first) {
    for (const auto& run : b) append_run(a, run);
    return;
  }
  rank_runs out;
  out.reserve(a.size() + b.size());
  std::size_t i = 0;
  std::size_t k = 0;
  while (i < a.size() || k < b.size())
    append_run(out, k == b.size() || (i < a.size() && a[i].first <= b[k].first) ? a[i++] : b[k++]);
  a = std::move(out);
}

inline void merge_boxes(std::vector<summary_box>& a, std::vector<summary_box>&& b) {
  if (a.size() == 1 && b.size() == 1 && a[0].box == b[0].box) {
    merge_runs(a[0].holders, std::move(b[0].holders));
    return;
  }
  if (a.empty() || b.empty() || a.back().box < b.front().box) {
    a.insert(a.end(), std::make_move_iterator(b.begin()), std::make_move_iterator(b.end()));
    return;
  }
  std::vector<summary_box> out;
  out.reserve(a.size() + b.size());
  std::size_t i = 0;
  std::size_t k = 0;
  while (i < a.size() && k < b.size()) {
    if (a[i].box == b[k].box) {
      merge_runs(a[i].holders, std::move(b[k++].holders));
      out.push_back(std::move(a[i++]));
    } else {
      out.push_back(std::move(a[i].box < b[k].box ? a[i++] : b[k++]));
    }
  }
  for (; i < a.size(); ++i) out.push_back(std::move(a[i]));
  for (; k < b.size(); ++k) out.push_back(std::move(b[k]));
  a = std::move(out);
}
}  // namespace detail

/// One rank's plan as a summary. O(n log n) in the items of the plan, O(n) where they are sorted by name.
[[nodiscard]] inline plan_summary summarise_plan(const save_plan& plan, int rank) {
  std::vector<std::uint32_t> order(plan.items.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto by_name = [&](std::uint32_t a, std::uint32_t b) {
    return plan.items[a].name < plan.items[b].name;
  };
  if (!std::is_sorted(order.begin(), order.end(), by_name))
    std::stable_sort(order.begin(), order.end(), by_name);
  plan_summary out;
  out.items.reserve(plan.items.size());
  bool again = false;
  for (const auto index : order) {
    const auto& i = plan.items[index];
    summary_item item{i.name, i.kind, i.type, i.flags.per_rank, i.global, {}, {}};
    const rank_run run{rank, 1, i.kind == item_kind::bytes ? i.bytes : 0};
    if (detail::definition_only(i))
      item.without = {run};
    else
      item.boxes.push_back({i.box, {run}});
    again |= !out.items.empty() && out.items.back().name == item.name;
    out.items.push_back(std::move(item));
  }
  if (!again) return out;
  // Several items of one name: boxes of one tensor, or a conflict.
  std::stable_sort(out.items.begin(), out.items.end(),
                   [](const summary_item& a, const summary_item& b) { return detail::compare(a, b) < 0; });
  std::size_t kept = 0;
  for (std::size_t k = 1; k < out.items.size(); ++k) {
    auto& last = out.items[kept];
    if (detail::compare(last, out.items[k]) == 0) {
      detail::merge_boxes(last.boxes, std::move(out.items[k].boxes));
      detail::merge_runs(last.without, std::move(out.items[k].without));
    } else if (++kept != k) {
      out.items[kept] = std::move(out.items[k]);
    }
  }
  out.items.resize(kept + 1);
  return out;
}

/// The summary of both; associative, and commutative as well. Keeps every conflict. O(a + b).
[[nodiscard]] inline plan_summary merge_summaries(plan_summary a, plan_summary b) {
  if (a.items.empty()) return b;
  if (b.items.empty()) return a;
  plan_summary out;
  out.items.reserve(std::max(a.items.size(), b.items.size()));
  std::size_t i = 0;
  std::size_t k = 0;
  while (i < a.items.size() && k < b.items.size()) {
    const int order = detail::compare(a.items[i], b.items[k]);
    if (order == 0) {
      detail::merge_boxes(a.items[i].boxes, std::move(b.items[k].boxes));
      detail::merge_runs(a.items[i].without, std::move(b.items[k].without));
      ++k;
    }
    out.items.push_back(std::move(order <= 0 ? a.items[i++] : b.items[k++]));
  }
  for (; i < a.items.size(); ++i) out.items.push_back(std::move(a.items[i]));
  for (; k < b.items.size(); ++k) out.items.push_back(std::move(b.items[k]));
  return out;
}

namespace detail {
inline void encode_runs(wire_writer& out, const rank_runs& runs) {
  out.put(static_cast<std::uint64_t>(runs.size()));
  for (const auto& r : runs) out.put(r.first).put(r.count).put(r.bytes);
}
[[nodiscard]] inline rank_runs decode_runs(wire_reader& in) {
  rank_runs runs(in.get_count(16));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto& r = runs[i];
    r.first = in.get<std::int32_t>();
    r.count = in.get<std::int32_t>();
    r.bytes = in.get<std::uint64_t>();
    if (r.first < 0 || r.count < 1 || r.count > std::numeric_limits<std::int32_t>::max() - r.first ||
        (i > 0 && runs[i - 1].first > r.first))
      in.fail_here("ranks are negative or out of order");
  }
  return runs;
}
}  // namespace detail

inline void encode(wire_writer& out, const plan_summary& summary) {
  out.put(static_cast<std::uint64_t>(summary.items.size()));
  for (const auto& i : summary.items) {
    out.put(i.name).put(i.kind).put(i.type).put(static_cast<std::uint8_t>(i.per_rank));
    encode(out, i.global);
    out.put(static_cast<std::uint64_t>(i.boxes.size()));
    for (const auto& b : i.boxes) {
      encode(out, b.box.offsets), encode(out, b.box.sizes);
      detail::encode_runs(out, b.holders);
    }
    detail::encode_runs(out, i.without);
  }
}
/// @throws wire_error on bytes that are no summary, or one that is not sorted. Whether ranks agree, and boxes
/// lie inside of their tensors, is validated when the global summary is complete.
[[nodiscard]] inline plan_summary decode_plan_summary(wire_reader& in) {
  plan_summary summary;
  // Grown item by item: an item in memory is larger than its shortest encoding.
  const auto count = in.get_count(24);
  for (std::size_t n = 0; n < count; ++n) {
    summary_item i;
    i.name = in.get_string(max_item_name);
    i.kind = in.get_enum(item_kind::bytes);
    i.type = in.get_enum(last_dtype);
    const auto own = in.get<std::uint8_t>();
    if (own > 1) in.fail_here("unknown flags");
    i.per_rank = own != 0;
    i.global = decode_extents(in);
    i.boxes.resize(in.get_count(26));
    for (std::size_t k = 0; k < i.boxes.size(); ++k) {
      auto& b = i.boxes[k];
      b.box.offsets = decode_extents(in);
      b.box.sizes = decode_extents(in);
      b.holders = detail::decode_runs(in);
      if (b.holders.empty()) in.fail_here("a box that no rank holds");
      if (k > 0 && !(i.boxes[k - 1].box < b.box)) in.fail_here("boxes are out of order");
    }
    i.without = detail::decode_runs(in);
    if (i.boxes.empty() && i.without.empty()) in.fail_here("an item of no rank");
    if (n > 0 && detail::compare(summary.items.back(), i) >= 0) in.fail_here("items are out of order");
    summary.items.push_back(std::move(i));
  }
  return summary;
}

}  // namespace v1
}  // namespace cairn
