// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/links/link_frame.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What ranks send each other over sockets: a head, and as many bytes as it says. All of it is little-endian.
struct socket_frame {
  enum class kind : std::uint8_t {
    hello,      ///< a socket_hello, the first frame of a connection
    answer,     ///< a socket_answer, to that
    waiting,    ///< of rank 0 while ranks meet: text, the ranks that have not come
    begun,      ///< of rank 0 when all have come: a list of socket_places
    given_up,   ///< of rank 0 when not all come: an encoded failure
    message,    ///< of send()
    heartbeat,  ///< nothing
    lost,       ///< of rank 0: text, what happened to the rank of the head
    goodbye,    ///< nothing follows: the rank leaves in peace
  };
  kind what = kind::heartbeat;
  bool left = false;        ///< of lost: in peace
  std::int32_t rank = 0;    ///< of lost
  std::uint64_t bytes = 0;  ///< that follow
};
inline constexpr std::size_t socket_head_bytes = 16;
using socket_head = std::array<std::byte, socket_head_bytes>;
/// The longest frame that is no message.
inline constexpr std::size_t max_control_bytes = std::size_t{64} << 20;
/// The longest first frame: who sends it may be a stranger.
inline constexpr std::size_t max_hello_bytes = 4096;

[[nodiscard]] socket_head encode(const socket_frame& head);
/// Nothing where these are no head. Reads hostile bytes. @pre bytes.size() == socket_head_bytes
[[nodiscard]] std::optional<socket_frame> decode_socket_head(std::span<const std::byte> bytes);

/// Who connects, and whom it wants.
struct socket_hello {
  std::uint64_t listener = 0;  ///< the number of the one that is meant; 0: whichever rank 0 has
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::string job;
  std::string host;   ///< the name of its host
  link_address from;  ///< where it listens
};
[[nodiscard]] std::vector<std::byte> encode(const socket_hello& hello);
/// Nothing where the bytes are no hello. Reads hostile bytes.
[[nodiscard]] std::optional<socket_hello> decode_socket_hello(std::span<const std::byte> bytes);

/// The answer to a hello.
struct socket_answer {
  enum class status : std::uint8_t {
    welcome,
    other_job,
    other_size,
    no_such_rank,
    taken,
    other_listener,
    given_up
  };
  status what = status::welcome;
  std::int32_t size = 0;  ///< of the job
  std::string text;       ///< the job; of `taken`: where the rank of that number is
};
[[nodiscard]] std::vector<std::byte> encode(const socket_answer& answer);
/// Nothing where the bytes are no answer. Reads hostile bytes.
[[nodiscard]] std::optional<socket_answer> decode_socket_answer(std::span<const std::byte> bytes);

/// Where a rank is.
struct socket_place {
  std::string host;   ///< the name of its host
  link_address from;  ///< where it listens; the address that rank 0 saw it come from is the first
};
[[nodiscard]] std::vector<std::byte> encode(const std::vector<socket_place>& places);
/// Nothing where the bytes are no places. Reads hostile bytes.
[[nodiscard]] std::optional<std::vector<socket_place>> decode_socket_places(std::span<const std::byte> bytes);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/comm/socket/socket_frame.ipp>
#endif
