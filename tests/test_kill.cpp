// SPDX-License-Identifier: Apache-2.0
// group: files
// cost: 40
// A run of two ranks is killed with SIGKILL at every step of resume and save that has a name, and at every
// call that changes the disk. Whatever the moment: the next run loads the checkpoint that was being saved or
// the one before it, bit for bit, never an older one, and cleans up.
#include <doctest/doctest.h>
#include <cairn/cairn.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/stores/basic_file_store.hpp>

#include "support/kill_points.hpp"
#include "support/killed_trainer.hpp"
#include "support/sanitized.hpp"
#include "support/scratch_directory.hpp"
#include "support/still_threads.hpp"
#include "support/training_state.hpp"
#include "support/watched_file_system.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {
using namespace cairn_test;
using namespace cairn_test::killed_trainer;
namespace fs = std::filesystem;

// A fork of a sanitized process is slow: there, some of the points are enough.
constexpr std::uint64_t thinned = CAIRN_TEST_ADDRESS_SANITIZED ? 4 : 1;
}  // namespace

TEST_CASE("a run that is killed at any named step of resume and save loses nothing that was committed") {
  const past before_it;
  std::set<std::string> names;
  std::uint64_t others = 0;
  std::uint64_t kills = 0;
  for (const auto how : modes)
    for (const auto& point : named_points(how == mode::shared)) {
      if (point.staged && how == mode::unstaged) continue;
      // Each point in one way of saving at least.
      const bool only_here = how == mode::shared && std::string_view(point.name).starts_with("shared: ");
      if (how != mode::buffered && ++others % thinned != 0 && !point.staged && !only_here) continue;
      const std::string way = mode_names[static_cast<int>(how)];
      CAPTURE(way);
      const std::string point_name = point.name;
      CAPTURE(point_name);
      const shared_page page;
      const auto root = before_it.copy();
      REQUIRE(dies(root, {how, true, {20, 30}}, {.at = point.at, .gate = point.gate}, page));
      check_next_run(root, page, how == mode::buffered);
      names.insert(point.name);
      ++kills;
    }
  CHECK(names.size() >= 25);
  MESSAGE(names.size() << " named kill points, " << kills << " kills in four ways of saving");
}

TEST_CASE("a run that is killed at any call that changes the disk loses nothing that was committed") {
  const past before_it;
  std::set<std::string> places;
  std::uint64_t kills = 0;
  for (const auto how : modes) {
    const std::string way = mode_names[static_cast<int>(how)];
    CAPTURE(way);
    std::uint64_t changes = 0;
    {
      const shared_page page;
      const auto root = before_it.copy();
      REQUIRE_FALSE(dies(root, {how, true, {20, 30}}, {}, page));
      REQUIRE(page->acknowledged == 30);
      check_next_run(root, page, true);
      changes = page->changes;
    }
    REQUIRE(changes > 100);
    // All of them in one way of saving, some in the others, which differ only until the bytes are staged.
    const std::uint64_t stride = (how == mode::buffered ? 1 : 5) * thinned;
    std::uint64_t tried = 0;
    for (std::uint64_t k = 1; k <= changes; k += stride) {
      CAPTURE(k);
      const shared_page page;
      const auto root = before_it.copy();
      if (dies(root, {how, true, {20, 30}}, {.at = {}, .gate = {}, .change = k}, page)) {
        ++kills;
        places.insert(page->where);
      }
      check_next_run(root, page, tried++ % 10 == 0);
    }
  }
  CHECK(kills > 200 / thinned);
  CHECK(places.size() > 80 / thinned);
  MESSAGE(kills << " kills, at " << places.size() << " different calls");
}
