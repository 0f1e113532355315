// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/executor.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/thread_settings.hpp>

#include <cstdint>
#include <memory>

namespace cairn {
inline namespace v1 {
class rate_clock;
class rate_limiter;
namespace detail {
class save_thread;
}

/// Options of thread_executor.
struct thread_executor_options {
  /// Settings of the writing thread and of those that it starts. Threads that a store has started before,
  /// as file_store does for a load, keep theirs.
  thread_settings thread = {};
  /// The limit for writing, in bytes per second; 0: none. A save must be written within the
  /// checkpointer's timeout. Where nothing is staged, the limit does not apply while training waits for
  /// its memory.
  std::uint64_t bytes_per_second = 0;
  /// For tests: the clock of the limit; null: the steady clock.
  std::shared_ptr<rate_clock> clock = nullptr;
};

/// An Executor that writes and commits in a thread while training goes on. The thread starts with prepare() or the
/// first job. The destructor waits for all jobs, each at most until save_context::longest() after its
/// submission; after that it detaches the thread.
class thread_executor {
 public:
  using cairn_role = role::executor;
  template <class Writer>
  static constexpr bool accepts = true;
  static constexpr bool jobs_end_with_process = true;
  static constexpr bool runs_in_caller = false;

  thread_executor();
  /// @throws usage_error (usage_bad_option) for settings that are invalid or that the system refuses.
  explicit thread_executor(thread_executor_options options);
  thread_executor(thread_executor&&) noexcept;
  thread_executor& operator=(thread_executor&&) noexcept;
  ~thread_executor();

  // See PreparesEarly.
  void prepare();
  void submit(save_job job);
  [[nodiscard]] bool drain(deadline until);

 private:
  std::shared_ptr<rate_limiter> limit_;
  detail::owned<detail::save_thread> thread_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/execute/thread_executor.ipp>
#endif
