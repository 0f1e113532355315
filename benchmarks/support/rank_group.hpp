// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cairn/system/deadline.hpp>
#include <cairn/system/shared_event.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>
#include <vector>

namespace cairn_bench {

/// Processes that do the same piece of work each time they are told to: forks, which see what the parent made
/// before, and end with it.
class rank_group {
 public:
  struct shared_words {
    cairn::shared_event bell;
    std::atomic<int> turn{0};
    std::atomic<int> done{0};
    std::atomic<int> kind{0};  ///< of the turn
    std::atomic<bool> failed{false};
    std::array<std::array<double, 8>, 64> told{};  ///< what each rank tells of its turn
  };

  /// `make(rank)` gives, in the process of each rank, work(turn, kind, told), which is called once a turn.
  template <class Make>
  rank_group(int size, Make make) : size_(size) {
    void* memory =
        ::mmap(nullptr, sizeof(shared_words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    words_ = new (memory) shared_words;
    std::fflush(nullptr);
    for (int rank = 0; rank < size; ++rank) {
      const auto pid = ::fork();
      if (pid < 0) throw std::runtime_error("no process for a rank");
      if (pid > 0) {
        ranks_.push_back(pid);
        continue;
      }
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      try {
        serve(rank, make(rank));
      } catch (const std::exception& e) {
        std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
        words_->failed = true;
        words_->bell.notify();
      }
      std::fflush(nullptr);
      ::_exit(0);
    }
    wait_for(size);  // all have made what they need
  }
  rank_group(const rank_group&) = delete;
  rank_group& operator=(const rank_group&) = delete;
  ~rank_group() {
    for (const auto pid : ranks_) ::kill(pid, SIGKILL);
    for (const auto pid : ranks_) ::waitpid(pid, nullptr, 0);
    ::munmap(words_, sizeof(shared_words));
  }
  /// One turn of all ranks; its seconds, from telling them to the last one's end.
  double turn(int kind = 0) {
    words_->done = 0;
    words_->kind = kind;
    const auto begin = cairn::deadline::clock::now();
    words_->turn.fetch_add(1);
    words_->bell.notify();
    wait_for(size_);
    return cairn::seconds_since(begin);
  }
  [[nodiscard]] double told(std::size_t i, std::size_t rank = 0) const { return words_->told.at(rank).at(i); }

 private:
  template <class Work>
  void serve(int rank, Work work) {
    std::array<double, 8> told{};
    for (int turn = 1;; ++turn) {
      words_->done.fetch_add(1);
      words_->bell.notify();
      await([&] { return words_->turn.load() >= turn; });
      work(turn, words_->kind.load(), told);
      words_->told.at(static_cast<std::size_t>(rank)) = told;
    }
  }
  void wait_for(int done) {
    await([&] { return words_->done.load() >= done || words_->failed.load(); });
    if (words_->failed.load()) throw std::runtime_error("a rank failed");
  }
  template <class Condition>
  void await(Condition&& condition) {
    const auto until = cairn::deadline::in(std::chrono::minutes(20));
    for (;;) {
      const auto seen = words_->bell.current();
      if (condition()) return;
      if (until.passed()) throw std::runtime_error("a rank did not end its turn in time");
      words_->bell.wait(seen, until);
    }
  }

  int size_;
  std::vector<::pid_t> ranks_;
  shared_words* words_ = nullptr;
};

}  // namespace cairn_bench
