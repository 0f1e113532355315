// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks that are real processes: forks of the test, which has no threads when it starts them.
#include <cairn/system/deadline.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

extern "C" int __llvm_profile_write_file(void) __attribute__((weak));

namespace cairn_test {

/// How a rank's process ended.
struct rank_end {
  int code = -1;      ///< its exit code, or -1
  int signal = 0;     ///< what killed it, or 0
  bool hung = false;  ///< it hung as rank_event said, and was killed when the others had ended
  bool late = false;  ///< it had not ended by the deadline, and was killed then
  std::string said;   ///< what its body threw, or told with rank_process::say()

  [[nodiscard]] bool good() const { return code == 0; }
  [[nodiscard]] bool killed() const { return signal == SIGKILL && !late && !hung; }
  [[nodiscard]] std::string text() const {
    if (late) return "did not end by the deadline; " + said;
    return signal != 0 ? "ended with signal " + std::to_string(signal) + "; " + said
                       : "exit code " + std::to_string(code) + "; " + said;
  }
};

/// What is to happen to a rank when its body reaches a named point for the `count`-th time.
struct rank_event {
  enum what_t { kill, hang };
  int rank = -1;
  std::string point = {};
  what_t what = kill;
  int count = 1;
};

/// The side of one rank, in its process.
class rank_process {
 public:
  rank_process(int rank, int size, int out, std::vector<rank_event> events, std::atomic<std::uint32_t>* words)
      : rank_(rank), size_(size), out_(out), events_(std::move(events)), words_(words) {}

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// A place where the rank may be killed or hang for ever.
  void point(std::string_view name) {
    for (auto& each : events_) {
      if (each.rank != rank_ || each.point != name || --each.count != 0) continue;
      for (;;) ::kill(::getpid(), each.what == rank_event::kill ? SIGKILL : SIGSTOP);
    }
  }
  /// Adds to rank_end::said.
  void say(std::string_view text) {
    while (!text.empty()) {
      const auto n = ::write(out_, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;
      text.remove_prefix(static_cast<std::size_t>(n));
    }
  }
  /// Numbers in memory that all ranks and the test share, zero at first.
  [[nodiscard]] std::atomic<std::uint32_t>& word(std::size_t i) const { return words_[i]; }
  /// Waits until the word has the value. @throws std::runtime_error after some minutes
  void await(std::size_t i, std::uint32_t value) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(3);
    while (words_[i].load() != value) {
      if (std::chrono::steady_clock::now() > end)
        throw std::runtime_error("a word did not come to its value");
      ::usleep(200);
    }
  }

 private:
  int rank_;
  int size_;
  int out_;
  std::vector<rank_event> events_;
  std::atomic<std::uint32_t>* words_;
};

/// Runs a function on N processes.
///
///     process_ranks ranks(4);
///     ranks.kill_at(2, "before save");
///     const auto ends = ranks.run([](rank_process& me) { ...; me.point("before save"); ...; });
///
/// A body that returns gives exit code 0; one that throws gives 1, and the exception's text in `said`. A rank
/// that has not ended after `timeout` is killed. All have ended and were waited for when run() returns; if
/// the test itself dies, the kernel kills them. The body runs in a fork: it must not use doctest's
/// assertions, and the test must have no threads.
class process_ranks {
 public:
  static constexpr std::size_t words = 64;

  explicit process_ranks(int size, std::chrono::milliseconds timeout = std::chrono::minutes(4))
      : size_(size), timeout_(timeout) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    words_ = static_cast<std::atomic<std::uint32_t>*>(memory);
    for (std::size_t i = 0; i < words; ++i) new (words_ + i) std::atomic<std::uint32_t>(0);
  }
  process_ranks(const process_ranks&) = delete;
  process_ranks& operator=(const process_ranks&) = delete;
  ~process_ranks() {
    reap(std::chrono::milliseconds(0));
    ::munmap(words_, bytes);
  }

  [[nodiscard]] int size() const { return size_; }
  process_ranks& kill_at(int rank, std::string point, int count = 1) {
    events_.push_back({rank, std::move(point), rank_event::kill, count});
    return *this;
  }
  process_ranks& hang_at(int rank, std::string point, int count = 1) {
    events_.push_back({rank, std::move(point), rank_event::hang, count});
    return *this;
  }
  [[nodiscard]] std::atomic<std::uint32_t>& word(std::size_t i) const { return words_[i]; }

