// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/background_thread.hpp>
#include <cairn/system/clocks.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/shared_calls.hpp>
#include <cairn/system/thread_pool.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

struct thread_pool::job {
  job(std::size_t count, function_ref<void(std::size_t, std::size_t)> call) noexcept : calls(count, call) {}
  shared_calls calls;
  std::mutex mutex;
  std::condition_variable ended;
  std::size_t active = 0;
  bool closed = false;
  std::int64_t helpers_cpu = 0;
};

struct thread_pool::inside {
  std::mutex mutex;
  std::condition_variable wake;
  vector<std::shared_ptr<job>> queue;
  vector<background_thread> threads;
  bool ending = false;

  void post(const std::shared_ptr<job>& shared, std::size_t helpers) {
    {
      const std::lock_guard lock(mutex);
      while (threads.size() < std::min<std::size_t>(helpers, 64)) {
        background_thread next;
        threads.reserve(threads.size() + 1);
        if (!next.start("cairn io", [this] { serve(); })) break;  // fewer threads do it, too
        threads.push_back(std::move(next));
      }
      const auto tickets = std::min(helpers, threads.size());
      for (std::size_t i = 0; i < tickets; ++i) queue.push_back(shared);
    }
    wake.notify_all();
  }
  void serve() noexcept {
    for (;;) {
      std::shared_ptr<job> shared;
      {
        std::unique_lock lock(mutex);
        // Idle until there is work, or the pool ends.
        wake.wait(lock, [&] { return ending || !queue.empty(); });
        if (queue.empty()) return;
        shared = std::move(queue.front());
        queue.erase(queue.begin());
      }
      {
        const std::lock_guard lock(shared->mutex);
        if (shared->closed) continue;
        ++shared->active;
      }
      const auto before = thread_cpu_now();
      shared->calls.take_part(1);
      const auto spent = thread_cpu_now() - before;
      const std::lock_guard lock(shared->mutex);
      shared->helpers_cpu += spent;
      if (--shared->active == 0) shared->ended.notify_all();
    }
  }
};

CAIRN_BODY thread_pool::thread_pool() : in_(detail::make_owned<inside>()) {}

CAIRN_BODY thread_pool::~thread_pool() {
  if (process_.in_child()) {
    static_cast<void>(in_.release());
    return;
  }
  {
    const std::lock_guard lock(in_->mutex);
    in_->ending = true;
  }
  in_->wake.notify_all();
  in_->threads.clear();
}

CAIRN_BODY std::int64_t thread_pool::run(std::size_t count, std::size_t in_flight,
                                         function_ref<void(std::size_t)> work) {
  if (count == 0) return 0;
  const auto helpers = std::min(in_flight, count) - 1;
  if (helpers == 0) {
    for (std::size_t i = 0; i < count; ++i) work(i);
    return 0;
  }
  const auto call = [&work](std::size_t i, std::size_t) { work(i); };
  const auto shared = detail::make_shared<job>(count, call);
  try {
    in_->post(shared, helpers);
  } catch (const std::bad_alloc&) {  // fewer helpers do it, too
  }
  shared->calls.take_part(0);
  std::unique_lock lock(shared->mutex);
  shared->closed = true;
  // Without a deadline: a call that hangs in the kernel reads or writes memory of the caller's until it ends.
  shared->ended.wait(lock, [&] { return shared->active == 0; });
  shared->calls.throw_failure();
  return shared->helpers_cpu;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
