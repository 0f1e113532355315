// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every Executor must do, and the smallest one.
#include <cairn/concepts/executor.hpp>
#include <cairn/execute/run_save_job.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/model/staged_image.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test {

/// A StorageWriter that notes its calls and fails where a test says so. Its jobs can be held at a gate.
class scripted_writer {
 public:
  struct script {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::string> calls;
    std::string fail_in;   ///< the name of the call that throws
    bool foreign = false;  ///< throws an exception that is no cairn::error
    bool gate_open = true;
    void open_gate() {
      {
        const std::lock_guard lock(mutex);
        gate_open = true;
      }
      changed.notify_all();
    }
    [[nodiscard]] std::vector<std::string> told() {
      const std::lock_guard lock(mutex);
      return calls;
    }
  };
  explicit scripted_writer(std::shared_ptr<script> s) : script_(std::move(s)) {}

  cairn::image_layout layout(const cairn::save_plan&, std::span<const std::uint64_t>, int) const {
    return {};
  }
  std::uint64_t fingerprint() const { return 1; }
  cairn::record write(const cairn::save_context& c, const cairn::staged_image&, cairn::deadline) {
    {
      std::unique_lock lock(script_->mutex);
      script_->changed.wait(lock, [&] { return script_->gate_open; });
    }
    say("write", c.step);
    return {};
  }
  void commit(const cairn::save_context& c, const cairn::metadata&, cairn::deadline) {
    say("commit", c.step);
  }
  void await_commit(const cairn::save_context& c, cairn::deadline) { say("await", c.step); }
  void abort(const cairn::save_context& c, std::exception_ptr) noexcept {
    const std::lock_guard lock(script_->mutex);
    script_->calls.push_back("abort " + std::to_string(c.step));
  }
  void remove(std::int64_t) {}
  bool quarantine(std::int64_t) { return true; }
  std::uint64_t clean(cairn::run_id) { return 0; }
  void check_space(cairn::space_needed) { say("space", -1); }

 private:
  void say(const std::string& call, std::int64_t step) {
    const std::lock_guard lock(script_->mutex);
    if (step >= 0) script_->calls.push_back(call + " " + std::to_string(step));
    if (script_->fail_in != call) return;
    if (script_->foreign) throw std::runtime_error("a foreign exception");
    cairn::fail(cairn::error_id::storage_io, "an injected fault");
  }
  std::shared_ptr<script> script_;
};
static_assert(cairn::StorageWriter<scripted_writer>);

/// The smallest type that satisfies Executor: it has no default constructor and no copies, and runs jobs in
/// the caller.
class executor_archetype {
 public:
  template <class>
  static constexpr bool accepts = true;
  static executor_archetype make() { return executor_archetype(0); }
  executor_archetype(executor_archetype&&) = default;
  executor_archetype& operator=(executor_archetype&&) = default;
  void submit(cairn::save_job job) & { cairn::run_save_job(std::move(job)); }
  bool drain(cairn::deadline) & { return true; }

 private:
  explicit executor_archetype(int) {}
};
static_assert(cairn::ExecutorFor<executor_archetype, scripted_writer>);

// Each breaks one requirement.
struct executor_without_drain : executor_archetype {
  void drain(cairn::deadline) & {}
};
struct executor_that_accepts_nothing : executor_archetype {
  template <class>
  static constexpr bool accepts = false;
};
struct executor_that_answers : executor_archetype {
  int submit(cairn::save_job) & { return 0; }
};
static_assert(!cairn::Executor<executor_without_drain>);
static_assert(cairn::Executor<executor_that_accepts_nothing> &&
              !cairn::ExecutorFor<executor_that_accepts_nothing, scripted_writer>);
static_assert(!cairn::Executor<executor_that_answers>);

/// An image without bytes, which is released or stays in training memory.
inline cairn::staged_image empty_image(std::shared_ptr<cairn::image_control> control) {
  auto layout = std::make_shared<const cairn::image_layout>();
  return {std::move(layout), std::move(control), {}, {}, true, nullptr};
}

/// `Env`: `static Executor make()`.
TEST_CASE_TEMPLATE_DEFINE("Executor conformance", Env, executor_conformance) {
  auto script = std::make_shared<scripted_writer::script>();
  auto writer = std::make_shared<scripted_writer>(script);
  auto executor = Env::make();
  const auto submit = [&](std::int64_t step, int rank = 0) {
    auto progress = std::make_shared<cairn::save_progress>(step);
    auto control = std::make_shared<cairn::image_control>();
    control->release();
    cairn::save_context c;
    c.step = step, c.rank = rank, c.world_size = rank + 1;
    executor.submit(cairn::save_job{cairn::any_writer(writer), c, empty_image(control),
                                    std::make_shared<const cairn::metadata>(), progress});
    return progress;
  };
  const auto until = cairn::deadline::in(std::chrono::minutes(1));

  SUBCASE("jobs run in order and end committed") {
    std::vector<std::shared_ptr<cairn::save_progress>> all;
    for (int step = 0; step < 5; ++step) all.push_back(submit(step));
    CHECK(executor.drain(until));
    std::vector<std::string> expected;
    for (int step = 0; step < 5; ++step) {
      expected.push_back("write " + std::to_string(step));
      expected.push_back("commit " + std::to_string(step));
    }
    CHECK(script->told() == expected);
    for (const auto& p : all) {
      CHECK(p->wait_finished(until));
      CHECK(p->written());
      CHECK(p->committed());
      CHECK(p->failure() == nullptr);
    }
  }
  SUBCASE("ranks other than the coordinator await the commit") {
    const auto p = submit(7, 2);
    CHECK(p->wait_finished(until));
    CHECK(script->told() == std::vector<std::string>{"write 7", "await 7"});
    CHECK(p->committed());
  }
  SUBCASE("a failure is on the progress, the others are told, and the next job works") {
    for (const char* call : {"space", "write", "commit"}) {
      for (const bool foreign : {false, true}) {
        script->fail_in = call;
        script->foreign = foreign;
        const auto failed = submit(1);
        CHECK(failed->wait_finished(until));
        CHECK(failed->failure() != nullptr);
        CHECK_FALSE(failed->committed());
        CHECK(failed->written() == false);
        CHECK(script->told().back() == "abort 1");
        script->fail_in.clear();
        const auto next = submit(2);
        CHECK(next->wait_finished(until));
        CHECK(next->committed());
      }
    }
  }
  SUBCASE("whoever observes the end does so once, before waiters see it") {
    std::atomic<int> ends{0};
    auto progress = std::make_shared<cairn::save_progress>(3);
    progress->on_end([&](const cairn::save_report& r, const std::exception_ptr& why) {
      CHECK(r.step == 3);
      CHECK(why == nullptr);
      ++ends;
    });
    auto control = std::make_shared<cairn::image_control>();
    control->release();
    cairn::save_context c;
    c.step = 3;
    executor.submit(cairn::save_job{cairn::any_writer(writer), c, empty_image(control),
                                    std::make_shared<const cairn::metadata>(), progress});
    CHECK(progress->wait_finished(until));
    CHECK(ends == 1);
  }
  SUBCASE("its end waits for its jobs") {
    std::shared_ptr<cairn::save_progress> last;
    {
      auto dying = Env::make();
      std::swap(dying, executor);
      for (int step = 0; step < 20; ++step) last = submit(step);
      std::swap(dying, executor);
    }
    CHECK(last->committed());
  }
}

}  // namespace cairn_test
