// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::links
#pragma once
#include <cairn/comm/socket/socket_service.hpp>
#include <cairn/concepts/communicator.hpp>
#include <cairn/links/link_key.hpp>
#include <cairn/model/peer_watch.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/unforked_file.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The connections of one rank, the thread that serves them, and what has come over them. Any thread calls it, but for
/// send() and receive(), which one thread at a time calls.
class socket_world {
 public:
  /// Serves `listening`, which `told` describes, from now on.
  /// @throws storage_error where the system gives no thread or descriptor
  socket_world(const socket_world_options& options, const link_key& key, owned<unforked_file> listening,
               link_address told);
  socket_world(const socket_world&) = delete;
  socket_world& operator=(const socket_world&) = delete;
  /// Says goodbye to all, and waits for at most 2 s until they have heard it.
  ~socket_world();

  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;
  [[nodiscard]] std::shared_ptr<const peer_watch> watch() const;

  /// The connections, for how the ranks meet.
  [[nodiscard]] socket_service& service() noexcept { return *in_; }

  // See Communicator.
  void send(int to, std::span<const std::byte> bytes, deadline until);
  [[nodiscard]] std::vector<std::byte> receive(int from, deadline until);
  // See ZeroCopyCommunicator.
  [[nodiscard]] borrowed_message borrow(int from, deadline until);
  // See LandsMessages.
  [[nodiscard]] borrowed_message borrow_into(int from, std::size_t first, std::span<std::byte> rest,
                                             deadline until);

 private:
  /// What a try to connect to a rank came to where it gave no connection.
  struct attempt {
    bool says_nothing = false;  ///< of whether the rank lives: it may, or this host could not ask
    bool lacks = false;         ///< this host could not ask
    bool silent = false;        ///< its system took a connection, and it said nothing
    std::string found;          ///< for people
  };
  struct reaching;
  [[nodiscard]] borrowed_message take_next(int from, std::size_t first, std::span<std::byte> rest,
                                           deadline until);
  [[nodiscard]] std::shared_ptr<socket_connection> connect(int to, deadline until);
  [[nodiscard]] std::shared_ptr<socket_connection> try_connect(int to, deadline until, attempt& what);
  void check(int peer) const;
  [[noreturn]] void fail_lost(int peer);
  [[noreturn]] void fail_late(int peer, const char* what);

  std::shared_ptr<socket_service> in_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_LINKS)
#include <cairn/impl/comm/socket/socket_world.ipp>
#endif
