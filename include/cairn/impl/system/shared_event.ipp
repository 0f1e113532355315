// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>
#include <cairn/system/shared_event.hpp>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace cairn {
inline namespace v1 {

CAIRN_BODY void shared_event::notify() noexcept {
  word_.fetch_add(1, std::memory_order_acq_rel);
  if (waiters_.load(std::memory_order_seq_cst) != 0)
    ::syscall(SYS_futex, &word_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

CAIRN_BODY void shared_event::wait(std::uint32_t seen, deadline until) noexcept {
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  if (word_.load(std::memory_order_seq_cst) == seen) {
    // At most a second at a time: a waker that died between its change and its wake delays, but does not
    // hang.
    const auto left = std::min<std::chrono::nanoseconds>(until.left(), std::chrono::seconds(1));
    timespec t{};
    t.tv_sec = static_cast<std::time_t>(left.count() / 1'000'000'000);
    t.tv_nsec = static_cast<long>(left.count() % 1'000'000'000);
    ::syscall(SYS_futex, &word_, FUTEX_WAIT, seen, &t, nullptr, 0);
  }
  waiters_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace v1
}  // namespace cairn
