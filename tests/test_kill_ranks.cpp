// SPDX-License-Identifier: Apache-2.0
// optimised
// timeout: 1500
// links: cairn::interprocess
// cost: 30
// Ranks are processes, and one of them, some or all are killed with SIGKILL, at every step of resume and save
// that has a name, at any call that changes the disk, and at any time, in every way of saving. Whatever the
// moment: the next run, on another number of ranks, loads the checkpoint that was being saved or the last one
// that was told as committed, trains on as if nothing had happened, and leaves nothing behind.
//
//   CAIRN_TEST_SEED=N     other cases; a red one prints the seed that repeats it
//   CAIRN_TEST_CELL=N     that cell of the matrix alone; CAIRN_TEST_WORKER_CELL=N: of that with workers
//   CAIRN_TEST_KILLS=N    how many random kills
//   CAIRN_TEST_SECONDS=N  and more and more of them, until so long has passed; cells with workers, no longer
//   CAIRN_TEST_FIGURES=F  appends the figures to a file
#include <doctest/doctest.h>

#include "support/figures.hpp"
#include "support/kill_matrix.hpp"
#include "support/killed_history.hpp"
#include "support/killed_runs.hpp"
#include "support/rounds.hpp"
#include "support/sanitized.hpp"
#include "support/scratch_directory.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace cairn_test;
namespace fs = std::filesystem;

