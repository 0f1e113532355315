// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>
#include <cairn/system/process_limits.hpp>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What an abandonable thread and its owner share.
struct thread_work {
  std::mutex mutex;
  std::condition_variable changed;  // something was given, or ended
  bool stopping = false;
};

/// `busy()`: whether anything was given that has not ended; called with the mutex held. `run()`: the thread
/// itself; returns once it is told to stop and is not busy.
template <class Work>
concept ThreadWork = std::derived_from<Work, thread_work> && requires(Work& work, const Work& unchanged) {
  { unchanged.busy() } noexcept -> std::same_as<bool>;
  { work.run() } noexcept;
};

/// A thread that starts when it is first given something, and is left behind, with what it shares, if it
/// hangs in the kernel when its owner ends. One thread owns it.
template <ThreadWork Work>
class abandonable_thread {
 public:
  explicit abandonable_thread(std::shared_ptr<Work> work) : work_(std::move(work)) {}
  abandonable_thread(const abandonable_thread&) = delete;
  abandonable_thread& operator=(const abandonable_thread&) = delete;
  /// Waits until all that was given has ended, or its deadlines have passed.
  ~abandonable_thread() {
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

  /// Calls give(work) with the mutex held. `until`: how long the destructor waits for what is given.
  /// @throws storage_error where the system gives no thread; then nothing was given.
  template <class Give>
  void give(Give&& give, deadline until) {
    if (!thread_.joinable()) start();
    {
      const std::lock_guard lock(work_->mutex);
      give(*work_);
    }
    until_ = deadline::at(std::max(until_.time_point(), until.time_point()));
    work_->changed.notify_all();
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
  void start() {
    try {
      thread_ = std::thread([work = work_] { work->run(); });
    } catch (const std::system_error&) {
      fail_for_threads("to write");
    }
  }

  std::shared_ptr<Work> work_;
  std::thread thread_;
  deadline until_ = deadline::in(std::chrono::nanoseconds(0));
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
