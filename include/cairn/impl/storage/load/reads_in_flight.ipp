// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/storage/load/reads_in_flight.hpp>

#include <algorithm>
#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void reads_in_flight::small_took(std::int64_t nanoseconds) noexcept {
  latency_ = latency_ == 0 ? nanoseconds : std::min(latency_, nanoseconds);
}

CAIRN_BODY void reads_in_flight::large_took(std::int64_t nanoseconds, std::uint64_t reads) noexcept {
  // Those that began with fewer beside them say little: twice as many as are under way are waited for.
  const auto more = reads - last_reads_;
  if (settled_ || latency_ == 0 || more < 2 * count_) return;
  const auto each = (nanoseconds - last_nanoseconds_) / static_cast<std::int64_t>(more);
  if (each < 2 * latency_) count_ = std::min(2 * count_, max_);
  settled_ = each >= 2 * latency_ || count_ == max_;
  last_nanoseconds_ = nanoseconds;
  last_reads_ = reads;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
