// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/socket/socket_connection.hpp>
#include <cairn/comm/socket/socket_dial.hpp>
#include <cairn/comm/socket/socket_frame.hpp>
#include <cairn/comm/socket/socket_service.hpp>
#include <cairn/links/link_sockets.hpp>
#include <cairn/links/secure_socket.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/shared.hpp>

#include <poll.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY dialled_rank dial(socket_service& in, const std::string& host, std::uint16_t port,
                             std::uint64_t listener, deadline until) {
  dialled_rank made;
  const auto where = host + " port " + std::to_string(port);
  const auto limit = until.earlier(deadline::in(in.options.handshake_timeout));
  int why = 0;
  auto connected = connect_to(host, port, limit, why);
  if (connected == nullptr) {
    made.lacks = is_own_lack(why, host);
    made.text = where + ": " + std::generic_category().message(why);
    return made;
  }
  made.reached = true;
  prepare_socket(connected->get(), in.options.lost_after, in.options.stopped_after);
  auto c = detail::make_shared<socket_connection>(in.context, std::move(connected),
                                                  secure_socket::side::client, in.options.plain);
  const std::lock_guard lock(c->mutex);  // nobody else has it yet
  using state = socket_progress::state;
  /// Whether the other end may go on in time.
  const auto wait = [&](state what) {
    if (what == state::ended) return false;
    if (poll_one(c->number(), what == state::wants_write ? POLLOUT : POLLIN, limit)) return true;
    made.silent = true;
    made.text = where +
                ": what listens there did not answer in time; it may be no rank, or have no time, or no more "
                "descriptors (ulimit -n)";
    return false;
  };
  for (;;) {
    const auto progress = c->handshake();
    if (progress.what == state::moved) break;
    if (wait(progress.what)) continue;
    if (!made.silent) made.text = where + ": what listens there does not have the key of this job";
    return made;
  }
  c->post({.what = socket_frame::kind::hello}, in.hello(listener));
  for (auto what = c->flush(); what != state::moved; what = c->flush())
    if (!wait(what)) {
      if (!made.silent) made.text = where + ": it took no greeting";
      return made;
    }
  while (!made.answer) {
    bool good = true;
    const auto what = c->read(
        [&](received_frame&& frame) {
          if (frame.head.what == socket_frame::kind::answer) made.answer = decode_socket_answer(frame.body);
          good = made.answer.has_value();
          return false;
        },
        max_hello_bytes, in.spares);
    if (made.answer) break;
    if (!good || what == state::moved || !wait(what)) {
      if (!made.silent) made.text = where + ": what listens there is no rank of cairn, or of another version";
      return made;
    }
  }
  made.connection = std::move(c);
  return made;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
