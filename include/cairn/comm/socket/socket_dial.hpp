// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::links
#pragma once
#include <cairn/comm/socket/socket_connection.hpp>
#include <cairn/comm/socket/socket_frame.hpp>
#include <cairn/comm/socket/socket_service.hpp>
#include <cairn/system/deadline.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What a call of dial() came to.
struct dialled_rank {
  std::shared_ptr<socket_connection> connection;  ///< null where nobody answered as a rank does
  std::optional<socket_answer> answer;
  bool reached = false;  ///< something listens there
  bool silent = false;   ///< and said nothing in time: it may have none
  bool lacks = false;    ///< this host had no descriptor, port or memory for it
  std::string text;      ///< what was found, for people
};

/// Connects to a numeric address, says hello to the rank that listens there as `listener` (0: whichever rank 0 does), and
/// waits for its answer, at most for the handshake_timeout. The service has nothing of the connection yet.
[[nodiscard]] dialled_rank dial(socket_service& in, const std::string& host, std::uint16_t port,
                                std::uint64_t listener, deadline until);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_LINKS)
#include <cairn/impl/comm/socket/socket_dial.ipp>
#endif
