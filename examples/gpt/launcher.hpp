// SPDX-License-Identifier: Apache-2.0
/// One command, many processes: a program that starts itself once more for each rank of a job on this host.
/// The processes of a job live and die together, and leave nothing behind.
#pragma once

#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace gpt {

/// What a process that was started as a rank knows; the launcher passes it on as options.
struct started_rank {
  int rank = -1;       ///< -1: this process was not started by a launcher
  std::string job;     ///< the same on all ranks of a job, and of no other job on this host
  pid_t launcher = 0;  ///< the process that started it
};

/// A name that no other job on this host has.
inline std::string new_job_name() {
  std::random_device random;
  char name[64];
  std::snprintf(name, sizeof name, "train_gpt-%d-%08x%08x", static_cast<int>(::getpid()), random(), random());
  return name;
}

/// Called first by a process that was started as a rank: from now on the kernel ends it when its launcher
/// ends, however that ends. In lists of processes it is named by its rank.
inline void begin_rank(const started_rank& self) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != self.launcher) ::_exit(1);  // it was gone before the kernel was asked
  ::prctl(PR_SET_NAME, ("train_gpt." + std::to_string(self.rank)).c_str());
}

/// Starts this program once for each rank, with `--rank R --job NAME --launcher PID` before the arguments,
/// and waits until all have ended. Signals that ask this process to end, or to do something, go on to all of
/// them. When one ends badly, the others have some seconds to end by themselves, as those do that wait for
/// it; then they are killed. No other thread may run in this process.
class launcher {
 public:
  /// @param program what the user called it; arguments: what he said, without the program
  /// @throws std::system_error if a process cannot be started; those that were are killed then
  /// @param grace how long the others have when a rank has ended badly
  launcher(std::string program, std::vector<std::string> arguments, int ranks, std::chrono::seconds grace)
      : program_(std::move(program)), arguments_(std::move(arguments)), grace_(grace) {
    ::signal(SIGCHLD, SIG_DFL);  // who ignores it cannot wait for children
    ::sigemptyset(&handled_);
    for (const int each : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})
      ::sigaddset(&handled_, each);
    ::sigprocmask(SIG_BLOCK, &handled_, &before_);
    const std::string job = new_job_name();
    try {
      for (int rank = 0; rank < ranks; ++rank) processes_.push_back(start(rank, job));
    } catch (...) {
      send_to_all(SIGKILL);
      for (const pid_t process : processes_) ::waitpid(process, nullptr, 0);
      throw;
    }
  }
  launcher(const launcher&) = delete;
  launcher& operator=(const launcher&) = delete;

  /// The processes that were started, by rank: "101, 102, 103".
  std::string text() const {
    std::string list;
    for (const pid_t process : processes_) list += (list.empty() ? "" : ", ") + std::to_string(process);
    return list;
  }

  /// Waits until all ranks have ended.
  /// @return 0, or the status of the first rank that ended badly, as a shell tells it: 128 + the signal
  int wait() {
    while (std::any_of(processes_.begin(), processes_.end(), [](pid_t each) { return each != 0; })) {
      const int signal = next_signal();
      if (signal == SIGCHLD)
        collect();
      else if (signal != 0)
        send_to_all(signal);
      if (status_ != 0 && !killed_ && std::chrono::steady_clock::now() >= kill_at_) {
        killed_ = true;
        send_to_all(SIGKILL);
      }
    }
    return status_;
  }

 private:
  pid_t start(int rank, const std::string& job) {
    std::vector<std::string> words{program_, "--rank",     std::to_string(rank),      "--job",
                                   job,      "--launcher", std::to_string(::getpid())};
    words.insert(words.end(), arguments_.begin(), arguments_.end());
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);

    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setsigmask(&attributes, &before_);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    pid_t process = 0;
    const int failed =
        ::posix_spawn(&process, "/proc/self/exe", nullptr, &attributes, pointers.data(), environ);
    ::posix_spawnattr_destroy(&attributes);
    if (failed != 0)
      throw std::system_error(failed, std::generic_category(),
                              "cannot start the process of rank " + std::to_string(rank));
    return process;
  }

  /// The next signal; 0 if it is time to kill the ranks that are left.
  int next_signal() {
    if (status_ == 0 || killed_) {
      const int signal = ::sigwaitinfo(&handled_, nullptr);
      return std::max(signal, 0);
    }
    const auto left = std::max<std::chrono::nanoseconds>(kill_at_ - std::chrono::steady_clock::now(),
                                                         std::chrono::nanoseconds(0));
    const timespec wait{.tv_sec = left / std::chrono::seconds(1),
                        .tv_nsec = left % std::chrono::seconds(1) / std::chrono::nanoseconds(1)};
    return std::max(::sigtimedwait(&handled_, nullptr, &wait), 0);
  }

  /// Takes note of every rank that has ended.
  void collect() {
    const bool all_well = status_ == 0;
    bool is_news = false;
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      int status = 0;
      if (processes_[rank] == 0 || ::waitpid(processes_[rank], &status, WNOHANG) != processes_[rank])
        continue;
      const pid_t process = processes_[rank];
      processes_[rank] = 0;
      if (status == 0) continue;
      // One that was killed is the cause: the others may have ended because of it, and even before it was quite gone.
      if (WIFSIGNALED(status) && !by_signal_ && !killed_) {
        by_signal_ = true;
        status_ = 128 + WTERMSIG(status);
        reason_ =
            "was ended by signal " + std::to_string(WTERMSIG(status)) + ": " + ::strsignal(WTERMSIG(status));
      } else if (WIFEXITED(status) && status_ == 0) {
        status_ = WEXITSTATUS(status);
        reason_ = "ended with status " + std::to_string(status_);
      } else {
        continue;
      }
      is_news = true;
      reason_ = "rank " + std::to_string(rank) + " (process " + std::to_string(process) + ") " + reason_;
    }
    if (!is_news) return;
    if (all_well) kill_at_ = std::chrono::steady_clock::now() + grace_;
    std::fprintf(stderr, "train_gpt: %s\n", reason_.c_str());
  }

  void send_to_all(int signal) const {
    for (const pid_t process : processes_)
      if (process != 0) ::kill(process, signal);
  }

  std::string program_;
  std::vector<std::string> arguments_;
  std::chrono::seconds grace_;
  sigset_t handled_{}, before_{};
  std::vector<pid_t> processes_;  ///< by rank; 0: has ended
  int status_ = 0;
  std::string reason_;
  bool by_signal_ = false;
  bool killed_ = false;
  std::chrono::steady_clock::time_point kill_at_;
};

}  // namespace gpt
