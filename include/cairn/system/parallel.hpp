// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Threads of a load: enough to keep a device busy while others verify, whatever the number of cores.
[[nodiscard]] inline std::uint64_t load_threads() noexcept {
  return std::clamp<std::uint64_t>(std::thread::hardware_concurrency(), 8, 16);
}

/// Calls `call(i, thread)` for each i in [0, count), ascending, on up to `threads` threads including this
/// one; `thread` counts them from 0. Returns when all calls have ended. After an exception no further call
/// begins; the first one is thrown here. Goes on with fewer threads where the system gives no more.
template <class Call>
void parallel_for(std::size_t count, std::size_t threads, Call&& call) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&](std::size_t thread) noexcept {
    try {
      for (;;) {
        const auto i = next.fetch_add(1, std::memory_order_relaxed);
        if (i >= count || stop.load(std::memory_order_relaxed)) return;
        call(i, thread);
      }
    } catch (...) {
      stop.store(true, std::memory_order_relaxed);
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    threads = std::min(threads, count);
    if (threads > 1) others.reserve(threads - 1);
    try {
      for (std::size_t t = 1; t < threads; ++t) others.emplace_back(work, t);
    } catch (const std::system_error&) {  // those that began are enough
    }
    work(0);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
