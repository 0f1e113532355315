// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/socket/socket_connection.hpp>
#include <cairn/comm/socket/socket_frame.hpp>
#include <cairn/links/secure_socket.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/spare_buffers.hpp>
#include <cairn/system/unforked_file.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::string address_of_peer(int number) {
  sockaddr_storage is{};
  socklen_t size = sizeof is;
  char text[INET6_ADDRSTRLEN] = {};
  if (::getpeername(number, reinterpret_cast<sockaddr*>(&is), &size) != 0) return {};
  if (is.ss_family == AF_INET) {
    sockaddr_in four;
    std::memcpy(&four, &is, sizeof four);
    ::inet_ntop(AF_INET, &four.sin_addr, text, sizeof text);
  } else if (is.ss_family == AF_INET6) {
    sockaddr_in6 six;
    std::memcpy(&six, &is, sizeof six);
    if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr))
      ::inet_ntop(AF_INET, six.sin6_addr.s6_addr + 12, text, sizeof text);
    else
      ::inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof text);
  }
  return text;
}

CAIRN_BODY socket_connection::socket_connection(const tls_context& context, owned<unforked_file> connected,
                                                secure_socket::side side, bool plain)
    : socket_(context, std::move(connected), side), plain_(plain), where_(address_of_peer(socket_.number())) {
  last_heard.store(deadline::clock::now().time_since_epoch().count(), std::memory_order_relaxed);
}

CAIRN_BODY socket_progress socket_connection::handshake() noexcept {
  if (plain_) return {socket_progress::state::moved, 0};
  return socket_.handshake();
}
CAIRN_BODY socket_progress socket_connection::read_some(std::span<std::byte> into) noexcept {
  return plain_ ? socket_.read_plain(into) : socket_.read(into);
}
CAIRN_BODY socket_progress socket_connection::write_some(std::span<const std::byte> bytes) noexcept {
  const auto progress = plain_ ? socket_.write_plain(bytes) : socket_.write(bytes);
  // So much and no more may be encrypted with one key (RFC 8446, 5.5): 2^24.5 records.
  if (!plain_ && progress.bytes > 0 && (with_this_key_ += progress.bytes + 256) > (std::uint64_t{1} << 30)) {
    socket_.renew_key();
    with_this_key_ = 0;
  }
  return progress;
}

CAIRN_BODY socket_progress::state socket_connection::read(function_ref<bool(received_frame&&)> take,
                                                          std::size_t longest, spare_buffers& spares) {
  using state = socket_progress::state;
  if (no_memory) return state::ended;
  // A body grows as it comes, so that what fills its memory the first time leaves it in the cache for what is received.
  constexpr std::size_t step = std::size_t{256} << 10;
  for (std::size_t budget = std::size_t{8} << 20;;) {
    if (in_body_ && coming_.rest.empty() && have_ == coming_.body.size() && have_ < coming_.head.bytes)
      coming_.body.resize(
          static_cast<std::size_t>(std::min<std::uint64_t>(coming_.head.bytes, have_ + step)));
    const std::span<std::byte> wanted = in_body_ && !coming_.rest.empty() && have_ >= landing_first_
                                            ? coming_.rest.subspan(have_ - landing_first_)
                                        : in_body_ ? std::span(coming_.body).subspan(have_)
                                                   : std::span(head_in_).subspan(have_);
    if (!wanted.empty()) {
      const auto got = read_some(wanted);
      if (got.what != state::moved) return got.what;
      last_heard.store(deadline::clock::now().time_since_epoch().count(), std::memory_order_relaxed);
      have_ += got.bytes;
      budget -= std::min(budget, got.bytes);
      if (got.bytes < wanted.size()) continue;
    }
    if (!in_body_) {
      const auto head = decode_socket_head(head_in_);
      if (!head || head->bytes > longest) return state::ended;
      coming_.head = *head;
      if (!lands(*head)) {
        coming_.body = spares.take(static_cast<std::size_t>(head->bytes));
        coming_.body.reserve(static_cast<std::size_t>(head->bytes));
      }
      in_body_ = true;
      have_ = 0;
      begin_landing();
      continue;
    }
    if (have_ < coming_.head.bytes) continue;
    const bool goes_on = take(std::move(coming_));
    coming_ = {};
    in_body_ = false;
    have_ = 0;
    landing_ = {};
    if (!goes_on) return state::moved;
    if (budget == 0) return state::moved;
  }
}

