// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>
#include <cairn/system/shared_event.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

namespace cairn {
inline namespace v1 {

/// Where limits of bandwidth take their time from: the steady clock; tests derive others. Any thread.
class rate_clock {
 public:
  using time_point = deadline::clock::time_point;
  virtual ~rate_clock() = default;
  /// The present time; never goes back.
  [[nodiscard]] virtual time_point now() noexcept;
  /// Returns at `until`, when `word` was notified after `seen` was read, or for no reason.
  virtual void wait(shared_event& word, std::uint32_t seen, time_point until) noexcept;
};

/// A limit in bytes per second, shared by those who move the bytes: a token bucket that holds what may move
/// in 20 ms. Each takes a slice before it moves it. Any thread.
class rate_limiter {
 public:
  using time_point = rate_clock::time_point;
  /// @pre bytes_per_second > 0
  explicit rate_limiter(std::uint64_t bytes_per_second, std::shared_ptr<rate_clock> clock = nullptr);

  /// The limit; 0: none.
  [[nodiscard]] std::uint64_t bytes_per_second() const noexcept { return bytes_per_second_; }
  /// Bytes to move at once, about 20 ms of the limit: 1 to 8 MiB, a multiple of 1 MiB.
  [[nodiscard]] std::uint64_t slice() const noexcept;

  /// Waits until `bytes` may move. Returns true at once, and takes nothing, when `cancelled()` is true, which is
  /// asked again each time that `word` is notified. False at the deadline.
  template <class Cancelled>
  [[nodiscard]] bool acquire(std::uint64_t bytes, shared_event& word, deadline until, Cancelled&& cancelled) {
    if (cancelled()) return true;
    const auto cost = time_for(bytes);
    const auto at = reserve(cost);
    for (;;) {
      const auto seen = word.current();
      if (cancelled()) return give_back(cost), true;
      if (clock_->now() >= at) return true;
      if (until.passed()) return give_back(cost), false;
      clock_->wait(word, seen, std::min(at, until.time_point()));
    }
  }

 private:
  [[nodiscard]] std::chrono::nanoseconds time_for(std::uint64_t bytes) const noexcept;
  [[nodiscard]] time_point reserve(std::chrono::nanoseconds cost);
  void give_back(std::chrono::nanoseconds cost);

  static constexpr std::chrono::nanoseconds depth = std::chrono::milliseconds(20);
  static constexpr std::chrono::nanoseconds longest = std::chrono::hours(24 * 365);
  std::shared_ptr<rate_clock> clock_;
  std::uint64_t bytes_per_second_;
  std::mutex mutex_;
  time_point free_at_;  // when all that was taken has moved
};

/// Null where there is no limit (0).
[[nodiscard]] std::shared_ptr<rate_limiter> make_rate_limiter(std::uint64_t bytes_per_second,
                                                              std::shared_ptr<rate_clock> clock = nullptr);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/rate_limiter.ipp>
#endif
