// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/execute/peer_process.hpp>
#include <cairn/execute/worker_link.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/unforked_file.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void frame_header::check() const {
  const auto refuse = [](const char* why, std::uint64_t expected, std::uint64_t got) {
    fail(error_id::peer_bad_message, std::string("between trainer and worker: ") + why,
         {.expected = std::to_string(expected), .got = std::to_string(got)});
  };
  if (magic != magic_number) refuse("a message begins with another number", magic_number, magic);
  if (version != worker_protocol) refuse("the other side has another version", worker_protocol, version);
  if (bytes > max_bytes) refuse("a message is longer than allowed", max_bytes, bytes);
  if (descriptors > max_descriptors)
    refuse("a message has more descriptors than allowed", max_descriptors, descriptors);
  const auto number = static_cast<std::uint16_t>(kind);
  constexpr auto last = static_cast<std::uint16_t>(frame_kind::gone);
  if (number < 1 || number > last) refuse("a message of an unknown kind", last, number);
}

CAIRN_BODY worker_link::worker_link(file_descriptor socket, const fork_pause& pause, peer_process other)
    : socket_(detail::make_owned<unforked_file>(std::move(socket), pause)), other_(std::move(other)) {}

CAIRN_BODY void worker_link::close() noexcept {
  if (open()) ::shutdown(socket(), SHUT_RDWR);
  socket_.reset();
}

CAIRN_BODY bool worker_link::lost() const noexcept {
  // Of the socket only what is always told: hang-ups and errors.
  pollfd both[]{{socket(), 0, 0}, {other_.handle(), POLLIN, 0}};
  return ::poll(both, 2, 0) > 0 || other_.ended();
}

CAIRN_BODY void worker_link::send(frame_kind kind, std::span<const std::byte> bytes, deadline until,
                                  std::span<const int> descriptors) {
  frame_header header;
  header.kind = kind, header.bytes = bytes.size(), header.digest = cairn::digest(bytes);
  header.descriptors = static_cast<std::uint32_t>(descriptors.size());
  if (bytes.size() > frame_header::max_bytes || descriptors.size() > frame_header::max_descriptors)
    fail(error_id::usage_overflow, "a save's description is longer than a message to the worker may be",
         {.got = std::to_string(bytes.size())});
  send_some(std::as_bytes(std::span(&header, 1)), descriptors, until);
  send_some(bytes, {}, until);
}

CAIRN_BODY std::optional<worker_frame> worker_link::receive(deadline until, int interrupt) {
  if (!wait(POLLIN, interrupt, until)) return {};
  const auto whole = deadline::in(frame_timeout);
  worker_frame frame;
  frame_header header;
  receive_some(std::as_writable_bytes(std::span(&header, 1)), frame.descriptors, whole);
  header.check();
  frame.kind = header.kind;
  // Memory follows what really arrives.
  for (std::uint64_t at = 0; at < header.bytes;) {
    const auto part = std::min<std::uint64_t>(header.bytes - at, std::uint64_t{1} << 20);
    frame.bytes.resize(static_cast<std::size_t>(at + part));
    receive_some(std::span(frame.bytes).subspan(static_cast<std::size_t>(at)), frame.descriptors, whole);
    at += part;
  }
  if (cairn::digest(frame.bytes) != header.digest || frame.descriptors.size() != header.descriptors)
    fail(error_id::peer_bad_message, "a message between trainer and worker was damaged");
  return frame;
}

CAIRN_BODY bool worker_link::wait(short events, int interrupt, deadline until) const {
  for (;;) {
    pollfd all[]{{socket(), events, 0}, {interrupt, POLLIN, 0}, {other_.handle(), POLLIN, 0}};
    const bool any = ::poll(all, 3, poll_milliseconds(until)) > 0;
    if (all[0].revents != 0) return true;
    if (all[2].revents != 0 || other_.ended()) {
      // It may have sent a last message since poll() looked at the socket.
      if (::poll(all, 1, 0) == 1) return true;
      fail_lost();
    }
    if (any || until.passed()) return false;
  }
}

CAIRN_BODY void worker_link::send_some(std::span<const std::byte> bytes, std::span<const int> descriptors,
                                       deadline until) {
  while (!bytes.empty()) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part, message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(frame_header::max_descriptors * sizeof(int))> control{};
    if (!descriptors.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
      cmsghdr* head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(descriptors.size_bytes());
      std::memcpy(CMSG_DATA(head), descriptors.data(), descriptors.size_bytes());
    }
    const auto n = ::sendmsg(socket(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(n));
      descriptors = {};
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait(POLLOUT, -1, until))
        fail(error_id::timeout_peer, "the other side of a worker's socket did not read in time");
    } else if (errno == EPIPE || errno == ECONNRESET) {
      fail_lost();
    } else if (errno != EINTR) {
      fail_system(errno, "nothing could be sent between trainer and worker");
    }
  }
}

CAIRN_BODY void worker_link::receive_some(std::span<std::byte> bytes,
                                          std::vector<file_descriptor>& descriptors, deadline until) {
  while (!bytes.empty()) {
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part, message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(frame_header::max_descriptors * sizeof(int))> control{};
    message.msg_control = control.data(), message.msg_controllen = control.size();
    const auto n = ::recvmsg(socket(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == ECONNRESET) fail_lost();
      if (errno != EAGAIN && errno != EWOULDBLOCK)
        fail_system(errno, "nothing could be received between trainer and worker");
      if (!wait(POLLIN, -1, until))
        fail(error_id::timeout_peer, "a message between trainer and worker did not end in time");
      continue;
    }
    for (auto* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
      if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int number = -1;
        std::memcpy(&number, CMSG_DATA(head) + i * sizeof(int), sizeof number);
        descriptors.emplace_back(number);
      }
    }
    if (n == 0) fail_lost();
    if (descriptors.size() > frame_header::max_descriptors)
      fail(error_id::peer_bad_message, "a message between trainer and worker has too many descriptors");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

CAIRN_BODY void worker_link::fail_lost() {
  fail(error_id::peer_lost, "the process at the other end of a worker's socket is gone");
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
