// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>

#include <chrono>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Sleeps so long, at most until the deadline. False, at once, if the deadline has passed.
bool sleep_for(std::chrono::nanoseconds pause, deadline until);

/// Pauses between polls: each is twice as long as the one before, up to the longest.
class backoff {
 public:
  backoff(std::chrono::nanoseconds first, std::chrono::nanoseconds longest) noexcept
      : pause_(first), longest_(longest) {}
  /// The next pause.
  [[nodiscard]] std::chrono::nanoseconds next() noexcept;
  /// Sleeps for the next pause, at most until the deadline. False, at once, if the deadline has passed.
  bool wait(deadline until) { return sleep_for(next(), until); }

 private:
  std::chrono::nanoseconds pause_;
  std::chrono::nanoseconds longest_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/backoff.ipp>
#endif
