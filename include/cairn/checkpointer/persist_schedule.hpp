// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/options.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Which of the saves that a tier holds go on to the store: the same on all ranks, as it decides by counts, and by what
/// they agree on where one may be due.
class persist_schedule {
 public:
  explicit persist_schedule(persist how) noexcept : how_(how), next_(how.every) {}

  /// The run goes on from a step that the store lacks: its next save that may go does, whatever its number and the time.
  void store_lacks_step() noexcept { lacks_step_ = true, next_ = 0; }

  /// Whether the ranks have to agree on the save of this count, the first of which is 1; else it does not go.
  [[nodiscard]] bool asks(std::uint64_t count) const noexcept { return count >= next_; }
  /// Whether it goes. `busy`: an earlier one is still being written on some rank. `seconds`: since the last one went,
  /// or since the beginning, on the rank where that is longest. @pre asks(count)
  [[nodiscard]] bool goes(std::uint64_t count, bool busy, double seconds) noexcept {
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
    next_ = std::exchange(lacks_step_, false) && count < how_.every ? how_.every : count + how_.every;
    return true;
  }

 private:
  persist how_;
  std::uint64_t next_;      // the first that may go
  std::uint64_t went_ = 0;  // the last that did
  bool lacks_step_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
