// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/signals_blocked.hpp>

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

/// Connections and servers by hand, for tests.
namespace cairn_test {

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return at;
}

/// A connection to a port of this host, by hand.
class stranger {
 public:
  explicit stranger(std::uint16_t port) : stranger(loopback(port)) {}
  explicit stranger(const sockaddr_in& at) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0)
      throw std::runtime_error("a stranger cannot connect");
  }
  void say(std::string_view bytes) const {
    static_cast<void>(!::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  /// Waits until something comes; it is not read.
  [[nodiscard]] bool hears() const {
    pollfd one{socket_.get(), POLLIN, 0};
    return ::poll(&one, 1, 240'000) == 1;
  }
  /// What comes until the other end closes, which it does within minutes.
  [[nodiscard]] std::string hear_all() const {
    std::string all;
    for (;;) {
      pollfd one{socket_.get(), POLLIN, 0};
      if (::poll(&one, 1, 240'000) <= 0) throw std::runtime_error("a stranger's connection stays open");
      char some[4096];
      const auto got = ::recv(socket_.get(), some, sizeof some, 0);
      if (got <= 0) return all;
      all.append(some, static_cast<std::size_t>(got));
    }
  }
  /// The descriptor, which the caller owns from now on.
  [[nodiscard]] cairn::detail::file_descriptor release() {
    ::fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
    return std::move(socket_);
  }

 private:
  cairn::detail::file_descriptor socket_;
};

/// A port of this host, of 127.0.0.1 where it is not told, on which serve(connection) is called for each connection in turn, by a thread of its own.
/// The system takes `waiting` connections and one more that are not served yet.
class own_server {
 public:
  template <class Serve>
  explicit own_server(Serve serve, sockaddr_in at = loopback(0), int waiting = 16)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    socklen_t size = sizeof at;
    if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
        ::listen(socket_.get(), waiting) != 0 ||
        ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&at), &size) != 0)
      throw std::runtime_error("a test's own server has no port");
    at_ = at;
    thread_ = std::thread([this, serve] {
      const cairn::detail::signals_blocked no_pipe;  // OpenSSL's own sockets raise SIGPIPE
      for (;;) {
        cairn::detail::file_descriptor next(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (ended_.load() || !next.open()) return;
        serve(std::move(next));
      }
    });
  }
  ~own_server() {
    ended_ = true;
    try {
      const stranger last(at_);  // so that accept() returns
      thread_.join();
    } catch (const std::exception&) {
      std::terminate();
    }
  }
  [[nodiscard]] std::uint16_t port() const { return ntohs(at_.sin_port); }

 private:
  cairn::detail::file_descriptor socket_;
  sockaddr_in at_{};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

/// A port of 127.0.0.1 whose system drops what asks for a connection, as a network that loses it does, until it is
/// opened: from then on serve(connection) is called for each, by a thread of its own.
class full_port {
 public:
  template <class Serve>
  explicit full_port(Serve serve)
      : server_(
            [this, serve](cairn::detail::file_descriptor connected) {
              opened_.wait(false);
              if (!ending_) serve(std::move(connected));
            },
            loopback(0), 0) {
    first_.emplace(server_.port());
    second_.emplace(server_.port());
  }
  ~full_port() {
    ending_ = true;
    open();
  }
  full_port(const full_port&) = delete;
  full_port& operator=(const full_port&) = delete;

  [[nodiscard]] std::uint16_t port() const { return server_.port(); }
  void open() {
    first_.reset();
    second_.reset();
    opened_ = true;
    opened_.notify_all();
  }
  /// From which ports of this host connections to it are asked for at present, without an answer.
  [[nodiscard]] std::set<unsigned> asking() const {
    std::set<unsigned> found;
    std::ifstream table("/proc/self/net/tcp");
    for (std::string line; std::getline(table, line);) {
      unsigned from = 0, to = 0, state = 0;
      constexpr unsigned syn_sent = 2;
      if (std::sscanf(line.c_str(), " %*u: %*x:%x %*x:%x %x", &from, &to, &state) == 3 && to == port() &&
          state == syn_sent)
        found.insert(from);
    }
    return found;
  }

 private:
  std::atomic<bool> opened_{false}, ending_{false};
  own_server server_;
  std::optional<stranger> first_, second_;  // one is served, and the other one waits
};

}  // namespace cairn_test
