// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/concepts/communicator.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/model/peer_watch.hpp>
#include <cairn/system/deadline.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {
class shared_rank;
}

/// How ranks of one host share memory.
struct shared_memory_options {
  /// Bytes of the ring that carries messages from one rank to another; a power of two from 4 KiB to 64 MiB,
  /// and the same on all ranks (rank 0's counts). A ring takes memory once its sender has used it; longer
  /// messages go through it in pieces.
  std::size_t ring_bytes = std::size_t{256} << 10;
  /// How long the constructor waits for the other ranks.
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);
};

/// A rank that is a process of its own, beside the other ranks on the same host; models Communicator.
///
///     cairn::shared_memory_communicator comm{"train-4711", rank, 8};
///
/// The ranks find each other by the name of the job, 1 to 64 of A-Z a-z 0-9 . _ - ; each user has names of
/// their own, and a run should have one that no other has (the batch system's job number). Rank 0 holds the
/// name as long as its communicator, or a child that it forked, lives. The constructor is collective: it
/// returns when all ranks have come. One thread at a time uses a communicator.
///
/// Nothing has a name in a file system, so that nothing is left behind, however ranks end. They must see each
/// other's network namespace and be of one user. A process has one rank of a job; only a job whose ranks are
/// all threads of one process has several in it.
///
/// - `send` returns when the message lies in shared memory; a longer one than the ring when its last piece
///   does. While it waits for room, it takes in what others sent, at most 1 GiB, so that ranks that send to
///   each other at the same time do not wait for each other. Messages to oneself wait in memory.
/// - A rank whose process has ended is known within some 20 ms to those who wait for it: peer_error
///   (peer_lost). What it had sent before is still received. One that hangs is named by the deadline.
/// - Shared memory takes 64 bytes for each rank, 128 for each ordered pair, and the ring for each ordered
///   pair of which the first has sent to the second. It is allocated before it is used: no memory is a
///   storage_error.
/// - Every piece of a message carries a digest; damage is peer_error (peer_bad_message), for good.
/// - After fork() the child's copy refuses every call and its destructor does nothing to the others.
/// - The destructor leaves the job: the others then see this rank as lost.
class shared_memory_communicator {
 public:
  using cairn_role = role::communicator;

  /// @throws usage_error: usage_bad_name, usage_bad_option (a rank or size that is none or not the others', a
  /// rank that has a process already, a job of this name that runs), timeout_error (timeout_peer, the ranks
  /// that never came), peer_error (peer_lost, one that ended meanwhile), storage_error (limits, memory).
  shared_memory_communicator(std::string_view job, int rank, int size, shared_memory_options options = {});
  shared_memory_communicator(shared_memory_communicator&& other) noexcept;
  shared_memory_communicator& operator=(shared_memory_communicator&& other) noexcept;
  ~shared_memory_communicator();

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  void send(int to, std::span<const std::byte> bytes, deadline until);
  [[nodiscard]] std::vector<std::byte> receive(int from, deadline until);
  // See DetectsLostPeers.
  [[nodiscard]] std::shared_ptr<const peer_watch> watch_peers() const;

 private:
  [[nodiscard]] detail::shared_rank& self() const;

  std::unique_ptr<detail::shared_rank> self_;
};

static_assert(DetectsLostPeers<shared_memory_communicator>);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_INTERPROCESS)
#include <cairn/impl/comm/shared_memory_communicator.ipp>
#endif
