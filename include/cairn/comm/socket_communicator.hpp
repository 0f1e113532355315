// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::links
#pragma once
#include <cairn/comm/socket/socket_job.hpp>
#include <cairn/concepts/communicator.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/model/peer_watch.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {
class socket_world;
}

/// A Communicator between processes of any hosts, over TCP and TLS 1.3 with a secret that the ranks share.
///
///     cairn::socket_communicator comm{cairn::socket_job::at("train-4711", rank, size, "node1:29600")};
///
/// The constructor is collective: it returns when all ranks have arrived. Rank 0 then has a connection to each of the
/// others; the others connect to each other when one has something to send. One thread at a time uses a communicator.
///
/// - A thread of its own, which sleeps unless something comes, serves the connections while the rank trains: it admits
///   peers, takes what they send, at most 1 GiB of each that nobody has received yet, and says that this rank lives.
/// - `send` returns when the system has taken the message. Messages to the rank itself wait in memory.
/// - A process that ends is known at once to those that have a connection to it, and by rank 0 to all. A host that ends
///   or cannot be reached is lost after lost_after. Calls that wait for a rank that is gone throw peer_error
///   (peer_lost), which names rank, host and address; what it had sent before is still received. A process that is
///   stopped on a host that lives is lost after stopped_after; without that it is reported at the deadline, unless more
///   was sent to it than the sockets hold: then it is lost after lost_after.
/// - A connection that something on the way cuts ends the rank at its other end for this one: it is not made again.
/// - Whoever connects without the secret gets not one byte, and is closed after handshake_timeout at the latest.
/// - In a child of fork() calls throw usage_error (usage_wrong_process), and the destructor does not affect the others.
/// - The destructor leaves the job, and waits for at most 2 s until the others have heard it.
class socket_communicator {
 public:
  using cairn_role = role::communicator;

  /// @throws usage_error: usage_bad_name; usage_bad_option (a rank or size that is invalid or differs from the others', a rank
  /// that came already, no secret, no free port). timeout_error (timeout_peer, naming the ranks that did not arrive),
  /// peer_error (peer_lost, for one that ended; peer_refused, for another program in the place of rank 0),
  /// storage_error (limits, files)
  explicit socket_communicator(const socket_job& job, const socket_options& options = {});
  socket_communicator(socket_communicator&& other) noexcept;
  socket_communicator& operator=(socket_communicator&& other) noexcept;
  ~socket_communicator();

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  void send(int to, std::span<const std::byte> bytes, deadline until);
  [[nodiscard]] std::vector<std::byte> receive(int from, deadline until);
  // See ZeroCopyCommunicator: what was received is lent, not copied, and its memory used again.
  void lend(int to, const lent_message& message, deadline until);
  [[nodiscard]] borrowed_message borrow(int from, deadline until);
  // See LandsMessages.
  [[nodiscard]] borrowed_message borrow_into(int from, std::size_t first, std::span<std::byte> rest,
                                             deadline until);
  // See DetectsLostPeers.
  [[nodiscard]] std::shared_ptr<const peer_watch> watch_peers() const;

 private:
  [[nodiscard]] detail::socket_world& world() const;

  detail::owned<detail::socket_world> world_;
};

static_assert(ZeroCopyCommunicator<socket_communicator> && LandsMessages<socket_communicator> &&
              DetectsLostPeers<socket_communicator>);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_LINKS)
#include <cairn/impl/comm/socket_communicator.ipp>
#endif
