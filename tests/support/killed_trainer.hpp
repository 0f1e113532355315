// SPDX-License-Identifier: Apache-2.0
#pragma once
// A training of two ranks as threads of one process, which kills itself at a named point; and the run after it.
#include "kill_points.hpp"
#include "scratch_directory.hpp"
#include "still_threads.hpp"
#include "training_state.hpp"
#include "watched_file_system.hpp"

#include <cairn/cairn.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/stores/basic_file_store.hpp>

#include <doctest/doctest.h>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace cairn_test::killed_trainer {

using store = cairn::basic_file_store<watched_file_system<>>;

inline constexpr cairn::file_store_options small_requests{.write_bytes = 64u << 10};
inline constexpr training_sizes sizes{.weights = 40'000};

/// What the killed run reports, in shared memory that outlives it.
struct run_report {
  std::atomic<std::int64_t> begun = 0;         ///< the last step that was given to save()
  std::atomic<std::int64_t> acknowledged = 0;  ///< the last step whose handle said that it is committed
  std::atomic<std::uint64_t> changes = 0;      ///< calls that change the disk
  std::atomic<bool> gate_open = false;
  std::atomic<bool> trouble = false;
  char where[240] = {};
};
/// Memory that the run and the test share.
class shared_page {
 public:
  shared_page()
      : memory_(
            ::mmap(nullptr, sizeof(run_report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(memory_ != MAP_FAILED);
    value_ = new (memory_) run_report;
  }
  shared_page(const shared_page&) = delete;
  shared_page& operator=(const shared_page&) = delete;
  ~shared_page() { ::munmap(memory_, sizeof(run_report)); }
  run_report* operator->() const { return value_; }

 private:
  void* memory_;
  run_report* value_ = nullptr;
};

/// Kills this process when its moment comes.
class killer final : public kill_watch {
 public:
  killer(run_report& report, kill_plan plan)
      : kill_watch(std::move(plan), report.gate_open), report_(report) {}

 private:
  std::uint64_t count() override { return ++report_.changes; }
  void strike(const std::string& where) override {
    const std::lock_guard lock(mutex_);
    std::snprintf(report_.where, sizeof report_.where, "%s", where.c_str());
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  }

  run_report& report_;
  std::mutex mutex_;
};

inline void mark(const std::string& name) {
  kill_watch::mark_here(name);
}

/// The way of saving. `shared`: as `buffered`, and both ranks fill one file.
enum class mode : std::uint8_t { buffered, unstaged, overlapped, shared };
inline constexpr mode modes[] = {mode::buffered, mode::unstaged, mode::overlapped, mode::shared};
inline constexpr const char* mode_names[] = {"buffered", "unstaged", "overlapped", "shared"};

inline const cairn::checkpointer_options quiet{
    .timeout = std::chrono::seconds(60), .peer_timeout = std::chrono::seconds(60), .quiet = true};

inline auto make_checkpointer(store s, cairn::thread_communicator comm, std::int32_t ranks_per_file = 1) {
  return cairn::checkpointer{cairn::safetensors_storage{std::move(s), {.ranks_per_file = ranks_per_file}},
                             telling_stager{},
                             telling_planner{},
                             std::move(comm),
                             cairn::keep_last(2),
                             quiet};
}

/// Calls body() with a checkpointer of the mode.
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

/// What a run does.
struct scenario {
  mode how = mode::buffered;
  bool resumes = true;
  std::vector<std::int64_t> steps;
};

/// Trains on two ranks, until it ends or is killed.
inline void train(const std::string& root, const scenario& run, const std::shared_ptr<killer>& watch,
                  run_report& report) {
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
                            report.begun = std::max<std::int64_t>(report.begun, step);
                            const auto handle = ckpt.save(t.state, step);
                            mark("save returned" + text);
                            ckpt.before_update();
                            mark("memory is free" + text);
                            t.spoil();
                            handle.wait_written();
                            mark("written" + text);
                            handle.wait();
                            report.acknowledged = std::max<std::int64_t>(report.acknowledged, step);
                            mark("committed" + text);
                          }
                          ckpt.close();
                          mark("closed" + of_rank);
                        });
    } catch (const std::exception& e) {
      std::snprintf(report.where, sizeof report.where, "%s", e.what());
      report.trouble = true;
    }
  };
  std::thread other(rank_main, 1);
  rank_main(0);
  other.join();
}

/// Runs `body(watch, report)` in a child. True if it killed itself; false if it came to its end.
template <class Body>
bool dies(const kill_plan& plan, const shared_page& page, Body body) {
  await_still_threads();
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(240);
    auto watch = std::make_shared<killer>(*page.operator->(), plan);
    kill_watch::of_this_process = watch.get();
    body(watch, *page.operator->());
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

inline bool dies(const std::string& root, const scenario& run, const kill_plan& plan,
                 const shared_page& page) {
  return dies(plan, page, [&](const std::shared_ptr<killer>& watch, run_report& report) {
    train(root, run, watch, report);
  });
}

/// A directory in which earlier runs were stopped: it has the checkpoints of 11 and 12, a damaged one of 15, and at 25
/// what two killed saves have left.
class past {
 public:
  past() {
    const shared_page page;
    const auto root = directory_.path() + "/past";
    REQUIRE_FALSE(dies(root, {mode::buffered, false, {11}}, {}, page));
    REQUIRE_FALSE(dies(root, {mode::buffered, false, {10, 12, 15}}, {}, page));
    REQUIRE(page->acknowledged == 15);
    const auto manifest = root + "/" + cairn::manifest_key(15);
    std::filesystem::resize_file(manifest, std::filesystem::file_size(manifest) - 1);
    REQUIRE(dies(root, {mode::unstaged, false, {25}},
                 {.at = event{moment::torn, file_call::pwrite, "rank-00001", ".safetensors"}, .gate = {}},
                 page));
    REQUIRE(dies(root, {mode::buffered, false, {25}},
                 {.at = event{moment::after, file_call::rename, "rank-00000", ".record"}, .gate = {}}, page));
    int parts = 0, records = 0;
    for (const auto& file : std::filesystem::directory_iterator(root + "/" + cairn::step_directory(25))) {
      parts += file.path().extension() == ".part";
      records += file.path().extension() == ".record";
    }
    REQUIRE(parts >= 1);
    REQUIRE(records >= 1);
  }
  /// Makes a copy of it, in place of the last one.
  [[nodiscard]] std::string copy() const {
    const auto to = directory_.path() + "/now";
    std::filesystem::remove_all(to);
    std::filesystem::copy(directory_.path() + "/past", to, std::filesystem::copy_options::recursive);
    return to;
  }

 private:
  // A kill loses no write, so memory serves as well as a disk.
  scratch_directory directory_{std::filesystem::exists("/dev/shm") ? "/dev/shm" : nullptr};
};

/// The next run: loads, cleans up, and, if `saves_again`, saves and is resumed once more.
inline void check_next_run(const std::string& root, const shared_page& page, bool saves_again) {
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
    if (!saves_again) return;
    t.fill(40);
    ckpt.save(t.state, 40).wait();
  }
  training_state t(0, 1, sizes);
  auto ckpt = make_checkpointer(store{root, small_requests}, group.communicator(0));
  CHECK(ckpt.resume(t.state) == 40);
  CHECK(t.is(40));
  CHECK(litter(root, false) == "");
}

}  // namespace cairn_test::killed_trainer
