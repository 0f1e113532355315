// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::links
#pragma once
#include <cairn/comm/socket/socket_frame.hpp>
#include <cairn/links/link_frame.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/fork_guard.hpp>
#include <cairn/system/shared_event.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

class socket_connection;

/// What the connections of a rank are told.
struct socket_world_options {
  std::string job;  ///< what ranks of one job have in common
  int rank = 0;
  int size = 1;
  bool plain = false;
  std::chrono::nanoseconds lost_after = std::chrono::seconds(10);
  std::chrono::nanoseconds stopped_after = {};
  std::chrono::nanoseconds handshake_timeout = std::chrono::seconds(5);
};

/// What is known of another rank.
struct socket_peer {
  std::deque<std::vector<std::byte>> ready;  ///< messages that nobody has received yet
  std::size_t ready_bytes = 0;
  bool landed = false;                     ///< the first of them, which has its first bytes alone
  std::shared_ptr<socket_connection> out;  ///< the one connection over which this rank sends to it
  std::shared_ptr<socket_connection> in;   ///< the one over which it sends to this rank, once it has
  int open = 0;                            ///< connections to it
  bool admitted = false;                   ///< of rank 0's peers: its hello was good
  bool came = false;                       ///< and it has said that it has its answer
  bool paused = false;                     ///< its messages are not read until some were received
  bool gone = false;
  bool left = false;       ///< gone in peace
  bool no_memory = false;  ///< gone because this rank had no memory for what it sent
  deadline::clock::time_point gone_at{};
  std::string why;  ///< it is gone
  socket_place place;
};

/// What one rank knows of the others of its job: where they are, how far they have come, who is gone.
class socket_members {
 public:
  enum class phase : std::uint8_t { gathering, begun, given_up };

  socket_members(const socket_world_options& told, link_address own_address);
  socket_members(const socket_members&) = delete;
  socket_members& operator=(const socket_members&) = delete;

  /// "rank 3 on node7 (10.0.0.7)". @pre the mutex is locked
  [[nodiscard]] std::string who(int rank) const;
  [[nodiscard]] std::vector<std::byte> hello(std::uint64_t listener) const;
  [[nodiscard]] socket_peer& peer(int rank) noexcept { return peers[static_cast<std::size_t>(rank)]; }
  /// A rank is gone, as far as this rank can find out; `why` follows its name. The mutex is not locked.
  void lose(int rank, const std::string& why);

  const socket_world_options options;
  const link_address own;
  const std::string host;  ///< the name of this one
  const fork_guard process;

  shared_event changed;  ///< after each change of what follows
  std::mutex mutex;
  // Under the mutex:
  phase at = phase::gathering;
  bool all_know = false;  ///< rank 0 has told the others that they have begun
  std::vector<socket_peer> peers;
  std::exception_ptr failure;  ///< of given_up
  std::string waiting_for;     ///< what rank 0 has told of those that have not come
  int first_missing = -1;
  int peers_came = 0;        ///< of rank 0
  std::string last_refused;  ///< the last rank that was not admitted, or gave up, for people

  /// Outlives this: whether each rank is gone.
  struct gone_flags {
    explicit gone_flags(int size) : each(static_cast<std::size_t>(size)) {}
    std::vector<std::atomic<bool>> each;
  };
  const std::shared_ptr<gone_flags> flags;

 protected:
  ~socket_members() = default;
  /// @pre the mutex is locked
  void mark_gone(int rank, bool left, std::string why);
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_LINKS)
#include <cairn/impl/comm/socket/socket_members.ipp>
#endif
