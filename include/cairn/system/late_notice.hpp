// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/background_thread.hpp>
#include <cairn/system/callback.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/shared_event.hpp>

#include <atomic>
#include <chrono>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Calls `say`, which must not throw, once, in a thread of its own, when it has lived for so long. Where the system gives no
/// thread nothing is said.
class late_notice {
 public:
  late_notice(std::chrono::nanoseconds after, callback<void()> say) {
    static_cast<void>(thread_.start("cairn-waits", [this, until = deadline::in(after), say] {
      for (auto seen = event_.current(); !over_.load(std::memory_order_acquire); seen = event_.current()) {
        if (until.passed()) return say();
        event_.wait(seen, until);
      }
    }));
  }
  late_notice(const late_notice&) = delete;
  late_notice& operator=(const late_notice&) = delete;
  ~late_notice() {
    over_.store(true, std::memory_order_release);
    event_.notify();
    thread_.join();
  }

 private:
  std::atomic<bool> over_{false};
  shared_event event_;
  background_thread thread_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
