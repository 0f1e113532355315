// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>

#include <algorithm>
#include <bit>
#include <chrono>

namespace cairn {
inline namespace v1 {
namespace detail {

/// How long a collective waits on one rank, longer the nearer to its end: who is nearer to an absent rank
/// gives up first and has a step of time to say so before the next one gives up.
struct tree_timeout {
  tree_timeout(deadline until, int ranks) : last(until) {
    const auto left = until.left();
    if (left == std::chrono::nanoseconds::max()) return;
    const auto grace =
        std::chrono::seconds(1) + std::min<std::chrono::nanoseconds>(left / 10, std::chrono::seconds(5));
    levels = static_cast<int>(std::bit_width(static_cast<unsigned>(ranks - 1)));
    one = grace / (2 * levels + 1);
    before_word = std::min<std::chrono::nanoseconds>(left / 8, std::chrono::seconds(1));
  }
  [[nodiscard]] bool ends() const noexcept { return one.count() != 0; }
  [[nodiscard]] deadline after(int steps) const noexcept {
    constexpr auto never = deadline::clock::time_point::max();
    const auto when = last.time_point();
    return deadline::at(when > never - one * steps ? never : when + one * steps);
  }
  [[nodiscard]] deadline up(int height) const noexcept { return after(height); }
  [[nodiscard]] deadline down(int depth) const noexcept { return after(levels + depth); }

  deadline last;
  std::chrono::nanoseconds one{0};
  std::chrono::nanoseconds before_word{0};  ///< a wait longer than this is told to the parent
  int levels = 1;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
