// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs of two ranks on a disk in memory, and checks of every state that a power loss may leave of it.
#include "figures.hpp"
#include "recording_file_system.hpp"
#include "training_state.hpp"
#include "watched_file_system.hpp"

#include <cairn/cairn.hpp>
#include <cairn/stores/basic_file_store.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace cairn_test::power_loss {

/// A file system in memory, whose fsyncs a site_watch counts.
using file_system = watched_file_system<recording_file_system>;
using store = cairn::basic_file_store<file_system>;

inline constexpr cairn::file_store_options small_requests{.writes_in_flight = 1, .reads_in_flight = 1};
inline constexpr training_sizes sizes{.weights = 600, .rows = 5};
inline const cairn::checkpointer_options quiet{
    .timeout = std::chrono::seconds(60), .peer_timeout = std::chrono::seconds(60), .quiet = true};

/// The places in the code that ask for an fsync, by what was done just before.
enum class site : std::uint8_t {
  data_bytes,
  record_bytes,
  manifest_bytes,
  mark_bytes,     ///< of marks of ended attempts and of the ranks' common mark
  new_directory,  ///< the entry of a new directory in the one above
  data_name,
  record_name,
  manifest_name,
  mark_name,
  manifest_removal,
  other_removal,  ///< of data, records, marks
  directory_removal,
  count
};
inline constexpr const char* const site_names[] = {"data bytes",       "record bytes",  "manifest bytes",
                                                   "mark bytes",       "new directory", "data name",
                                                   "record name",      "manifest name", "mark name",
                                                   "manifest removal", "other removal", "directory removal"};

/// Counts fsyncs by their site, and takes those of one site out.
class site_watch final : public file_watch {
 public:
  /// Whether the coordinator's note that a manifest's name lasts can be made.
  enum class notes : std::uint8_t { kept, lost };
  explicit site_watch(std::optional<site> ignored = {}, notes n = notes::kept)
      : ignored_(ignored), notes_(n) {}
  /// Called with the step before the note is made that its manifest lasts.
  std::function<void(std::int64_t)> promise;

  file_decision before(file_call call, const std::string& path) override {
    if (call == file_call::change_mode) {
      if (notes_ == notes::lost) return file_decision::leave_out;
      const auto step = path.find("/step-");
      if (contains(path, "/manifest.cairn") && promise) promise(std::stoll(path.substr(step + 6)));
      return file_decision::carry_out;
    }
    std::optional<site> here;
    if (call == file_call::sync) here = bytes_of(path);
    if (call == file_call::sync_directory) {
      here = std::exchange(last_change(), site::new_directory);
      // Nothing is made in a step's directory: a rank makes the manifest last that it has seen there.
      if (here == site::new_directory && contains(path, "/step-")) here = site::manifest_name;
    }
    if (!here) return file_decision::carry_out;
    ++counts_[static_cast<std::size_t>(*here)];
    return here == ignored_ ? file_decision::leave_out : file_decision::carry_out;
  }
  void after(file_call call, const std::string& path) override {
    // The same thread goes on to the fsync.
    if (call == file_call::make_directory) last_change() = site::new_directory;
    if (call == file_call::rename)
      last_change() = contains(path, ".safetensors") ? site::data_name
                      : contains(path, ".record")    ? site::record_name
                      : contains(path, "manifest.")  ? site::manifest_name
                                                     : site::mark_name;
    if (call == file_call::unlink)
      last_change() = contains(path, "manifest.") ? site::manifest_removal : site::other_removal;
    if (call == file_call::remove_directory) last_change() = site::directory_removal;
  }
  [[nodiscard]] std::size_t count(site s) const { return counts_[static_cast<std::size_t>(s)]; }

 private:
  static bool contains(const std::string& path, const char* text) {
    return path.find(text) != std::string::npos;
  }
  static site bytes_of(const std::string& path) {
    return contains(path, ".safetensors") ? site::data_bytes
           : contains(path, ".record")    ? site::record_bytes
           : contains(path, "manifest.")  ? site::manifest_bytes
                                          : site::mark_bytes;
  }
  /// What this thread did last; a directory that existed already is fsynced as a new one is.
  static site& last_change() {
    thread_local site last = site::new_directory;
    return last;
  }

