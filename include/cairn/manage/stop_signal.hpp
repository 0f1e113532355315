// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What the handler of the process's stop_signal writes and its owner reads. Static, since a handler has no
/// other way to it; and lock-free, so that a handler may use it.
struct stop_state {
  std::atomic<bool> owned{false};
  std::atomic<int> first{0};
  std::atomic<std::int64_t> at{0};  // nanoseconds of the steady clock
  std::atomic<std::uint32_t> count{0};
  static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
                std::atomic<std::int64_t>::is_always_lock_free &&
                std::atomic<std::uint32_t>::is_always_lock_free);

  void note(int number) noexcept;
};
inline stop_state the_stop_state;

extern "C" inline void cairn_v1_note_stop_signal(int number) {
  const int before = errno;
  the_stop_state.note(number);
  errno = before;
}
}  // namespace detail

/// A file whose appearance asks a job to stop, for people without the right to send its processes signals.
struct stop_file {
  std::string path;
  /// At most so often requested() looks for it, which costs a system call: on a network file system one to
  /// the server, which may hang as that does.
  std::chrono::nanoseconds every = std::chrono::seconds(1);
};

/// Notes that the system asks this process to stop (the notice before a preemption, the end of its time),
/// instead of ending it at once, so that training can save first:
///
/// `cairn::stop_signal stop{SIGTERM, SIGUSR1};  // in main, before threads are started`
/// `if (ckpt.any_rank(stop.requested())) { ckpt.save(state, step); break; }`
///
/// - Nothing is installed but by the constructor, and the destructor puts the former handlers back. Handlers
///   that the program put over these meanwhile stay.
/// - The handler only notes number and time: it saves nothing, ends nothing, and calls no former handler.
///   What the signal did before (usually: end the process) does not happen while this object lives.
/// - Interrupted system calls go on (SA_RESTART). A second signal is counted and does nothing more: SIGKILL
///   and SIGQUIT end the process as ever.
/// - A signal reaches one process; ranks agree with `any_rank`.
/// - `stop_signal{{SIGTERM}, stop_file{"checkpoints/stop"}}` also looks for a file, in requested(). It is
///   left where it is: whoever made it removes it before the next start.
///
/// One object in a process at a time. Constructed and destroyed by one thread; the other functions may be
/// called by any thread, and by signal handlers.
class stop_signal {
 public:
  /// SIGTERM: what Slurm, Kubernetes and systemd send first.
  stop_signal() : stop_signal({SIGTERM}) {}
  /// @throws usage_error (usage_bad_option) if there is another one, no signal is given, or one that cannot
  /// be caught or means a fault of the program.
  stop_signal(std::initializer_list<int> signals) : stop_signal(signals, stop_file{}) {}
  stop_signal(std::initializer_list<int> signals, stop_file file);
  stop_signal(const stop_signal&) = delete;
  stop_signal& operator=(const stop_signal&) = delete;
  ~stop_signal();

  /// True once one of the signals has come, request() was called, or the file was seen. Costs one load; with
  /// a file, the clock too, and a system call now and then: then it is not for signal handlers.
  [[nodiscard]] bool requested() const noexcept;
  /// The first signal that came; 0: none.
  [[nodiscard]] int signal() const noexcept { return detail::the_stop_state.first.load(); }
  /// How often one came.
  [[nodiscard]] std::uint32_t count() const noexcept { return detail::the_stop_state.count.load(); }
  /// When the first one came; the clock's epoch: none did.
  [[nodiscard]] std::chrono::steady_clock::time_point when() const noexcept;
  /// Time since then; zero: none came. What is left of the notice is its length less this.
  [[nodiscard]] std::chrono::duration<double> since() const noexcept;
  /// As if a signal had come, for reasons of the program's own: a file that appeared, a notice by HTTP.
  void request() noexcept { detail::the_stop_state.note(0); }

 private:
  [[nodiscard]] bool sees_file() const noexcept;

  struct installed {
    int number;
    struct sigaction before;
  };

  [[noreturn]] static void refuse(const std::string& why, const std::string& got);
  static void check(int number);
  static std::string text(int number);
  void install(int number);
  void restore() noexcept;

  std::vector<installed> former_;
  stop_file file_;
  mutable std::atomic<std::int64_t> next_look_{INT64_MIN};
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/manage/stop_signal.ipp>
#endif
