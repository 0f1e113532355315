// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/executor.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/process_limits.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
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
  /// Has the thread look at what was given. Not locked.
  virtual void wake() noexcept { changed.notify_all(); }
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
  ~save_thread();

  /// @throws storage_error where the system gives no thread; then nothing was given.
  void submit(save_job job);
  /// @throws storage_error where the system gives no thread.
  void prepare();
  /// Whether all that was given ended in time.
  [[nodiscard]] bool drain(deadline until);

 private:
  /// `until`: how long the destructor waits for what is given.
  /// `give()`: true where somebody else wakes the thread.
  template <class Give>
  void give(deadline until, Give&& give) {
    if (!thread_.joinable() && !thread_.start("cairn save", [work = work_] { work->run(); }))
      fail_for_threads("to write");
    until_ = deadline::at(std::max(until_.time_point(), until.time_point()));
    bool woken = false;
    {
      const std::lock_guard lock(work_->mutex);
      woken = give();
    }
    if (!woken) work_->wake();
  }

  std::shared_ptr<thread_work> work_;
  background_thread thread_;
  deadline until_ = deadline::in(std::chrono::nanoseconds(0));
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/execute/save_thread.ipp>
#endif
