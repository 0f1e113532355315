// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/clocks.hpp>
#include <cairn/system/deadline.hpp>

#include <chrono>
#include <cstdint>
#include <ctime>

namespace cairn {
inline namespace v1 {

CAIRN_BODY std::int64_t steady_now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(deadline::clock::now().time_since_epoch())
      .count();
}

CAIRN_BODY std::int64_t thread_cpu_now() noexcept {
  timespec t{};
  static_cast<void>(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t));
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

CAIRN_BODY std::int64_t process_cpu_now() noexcept {
  timespec t{};
  static_cast<void>(::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t));
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

}  // namespace v1
}  // namespace cairn
