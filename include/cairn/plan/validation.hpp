// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/plan/cover.hpp>
#include <cairn/plan/summary.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

[[nodiscard]] inline rank_runs ranks_of(const summary_item& i) {
  rank_runs ranks = i.without;
  for (const auto& b : i.boxes) {
    rank_runs more = b.holders;
    merge_runs(ranks, std::move(more));
  }
  // A rank with several boxes is named once.
  rank_runs named;
  for (const auto& r : ranks) {
    if (!named.empty() && r.first <= named.back().first + named.back().count) {
      const auto end = std::max(named.back().first + named.back().count, r.first + r.count);
      named.back().count = end - named.back().first;
    } else {
      named.push_back({r.first, r.count, 0});
    }
  }
  return named;
}

[[noreturn]] inline void fail_definitions(const summary_item& a, const summary_item& b) {
  const auto says = [](const summary_item& i, std::string what) {
    return what + " on " + to_string(ranks_of(i));
  };
  const int rank = ranks_of(b).front().first;
  if (a.kind != b.kind)
    fail(error_id::plan_kind_mismatch, "ranks give one name to items of different kinds",
         {.rank = rank,
          .item = a.name,
          .expected = says(a, std::string(name_of(a.kind))),
          .got = says(b, std::string(name_of(b.kind)))});
  if (a.per_rank != b.per_rank)
    fail(error_id::plan_kind_mismatch, "an item is per_rank on some ranks only; flag it alike on all ranks",
         {.rank = rank,
          .item = a.name,
          .expected = says(a, a.per_rank ? "per_rank" : "not per_rank"),
          .got = says(b, b.per_rank ? "per_rank" : "not per_rank")});
  if (a.type != b.type)
    fail(error_id::plan_dtype_mismatch, "ranks give different dtypes to one item",
         {.rank = rank,
          .item = a.name,
          .expected = says(a, std::string(name_of(a.type))),
          .got = says(b, std::string(name_of(b.type)))});
  fail(error_id::plan_shape_mismatch, "ranks give different global shapes to one item",
       {.rank = rank,
        .item = a.name,
        .expected = says(a, to_string(a.global)),
        .got = says(b, to_string(b.global))});
}

[[nodiscard]] inline std::string text_of(const summary_box& b) {
  return to_string(b.box) + " on " + to_string(b.holders);
}

[[noreturn]] inline void fail_tiling(const summary_item& i) {
  std::vector<chunk> boxes;
  for (const auto& b : i.boxes) boxes.push_back(b.box);
  const box_search search(boxes);
  const auto region = whole(i.global);
  if (const auto found = search.overlap(region)) {
    const auto& a = i.boxes[found->first];
    const auto& b = i.boxes[found->second];
    fail(error_id::plan_overlap,
         "two boxes of a tensor overlap: boxes must be equal (replicas) or have no element in common",
         {.rank = b.holders.front().first, .item = i.name, .expected = text_of(a), .got = text_of(b)});
  }
  const auto missing = search.uncovered(region);
  fail(error_id::plan_not_covered,
       "no rank holds a part of a tensor; the shards of all ranks together must make up the global shape",
       {.item = i.name,
        .expected = "all of " + to_string(i.global) + " from " + to_string(ranks_of(i)),
        .got = "nothing at " + to_string(missing.value_or(region))});
}

inline void validate_holders(const summary_item& i, const rank_runs& holders, const std::string& what,
                             int world_size) {
  for (std::size_t k = 0; k < holders.size(); ++k) {
    if (holders[k].first + holders[k].count > world_size)
      fail(error_id::plan_disagreement, "a plan names a rank that the group does not have",
           {.rank = holders[k].first + holders[k].count - 1,
            .item = i.name,
            .expected = "below " + std::to_string(world_size)});
    if (k > 0 && holders[k].first < holders[k - 1].first + holders[k - 1].count)
      fail(error_id::plan_overlap,
           "a rank gives the same box of an item twice; do two of its entries have one name in the "
           "checkpoint?",
           {.rank = holders[k].first, .item = i.name, .got = what});
  }
}

/// One definition of one name.
inline void validate_item(const summary_item& i, int world_size) {
  const int some_rank = i.boxes.empty() ? i.without.front().first : i.boxes[0].holders.front().first;
  if (const auto problem = name_problem(i.name); !problem.empty())
    fail(error_id::usage_bad_name, "the name of an item in the checkpoint " + std::string(problem),
         {.rank = some_rank, .item = i.name.substr(0, 200)});
  if (!checked_bytes(i.type, i.global))
    fail(error_id::plan_out_of_bounds,
         "a tensor is larger than 2^63 bits, or its packed elements do not fill whole bytes",
         {.rank = some_rank, .item = i.name, .got = to_string(i.global)});
  const auto region = whole(i.global);
  for (const auto& b : i.boxes) {
    if (!inside(b.box, i.global))
      fail(error_id::plan_out_of_bounds, "a box reaches outside of its tensor",
           {.rank = b.holders.front().first,
            .item = i.name,
            .expected = "inside " + to_string(i.global),
            .got = text_of(b)});
    if (!checked_bytes(i.type, b.box.sizes))
      fail(error_id::plan_out_of_bounds, "a box of a packed type is cut inside of a byte",
           {.rank = b.holders.front().first, .item = i.name, .got = text_of(b)});
    validate_holders(i, b.holders, to_string(b.box), world_size);
    if (i.per_rank && !(b.box == region))
      fail(error_id::plan_not_covered,
           "a per_rank item is the rank's own, whole; it cannot be a shard of something larger",
           {.rank = b.holders.front().first,
            .item = i.name,
            .expected = to_string(region),
            .got = text_of(b)});
  }
  if (i.per_rank || (i.boxes.size() == 1 && i.boxes[0].box == region) || region.empty()) return;
  if (!tiles(region, i.boxes.size(), [&](std::size_t k) -> const chunk& { return i.boxes[k].box; }))
    fail_tiling(i);
}

}  // namespace detail

/// Checks that the plans of all ranks together are a whole checkpoint: one kind, dtype, shape and per_rank
/// flag for each name; boxes inside of their tensors; boxes either equal (replicas) or without a common
/// element; every element in some box. Linear in the boxes where nothing is wrong.
/// @throws plan_error naming item, boxes and ranks; the same one for the same summary.
inline void validate(const plan_summary& summary, int world_size) {
  for (std::size_t k = 0; k < summary.items.size(); ++k) {
    if (k > 0 && summary.items[k - 1].name == summary.items[k].name)
      detail::fail_definitions(summary.items[k - 1], summary.items[k]);
    detail::validate_item(summary.items[k], world_size);
  }
}

}  // namespace v1
}  // namespace cairn
