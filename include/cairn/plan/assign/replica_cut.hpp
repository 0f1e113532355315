// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/plan/summary/replica_groups.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/sort_few.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Cuts of a box: chunks are [at[i], at[i + 1]) of `dimension`, in units that fill whole bytes.
struct split_grain {
  int dimension = -1;
  std::int64_t unit = 1;  ///< rows that stay together
  std::int64_t units = 1;
  std::uint64_t unit_bytes = 0;
};

/// The first dimension whose rows are small against `min_bytes`, so that chunks stay contiguous where possible;
/// else the one with the smallest rows.
[[nodiscard]] inline split_grain grain_of(dtype type, const extents& sizes, std::uint64_t bytes,
                                          std::uint64_t min_bytes) {
  split_grain best;
  for (int d = 0; d < sizes.rank(); ++d) {
    const std::int64_t unit = d + 1 == sizes.rank() ? granule_of(type) : 1;
    const std::int64_t units = sizes[d] / unit;
    if (units < 2) continue;
    const split_grain g{d, unit, units, bytes / static_cast<std::uint64_t>(units)};
    if (best.dimension < 0 || g.unit_bytes < best.unit_bytes) best = g;
    if (g.unit_bytes <= min_bytes / 8) return g;
  }
  return best;
}

/// The replicas [from, to) of a member as progressions of ranks: visit(index of the first, progression),
/// where an axis' offset_step is the step of the index.
template <class Visit>
void cut_replicas(const held_boxes& m, int axis, std::int64_t from, std::int64_t to, std::int64_t index,
                  std::int32_t rank, const Visit& visit) {
  chunk_progression p;
  p.rank = rank;
  if (axis == m.p.axis_count) {
    visit(index, p);
    return;
  }
  std::int64_t inside = 1;
  for (int k = axis + 1; k < m.p.axis_count; ++k) inside *= m.p.axes[static_cast<std::size_t>(k)].count;
  const auto& a = m.p.axes[static_cast<std::size_t>(axis)];
  const auto one = [&](std::int64_t i, std::int64_t begin, std::int64_t end) {
    cut_replicas(m, axis + 1, begin, end, index + i * inside,
                 rank + static_cast<std::int32_t>(i) * a.rank_step, visit);
  };
  auto first = from / inside;
  auto last = to / inside;
  if (from % inside != 0) {
    one(first, from % inside, std::min(inside, to - first * inside));
    ++first;
  }
  if (last == first) {
    // Nothing whole.
  } else if (last == first + 1) {
    one(first, 0, inside);
  } else if (last > first) {
    p.rank = rank + static_cast<std::int32_t>(first) * a.rank_step;
    p.axes[0] = {static_cast<std::int32_t>(last - first), a.rank_step, -1, inside};
    p.axis_count = 1;
    auto step = inside;
    for (int k = axis + 1; k < m.p.axis_count; ++k) {
      const auto& deeper = m.p.axes[static_cast<std::size_t>(k)];
      step /= deeper.count;
      p.axes[static_cast<std::size_t>(p.axis_count++)] = {deeper.count, deeper.rank_step, -1, step};
    }
    visit(index + first * inside, p);
  }
  if (last >= first && to % inside != 0) one(last, 0, to % inside);
}

/// Holders side by side, each of which writes as much of a box.
struct replica_share {
  std::int32_t holder = 0;  ///< the first of them
  std::int32_t count = 1;
  std::int64_t at = 0;    ///< the unit that the first of them begins with
  std::int64_t each = 0;  ///< units that each of them writes; 0: the whole box
};

/// Boxes that have the same number of holders, and what these write of them: the same of each box.
struct divided_boxes {
  list_view<const held_boxes> members;
  list_view<const std::int64_t> shards;  ///< the numbers of the boxes, ascending; none: all that members have
  list_view<const replica_share> shares;  ///< in the order of holders
  split_grain grain;                      ///< of the shares

