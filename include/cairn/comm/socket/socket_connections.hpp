// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::links
#pragma once
#include <cairn/comm/socket/socket_connection.hpp>
#include <cairn/comm/socket/socket_frame.hpp>
#include <cairn/comm/socket/socket_members.hpp>
#include <cairn/links/link_key.hpp>
#include <cairn/links/secure_socket.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/sorted_map.hpp>
#include <cairn/system/spare_buffers.hpp>
#include <cairn/system/unforked_file.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The connections of one rank, and the thread that serves them: it takes those that come, reads what they send and writes
/// what waits. What a frame means, and what the end of a connection does, is not known here. Of a connection and this,
/// the connection's mutex is locked first.
class socket_connections : public socket_members {
 public:
  /// Serves a connection from now on; its other end has answered, and is this rank. The mutex of neither is locked.
  void add(const std::shared_ptr<socket_connection>& made, int peer, bool star);
  /// Waits for what a connection has to write, if anything. @pre its mutex is locked
  void arm(socket_connection& c) noexcept;
  /// Reads what has come over a connection, and does what it says. False where there was no memory for it: it is there yet,
  /// and to be tried again after a pause. The mutex of neither is locked.
  bool go_on(std::uint64_t id, bool by_caller);
  /// Reads what has come from a peer over all connections to it, as go_on(), whoever reads them else. The mutex of none is
  /// locked.
  bool read_all_of(int rank);
  /// From now on, or no more, the caller looks for what comes, and not the thread. The mutex of neither is locked.
  void hold(const std::shared_ptr<socket_connection>& c, bool held) noexcept;
  /// Reads on from a peer whose messages were received. The mutex is not locked.
  void resume(int rank) noexcept;

  const tls_context context;
  spare_buffers spares;  ///< for what comes

 protected:
  using connection_ptr = std::shared_ptr<socket_connection>;
  struct posting {
    connection_ptr to;
    socket_frame head;
    std::shared_ptr<const std::vector<std::byte>> body;  ///< which many share; null: none
  };

  /// Without `listening` there is no thread. @throws storage_error where the system gives no descriptor
  socket_connections(const socket_world_options& told, const link_key& key, owned<unforked_file> listening,
                     link_address own_address);
  ~socket_connections() = default;
  /// From now on what follows is called by the thread. @throws storage_error where the system gives none
  void start();
  /// Says goodbye to all, waits for at most 2 s until they have heard it, and ends the thread.
  void stop();

  /// What a frame does. False where the reading is to stop; `good` false: the connection is to end.
  virtual bool take(const connection_ptr& from, received_frame&& frame, std::vector<posting>& after,
                    bool& good, bool& left) = 0;
  /// The end of a connection, and with it of the rank at its other end. The mutex of neither is locked.
  /// @throws std::bad_alloc, where nothing has changed
  virtual void end(const connection_ptr& ended, bool left, std::vector<posting>& after) = 0;
  /// After each wait of the thread.
  virtual void take_turn() = 0;
  /// How long the thread sleeps if nothing comes, in milliseconds.
  [[nodiscard]] virtual int sleep_at_most() const noexcept = 0;

  void attach(const connection_ptr& c, int rank, bool star);
  void forget(const connection_ptr& c) noexcept;
  void post(std::vector<posting>& all) noexcept;
  /// Is woken again for those that come, where that had to end.
  void listen_again() noexcept;
  [[nodiscard]] bool is_ending() const noexcept { return ending_.load(std::memory_order_relaxed); }

  sorted_map<std::uint64_t, connection_ptr> all_;  ///< under the mutex
  std::size_t strangers_ = 0;                      ///< those that have not said who they are

 private:
  bool control(int what, int number, std::uint32_t events, std::uint64_t id) noexcept;
  void serve() noexcept;
  void accept_some();
  void wake() noexcept;
  void look_again(const connection_ptr& c, int after_ms) noexcept;
  [[nodiscard]] bool all_have_heard();

  owned<unforked_file> listener_;
  file_descriptor poller_, wake_;
  std::atomic<bool> ending_{false};
  deadline::clock::time_point end_by_{};
  // The first of those that are listed, and how long the thread sleeps until it looks at them; under the mutex. A list that
  // takes no memory: what waits for some is in it.
  connection_ptr unfinished_;
  int unfinished_ms_ = std::numeric_limits<int>::max();
  bool listens_ = true;  ///< of the thread: it is woken for those that come
  std::uint64_t next_id_ = 2;
  background_thread thread_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_LINKS)
#include <cairn/impl/comm/socket/socket_connections.ipp>
#endif