// A fork of a sanitized process is slow: there, some of the cases are enough.
constexpr std::uint64_t thinned = CAIRN_TEST_ADDRESS_SANITIZED ? 8 : 1;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TEST_CASE("ranks that are killed at a named step of resume and save, in any way of saving, lose nothing") {
  const auto begin = std::chrono::steady_clock::now();
  run_keeper keeper;
  const pasts earlier(keeper);
  auto cells = all_cells();
  const auto whole = cells.size();
  std::set<std::string> names;
  for (const auto& c : cells) names.insert(c.point.name);
  if (const char* one = std::getenv("CAIRN_TEST_CELL")) {
    cells = {cells.at(std::strtoull(one, nullptr, 10))};
  } else {
    shuffle_cells(cells);
    if (!long_run()) cells.resize(std::min<std::size_t>(cells.size(), 90 / thinned));
  }
  std::uint64_t failures = 0, shared = 0;
  std::set<std::string> reached;
  for (const auto& c : cells) {
    dice d(test_seed() ^ (c.number * 1'000));
    history h(keeper, earlier.before(c).copy());
    const bool struck = kill_in(c, h, d);
    if (struck) reached.insert(c.point.name);
    h.recover({.way = static_cast<int>(d.roll(ways)),
               .world = d.world_but(c.world),
               .ranks_per_file = static_cast<int>(1 + d.roll(2)),
               .until = 40,
               .saves = {40}});
    CHECK_MESSAGE(struck, c.text(), ": was not reached\n", h.trace());
    CHECK_MESSAGE(h.trouble() == "", c.text(), " and CAIRN_TEST_SEED=", test_seed(), " repeat it\n",
                  h.trace());
    failures += !struck || h.trouble() != "";
    shared += c.ranks_per_file > 1;
    if (failures > 5) break;
  }
  CHECK(reached.size() >= std::min<std::size_t>(cells.size() / 2, names.size()));
  report_figures("kill_matrix", {{"cells", cells.size()},
                                 {"cells_in_all", whole},
                                 {"of_shared_files", shared},
                                 {"points", reached.size()},
                                 {"failures", failures},
                                 {"seed", test_seed()},
                                 {"seconds", static_cast<std::uint64_t>(seconds_since(begin))}});
}

TEST_CASE(
    "ranks that are killed at any moment, again and again, resume on other numbers of ranks and lose "
    "nothing") {
  const auto begin = std::chrono::steady_clock::now();
  const char* text = std::getenv("CAIRN_TEST_KILLS");
  const auto wanted = text != nullptr ? std::strtoull(text, nullptr, 10) : 200 / thinned;
  text = std::getenv("CAIRN_TEST_SECONDS");
  const auto seconds = text != nullptr ? std::strtod(text, nullptr) : 0;
  run_keeper keeper;
  std::uint64_t kills = 0, ranks = 0, nested = 0, in_resume = 0, at_events = 0, failures = 0, too_late = 0;
  const auto goes_on = [&] { return kills < wanted || seconds_since(begin) < seconds; };
  for (std::uint64_t round = 0; goes_on() && failures == 0; ++round) {
    const auto seed = test_seed() + round;  // of a directory's whole history
    dice d(seed);
    const scratch_directory directory(fast_directory());
    history h(keeper, directory.path() + "/checkpoints");
    const std::size_t keep = 1 + d.roll(3);
    int world = worlds[d.roll(3)];
    for (int i = 0; i < 25 && goes_on() && h.trouble() == ""; ++i) {
      const auto make_order = [&] {
        run_order order{.way = static_cast<int>(d.roll(ways)), .world = world, .keep = keep, .until = 3};
        order.relative = true;
        order.ranks_per_file = round % 2 == 0 ? 1 : 2;
        order.waits = d.roll(2) == 0;
        order.last_calls = static_cast<std::int64_t>(d.roll(40));
        const auto whole = (1u << world) - 1;
        order.victims = d.roll(2) == 0 ? whole : 1 + static_cast<unsigned>(d.roll(whole));
        if (d.roll(2) == 0) {
          order.at_rank = static_cast<int>(d.roll(static_cast<std::uint64_t>(world)));
          order.plan.change = 1 + d.roll(order.at_rank == 0 ? 140 : 70);
        } else {
          order.at_time = std::chrono::microseconds(d.roll(20'000) * thinned);
        }
        order.grace = std::chrono::microseconds(d.roll(5'000));
        return order;
      };
      const auto order = make_order();
      bool struck = h.kill(order);
      at_events += struck && !order.at_time;
      in_resume += h.killed_while_resuming();
      ranks += static_cast<std::uint64_t>(h.ranks_killed());
      world = d.world_but(world);
      // Sometimes the next run is killed as well, while it cleans up.
      if (struck && d.roll(4) == 0) {
        auto again = make_order();
        if (!again.at_time) again.plan.change = 1 + d.roll(30);
        const bool twice = h.kill(again);
        nested += twice;
        in_resume += h.killed_while_resuming();
        ranks += static_cast<std::uint64_t>(h.ranks_killed());
        world = d.world_but(world);
      }
      kills += struck;
      too_late += !struck;
      run_order next{.way = static_cast<int>(d.roll(ways)), .world = world, .keep = keep, .until = 1};
      next.relative = true;
      next.ranks_per_file = round % 4 == 0 ? 1 : 2;
      h.recover(next);
      world = d.world_but(world);
    }
    CHECK_MESSAGE(h.trouble() == "", "CAIRN_TEST_SEED=", seed, " repeats it\n", h.trace());
    failures += h.trouble() != "";
  }
  report_figures("random_kills", {{"kills", kills},
                                  {"killed_again_before_they_had_recovered", nested},
                                  {"while_resuming", in_resume},
                                  {"at_counted_calls", at_events},
                                  {"ranks_killed", ranks},
                                  {"ended_before_the_kill", too_late},
                                  {"failures", failures},
                                  {"seed", test_seed()},
                                  {"seconds", static_cast<std::uint64_t>(seconds_since(begin))}});
}

TEST_CASE("ranks and workers that are killed while workers save lose nothing; ranks outlive their workers") {
  const auto begin = std::chrono::steady_clock::now();
  run_keeper keeper;
  const pasts earlier(keeper);
  auto cells = all_cells(way_of_workers, way_of_workers + 1);
  const auto whole = cells.size();
  if (const char* one = std::getenv("CAIRN_TEST_WORKER_CELL")) {
    cells = {cells.at(std::strtoull(one, nullptr, 10))};
  } else {
    shuffle_cells(cells);
    // Each kind of death in turn; only one process dies where that is likely to be a worker.
    std::vector<cell> kinds[3];
    for (const auto& c : cells) kinds[c.dies].push_back(c);
    std::stable_partition(kinds[cell::one].begin(), kinds[cell::one].end(),
                          [](const cell& c) { return c.point.at.path == "step-00000020"; });
    cells.clear();
    for (std::size_t i = 0; cells.size() < whole; ++i)
      for (const auto& kind : kinds)
        if (i < kind.size()) cells.push_back(kind[i]);
    if (!long_run()) cells.resize(std::min<std::size_t>(cells.size(), 32 / thinned));
  }
  std::uint64_t failures = 0, tried = 0, outlived = 0, ranks = 0;
  const char* text = std::getenv("CAIRN_TEST_SECONDS");
  const auto seconds = text != nullptr ? std::strtod(text, nullptr) : 1e9;
  for (const auto& c : cells) {
    if (failures > 5 || (tried >= 32 / thinned && seconds_since(begin) > seconds)) break;
    ++tried;
    dice d(test_seed() ^ (c.number * 1'000));
    history h(keeper, earlier.before(c).copy());
    const bool struck = kill_in(c, h, d);
    outlived += keeper.log().struck == blow::worker;
    ranks += static_cast<std::uint64_t>(h.ranks_killed());
    // Whether it waits for a worker or ends its save is decided by the time that it has: both are right.
    h.recover({.way = d.roll(2) == 0 ? way_of_workers : static_cast<int>(d.roll(ways)),
               .world = d.world_but(c.world),
               .ranks_per_file = static_cast<int>(1 + d.roll(2)),
               .until = 40,
               .saves = {40},
               .earlier_run_timeout = std::chrono::milliseconds(d.roll(4) == 0 ? 1'000 : 100)});
    CHECK_MESSAGE(struck, c.text(), ": was not reached\n", h.trace());
    CHECK_MESSAGE(h.trouble() == "", c.text(), " and CAIRN_TEST_SEED=", test_seed(), " repeat it\n",
                  h.trace());
    failures += !struck || h.trouble() != "";
  }
  report_figures("kill_matrix_of_workers", {{"cells", tried},
                                            {"cells_in_all", whole},
                                            {"ranks_killed", ranks},
                                            {"runs_that_outlived_a_worker", outlived},
                                            {"failures", failures},
                                            {"seed", test_seed()},
                                            {"seconds", static_cast<std::uint64_t>(seconds_since(begin))}});
}

namespace {
/// A history of its own, of those whose ranks wait for a dead one at the same time.
struct lonely {
  explicit lonely(std::uint64_t which) : number(which), d(test_seed() + which) {}
  std::uint64_t number;
  dice d;
  run_keeper keeper;
  scratch_directory directory{fast_directory()};
  history h{keeper, directory.path() + "/checkpoints"};
  run_order order;
  int world_after = 0;

  /// Ends by the deadline when the rank that is drawn is killed.
  run_order& draw(run_order shared, std::uint64_t first_change, std::uint64_t of_first,
                  std::uint64_t of_other) {
    order = std::move(shared);
    order.world = number % 2 == 0 ? 2 : 4;
    order.until = 4;
    order.relative = true;
    order.timeout = std::chrono::milliseconds(1'000);
    order.survivors_end = true;
    order.at_rank = static_cast<int>(d.roll(static_cast<std::uint64_t>(order.world)));
    order.plan.change = first_change + d.roll(order.at_rank == 0 ? of_first : of_other);
    return order;
  }
  void check() const {
    CHECK_MESSAGE(h.trouble() == "", "CAIRN_TEST_SEED=", test_seed() + number, " repeats it\n", h.trace());
  }
};

/// `count` of them, eight at a time: one stage for each, then the next: no run is checked for what it leaves
/// behind while another one is still there.
template <class... Stage>
void side_by_side(std::uint64_t count, Stage... stage) {
  for (std::uint64_t done = 0; done < count;) {
    std::vector<std::unique_ptr<lonely>> some;
    for (; done < count && some.size() < 8; ++done) some.push_back(std::make_unique<lonely>(done));
    const auto pass = [&](auto& next) {
      for (auto& each : some) next(*each);
    };
    (pass(stage), ...);
  }
}
}  // namespace

TEST_CASE("ranks whose peer is killed end by the deadline with an error, and nothing is lost") {
  std::uint64_t told = 0;
  side_by_side(
      rounds(2, 8),
      [](lonely& one) {
        const auto way = static_cast<int>((test_seed() + one.number) % ways);
        one.h.begin_to_kill(one.draw({.way = way}, 10, 50, 20));
      },
      [&](lonely& one) {
        one.h.killed();
        for (int r = 0; r < one.order.world; ++r) told += one.keeper.log().rank[r].error[0] != 0;
      },
      [](lonely& one) {
        one.h.recover({.world = one.d.world_but(one.order.world), .until = 1, .relative = true});
        one.check();
      });
  CHECK(told > 0);
}

TEST_CASE(
    "a run that begins while ranks of a killed one are still there takes nothing from it, nor it from that") {
  std::uint64_t failed_saves = 0, failures = 0, runs = 0;
  side_by_side(
      rounds(8) / (thinned > 1 ? 4 : 1),
      [](lonely& one) {
        one.h.recover({.world = worlds[one.d.roll(3)], .keep = 3, .until = 2, .relative = true});
      },
      [](lonely& one) {
        const auto way = static_cast<int>(one.d.roll(ways));
        const auto& order = one.draw({.way = way, .keep = 3}, 1, 60, 30);
        run_order next{.way = static_cast<int>(one.d.roll(ways)),
                       .world = one.d.world_but(order.world),
                       .keep = 3,
                       .until = 3,
                       .relative = true,
                       .has_rival = true};
        one.world_after = next.world;
        one.h.begin_to_kill_and_begin_again(order, next);
      },
      [&](lonely& one) { one.h.both_ended(); },
      [&](lonely& one) {
        one.h.recover({.world = one.d.world_but(one.world_after), .keep = 3, .until = 1, .relative = true});
        one.check();
        failures += one.h.trouble() != "";
        ++runs;
        failed_saves += one.h.trace().find("cairn.storage") != std::string::npos;
      });
  report_figures("survivors", {{"runs_beside_survivors", runs},
                               {"with_a_failed_save", failed_saves},
                               {"failures", failures},
                               {"seed", test_seed()}});
}

TEST_CASE("the checks of these tests see what they look for") {
  run_keeper keeper;
  const past before_it(keeper, 1);
  run_order order{.world = 2, .until = 30, .saves = {20, 30}};
  order.victims = 3;
  order.plan.at = event{moment::torn, file_call::pwrite, "step-00000020", ".safetensors"};
  const run_order next{.until = 40, .saves = {40}};
  const auto certificate_problem_of = [&](const run_order& killed, const run_order& recovering) {
    history h(keeper, before_it.copy());
    h.is_committed(12, 2);
    REQUIRE(h.kill(killed));
    h.recover(recovering);
    return h.trouble();
  };
  CHECK(certificate_problem_of(order, next) == "");
  auto early = order;
  early.tells_too_early = true;
  CHECK(certificate_problem_of(early, next).find("was told as committed") != std::string::npos);
  auto littering = next;
  littering.removes_nothing = true;
  CHECK(certificate_problem_of(order, littering).find("left behind") != std::string::npos);

  toy_training toy(0, 1);
  toy.update();
  CHECK(toy.wrong(1) == "");
  CHECK(toy.loss() == toy_training::expected_loss(1));
  CHECK(toy.wrong(2) != "");
  CHECK(toy.loss() != toy_training::expected_loss(2));
}

/// Called by main() before anything else.
void cairn_test_before_main(int argc, char** argv) {
  cairn_test::serve_killed_runs(argc, argv);
}
