// SPDX-License-Identifier: Apache-2.0
// group: checkpoints
// threaded
// What happens to one rank that comes to a save alone: with a save that gathers on rank 0, as many trainers
// write it, and with cairn's. docs/gather.md shows parts of this file.
#include <doctest/doctest.h>
#include <cairn/cairn.hpp>

#include "support/counting_communicator.hpp"
#include "support/on_all_ranks.hpp"

#include <chrono>
#include <latch>
#include <string>
#include <vector>

namespace {

using cairn_test::counting_communicator;

constexpr int ranks = 4;
constexpr std::int64_t numbers = 1000;  // of each rank

/// Runs body(communicator) on a thread for each rank.
template <class Body>
void on_each_rank(Body body) {
  const cairn::thread_group group(ranks);
  cairn_test::on_all_ranks(ranks, [&](int rank) { body(group.communicator(rank)); });
}

/// Counts a latch down at the end of a scope, also after an exception, so that nobody waits for ever.
struct at_end {
  std::latch& latch;
  bool done = false;
  void now() {
    if (!done) latch.count_down();
    done = true;
  }
  ~at_end() { now(); }
};

/// Collective: every rank sends its shard to rank 0, which writes all of them, and waits until they are saved.
template <class Write>
void gather_save(cairn::thread_communicator& comm, std::span<const float> shard, Write write,
                 cairn::deadline until) {
  if (comm.rank() != 0) {
    comm.send(0, std::as_bytes(shard), until);
    static_cast<void>(comm.receive(0, until));
    return;
  }
  write(std::as_bytes(shard));
  for (int rank = 1; rank < comm.size(); ++rank) write(comm.receive(rank, until));
  for (int rank = 1; rank < comm.size(); ++rank) comm.send(rank, {}, until);
}

/// Runs body(checkpointer, state, shard, message counts) on each rank, after all ranks have saved step 1. Rank 0 waits for
/// the others for `timeout`.
template <class Body>
void with_cairn(std::chrono::seconds timeout, Body body) {
  const cairn::memory_store store;
  on_each_rank([&](cairn::thread_communicator comm) {
    const auto rank = comm.rank();
    std::vector<float> shard(numbers, static_cast<float>(rank));
    cairn::state_dict state;
    state.tensor("weights", shard, cairn::shard{{numbers * ranks}, {numbers * rank}});
    counting_communicator counting(std::move(comm));
    const auto counts = counting.counts();
    cairn::checkpointer_options options{.timeout = std::chrono::minutes(5), .quiet = true};
    if (rank == 0) options.timeout = timeout;
    cairn::checkpointer ckpt{store, std::move(counting), options};
    ckpt.save(state, 1).wait();  // all ranks plan together
    body(ckpt, state, shard, *counts);
  });
}

}  // namespace

TEST_CASE("a save that gathers stands still where a rank does not come") {
  std::latch others_may_end(1);
  std::size_t bytes = 0;
  const auto write = [&](std::span<const std::byte> part) { bytes += part.size(); };
  on_each_rank([&](cairn::thread_communicator comm) {
    const std::vector<float> shard(numbers, 1.0f);
    gather_save(comm, shard, write, cairn::deadline::in(std::chrono::minutes(5)));
    if (comm.rank() != 0) {
      others_may_end.wait();  // alive, but not in a save
      return;
    }
    const at_end end{others_may_end};
    CHECK(bytes == numbers * ranks * sizeof(float));
    CHECK_THROWS_AS(gather_save(comm, shard, write, cairn::deadline::in(std::chrono::milliseconds(200))),
                    cairn::timeout_error);
  });
}

TEST_CASE("a save of shards sends nothing, waits for nobody, and is committed when the others have come") {
  std::latch others_may_come(1);
  with_cairn(std::chrono::minutes(5), [&](auto& ckpt, auto& state, auto& shard, auto& counts) {
    if (ckpt.rank() != 0) {
      others_may_come.wait();
      ckpt.save(state, 2).wait();
      return;
    }
    at_end come{others_may_come};
    const auto before = counts.sent.load();
    auto handle = ckpt.save(state, 2);  // the other ranks are not in a save
    CHECK(counts.sent == before);
    for (int update = 0; update < 100; ++update)
      for (auto& weight : shard) weight *= 0.99f;
    CHECK_FALSE(handle.committed());
    come.now();
    handle.wait();
    CHECK(handle.committed());
  });
}

TEST_CASE("a save to which the others never come ends at its deadline and names who is missing") {
  std::latch others_may_end(1);
  with_cairn(std::chrono::seconds(5), [&](auto& ckpt, auto& state, auto&, auto&) {
    if (ckpt.rank() != 0) {
      others_may_end.wait();
      CHECK(ckpt.list() == std::vector<std::int64_t>{1});  // a collective call: the ranks are still together
      return;
    }
    at_end end{others_may_end};
    auto handle = ckpt.save(state, 2);
    try {
      handle.wait();
      FAIL_CHECK("the save was committed without the other ranks");
    } catch (const cairn::peer_error& e) {
      CHECK(e.id() == cairn::error_id::peer_lost);
      CHECK(e.fields().rank == 1);
    }
    end.now();
    CHECK(ckpt.list() == std::vector<std::int64_t>{1});
  });
}

TEST_CASE(
    "after a save() that one rank called alone, the next one says that the ranks have counted otherwise") {
  std::latch others_have_written(ranks - 1);
  std::latch others_may_end(1);
  with_cairn(std::chrono::seconds(5), [&](auto& ckpt, auto& state, auto&, auto&) {
    const bool alone = ckpt.rank() == 0;
    // Refused at once, so that nobody waits for its deadline, and counted all the same.
    if (alone) CHECK_THROWS_AS(ckpt.save(state, -1), cairn::usage_error);
    if (!alone) {
      at_end written{others_have_written};
      auto handle = ckpt.save(state, 3);
      handle.wait_written();
      written.now();
      others_may_end.wait();
      ckpt.remove(3);  // else they would wait for five minutes
      CHECK_FALSE(handle.committed());
      return;
    }
    at_end end{others_may_end};
    others_have_written.wait();
    auto handle = ckpt.save(state, 3);
    try {
      handle.wait();
      FAIL_CHECK("a save was committed as two saves of a run");
    } catch (const cairn::peer_error& e) {
      CHECK(e.id() == cairn::error_id::peer_lost);
      CHECK(e.fields().rank == 1);
      CHECK(e.fields().got == "save 2");
      CHECK(e.fields().expected == "save 3 of this run");
      CHECK(std::string(e.what()).find("a save() was not called on all ranks") != std::string::npos);
    }
    end.now();
    ckpt.remove(3);
  });
}