CAIRN_BODY bool socket_connection::lands(const socket_frame& head) const noexcept {
  return !landing_.empty() && head.what == socket_frame::kind::message &&
         head.bytes == landing_first_ + landing_.size();
}
/// What has come of the body goes where the rest of it will be.
CAIRN_BODY void socket_connection::begin_landing() {
  if (!in_body_ || !coming_.rest.empty() || !lands(coming_.head)) return;
  if (have_ > landing_first_)
    std::memcpy(landing_.data(), coming_.body.data() + landing_first_, have_ - landing_first_);
  coming_.body.resize(landing_first_);
  coming_.rest = landing_;
}
CAIRN_BODY void socket_connection::land(std::size_t first, std::span<std::byte> rest) {
  landing_first_ = first;
  landing_ = rest;
  begin_landing();
}
CAIRN_BODY void socket_connection::end_landing() noexcept {
  if (!coming_.rest.empty()) try {
      if (have_ > landing_first_)
        coming_.body.insert(coming_.body.end(), coming_.rest.begin(),
                            coming_.rest.begin() + static_cast<std::ptrdiff_t>(have_ - landing_first_));
      coming_.rest = {};
    } catch (...) {  // no memory: nothing can follow half a message
      ::shutdown(number(), SHUT_RDWR);
      no_memory = true;
    }
  landing_ = {};
}

CAIRN_BODY socket_progress::state socket_connection::flush() noexcept {
  while (has_waiting()) {
    const auto progress = write_some(std::span(waiting_).subspan(waiting_at_));
    waiting_at_ += progress.bytes;
    if (progress.what == socket_progress::state::ended) {
      ::shutdown(number(), SHUT_RDWR);  // which leaves what has come
      waiting_.clear();
      waiting_at_ = 0;
    }
    if (progress.what != socket_progress::state::moved) return progress.what;
    last_sent = deadline::clock::now();
  }
  waiting_.clear();
  waiting_at_ = 0;
  return socket_progress::state::moved;
}
CAIRN_BODY void socket_connection::post(const socket_frame& head, std::span<const std::byte> body) {
  auto whole = head;
  whole.bytes = body.size();
  const auto encoded = encode(whole);
  waiting_.reserve(waiting_.size() + encoded.size() + body.size());
  waiting_.insert(waiting_.end(), encoded.begin(), encoded.end());
  waiting_.insert(waiting_.end(), body.begin(), body.end());
  if (!in_message) static_cast<void>(flush());
}
CAIRN_BODY socket_progress::state socket_connection::write(const socket_head& head,
                                                           std::span<const std::byte> body,
                                                           std::size_t& done) {
  if (done == 0 && body.size() <= 4096) {
    // One record and one system call for what is short.
    std::array<std::byte, socket_head_bytes + 4096> both;
    std::copy(head.begin(), head.end(), both.begin());
    std::copy(body.begin(), body.end(), both.begin() + socket_head_bytes);
    const auto progress = write_some(std::span(both).first(head.size() + body.size()));
    done += progress.bytes;
    if (progress.what != socket_progress::state::moved) return progress.what;
  }
  while (done < head.size() + body.size()) {
    const auto next = done < head.size() ? std::span<const std::byte>(head).subspan(done)
                                         : body.subspan(done - head.size());
    const auto progress = write_some(next);
    done += progress.bytes;
    if (progress.what != socket_progress::state::moved) return progress.what;
  }
  last_sent = deadline::clock::now();
  return socket_progress::state::moved;
}
CAIRN_BODY void socket_connection::leave_rest(const socket_head& head, std::span<const std::byte> body,
                                              std::size_t done) {
  std::vector<std::byte> rest;
  if (done < head.size())
    rest.insert(rest.end(), head.begin() + static_cast<std::ptrdiff_t>(done), head.end());
  const auto of_body = body.subspan(done > head.size() ? done - head.size() : 0);
  rest.insert(rest.end(), of_body.begin(), of_body.end());
  rest.insert(rest.end(), waiting_.begin() + static_cast<std::ptrdiff_t>(waiting_at_), waiting_.end());
  waiting_.swap(rest);
  waiting_at_ = 0;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
