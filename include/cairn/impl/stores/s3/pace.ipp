// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/pace.hpp>
#include <cairn/system/compiler.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::uint64_t s3_request_bytes(double latency, double bytes_per_second, std::uint64_t total,
                                          std::size_t connections) noexcept {
  constexpr double mib = 1 << 20;
  const double while_it_waits = latency * bytes_per_second;
  const double least = std::clamp(while_it_waits, mib, 16 * mib);
  const double max_bytes = std::clamp(4 * while_it_waits, 8 * mib, 32 * mib);
  const double share =
      static_cast<double>(total) / static_cast<double>(std::max<std::size_t>(connections, 1));
  const auto bytes = static_cast<std::uint64_t>(std::clamp(share, least, max_bytes));
  constexpr auto whole = std::uint64_t{1} << 20;
  return (bytes + whole - 1) / whole * whole;
}

CAIRN_BODY double s3_pace::last_ones::median(std::size_t least) const noexcept {
  const auto there = static_cast<std::size_t>(std::min<std::uint64_t>(count, kept));
  if (there < std::max<std::size_t>(least, 1)) return 0;
  auto sorted = values;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(there / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(there));
  return *middle;
}

CAIRN_BODY void s3_pace::request_begun() noexcept {
  const std::lock_guard lock(mutex_);
  ++reads_;
  credit_ = std::min(hedges_saved_up * reads_for_a_hedge, credit_ + 1);
}

CAIRN_BODY void s3_pace::answered(std::chrono::nanoseconds first_byte, std::uint64_t bytes,
                                  std::chrono::nanoseconds rest) noexcept {
  const auto seconds = [](std::chrono::nanoseconds n) { return std::chrono::duration<double>(n).count(); };
  const std::lock_guard lock(mutex_);
  latencies_.add(seconds(first_byte));
  if (bytes >= min_bytes_for_rate) rates_.add(static_cast<double>(bytes) / std::max(seconds(rest), 1e-6));
}

CAIRN_BODY std::uint64_t s3_pace::request_bytes(std::uint64_t total, std::size_t connections) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto latency = latencies_.median(enough);
  const auto rate = rates_.median(enough);
  return s3_request_bytes(latency > 0 ? latency : assumed_latency, rate > 0 ? rate : assumed_rate, total,
                          connections);
}

CAIRN_BODY std::optional<std::chrono::nanoseconds> s3_pace::slow_after(std::uint64_t bytes) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto latency = latencies_.median(enough);
  const auto rate = rates_.median(enough);
  if (latency <= 0 || (rate <= 0 && bytes >= min_bytes_for_rate)) return std::nullopt;
  const auto usual = latency + static_cast<double>(bytes) / (rate > 0 ? rate : assumed_rate);
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::clamp(3 * usual, 0.25, 3600.0) * 1e9));
}

CAIRN_BODY bool s3_pace::take_hedge() noexcept {
  const std::lock_guard lock(mutex_);
  if (credit_ < reads_for_a_hedge) return false;
  credit_ -= reads_for_a_hedge;
  ++hedges_;
  return true;
}

CAIRN_BODY void s3_pace::return_hedge() noexcept {
  const std::lock_guard lock(mutex_);
  credit_ = std::min(hedges_saved_up * reads_for_a_hedge, credit_ + reads_for_a_hedge);
  --hedges_;
}

CAIRN_BODY void s3_pace::hedge_won() noexcept {
  const std::lock_guard lock(mutex_);
  ++won_;
}

CAIRN_BODY s3_traffic s3_pace::traffic() const noexcept {
  const auto longest = request_bytes(UINT64_MAX, 1);
  const std::lock_guard lock(mutex_);
  return {reads_, hedges_, won_, latencies_.median(1), rates_.median(1), longest};
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
