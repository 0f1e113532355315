// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/thread_communicator.hpp>
#include <support/on_all_ranks.hpp>

#include <cstddef>
#include <exception>
#include <mutex>

#include "../../examples/gpt/group.hpp"

namespace cairn_test {

/// Runs body(gpt::group&) on a thread for each rank and waits for all.
/// Throws what the first rank that failed threw; the others see it as gone and end as well.
template <class Body>
void run_gpt_ranks(std::size_t ranks, Body body) {
  const cairn::thread_group world{static_cast<int>(ranks)};
  std::mutex mutex;
  std::exception_ptr failure;
  on_all_ranks(static_cast<int>(ranks), [&](int rank) {
    gpt::group others(gpt::any_communicator(world.communicator(rank)));
    try {
      body(others);
    } catch (...) {
      // Kept before `others` is destroyed: its end makes the other ranks fail, too.
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace cairn_test
