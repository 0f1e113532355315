// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Joins chunks and progressions that come in ascending order of rank (as do the summaries of a lower and a
/// higher range of ranks) into few progressions. Only the last few are tried, so that each costs O(1)
/// whatever there is; what cannot be joined any more goes to `sink(const chunk_progression&)`.
template <class Sink>
class progression_joiner {
 public:
  static constexpr std::size_t window = 8;

  explicit progression_joiner(Sink sink) : sink_(std::move(sink)) {}

  /// Adds what is known not to join with what is there.
  void add(const chunk_progression& p) {
    if (open_.size() - begin_ >= window) {
      sink_(open_[begin_++]);
      if (begin_ == 4 * window) {
        open_.erase(open_.begin(), open_.begin() + static_cast<std::ptrdiff_t>(begin_));
        begin_ = 0;
      }
    }
    open_.push_back(p);
  }
  void push(chunk_progression p) {
    while (!join_any(p)) {
      bool shorter = false;
      // At the border of two ranges, rows of a mesh were cut: what lies behind the border may have been
      // stacked before its first row was whole.
      for (std::size_t k = open_.size(); p.axis_count > 0 && !shorter && k-- > begin_;)
        if (open_[k].first.sizes == p.first.sizes && open_[k].rank < p.rank && extend(open_[k], p.slice(0))) {
          drop_slice(p, true);
          rejoin(k);
          shorter = true;
        }
      if (shorter) continue;
      // And what lies before it, though its last row was not.
      for (std::size_t k = open_.size(); k-- > begin_;) {
        auto& before = open_[k];
        if (before.axis_count == 0 || !(before.first.sizes == p.first.sizes) || before.rank >= p.rank)
          continue;
        auto last = before.slice(before.axes[0].count - 1);
        if (!extend(last, p)) continue;
        drop_slice(before, false);
        rejoin(k);
        p = last;
        break;
      }
      if (!join_any(p)) add(p);
      return;
    }
  }
  void flush() {
    for (; begin_ < open_.size(); ++begin_) sink_(open_[begin_]);
    open_.clear();
    begin_ = 0;
  }

 private:
  bool join_any(const chunk_progression& p) {
    for (std::size_t k = open_.size(); k-- > begin_;)
      if (open_[k].first.sizes == p.first.sizes && join(open_[k], p)) {
        rejoin(k);
        return true;
      }
    return false;
  }
  /// What has grown may join with another one now.
  void rejoin(std::size_t k) {
    for (std::size_t i = open_.size(); i-- > begin_;) {
      if (i == k || !(open_[i].first.sizes == open_[k].first.sizes)) continue;
      const auto low = std::min(i, k);
      const auto high = std::max(i, k);
      if (!join(open_[low], open_[high])) continue;
      open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(high));
      k = low;
      i = open_.size();
    }
  }

  Sink sink_;
  vector<chunk_progression> open_;
  std::size_t begin_ = 0;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
