// SPDX-License-Identifier: Apache-2.0
// links: cairn::interprocess
// Ranks that are processes of one host and meet in shared memory: that messages arrive, that nothing is left
// behind, and that a rank that dies or hangs is named on all others.
#include <doctest/doctest.h>

#include <cairn/comm/collectives.hpp>
#include <cairn/comm/shared_memory_communicator.hpp>
#include <support/communicator_conformance.hpp>
#include <support/process_ranks.hpp>

#include <thread>

using namespace cairn_test;
using namespace std::chrono_literals;
using cairn::deadline;
using cairn::error_id;
using cairn::shared_memory_communicator;
using bytes = std::vector<std::byte>;

namespace {

static_assert(cairn::plays<shared_memory_communicator, cairn::role::communicator>);
static_assert(!std::copy_constructible<shared_memory_communicator>);
static_assert(std::is_nothrow_move_constructible_v<shared_memory_communicator>);

template <int Size, std::size_t RingBytes = 256 << 10>
struct process_env {
  static int size() { return Size; }
  template <class Body>
  void run(Body body) {
    const auto job = job_name();
    expect_good(process_ranks(Size).run([&](rank_process& me) {
      shared_memory_communicator comm(job, me.rank(), Size, {.ring_bytes = RingBytes});
      body(comm);
    }));
  }
};

/// All ranks as threads of the test itself.
template <int Size>
struct shared_thread_env {
  static int size() { return Size; }
  template <class Body>
  void run(Body body) {
    const auto job = job_name();
    std::vector<std::exception_ptr> thrown(Size);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < Size; ++rank)
      threads.emplace_back([&, rank] {
        try {
          shared_memory_communicator comm(job, rank, Size);
          body(comm);
        } catch (...) {
          thrown[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    threads.clear();
    for (const auto& each : thrown)
      if (each) std::rethrow_exception(each);
  }
};

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(communicator_conformance, process_env<1>, process_env<2>, process_env<4>,
                          process_env<8>, process_env<3, 4096>, shared_thread_env<1>, shared_thread_env<3>);
