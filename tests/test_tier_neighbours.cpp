// SPDX-License-Identifier: Apache-2.0
// links: cairn::links
// What the ranks of a job do with what others left in a local tier, and with plans and answers that come late: a killed
// neighbour's images, a host without descriptors, plans that come again, links that were silent for long, ranks that have
// nothing to write, or that missed many saves, children that were forked meanwhile, a store that does not say who was
// there since.
#include <cairn/cairn.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/links/thread_link.hpp>
#include <cairn/redundancy/partner_copies.hpp>
#include <cairn/redundancy/save_votes.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/local_tier.hpp>
#include <cairn/tiers/tier_directory.hpp>

#include <doctest/doctest.h>
#include <support/communicator_conformance.hpp>
#include <support/faulty_store.hpp>
#include <support/no_more_files.hpp>
#include <support/on_all_ranks.hpp>
#include <support/scratch_directory.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
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

/// A tier in which no record finds room while `full`.
struct full_files : tier_files {
  std::atomic<bool> full{false};
  void put(const std::string& path, std::span<const std::byte> bytes) override {
    if (full && path.ends_with("/new-00000"))
      fail(error_id::storage_no_space, "the tier is full", {.file = path});
    tier_files::put(path, bytes);
  }
};
/// The oldest step of which a host has a record.
std::int64_t oldest_in(const std::string& host) {
  std::int64_t oldest = INT64_MAX;
  for (const auto& e : std::filesystem::directory_iterator(host))
    if (const auto held = detail::parse_held_name(e.path().filename().string()))
      oldest = std::min(oldest, held->step);
  return oldest;
}
/// Whether a descriptor of this process leads to an image. For children of processes that have threads: system calls alone.
bool has_image() {
  for (int file = 0; file < 1024; ++file) {
    char name[32], target[1024];
    std::snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    const auto bytes = ::readlink(name, target, sizeof target);
    if (bytes > 0 &&
        std::string_view(target, static_cast<std::size_t>(bytes)).find("/slot-") != std::string_view::npos)
      return true;
  }
  return false;
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

TEST_CASE("a rank that missed many saves agrees with the others again about what all hold") {
  const scratch_directory memory("/dev/shm"), disk;
  const thread_group group(2);
  const thread_link_group links(2);
  const auto files = std::make_shared<full_files>();
  std::atomic<bool> agreed{false};
  constexpr std::int64_t full_from = 4, full_until = 100;
  on_all_ranks(2, [&](int rank) {
    const auto host = memory.path() + "/host" + std::to_string(rank);
    local_tier_options options{.keep = 2, .copy = {.threads = 1}};
    if (rank == 0) options.files = files;
    auto plain = quiet();
    plain.max_consecutive_failures = 0;
    checkpointer ckpt{file_store{disk.path()},
                      local_tier{host, options},
                      persist{.every = 100'000},
                      partner_copies{.failure_group = host},
                      links,
                      group.communicator(rank),
                      plain};
    std::vector<float> part(1000);
    state_dict state;
    state.tensor("w", part, shard{{2000}, {1000 * rank}});
    static_cast<void>(ckpt.resume(state));
    const auto until = deadline::in(std::chrono::minutes(1));  // less than votes wait for each other
    bool all_newer = false;
    std::int64_t step = 0;
    do {
      ++step;
      if (rank == 0) files->full = step >= full_from && step < full_until;
      const auto save = ckpt.save(state, step);
      try {
        save.wait_held();
      } catch (const storage_error&) {
        expect(rank == 0 && files->full, "a save is not held");
      }
      // Until all hold a newer one, what this rank held before stays.
      all_newer = step > full_until && oldest_in(host) > full_from;
    } while (!ckpt.any_rank(rank == 1 && (all_newer || until.passed())));
    if (rank == 1) agreed = all_newer;
  });
  CHECK(agreed);
}

TEST_CASE("children that are forked while images are allocated do not keep them") {
  const scratch_directory memory("/dev/shm"), disk;
  std::atomic<bool> held{false};
  std::thread trainer([&] {
    std::vector<float> w(std::size_t{16} << 20);
    state_dict state;
    state.tensor("w", w, {static_cast<std::int64_t>(w.size())});
    checkpointer ckpt{file_store{disk.path()}, local_tier{memory.path() + "/host"}, persist{.every = 1000},
                      quiet()};
    ckpt.prepare(state);
    ckpt.save(state, 1).wait_held();
    held = true;
  });
  int with_images = 0;
  while (!held) {
    const auto child = ::fork();
    if (child == 0) ::_exit(has_image() ? 1 : 0);
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) != child) break;
    with_images += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  }
  trainer.join();
  CHECK(held);
  CHECK(with_images == 0);
}

TEST_CASE(
    "where the store does not tell who made its newest checkpoint, what is held is not taken for newer") {
  bool failed = true;
  for (std::uint64_t at = 0; failed; ++at) {
    CAPTURE(at);
    const scratch_directory memory("/dev/shm"), disk;
    const auto faults = std::make_shared<store_faults>();
    const auto run = [&](const std::string& host, std::uint64_t every, std::int64_t last) {
      std::vector<float> w(1000);
      state_dict state;
      state.tensor("w", w, {1000});
      checkpointer ckpt{faulty_store<file_store>{file_store{disk.path()}, faults},
                        local_tier{memory.path() + "/" + host, {.keep = 2, .copy = {.threads = 1}}},
                        persist{.every = every}, quiet()};
      const auto resumed = ckpt.resume(state).value_or(0);
      for (auto step = resumed + 1; step <= last; ++step) ckpt.save(state, step).wait();
      return resumed;  // as when its process is killed: what is held stays
    };
    CHECK(run("host", 1, 1) == 0);
    CHECK(run("host", 1000, 5) == 1);
    CHECK(run("elsewhere", 1, 2) == 1);
    faults->add(
        {.kind = store_call::read_all, .at = at, .key_contains = manifest_key(2), .action = [](auto key) {
           fail(error_id::storage_unavailable, "an injected fault", {.file = std::string(key)});
         }});
    const auto before = faults->triggered();
    std::int64_t resumed = 0;
    try {
      resumed = run("host", 1000, 0);
    } catch (const storage_error& e) {
      CHECK(e.id() == error_id::storage_unavailable);
    }
    CHECK(resumed <= 2);
    failed = faults->triggered() > before;
    CHECK((failed || resumed == 2));
  }
}