  /// Runs body(rank_process&) on all ranks at the same time; returns how each ended, in the order of ranks.
  template <class Body>
  std::vector<rank_end> run(Body body) {
    start(body);
    return finish();
  }
  /// The two halves of run(), for tests that do something in between.
  template <class Body>
  void start(Body body) {
    for (int rank = 0; rank < size_; ++rank) start_one(rank, body);
  }
  /// Starts one rank alone; finish() returns its end, in the order of starts.
  template <class Body>
  void start_one(int rank, Body body) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe for a rank");
    std::fflush(nullptr);
    const auto parent = ::getpid();
    const auto pid = ::fork();
    if (pid < 0) throw std::runtime_error("no process for a rank");
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(3);
      ::close(ends[0]);
      for (const auto& each : running_) ::close(each.out);
      rank_process me(rank, size_, ends[1], events_, words_);
      ::_exit(run_body(me, body));
    }
    ::close(ends[1]);
    running_.push_back({pid, ends[0], static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)), {}});
  }
  std::vector<rank_end> finish() {
    reap(timeout_);
    std::vector<rank_end> all;
    for (auto& each : running_) all.push_back(std::move(each.end));
    running_.clear();
    return all;
  }
  /// The process of the i-th start that finish() has not seen.
  [[nodiscard]] ::pid_t process(std::size_t i) const { return running_.at(i).pid; }

 private:
  struct running {
    ::pid_t pid;
    int out;
    int watch;
    rank_end end;
    bool ended = false;
  };
  static constexpr std::size_t bytes = words * sizeof(std::atomic<std::uint32_t>);

  template <class Body>
  static int run_body(rank_process& me, Body& body) {
    int code = 0;
    try {
      body(me);
    } catch (const std::exception& e) {
      me.say(e.what());
      code = 1;
    } catch (...) {
      me.say("an exception of an unknown type");
      code = 1;
    }
    std::fflush(nullptr);
    if (__llvm_profile_write_file != nullptr) __llvm_profile_write_file();
    return code;
  }

  static void drain(running& each) {
    std::array<char, 4096> buffer;
    pollfd one{each.out, POLLIN, 0};
    while (::poll(&one, 1, 0) > 0) {
      const auto n = ::read(each.out, buffer.data(), buffer.size());
      if (n <= 0) return;
      each.end.said.append(buffer.data(), static_cast<std::size_t>(n));
    }
  }
  static void take_end(running& each) {
    int status = 0;
    while (::waitpid(each.pid, &status, 0) < 0 && errno == EINTR) {
    }
    drain(each);
    ::close(each.out);
    ::close(each.watch);
    each.ended = true;
    if (WIFEXITED(status)) each.end.code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) each.end.signal = WTERMSIG(status);
  }
  static bool has(const running& each, int what) {
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(each.pid), &info, what | WNOHANG | WNOWAIT) == 0)
      return info.si_pid != 0;
    return what == WEXITED;  // one that has ended just now is not stopped: the next look finds its end
  }
  /// Waits until all have ended.
  void reap(std::chrono::milliseconds timeout) {
    const auto end = std::chrono::steady_clock::now() + timeout;
    for (;;) {
      std::vector<pollfd> list;
      bool only_hung = true;
      for (auto& each : running_) {
        if (each.ended) continue;
        if (has(each, WEXITED)) {
          take_end(each);
          continue;
        }
        only_hung = only_hung && has(each, WSTOPPED);
        list.push_back({each.watch, POLLIN, 0});
        list.push_back({each.out, POLLIN, 0});  // a rank that prints much would block
      }
      if (list.empty()) return;
      const bool late = std::chrono::steady_clock::now() >= end;
      for (auto& each : running_) {
        if (each.ended || (!late && !only_hung)) continue;
        (only_hung ? each.end.hung : each.end.late) = true;
        ::kill(each.pid, SIGKILL);
        take_end(each);
      }
      // The end of a process that was stopped wakes nobody, so it is asked for.
      static_cast<void>(::poll(list.data(), list.size(), 10));
      for (auto& each : running_)
        if (!each.ended) drain_or_close(each);
    }
  }
  /// Reads what is there; a pipe at its end is closed, so that poll() does not return for it for ever.
  static void drain_or_close(running& each) {
    pollfd one{each.out, POLLIN, 0};
    if (each.out < 0 || ::poll(&one, 1, 0) <= 0) return;
    if ((one.revents & POLLIN) != 0) {
      drain(each);
    } else {
      ::close(each.out);
      each.out = -1;
    }
  }

  int size_;
  std::chrono::milliseconds timeout_;
  std::vector<rank_event> events_;
  std::vector<running> running_;
  std::atomic<std::uint32_t>* words_ = nullptr;
};

/// Throws, with what each rank said, unless all ended well.
inline void expect_good(const std::vector<rank_end>& ends) {
  std::string trouble;
  for (std::size_t rank = 0; rank < ends.size(); ++rank)
    if (!ends[rank].good()) trouble += "rank " + std::to_string(rank) + ": " + ends[rank].text() + "\n";
  if (!trouble.empty()) throw std::runtime_error(trouble);
}

/// A name for a job that no other test has.
inline std::string job_name() {
  static int count = 0;
  return "test-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

}  // namespace cairn_test
