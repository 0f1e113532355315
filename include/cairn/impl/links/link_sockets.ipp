// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/links/link_frame.hpp>
#include <cairn/links/link_sockets.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/resend_pause.hpp>
#include <cairn/system/unforked_file.hpp>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// An IPv4 or IPv6 address with a port, as system calls take it.
struct socket_address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  /// Of a numeric address; without one, of all addresses: IPv6, which serves IPv4 as well, or IPv4.
  [[nodiscard]] bool set(const std::string& host, std::uint16_t port, bool only_ipv4 = false) noexcept {
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(port);
    if (host.empty() ? only_ipv4 : ::inet_pton(AF_INET, host.c_str(), &four.sin_addr) == 1) return put(four);
    if (host.empty()) six.sin6_addr = in6addr_any;
    return (host.empty() || ::inet_pton(AF_INET6, host.c_str(), &six.sin6_addr) == 1) && put(six);
  }
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }

 private:
  template <class Address>
  bool put(const Address& address) noexcept {
    std::memcpy(&storage, &address, sizeof address);
    size = sizeof address;
    return true;
  }
};

/// The addresses of this host that others reach, or where it has none its own loopback.
inline std::vector<std::string> own_addresses() {
  std::vector<std::string> four, six, own;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) == 0) {
    for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
      char text[INET6_ADDRSTRLEN] = {};
      const bool loopback = (each->ifa_flags & IFF_LOOPBACK) != 0;
      if (each->ifa_addr->sa_family == AF_INET) {
        sockaddr_in address;
        std::memcpy(&address, each->ifa_addr, sizeof address);
        ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
        (loopback ? own : four).emplace_back(text);
      } else if (each->ifa_addr->sa_family == AF_INET6) {
        sockaddr_in6 address;
        std::memcpy(&address, each->ifa_addr, sizeof address);
        if (IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr)) continue;
        ::inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof text);
        (loopback ? own : six).emplace_back(text);
      }
    }
    ::freeifaddrs(all);
  }
  four.insert(four.end(), six.begin(), six.end());
  if (four.empty()) four = std::move(own);
  if (four.empty()) four.emplace_back("127.0.0.1");
  if (four.size() > 16) four.resize(16);
  return four;
}

/// A socket of this family; null, and errno as it is, where the system gives none.
inline owned<unforked_file> tcp_socket(int family) {
  const fork_pause pause;
  file_descriptor made(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.open()) return nullptr;
  // Also for the first bytes of a connection, and those that a listening one accepts.
  send_again_after(made.get(), std::chrono::milliseconds(50));
  return detail::make_owned<unforked_file>(std::move(made), pause);
}

CAIRN_BODY owned<unforked_file> listen_at(const std::string& address, std::uint16_t first_port,
                                          std::uint16_t ports, link_address& told) {
  int why = 0;
  for (const bool only_ipv4 : {false, true}) {
    for (std::uint32_t i = 0; i < std::max<std::uint32_t>(ports, 1); ++i) {
      const auto port = first_port == 0 ? 0 : std::min<std::uint32_t>(first_port + i, 65535);
      socket_address at;
      if (!at.set(address, static_cast<std::uint16_t>(port), only_ipv4))
        fail(error_id::usage_bad_option, "a link listens at a numeric IPv4 or IPv6 address",
             {.got = address});
      auto made = tcp_socket(at.get()->sa_family);
      if (made == nullptr) {
        why = errno;
        break;
      }
      const int on = 1, off = 0;
      ::setsockopt(made->get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      if (address.empty() && !only_ipv4)
        ::setsockopt(made->get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      if (::bind(made->get(), at.get(), at.size) != 0 || ::listen(made->get(), SOMAXCONN) != 0) {
        why = errno;
        if (why == EADDRINUSE) continue;
        break;
      }
      sockaddr_storage is{};
      socklen_t size = sizeof is;
      if (::getsockname(made->get(), reinterpret_cast<sockaddr*>(&is), &size) != 0)
        fail_system(errno, "the port of a link is not known");
      if (is.ss_family == AF_INET) {
        sockaddr_in four;
        std::memcpy(&four, &is, sizeof four);
        told.port = ntohs(four.sin_port);
      } else {
        sockaddr_in6 six;
        std::memcpy(&six, &is, sizeof six);
        told.port = ntohs(six.sin6_port);
      }
      told.hosts = address.empty() ? own_addresses() : std::vector<std::string>{address};
      return made;
    }
    if (!address.empty()) break;
  }
  const std::string range = std::to_string(first_port) + " to " + std::to_string(first_port + ports - 1);
  if (why == EADDRINUSE) fail(error_id::usage_bad_option, no_free_port, {.got = range});
  if (why == EADDRNOTAVAIL)
    fail(error_id::usage_bad_option, "this host does not have the address that a link was told to listen at",
         {.got = address});
  fail_system(why, "a link cannot listen for its peers");
}

CAIRN_BODY void prepare_socket(int number, std::chrono::nanoseconds lost_after,
                               std::chrono::nanoseconds stopped_after) noexcept {
  const auto set = [number](int level, int what, int value) {
    static_cast<void>(::setsockopt(number, level, what, &value, sizeof value));
  };
  const auto bounded =
      std::clamp<std::chrono::nanoseconds>(lost_after, std::chrono::milliseconds(500), std::chrono::hours(1));
  const auto seconds = static_cast<int>(std::chrono::duration_cast<std::chrono::seconds>(bounded).count());
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(bounded).count();
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds / 3));
  set(IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / 6));
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(milliseconds));
  // Within 1 s three losses, one after another, would pass for the end of a host.
  const auto wanted = (stopped_after.count() > 0 ? std::min(bounded, stopped_after) : bounded) / 20;
  send_again_after(number, std::chrono::duration_cast<std::chrono::microseconds>(wanted));
}

