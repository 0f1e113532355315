// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/error.hpp>

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <system_error>
#include <utility>
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

  void note(int number) noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    std::int64_t none = 0;
    at.compare_exchange_strong(none, std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec);
    int nobody = 0;
    first.compare_exchange_strong(nobody, number);
    count.fetch_add(1);
  }
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
  stop_signal(std::initializer_list<int> signals, stop_file file) : file_(std::move(file)) {
    if (signals.size() == 0) refuse("needs at least one signal", "");
    for (const int number : signals) check(number);
    if (detail::the_stop_state.owned.exchange(true))
      refuse("there is one in this process already; a second one would take its signals away", "");
    detail::the_stop_state.first = 0;
    detail::the_stop_state.at = 0;
    detail::the_stop_state.count = 0;
    try {
      former_.reserve(signals.size());
      for (const int number : signals) install(number);
    } catch (...) {
      restore();
      throw;
    }
  }
  stop_signal(const stop_signal&) = delete;
  stop_signal& operator=(const stop_signal&) = delete;
  ~stop_signal() { restore(); }

  /// True once one of the signals has come, request() was called, or the file was seen. Costs one load; with
  /// a file, the clock too, and a system call now and then: then it is not for signal handlers.
  [[nodiscard]] bool requested() const noexcept {
    return detail::the_stop_state.count.load() != 0 || (!file_.path.empty() && sees_file());
  }
  /// The first signal that came; 0: none.
  [[nodiscard]] int signal() const noexcept { return detail::the_stop_state.first.load(); }
  /// How often one came.
  [[nodiscard]] std::uint32_t count() const noexcept { return detail::the_stop_state.count.load(); }
  /// When the first one came; the clock's epoch: none did.
  [[nodiscard]] std::chrono::steady_clock::time_point when() const noexcept {
    return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(detail::the_stop_state.at.load()));
  }
  /// Time since then; zero: none came. What is left of the notice is its length less this.
  [[nodiscard]] std::chrono::duration<double> since() const noexcept {
    if (!requested()) return {};
    return std::chrono::steady_clock::now() - when();
  }
  /// As if a signal had come, for reasons of the program's own: a file that appeared, a notice by HTTP.
  void request() noexcept { detail::the_stop_state.note(0); }

 private:
  [[nodiscard]] bool sees_file() const noexcept {
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    auto next = next_look_.load();
    if (now < next || !next_look_.compare_exchange_strong(next, now + file_.every.count())) return false;
    if (::access(file_.path.c_str(), F_OK) != 0) return false;
    detail::the_stop_state.note(0);
    return true;
  }

  struct installed {
    int number;
    struct sigaction before;
  };

  [[noreturn]] static void refuse(const std::string& why, const std::string& got) {
    fail(error_id::usage_bad_option, "stop_signal: " + why, {.got = got});
  }
  static void check(int number) {
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS})
      if (number == fault)
        refuse("this signal means a fault of the program, which cannot go on", text(number));
    if (number < 1 || number > SIGRTMAX || number == SIGKILL || number == SIGSTOP)
      refuse("this signal cannot be caught", text(number));
  }
  static std::string text(int number) { return "signal " + std::to_string(number); }
  void install(int number) {
    struct sigaction action {};
    action.sa_handler = detail::cairn_v1_note_stop_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    installed one{number, {}};
    if (::sigaction(number, &action, &one.before) != 0)
      refuse("the signal cannot be caught: " + std::system_category().message(errno), text(number));
    former_.push_back(one);
  }
  void restore() noexcept {
    for (auto one = former_.rbegin(); one != former_.rend(); ++one) {
      struct sigaction now {};
      if (::sigaction(one->number, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
          now.sa_handler == detail::cairn_v1_note_stop_signal)
        ::sigaction(one->number, &one->before, nullptr);
    }
    former_.clear();
    detail::the_stop_state.owned = false;
  }

  std::vector<installed> former_;
  stop_file file_;
  mutable std::atomic<std::int64_t> next_look_{INT64_MIN};
};

}  // namespace v1
}  // namespace cairn
