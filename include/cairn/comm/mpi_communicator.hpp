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

/// A Communicator between the ranks of an MPI communicator. Uses only calls of the MPI-3 standard.
///
///     int provided = 0;
///     MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
///     cairn::checkpointer ckpt{cairn::file_store{"checkpoints"}, cairn::mpi_communicator{MPI_COMM_WORLD}};
///
/// - **A duplicate.** The constructor duplicates the communicator (MPI_Comm_idup), so that messages of
///   the trainer and of cairn never mix. It is collective. Freeing a communicator is collective, too, and
///   would wait for ever for a rank that is lost or hangs: therefore the destructor keeps the duplicate
///   until MPI_Finalize. A program that makes hundreds of communicators calls free(). The constructor also
///   gathers the names of all hosts (64 bytes of each rank), so that errors tell where a rank was.
/// - **Threads.** MPI must be initialised with MPI_THREAD_FUNNELED at least. With it, only the thread that
///   initialised MPI may use this object; with MPI_THREAD_SERIALIZED or more, any one thread at a time. No
///   background thread of cairn calls MPI.
/// - **Waits** poll non-blocking calls until the deadline. They first yield the core, then sleep for 10
///   us to 1 ms between polls. All waits receive messages of other ranks into memory, so that ranks that
///   send to each other at the same time do not deadlock. send() copies the message, and returns when MPI
///   has taken it; for a large message that is when the receiver is in a call of this communicator.
/// - **After a deadline** MPI may go on with a message. This object keeps its memory; if the object is
///   destroyed first, the memory is never freed. There is at most one such message for each rank: further
///   messages to that rank wait for it.
/// - **Errors.** The duplicate returns errors (MPI_ERRORS_RETURN) instead of ending the job. After an error
///   of MPI the object is broken: this call and every further one throw peer_error (peer_failed) with the
///   call, the rank and MPI's own text. MPI does not report that a rank is dead or hangs; the deadline
///   does (timeout_peer), unless mpirun ends the whole job first, as it does by default.
/// - **After fork()** every call in the child is a usage_error (usage_wrong_process), after MPI_Finalize,
///   free() and a move from it a usage_error (usage_closed); the destructor is good at any time and makes no
///   collective call.
class mpi_communicator {
 public:
  using cairn_role = role::communicator;

  /// Collective: all ranks of `parent` call it in the same order relative to their other calls on
  /// `parent`, which is not kept. An MPI error during the duplication goes to the error handler of
  /// `parent`.
  /// @throws usage_error (usage_bad_option) where MPI is not initialised, was finalised or does not provide
  /// MPI_THREAD_FUNNELED, and for MPI_COMM_NULL or an intercommunicator; timeout_error (timeout_peer) if not
  /// all ranks arrive by the deadline.
  explicit mpi_communicator(MPI_Comm parent, deadline until = deadline::in(std::chrono::minutes(5)));
  mpi_communicator(mpi_communicator&& other) noexcept;
  mpi_communicator& operator=(mpi_communicator&& other) noexcept;
  ~mpi_communicator();

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  void send(int to, std::span<const std::byte> bytes, deadline until);
  [[nodiscard]] std::vector<std::byte> receive(int from, deadline until);

  /// Collective: waits for all ranks and for messages that are under way, and frees the duplicate;
  /// messages that nobody received are dropped. Afterwards only the destructor may be called.
  /// @throws timeout_error (timeout_peer) if not all ranks arrive by the deadline; the communicator
  /// cannot be used any more then.
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
