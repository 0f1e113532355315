// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/plan/assign/load_heap.hpp>
#include <cairn/plan/summary/replica_groups.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// visit(rank) for the ranks of a progression, axis by axis as they are, until it returns false; false then.
template <class Visit>
bool for_each_rank(const chunk_progression& p, const Visit& visit, int axis = 0, std::int32_t offset = 0) {
  auto rank = p.rank + offset;
  if (axis == p.axis_count) return visit(rank);
  const auto& a = p.axes[static_cast<std::size_t>(axis)];
  for (std::int32_t k = 0; k < a.count; ++k, rank += a.rank_step)
    if (axis + 1 == p.axis_count ? !visit(rank) : !for_each_rank(p, visit, axis + 1, rank - p.rank))
      return false;
  return true;
}

/// The bytes that each rank writes. They are looked at through a pattern: holder h of box s is the rank
/// `holders[h] + shifts[s]`. Every look is one pass over the ranks of the pattern.
class rank_loads {
 public:
  explicit rank_loads(std::size_t world_size) : load_(world_size) {}

  [[nodiscard]] std::size_t size() const noexcept { return load_.size(); }
  void add(std::int32_t rank, std::uint64_t bytes) noexcept {
    load_[static_cast<std::size_t>(rank)] += bytes;
  }
  void add(const chunk_progression& ranks, std::uint64_t bytes) noexcept {
    // The innermost axis is the longest loop.
    auto rows = ranks;
    chunk_axis row{1, 1, -1, 0};
    if (rows.axis_count > 0) row = rows.axes[static_cast<std::size_t>(--rows.axis_count)];
    static_cast<void>(for_each_rank(rows, [&](std::int32_t rank) {
      auto* load = load_.data() + rank;
      for (std::int32_t k = 0; k < row.count; ++k, load += row.rank_step) *load += bytes;
      return true;
    }));
  }

