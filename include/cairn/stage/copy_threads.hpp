// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/copy_engine.hpp>
#include <cairn/stage/copy_job.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/process_limits.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/signals_blocked.hpp>
#include <cairn/system/thread_settings.hpp>

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The threads of a host_copy and the images that they fill, in the order of arrival.
class copy_threads {
 public:
  /// `limit`: of what is copied while training goes on; null: none.
  explicit copy_threads(int threads, std::shared_ptr<rate_limiter> limit = nullptr,
                        thread_settings settings = {})
      : state_(std::make_unique<shared>()),
        threads_(threads),
        limit_(std::move(limit)),
        settings_(std::move(settings)) {}
  /// Waits for what is in progress. In a child after fork(), where there are no threads, nothing is touched.
  ~copy_threads() {
    if (process_ != ::getpid()) {
      (void)state_.release();
      return;
    }
    {
      const std::lock_guard lock(state_->mutex);
      state_->stopping = true;
      for (const auto& running : state_->running) running->hurry();
    }
    state_->changed.notify_all();
    for (auto& worker : state_->workers) worker.join();
  }
  copy_threads(const copy_threads&) = delete;
  copy_threads& operator=(const copy_threads&) = delete;

  void copy(std::shared_ptr<image_fill> fill, deadline until) {
    const bool overlapped = fill->options().overlapped;
    // Without overlap the caller is one of the threads.
    const int helpers = overlapped ? threads_ : threads_ - 1;
    auto& filled = *fill;
    auto units = units_of(fill->shared_layout(), overlapped);
    auto job = std::make_shared<copy_job>(std::move(fill), std::move(units), helpers, limit_);
    // Threads that wake up compete with training for its processor: the little that training waits for is
    // copied before that.
    if (overlapped && job->early_units() <= 1) job->work(state_->hash, true);
    if (overlapped)
      filled.when_wanted(
          [weak = std::weak_ptr(job)](std::uint64_t begin, std::uint64_t end, deadline timeout) {
            const auto wanted = weak.lock();  // null when all is copied
            return wanted != nullptr && wanted->copy_part(begin, end, timeout);
          });
    if (helpers > 0) {
      try {
        start(job, helpers, overlapped);
      } catch (...) {
        job->give_up(std::current_exception());
        throw;
      }
    }
    job->work(state_->hash, overlapped);
    // No worker that wakes up now finds the job: it would only keep the buffer for longer.
    if (!overlapped) state_->remove(job);
    job->wait(overlapped, until);
  }

 private:
  struct shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::shared_ptr<copy_job>> jobs;
    std::vector<copy_job*> running;  // by a worker; once for each
    std::vector<std::thread> workers;
    hash_state hash;  // of the thread that calls copy
    bool stopping = false;

    void remove(const std::shared_ptr<copy_job>& job) {
      const std::lock_guard lock(mutex);
      std::erase(jobs, job);
    }
    // The first job that another thread may join; jobs without anything to claim are dropped on the way.
    std::shared_ptr<copy_job> take() {
      std::erase_if(jobs, [](const auto& job) { return !job->claimable(); });
      for (auto& job : jobs)
        if (job->helpers_left > 0) {
          --job->helpers_left;
          return job;
        }
      return nullptr;
    }
    void run(hash_state& own) noexcept {
      std::unique_lock lock(mutex);
      for (;;) {
        auto job = take();
        if (job == nullptr) {
          if (stopping) return;  // what is in progress is finished by its threads
          changed.wait(lock);
          continue;
        }
        running.push_back(job.get());  // room was reserved
        if (stopping) job->hurry();
        const bool more = job->helpers_left > 0;
        lock.unlock();
        if (more) changed.notify_one();
        auto cpu = thread_cpu_now();
        job->work(own, false, &cpu);
        lock.lock();
        running.erase(std::find(running.begin(), running.end(), job.get()));
        lock.unlock();
        job.reset();
        lock.lock();
      }
    }
  };

  /// Cut once for all saves of a layout that follow each other.
  [[nodiscard]] std::shared_ptr<const copy_units> units_of(const std::shared_ptr<const image_layout>& layout,
                                                           bool early_first) {
    if (cut_ == nullptr || cut_layout_ != layout || cut_early_first_ != early_first) {
      cut_ = std::make_shared<const copy_units>(*layout, early_first);
      cut_layout_ = layout;
      cut_early_first_ = early_first;
    }
    return cut_;
  }
  void start(const std::shared_ptr<copy_job>& job, int helpers, bool needed) {
    std::unique_lock lock(state_->mutex);
    if (state_->workers.size() < static_cast<std::size_t>(helpers)) {
      const signals_blocked guard;
      try {
        while (state_->workers.size() < static_cast<std::size_t>(helpers)) {
          auto hash = std::make_unique<hash_state>();
          state_->running.reserve(state_->workers.size() + 1);
          state_->workers.emplace_back([this, state = state_.get(), own = std::move(hash)] {
            apply_granted(settings_);
            state->run(*own);
          });
          ::pthread_setname_np(state_->workers.back().native_handle(), "cairn copy");
        }
      } catch (const std::system_error&) {
        // Fewer threads do it too.
      }
    }
    if (needed && state_->workers.empty()) fail_for_threads("to copy");
    state_->jobs.push_back(job);
    lock.unlock();
    state_->changed.notify_one();  // who wakes the next one, while this thread goes on
  }

  std::unique_ptr<shared> state_;
  int threads_;
  std::shared_ptr<rate_limiter> limit_;
  thread_settings settings_;
  std::shared_ptr<const image_layout> cut_layout_;
  std::shared_ptr<const copy_units> cut_;
  bool cut_early_first_ = false;
  ::pid_t process_ = ::getpid();
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
