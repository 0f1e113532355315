// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/shared_calls.hpp>

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void shared_calls::take_part(std::size_t thread) noexcept {
  while (!failed_.load(std::memory_order_relaxed)) {
    const auto i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= count_) return;
    try {
      call_(i, thread);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      failed_.store(true, std::memory_order_relaxed);
    }
  }
}

CAIRN_BODY void shared_calls::throw_failure() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