  std::optional<site> ignored_;
  notes notes_;
  std::array<std::atomic<std::size_t>, static_cast<std::size_t>(site::count)> counts_{};
};

inline auto make_checkpointer(file_system fs, cairn::thread_communicator comm,
                              cairn::commit_options commit = {}) {
  return cairn::checkpointer{
      cairn::safetensors_storage{store{"data/checkpoints", small_requests, std::move(fs)}, commit},
      std::move(comm), cairn::keep_last(2), quiet};
}

/// The disk with the directory above the store's, which its owner makes again where a power loss took it.
inline recording_file_system ready(recording_file_system disk) {
  const int root = disk.open_directory("/");
  const int made = disk.make_directory_at(root, "data", 0755);
  REQUIRE((made == 0 || made == -EEXIST));
  REQUIRE(disk.close(root) == 0);
  return disk;
}

/// When a checkpoint was reported as committed, in operations of the file system.
struct acknowledgement {
  std::int64_t step;
  std::size_t at;  ///< the handle has said so, or a rank may say so from now on
};

/// A run of two ranks with several saves, one of which fails, or the run after a power loss; and what must hold in
/// each state that may be left of its disk.
struct run {
  recording_file_system disk;
  std::shared_ptr<site_watch> watch;
  cairn::commit_options commit;
  std::vector<acknowledgement> acknowledged;
  std::size_t notes = 0;
  std::mutex mutex;

  std::int64_t first = 0;       ///< the newest checkpoint that was there at the beginning
  std::size_t checkpoints = 0;  ///< how many were there
  static constexpr std::size_t keep = 2;

  explicit run(std::optional<site> ignored = {}, const cairn::commit_options& c = {},
               site_watch::notes n = site_watch::notes::kept)
      : watch(std::make_shared<site_watch>(ignored, n)), commit(c) {
    watch->promise = [this](std::int64_t step) {
      const std::lock_guard lock(mutex);
      acknowledged.push_back({step, disk.operations()});
      ++notes;
    };
    disk = ready(std::move(disk));
    on_two_ranks([this](int rank, cairn::thread_communicator comm) { train(rank, std::move(comm)); });
    for (const std::int64_t step : {10, 20, 30})
      REQUIRE(std::any_of(acknowledged.begin(), acknowledged.end(),
                          [&](const auto& a) { return a.step == step; }));
  }
  /// Starts the next run on what the power loss left.
  explicit run(recording_file_system after)
      : disk(ready(std::move(after))), watch(std::make_shared<site_watch>()) {
    {
      cairn::thread_group group{1};
      const auto there = make_checkpointer(file_system(nullptr, disk), group.communicator(0)).list();
      checkpoints = there.size();
      first = there.empty() ? 0 : there.back();
    }
    on_two_ranks([this](int rank, cairn::thread_communicator comm) {
      training_state t(rank, 2, sizes);
      auto ckpt = make_checkpointer(file_system(watch, disk), std::move(comm));
      if (ckpt.resume(t.state).value_or(0) != first || (first != 0 && !t.is(first)))
        throw std::runtime_error("resume does not take the newest");
      for (std::int64_t step = first + 1; step <= first + 3; ++step) save(ckpt, t, step);
      ckpt.close();
    });
  }

  template <class Body>
  void on_two_ranks(Body body) {
    cairn::thread_group group{2};
    std::vector<std::string> trouble(2);
    const auto rank_main = [&](int rank) {
      try {
        body(rank, group.communicator(rank));
      } catch (const std::exception& e) {
        trouble[static_cast<std::size_t>(rank)] = e.what();
      }
    };
    std::thread other(rank_main, 1);
    rank_main(0);
    other.join();
    REQUIRE(trouble[0] == "");
    REQUIRE(trouble[1] == "");
    REQUIRE(disk.open_handles() == 0);
  }

  template <class Checkpointer>
  void save(Checkpointer& ckpt, training_state& t, std::int64_t step) {
    t.fill(step);
    ckpt.save(t.state, step).wait();
    const std::lock_guard lock(mutex);
    acknowledged.push_back({step, disk.operations()});
  }

