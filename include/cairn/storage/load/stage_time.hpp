// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/clocks.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What threads do in a stage of a load, all of them together, in nanoseconds.
struct stage_time {
  std::atomic<std::int64_t> wall{0};
  std::atomic<std::int64_t> cpu{0};
};

/// What one thread does, one stage after another.
class stage_watch {
 public:
  stage_watch() noexcept { skip(); }
  /// What was done since the last call is counted nowhere.
  void skip() noexcept {
    wall_ = steady_now();
    cpu_ = thread_cpu_now();
  }
  /// What was done since the last call is of this stage, and may have waited.
  void count(stage_time& stage) noexcept {
    const auto wall = steady_now() - wall_;
    const auto now = thread_cpu_now();
    // count_busy() may have taken time without a processor for time with one.
    add(stage, wall, std::clamp<std::int64_t>(now - cpu_, 0, std::max<std::int64_t>(wall, 0)));
    cpu_ = now;
  }
  /// The same of what waits for nothing, for so many bytes.
  void count_busy(stage_time& stage, std::uint64_t bytes) noexcept {
    // The kernel takes longer to tell the processor time than a small block does.
    if (bytes >= least_asked) return count(stage);
    const auto wall = steady_now() - wall_;
    add(stage, wall, wall);
  }

 private:
  static constexpr std::uint64_t least_asked = std::uint64_t{64} << 10;
  void add(stage_time& stage, std::int64_t wall, std::int64_t cpu) noexcept {
    wall_ += wall, cpu_ += cpu;
    stage.wall.fetch_add(wall, std::memory_order_relaxed);
    stage.cpu.fetch_add(cpu, std::memory_order_relaxed);
  }
  std::int64_t wall_ = 0;
  std::int64_t cpu_ = 0;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
