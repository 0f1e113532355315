// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <support/s3_server_http.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace cairn_test {

/// A small HTTP server of this host, as a machine's metadata service, a container's end point or a token
/// service: a function answers each request, and a status of 0 ends the connection without an answer.
class metadata_server {
 public:
  struct request {
    std::string method;
    std::string path;
    std::string body;
    std::vector<std::pair<std::string, std::string>> headers;  ///< names in lower case
    [[nodiscard]] std::string header(std::string_view name) const {
      for (const auto& [n, value] : headers)
        if (n == name) return value;
      return {};
    }
  };
  struct answer {
    int status = 200;
    std::string body;
  };

  explicit metadata_server(std::function<answer(const request&)> service) : service_(std::move(service)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener_, 16) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) != 0)
      throw std::runtime_error("the metadata server cannot listen on 127.0.0.1");
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  metadata_server(const metadata_server&) = delete;
  metadata_server& operator=(const metadata_server&) = delete;
  ~metadata_server() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  [[nodiscard]] std::size_t requests() const { return requests_.load(); }

 private:
  void serve() {
    for (;;) {
      const int one = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (one < 0) return;
      std::string text;
      char buffer[4096];
      std::size_t end = std::string::npos;
      std::size_t whole = std::string::npos;
      while (text.size() < whole) {
        const auto got = ::recv(one, buffer, sizeof buffer, 0);
        if (got <= 0) break;
        text.append(buffer, static_cast<std::size_t>(got));
        if (end == std::string::npos && (end = text.find("\r\n\r\n")) != std::string::npos) {
          const auto at = s3::lower(text.substr(0, end)).find("content-length: ");
          whole = end + 4 + (at == std::string::npos ? 0 : std::stoul(text.substr(at + 16)));
        }
      }
      if (end != std::string::npos) reply(one, text, end);
      ::close(one);
    }
  }
  void reply(int socket, const std::string& text, std::size_t end) {
    request r;
    r.method = text.substr(0, text.find(' '));
    const auto path = r.method.size() + 1;
    r.path = text.substr(path, text.find(' ', path) - path);
    r.body = text.substr(end + 4);
    for (auto at = text.find("\r\n") + 2; at < end;) {
      const auto stop = text.find("\r\n", at);
      const auto line = text.substr(at, stop - at);
      const auto colon = line.find(':');
      r.headers.emplace_back(s3::lower(line.substr(0, colon)), s3::trimmed(line.substr(colon + 1)));
      at = stop + 2;
    }
    ++requests_;
    const auto a = service_(r);
    if (a.status == 0) return;
    const auto out = "HTTP/1.1 " + std::to_string(a.status) +
                     " .\r\nConnection: close\r\nContent-Length: " + std::to_string(a.body.size()) +
                     "\r\n\r\n" + a.body;
    static_cast<void>(::send(socket, out.data(), out.size(), MSG_NOSIGNAL));
  }

  std::function<answer(const request&)> service_;
  std::atomic<std::size_t> requests_{0};
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace cairn_test