CAIRN_BODY std::chrono::nanoseconds time_since_answer(int number) noexcept {
  ::tcp_info told{};
  ::socklen_t size = sizeof told;
  if (::getsockopt(number, IPPROTO_TCP, TCP_INFO, &told, &size) != 0) return {};
  // Where this process stood still it sent nothing that could be acknowledged, but what came was taken.
  return std::chrono::milliseconds(std::min(told.tcpi_last_ack_recv, told.tcpi_last_data_recv));
}

/// A socket that is being connected, or, where `why` is 0, one that is; null where the system does not begin it.
inline owned<unforked_file> begin_connection(const socket_address& to, int& why) {
  auto made = tcp_socket(to.get()->sa_family);
  why = made == nullptr || ::connect(made->get(), to.get(), to.size) != 0 ? errno : 0;
  if (why != 0 && why != EINPROGRESS && why != EINTR) return nullptr;
  return made;
}

CAIRN_BODY owned<unforked_file> connect_to(const std::string& host, std::uint16_t port, deadline until,
                                           int& why) {
  socket_address at;
  why = EINVAL;
  if (!at.set(host, port)) return {};
  constexpr std::size_t max_begun = 4;
  std::array<owned<unforked_file>, max_begun> begun;
  std::array<pollfd, max_begun> waited{};
  std::size_t count = 0;
  for (auto pause = std::chrono::milliseconds(100);; pause *= 2) {
    if (count < max_begun) {
      auto made = begin_connection(at, why);
      if (why == 0) return made;
      if (made != nullptr) {
        waited[count] = {made->get(), POLLOUT, 0};
        begun[count++] = std::move(made);
      }
      if (count == 0) return {};
    }
    const auto next = count < max_begun ? until.earlier(deadline::in(pause)) : until;
    while (::poll(waited.data(), count, poll_milliseconds(next)) <= 0)
      if (next.passed()) break;
    for (std::size_t i = 0; i < count; ++i) {
      if (waited[i].revents == 0) continue;
      socklen_t size = sizeof why;
      if (::getsockopt(waited[i].fd, SOL_SOCKET, SO_ERROR, &why, &size) != 0) why = errno;
      return why == 0 ? std::move(begun[i]) : nullptr;
    }
    why = ETIMEDOUT;
    if (until.passed()) return {};
  }
}

CAIRN_BODY bool is_own_lack(int why, const std::string& host) noexcept {
  // Where a host has no IPv6 it has no address to connect from, for ever.
  const bool no_port = why == EADDRNOTAVAIL && host.find(':') == std::string::npos;
  return why == EMFILE || why == ENFILE || why == ENOBUFS || why == ENOMEM || no_port;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
