// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/plan/summary/cover.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/sort_few.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A progression seen as boxes and their holders: its first `shards` axes are those along which boxes move,
/// sorted by dimension and step, the rest are replicas. (So its axes are not nested.)
struct held_boxes {
  chunk_progression p;
  int shards = 0;

  explicit held_boxes(const chunk_progression& from) : p(from) {
    if (p.axis_count == 0) return;
    const auto begin = p.axes.begin();
    const auto middle = std::stable_partition(begin, begin + p.axis_count,
                                              [](const chunk_axis& a) { return a.dimension >= 0; });
    shards = static_cast<int>(middle - begin);
    sort_few(begin, middle, [](const chunk_axis& a, const chunk_axis& b) {
      return a.dimension != b.dimension ? a.dimension < b.dimension : a.offset_step < b.offset_step;
    });
  }
  /// Holders of each box.
  [[nodiscard]] std::int64_t replicas() const noexcept {
    std::int64_t n = 1;
    for (int k = shards; k < p.axis_count; ++k) n *= p.axes[static_cast<std::size_t>(k)].count;
    return n;
  }
  /// The rank that holds the first box in replica `index`.
  [[nodiscard]] std::int32_t holder(std::int64_t index) const noexcept {
    auto rank = p.rank;
    for (int k = p.axis_count; k-- > shards;) {
      const auto& a = p.axes[static_cast<std::size_t>(k)];
      rank += static_cast<std::int32_t>(index % a.count) * a.rank_step;
      index /= a.count;
    }
    return rank;
  }
  [[nodiscard]] std::int32_t last_holder() const noexcept { return holder(replicas() - 1); }
  /// A box and its first holder.
  [[nodiscard]] stored_chunk box(std::int64_t shard) const noexcept {
    stored_chunk c{p.first, p.rank};
    for (int k = shards; k-- > 0;) {
      const auto& a = p.axes[static_cast<std::size_t>(k)];
      const auto i = shard % a.count;
      shard /= a.count;
      c.rank += static_cast<std::int32_t>(i) * a.rank_step;
      c.box.offsets.set(a.dimension, c.box.offsets[a.dimension] + i * a.offset_step);
    }
    return c;
  }
  /// Boxes.
  [[nodiscard]] std::int64_t boxes() const noexcept {
    std::int64_t n = 1;
    for (int k = 0; k < shards; ++k) n *= p.axes[static_cast<std::size_t>(k)].count;
    return n;
  }
  /// Appends the ranks that hold the first box, in the order of holder().
  void append_holders(std::vector<std::int32_t>& out) const { unfold(shards, p.axis_count, p.rank, out); }
  /// Appends, for each box, how far its holders are from those of the first one.
  void append_shifts(std::vector<std::int32_t>& out) const { unfold(0, shards, 0, out); }
  /// Which of the boxes it is, and the replica, that a rank holds. O(axes).
  struct place {
    std::int64_t shard = 0;
    std::int64_t replica = 0;
  };
  [[nodiscard]] std::optional<place> find(std::int32_t rank) const noexcept {
    std::int64_t rest = std::int64_t{rank} - p.rank;
    if (rest < 0) return std::nullopt;
    std::array<std::int64_t, chunk_progression::max_axes> steps{};
    std::array<std::size_t, chunk_progression::max_axes> order{0, 1, 2, 3, 4};
    sort_few(order.begin(), order.begin() + p.axis_count,
             [&](auto a, auto b) { return p.axes[a].rank_step > p.axes[b].rank_step; });
    for (int k = 0; k < p.axis_count; ++k) {
      const auto n = order[static_cast<std::size_t>(k)];
      steps[n] = rest / p.axes[n].rank_step;
      if (steps[n] >= p.axes[n].count) return std::nullopt;
      rest -= steps[n] * p.axes[n].rank_step;
    }
    if (rest != 0) return std::nullopt;
    place found;
    for (int k = 0; k < p.axis_count; ++k) {
      auto& index = k < shards ? found.shard : found.replica;
      index = index * p.axes[static_cast<std::size_t>(k)].count + steps[static_cast<std::size_t>(k)];
    }
    return found;
  }
  /// Negative, zero or positive: an order of the boxes, whoever holds them.
  [[nodiscard]] static int compare_boxes(const held_boxes& a, const held_boxes& b) noexcept {
    if (!(a.p.first == b.p.first)) return a.p.first < b.p.first ? -1 : 1;
    if (a.shards != b.shards) return a.shards < b.shards ? -1 : 1;
    for (std::size_t k = 0; k < static_cast<std::size_t>(a.shards); ++k) {
      const auto& x = a.p.axes[k];
      const auto& y = b.p.axes[k];
      if (x.dimension != y.dimension) return x.dimension < y.dimension ? -1 : 1;
      if (x.offset_step != y.offset_step) return x.offset_step < y.offset_step ? -1 : 1;
      if (x.count != y.count) return x.count < y.count ? -1 : 1;
    }
    return 0;
  }
  [[nodiscard]] static bool same_rank_steps(const held_boxes& a, const held_boxes& b) noexcept {
    for (std::size_t k = 0; k < static_cast<std::size_t>(a.shards); ++k)
      if (a.p.axes[k].rank_step != b.p.axes[k].rank_step) return false;
    return true;
  }

