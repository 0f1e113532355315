// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <initializer_list>

#ifdef CAIRN_USES_MPI
#include <mpi.h>
#endif

namespace gpt {

/// Whether an mpirun started this process: Open MPI, MPICH and what speaks PMIx say so to their processes.
inline bool started_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

#ifdef CAIRN_USES_MPI
/// MPI from begin to end of its life. Only the thread that made it calls MPI.
class mpi_session {
 public:
  mpi_session() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  mpi_session(const mpi_session&) = delete;
  mpi_session& operator=(const mpi_session&) = delete;
  ~mpi_session() { MPI_Finalize(); }

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Ends all ranks: MPI_Finalize would wait for those that wait for this one.
  [[noreturn]] void abort(int status) const {
    MPI_Abort(MPI_COMM_WORLD, status);
    std::abort();
  }

 private:
  int rank_ = 0;
  int size_ = 1;
};
#endif

}  // namespace gpt
