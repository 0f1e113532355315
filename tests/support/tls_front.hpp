// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <stdexcept>
#include <string>
#include <support/certificates.hpp>
#include <thread>

namespace cairn_test {

/// TLS in front of a server on this host: it decrypts what comes to its port and passes it on, with a thread
/// for each connection. Needs libssl.
class tls_front {
 public:
  tls_front(const identity& who, std::uint16_t behind)
      : behind_(behind), context_(SSL_CTX_new(TLS_server_method())) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    auto address = here(0);
    socklen_t length = sizeof address;
    if (context_ == nullptr || SSL_CTX_use_certificate(context_, who.certificate.get()) != 1 ||
        SSL_CTX_use_PrivateKey(context_, who.key.get()) != 1 || listener_ < 0 ||
        ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener_, 64) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) != 0)
      throw std::runtime_error("no TLS server on 127.0.0.1");
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  tls_front(const tls_front&) = delete;
  tls_front& operator=(const tls_front&) = delete;
  ~tls_front() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
    }
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    for (auto& t : threads_) t.join();
    ::close(listener_);
    SSL_CTX_free(context_);
  }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  /// The connections that went on with the session of an earlier one. Counted before the first byte is handed on.
  [[nodiscard]] int resumed_sessions() const { return resumed_; }

 private:
  static sockaddr_in here(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
  }
  void accept_all() {
    sigset_t pipe;  // a client that went away is no end of this process
    ::sigemptyset(&pipe);
    ::sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    for (;;) {
      const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      const std::lock_guard lock(mutex_);
      if (stopping_) {
        if (socket >= 0) ::close(socket);
        return;
      }
      if (socket < 0) continue;
      const int inner = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockets_.push_back(socket);
      sockets_.push_back(inner);
      threads_.emplace_back([this, socket, inner] { serve(socket, inner); });
    }
  }
  void serve(int socket, int inner) {
    SSL* const tls = SSL_new(context_);
    const auto address = here(behind_);
    if (tls != nullptr && SSL_set_fd(tls, socket) == 1 && SSL_accept(tls) == 1) {
      resumed_ += SSL_session_reused(tls);
      if (::connect(inner, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
        carry(tls, socket, inner);
    }
    if (tls != nullptr) SSL_free(tls);
    const std::lock_guard lock(mutex_);
    sockets_.remove(socket);
    sockets_.remove(inner);
    ::close(socket);
    ::close(inner);
  }
  static void carry(SSL* tls, int socket, int inner) {
    std::array<char, 16384> buffer;  // NOLINT: read into
    for (;;) {
      std::array<pollfd, 2> ends{{{socket, POLLIN, 0}, {inner, POLLIN, 0}}};
      if (SSL_pending(tls) == 0 && ::poll(ends.data(), ends.size(), -1) <= 0) return;
      if (SSL_pending(tls) > 0 || ends[0].revents != 0) {
        const int got = SSL_read(tls, buffer.data(), static_cast<int>(buffer.size()));
        if (got <= 0) return;
        for (int sent = 0; sent < got;) {
          const auto n =
              ::send(inner, buffer.data() + sent, static_cast<std::size_t>(got - sent), MSG_NOSIGNAL);
          if (n <= 0) return;
          sent += static_cast<int>(n);
        }
      }
      if (ends[1].revents != 0) {
        const auto got = ::recv(inner, buffer.data(), buffer.size(), 0);
        if (got <= 0) {
          SSL_shutdown(tls);
          return;
        }
        if (SSL_write(tls, buffer.data(), static_cast<int>(got)) != got) return;
      }
    }
  }

  std::uint16_t behind_;
  SSL_CTX* context_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<int> resumed_{0};
  std::mutex mutex_;
  bool stopping_ = false;
  std::list<int> sockets_;
  std::list<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace cairn_test
