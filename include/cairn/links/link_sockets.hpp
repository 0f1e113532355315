// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::links
#pragma once
#include <cairn/links/link_frame.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/unforked_file.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What listen_at() says where others have all of the ports, which they may free.
inline constexpr std::string_view no_free_port =
    "no port is free for a link; give it more ports, or other ones";

/// Listens for TCP connections: at a numeric address, or where it is empty at all addresses of this host, IPv4 and
/// IPv6; at the first free one of `ports` ports from `first_port` on, 0: at one that the system chooses. Fills in
/// hosts and port of `told`. No child of fork() keeps it.
/// @throws usage_error (usage_bad_option) where the address is none of this host, or no port is free; storage_error
[[nodiscard]] owned<unforked_file> listen_at(const std::string& address, std::uint16_t first_port,
                                             std::uint16_t ports, link_address& told);

/// Makes a connected socket one that does not block, sends at once, and learns by itself of an end of the other host
/// after about `lost_after`. Where one of the two times, of which `stopped_after` may be 0 for none, leaves the system no
/// room to send again what was lost on the way, it does so sooner, from Linux 6.15 on.
void prepare_socket(int number, std::chrono::nanoseconds lost_after,
                    std::chrono::nanoseconds stopped_after = {}) noexcept;

/// How long ago the other host last sent or acknowledged anything, be it by its system alone.
[[nodiscard]] std::chrono::nanoseconds time_since_answer(int number) noexcept;

/// A connection to a numeric address, which no child of fork() keeps. Where none is made within 0.1, 0.3 and 0.7 s, another
/// one is begun beside it, and the first that is made counts: what asks for a connection may be lost on the way, and the
/// system asks again only after a second. @throws nothing but std::bad_alloc; null and errno in `why` where there is none
[[nodiscard]] owned<unforked_file> connect_to(const std::string& host, std::uint16_t port, deadline until,
                                              int& why);
/// Whether connect_to() failed for want of a descriptor, port or memory of this host, which says nothing of the other end.
[[nodiscard]] bool is_own_lack(int why, const std::string& host) noexcept;

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_LINKS)
#include <cairn/impl/links/link_sockets.ipp>
#endif
