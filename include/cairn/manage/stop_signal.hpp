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

/// The state that the signal handler writes and the stop_signal reads. Static, since a handler cannot
/// reach it in another way, and lock-free, so that a handler may use it (see signal-safety(7)).
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
  /// The file whose existence asks to stop.
  std::string path;
  /// The shortest time between two checks by requested(). A check costs a system call, which on a network
  /// file system asks the server and may hang with it.
  std::chrono::nanoseconds every = std::chrono::seconds(1);
};

/// Catches the signals by which a system asks this process to stop (before a preemption, or at the end of
/// its time), so that training can save first:
///
/// `cairn::stop_signal stop{SIGTERM, SIGUSR1};  // in main, before threads are started`
/// `if (ckpt.any_rank(stop.requested())) { ckpt.save(state, step); break; }`
///
/// - Only the constructor installs handlers, and the destructor restores the former ones. Handlers
///   that the program has installed over these in the meantime stay.
/// - The handler only stores number and time: it saves nothing, ends nothing, and does not call the
///   former handler. The former effect of the signal (usually to end the process) does not happen while
///   this object lives.
/// - Interrupted system calls continue (SA_RESTART, see sigaction(2)). A second signal is only counted;
///   SIGKILL and SIGQUIT end the process as usual.
/// - A signal reaches one process; ranks agree by `any_rank`.
/// - With `stop_signal{{SIGTERM}, stop_file{"checkpoints/stop"}}`, requested() also checks for a file.
///   cairn does not remove the file: its maker removes it before the next start.
///
/// One object in a process at a time. One thread constructs and destroys it; any thread, and signal
/// handlers, may call the other functions.
class stop_signal {
 public:
  /// Catches SIGTERM, which Slurm, Kubernetes and systemd send first.
  stop_signal() : stop_signal({SIGTERM}) {}
  /// @throws usage_error (usage_bad_option) if there is another stop_signal, no signal is given, or a
  /// signal cannot be caught or reports a fault of the program.
  stop_signal(std::initializer_list<int> signals) : stop_signal(signals, stop_file{}) {}
  stop_signal(std::initializer_list<int> signals, stop_file file);
  stop_signal(const stop_signal&) = delete;
  stop_signal& operator=(const stop_signal&) = delete;
  ~stop_signal();

  /// True after one of the signals, after request(), or after the file was seen. Costs one atomic load; with
  /// a file also the clock, and sometimes a system call, so that signal handlers must not call it.
  [[nodiscard]] bool requested() const noexcept;
  /// The first signal; 0: none.
  [[nodiscard]] int signal() const noexcept { return detail::the_stop_state.first.load(); }
  /// The number of signals.
  [[nodiscard]] std::uint32_t count() const noexcept { return detail::the_stop_state.count.load(); }
  /// The time of the first signal; the clock's epoch: none.
  [[nodiscard]] std::chrono::steady_clock::time_point when() const noexcept;
  /// The time since the first signal; zero: none.
  [[nodiscard]] std::chrono::duration<double> since() const noexcept;
  /// Acts as if a signal had come, for other reasons to stop, such as a notice by HTTP.
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
