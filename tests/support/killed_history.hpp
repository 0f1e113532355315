// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs in one directory that are killed one after another, and checks of what they promised.
#include "killed_runs.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace cairn_test {

/// Numbers of ranks.
inline constexpr int worlds[] = {1, 2, 4};

/// Random choices.
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

/// Where runs write: a kill loses no write, so memory serves as well as a disk.
inline const char* fast_directory() {
  return std::filesystem::exists("/dev/shm") ? "/dev/shm" : nullptr;
}

/// The names that this job has left in /dev/shm.
inline std::string names_left_in_shared_memory() {
  std::string found;
  std::error_code none;
  for (const auto& file : std::filesystem::directory_iterator("/dev/shm", none))
    if (file.path().filename().string().find(detail::process_world::prefix()) != std::string::npos)
      found += file.path().string() + " ";
  return found;
}

/// A directory in which runs are killed one after another, and what they reported as committed.
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
  /// The two halves of kill(), so that runs of several histories, each with a keeper of its own, are killed and waited
  /// for at the same time.
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
      // That save may have failed, but the next one may not.
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
  /// The last runs, to find the cause of a failure.
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

}  // namespace cairn_test
