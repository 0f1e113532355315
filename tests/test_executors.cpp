// SPDX-License-Identifier: Apache-2.0
// threaded
#include <cairn/cairn.hpp>
#include <cairn/concepts/any_executor.hpp>
#include <cairn/concepts/any_observer.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/storage/manifest/names.hpp>

#include "support/communicator_archetype.hpp"
#include "support/executor_conformance.hpp"
#include "support/faulty_store.hpp"
#include "support/planner_archetypes.hpp"
#include "support/stager_conformance.hpp"
#include "support/storage_archetype.hpp"
#include "support/thread_policy.hpp"
#include "support/thread_ranks.hpp"

#include <doctest/doctest.h>

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

template <>
struct cairn::role_of<cairn_test::save_planner_archetype> {
  using type = cairn::role::save_planner;
};
template <>
struct cairn::role_of<cairn_test::load_planner_archetype> {
  using type = cairn::role::load_planner;
};
template <>
struct cairn::role_of<cairn_test::least_stager> {
  using type = cairn::role::stager;
};
template <>
struct cairn::role_of<cairn_test::executor_archetype> {
  using type = cairn::role::executor;
};
template <>
struct cairn::role_of<cairn_test::communicator_archetype> {
  using type = cairn::role::communicator;
};

namespace {

struct inline_env {
  static cairn::inline_executor make() { return {}; }
};
struct thread_env {
  static cairn::thread_executor make() { return {}; }
};
struct archetype_env {
  static cairn_test::executor_archetype make() { return cairn_test::executor_archetype::make(); }
};

/// The least that satisfies Observer.
class observer_archetype {
 public:
  using cairn_role = cairn::role::observer;
  static observer_archetype make(int& seen) { return observer_archetype(seen); }
  observer_archetype(observer_archetype&&) = default;
  observer_archetype& operator=(observer_archetype&&) = default;
  void observe(const cairn::observation&) & noexcept { ++*seen_; }

 private:
  explicit observer_archetype(int& seen) : seen_(&seen) {}
  int* seen_;
};
static_assert(cairn::Observer<observer_archetype>);
struct observer_that_may_throw : observer_archetype {
  void observe(const cairn::observation&) & {}
};
static_assert(!cairn::Observer<observer_that_may_throw>);

/// An observer with every option that observers have.
struct asking_observer {
  using cairn_role = cairn::role::observer;
  static constexpr bool wants_spans = true;
  static constexpr bool wants_began = true;
  void observe(const cairn::observation&) noexcept {}
};
struct refusing_observer : asking_observer {
  static constexpr bool wants_spans = false;
};
static_assert(cairn::wants_spans<asking_observer> && cairn::wants_began<asking_observer>);
static_assert(!cairn::wants_spans<refusing_observer> && !cairn::wants_spans<observer_archetype>);

TEST_CASE("any_observer passes events on, and wants the ones that its observer wants") {
  int seen = 0;
  cairn::any_observer held(observer_archetype::make(seen));
  held.observe({});
  auto moved = std::move(held);
  moved.observe({});
  CHECK(seen == 2);
  CHECK_FALSE(moved.asks_for_spans());
  CHECK_FALSE(moved.asks_for_began());
  const cairn::any_observer asking(asking_observer{});
  CHECK(asking.asks_for_spans());
  CHECK(asking.asks_for_began());
}

/// Notes the nice, the policy and the cores of the thread that writes.
struct noting_writer : cairn_test::scripted_writer {
  using scripted_writer::scripted_writer;
  static inline std::atomic<int> nice{-100}, policy{-1}, cores{0};
  static inline std::atomic<long> io{-1};
  cairn::record write(const cairn::save_context&, const cairn::staged_image&, cairn::deadline) {
    nice = ::getpriority(PRIO_PROCESS, 0);
    policy = ::sched_getscheduler(0);
    constexpr int one_thread = 1;
    io = ::syscall(SYS_ioprio_get, one_thread, 0);
    cpu_set_t set;
    CPU_ZERO(&set);
    ::sched_getaffinity(0, sizeof set, &set);
    cores = CPU_COUNT(&set);
    return {};
  }
};
/// A latch that a store's action waits on.
struct gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  void wait() {
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, std::chrono::minutes(2), [&] { return open; }))
      throw std::runtime_error("the gate stayed shut");
  }
  void let_through() {
    {
      const std::lock_guard lock(mutex);
      open = true;
    }
    changed.notify_all();
  }
};

