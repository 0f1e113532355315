// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/plan/summary/cover.hpp>
#include <cairn/plan/summary/replica_groups.hpp>
#include <cairn/plan/summary/summary.hpp>
#include <cairn/plan/summary/validation.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The most boxes of one item that are checked one by one where they follow no pattern.
inline constexpr std::int64_t max_single_boxes = std::int64_t{1} << 26;

/// The most boxes that are looked at for a message about what is wrong.
inline constexpr std::int64_t max_listed_boxes = std::int64_t{1} << 22;

CAIRN_BODY std::string ranks_text(const std::vector<std::int32_t>& ranks) {
  if (ranks.empty()) return "ranks";
  std::string text = ranks.size() == 1 || ranks.front() == ranks.back() ? "rank " : "ranks ";
  int runs = 0;
  for (std::size_t i = 0; i < ranks.size();) {
    auto k = i + 1;
    while (k < ranks.size() && ranks[k] - ranks[k - 1] <= 1) ++k;
    if (runs++ == 8) return text + ", ...";
    text.append(i ? ", " : "").append(std::to_string(ranks[i]));
    if (ranks[k - 1] != ranks[i]) text.append("-").append(std::to_string(ranks[k - 1]));
    i = k;
  }
  return text;
}

CAIRN_BODY std::vector<std::int32_t> summary_error::ranks(const chunk* box) const {
  std::vector<std::int32_t> out;
  std::int64_t left = max_listed_boxes;
  const auto add = [&](const chunk_progression& p) {
    left -= p.count();
    for (std::int64_t i = 0; left >= 0 && i < p.count(); ++i) {
      const auto c = p.at(i);
      if (box == nullptr || c.box == *box) out.push_back(c.rank);
    }
  };
  summary_.for_each_box(n_, add);
  if (box == nullptr) summary_.for_each_without(n_, add);
  detail::sort(out);
  return out;
}

CAIRN_BODY std::string summary_error::name() const {
  return std::string(summary_.name(n_));
}

CAIRN_BODY std::string summary_error::box_text(const chunk& box) const {
  return to_string(box) + " on " + ranks_text(ranks(&box));
}

CAIRN_BODY int summary_error::some_rank() const {
  int rank = -1;
  const auto take = [&](const chunk_progression& p) { rank = rank < 0 ? p.rank : rank; };
  summary_.for_each_box(n_, take);
  summary_.for_each_without(n_, take);
  return rank;
}

CAIRN_BODY int summary_error::rank_of(const chunk& box) const {
  const auto holders = ranks(&box);
  return holders.empty() ? some_rank() : holders.front();
}

CAIRN_BODY void summary_error::definitions(std::size_t other) const {
  const auto& a = summary_[n_];
  const auto& b = summary_[other];
  const summary_error theirs(summary_, other);
  auto id = error_id::plan_shape_mismatch;
  std::string what = "ranks give different global shapes to one item";
  auto expected = to_string(a.global);
  auto got = to_string(b.global);
  if (a.kind != b.kind) {
    id = error_id::plan_kind_mismatch;
    what = "ranks give one name to items of different kinds";
    expected = name_of(a.kind), got = name_of(b.kind);
  } else if (a.per_rank != b.per_rank) {
    id = error_id::plan_kind_mismatch;
    what = "an item is per_rank on some ranks only; flag it alike on all ranks";
    expected = a.per_rank ? "per_rank" : "not per_rank", got = b.per_rank ? "per_rank" : "not per_rank";
  } else if (a.type != b.type) {
    id = error_id::plan_dtype_mismatch;
    what = "ranks give different dtypes to one item";
    expected = name_of(a.type), got = name_of(b.type);
  }
  fail(id, what,
       {.rank = theirs.some_rank(),
        .item = name(),
        .expected = expected + " on " + ranks_text(ranks()),
        .got = got + " on " + ranks_text(theirs.ranks())});
}

