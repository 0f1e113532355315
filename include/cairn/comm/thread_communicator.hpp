// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/communicator.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/model/peer_watch.hpp>
#include <cairn/system/deadline.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {
class thread_world;
}  // namespace detail

/// One rank of a thread_group; models Communicator.
///
/// `send` never blocks: messages wait in memory until they are received. A message that has arrived is
/// received even when the deadline has passed. Messages that a rank sent before it was lost are still
/// received; after that, waits on it throw peer_error (peer_lost) at once. One thread at a time uses it.
/// Movable. The destructor leaves the group, and the others then see this rank as lost.
class thread_communicator {
 public:
  using cairn_role = role::communicator;

  thread_communicator(thread_communicator&&) noexcept = default;
  thread_communicator& operator=(thread_communicator&& other) noexcept;
  ~thread_communicator();

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept;

  void send(int to, std::span<const std::byte> bytes, deadline);

  [[nodiscard]] std::vector<std::byte> receive(int from, deadline until);

  // See DetectsLostPeers.
  [[nodiscard]] std::shared_ptr<const peer_watch> watch_peers() const;
  // See ZeroCopyCommunicator.
  void lend(int to, const lent_message& message, deadline until);
  [[nodiscard]] borrowed_message borrow(int from, deadline until);

 private:
  friend class thread_group;
  thread_communicator(std::shared_ptr<detail::thread_world> world, int rank)
      : world_(std::move(world)), rank_(rank) {}
  void leave() noexcept;

  std::shared_ptr<detail::thread_world> world_;
  int rank_;
};

/// Ranks that are threads of one process.
///
///     cairn::thread_group group{4};
///     // in thread r:  cairn::thread_communicator comm = group.communicator(r);
///
/// Copies refer to the same group. Several threads may call all functions at once. The communicators keep
/// the group alive.
class thread_group {
 public:
  /// @throws usage_error (usage_bad_option) if size < 1.
  explicit thread_group(int size);

  [[nodiscard]] int size() const noexcept;

  /// Returns the communicator of a rank. A rank that was lost counts as alive again; messages to it were
  /// refused in between.
  /// @throws usage_error (usage_bad_option) if there is no such rank or its communicator still exists.
  [[nodiscard]] thread_communicator communicator(int rank) const;

  /// Marks a rank as lost, as if its process had died: waits on it, and its own, throw peer_error
  /// (peer_lost).
  /// @throws usage_error (usage_bad_option) if there is no such rank. Cost O(size).
  void lose(int rank) const;

 private:
  std::shared_ptr<detail::thread_world> world_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/comm/thread_communicator.ipp>
#endif
