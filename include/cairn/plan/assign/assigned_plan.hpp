// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/progression_joiner.hpp>
#include <cairn/plan/summary/summary.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The assignment where there is one rank: it writes all that it holds. See write_assignment.
struct all_as_held {
  [[nodiscard]] bool written_as_held(std::size_t) const noexcept { return true; }
  template <class Visit>
  void for_each_chunk(std::size_t, Visit&&) const {}
  template <class Visit>
  void for_each_chunk_of(std::size_t, std::int32_t, Visit&&) const {}
};

/// The final plan of one rank: its items, cut to what it writes, in the order of the state. O(items).
template <class Assignment>
[[nodiscard]] save_plan plan_of(save_plan plan, const plan_summary& global, int rank,
                                const Assignment& assignment) {
  save_plan out;
  out.items.reserve(plan.items.size());
  std::size_t guess = 0;
  std::vector<chunk> boxes;
  for (auto& i : plan.items) {
    // States are often registered in the order of their names.
    if (guess >= global.size() || global.name(guess) != i.name) guess = global.find(i.name);
    if (guess == global.size())
      fail(error_id::plan_disagreement, "an item of a rank's plan is not in the global plan",
           {.rank = rank, .item = i.name});
    const auto item = guess++;
    if (global[item].boxes == 0) {
      // A tensor without elements: one rank writes that it is there.
      std::int32_t least = rank;
      global.for_each_without(item, [&](const chunk_progression& p) { least = std::min(least, p.rank); });
      if (least != rank && !i.flags.per_rank) continue;
      i.box = whole(i.global);
      out.items.push_back(std::move(i));
      continue;
    }
    if (definition_only(i)) continue;
    if (!global.holds(item, rank, i.box))
      fail(error_id::plan_disagreement, "a box of a rank's plan is not in the global plan",
           {.rank = rank, .item = i.name, .got = to_string(i.box)});
    if (assignment.written_as_held(item)) {
      out.items.push_back(std::move(i));
      continue;
    }
    boxes.clear();
    assignment.for_each_chunk_of(item, rank, [&](const chunk& written) {
      const auto& box = i.kind == item_kind::bytes ? i.box : written;
      if (i.box.empty() || intersect(box, i.box) == box) boxes.push_back(box);
    });
    for (std::size_t k = 0; k < boxes.size(); ++k) {
      // The last one takes the item: NOLINTNEXTLINE(bugprone-use-after-move)
      auto& made = k + 1 == boxes.size() ? out.items.emplace_back(std::move(i)) : out.items.emplace_back(i);
      if (made.box == boxes[k]) continue;
      made.box = boxes[k];
      if (made.kind != item_kind::bytes) made.bytes = bytes_of(made.type, made.box.volume());
    }
  }
  return out;
}

/// What a checkpoint that is written so will hold.
template <class Assignment>
[[nodiscard]] cairn::metadata metadata_by(const plan_summary& summary, const Assignment& assignment,
                                          int world_size) {
  cairn::metadata out;
  out.world_size = world_size;
  out.items.reserve(summary.size());
  for (std::size_t n = 0; n < summary.size(); ++n) {
    const auto& i = summary[n];
    auto& item = out.items.emplace_back();
    item.name = summary.name(n);
    item.kind = i.kind, item.type = i.type, item.global = i.global, item.per_rank = i.per_rank;
    const auto sink = [&](const chunk_progression& p) { item.chunks.append(p); };
    detail::progression_joiner<decltype(sink)> joiner(sink);
    const auto add = [&](chunk_progression p) {
      if (i.kind == item_kind::bytes || i.boxes == 0) p.first = whole(i.global);
      joiner.push(p);
    };
    if (i.boxes == 0 && !i.per_rank) {  // a tensor without elements: one rank writes that it is there
      std::int32_t least = INT32_MAX;
      summary.for_each_without(n, [&](const chunk_progression& p) { least = std::min(least, p.rank); });
      chunk_progression one;
      one.rank = least;
      add(one);
    } else if (i.boxes == 0) {
      summary.for_each_without(n, add);
    } else if (!assignment.written_as_held(n)) {
      assignment.for_each_chunk(n, add);
    } else if (i.kind == item_kind::bytes) {
      summary.for_each_box(n, add);
    } else {
      summary.for_each_box(n, sink);
    }
    joiner.flush();
  }
  return out;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
