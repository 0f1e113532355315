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

constexpr int worlds[] = {1, 2, 4};

class dice {
 public:
  explicit dice(std::uint64_t seed) : from_(seed) {}
  /// 0 to n - 1.
  std::uint64_t roll(std::uint64_t n) { return from_() % n; }
  int world_but(int other) {
    for (;;)
      if (const int w = worlds[roll(3)]; w != other) return w;
  }

 private:
  std::mt19937_64 from_;
};

// A kill loses no write, so memory serves as well as a disk.
const char* fast_directory() {
  return fs::exists("/dev/shm") ? "/dev/shm" : nullptr;
}

std::string names_left_in_shared_memory() {
  std::string found;
  std::error_code none;
  for (const auto& file : fs::directory_iterator("/dev/shm", none))
    if (file.path().filename().string().find(cairn_test::detail::process_world::prefix()) !=
        std::string::npos)
      found += file.path().string() + " ";
  return found;
}

/// A directory in which runs are killed one after the other, and what was promised of it.
class history {
 public:
  history(run_keeper& keeper, std::string root) : keeper_(keeper), root_(std::move(root)) {}

  [[nodiscard]] const std::string& root() const { return root_; }
  /// Adds a run that was made elsewhere.
  void is_committed(std::int64_t step, int world) {
    promised_ = begun_ = std::max(promised_, step);
    writers_[step] = world;
  }

  /// Starts a run that is to be killed. False if it ended before.
  bool kill(run_order order) {
    begin_to_kill(std::move(order));
    return killed();
  }
  /// The two halves of kill(): the runs of several histories, each with a keeper of its own, wait for what is
  /// gone at the same time.
  void begin_to_kill(run_order order) {
    order.writers = writers_;
    dying_ = std::move(order);
    keeper_.start(root_, dying_);
  }
  bool killed() {
    const auto& order = dying_;
    const auto end = keeper_.finish();
    note(order, end);
    const bool lost_a_worker = keeper_.log().struck == blow::worker;
    bool whole = !end.struck || lost_a_worker;
    if (order.may_be_late())
      for (int r = 0; r < order.world; ++r) whole = whole && keeper_.log().rank[r].error[0] == 0;
    if (whole) check_values(order, true);
    if (lost_a_worker) {
      // That save may have failed; the next one may not.
      for (int r = 0; r < order.world; ++r)
        if (!keeper_.log().rank[r].ended) wrong("rank " + std::to_string(r) + " did not outlive a worker");
      if (keeper_.log().acknowledged != order.saves.back())
        wrong("the save after the one that lost its worker was not committed");
    }
    return end.struck;
  }
  /// begin_to_kill(), and while survivors are still there, another run begins and saves.
  void begin_to_kill_and_begin_again(run_order order, run_order next) {
    next.writers = writers_;
    begin_to_kill(std::move(order));
    keeper_.wait_for_one();
    promised_beside_ = std::max<std::int64_t>(promised_, keeper_.log().acknowledged);
    beside_ = std::move(next);
    second_ = std::make_unique<run_keeper>();
    second_->start(root_, beside_);
  }
  /// Its second half: waits for the other run, which waits for saves of the survivors, and for these.
  void both_ended() {
    const auto after = second_->finish();
    const auto before = keeper_.finish();
    auto writers = writers_;
    note(dying_, before);
    writers.swap(writers_);
    note(second_->log(), beside_, after);
    for (const auto& [step, world] : writers) {
      const auto [at, first] = writers_.try_emplace(step, world);
      if (!first) at->second = std::min(at->second, world);
    }
    if (second_->log().rank[0].resumed < promised_beside_)
      wrong("the run beside the survivors resumed an older step");
    second_.reset();
  }
  /// The next run, until a new checkpoint is committed. `until`: counted as the order's.
  void recover(run_order order) {
    order.writers = writers_;
    const auto promised = promised_;
    const auto end = keeper_.run(root_, order);
    const auto& log = keeper_.log();
    note(order, end);
    if (!run_keeper::wait_for_workers()) wrong("a worker did not end");
    if (end.struck) wrong("a run was killed that should not be");
    const auto resumed = log.rank[0].resumed.load();
    for (int r = 0; r < order.world; ++r) {
      if (!log.rank[r].ended) wrong("rank " + std::to_string(r) + " did not end: " + log.rank[r].error);
      if (log.rank[r].resumed != resumed) wrong("ranks resumed from different steps");
    }
    if (std::max<std::int64_t>(resumed, 0) < promised)
      wrong("step " + std::to_string(promised) + " was told as committed, and resume gave " +
            std::to_string(resumed));
    if (resumed > 0 && writers_.count(resumed) == 0) wrong("a step was resumed that nobody saved");
    check_values(order, true);
    const auto last = order.relative ? std::max<std::int64_t>(resumed, 0) + order.until : order.until;
    if (log.acknowledged != last) wrong("the last save was not committed");
    check_disk(order, resumed, last);
  }

