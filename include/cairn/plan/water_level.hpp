// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
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
  std::int64_t count = 0;
  friend bool operator>(const level_run& a, const level_run& b) noexcept {
    return a.load != b.load ? a.load > b.load : a.first > b.first;
  }
};

/// The loads of the holders of something replicated, as runs of equal ones, the least first: what is to be
/// written is poured in like water. Costs O(log runs) for each piece of work, however many holders there are.
class water_level {
 public:
  /// @param loads bytes that each holder writes anyway
  void start(const std::vector<std::uint64_t>& loads) {
    heap_.clear();
    for (std::size_t k = 0; k < loads.size(); ++k) {
      if (!heap_.empty() && heap_.back().load == loads[k])
        ++heap_.back().count;
      else
        heap_.push_back({loads[k], static_cast<std::int64_t>(k), 1});
    }
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  /// The first of the holders with the least load gets all.
  std::int64_t give_to_least(std::uint64_t bytes) {
    auto run = pop();
    const auto holder = run.first;
    if (--run.count > 0) push({run.load, run.first + 1, run.count});
    push({run.load + bytes, holder, 1});
    return holder;
  }
  /// The holders that share `bytes`, at most `most` of them, in order: those with the least, so many that
  /// each gets `piece` at least. `level` is the load that they then have. Fewer than two: nothing is changed.
  /// Else give back each with its new load by push().
  std::vector<level_run>& take(std::uint64_t bytes, std::uint64_t piece, std::int64_t most,
                               std::uint64_t& level) {
    taken_.clear();
    std::int64_t count = 0;
    std::uint64_t below = 0;
    while (!heap_.empty() && count < most) {
      auto run = heap_.front();
      // The last one taken gets a piece if below + k * load + bytes >= (count + k) * (load + piece).
      const auto least = static_cast<std::uint64_t>(count) * (run.load + piece);
      if (below + bytes < least) break;
      const auto fit = static_cast<std::int64_t>((below + bytes - least) / piece);
      const auto k = std::min({run.count, fit, most - count});
      if (k <= 0) break;
      static_cast<void>(pop());
      if (k < run.count) push({run.load, run.first + k, run.count - k});
      const auto partly = k < run.count;
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
    std::sort(taken_.begin(), taken_.end(),
              [](const level_run& a, const level_run& b) { return a.first < b.first; });
    // Neighbours with one load, which were apart for what happened before.
    std::size_t kept = 0;
    for (std::size_t k = 1; k < taken_.size(); ++k) {
      auto& last = taken_[kept];
      if (last.load == taken_[k].load && last.first + last.count == taken_[k].first)
        last.count += taken_[k].count;
      else
        taken_[++kept] = taken_[k];
    }
    taken_.resize(kept + 1);
    return taken_;
  }
  void push(const level_run& run) {
    heap_.push_back(run);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  /// In no particular order.
  [[nodiscard]] const std::vector<level_run>& runs() const noexcept { return heap_; }

 private:
  level_run pop() {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto run = heap_.back();
    heap_.pop_back();
    return run;
  }
  std::vector<level_run> heap_;
  std::vector<level_run> taken_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
