// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/executor.hpp>
#include <cairn/execute/save_thread.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/system/deadline.hpp>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY save_thread::~save_thread() {
  if (!thread_.joinable() || thread_.in_child()) return;
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

CAIRN_BODY void save_thread::submit(save_job job) {
  const auto until = deadline::in(job.context.longest());
  give(until, [&] {
    // Until the first byte is copied there is nothing to write: the thread that copies wakes this one, and
    // training only that one. It waits for the lock, and so for the job.
    const bool woken = job.image.when_begun([work = work_] {
      { const std::lock_guard lock(work->mutex); }
      work->wake();
    });
    work_->add(std::move(job));
    return woken;
  });
}

CAIRN_BODY void save_thread::prepare() {
  give(deadline::in(std::chrono::minutes(1)), [&] {
    work_->prepare();
    return false;
  });
}

CAIRN_BODY bool save_thread::drain(deadline until) {
  std::unique_lock lock(work_->mutex);
  while (work_->busy()) {
    if (until.passed()) return false;
    const auto slice = deadline::clock::now() + std::chrono::hours(24);
    work_->changed.wait_until(lock, std::min(until.time_point(), slice));
  }
  return true;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