  /// The pattern of the calls that follow.
  void look_at(list_view<const held_boxes> members) {
    holders_.clear();
    shifts_.clear();
    const auto& p = members[0].p;
    const auto side_by_side = members.size() == 1 && p.axis_count - members[0].shards == 1 &&
                              p.axes[static_cast<std::size_t>(members[0].shards)].rank_step == 1;
    first_ = p.rank;
    count_ = static_cast<std::size_t>(members[0].replicas());
    if (!side_by_side) {
      for (const auto& m : members) m.append_holders(holders_);
      count_ = holders_.size();
    }
    members[0].append_shifts(shifts_);
    find_classes();
  }
  /// Boxes, by their numbers, whose holders have loads that differ alike: what is decided for one of them
  /// holds for all. Most often there is one class; in the order of their first boxes.
  [[nodiscard]] const std::vector<std::vector<std::int64_t>>& classes() const noexcept { return classes_; }
  [[nodiscard]] bool is_all(const std::vector<std::int64_t>& boxes) const noexcept {
    return boxes.size() == shifts_.size();
  }
  /// By how much the loads of the holders of a class are above the least of them, as runs.
  void runs_of(const std::vector<std::int64_t>& boxes, std::vector<load_run>& runs) const {
    runs.clear();
    auto least = ~std::uint64_t{0};
    const auto* load = load_.data() + shift_of(boxes[0]);
    for (std::size_t h = 0; h < count_; ++h) {
      const auto own = load[rank_of(h)];
      if (!runs.empty() && runs.back().load == own) {
        ++runs.back().count;
        continue;
      }
      runs.push_back({own, static_cast<std::int64_t>(h), 1, 0});
      least = std::min(least, own);
    }
    for (auto& run : runs) run.load -= least;
  }
  /// The same for the `most` holders with the least alone: who takes part where each of so many boxes goes to
  /// one holder. The comparisons of one pass, and O(log(most)) for each holder that is among the least so
  /// far.
  void least_of(const std::vector<std::int64_t>& boxes, std::size_t most, std::vector<load_run>& runs) {
    const auto* load = load_.data() + shift_of(boxes[0]);
    least_.clear();
    std::size_t h = 0;
    for (; h < std::min(most, count_); ++h) least_.emplace_back(load[rank_of(h)], h);
    std::make_heap(least_.begin(), least_.end());
    const auto look = [&](const auto& rank) {
      for (auto limit = least_.front().first; h < count_; ++h) {
        // Four comparisons at a time, as most are above.
        while (h + 4 <= count_ && std::min(std::min(load[rank(h)], load[rank(h + 1)]),
                                           std::min(load[rank(h + 2)], load[rank(h + 3)])) >= limit)
          h += 4;
        if (h == count_) break;
        if (load[rank(h)] >= limit) continue;  // of equal ones, those that come first
        std::pop_heap(least_.begin(), least_.end());
        least_.back() = {load[rank(h)], h};
        std::push_heap(least_.begin(), least_.end());
        limit = least_.front().first;
      }
    };
    if (holders_.empty())
      look([&](std::size_t k) { return first_ + static_cast<std::int32_t>(k); });
    else
      look([&](std::size_t k) { return holders_[k]; });
    const auto least = std::min_element(least_.begin(), least_.end())->first;
    std::sort(least_.begin(), least_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    runs.clear();
    for (const auto& [own, holder] : least_) {
      const auto first = static_cast<std::int64_t>(holder);
      if (!runs.empty() && runs.back().load == own - least && runs.back().first + runs.back().count == first)
        ++runs.back().count;
      else
        runs.push_back({own - least, first, 1, 0});
    }
  }
  /// Gives the holders of a class the loads of some runs, which count as those that runs_of() or least_of()
  /// gave.
  void raise(const std::vector<std::int64_t>& boxes, const std::vector<load_run>& before,
             const std::vector<load_run>& after) {
    // What is to be added to the load of a run, for each box.
    own_.clear();
    const auto first = static_cast<std::size_t>(before[0].first);
    for (const auto s : boxes) own_.emplace_back(shift_of(s), at(first, shift_of(s)) - before[0].load);
    for (const auto& run : after)
      for (auto h = run.first; h < run.first + run.count; ++h)
        for (const auto& [shift, base] : own_) at(static_cast<std::size_t>(h), shift) = run.load + base;
  }

 private:
  [[nodiscard]] std::int32_t shift_of(std::int64_t box) const noexcept {
    return shifts_[static_cast<std::size_t>(box)];
  }
  [[nodiscard]] std::int32_t rank_of(std::size_t holder) const noexcept {
    return holders_.empty() ? first_ + static_cast<std::int32_t>(holder) : holders_[holder];
  }
  [[nodiscard]] std::uint64_t at(std::size_t holder, std::int32_t shift) const noexcept {
    return load_[static_cast<std::size_t>(rank_of(holder) + shift)];
  }
  [[nodiscard]] std::uint64_t& at(std::size_t holder, std::int32_t shift) noexcept {
    return load_[static_cast<std::size_t>(rank_of(holder) + shift)];
  }
  [[nodiscard]] bool alike(std::int64_t a, std::int64_t b) const noexcept {
    const auto apart = at(0, shift_of(a)) - at(0, shift_of(b));
    for (std::size_t h = 1; h < count_; ++h)
      if (at(h, shift_of(a)) - at(h, shift_of(b)) != apart) return false;
    return true;
  }
  [[nodiscard]] bool all_alike() {
    if (shifts_.size() == 1) return true;
    apart_.resize(shifts_.size());
    for (std::size_t s = 0; s < shifts_.size(); ++s) apart_[s] = at(0, shifts_[s]) - at(0, shifts_[0]);
    const auto* shift = shifts_.data();
    const auto* apart = apart_.data();
    for (std::size_t h = 1; h < count_; ++h) {
      const auto* load = load_.data() + rank_of(h);
      const auto first = *load;
      std::uint64_t wrong = 0;
      for (std::size_t s = 1; s < shifts_.size(); ++s) wrong |= (load[shift[s]] - first) ^ apart[s];
      if (wrong != 0) return false;
    }
    return true;
  }
  void find_classes() {
    classes_.clear();
    if (all_alike()) {
      classes_.emplace_back(shifts_.size());
      std::iota(classes_[0].begin(), classes_[0].end(), std::int64_t{0});
      return;
    }
    // Boxes whose holders' loads differ alike have one hash.
    std::vector<std::uint64_t> hash(shifts_.size());
    for (std::size_t h = 1; h < count_; ++h)
      for (std::size_t s = 0; s < shifts_.size(); ++s)
        hash[s] =
            (hash[s] ^ hash[s] >> 29 ^ (at(h, shifts_[s]) - at(h - 1, shifts_[s]))) * 0x9e3779b97f4a7c15u;
    std::vector<std::int64_t> order(shifts_.size());
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::sort(order.begin(), order.end(), [&](auto a, auto b) {
      const auto x = hash[static_cast<std::size_t>(a)];
      const auto y = hash[static_cast<std::size_t>(b)];
      return x != y ? x < y : a < b;
    });
    std::size_t same = 0;  // the first class of the hash
    for (std::size_t k = 0; k < order.size(); ++k) {
      if (k > 0 && hash[static_cast<std::size_t>(order[k])] != hash[static_cast<std::size_t>(order[k - 1])])
        same = classes_.size();
      auto c = same;
      while (c < classes_.size() && !alike(classes_[c][0], order[k])) ++c;
      if (c == classes_.size()) classes_.emplace_back();
      classes_[c].push_back(order[k]);
    }
    std::sort(classes_.begin(), classes_.end(), [](const auto& a, const auto& b) { return a[0] < b[0]; });
  }

  std::vector<std::uint64_t> load_;
  std::vector<std::int32_t> holders_;  ///< of the first box; none: they stand side by side
  std::int32_t first_ = 0;             ///< of them
  std::size_t count_ = 0;
  std::vector<std::int32_t> shifts_;  ///< of the rank, from the first box to each other one
  std::vector<std::vector<std::int64_t>> classes_;
  std::vector<std::uint64_t> apart_;
  std::vector<std::pair<std::int32_t, std::uint64_t>> own_;
  std::vector<std::pair<std::uint64_t, std::size_t>> least_;  ///< loads and holders
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
