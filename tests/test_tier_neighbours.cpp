// SPDX-License-Identifier: Apache-2.0
// links: cairn::links
// What the ranks of a job do with what others left in a local tier, and with plans and answers that come late: a killed
// neighbour's images, a host without descriptors, plans that come again, links that were silent for long, ranks that have
// nothing to write.
#include <cairn/cairn.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/links/thread_link.hpp>
#include <cairn/redundancy/partner_copies.hpp>
#include <cairn/redundancy/save_votes.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/local_tier.hpp>
#include <cairn/tiers/tier_directory.hpp>

#include <doctest/doctest.h>
#include <support/communicator_conformance.hpp>
#include <support/no_more_files.hpp>
#include <support/on_all_ranks.hpp>
#include <support/scratch_directory.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace cairn;
using namespace cairn_test;

namespace {

/// One rank of a run, with its lock, in a place that ranks of several hosts have.
struct place_of_rank {
  place_of_rank(const std::string& path, const run_id& run, std::int32_t rank) : at(path, nullptr) {
    at.spread();
    at.open({.run = run, .rank = rank, .world_size = 2, .job = "job"});
  }
  detail::tier_directory at;
};

checkpointer_options quiet() {
  return {.peer_timeout = std::chrono::minutes(2), .quiet = true};
}

}  // namespace

TEST_CASE(
    "what a killed rank held stays as long as its run goes on, and goes where the next run has it "
    "elsewhere") {
  const scratch_directory memory("/dev/shm");
  const auto path = memory.path() + "/host";
  const run_id first{.high = 1, .low = 2}, second{.high = 1, .low = 3};
  const detail::held_name held{.run = first, .attempt = 1, .step = 1, .world_size = 2, .rank = 1};
  {
    const place_of_rank zero(path, first, 0);
    std::optional<place_of_rank> one(std::in_place, path, first, 1);
    one->at.put_record(held, {});
    one->at.publish_record(held);
    CHECK_FALSE(zero.at.is_elsewhere(1));
    {
      const no_more_files limit;
      CHECK_FALSE(zero.at.is_elsewhere(1));  // as nobody can tell
    }
    one.reset();  // as when its process is killed: the kernel frees its lock
    CHECK_FALSE(zero.at.is_elsewhere(1));
    zero.at.remove_of_others();
    CHECK(zero.at.held_names().size() == 1);
  }
  const place_of_rank zero(path, second, 0);
  CHECK(zero.at.is_elsewhere(1));
  zero.at.remove_of_others();
  CHECK(zero.at.held_names().empty());
}

TEST_CASE("a rank that has nothing to write holds its saves as the others do") {
  for (const bool copies : {false, true}) {
    CAPTURE(copies);
    const scratch_directory memory("/dev/shm"), disk;
    const thread_group group(2);
    const thread_link_group links(2);
    on_all_ranks(2, [&](int rank) {
      std::vector<float> small(100, 1.0F);
      state_dict state;
      state.tensor("small", small, {100});  // all of it is written by one rank
      const local_tier_options options{.keep = 2, .copy = {.threads = 1}};
      const auto save = [&](auto& ckpt) {
        static_cast<void>(ckpt.resume(state));
        for (std::int64_t step = 1; step <= 8; ++step) {
          const auto made = ckpt.save(state, step);
          made.wait_held();
          if (copies) expect(made.wait_redundant(std::chrono::minutes(1)), "a save has no copies");
          if (step == 8) made.wait();
        }
        ckpt.close();
      };
      if (copies) {
        const auto host = memory.path() + "/host" + std::to_string(rank);
        checkpointer ckpt{file_store{disk.path()},
                          local_tier{host, options},
                          persist{.every = 8},
                          partner_copies{.failure_group = host},
                          links,
                          group.communicator(rank),
                          quiet()};
        save(ckpt);
      } else {
        checkpointer ckpt{file_store{disk.path()}, local_tier{memory.path() + "/host", options},
                          persist{.every = 8}, group.communicator(rank), quiet()};
        save(ckpt);
      }
    });
  }
}

TEST_CASE("a plan that comes again is on each host before its saves count as held") {
  const scratch_directory memory("/dev/shm"), disk;
  const thread_group group(2);
  const thread_link_group links(2);
  on_all_ranks(2, [&](int rank) {
    const auto host = memory.path() + "/host" + std::to_string(rank);
    checkpointer ckpt{file_store{disk.path()},
                      local_tier{host, {.keep = 1, .copy = {.threads = 1}}},
                      persist{.every = 1000},
                      partner_copies{.failure_group = host},
                      links,
                      group.communicator(rank),
                      quiet()};
    std::vector<float> most(200);
    const auto of_size = [&](std::int64_t n) {
      state_dict state;
      state.tensor("buffer", most.data(), {n});
      return state;
    };
    static_cast<void>(ckpt.resume(of_size(100)));
    // More plans than a tier keeps, and fewer than are known by their digests, in turn.
    for (std::int64_t step = 1; step <= 14; ++step) {
      const auto state = of_size(100 + step % 6);
      const auto save = ckpt.save(state, step);
      save.wait_held();
      expect(save.wait_redundant(std::chrono::minutes(1)), "a save has no copies");
    }
    static_cast<void>(ckpt.any_rank(false));
  });
}

TEST_CASE("a rank that heard nothing for hundreds of saves learns what became of its last one") {
  const thread_link_group group(2);
  any_peer_link upper(group.link(0)), lower(group.link(1));
  const auto go_on = [](bool) { return false; };
  detail::save_votes zero(upper, "test", std::chrono::seconds(1), go_on),
      one(lower, "test", std::chrono::seconds(1), go_on);
  using outcome = detail::save_votes::outcome;
  group.disturb(1, 0, {.what = link_fault::kind::half_open});
  CHECK(one.agree(1, deadline::in(std::chrono::milliseconds(50))) == outcome::unknown);
  for (std::uint64_t save = 1; save <= 2000; ++save) {
    zero.tell_gave_up(save, false);
    zero.withdraw_old();
  }
  group.disturb(1, 0, {});
  CHECK(one.ask(1) == outcome::given_up);
}
