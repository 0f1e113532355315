// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/clock.hpp>
#include <cairn/system/deadline.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <utility>

namespace cairn {
inline namespace v1 {

CAIRN_BODY std::chrono::nanoseconds s3_clock::suspended() noexcept {
  const auto read = [](clockid_t which) {
    timespec t{};
    ::clock_gettime(which, &t);
    return std::chrono::nanoseconds(std::chrono::seconds(t.tv_sec)) + std::chrono::nanoseconds(t.tv_nsec);
  };
  const auto running = read(CLOCK_MONOTONIC);
  return read(CLOCK_BOOTTIME) - running;
}

namespace detail {

CAIRN_BODY s3_deadline s3_deadline::on(std::shared_ptr<s3_clock> clock, deadline until) {
  const auto now = clock->now();
  const auto left = until.left();
  return {std::move(clock),
          left > s3_clock::time_point::max() - now ? s3_clock::time_point::max() : now + left};
}

CAIRN_BODY void request_window::slow_down(std::uint64_t begun) noexcept {
  successes_ = 0;
  if (begun != epoch_) return;
  ++epoch_;
  limit_ = std::max<std::size_t>(1, limit_ / 2);
}

CAIRN_BODY void request_window::success() noexcept {
  if (limit_ == max_ || ++successes_ < limit_) return;
  successes_ = 0;
  ++limit_;
}

CAIRN_BODY std::chrono::nanoseconds retry_bucket::take(s3_clock::time_point now) noexcept {
  if (last_ != s3_clock::time_point())
    tokens_ = std::min(burst_, tokens_ + rate_ * std::chrono::duration<double>(now - last_).count());
  last_ = now;
  tokens_ -= 1;
  if (tokens_ >= 0) return std::chrono::nanoseconds(0);
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(-tokens_ / rate_, 3600.0) * 1e9));
}

CAIRN_BODY std::chrono::nanoseconds jittered(std::chrono::nanoseconds first, std::chrono::nanoseconds longest,
                                             std::size_t retries, double random) noexcept {
  const auto max_pause = std::min(static_cast<double>(longest.count()),
                                  static_cast<double>(first.count()) *
                                      std::exp2(static_cast<double>(std::min<std::size_t>(retries, 40))));
  return std::chrono::nanoseconds(static_cast<std::int64_t>(max_pause * random));
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