CAIRN_BODY void summary_error::tiling() const {
  std::vector<chunk> boxes;
  std::int64_t left = max_listed_boxes;
  summary_.for_each_box(n_, [&](const chunk_progression& p) {
    left -= p.count();
    for (std::int64_t i = 0; left >= 0 && i < p.count(); ++i) boxes.push_back(p.at(i).box);
  });
  if (left < 0)
    fail(error_id::plan_not_covered,
         "the shards of all ranks together are not the tensor, and are too many to say where",
         {.rank = some_rank(), .item = name()});
  detail::sort(boxes);
  detail::erase_repeated(boxes);
  const box_search search(boxes);
  const auto outer = whole(summary_[n_].global);
  if (const auto found = search.overlap(outer)) {
    const auto& a = boxes[found->first];
    const auto& b = boxes[found->second];
    // The usual cause: one rank holds all of what the others hold in shards.
    if (const bool first = a == outer; first || b == outer) {
      const auto rank = rank_of(first ? a : b);
      fail(error_id::plan_overlap,
           "two boxes of a tensor overlap: rank " + std::to_string(rank) +
               " holds the whole tensor and others hold parts of it; leave it out of the state of rank " +
               std::to_string(rank) + ", as the parts are what is saved",
           {.rank = rank, .item = name(), .expected = box_text(first ? b : a), .got = box_text(outer)});
    }
    fail(error_id::plan_overlap,
         "two boxes of a tensor overlap: boxes must be equal (replicas) or have no element in common",
         {.rank = rank_of(b), .item = name(), .expected = box_text(a), .got = box_text(b)});
  }
  const auto missing = search.uncovered(outer);
  fail(error_id::plan_not_covered,
       "no rank holds a box of a tensor; the shards of all ranks together must make up the global shape",
       {.item = name(),
        .expected = "all of " + to_string(summary_[n_].global) + " from " + ranks_text(ranks()),
        .got = "nothing at " + to_string(missing.value_or(outer))});
}

CAIRN_BODY void summary_check::check(std::size_t n) {
  const auto& i = summary_[n];
  const summary_error error(summary_, n);
  if (n > 0 && summary_.name(n - 1) == summary_.name(n)) summary_error(summary_, n - 1).definitions(n);
  if (const auto problem = name_problem(summary_.name(n)); !problem.empty())
    fail(error_id::usage_bad_name, "the name of an item in the checkpoint " + std::string(problem),
         {.rank = error.some_rank(), .item = error.name().substr(0, 200)});
  if (!checked_bytes(i.type, i.global))
    fail(error_id::plan_out_of_bounds,
         "a tensor is larger than 2^63 bits, or its packed elements do not fill whole bytes",
         {.rank = error.some_rank(), .item = error.name(), .got = to_string(i.global)});
  groups_.clear();
  unshared_ = !i.per_rank && i.kind != item_kind::bytes && i.boxes > 1 && check_unshared(error, i, n);
  summary_.for_each_without(n, [&](const chunk_progression& p) {
    check_ranks(error, p);
    if (i.boxes == 0) groups_.members.emplace_back(p);
  });
  if (i.boxes == 0) {
    groups_.all_together();
    for (std::size_t g = 0; g < groups_.size(); ++g) check_holders(error, i, groups_[g]);
    groups_.members.clear();
  }
  if (unshared_) {
    groups_.all_alone();
    return;
  }
  const auto outer = whole(i.global);
  summary_.for_each_box(n, [&](const chunk_progression& p) {
    check_ranks(error, p);
    if (i.kind != item_kind::bytes) check_box(error, i, outer, p);
    groups_.members.emplace_back(p);
  });
  if (i.boxes == 0 && (i.kind == item_kind::bytes || (i.per_rank && !outer.empty()))) error.tiling();
  if (i.per_rank || i.kind == item_kind::bytes)
    groups_.all_together();
  else if (!groups_.find(outer, max_single_boxes) && !outer.empty())
    error.tiling();
  for (std::size_t g = 0; g < groups_.size(); ++g) check_holders(error, i, groups_[g]);
}

CAIRN_BODY bool summary_check::check_unshared(const summary_error& error, const summary_item& i,
                                              std::size_t n) const {
  const auto outer = whole(i.global);
  if (is_chain(n, outer)) return true;
  bool single = true;
  std::array<std::uint64_t, measure_seeds.size()> sums{};
  const auto add = [&](const chunk_progression& p) {
    check_ranks(error, p);
    check_box(error, i, outer, p);
    single = single && detail::all_of(p, [](const chunk_axis& a) { return a.dimension >= 0; });
    for (std::size_t k = 0; single && k < sums.size(); ++k)
      sums[k] = prime_field::reduce(sums[k] + random_measure(p, measure_seeds[k]));
    return true;
  };
  chunk_progression alone;
  alone.first = outer;
  summary_.for_each_box(
      n,
      [&](std::int32_t rank, const numbers& offsets, const numbers& sizes) {
        alone.rank = rank;
        for (int d = 0; d < outer.sizes.rank(); ++d) {
          alone.first.offsets.set(d, offsets[static_cast<std::size_t>(d)]);
          alone.first.sizes.set(d, sizes[static_cast<std::size_t>(d)]);
        }
        return add(alone);
      },
      add);
  for (std::size_t k = 0; single && k < sums.size(); ++k)
    single = sums[k] == random_measure(outer, measure_seeds[k]);
  return single;
}

