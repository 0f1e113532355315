// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/background_thread.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/process_limits.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/shared_event.hpp>
#include <cairn/system/thread_settings.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// One thread of low priority that reads checkpoints back, one after the other: of those that came while it
/// was busy, the newest alone. It begins with the first. Any thread.
class scrubber {
 public:
  /// Called before each read with its bytes: waits for the limit; throws when the work is to end.
  using gate = std::function<void(std::uint64_t)>;
  /// Reads the checkpoint of a step; does not throw.
  using work = std::function<void(std::int64_t, const gate&)>;

  /// `bytes_per_second` 0: no limit
  explicit scrubber(std::uint64_t bytes_per_second) : state_(detail::make_shared<state>(bytes_per_second)) {}
  scrubber(const scrubber&) = delete;
  scrubber& operator=(const scrubber&) = delete;
  ~scrubber() { static_cast<void>(stop(deadline::in(std::chrono::nanoseconds(0)))); }

  /// `job` may own what it needs; it is destroyed at the latest when this stops.
  void ask(std::int64_t step, work job) {
    const std::lock_guard lock(state_->mutex);
    if (state_->stopping) return;
    state_->wanted = step;
    state_->job = std::move(job);
    if (!thread_.joinable() && !thread_.start("cairn verify", [state = state_] { run(*state); })) {
      state_->wanted.reset();
      state_->job = nullptr;
      fail_for_threads("to verify checkpoints");
    }
    state_->changed.notify_all();
  }
  /// Gives up what is being read and returns when the thread has ended: true. At the deadline false: the
  /// thread waits in the store and ends when that answers.
  [[nodiscard]] bool stop(deadline until) noexcept {
    work let_go;
    {
      const std::lock_guard lock(state_->mutex);
      state_->stopping = true;
      state_->wanted.reset();
      std::swap(let_go, state_->job);
      state_->changed.notify_all();
      state_->word.notify();
    }
    return thread_.join(until);
  }

 private:
  struct state {
    explicit state(std::uint64_t bytes_per_second) : limit(make_rate_limiter(bytes_per_second)) {}
    const std::shared_ptr<rate_limiter> limit;
    shared_event word;  ///< notified when it is to stop
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<std::int64_t> wanted;
    work job;
    bool stopping = false;
    [[nodiscard]] bool is_stopping() {
      const std::lock_guard lock(mutex);
      return stopping;
    }
  };
  static void run(state& s) noexcept {
    apply_granted({.nice = 19, .io = io_class::idle});
    const auto wait_for_turn = [&s](std::uint64_t bytes) {
      const auto year = deadline::in(std::chrono::hours(24 * 365));
      if (s.limit != nullptr)
        static_cast<void>(s.limit->acquire(bytes, s.word, year, [&] { return s.is_stopping(); }));
      if (s.is_stopping()) fail(error_id::timeout_close, "the checkpointer is closed");
    };
    std::unique_lock lock(s.mutex);
    for (;;) {
      s.changed.wait(lock, [&] { return s.stopping || s.wanted.has_value(); });
      if (s.stopping) return;
      const auto step = *s.wanted;
      auto job = std::exchange(s.job, nullptr);
      s.wanted.reset();
      lock.unlock();
      try {
        job(step, wait_for_turn);
      } catch (...) {  // it tells itself
      }
      job = nullptr;
      lock.lock();
    }
  }

  std::shared_ptr<state> state_;
  background_thread thread_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
