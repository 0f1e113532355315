// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/failed_saves.hpp>
#include <cairn/concepts/any_writer.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/vector.hpp>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What the thread shares with its owner, and may outlive it with.
struct failed_saves::inside {
  struct task {
    save_context context;
    std::exception_ptr why;
  };
  explicit inside(any_writer w) : writer(std::move(w)) {}
  void run() noexcept {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return closing || !tasks.empty(); });
      if (tasks.empty()) return;
      busy = true;
      {
        auto mine = std::move(tasks.front());
        tasks.erase(tasks.begin());
        lock.unlock();
        writer.abort(mine.context, std::move(mine.why));
      }
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }

  any_writer writer;
  std::mutex mutex;
  std::condition_variable changed;  // a task was given, or has ended
  vector<task> tasks;
  bool busy = false;
  bool closing = false;
};

CAIRN_BODY failed_saves::~failed_saves() {
  if (!thread_.joinable() || thread_.in_child()) return;
  {
    const std::lock_guard lock(in_->mutex);
    in_->closing = true;
  }
  in_->changed.notify_all();
  thread_.join(deadline::in(longest_end));
}

CAIRN_BODY void failed_saves::end(const save_context& c, const std::exception_ptr& why) noexcept {
  try {
    if (start()) {
      std::unique_lock lock(in_->mutex);
      const bool answers = in_->tasks.empty() && !in_->busy;
      in_->tasks.push_back({c, why});
      in_->changed.notify_all();
      if (answers)
        in_->changed.wait_for(lock, longest_wait, [&] { return in_->tasks.empty() && !in_->busy; });
      return;
    }
  } catch (...) {  // out of memory
  }
  writer_.abort(c, why);
}

CAIRN_BODY bool failed_saves::start() {
  if (thread_.joinable()) return true;
  in_ = detail::make_shared<inside>(writer_);
  return thread_.start("cairn abort", [in = in_] { in->run(); });
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
