// SPDX-License-Identifier: Apache-2.0
// group: checkpoints
// threaded
// cost: 25
// The commit, its fences, removal, what retention chooses, setting aside and what a new run cleans up, on a store whose
// requests go astray, in orders that seeds choose. A red one names its seed: CAIRN_TEST_SEED=seed repeats that one alone.
#include <doctest/doctest.h>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/commit/commit_protocol.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/safetensors_reader.hpp>

#include "support/figures.hpp"
#include "support/rounds.hpp"
#include "support/zombie_schedules.hpp"
#include "support/zombie_store.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {
using namespace cairn_test;
using namespace cairn_test::zombies;
using cairn::error_id;
}  // namespace

TEST_CASE(
    "zombies: lost and late requests and clients that die lose nothing that was reported as committed") {
  for (const bool crowded : {false, true}) {
    const auto f = try_schedules(rounds(1000, 50), {}, crowded);
    CHECK_MESSAGE(f.wrong.empty(), f.wrong);
    report_figures(crowded ? "zombies of one step" : "zombies", {{"schedules", f.schedules},
                                                                 {"requests", f.requests},
                                                                 {"commits", f.committed},
                                                                 {"linked files", f.linked}});
  }
}

TEST_CASE("zombies: without a property that the protocols rely on, the model finds a loss") {
  struct row {
    std::string broken;
    zombie_rules rules;
    std::uint64_t soon;  ///< a seed so much further finds it soon
  };
  const row rows[] = {
      {"looks from a cache that says that nothing is there",
       {.looks_are_fresh = false, .frozen_items = false},
       0},
      {"publishing by a look before", {.publishing_is_atomic = false, .frozen_items = false}, 13300},
      {"manifests that take effect after all else of their save is gone",
       {.manifests_die_with_marks = false, .frozen_items = false},
       6650},
      {"removals that look before alone", {.removals_compare = false, .frozen_items = false}, 15130},
  };
  for (const auto& row : rows) {
    CAPTURE(row.broken);
    // With any seed: the rarest of these losses is seen about once in 10,000 schedules.
    const auto f = try_schedules(200'000, row.rules, true, row.soon);
    CHECK(!f.wrong.empty());
    MESSAGE(row.broken << ": after " << f.schedules << " schedules, " << f.wrong);
  }
}