  [[nodiscard]] const std::string& trouble() const { return trouble_; }
  /// The last runs, for whoever looks for the cause.
  [[nodiscard]] std::string trace() const {
    std::string text = "in " + root_ + ":";
    for (const auto& line : lines_) text += "\n  " + line;
    return text;
  }
  [[nodiscard]] int ranks_killed() const { return ranks_killed_; }
  [[nodiscard]] bool killed_while_resuming() const { return while_resuming_; }

 private:
  void wrong(const std::string& what) { trouble_ += what + "; "; }

  void note(const run_order& order, const run_end& end) { note(keeper_.log(), order, end); }
  void note(const run_log& log, const run_order& order, const run_end& end) {
    promised_ = std::max<std::int64_t>(promised_, log.acknowledged);
    begun_ = std::max<std::int64_t>(begun_, log.begun);
    // Some ranks may have resumed and saved while others were still resuming.
    auto resumed = run_log::rank_log::not_yet;
    for (int r = 0; r < order.world; ++r) resumed = std::max(resumed, log.rank[r].resumed.load());
    while_resuming_ = order.resumes && end.struck && resumed == run_log::rank_log::not_yet;
    const auto first = order.resumes ? std::max<std::int64_t>(resumed, 0) : 0;
    for (auto step = first + 1; step <= log.begun; ++step)
      if (order.relative || std::count(order.saves.begin(), order.saves.end(), step) != 0)
        writers_[step] = order.world;
    ranks_killed_ = end.killed;
    std::string line = std::to_string(order.world) + " ranks, " + ways_of_saving[order.way].name +
                       ", resumed " + std::to_string(resumed) + ", begun " + std::to_string(log.begun) +
                       ", acknowledged " + std::to_string(log.acknowledged);
    if (end.struck)
      line += ", " + std::to_string(end.killed) + " killed at " + log.where +
              (order.survivors_end ? ", the others ended" : "");
    for (int r = 0; r < order.world; ++r)
      if (log.rank[r].error[0] != 0) line += ", rank " + std::to_string(r) + ": " + log.rank[r].error;
    if (!end.trouble.empty()) wrong(end.trouble);
    lines_.push_back(line + (end.trouble.empty() ? "" : ": " + end.trouble));
    if (lines_.size() > 8) lines_.erase(lines_.begin());
  }

  /// The losses of all ranks together are those of a run that nobody killed.
  void check_values(const run_order& order, bool whole) {
    static std::map<std::int64_t, std::uint64_t> expected;
    std::map<std::int64_t, std::pair<int, std::uint64_t>> sums;
    for (int r = 0; r < order.world; ++r) {
      const auto& log = keeper_.log().rank[r];
      for (std::uint32_t i = 0; i < log.losses; ++i) {
        auto& sum = sums[log.loss[i].first];
        ++sum.first;
        sum.second += log.loss[i].second;
      }
    }
    for (const auto& [step, sum] : sums) {
      const auto at = expected.find(step);
      const auto loss =
          at != expected.end() ? at->second : expected[step] = toy_training::expected_loss(step);
      if (sum.first == order.world ? sum.second != loss : whole)
        wrong("the loss after update " + std::to_string(step) + " is another one");
    }
    if (whole && sums.empty()) wrong("nothing was trained");
  }

