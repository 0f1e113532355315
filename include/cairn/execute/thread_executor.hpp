// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/executor.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/execute/run_save_job.hpp>
#include <cairn/model/pace.hpp>
#include <cairn/model/process_limits.hpp>
#include <cairn/model/thread_settings.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace cairn {
inline namespace v1 {

struct thread_executor_options {
  /// Of the writing thread, and of those that it starts. Threads that a store started before, as file_store
  /// does for a load, stay as they are.
  thread_settings thread = {};
  /// Limit of writing, in bytes; 0: none. A save must be written within the checkpointer's patience. Where
  /// nothing is staged, the limit is lifted while training waits for its memory.
  std::uint64_t bytes_per_second = 0;
  /// For tests: where the limit takes its time from; null: the steady clock.
  std::shared_ptr<pace_clock> clock = nullptr;
};

namespace detail {
/// A thread that runs what it is given, in order, and can be left behind if it hangs.
class job_thread {
 public:
  job_thread() : job_thread(thread_settings{}) {}
  explicit job_thread(thread_settings settings)
      : shared_(std::make_shared<shared>()), settings_(std::move(settings)) {}
  job_thread(const job_thread&) = delete;
  job_thread& operator=(const job_thread&) = delete;
  ~job_thread() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->stopping = true;
    }
    shared_->changed.notify_all();
    // Jobs end by their own deadlines; a thread that hangs in the kernel is left to the end of the process.
    if (drain(until_))
      thread_.join();
    else
      thread_.detach();
  }
  /// `until`: how long the destructor waits for this job.
  void run(std::function<void()> job, deadline until) {
    if (!thread_.joinable()) start();
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->jobs.push_back(std::move(job));
    }
    until_ = deadline::at(std::max(until_.time_point(), until.time_point()));
    shared_->changed.notify_all();
  }
  [[nodiscard]] bool drain(deadline until) {
    std::unique_lock lock(shared_->mutex);
    while (shared_->running || !shared_->jobs.empty()) {
      if (until.passed()) return false;
      const auto slice = deadline::clock::now() + std::chrono::hours(24);
      shared_->changed.wait_until(lock, std::min(until.time_point(), slice));
    }
    return true;
  }

 private:
  struct shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> jobs;
    bool running = false;
    bool stopping = false;
  };
  void start() {
    try {
      thread_ = std::thread([state = shared_, settings = settings_] {
        apply_granted(settings);
        loop(*state);
      });
    } catch (const std::system_error&) {
      fail_for_threads("to write");
    }
  }
  static void loop(shared& s) {
    std::unique_lock lock(s.mutex);
    for (;;) {
      s.changed.wait(lock, [&] { return s.stopping || !s.jobs.empty(); });  // idle
      if (s.jobs.empty()) return;
      auto job = std::move(s.jobs.front());
      s.jobs.pop_front();
      s.running = true;
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
      s.running = false;
      s.changed.notify_all();
    }
  }
  std::shared_ptr<shared> shared_;
  thread_settings settings_;
  std::thread thread_;
  deadline until_ = deadline::in(std::chrono::nanoseconds(0));
};
}  // namespace detail

/// A thread of its own writes and commits while training goes on. The thread starts with the first job.
/// The destructor waits for all jobs, each at most until save_context::longest() after its submission; then
/// it leaves the thread behind.
class thread_executor {
 public:
  using cairn_role = role::executor;
  template <class Writer>
  static constexpr bool accepts = true;
  static constexpr bool runs_in_caller = false;

  thread_executor() : thread_(std::make_unique<detail::job_thread>()) {}
  /// @throws usage_error (usage_bad_option) for settings that are none or that the system does not grant.
  explicit thread_executor(thread_executor_options options)
      : pace_(make_pace(options.bytes_per_second, std::move(options.clock))) {
    detail::check_granted(options.thread);
    thread_ = std::make_unique<detail::job_thread>(std::move(options.thread));
  }

  template <class Writer>
  void submit(save_job<Writer> job) {
    const auto until = deadline::in(job.context.longest());
    job.image.limit_writing(pace_);
    auto shared = std::make_shared<save_job<Writer>>(std::move(job));
    thread_->run([shared] { run_save_job(std::move(*shared)); }, until);
  }
  [[nodiscard]] bool drain(deadline until) { return thread_->drain(until); }

 private:
  std::shared_ptr<pace> pace_;
  std::unique_ptr<detail::job_thread> thread_;
};

}  // namespace v1
}  // namespace cairn
