// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Neighbouring holders with the same number of bytes to write.
struct level_run {
  std::uint64_t load = 0;
  std::int64_t first = 0;  ///< holder
  std::int64_t count = 0;
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
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    sorted_.clear();
    next_ = 0;
    holders_ = 0;
    for (const auto& run : runs) holders_ += static_cast<std::size_t>(run.count);
  }
  /// The first of the holders with the least load gets all.
  std::int64_t give_to_least(std::uint64_t bytes) {
    const auto run = least();
    drop_least();
    if (run.count > 1) push({run.load, run.first + 1, run.count - 1});
    push({run.load + bytes, run.first, 1});
    return run.first;
  }
  /// The holders that share `bytes`, at most `most` of them, in order: those with the least, so many that
  /// each gets `piece` at least. `level` is the load that they then have. Fewer than two: nothing is changed.
  /// Else give back each with its new load by push().
  const std::vector<level_run>& take(std::uint64_t bytes, std::uint64_t piece, std::int64_t most,
                                     std::uint64_t& level) {
    sort_if_many();
    taken_.clear();
    std::int64_t count = 0;
    std::uint64_t below = 0;
    while (!empty() && count < most) {
      auto run = least();
      // The last one taken gets a piece if below + k * load + bytes >= (count + k) * (load + piece).
      const auto needed = static_cast<std::uint64_t>(count) * (run.load + piece);
      if (below + bytes < needed) break;
      const auto spare = below + bytes - needed;
      auto k = std::min(run.count, most - count);
      if (k == 1 ? spare < piece : spare / static_cast<std::uint64_t>(k) < piece)
        k = static_cast<std::int64_t>(spare / piece);
      if (k == 0) break;
      drop_least();
      const auto partly = k < run.count;
      if (partly) push({run.load, run.first + k, run.count - k});
      run.count = k;
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
    return taken_;
  }
  void push(const level_run& run) {
    heap_.push_back(run);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  /// Appends all, in no particular order.
  void append_to(std::vector<level_run>& runs) const {
    runs.insert(runs.end(), sorted_.begin() + static_cast<std::ptrdiff_t>(next_), sorted_.end());
    runs.insert(runs.end(), heap_.begin(), heap_.end());
  }

 private:
  [[nodiscard]] bool empty() const noexcept { return next_ == sorted_.size() && heap_.empty(); }
  [[nodiscard]] bool least_is_sorted() const noexcept {
    return next_ < sorted_.size() && (heap_.empty() || heap_.front() > sorted_[next_]);
  }
  [[nodiscard]] const level_run& least() const noexcept {
    return least_is_sorted() ? sorted_[next_] : heap_.front();
  }
  void drop_least() {
    if (least_is_sorted()) {
      ++next_;
    } else {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      heap_.pop_back();
    }
  }
  /// Where much is taken at a time, much is pushed: sorting it once costs less than taking it off a heap.
  void sort_if_many() {
    const auto left = sorted_.size() - next_;
    if (heap_.size() < 16 || heap_.size() < left / 4) return;
    const auto before = [](const level_run& a, const level_run& b) { return b > a; };
    std::sort(heap_.begin(), heap_.end(), before);
    merged_.clear();
    std::merge(sorted_.begin() + static_cast<std::ptrdiff_t>(next_), sorted_.end(), heap_.begin(),
               heap_.end(), std::back_inserter(merged_), before);
    sorted_.swap(merged_);
    next_ = 0;
    heap_.clear();
  }
  /// Sorts what was taken, and joins neighbours with one load, which were apart for what happened before.
  void in_order_of_holders() {
    if (taken_.size() < holders_ / 8) {
      std::sort(taken_.begin(), taken_.end(),
                [](const level_run& a, const level_run& b) { return a.first < b.first; });
    } else {
      places_.assign(holders_, 0);
      for (std::size_t k = 0; k < taken_.size(); ++k)
        places_[static_cast<std::size_t>(taken_[k].first)] = static_cast<std::uint32_t>(k + 1);
      merged_.clear();
      for (const auto k : places_)
        if (k > 0) merged_.push_back(taken_[k - 1]);
      taken_.swap(merged_);
    }
    std::size_t kept = 0;
    for (std::size_t k = 1; k < taken_.size(); ++k) {
      auto& last = taken_[kept];
      if (last.load == taken_[k].load && last.first + last.count == taken_[k].first)
        last.count += taken_[k].count;
      else
        taken_[++kept] = taken_[k];
    }
    taken_.resize(kept + 1);
  }

  std::vector<level_run> sorted_;  ///< from next_ on
  std::size_t next_ = 0;
  std::vector<level_run> heap_;  ///< what was pushed since it was sorted
  std::size_t holders_ = 0;
  std::vector<level_run> taken_;
  std::vector<level_run> merged_;
  std::vector<std::uint32_t> places_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
