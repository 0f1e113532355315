// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/options.hpp>

#include <algorithm>
#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Which of the saves that a tier holds go on to the store: the same on all ranks, as it decides by counts, and by what
/// they agree on where one may be due.
class persist_schedule {
 public:
  explicit persist_schedule(persist how) noexcept : how_(how), due_(how.every), next_(how.every) {}

  /// The run goes on from a step that the store lacks: its saves go as soon as they may, whatever their numbers and the
  /// time, until one of them is committed.
  void store_lacks_step() noexcept { lacks_step_ = true, next_ = 0; }

  /// Whether the ranks have to agree on the save of this count, the first of which is 1; else it does not go.
  [[nodiscard]] bool asks(std::uint64_t count) const noexcept { return count >= next_; }
  /// Whether the store lacks the step that the run goes on from, as far as the ranks know together.
  [[nodiscard]] bool lacks_step() const noexcept { return lacks_step_; }
  /// Whether the save of this count is due by its number.
  [[nodiscard]] bool due(std::uint64_t count) const noexcept { return count >= due_; }
  /// Whether it goes. `busy`: an earlier one is still being written on some rank. `seconds`: since the last one went,
  /// or since the beginning, on the rank where that is longest. `committed`: some rank knows that a save of this run is.
  /// @pre asks(count)
  [[nodiscard]] bool goes(std::uint64_t count, bool busy, double seconds, bool committed) noexcept {
    if (lacks_step_ && committed) {
      lacks_step_ = false;
      next_ = due_;
      if (!asks(count)) return false;
    }
    next_ = count + 1;
    if (busy) return false;
    if (seconds < how_.seconds && !lacks_step_) {
      // Asked again at half of the way, by the pace until here: a few messages for each save that goes. Never later
      // than after as many saves again, as the pace may fall.
      const auto saves = static_cast<double>(count - went_);
      const double left = (how_.seconds - seconds) / std::max(seconds / saves, 1e-9);
      next_ = count + static_cast<std::uint64_t>(std::clamp(left / 2, 1.0, saves));
      return false;
    }
    went_ = count;
    // The save that brings what the store lacked comes besides.
    due_ = lacks_step_ && count < how_.every ? how_.every : count + how_.every;
    if (!lacks_step_) next_ = due_;
    return true;
  }

 private:
  persist how_;
  std::uint64_t due_;       // the first that is due by its number
  std::uint64_t next_;      // the first that may go
  std::uint64_t went_ = 0;  // the last that did
  bool lacks_step_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
