// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Neighbouring holders with the same number of bytes to write.
struct level_run {
  std::uint64_t load = 0;
  std::int64_t first = 0;  ///< holder
  std::int32_t count = 0;
  bool raised = false;  ///< since start()
  friend bool operator==(const level_run&, const level_run&) noexcept = default;
  friend bool operator>(const level_run& a, const level_run& b) noexcept {
    return a.load != b.load ? a.load > b.load : a.first > b.first;
  }
};

/// The loads of the holders of something replicated, as runs of equal ones, the least first: what is to be
/// written is poured in like water. Costs O(log runs) for each run that takes part, however many holders
/// there are.
class water_level {
 public:
  /// @param runs what holders write anyway, in order of holders
  void start(const std::vector<level_run>& runs) {
    heap_ = runs;
    loose_ = true;
    sorted_.clear();
    next_ = 0;
    holders_ = 0;
    for (const auto& run : runs) holders_ += static_cast<std::size_t>(run.count);
  }
  /// The first of the holders with the least load gets all.
  std::int64_t give_to_least(std::uint64_t bytes) {
    make_heap();
    const auto run = pop();
    if (run.count > 1) push({run.load, run.first + 1, run.count - 1, run.raised});
    push({run.load + bytes, run.first, 1, true});
    return run.first;
  }
  /// The holders that share `bytes`, at most `most` of them, in order: those with the least, so many that
  /// each gets `piece` at least. `level` is the load that they then have. Fewer than two: nothing is changed.
  /// Else give back each with its new load by push().
  const std::vector<level_run>& take(std::uint64_t bytes, std::uint64_t piece, std::int64_t most,
                                     std::uint64_t& level) {
    sort_if_many();
    make_heap();
    taken_.clear();
    std::int64_t count = 0;
    std::uint64_t below = 0;
    while (!empty() && count < most) {
      auto run = pop();
      auto k = std::min<std::int64_t>(run.count, most - count);
      // The last one taken gets a piece if below + k * load + bytes >= (count + k) * (load + piece).
      const auto needed = static_cast<std::uint64_t>(count) * (run.load + piece);
      const auto spare = below + bytes < needed ? 0 : below + bytes - needed;
      if (k == 1 ? spare < piece : spare / static_cast<std::uint64_t>(k) < piece)
        k = static_cast<std::int64_t>(spare / piece);
      if (k < run.count)
        push({run.load, run.first + k, run.count - static_cast<std::int32_t>(k), run.raised});
      if (k == 0) break;
      const auto partly = k < run.count;
      run.count = static_cast<std::int32_t>(k);
      taken_.push_back(run);
      count += k;
      below += run.load * static_cast<std::uint64_t>(k);
      if (partly) break;
    }
    if (count < 2) {
      for (const auto& run : taken_) push(run);
      taken_.clear();
      return taken_;
    }
    level = (below + bytes) / static_cast<std::uint64_t>(count);
    in_order_of_holders();
    loose_ = taken_.size() > heap_.size();
    return taken_;
  }
  void push(const level_run& run) {
    heap_.push_back(run);
    if (!loose_) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  /// Appends what was raised, in no particular order.
  void append_raised(std::vector<level_run>& runs) const {
    const auto add = [&](const level_run& run) {
      if (run.raised) runs.push_back(run);
    };
    std::for_each(sorted_.begin() + static_cast<std::ptrdiff_t>(next_), sorted_.end(), add);
    std::for_each(heap_.begin(), heap_.end(), add);
  }

 private:
  [[nodiscard]] bool empty() const noexcept { return next_ == sorted_.size() && heap_.empty(); }
  /// @pre make_heap() was called since push() was, and it is not empty
  level_run pop() {
    if (next_ < sorted_.size() && (heap_.empty() || heap_.front() > sorted_[next_])) return sorted_[next_++];
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto run = heap_.back();
    heap_.pop_back();
    return run;
  }
  void make_heap() {
    if (loose_) std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    loose_ = false;
  }
  /// Where much is taken at a time, much is pushed: sorting all at once costs less than taking it off a heap.
  void sort_if_many() {
    if (heap_.size() < 16 || heap_.size() < sorted_.size() - next_) return;
    heap_.insert(heap_.end(), sorted_.begin() + static_cast<std::ptrdiff_t>(next_), sorted_.end());
    sorted_.resize(heap_.size());
    next_ = 0;
    // Loads are spread, so that a bucket for each run leaves little to sort.
    auto least = heap_[0].load;
    auto most = least;
    for (const auto& run : heap_) least = std::min(least, run.load), most = std::max(most, run.load);
    const auto wide = static_cast<int>(std::bit_width(most - least));
    const auto drop = std::max(0, wide - static_cast<int>(std::bit_width(heap_.size())) - 1);
    const auto bucket = [&](const level_run& run) {
      return static_cast<std::size_t>((run.load - least) >> drop);
    };
    places_.assign(bucket({most, 0, 0, false}) + 2, 0);
    for (const auto& run : heap_) ++places_[bucket(run) + 1];
    for (std::size_t k = 1; k < places_.size(); ++k) places_[k] += places_[k - 1];
    for (const auto& run : heap_) sorted_[places_[bucket(run)]++] = run;
    // Now places_[k] is where bucket k ends.
    for (std::size_t k = 0, begin = 0; k + 1 < places_.size(); begin = places_[k++])
      if (places_[k] - begin > 1)
        std::sort(sorted_.begin() + static_cast<std::ptrdiff_t>(begin), sorted_.begin() + places_[k],
                  [](const level_run& a, const level_run& b) { return b > a; });
    heap_.clear();
    loose_ = false;
  }
  /// Sorts what was taken, and joins neighbours with one load, which were apart for what happened before.
  void in_order_of_holders() {
    if (taken_.size() < holders_ / 8) {
      std::sort(taken_.begin(), taken_.end(),
                [](const level_run& a, const level_run& b) { return a.first < b.first; });
    } else {
      places_.resize(holders_);
      marks_.assign(holders_ / 64 + 1, 0);
      for (std::size_t k = 0; k < taken_.size(); ++k) {
        const auto at = static_cast<std::size_t>(taken_[k].first);
        marks_[at / 64] |= std::uint64_t{1} << at % 64;
        places_[at] = static_cast<std::uint32_t>(k);
      }
      merged_.clear();
      for (std::size_t w = 0; w < marks_.size(); ++w)
        for (auto left = marks_[w]; left != 0; left &= left - 1)
          merged_.push_back(taken_[places_[w * 64 + static_cast<std::size_t>(std::countr_zero(left))]]);
      taken_.swap(merged_);
    }
    std::size_t kept = 0;
    for (std::size_t k = 1; k < taken_.size(); ++k) {
      auto& last = taken_[kept];
      if (last.load == taken_[k].load && last.first + last.count == taken_[k].first)
        last.count += taken_[k].count, last.raised |= taken_[k].raised;
      else
        taken_[++kept] = taken_[k];
    }
    taken_.resize(kept + 1);
  }

  std::vector<level_run> sorted_;  ///< from next_ on
  std::size_t next_ = 0;
  std::vector<level_run> heap_;  ///< what was pushed since it was sorted
  bool loose_ = false;           ///< heap_ is not yet a heap
  std::size_t holders_ = 0;
  std::vector<level_run> taken_;
  std::vector<level_run> merged_;
  std::vector<std::uint32_t> places_;
  std::vector<std::uint64_t> marks_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