CAIRN_BODY bool summary_check::is_chain(std::size_t n, const chunk& outer) const {
  int along = -1;
  std::int64_t end = 0;
  bool chain = true;
  const auto granule = granule_of(summary_[n].type);
  summary_.for_each_box(
      n,
      [&](std::int32_t rank, const numbers& offsets, const numbers& sizes) {
        chain = rank < world_;
        for (int d = 0; d < outer.sizes.rank() && chain; ++d) {
          const auto k = static_cast<std::size_t>(d);
          if (offsets[k] == 0 && sizes[k] == outer.sizes[d]) continue;
          if (along < 0) along = d;
          chain = d == along;
        }
        if (!chain || along < 0) return chain = false;
        const auto size = sizes[static_cast<std::size_t>(along)];
        chain = offsets[static_cast<std::size_t>(along)] == end && size % granule == 0 &&
                size <= outer.sizes[along] - end;
        end += size;
        return chain;
      },
      [&](const chunk_progression&) { return chain = false; });
  return chain && along >= 0 && end == outer.sizes[along];
}

CAIRN_BODY void summary_check::check_ranks(const summary_error& error, const chunk_progression& p) const {
  if (p.last_rank() >= world_)
    fail(error_id::plan_disagreement, "a plan names a rank that the group does not have",
         {.rank = static_cast<int>(p.last_rank()),
          .item = error.name(),
          .expected = "below " + std::to_string(world_)});
}

CAIRN_BODY void summary_check::check_box(const summary_error& error, const summary_item& i,
                                         const chunk& outer, const chunk_progression& p) {
  const auto last = p.axis_count == 0 ? p.first : p.last_box();
  for (const auto* box : {&p.first, &last})
    if ((box == &p.first || p.axis_count > 0) && !inside(*box, i.global))
      fail(error_id::plan_out_of_bounds, "a box reaches outside of its tensor",
           {.rank = error.rank_of(*box),
            .item = error.name(),
            .expected = "inside " + to_string(i.global),
            .got = error.box_text(*box)});
  if (!checked_bytes(i.type, p.first.sizes))
    fail(error_id::plan_out_of_bounds, "a box of a packed type is cut inside of a byte",
         {.rank = error.rank_of(p.first), .item = error.name(), .got = error.box_text(p.first)});
  if (i.per_rank && !(p.first == outer && last == outer))
    fail(error_id::plan_not_covered,
         "a per_rank item is the rank's own, whole; it cannot be a shard of something larger",
         {.rank = error.rank_of(p.first),
          .item = error.name(),
          .expected = to_string(outer),
          .got = error.box_text(p.first)});
}

CAIRN_BODY void summary_check::check_holders(const summary_error& error, const summary_item& i,
                                             list_view<const held_boxes> group) {
  bool apart = true;
  std::int64_t count = 0;
  for (std::size_t m = 0; m < group.size(); ++m) {
    apart = apart && (m == 0 || group[m - 1].last_holder() < group[m].p.rank);
    count += group[m].replicas();
  }
  if (apart) return;
  if (count > max_single_boxes)
    fail(error_id::plan_overlap, "the ranks that hold a box follow no pattern and are too many to check",
         {.rank = group[0].p.rank, .item = error.name()});
  holders_.clear();
  for (const auto& m : group)
    for (std::int64_t k = 0; k < m.replicas(); ++k) holders_.push_back(m.holder(k));
  detail::sort(holders_);
  const auto twice = std::adjacent_find(holders_.begin(), holders_.end());
  if (twice != holders_.end())
    fail(error_id::plan_overlap,
         "a rank gives the same box of an item twice; do two of its entries have one name in the "
         "checkpoint?",
         {.rank = *twice,
          .item = error.name(),
          .got = i.kind == item_kind::bytes ? std::string("bytes") : to_string(group[0].p.first)});
}

}  // namespace detail

CAIRN_BODY void validate(const plan_summary& summary, int world_size) {
  detail::summary_check check(summary, world_size);
  for (std::size_t n = 0; n < summary.size(); ++n) check.check(n);
}

}  // namespace v1
}  // namespace cairn
