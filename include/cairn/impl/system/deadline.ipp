// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>

#include <chrono>

namespace cairn {
inline namespace v1 {

CAIRN_BODY deadline deadline::in(std::chrono::nanoseconds after) noexcept {
  const auto now = clock::now();
  return deadline(after > clock::time_point::max() - now ? clock::time_point::max() : now + after);
}

CAIRN_BODY std::chrono::nanoseconds deadline::left() const noexcept {
  if (when_ == clock::time_point::max()) return std::chrono::nanoseconds::max();
  const auto now = clock::now();
  return now >= when_ ? std::chrono::nanoseconds(0) : std::chrono::nanoseconds(when_ - now);
}

CAIRN_BODY double seconds_since(deadline::clock::time_point begin) noexcept {
  return std::chrono::duration<double>(deadline::clock::now() - begin).count();
}

}  // namespace v1
}  // namespace cairn
