// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/copy_engine.hpp>
#include <cairn/concepts/stager.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/stage/copy_job.hpp>
#include <cairn/stage/copy_threads.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/clocks.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/process_limits.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/thread_settings.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY copy_threads::copy_threads(int threads, std::shared_ptr<rate_limiter> limit,
                                      thread_settings settings)
    : state_(detail::make_owned<shared>()),
      threads_(threads),
      limit_(std::move(limit)),
      settings_(std::move(settings)) {}

CAIRN_BODY copy_threads::~copy_threads() {
  if (process_.in_child()) {
    (void)state_.release();
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    for (const auto& running : state_->running) running->lift_rate_limit();
  }
  state_->changed.notify_all();
  for (auto& worker : state_->workers) worker.join();
}

CAIRN_BODY void copy_threads::copy(std::shared_ptr<image_fill> fill, deadline until) {
  const bool overlapped = fill->options().overlapped;
  // Without overlap the calling thread copies, too.
  const int helpers = overlapped ? threads_ : threads_ - 1;
  auto& filled = *fill;
  // Behind another image it may begin late, and whoever waits for its begin would not see its save fail.
  if (overlapped && state_->idle()) filled.tells_begin();
  auto ranges = ranges_of(fill->shared_layout(), overlapped);
  if (overlapped && parts_ == nullptr) parts_ = detail::make_shared<part_copying>();
  auto job = detail::make_shared<copy_job>(std::move(fill), std::move(ranges), helpers, limit_, parts_);
  // Threads that wake up compete with training for its processor: copy the little that training waits for
  // before waking any.
  if (overlapped && job->early_ranges() <= 1) job->work(state_->hash, true);
  if (overlapped)
    filled.when_wanted([weak = std::weak_ptr(job)](std::uint64_t begin, std::uint64_t end, deadline timeout) {
      const auto wanted = weak.lock();  // null when all is copied
      return wanted != nullptr && wanted->copy_part(begin, end, timeout);
    });
  if (helpers > 0 && !job->has_ended()) {
    try {
      start(job, helpers, overlapped);
    } catch (...) {
      job->give_up(std::current_exception());
      throw;
    }
  }
  job->work(state_->hash, overlapped);
  // A thread that wakes up now must not find the job: it would only keep the buffer for longer.
  if (!overlapped) state_->remove(job);
  job->wait(overlapped, until);
}

CAIRN_BODY void copy_threads::shared::remove(const std::shared_ptr<copy_job>& job) {
  const std::lock_guard lock(mutex);
  detail::erase_if(jobs, [&](const auto& each) { return each == job; });
}

CAIRN_BODY bool copy_threads::shared::idle() {
  const std::lock_guard lock(mutex);
  return running.empty() &&
         std::none_of(jobs.begin(), jobs.end(), [](const auto& job) { return job->claimable(); });
}

CAIRN_BODY std::shared_ptr<copy_job> copy_threads::shared::take() {
  detail::erase_if(jobs, [](const auto& job) { return !job->claimable(); });
  for (auto& job : jobs)
    if (job->helpers_left > 0) {
      --job->helpers_left;
      return job;
    }
  return nullptr;
}

CAIRN_BODY void copy_threads::shared::run(hash_state& own) noexcept {
  std::unique_lock lock(mutex);
  for (;;) {
    auto job = take();
    if (job == nullptr) {
      if (stopping) return;  // what is in progress is finished by its threads
      changed.wait(lock);
      continue;
    }
    running.push_back(job.get());  // does not throw: room was reserved
    if (stopping) job->lift_rate_limit();
    const bool more = job->helpers_left > 0;
    lock.unlock();
    if (more) changed.notify_one();
    job->begun();
    auto cpu = thread_cpu_now();
    job->work(own, false, &cpu);
    lock.lock();
    running.erase(std::find(running.begin(), running.end(), job.get()));
    lock.unlock();
    job.reset();
    lock.lock();
  }
}

CAIRN_BODY std::shared_ptr<const image_ranges> copy_threads::ranges_of(
    const std::shared_ptr<const image_layout>& layout, bool early_first) {
  if (cut_ == nullptr || cut_layout_ != layout || cut_early_first_ != early_first) {
    cut_ = detail::make_shared<const image_ranges>(*layout, early_first);
    cut_layout_ = layout;
    cut_early_first_ = early_first;
  }
  return cut_;
}

CAIRN_BODY void copy_threads::prepare() {
  const std::lock_guard lock(state_->mutex);
  start_workers(threads_);
}

CAIRN_BODY void copy_threads::start_workers(int count) {
  while (state_->workers.size() < static_cast<std::size_t>(count)) {
    auto hash = detail::make_owned<hash_state>();
    state_->running.reserve(state_->workers.size() + 1);
    state_->workers.reserve(state_->workers.size() + 1);
    background_thread worker;
    if (!worker.start("cairn copy", [this, state = state_.get(), own = std::move(hash)] {
          apply_granted(settings_);
          state->run(*own);
        }))
      break;  // fewer threads do it too
    state_->workers.push_back(std::move(worker));
  }
}

CAIRN_BODY void copy_threads::start(const std::shared_ptr<copy_job>& job, int helpers, bool needed) {
  std::unique_lock lock(state_->mutex);
  start_workers(helpers);
  if (needed && state_->workers.empty()) fail_for_threads("to copy");
  state_->jobs.push_back(job);
  lock.unlock();
  state_->changed.notify_one();  // who wakes the next one, while this thread goes on
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