  void check_disk(const run_order& order, std::int64_t resumed, std::int64_t last) {
    const auto steps = cairn::checkpoint_catalog(std::make_shared<cairn::file_store>(root_)).list();
    const auto kept = static_cast<std::size_t>(std::count(steps.begin(), steps.end(), resumed));
    // Besides the newest, the one that the run resumed from.
    if (steps.empty() || steps.back() != last || steps.size() > order.keep + 1)
      wrong("there are " + std::to_string(steps.size()) + " checkpoints, the newest of step " +
            std::to_string(steps.empty() ? 0 : steps.back()));
    if (resumed > 0 && kept != 1) wrong("the checkpoint that was resumed is gone");
    if (const auto found = litter(root_, true); !found.empty()) wrong("left behind: " + found);
    if (const auto found = names_left_in_shared_memory(); !found.empty()) wrong("left behind: " + found);
  }

  run_keeper& keeper_;
  std::string root_;
  std::int64_t promised_ = 0;
  std::int64_t begun_ = 0;
  std::map<std::int64_t, int> writers_;
  std::string trouble_;
  std::vector<std::string> lines_;
  int ranks_killed_ = 0;
  bool while_resuming_ = false;
  // Between the halves.
  run_order dying_;
  run_order beside_;
  std::int64_t promised_beside_ = 0;
  std::unique_ptr<run_keeper> second_;
};

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
    fs::resize_file(manifest, fs::file_size(manifest) - 1);
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
    for (const auto& file : fs::directory_iterator(root + "/" + cairn::step_directory(25))) {
      parts += file.path().extension() == ".part";
      records += file.path().extension() == ".record";
      data += file.path().extension() == ".safetensors";
    }
    REQUIRE(parts >= 1);
    REQUIRE((shares ? records == 0 && data >= 1 : records >= 1));
  }
  /// A copy of it, in place of the last one.
  [[nodiscard]] std::string copy() const {
    const auto to = directory_.path() + "/now";
    fs::remove_all(to);
    fs::copy(directory_.path() + "/past", to, fs::copy_options::recursive);
    return to;
  }

 private:
  scratch_directory directory_{fast_directory()};
};

struct cell {
  /// `one`: the process where the moment comes; the rest goes, too, where that is a rank, and lives on where
  /// it is a worker. `all`: with their workers, if any. `ranks`: their workers outlive them.
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

/// What comes before each cell.
class pasts {
 public:
  explicit pasts(run_keeper& keeper) : alone_(keeper, 1), sharing_(keeper, 2) {}
  [[nodiscard]] const past& before(const cell& c) const { return c.ranks_per_file > 1 ? sharing_ : alone_; }

 private:
  past alone_, sharing_;
};

/// The run of a cell, in a copy of its past; true if it was killed.
bool kill_in(const cell& c, history& h, dice& d) {
  h.is_committed(12, 2);
  run_order order{
      .way = c.way, .world = c.world, .ranks_per_file = c.ranks_per_file, .until = 30, .saves = {20, 30}};
  order.plan = {.at = c.point.at, .gate = c.point.gate};
  order.victims = c.dies == cell::one ? 0 : (1u << c.world) - 1;
  order.workers_outlive = c.dies == cell::ranks;
  // A worker may wait so long for the first of those that share its file, which died before its own had the
  // save.
  if (order.workers_outlive && c.ranks_per_file > 1) order.timeout = std::chrono::seconds(20);
  order.last_calls = static_cast<std::int64_t>(d.roll(40));
  return h.kill(order);
}

/// Every cell of the ways from `first` to `last` - 1 in which the point can be reached.
std::vector<cell> all_cells(int first = 0, int last = ways) {
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

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The cells in another order, each point once before any comes again.
void shuffle_cells(std::vector<cell>& cells) {
  std::mt19937_64 from(test_seed());
  std::shuffle(cells.begin(), cells.end(), from);
  std::set<std::string> once;
  std::stable_partition(cells.begin(), cells.end(),
                        [&](const cell& c) { return once.insert(c.point.name).second; });
}

}  // namespace

/// Called by main() before anything else.
void cairn_test_before_main(int argc, char** argv) {
  cairn_test::serve_killed_runs(argc, argv);
}

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
