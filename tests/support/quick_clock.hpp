// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stores/s3_store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace cairn_test {

/// A clock on which no pause takes time, and random numbers that are the same each time.
struct quick_clock : cairn::s3_clock {
  [[nodiscard]] time_point now() noexcept override {
    return std::chrono::steady_clock::now() + std::chrono::nanoseconds(skipped.load());
  }
  [[nodiscard]] std::chrono::nanoseconds pause(std::chrono::nanoseconds wanted) noexcept override {
    skipped += wanted.count();
    return std::chrono::nanoseconds(0);
  }
  [[nodiscard]] std::chrono::nanoseconds suspended() noexcept override {
    return std::chrono::nanoseconds(asleep.load());
  }
  [[nodiscard]] double random() noexcept override { return static_cast<double>(next++ % 16) / 16; }
  std::atomic<std::int64_t> skipped{0};
  std::atomic<std::int64_t> asleep{0};
  std::atomic<std::uint64_t> next{5};
};

}  // namespace cairn_test