  /// visit(const chunk_progression&), the axes of which are nested.
  template <class Visit>
  void for_each_chunk(const Visit& visit) const {
    auto m = members.begin();
    std::int64_t begin = 0;
    auto end = m->replicas();
    for (const auto& s : shares) {
      const auto last = std::int64_t{s.holder} + s.count;
      for (std::int64_t holder = s.holder; holder < last;) {
        while (holder >= end) begin = end, end += (++m)->replicas();
        const auto within = std::min(last, end);
        const auto at = s.at + (holder - s.holder) * s.each;
        cut_replicas(*m, m->shards, holder - begin, within - begin, 0, m->p.rank,
                     [&](std::int64_t index, const chunk_progression& holders) {
                       visit_chunk(*m, holders, at + (index - (holder - begin)) * s.each, s.each, visit);
                     });
        holder = within;
      }
    }
  }
  /// visit(const chunk&) for what one rank writes. O(members + log(shares)).
  template <class Visit>
  void for_each_chunk_of(std::int32_t rank, const Visit& visit) const {
    std::int64_t begin = 0;
    for (const auto& m : members) {
      if (const auto found = m.find(rank);
          found && (shards.empty() || std::binary_search(shards.begin(), shards.end(), found->shard))) {
        const auto holder = begin + found->replica;
        const auto next = std::upper_bound(shares.begin(), shares.end(), holder,
                                           [](auto h, const replica_share& s) { return h < s.holder; });
        if (next != shares.begin() && holder < std::int64_t{(next - 1)->holder} + (next - 1)->count) {
          const auto& s = *(next - 1);
          auto box = m.box(found->shard).box;
          cut(box, s.at + (holder - s.holder) * s.each, s.each);
          visit(box);
        }
      }
      begin += m.replicas();
    }
  }

 private:
  void cut(chunk& box, std::int64_t at, std::int64_t each) const {
    if (each == 0) return;
    box.offsets.set(grain.dimension, box.offsets[grain.dimension] + at * grain.unit);
    box.sizes.set(grain.dimension, each * grain.unit);
  }
  template <class Visit>
  void visit_chunk(const held_boxes& m, chunk_progression p, std::int64_t at, std::int64_t each,
                   const Visit& visit) const {
    p.first = m.p.first;
    cut(p.first, at, each);
    for (int k = 0; k < p.axis_count; ++k) {
      auto& a = p.axes[static_cast<std::size_t>(k)];
      a.dimension = grain.dimension;
      a.offset_step *= each * grain.unit;
    }
    const auto nested = [&](chunk_progression q) {
      sort_few(q.axes.begin(), q.axes.begin() + q.axis_count,
               [](const chunk_axis& a, const chunk_axis& b) { return a.rank_step > b.rank_step; });
      visit(q);
    };
    if (shards.empty()) {
      for (int k = 0; k < m.shards; ++k)
        p.axes[static_cast<std::size_t>(p.axis_count++)] = m.p.axes[static_cast<std::size_t>(k)];
      nested(p);
      return;
    }
    // Of one axis, neighbours are one progression.
    for (auto s = shards.begin(); s != shards.end();) {
      const auto c = m.box(*s);
      auto shifted = p;
      shifted.rank += c.rank - m.p.rank;
      for (int d = 0; d < c.box.offsets.rank(); ++d)
        shifted.first.offsets.set(d, p.first.offsets[d] + c.box.offsets[d] - m.p.first.offsets[d]);
      auto next = s + 1;
      while (m.shards == 1 && next != shards.end() && *next == *(next - 1) + 1) ++next;
      if (next - s > 1) {
        auto& a = shifted.axes[static_cast<std::size_t>(shifted.axis_count++)];
        a = m.p.axes[0];
        a.count = static_cast<std::int32_t>(next - s);
      }
      nested(shifted);
      s = next;
    }
  }
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
