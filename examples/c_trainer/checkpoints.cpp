// SPDX-License-Identifier: Apache-2.0
// links: cairn::interprocess
//
// The one C++ file of this trainer: says how checkpoints are made, and brings the bodies of the C interface.
#include "checkpoints.h"

#include <cairn/cairn.hpp>
#include <cairn/comm/shared_memory_communicator.hpp>
#include <cairn/interop/c_interface.hpp>

extern "C" cairn_checkpointer* open_checkpoints(const char* directory, const char* job, int rank, int ranks) {
  return cairn::open_for_c([&] {
    return cairn::checkpointer{cairn::file_store{directory},
                               cairn::shared_memory_communicator{job, rank, ranks}, cairn::overlapped{},
                               cairn::keep_last(3)};
  });
}