using store = cairn_test::faulty_store<cairn::memory_store>;

}  // namespace

struct any_env {
  static cairn::any_executor make() { return cairn::any_executor(cairn::thread_executor()); }
};
struct any_archetype_env {
  static cairn::any_executor make() { return cairn::any_executor(archetype_env::make()); }
};

TEST_CASE_TEMPLATE_INVOKE(cairn_test::executor_conformance, inline_env, thread_env, archetype_env, any_env,
                          any_archetype_env);

// What an executor may offer besides, and near misses.
struct prepared_executor : cairn_test::executor_archetype {
  explicit prepared_executor(int& calls) : executor_archetype(executor_archetype::make()), prepared(&calls) {}
  void prepare() & { ++*prepared; }
  int* prepared;
};
struct prepare_gives_something : cairn_test::executor_archetype {
  bool prepare() { return true; }
};
struct says_no : cairn_test::executor_archetype {
  static constexpr bool jobs_end_with_process = false, runs_in_caller = false, needs_shared_images = false;
};
static_assert(cairn::RunsInCaller<cairn::inline_executor> && !cairn::RunsInCaller<cairn::thread_executor> &&
              !cairn::RunsInCaller<cairn_test::executor_archetype> && !cairn::RunsInCaller<says_no>);
static_assert(cairn::EndsWithProcess<cairn::thread_executor> && !cairn::EndsWithProcess<says_no> &&
              !cairn::EndsWithProcess<cairn_test::executor_archetype>);
static_assert(!cairn::NeedsSharedImages<cairn::thread_executor> && !cairn::NeedsSharedImages<says_no>);
static_assert(cairn::PreparesEarly<prepared_executor> && !cairn::PreparesEarly<prepare_gives_something> &&
              !cairn::PreparesEarly<cairn_test::executor_archetype>);

TEST_CASE("a handle of an executor has the capabilities of its executor, and no others") {
  int prepared = 0;
  cairn::any_executor prepares{prepared_executor(prepared)};
  prepares.prepare();
  CHECK(prepared == 1);
  CHECK_FALSE(prepares.ends_with_process());
  CHECK_FALSE(prepares.runs_in_caller());
  CHECK(cairn::any_executor(cairn::inline_executor()).runs_in_caller());
  cairn::any_executor least{archetype_env::make()};
  least.prepare();
  CHECK_FALSE(least.ends_with_process());
  CHECK(cairn::any_executor(cairn::thread_executor()).ends_with_process());
}

TEST_CASE("the writing thread runs with the settings that it was given, or there is no executor") {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  REQUIRE(::sched_getaffinity(0, sizeof mine, &mine) == 0);
  int core = 0;
  while (!CPU_ISSET(static_cast<std::size_t>(core), &mine)) ++core;
  cairn::thread_executor executor{{.thread = {.nice = 3, .io = cairn::io_class::idle, .cores = {core}}}};
  auto progress = std::make_shared<cairn::save_progress>(1);
  auto control = std::make_shared<cairn::image_control>();
  control->release();
  executor.submit(cairn::save_job{
      cairn::any_writer(noting_writer(std::make_shared<cairn_test::scripted_writer::script>())),
      {},
      cairn_test::empty_image(control),
      std::make_shared<const cairn::metadata>(),
      progress});
  CHECK(progress->wait_finished(cairn::deadline::in(std::chrono::minutes(1))));
  CHECK(noting_writer::nice == std::min(19, ::getpriority(PRIO_PROCESS, 0) + 3));
  CHECK(noting_writer::policy == cairn_test::policy_beside_training());
  CHECK(noting_writer::cores == 1);
  CHECK(noting_writer::io == static_cast<int>(cairn::io_class::idle) << 13);
  CHECK_THROWS_AS(cairn::thread_executor({.thread = {.nice = 77}}), cairn::usage_error);
  CHECK_THROWS_AS(cairn::thread_executor({.thread = {.cores = {-1}}}), cairn::usage_error);
  if (!CPU_ISSET(CPU_SETSIZE - 1, &mine))
    CHECK_THROWS_AS(cairn::thread_executor({.thread = {.cores = {CPU_SETSIZE - 1}}}), cairn::usage_error);
}