  void train(int rank, cairn::thread_communicator comm) {
    training_state t(rank, 2, sizes);
    auto ckpt = make_checkpointer(file_system(watch, disk), std::move(comm), commit);
    ckpt.prepare(t.state);
    for (const std::int64_t step : {10, 20, 25, 30}) {
      if (step == 25) {  // fails on rank 1, when rank 0 may have written
        bool failed = false;
        t.fill(step);
        const auto length = t.rows.size();
        if (rank == 1) t.rows.resize(7);
        try {
          ckpt.save(t.state, step).wait();
        } catch (const cairn::usage_error& e) {
          failed = e.id() == cairn::error_id::usage_size_changed;
        }
        t.rows.resize(length);
        if (!failed) throw std::runtime_error("a save did not fail");
        continue;
      }
      save(ckpt, t, step);
    }
    ckpt.close();
  }
  /// The steps that were acknowledged by then.
  [[nodiscard]] std::set<std::int64_t> promised_at(std::size_t at) const {
    std::set<std::int64_t> steps;
    for (const auto& a : acknowledged)
      if (a.at <= at) steps.insert(a.step);
    return steps;
  }

  /// What is wrong in this state, or nothing. `all`: looks at all checkpoints that are listed, not at the
  /// newest alone; `resumes`: a new run goes on from here.
  [[nodiscard]] std::optional<std::string> wrong(const recording_file_system::cut& cut, bool all,
                                                 bool resumes) const {
    const auto steps = promised_at(cut.at);
    const auto promised = steps.empty() ? first : *steps.rbegin();
    const auto say = [&](const std::string& what) {
      return what + "; committed " + std::to_string(promised) + "; " + cut.text();
    };
    cairn::thread_group group{1};
    training_state t(0, 1, sizes);
    try {
      auto ckpt = make_checkpointer(file_system(nullptr, ready(disk.after(cut))), group.communicator(0));
      const auto there = ckpt.list();
      const auto newest = there.empty() ? 0 : there.back();
      if (newest < promised) return say("the newest that is left is " + std::to_string(newest));
      if (there.size() < std::min(keep, checkpoints + steps.size()))
        return say("no more than " + std::to_string(there.size()) + " checkpoints are left");
      for (const auto step : there) {
        if (step != newest && !all) continue;
        ckpt.load(t.state, step);
        if (!t.is(step)) return say("step " + std::to_string(step) + " loads with other bytes");
      }
      if (!resumes) return {};
      t.spoil();
      if (ckpt.resume(t.state).value_or(0) != newest || (newest != 0 && !t.is(newest)))
        return say("resume does not take the newest");
      t.fill(newest + 1);
      ckpt.save(t.state, newest + 1).wait();
    } catch (const cairn::error& e) {
      return say(e.what());
    }
    return {};
  }

  struct tally {
    std::size_t states = 0;
    std::optional<std::string> wrong;
  };
  struct effort {
    std::size_t every = 1;    ///< states are looked at after each operation of this number
    std::size_t random = 0;   ///< the number of mixed states
    bool singles = true;      ///< states in which one thing alone is lost, or kept
    std::size_t all = 1;      ///< all checkpoints are loaded in each state of this number
    std::size_t resumes = 0;  ///< a new run goes on in each state of this number; 0: in none
    std::uint64_t seed = test_seed();
  };
  /// Looks at states after the run's operations, and stops at the first that is wrong.
  [[nodiscard]] tally look(const effort& e) const {
    tally t;
    for (std::size_t at = 0; at <= disk.operations() && !t.wrong; at += e.every)
      for (const auto& cut : disk.cuts(at, e.random, e.seed)) {
        using rule = recording_file_system::cut::rule;
        if (!e.singles && (cut.how == rule::drop_one || cut.how == rule::keep_one)) continue;
        ++t.states;
        t.wrong = wrong(cut, t.states % e.all == 0, e.resumes != 0 && t.states % e.resumes == 0);
        if (t.wrong) break;
      }
    return t;
  }
};

}  // namespace cairn_test::power_loss
