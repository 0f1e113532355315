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
namespace fs = std::filesystem;
using store = cairn::basic_file_store<watched_file_system<>>;

// A fork of a sanitized process is slow: there, some of the points are enough.
constexpr std::uint64_t thinned = CAIRN_TEST_ADDRESS_SANITIZED ? 4 : 1;

constexpr cairn::file_store_options small_requests{.write_bytes = 64u << 10};
constexpr training_sizes sizes{.weights = 40'000};

/// What the killed run reports, in shared memory that outlives it.
struct told {
  std::atomic<std::int64_t> begun = 0;         ///< the last step that was given to save()
  std::atomic<std::int64_t> acknowledged = 0;  ///< the last step whose handle said that it is committed
  std::atomic<std::uint64_t> changes = 0;      ///< calls that change the disk
  std::atomic<bool> gate_open = false;
  std::atomic<bool> trouble = false;
  char where[240] = {};
};
class shared_page {
 public:
  shared_page()
      : memory_(::mmap(nullptr, sizeof(told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(memory_ != MAP_FAILED);
    value_ = new (memory_) told;
  }
  shared_page(const shared_page&) = delete;
  shared_page& operator=(const shared_page&) = delete;
  ~shared_page() { ::munmap(memory_, sizeof(told)); }
  told* operator->() const { return value_; }

 private:
  void* memory_;
  told* value_ = nullptr;
};

class killer final : public kill_watch {
 public:
  killer(told& tell, kill_plan plan) : kill_watch(std::move(plan), tell.gate_open), tell_(tell) {}

 private:
  std::uint64_t count() override { return ++tell_.changes; }
  void strike(const std::string& where) override {
    const std::lock_guard lock(mutex_);
    std::snprintf(tell_.where, sizeof tell_.where, "%s", where.c_str());
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  }

  told& tell_;
  std::mutex mutex_;
};

void mark(const std::string& name) {
  kill_watch::mark_here(name);
}

/// `shared`: as buffered, and both ranks fill one file.
enum class mode : std::uint8_t { buffered, unstaged, overlapped, shared };
constexpr mode modes[] = {mode::buffered, mode::unstaged, mode::overlapped, mode::shared};
constexpr const char* mode_names[] = {"buffered", "unstaged", "overlapped", "shared"};

const cairn::checkpointer_options quiet{
    .timeout = std::chrono::seconds(60), .peer_timeout = std::chrono::seconds(60), .quiet = true};

auto make_checkpointer(store s, cairn::thread_communicator comm, std::int32_t ranks_per_file = 1) {
  return cairn::checkpointer{cairn::safetensors_storage{std::move(s), {.ranks_per_file = ranks_per_file}},
                             telling_stager{},
                             telling_planner{},
                             std::move(comm),
                             cairn::keep_last(2),
                             quiet};
}

/// Calls with a checkpointer of the mode.
template <class Body>
void with_checkpointer(mode m, store s, cairn::thread_communicator comm, Body body) {
  if (m == mode::buffered || m == mode::shared) {
    auto ckpt = make_checkpointer(std::move(s), std::move(comm), m == mode::shared ? 2 : 1);
    body(ckpt);
  } else if (m == mode::unstaged) {
    cairn::checkpointer ckpt{std::move(s),    cairn::no_staging{}, telling_planner{},
                             std::move(comm), cairn::keep_last(2), quiet};
    body(ckpt);
  } else {
    cairn::checkpointer ckpt{std::move(s),
                             cairn::overlapped{},
                             telling_stager{},
                             telling_planner{},
                             std::move(comm),
                             cairn::keep_last(2),
                             quiet};
    body(ckpt);
  }
}

struct scenario {
  mode how = mode::buffered;
  bool resumes = true;
  std::vector<std::int64_t> steps;
};

/// Trains on two ranks, until it ends or is killed.
void train(const std::string& root, const scenario& run, const std::shared_ptr<killer>& watch, told& tell) {
  cairn::thread_group group{2};
  const auto rank_main = [&](int rank) {
    const auto of_rank = " on rank " + std::to_string(rank);
    try {
      with_checkpointer(run.how, store{root, small_requests, watched_file_system<>{watch}},
                        group.communicator(rank), [&](auto& ckpt) {
                          training_state t(rank, 2, sizes);
                          mark("opened" + of_rank);
                          if (run.resumes) {
                            static_cast<void>(ckpt.resume(t.state));
                            mark("resumed" + of_rank);
                          }
                          for (const auto step : run.steps) {
                            const auto text = " " + std::to_string(step) + of_rank;
                            t.fill(step);
                            tell.begun = std::max<std::int64_t>(tell.begun, step);
                            const auto handle = ckpt.save(t.state, step);
                            mark("save returned" + text);
                            ckpt.before_update();
                            mark("memory is free" + text);
                            t.spoil();
                            handle.wait_written();
                            mark("written" + text);
                            handle.wait();
                            tell.acknowledged = std::max<std::int64_t>(tell.acknowledged, step);
                            mark("committed" + text);
                          }
                          ckpt.close();
                          mark("closed" + of_rank);
                        });
    } catch (const std::exception& e) {
      std::snprintf(tell.where, sizeof tell.where, "%s", e.what());
      tell.trouble = true;
    }
  };
  std::thread other(rank_main, 1);
  rank_main(0);
  other.join();
}

/// Runs it in a child. True if it was killed by itself; false if it came to its end.
bool dies(const std::string& root, const scenario& run, const kill_plan& plan, const shared_page& page) {
  cairn_test::await_still_threads();
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(240);
    auto watch = std::make_shared<killer>(*page.operator->(), plan);
    kill_watch::of_this_process = watch.get();
    train(root, run, watch, *page.operator->());
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  const std::string where = page->where;
  CAPTURE(where);
  CHECK_FALSE(page->trouble.load());
  CHECK((killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)));
  return killed;
}

/// Where earlier runs were stopped: the checkpoints of 11 and 12, a damaged one of 15, and at 25 the pieces
/// of two saves that were killed.
class past {
 public:
  past() {
    const shared_page page;
    const auto root = directory_.path() + "/past";
    REQUIRE_FALSE(dies(root, {mode::buffered, false, {11}}, {}, page));
    REQUIRE_FALSE(dies(root, {mode::buffered, false, {10, 12, 15}}, {}, page));
    REQUIRE(page->acknowledged == 15);
    const auto manifest = root + "/" + cairn::manifest_key(15);
    fs::resize_file(manifest, fs::file_size(manifest) - 1);
    REQUIRE(dies(root, {mode::unstaged, false, {25}},
                 {.at = event{moment::torn, file_call::pwrite, "rank-00001", ".safetensors"}, .gate = {}},
                 page));
    REQUIRE(dies(root, {mode::buffered, false, {25}},
                 {.at = event{moment::after, file_call::rename, "rank-00000", ".record"}, .gate = {}}, page));
    int parts = 0, records = 0;
    for (const auto& file : fs::directory_iterator(root + "/" + cairn::step_directory(25))) {
      parts += file.path().extension() == ".part";
      records += file.path().extension() == ".record";
    }
    REQUIRE(parts >= 1);
    REQUIRE(records >= 1);
  }
  /// A copy of it, in place of the last one.
  [[nodiscard]] std::string copy() const {
    const auto to = directory_.path() + "/now";
    fs::remove_all(to);
    fs::copy(directory_.path() + "/past", to, fs::copy_options::recursive);
    return to;
  }

 private:
  // A kill loses no write, so memory serves as well as a disk.
  scratch_directory directory_{fs::exists("/dev/shm") ? "/dev/shm" : nullptr};
};

/// The next run: loads, cleans up, and, if `goes_on`, saves and is resumed once more.
void check_next_run(const std::string& root, const shared_page& page, bool goes_on) {
  const std::int64_t committed = std::max<std::int64_t>(12, page->acknowledged);
  const std::int64_t begun = std::max<std::int64_t>(12, page->begun);
  const std::string where = page->where;
  CAPTURE(where);
  CAPTURE(committed);
  CAPTURE(begun);
  cairn::thread_group group{1};
  {
    training_state t(0, 1, sizes);
    auto ckpt = make_checkpointer(store{root, small_requests}, group.communicator(0));
    const auto step = ckpt.resume(t.state);
    REQUIRE(step.has_value());
    CHECK((*step == committed || *step == begun));
    CHECK(t.is(*step));
    CHECK(litter(root, true) == "");
    if (!goes_on) return;
    t.fill(40);
    ckpt.save(t.state, 40).wait();
  }
  training_state t(0, 1, sizes);
  auto ckpt = make_checkpointer(store{root, small_requests}, group.communicator(0));
  CHECK(ckpt.resume(t.state) == 40);
  CHECK(t.is(40));
  CHECK(litter(root, false) == "");
}

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
