// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/executor.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/process_limits.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What an executor's thread does, and shares with its owner.
struct thread_work {
  thread_work() = default;
  thread_work(const thread_work&) = delete;
  thread_work& operator=(const thread_work&) = delete;
  virtual ~thread_work() = default;
  /// Takes a job. @pre locked
  virtual void add(save_job job) = 0;
  /// See PreparesEarly. @pre locked
  virtual void prepare() noexcept {}
  /// Whether anything was given that has not ended. @pre locked
  [[nodiscard]] virtual bool busy() const noexcept = 0;
  /// The thread itself; returns once it is told to stop and is not busy.
  virtual void run() noexcept = 0;

  std::mutex mutex;
  std::condition_variable changed;  // something was given, or ended
  bool stopping = false;
};

/// The thread of an executor: it starts when it is first given something, and is left behind, with what it
/// shares, if it hangs in the kernel when its owner ends. One thread owns it.
class save_thread {
 public:
  explicit save_thread(std::shared_ptr<thread_work> work) : work_(std::move(work)) {}
  save_thread(const save_thread&) = delete;
  save_thread& operator=(const save_thread&) = delete;
  /// Waits until all jobs have ended, each at most until save_context::longest() after its submission.
  ~save_thread() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(work_->mutex);
      work_->stopping = true;
    }
    work_->changed.notify_all();
    if (drain(until_))
      thread_.join();
    else
      thread_.detach();
  }

  /// @throws storage_error where the system gives no thread; then nothing was given.
  void submit(save_job job) {
    const auto until = deadline::in(job.context.longest());
    give(until, [&] { work_->add(std::move(job)); });
  }
  /// @throws storage_error where the system gives no thread.
  void prepare() {
    give(deadline::in(std::chrono::minutes(1)), [&] { work_->prepare(); });
  }
  /// Whether all that was given ended in time.
  [[nodiscard]] bool drain(deadline until) {
    std::unique_lock lock(work_->mutex);
    while (work_->busy()) {
      if (until.passed()) return false;
      const auto slice = deadline::clock::now() + std::chrono::hours(24);
      work_->changed.wait_until(lock, std::min(until.time_point(), slice));
    }
    return true;
  }

 private:
  /// `until`: how long the destructor waits for what is given.
  template <class Give>
  void give(deadline until, Give&& give) {
    if (!thread_.joinable()) start();
    {
      const std::lock_guard lock(work_->mutex);
      give();
    }
    until_ = deadline::at(std::max(until_.time_point(), until.time_point()));
    work_->changed.notify_all();
  }
  void start() {
    try {
      thread_ = std::thread([work = work_] { work->run(); });
    } catch (const std::system_error&) {
      fail_for_threads("to write");
    }
  }

  std::shared_ptr<thread_work> work_;
  std::thread thread_;
  deadline until_ = deadline::in(std::chrono::nanoseconds(0));
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