TEST_CASE("a checkpointer made of archetypes asks nothing beyond the concepts") {
  std::vector<float> weights(1000);
  std::iota(weights.begin(), weights.end(), 1.0f);
  std::string text = "blob";
  cairn::state_dict state;
  state.tensor("weights", weights, {10, 100});
  state.bytes("text", text);
  int seen = 0;
  cairn::memory_store objects;
  cairn::checkpointer ckpt{cairn_test::storage_archetype::over(objects),
                           cairn_test::save_planner_archetype{},
                           cairn_test::load_planner_archetype{},
                           cairn_test::least_stager{0},
                           cairn_test::executor_archetype::make(),
                           cairn_test::communicator_archetype::make(),
                           observer_archetype::make(seen),
                           cairn::checkpointer_options{.quiet = true}};
  CHECK_FALSE(ckpt.resume(state).has_value());
  ckpt.save(state, 3).wait();
  const auto expected = weights;
  weights.assign(1000, 0.0f);
  text.clear();
  CHECK(ckpt.resume(state) == 3);
  CHECK(weights == expected);
  CHECK(text == "blob");
  ckpt.remove(3);
  CHECK(ckpt.list().empty());
  ckpt.close();
  CHECK(seen >= 2);
}

TEST_CASE("what save() does while an earlier save is under way") {
  auto faults = std::make_shared<cairn_test::store_faults>();
  auto held = std::make_shared<gate>();
  cairn::memory_store objects;
  std::vector<float> weights(100000, 1.0f);
  cairn::state_dict state;
  state.tensor("weights", weights, {100000});
  cairn::checkpointer_options options{.quiet = true};
  faults->add({.kind = cairn_test::store_call::publish_new, .at = 0, .action = [held](std::string_view) {
                 held->wait();
               }});

  SUBCASE("skip") {
    options.when_busy = cairn::busy_policy::skip;
    cairn::checkpointer ckpt{store(objects, faults), options};
    auto first = ckpt.save(state, 1);
    auto second = ckpt.save(state, 2);
    CHECK(second.skipped());
    second.wait();  // at once
    CHECK_FALSE(second.committed());
    held->let_through();
    first.wait();
    CHECK_FALSE(ckpt.save(state, 3).skipped());
    ckpt.close();
    CHECK(objects.size(cairn::manifest_key(3)).has_value());
    CHECK_FALSE(objects.size(cairn::manifest_key(2)).has_value());
  }
  SUBCASE("queue goes on while there is a buffer") {
    options.when_busy = cairn::busy_policy::queue;
    cairn::checkpointer ckpt{store(objects, faults), options, cairn::heap_stager{{.depth = 2}}};
    auto first = ckpt.save(state, 1);  // held at its manifest: its buffer is free again
    auto second = ckpt.save(state, 2);
    auto third = ckpt.save(state, 3);
    CHECK_FALSE(first.committed());
    held->let_through();
    third.wait();
    CHECK(first.committed());
    CHECK(second.committed());
  }
  SUBCASE("block waits for the earlier one") {
    cairn::checkpointer ckpt{store(objects, faults), options};
    auto first = ckpt.save(state, 1);
    CHECK_FALSE(first.committed());
    std::thread opener([&] { held->let_through(); });
    auto second = ckpt.save(state, 2);
    CHECK(first.committed());
    opener.join();
    second.wait();
  }
  SUBCASE("skip is one decision of all ranks") {
    options.when_busy = cairn::busy_policy::skip;
    std::atomic<int> skipped{0};
    cairn_test::thread_ranks<> world(3);
    const auto failures = world.run([&](auto& all) {
      // Only rank 0 publishes the manifest that is held; the others are busy no longer when they have seen
      // it, and skip with it.
      std::vector<float> own(1000, 1.0f);
      cairn::state_dict mine;
      mine.tensor("weights", own, {1000});
      cairn::checkpointer ckpt{store(objects, faults), std::move(all.communicator()), options};
      auto first = ckpt.save(mine, 1);
      if (ckpt.save(mine, 2).skipped()) ++skipped;
      held->let_through();
      first.wait();
      ckpt.close();
    });
    for (const auto& f : failures) CHECK(f == nullptr);
    CHECK(skipped == 3);
  }
}
