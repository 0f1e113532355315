// SPDX-License-Identifier: Apache-2.0
// group: files
// cost: 90
// Power is lost at any moment of a run of two ranks with several saves, one of which fails, and with old
// checkpoints removed: in every state that may be left of the disk, what was acknowledged loads, and no
// checkpoint is there that does not. And again in the run that goes on from such a state.
//
//   CAIRN_TEST_SEED=N     other states
//   CAIRN_TEST_SECONDS=N  more and more of them, until so long has passed
#include <doctest/doctest.h>
#include <cairn/cairn.hpp>
#include <cairn/stores/basic_file_store.hpp>

#include "support/figures.hpp"
#include "support/power_cuts.hpp"
#include "support/recording_file_system.hpp"
#include "support/rounds.hpp"
#include "support/training_state.hpp"
#include "support/watched_file_system.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {
using namespace cairn_test;
using namespace cairn_test::power_loss;
}  // namespace

TEST_CASE("after a power loss at any moment, what was committed loads, and all that is listed does") {
  const auto begin = std::chrono::steady_clock::now();
  const char* text = std::getenv("CAIRN_TEST_SECONDS");
  const std::chrono::duration<double> seconds(text != nullptr ? std::strtod(text, nullptr) : 0);
  std::size_t states = 0, operations = 0, runs = 0, failures = 0;
  auto seed = test_seed();
  const auto look = [&](const run& r, std::size_t random) {
    const auto seen = r.look({.random = random, .all = 5, .resumes = 50, .seed = seed});
    CHECK_MESSAGE(!seen.wrong.has_value(), "CAIRN_TEST_SEED=", seed,
                  " repeats it: ", seen.wrong.value_or(""));
    states += seen.states;
    operations += r.disk.operations();
    failures += seen.wrong.has_value();
    ++runs;
  };
  do {
    const run r;
    for (std::size_t s = 0; s < static_cast<std::size_t>(site::count); ++s) {
      const std::string site_name = site_names[s];
      CAPTURE(site_name);
      CHECK(r.watch->count(static_cast<site>(s)) > 0);
    }
    CHECK(r.notes == 3);
    look(r, static_cast<std::size_t>(rounds(4, 15)));
    // The next runs find what was left: they clean up, resume, save and remove, and the power is lost again.
    std::mt19937_64 from(seed);
    for (std::uint64_t again = 0; again < rounds(1, 8) && failures == 0; ++again) {
      const auto cuts = r.disk.cuts(static_cast<std::size_t>(from() % r.disk.operations()), 4, seed);
      const auto& cut = cuts[from() % cuts.size()];
      CAPTURE(cut.text());
      look(run(r.disk.after(cut)), static_cast<std::size_t>(rounds(1, 5)));
    }
    ++seed;
  } while (failures == 0 && std::chrono::steady_clock::now() - begin < seconds);
  CHECK(states >= rounds(2'000));
  report_figures(
      "power_loss",
      {{"states", states},
       {"operations", operations},
       {"runs", runs},
       {"failures", failures},
       {"seed", test_seed()},
       {"seconds", static_cast<std::uint64_t>(
                       std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count())}});
}

// Each of these is needed: without it some state loses a committed checkpoint or shows one that does not
// load.
TEST_CASE("without any one kind of fsync that guards a checkpoint, some state after a power loss is wrong") {
  for (const auto s : {site::data_bytes, site::record_bytes, site::manifest_bytes, site::new_directory,
                       site::record_name, site::manifest_name, site::manifest_removal}) {
    const std::string site_name = site_names[static_cast<int>(s)];
    CAPTURE(site_name);
    const run mutant(s);
    const auto seen = mutant.look({});
    CHECK(seen.wrong.has_value());
    if (seen.wrong) MESSAGE("without " << site_name << ": " << *seen.wrong);
  }
}

TEST_CASE("ranks that share files: after a power loss at any moment, what was committed loads") {
  const cairn::commit_options two{.ranks_per_file = 2};
  const run together({}, two);
  const auto files = together.disk.files();
  CHECK(std::none_of(files.begin(), files.end(), [](const auto& f) { return f.ends_with(".record"); }));
  const auto seen = together.look({.every = 2, .random = 2, .all = 5, .resumes = 50});
  CHECK_MESSAGE(!seen.wrong.has_value(), seen.wrong.value_or(""));
  CHECK(seen.states > 500);
  for (const auto s : {site::data_bytes, site::data_name, site::manifest_name, site::new_directory}) {
    const std::string site_name = site_names[static_cast<int>(s)];
    CAPTURE(site_name);
    CHECK(run(s, two).look({}).wrong.has_value());
  }
}

namespace {

/// Holds the fsync behind the record of rank 1 until rank 0 has noted that the manifest lasts.
class late_record final : public file_watch {
 public:
  explicit late_record(const recording_file_system& disk) : disk_(disk) {}
  file_decision before(file_call call, const std::string& path) override {
    if (call == file_call::change_mode && path.find("/manifest.") != std::string::npos) {
      const std::lock_guard lock(mutex_);
      noted_at_ = disk_.operations();
      noted_.notify_all();
    }
    if (call == file_call::sync_directory && std::exchange(is_late(), false)) {
      std::unique_lock lock(mutex_);
      CHECK(noted_.wait_for(lock, std::chrono::seconds(60), [this] { return noted_at_ != 0; }));
    }
    return file_decision::carry_out;
  }
  void after(file_call call, const std::string& path) override {
    if (call == file_call::rename && path.find("/ranks-00001/") != std::string::npos)
      is_late() = path.find(".record") != std::string::npos;
  }
  /// How many operations there had been then.
  [[nodiscard]] std::size_t noted_at() {
    const std::lock_guard lock(mutex_);
    return noted_at_;
  }

 private:
  static bool& is_late() {
    thread_local bool late = false;
    return late;
  }
  recording_file_system disk_;
  std::mutex mutex_;
  std::condition_variable noted_;
  std::size_t noted_at_ = 0;
};

}  // namespace

TEST_CASE(
    "ranks in directories of their own: the manifest does not last before the records that it names do") {
  const cairn::commit_options apart{.ranks_per_directory = 1};
  const auto disk = ready({});
  const auto watch = std::make_shared<late_record>(disk);
  cairn::thread_group group{2};
  const auto train = [&](int rank) {
    training_state t(rank, 2, sizes);
    auto ckpt = make_checkpointer(file_system(watch, disk), group.communicator(rank), apart);
    t.fill(1);
    ckpt.save(t.state, 1).wait();
    ckpt.close();
  };
  std::thread other(train, 1);
  train(0);
  other.join();
  REQUIRE(watch->noted_at() != 0);
  for (const auto& cut : disk.cuts(watch->noted_at(), 10, test_seed())) {
    CAPTURE(cut.text());
    const auto left = disk.after(cut);
    cairn::thread_group readers{2};
    const auto read = [&](int rank) {
      training_state t(rank, 2, sizes);
      auto ckpt = make_checkpointer(file_system(nullptr, left), readers.communicator(rank), apart);
      CHECK(ckpt.resume(t.state) == 1);
      CHECK(t.is(1));
    };
    std::thread second(read, 1);
    read(0);
    second.join();
  }
}

// Then each rank makes the manifest's name last before it says that the checkpoint is committed.
TEST_CASE("without the coordinator's note that a manifest lasts, what was committed loads on all ranks") {
  const run forgetful({}, {.durability_timeout = std::chrono::milliseconds(1)}, site_watch::notes::lost);
  CHECK(forgetful.notes == 0);
  const auto seen = forgetful.look({.every = 2, .singles = false, .resumes = 50});
  CHECK_MESSAGE(!seen.wrong.has_value(), seen.wrong.value_or(""));
  CHECK(seen.states > 100);
}

// And these are not, for a checkpoint:
// - the name of data: the record is published later, by the same rank in the same directory, and its fsync of
//   the directory makes all names in it durable, before the manifest can be written;
// - marks say that an attempt has ended, to processes that are dead after a power loss; the next run ends the
//   attempt again;
// - removals of data, records and directories come after the durable removal of the manifest that named them,
//   or were never named by one: what comes back is removed by the next run.
// The store keeps its promise for each object nevertheless (test_power_loss_store).
TEST_CASE("fsyncs that guard no checkpoint can be told apart") {
  for (const auto s :
       {site::data_name, site::mark_bytes, site::mark_name, site::other_removal, site::directory_removal}) {
    const std::string site_name = site_names[static_cast<int>(s)];
    CAPTURE(site_name);
    const run mutant(s);
    const auto seen = mutant.look({.every = 3, .random = 1, .singles = false, .resumes = 25});
    CHECK_MESSAGE(!seen.wrong.has_value(), seen.wrong.value_or(""));
  }
}

TEST_CASE(
    "frozen items: after a power loss at any moment, what was committed loads, whatever its files are linked "
    "to") {
  const recording_file_system disk;
  using store_type = cairn::basic_file_store<recording_file_system>;
  std::vector<float> base(5'000, 0.5F), adapter(100);
  cairn::state_dict state;
  state.tensor("base", base, {5'000}, cairn::frozen);
  state.tensor("adapter", adapter, {100});
  struct moment {
    std::size_t operations;
    std::int64_t step;
  };
  std::vector<moment> committed;  // how many operations there had been when the commit was told
  {
    cairn::checkpointer ckpt{store_type{"root", {}, disk}, cairn::keep_last(2), quiet};
    for (const std::int64_t step : {1, 2, 3, 4}) {
      adapter[0] = static_cast<float>(step);
      const auto save = ckpt.save(state, step);
      save.wait();
      CHECK((save.report().linked_bytes > 0) == (step > 1));
      committed.push_back({disk.operations(), step});
    }
  }
  std::size_t states = 0;
  for (std::size_t at = 0; at <= disk.operations(); at += rounds(1) > 1 ? 1U : 3U)
    for (const auto& cut : disk.cuts(at, 1, test_seed())) {
      CAPTURE(cut.text());
      cairn::checkpointer ckpt{store_type{"root", {}, disk.after(cut)}, cairn::read_only{}, quiet};
      std::int64_t last = 0;
      for (const auto& m : committed)
        if (m.operations <= at) last = m.step;
      const auto listed = ckpt.list();
      CHECK((last == 0 || std::find(listed.begin(), listed.end(), last) != listed.end()));
      for (const auto step : listed) {
        std::vector<float> a(5'000), b(100);
        cairn::state_dict back;
        back.tensor("base", a, {5'000});
        back.tensor("adapter", b, {100});
        REQUIRE_NOTHROW(ckpt.load(back, step));
        CHECK((a == base && b[0] == static_cast<float>(step)));
      }
      ++states;
    }
  CHECK(states > 100);
}

TEST_CASE("a second key lasts as soon as link() has returned, by an fsync of its directory") {
  for (const bool synced : {true, false}) {
    const recording_file_system disk;
    cairn::basic_file_store<recording_file_system> store{"root", {}, disk};
    store.put_new("a/one", std::vector<std::byte>(1'000, std::byte{7}));
    store.put_new("b/other", {});
    if (!synced) recording_file_system(disk).ignore_syncs([](const auto& call) { return call.directory; });
    store.link("a/one", "b/two");
    bool always = true;
    for (const auto& cut : disk.cuts(disk.operations(), 20, test_seed())) {
      cairn::basic_file_store<recording_file_system> after{"root", {}, disk.after(cut)};
      const auto there = after.read_all("b/two", 2'000);
      always = always && there && there->size() == 1'000;
    }
    CHECK(always == synced);
  }
}
