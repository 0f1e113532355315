// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/shared_event.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace cairn {
inline namespace v1 {

CAIRN_BODY rate_clock::time_point rate_clock::now() noexcept {
  return deadline::clock::now();
}

CAIRN_BODY void rate_clock::wait(shared_event& word, std::uint32_t seen, time_point until) noexcept {
  word.wait(seen, deadline::at(until));
}

CAIRN_BODY rate_limiter::rate_limiter(std::uint64_t bytes_per_second, std::shared_ptr<rate_clock> clock)
    : clock_(clock != nullptr ? std::move(clock) : detail::make_shared<rate_clock>()),
      bytes_per_second_(bytes_per_second),
      free_at_(clock_->now()) {}

CAIRN_BODY std::uint64_t rate_limiter::slice() const noexcept {
  constexpr std::uint64_t unit = std::uint64_t{1} << 20;
  return std::clamp<std::uint64_t>(bytes_per_second_ / 50 / unit, 1, 8) * unit;
}

CAIRN_BODY std::chrono::nanoseconds rate_limiter::time_for(std::uint64_t bytes) const noexcept {
  const std::chrono::duration<double> seconds(
      std::min(1e7, static_cast<double>(bytes) / static_cast<double>(bytes_per_second_)));
  return std::chrono::duration_cast<std::chrono::nanoseconds>(seconds);
}

CAIRN_BODY rate_limiter::time_point rate_limiter::reserve(std::chrono::nanoseconds cost) {
  const std::lock_guard lock(mutex_);
  const auto now = clock_->now();
  const auto at = std::clamp(free_at_, now - depth, now + longest);
  free_at_ = at + cost;
  return at;
}

CAIRN_BODY void rate_limiter::give_back(std::chrono::nanoseconds cost) {
  const std::lock_guard lock(mutex_);
  free_at_ -= cost;
}

CAIRN_BODY std::shared_ptr<rate_limiter> make_rate_limiter(std::uint64_t bytes_per_second,
                                                           std::shared_ptr<rate_clock> clock) {
  return bytes_per_second == 0 ? nullptr
                               : detail::make_shared<rate_limiter>(bytes_per_second, std::move(clock));
}

}  // namespace v1
}  // namespace cairn
