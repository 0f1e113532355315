// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::links
#pragma once
#include <cairn/comm/socket/socket_connection.hpp>
#include <cairn/comm/socket/socket_frame.hpp>
#include <cairn/links/link_key.hpp>
#include <cairn/links/secure_socket.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/fork_guard.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared_event.hpp>
#include <cairn/system/sorted_map.hpp>
#include <cairn/system/unforked_file.hpp>

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

/// What a socket_service is told.
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
  std::shared_ptr<socket_connection> out;  ///< the one connection over which this rank sends to it
  std::shared_ptr<socket_connection> in;   ///< the one over which it sends to this rank, once it has
  int open = 0;                            ///< connections to it
  bool admitted = false;                   ///< of rank 0's peers: its hello was good
  bool came = false;                       ///< and it has said that it has its answer
  bool paused = false;                     ///< its messages are not read until some were received
  bool gone = false;
  bool left = false;  ///< gone in peace
  deadline::clock::time_point gone_at{};
  std::string why;  ///< it is gone
  socket_place place;
};

/// Serves the connections of one rank by a thread of its own: admits peers, reads what they send, says that this rank
/// lives, and notices who is gone. Of a connection and the service, the connection's mutex is locked first.
class socket_service {
 public:
  enum class phase : std::uint8_t { gathering, begun, given_up };

  /// Without `listening` there is no thread. @throws storage_error where the system gives no thread or descriptor
  socket_service(const socket_world_options& told, const link_key& key, owned<unforked_file> listening,
                 link_address own_address);
  socket_service(const socket_service&) = delete;
  socket_service& operator=(const socket_service&) = delete;
  /// Says goodbye to all, and waits for at most 2 s until they have heard it.
  ~socket_service();

  /// Serves a connection from now on; its other end has answered, and is this rank. The mutex of neither is locked.
  void add(const std::shared_ptr<socket_connection>& made, int peer, bool star);
  /// Ends a connection, and with it the rank at its other end. The mutex of neither is locked.
  void end(const std::shared_ptr<socket_connection>& ended, bool left);
  /// A rank is gone, as far as this rank can find out; `why` follows its name. The mutex is not locked.
  void lose(int rank, const std::string& why);
  /// Rank 0, which gives up to wait for the others: they throw the same.
  void give_up(const std::exception_ptr& failure);
  /// Waits for what a connection has to write, if anything. @pre its mutex is locked
  void arm(socket_connection& c) noexcept;
  /// Reads what has come over a connection, and does what it says. The mutex of neither is locked.
  void go_on(std::uint64_t id, bool by_caller);
  /// From now on, or no more, the caller looks for what comes, and not the thread. The mutex of neither is locked.
  void hold(socket_connection& c, bool held);
  /// Reads on from a peer whose messages were received. The mutex is not locked.
  void resume(int rank);

  /// "rank 3 on node7 (10.0.0.7)". @pre the mutex is locked
  [[nodiscard]] std::string who(int rank) const;
  [[nodiscard]] std::vector<std::byte> hello(std::uint64_t listener) const;
  [[nodiscard]] socket_peer& peer(int rank) noexcept { return peers[static_cast<std::size_t>(rank)]; }

  const socket_world_options options;
  const tls_context context;
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

  /// Outlives the service: whether each rank is gone.
  struct gone_flags;
  const std::shared_ptr<gone_flags> flags;

 private:
  using connection_ptr = std::shared_ptr<socket_connection>;
  struct posting {
    connection_ptr to;
    socket_frame head;
    std::shared_ptr<const std::vector<std::byte>> body;  ///< which many share; null: none
  };

  bool control(int what, int number, std::uint32_t events, std::uint64_t id) noexcept;
  void serve() noexcept;
  void accept_some();
  bool take(const connection_ptr& from, received_frame&& frame, std::vector<posting>& after, bool& good,
            bool& left);
  [[nodiscard]] socket_answer admit(const connection_ptr& from, const socket_hello& hello,
                                    connection_ptr& replaced);
  void let_come_again(socket_peer& p) noexcept;
  void attach(const connection_ptr& c, int rank, bool star);
  void forget(const connection_ptr& c) noexcept;
  void mark_gone(int rank, bool left, std::string why);
  void begin_if_all_came(std::vector<posting>& after);
  void post(std::vector<posting>& all) noexcept;
  void sweep();
  void end(const connection_ptr& ended, bool left, std::vector<posting>& after);
  [[nodiscard]] std::chrono::nanoseconds may_be_silent() const noexcept;
  [[nodiscard]] int next_turn() const noexcept;
  [[nodiscard]] bool all_have_heard();

  owned<unforked_file> listener_;
  file_descriptor poller_, wake_;
  std::atomic<bool> ending_{false};
  deadline::clock::time_point end_by_{};
  deadline::clock::time_point next_sweep_{}, next_beat_{};
  deadline::clock::time_point last_beat_{}, awake_since_{};  ///< of the thread: it beat on time since then
  sorted_map<std::uint64_t, connection_ptr> all_;            // under the mutex
  std::vector<std::uint64_t> unfinished_;  // connections that may have more, under the mutex
  std::size_t strangers_ = 0;
  bool listens_ = true;  ///< of the thread: it is woken for those that come
  std::uint64_t next_id_ = 2;
  background_thread thread_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_LINKS)
#include <cairn/impl/comm/socket/socket_service.ipp>
#endif
