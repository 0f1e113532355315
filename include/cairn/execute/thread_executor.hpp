// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/executor.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/execute/run_save_job.hpp>
#include <cairn/execute/save_thread.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/thread_settings.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

namespace cairn {
inline namespace v1 {

/// Options of thread_executor.
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
/// Runs jobs in order.
class job_queue final : public thread_work {
 public:
  explicit job_queue(thread_settings settings) : settings_(std::move(settings)) {}

  void add(save_job job) override { jobs_.push_back(std::move(job)); }
  [[nodiscard]] bool busy() const noexcept override { return running_ || !jobs_.empty(); }
  void run() noexcept override {
    apply_granted(settings_);
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stopping || !jobs_.empty(); });  // idle
      if (jobs_.empty()) return;
      running_ = true;
      {
        auto job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        run_save_job(std::move(job));
      }
      lock.lock();
      running_ = false;
      changed.notify_all();
    }
  }

 private:
  const thread_settings settings_;
  std::deque<save_job> jobs_;
  bool running_ = false;
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
    thread_ =
        std::make_unique<detail::save_thread>(std::make_shared<detail::job_queue>(std::move(options.thread)));
  }

  void submit(save_job job) {
    job.image.limit_writing(rate_limiter_);
    thread_->submit(std::move(job));
  }
  [[nodiscard]] bool drain(deadline until) { return thread_->drain(until); }

 private:
  std::shared_ptr<rate_limiter> rate_limiter_;
  std::unique_ptr<detail::save_thread> thread_;
};

}  // namespace v1
}  // namespace cairn
