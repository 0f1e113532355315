// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/background_thread.hpp>
#include <cairn/system/parallel.hpp>
#include <cairn/system/shared_calls.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <thread>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY int usable_cores() noexcept {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

CAIRN_BODY std::uint64_t load_threads() noexcept {
  return std::clamp<std::uint64_t>(std::thread::hardware_concurrency(), 8, 16);
}

CAIRN_BODY void parallel_for(std::size_t count, std::size_t threads,
                             function_ref<void(std::size_t, std::size_t)> call) {
  shared_calls calls(count, call);
  {
    vector<background_thread> others(std::max<std::size_t>(1, std::min(threads, count)) - 1);
    for (std::size_t t = 0; t < others.size(); ++t)
      if (!others[t].start("cairn helper", [&calls, t] { calls.take_part(t + 1); })) break;
    calls.take_part(0);
  }
  calls.throw_failure();
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
