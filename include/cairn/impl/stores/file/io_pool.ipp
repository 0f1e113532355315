// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_journal.hpp>
#include <cairn/stores/file/io_pool.hpp>

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY io_pool::~io_pool() {
  if (process_.in_child()) {
    static_cast<void>(in_.release());
    return;
  }
  {
    const std::lock_guard lock(in_->mutex);
    in_->ending = true;
  }
  in_->wake.notify_all();
  for (auto& t : in_->threads) t.join();
}

CAIRN_BODY void io_pool::job::take_part() noexcept {
  while (!failed.load(std::memory_order_relaxed)) {
    const auto i = next.fetch_add(1, std::memory_order_relaxed);
    if (i >= count) return;
    try {
      call(context, i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      failed.store(true, std::memory_order_relaxed);
    }
  }
}

CAIRN_BODY void io_pool::post(const std::shared_ptr<job>& shared, std::size_t helpers) {
  {
    const std::lock_guard lock(in_->mutex);
    grow(std::min<std::size_t>(helpers, 64));
    const auto tickets = std::min(helpers, in_->threads.size());
    for (std::size_t i = 0; i < tickets; ++i) in_->queue.push_back(shared);
  }
  in_->wake.notify_all();
}

CAIRN_BODY void io_pool::grow(std::size_t wanted) {
  if (in_->threads.size() >= wanted) return;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  if (::pthread_sigmask(SIG_BLOCK, &all, &before) != 0) return;
  try {
    while (in_->threads.size() < wanted) in_->threads.emplace_back([in = in_.get()] { serve(*in); });
  } catch (const std::system_error&) {  // no more threads: those that there are do the work
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

CAIRN_BODY void io_pool::serve(inside& in) noexcept {
  for (;;) {
    std::shared_ptr<job> shared;
    {
      std::unique_lock lock(in.mutex);
      // Idle until there is work, or the pool ends.
      in.wake.wait(lock, [&] { return in.ending || !in.queue.empty(); });
      if (in.queue.empty()) return;
      shared = std::move(in.queue.front());
      in.queue.pop_front();
    }
    {
      const std::lock_guard lock(shared->mutex);
      if (shared->closed) continue;
      ++shared->active;
    }
    const auto before = thread_cpu_now();
    shared->take_part();
    const auto spent = thread_cpu_now() - before;
    const std::lock_guard lock(shared->mutex);
    shared->helpers_cpu += spent;
    if (--shared->active == 0) shared->ended.notify_all();
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
