// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/system/deadline.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <mutex>
#include <random>
#include <utility>

namespace cairn {
inline namespace v1 {

/// Time and chance as an s3_store takes them; another one makes tests quick and repeatable. Called by the
/// store's threads, one at a time for random() and pause().
class s3_clock {
 public:
  using time_point = std::chrono::steady_clock::time_point;
  s3_clock() = default;
  s3_clock(const s3_clock&) = delete;
  s3_clock& operator=(const s3_clock&) = delete;
  virtual ~s3_clock() = default;

  /// For deadlines and pauses: never goes back. Any thread.
  [[nodiscard]] virtual time_point now() noexcept { return std::chrono::steady_clock::now(); }
  /// How long the host has been suspended since it was booted: now() stands still meanwhile. Any thread.
  [[nodiscard]] virtual std::chrono::nanoseconds suspended() noexcept;
  /// Seconds since 1970, for signatures. Any thread.
  [[nodiscard]] virtual std::int64_t unix_time() noexcept {
    return static_cast<std::int64_t>(std::time(nullptr));
  }
  /// A wait of `wanted` before an attempt is due: how long to wait indeed. A clock that jumps gives less.
  [[nodiscard]] virtual std::chrono::nanoseconds pause(std::chrono::nanoseconds wanted) noexcept {
    return wanted;
  }
  /// Uniform in [0, 1).
  [[nodiscard]] virtual double random() noexcept {
    return static_cast<double>(generator_() >> 11) * 0x1.0p-53;
  }

 private:
  std::mt19937_64 generator_{std::random_device{}()};
};

namespace detail {

/// When a wait gives up, on an s3_clock; as it is made, never.
struct s3_deadline {
  std::shared_ptr<s3_clock> clock = {};
  s3_clock::time_point when = s3_clock::time_point::max();

  /// What is left of `until` from now on, on `clock`.
  static s3_deadline on(std::shared_ptr<s3_clock> clock, deadline until);
  [[nodiscard]] bool passed() const noexcept { return clock && clock->now() >= when; }
  /// False if `done()`, which `changed` tells of, is not true in time. The clock may jump, so it is looked at
  /// now and then.
  template <class Done>
  [[nodiscard]] bool wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                          Done done) const {
    while (!changed.wait_for(lock, std::chrono::milliseconds(50), done))
      if (passed()) return false;
    return true;
  }
};

/// How many requests run at a time: halved when the server asks to slow down, one more after as many
/// successes as run at a time. One thread.
class request_window {
 public:
  explicit request_window(std::size_t max) noexcept : max_(max), limit_(max) {}
  [[nodiscard]] std::size_t limit() const noexcept { return limit_; }
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  /// `begun`: epoch() when the request began. Those that began before the last halving do not halve again.
  void slow_down(std::uint64_t begun) noexcept;
  void success() noexcept;

 private:
  std::size_t max_;
  std::size_t limit_;
  std::size_t successes_ = 0;
  std::uint64_t epoch_ = 0;
};

/// Tokens for retries, refilled by time: a retry that finds none waits for its own. One thread.
class retry_bucket {
 public:
  retry_bucket(std::size_t burst, double per_second) noexcept
      : burst_(static_cast<double>(burst)), rate_(per_second), tokens_(burst_) {}
  /// Takes one; how long its owner waits until it is there.
  [[nodiscard]] std::chrono::nanoseconds take(s3_clock::time_point now) noexcept;

 private:
  double burst_;
  double rate_;
  double tokens_;
  s3_clock::time_point last_{};
};

/// Full jitter: uniform between nothing and first * 2^retries, at most `longest`.
[[nodiscard]] std::chrono::nanoseconds jittered(std::chrono::nanoseconds first,
                                                std::chrono::nanoseconds longest, std::size_t retries,
                                                double random) noexcept;

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/clock.ipp>
#endif
