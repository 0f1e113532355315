// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every way of saving, number of ranks and named point at which ranks or workers are killed.
#include "figures.hpp"
#include "kill_points.hpp"
#include "killed_history.hpp"
#include "killed_runs.hpp"
#include "scratch_directory.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test {

/// Where an earlier run was stopped; see named_points().
class past {
 public:
  past(run_keeper& keeper, int ranks_per_file) {
    const auto root = directory_.path() + "/past";
    const bool shares = ranks_per_file > 1;
    run_order order{
        .way = 3, .world = 2, .ranks_per_file = ranks_per_file, .resumes = false, .until = 11, .saves = {11}};
    REQUIRE(keeper.run(root, order).trouble == "");
    order.until = 15;
    order.saves = {10, 12, 15};
    REQUIRE(keeper.run(root, order).trouble == "");
    REQUIRE(keeper.log().acknowledged == 15);
    const auto manifest = root + "/" + cairn::manifest_key(15);
    std::filesystem::resize_file(manifest, std::filesystem::file_size(manifest) - 1);
    order.until = 25;
    order.saves = {25};
    order.victims = 3;
    order.way = 2;
    order.plan.at =
        event{moment::torn, file_call::pwrite, shares ? "rank-00000" : "rank-00001", ".safetensors"};
    REQUIRE(keeper.run(root, order).struck);
    order.way = 3;
    order.plan.at =
        event{moment::after, file_call::rename, "rank-00000", shares ? ".safetensors" : ".record"};
    REQUIRE(keeper.run(root, order).struck);
    int parts = 0, records = 0, data = 0;
    for (const auto& file : std::filesystem::directory_iterator(root + "/" + cairn::step_directory(25))) {
      parts += file.path().extension() == ".part";
      records += file.path().extension() == ".record";
      data += file.path().extension() == ".safetensors";
    }
    REQUIRE(parts >= 1);
    REQUIRE((shares ? records == 0 && data >= 1 : records >= 1));
  }
  /// Makes a copy of it, in place of the last one.
  [[nodiscard]] std::string copy() const {
    const auto to = directory_.path() + "/now";
    std::filesystem::remove_all(to);
    std::filesystem::copy(directory_.path() + "/past", to, std::filesystem::copy_options::recursive);
    return to;
  }

 private:
  scratch_directory directory_{fast_directory()};
};

/// One case: a way of saving, a number of ranks, a point, and who is killed there.
struct cell {
  /// `one`: the process that reaches the point; if that is a rank, the others are killed, too, and if it is a
  /// worker, they live on. `all`: all ranks and workers. `ranks`: all ranks, and their workers outlive them.
  enum who { one, all, ranks };
  std::size_t number;
  int way;
  int world;
  int ranks_per_file;
  named_point point;
  who dies;

  [[nodiscard]] std::string text() const {
    constexpr const char* names[] = {"one", "all", "ranks but no workers"};
    return std::string(ways_of_saving[way].in_process ? "CAIRN_TEST_WORKER_CELL=" : "CAIRN_TEST_CELL=") +
           std::to_string(number) + " (" + ways_of_saving[way].name + ", " + std::to_string(world) +
           " ranks, " + std::to_string(ranks_per_file) + " a file, " + names[dies] +
           " killed at: " + point.name + ")";
  }
};

/// The directories in which cells begin.
class pasts {
 public:
  explicit pasts(run_keeper& keeper) : alone_(keeper, 1), sharing_(keeper, 2) {}
  [[nodiscard]] const past& before(const cell& c) const { return c.ranks_per_file > 1 ? sharing_ : alone_; }

 private:
  past alone_, sharing_;
};

/// The run of a cell, in a copy of its past; true if it was killed.
inline bool kill_in(const cell& c, history& h, dice& d) {
  h.is_committed(12, 2);
  run_order order{
      .way = c.way, .world = c.world, .ranks_per_file = c.ranks_per_file, .until = 30, .saves = {20, 30}};
  order.plan = {.at = c.point.at, .gate = c.point.gate};
  order.victims = c.dies == cell::one ? 0 : (1u << c.world) - 1;
  order.workers_outlive = c.dies == cell::ranks;
  // A worker waits up to this timeout for the first rank that shares its file, if that rank died before its
  // worker had the save.
  if (order.workers_outlive && c.ranks_per_file > 1) order.timeout = std::chrono::seconds(20);
  order.last_calls = static_cast<std::int64_t>(d.roll(40));
  return h.kill(order);
}

/// Every cell of the ways from `first` to `last` - 1 in which the point can be reached.
inline std::vector<cell> all_cells(int first = 0, int last = ways) {
  std::vector<cell> cells;
  for (const int per_file : {1, 2})
    for (int way = first; way < last; ++way)
      for (const int world : worlds)
        for (const auto& p : named_points(per_file > 1)) {
          const std::string name = p.name;
          if (p.staged && !ways_of_saving[way].staged) continue;
          if (world < per_file) continue;
          if (world == 1 &&
              (name.find("other rank") != std::string::npos || name.find("both ranks") != std::string::npos ||
               name.find("common mark") != std::string::npos))
            continue;
          const bool workers = ways_of_saving[way].in_process;
          cells.push_back({cells.size(), way, world, per_file, p, cell::all});
          if (world > 1 || workers) cells.push_back({cells.size(), way, world, per_file, p, cell::one});
          if (workers) cells.push_back({cells.size(), way, world, per_file, p, cell::ranks});
        }
  return cells;
}

/// Shuffles the cells, so that each point comes once before any comes again.
inline void shuffle_cells(std::vector<cell>& cells) {
  std::mt19937_64 from(test_seed());
  std::shuffle(cells.begin(), cells.end(), from);
  std::set<std::string> once;
  std::stable_partition(cells.begin(), cells.end(),
                        [&](const cell& c) { return once.insert(c.point.name).second; });
}

}  // namespace cairn_test
