// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::mpi
#pragma once
#include <cairn/concepts/communicator.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/system/deadline.hpp>

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {
class mpi_world;
}

/// The ranks of an MPI communicator; models Communicator. Standard MPI-3 calls only.
///
///     int provided = 0;
///     MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
///     cairn::checkpointer ckpt{cairn::file_store{"checkpoints"}, cairn::mpi_communicator{MPI_COMM_WORLD}};
///
/// - **A duplicate.** The constructor duplicates the communicator, so that what the trainer sends is never
///   mixed with what cairn sends. It is collective. Freeing a communicator is collective, too, and a rank
///   that is gone or hangs would hold all others for ever: therefore the destructor keeps the duplicate until
///   MPI_Finalize. A program that makes hundreds of communicators calls free().
/// - **Threads.** MPI must be initialised with MPI_THREAD_FUNNELED at least. With it, only the thread that
///   initialised MPI may use this object; with MPI_THREAD_SERIALIZED or more, any one thread at a time. No
///   background thread of cairn calls MPI.
/// - **Waits** poll non-blocking calls until the deadline, first yielding the core, then sleeping for 10 us
///   to 1 ms between polls. All waits take in what other ranks have sent, which waits in memory until it is
///   received: ranks that send to each other at the same time do not block each other. send() copies the
///   message, and returns when MPI has taken it; for a large one that is when the receiver is in a call of
///   this communicator.
/// - **After a deadline** MPI may go on with a message: its memory is kept by this object, and by nobody
///   (never given back) where the object ends first. At most one for each rank: as long as a message to a
///   rank is stuck, others to it wait.
/// - **Errors.** The duplicate returns errors (MPI_ERRORS_RETURN) instead of ending the job. After an error
///   of MPI the object is broken: this call and every further one throw peer_error (peer_failed) with the
///   call, the rank and MPI's own words. MPI itself tells nobody that a rank is dead or hangs; that is
///   noticed by the deadline (timeout_peer), unless mpirun ends the whole job first, as it does by default.
/// - **After fork()** every call in the child is a usage_error (usage_wrong_process), after MPI_Finalize,
///   free() and a move from it a usage_error (usage_closed); the destructor is good at any time and makes no
///   collective call.
class mpi_communicator {
 public:
  using cairn_role = role::communicator;

  /// Collective: all ranks of `parent` call it in the same order with their other calls on `parent`, which is
  /// not kept. An error of MPI in the duplication goes to the error handler of `parent`.
  /// @throws usage_error (usage_bad_option) where MPI is not initialised, was finalised or gives no
  /// MPI_THREAD_FUNNELED, and for MPI_COMM_NULL or an intercommunicator; timeout_error (timeout_peer) if not
  /// all ranks come by the deadline.
  explicit mpi_communicator(MPI_Comm parent, deadline until = deadline::in(std::chrono::minutes(5)));
  mpi_communicator(mpi_communicator&& other) noexcept;
  mpi_communicator& operator=(mpi_communicator&& other) noexcept;
  ~mpi_communicator();

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  void send(int to, std::span<const std::byte> bytes, deadline until);
  [[nodiscard]] std::vector<std::byte> receive(int from, deadline until);

  /// Collective: waits for all ranks and for what is under way, and frees the duplicate; messages that nobody
  /// received are dropped. Afterwards only the destructor is called.
  /// @throws timeout_error (timeout_peer) if not all ranks come by the deadline; the communicator is broken
  /// then.
  void free(deadline until);

 private:
  [[nodiscard]] detail::mpi_world& world() const;

  std::unique_ptr<detail::mpi_world> world_;
  int rank_;
  int size_;
};

static_assert(Communicator<mpi_communicator>);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_MPI)
#include <cairn/impl/comm/mpi_communicator.ipp>
#endif
