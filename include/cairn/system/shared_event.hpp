// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>

#include <atomic>
#include <cstdint>

namespace cairn {
inline namespace v1 {

/// A word in memory that threads, and processes that map the same memory, wait on: std::atomic::wait with a
/// deadline. It holds no lock, so that the death of a waiter or waker leaves nothing behind. See futex(2).
class shared_event {
 public:
  /// The state to pass to wait(). Read it before the condition that is waited for.
  [[nodiscard]] std::uint32_t current() const noexcept { return word_.load(std::memory_order_acquire); }
  /// Wakes all that wait; call it after the condition was changed.
  void notify() noexcept;
  /// Returns when notify() was called after `seen` was read, when the deadline has passed, or for no reason:
  /// check the condition again.
  void wait(std::uint32_t seen, deadline until) noexcept;

 private:
  std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> waiters_{0};
  static_assert(sizeof(std::atomic<std::uint32_t>) == 4);
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/shared_event.ipp>
#endif
