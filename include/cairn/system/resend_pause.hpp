// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Has a TCP socket send again what was lost on the way when `pause` has passed beside the usual time of an answer, where
/// the system would wait longer: it waits 200 ms, and doubles that each time. Linux 6.15 and later; nothing elsewhere.
inline void send_again_after(int number, std::chrono::microseconds pause) noexcept {
  constexpr int tcp_rto_min_us = 45;  // C libraries do not name it yet
  int usual = 0;
  socklen_t size = sizeof usual;
  const auto wanted = static_cast<int>(pause.count());
  if (::getsockopt(number, IPPROTO_TCP, tcp_rto_min_us, &usual, &size) == 0 && wanted < usual)
    static_cast<void>(::setsockopt(number, IPPROTO_TCP, tcp_rto_min_us, &wanted, sizeof wanted));
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