 private:
  void unfold(int from, int to, std::int32_t first, std::vector<std::int32_t>& out) const {
    const auto begin = out.size();
    out.push_back(first);
    for (int k = from; k < to; ++k) {
      const auto& a = p.axes[static_cast<std::size_t>(k)];
      const auto count = static_cast<std::size_t>(a.count);
      const auto before = out.size() - begin;
      out.resize(begin + before * count);
      // From the last one on: each is read before its place is filled.
      for (auto i = before; i-- > 0;) {
        auto rank = out[begin + i];
        for (auto* next = out.data() + begin + i * count; next != out.data() + begin + (i + 1) * count;
             rank += a.rank_step)
          *next++ = rank;
      }
    }
  }
};

/// The boxes of one item, those of the same boxes one behind another.
struct replica_groups {
  std::vector<held_boxes> members;
  std::vector<std::uint32_t> first;  ///< member of each group; one more at the end

  [[nodiscard]] std::size_t size() const noexcept { return first.size() - 1; }
  [[nodiscard]] list_view<const held_boxes> operator[](std::size_t group) const noexcept {
    return {members.data() + first[group], first[group + 1] - first[group]};
  }
  void clear() {
    members.clear();
    first.clear();
  }
  void all_alone() {
    first.resize(members.size() + 1);
    for (std::size_t i = 0; i < first.size(); ++i) first[i] = static_cast<std::uint32_t>(i);
  }
  void all_together() {
    first = {0};
    if (!members.empty()) first.push_back(static_cast<std::uint32_t>(members.size()));
  }
  /// False if members of the same boxes go from box to box by different steps of the rank.
  bool by_boxes() {
    std::vector<std::uint32_t> order(members.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
    detail::sort(order, [&](auto a, auto b) {
      const int c = held_boxes::compare_boxes(members[a], members[b]);
      return c != 0 ? c < 0 : a < b;
    });
    std::vector<held_boxes> sorted;
    sorted.reserve(members.size());
    for (const auto i : order) sorted.push_back(members[i]);
    members = std::move(sorted);
    first = {0};
    bool alike = true;
    for (std::size_t i = 1; i < members.size(); ++i) {
      if (held_boxes::compare_boxes(members[i - 1], members[i]) != 0)
        first.push_back(static_cast<std::uint32_t>(i));
      else
        alike = alike && held_boxes::same_rank_steps(members[i - 1], members[i]);
    }
    first.push_back(static_cast<std::uint32_t>(members.size()));
    return alike;
  }
  /// True if one member of each group, all together, are a partition of the outer box.
  [[nodiscard]] bool tile(const chunk& outer) const noexcept {
    if (members.size() == 1 && fills(members[0].p, outer)) return true;
    for (const std::uint64_t seed : measure_seeds) {
      std::uint64_t sum = 0;
      for (std::size_t g = 0; g < size(); ++g)
        sum = prime_field::reduce(sum + random_measure(members[first[g]].p, seed));
      if (sum != random_measure(outer, seed)) return false;
    }
    return true;
  }
  /// Every box for itself. False if there would be more than `max_members`.
  bool expand(std::int64_t max_members) {
    std::int64_t count = 0;
    for (const auto& m : members)
      if (__builtin_add_overflow(count, m.p.count(), &count) || count > max_members) return false;
    std::vector<held_boxes> all;
    all.reserve(static_cast<std::size_t>(count));
    chunk_progression one;
    for (const auto& m : members)
      for (std::int64_t i = 0; i < m.p.count(); ++i) {
        const auto c = m.p.at(i);
        one.first = c.box;
        one.rank = c.rank;
        all.emplace_back(one);
      }
    members = std::move(all);
    return true;
  }
  /// Finds the groups of the members, which are boxes of a tensor of this shape. Boxes of which none is there
  /// twice are found without sorting them. False if they are no partition of the tensor.
  bool find(const chunk& outer, std::int64_t max_members) {
    all_alone();
    if (tile(outer)) return true;
    if (members.size() < 2) return false;
    if (by_boxes() && tile(outer)) return true;
    const bool single = detail::all_of(members, [](const held_boxes& m) { return m.p.axis_count == 0; });
    return !single && expand(max_members) && (static_cast<void>(by_boxes()), tile(outer));
  }
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
