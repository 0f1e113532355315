// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <chrono>

namespace cairn {
inline namespace v1 {

/// A point in time after which a wait gives up. Steady clock: jumps of the wall clock do not matter.
class deadline {
 public:
  using clock = std::chrono::steady_clock;
  /// `after` from now; durations too long for the clock mean never.
  static deadline in(std::chrono::nanoseconds after) noexcept;
  /// At this time of the steady clock.
  static deadline at(clock::time_point when) noexcept { return deadline(when); }
  /// One that does not pass.
  static deadline never() noexcept { return deadline(clock::time_point::max()); }

  /// True from its time on.
  [[nodiscard]] bool passed() const noexcept {
    return when_ != clock::time_point::max() && clock::now() >= when_;
  }
  /// Time left, zero when passed.
  [[nodiscard]] std::chrono::nanoseconds left() const noexcept;
  /// Its time on the steady clock.
  [[nodiscard]] clock::time_point time_point() const noexcept { return when_; }
  /// The one of the two that passes first.
  [[nodiscard]] deadline earlier(deadline other) const noexcept {
    return when_ < other.when_ ? *this : other;
  }

 private:
  explicit deadline(clock::time_point when) noexcept : when_(when) {}
  clock::time_point when_;
};

/// Seconds as a double, for reports.
[[nodiscard]] double seconds_since(deadline::clock::time_point begin) noexcept;

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/deadline.ipp>
#endif
