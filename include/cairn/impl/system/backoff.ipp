// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/backoff.hpp>
#include <cairn/system/deadline.hpp>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY bool sleep_for(std::chrono::nanoseconds pause, deadline until) {
  const auto left = until.left();
  if (left.count() <= 0) return false;
  std::this_thread::sleep_for(std::min(pause, left));
  return true;
}

CAIRN_BODY std::chrono::nanoseconds backoff::next() noexcept {
  return std::exchange(pause_, std::min(2 * pause_, longest_));
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
