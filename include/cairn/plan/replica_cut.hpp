// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/plan/replica_groups.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Cuts of a box: pieces are [at[i], at[i + 1]) of `dimension`, in units that fill whole bytes.
struct split_grain {
  int dimension = -1;
  std::int64_t unit = 1;  ///< rows that stay together
  std::int64_t units = 1;
  std::uint64_t unit_bytes = 0;
};

/// The first dimension whose rows are small against a piece, so that pieces stay contiguous where possible;
/// else the one with the smallest rows.
[[nodiscard]] inline split_grain grain_of(dtype type, const extents& sizes, std::uint64_t bytes,
                                          std::uint64_t piece) {
  split_grain best;
  for (int d = 0; d < sizes.rank(); ++d) {
    const std::int64_t unit = d + 1 == sizes.rank() ? granule_of(type) : 1;
    const std::int64_t units = sizes[d] / unit;
    if (units < 2) continue;
    const split_grain g{d, unit, units, bytes / static_cast<std::uint64_t>(units)};
    if (best.dimension < 0 || g.unit_bytes < best.unit_bytes) best = g;
    if (g.unit_bytes <= piece / 8) return g;
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

}  // namespace detail
}  // namespace v1
}  // namespace cairn
