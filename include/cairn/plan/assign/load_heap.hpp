// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/plan/assign/append_buffer.hpp>
#include <cairn/system/list_view.hpp>

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
struct load_run {
  std::uint64_t load = 0;
  std::int64_t first = 0;  ///< holder
  std::int32_t count = 0;
  /// 1: since start(). As wide as this, no padding is left: a run is copied as whole words, which may be read
  /// again at once.
  std::uint32_t raised = 0;
  friend bool operator==(const load_run&, const load_run&) noexcept = default;
  friend bool operator>(const load_run& a, const load_run& b) noexcept {
    return a.load != b.load ? a.load > b.load : a.first > b.first;
  }
};

/// The loads of the holders of something replicated, as runs of equal ones, the least first: what is to be
/// written is poured in like water. Costs O(log runs) for each run that takes part, however many holders
/// there are.
class load_heap {
 public:
  /// @param runs what holders write anyway, in order of holders
  void start(const std::vector<load_run>& runs) {
    heap_.assign(runs);
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
    push({run.load + bytes, run.first, 1, 1});
    return run.first;
  }
  /// The holders that share `bytes`, at most `most` of them, in order: those with the least, so many that
  /// each gets `piece` at least. `level` is the load that they then have. Fewer than two: nothing is changed.
  /// Else give back each with its new load by push(). Valid until the next call.
  list_view<const load_run> take(std::uint64_t bytes, std::uint64_t piece, std::int64_t most,
                                 std::uint64_t& level) {
    sort_if_many();
    make_heap();
    taken_.clear();
    std::int64_t count = 0;
    std::uint64_t below = 0;
    // Many loads are those of single holders.
    for (; heap_.empty() && next_ < sorted_.size() && sorted_[next_].count == 1 && count < most; ++next_) {
      const auto load = sorted_[next_].load;
      if (below + bytes < static_cast<std::uint64_t>(count) * (load + piece) + piece) break;
      taken_.append(sorted_[next_]);
      ++count;
      below += load;
    }
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
      taken_.append(run);
      count += k;
      below += run.load * static_cast<std::uint64_t>(k);
      if (partly) break;
    }
    if (count < 2) {
      for (const auto& run : taken_) push(run);
      return {};
    }
    level = (below + bytes) / static_cast<std::uint64_t>(count);
    in_order_of_holders();
    loose_ = taken_.size() > heap_.size();
    return {taken_.begin(), taken_.size()};
  }
  void push(const load_run& run) {
    heap_.append(run);
    if (!loose_) lift_last();
  }
  /// Appends what was raised, in no particular order.
  void append_raised(std::vector<load_run>& runs) const {
    const auto add = [&](const load_run& run) {
      if (run.raised != 0) runs.push_back(run);
    };
    std::for_each(sorted_.begin() + next_, sorted_.end(), add);
    std::for_each(heap_.begin(), heap_.end(), add);
  }

 private:
  [[nodiscard]] static bool before(const load_run& a, const load_run& b) noexcept { return b > a; }
  [[nodiscard]] bool empty() const noexcept { return next_ == sorted_.size() && heap_.empty(); }
  /// @pre make_heap() was called since push() was, and it is not empty
  load_run pop() {
    if (next_ < sorted_.size() && (heap_.empty() || *heap_.begin() > sorted_[next_])) return sorted_[next_++];
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto run = heap_.back();
    heap_.pop_back();
    return run;
  }
  [[gnu::noinline]] void lift_last() { std::push_heap(heap_.begin(), heap_.end(), std::greater<>()); }
  void make_heap() {
    if (loose_) std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    loose_ = false;
  }
  /// Where much is taken at a time, much is pushed: sorting all at once costs less than taking it off a heap.
  void sort_if_many() {
    if (heap_.size() < 16 || heap_.size() < sorted_.size() - next_) return;
    sort_pushed();
    // What was not taken lies above most of what was pushed.
    merged_.resize(heap_.size() + sorted_.size() - next_);
    std::merge(heap_.begin(), heap_.end(), sorted_.begin() + next_, sorted_.end(), merged_.begin(), before);
    sorted_.swap(merged_);
    next_ = 0;
    heap_.clear();
    loose_ = false;
  }
  /// Sorts heap_. What was poured over lies about one level, spread, and comes in order of holders: with a
  /// bucket for each run little is out of order, and nothing of those that are equal.
  void sort_pushed() {
    auto least = heap_[0].load;
    auto most = least;
    for (const auto& run : heap_) least = std::min(least, run.load), most = std::max(most, run.load);
    const auto wide = static_cast<int>(std::bit_width(most - least));
    const auto drop = std::max(0, wide - static_cast<int>(std::bit_width(heap_.size())));
    const auto bucket = [&](const load_run& run) {
      return static_cast<std::size_t>((run.load - least) >> drop);
    };
    buckets_.assign(static_cast<std::size_t>((most - least) >> drop) + 2, 0);
    for (const auto& run : heap_) ++buckets_[bucket(run) + 1];
    for (std::size_t k = 1; k < buckets_.size(); ++k) buckets_[k] += buckets_[k - 1];
    merged_.resize(heap_.size());
    for (const auto& run : heap_) merged_[buckets_[bucket(run)]++] = run;
    heap_.swap(merged_);
    std::size_t moves = 0;
    for (auto* next = heap_.begin() + 1; next < heap_.end(); ++next) {
      if (!before(*next, *(next - 1))) continue;
      const auto moved = *next;
      auto* at = next;
      for (; at != heap_.begin() && before(moved, *(at - 1)); --at, ++moves) *at = *(at - 1);
      *at = moved;
      if (moves <= 8 * heap_.size()) continue;
      std::sort(heap_.begin(), heap_.end(), before);
      return;
    }
  }
  /// Sorts what was taken, and joins neighbours with one load, which were apart for what happened before.
  void in_order_of_holders() {
    merged_.clear();
    const auto add = [&](const load_run& run) {
      if (!merged_.empty()) {
        auto& last = merged_.back();
        if (last.load == run.load && last.first + last.count == run.first) {
          last.count += run.count, last.raised |= run.raised;
          return;
        }
      }
      merged_.append(run);
    };
    if (taken_.size() < holders_ / 256) {
      std::sort(taken_.begin(), taken_.end(),
                [](const load_run& a, const load_run& b) { return a.first < b.first; });
      for (const auto& run : taken_) add(run);
    } else {
      places_.resize(holders_);
      marks_.assign(holders_ / 64 + 1, 0);
      for (std::size_t k = 0; k < taken_.size(); ++k) {
        const auto at = static_cast<std::size_t>(taken_[k].first);
        marks_[at / 64] |= std::uint64_t{1} << at % 64;
        places_[at] = static_cast<std::uint32_t>(k);
      }
      for (std::size_t w = 0; w < marks_.size(); ++w)
        for (auto left = marks_[w]; left != 0; left &= left - 1)
          add(taken_[places_[w * 64 + static_cast<std::size_t>(std::countr_zero(left))]]);
    }
    taken_.swap(merged_);
  }

  append_buffer<load_run> sorted_;  ///< from next_ on
  std::size_t next_ = 0;
  append_buffer<load_run> heap_;  ///< what was pushed since it was sorted
  bool loose_ = false;            ///< heap_ is not yet a heap
  std::size_t holders_ = 0;
  append_buffer<load_run> taken_;
  append_buffer<load_run> merged_;
  std::vector<std::uint32_t> buckets_;
  std::vector<std::uint32_t> places_;  ///< in taken_, of each holder
  std::vector<std::uint64_t> marks_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
