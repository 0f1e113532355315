// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

namespace cairn {
inline namespace v1 {

/// A word in memory that threads, and processes that map the same memory, wait on: std::atomic::wait with a
/// deadline. It holds no lock, so that the death of a waiter or waker leaves nothing behind. See futex(2).
class shared_event {
 public:
  /// The state to pass to wait(). Read it before the condition that is waited for.
  [[nodiscard]] std::uint32_t current() const noexcept { return word_.load(std::memory_order_acquire); }
  /// Wakes all that wait; call it after the condition was changed.
  void notify() noexcept {
    word_.fetch_add(1, std::memory_order_acq_rel);
    if (waiters_.load(std::memory_order_seq_cst) != 0)
      ::syscall(SYS_futex, &word_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  /// Returns when notify() was called after `seen` was read, when the deadline has passed, or for no reason:
  /// check the condition again.
  void wait(std::uint32_t seen, deadline until) noexcept {
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

 private:
  std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> waiters_{0};
  static_assert(sizeof(std::atomic<std::uint32_t>) == 4);
};

}  // namespace v1
}  // namespace cairn
