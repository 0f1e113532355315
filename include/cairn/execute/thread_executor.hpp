// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/executor.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/execute/abandonable_thread.hpp>
#include <cairn/execute/run_save_job.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/thread_settings.hpp>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace cairn {
inline namespace v1 {

struct thread_executor_options {
  /// Of the writing thread, and of those that it starts. Threads that a store started before, as file_store
  /// does for a load, stay as they are.
  thread_settings thread = {};
  /// Limit of writing, in bytes; 0: none. A save must be written within the checkpointer's timeout. Where
  /// nothing is staged, the limit is lifted while training waits for its memory.
  std::uint64_t bytes_per_second = 0;
  /// For tests: where the limit takes its time from; null: the steady clock.
  std::shared_ptr<rate_clock> clock = nullptr;
};

namespace detail {
/// Runs what it is given, in order.
struct job_queue : thread_work {
  explicit job_queue(thread_settings of) : settings(std::move(of)) {}

  [[nodiscard]] bool busy() const noexcept { return running || !jobs.empty(); }
  void run() noexcept {
    apply_granted(settings);
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stopping || !jobs.empty(); });  // idle
      if (jobs.empty()) return;
      auto job = std::move(jobs.front());
      jobs.pop_front();
      running = true;
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
      running = false;
      changed.notify_all();
    }
  }

  const thread_settings settings;
  std::deque<std::function<void()>> jobs;
  bool running = false;
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
  static constexpr bool jobs_end_with_process = true;
  static constexpr bool runs_in_caller = false;

  thread_executor() : thread_executor(thread_executor_options()) {}
  /// @throws usage_error (usage_bad_option) for settings that are none or that the system does not grant.
  explicit thread_executor(thread_executor_options options)
      : rate_limiter_(make_rate_limiter(options.bytes_per_second, std::move(options.clock))) {
    detail::check_granted(options.thread);
    thread_ = std::make_unique<thread_type>(std::make_shared<detail::job_queue>(std::move(options.thread)));
  }

  template <class Writer>
  void submit(save_job<Writer> job) {
    const auto until = deadline::in(job.context.longest());
    job.image.limit_writing(rate_limiter_);
    auto shared = std::make_shared<save_job<Writer>>(std::move(job));
    thread_->give(
        [&](detail::job_queue& queue) {
          queue.jobs.emplace_back([shared] { run_save_job(std::move(*shared)); });
        },
        until);
  }
  [[nodiscard]] bool drain(deadline until) { return thread_->drain(until); }

 private:
  using thread_type = detail::abandonable_thread<detail::job_queue>;

  std::shared_ptr<rate_limiter> rate_limiter_;
  std::unique_ptr<thread_type> thread_;
};

}  // namespace v1
}  // namespace cairn
