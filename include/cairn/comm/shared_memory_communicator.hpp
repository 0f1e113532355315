// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/concepts/communicator.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/model/peer_watch.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>

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

/// Options of shared_memory_communicator.
struct shared_memory_options {
  /// The size of the ring buffer from one rank to another: a power of two from 4 KiB to 64 MiB, the same
  /// on all ranks (rank 0's is used). A ring takes memory only after its sender has used it. Messages
  /// that are longer are sent in pieces.
  std::size_t ring_bytes = std::size_t{256} << 10;
  /// How long the constructor waits for the other ranks.
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);
};

/// A Communicator between ranks that are processes of one host.
///
///     cairn::shared_memory_communicator comm{"train-4711", rank, 8};
///
/// The ranks find each other by the name of the job, 1 to 64 of A-Z a-z 0-9 . _ - (an abstract socket,
/// see unix(7)). The name must be unique among the jobs of the user, such as the job number of the batch
/// system. Rank 0 holds the name as long as its communicator, or a child that it forked, lives. The
/// constructor is collective: it returns when all ranks have arrived. One thread at a time uses a
/// communicator.
///
/// Nothing has a name in a file system, so that nothing is left behind, however ranks end. The ranks must
/// be in one network namespace and of one user. A process is one rank of a job, unless all ranks of the
/// job are threads of one process.
///
/// - `send` returns when the message, or the last piece of a message longer than the ring, is in shared
///   memory. While it waits for space, it receives messages of others, at most 1 GiB, so that ranks that
///   send to each other at the same time do not deadlock. Messages to the rank itself wait in memory.
/// - Ranks that wait for a rank whose process has ended get peer_error (peer_lost) within about 20 ms.
///   Messages that it had sent are still received. A rank that hangs is reported at the deadline.
/// - Shared memory takes 64 bytes for each rank, 128 for each ordered pair, and a ring for each ordered
///   pair of which the first rank has sent to the second. It is allocated before it is used; if there is
///   none, the call throws storage_error.
/// - Every piece of a message carries a digest; after a damaged one, all calls with that peer throw
///   peer_error (peer_bad_message).
/// - In a child of fork() the copy refuses every call, and its destructor does not affect the others.
/// - The destructor leaves the job: the others then see this rank as lost.
class shared_memory_communicator {
 public:
  using cairn_role = role::communicator;

  /// @throws usage_error: usage_bad_name; usage_bad_option (a rank or size that is invalid or differs
  /// from the others', a rank that has a process already, another job of this name). timeout_error
  /// (timeout_peer, naming the ranks that did not arrive), peer_error (peer_lost, for one that ended),
  /// storage_error (limits, memory).
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

  detail::owned<detail::shared_rank> self_;
};

static_assert(DetectsLostPeers<shared_memory_communicator>);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_INTERPROCESS)
#include <cairn/impl/comm/shared_memory_communicator.ipp>
#endif
