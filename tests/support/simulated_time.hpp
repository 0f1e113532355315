// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/system/error.hpp>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "thread_ranks.hpp"

namespace cairn_test {

/// A time that advances only while all present ranks wait for a message. Then the wait with the earliest
/// deadline ends, or that of the lowest rank if several are equal. How long a thread runs or rests makes no
/// difference.
class simulated_time {
 public:
  /// `ranks` have come, and will leave().
  void begin(int ranks) {
    const std::lock_guard lock(mutex_);
    here_ = ranks;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    --here_;
    go_on();
  }
  /// Returns when something may have come for this rank; false if its deadline came before.
  template <class Look>
  [[nodiscard]] bool wait(int rank, cairn::deadline until, Look look) {
    std::unique_lock lock(mutex_);
    last_ = std::max(last_, until.time_point());
    if (look()) return true;
    waits_.push_back({rank, until.time_point(), false, false});
    const auto mine = [&] { return std::ranges::find(waits_, rank, &one_wait::rank); };
    go_on();
    changed_.wait(lock, [&] { return mine()->arrived || mine()->ended; });
    const bool arrived = mine()->arrived;
    waits_.erase(mine());
    return arrived;
  }
  void arrived(int rank) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(waits_, rank, &one_wait::rank);
    if (found == waits_.end()) return;
    found->arrived = true;
    changed_.notify_all();
  }
  /// The latest deadline of a wait so far.
  [[nodiscard]] cairn::deadline::clock::time_point last() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }

 private:
  struct one_wait {
    int rank;
    cairn::deadline::clock::time_point until;
    bool arrived;
    bool ended;
  };
  void go_on() {
    if (waits_.empty() || static_cast<int>(waits_.size()) < here_) return;
    if (std::ranges::any_of(waits_, [](const auto& each) { return each.arrived || each.ended; })) return;
    std::ranges::min_element(waits_, {}, [](const auto& each) {
      return std::pair(each.until, each.rank);
    })->ended = true;
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<one_wait> waits_;
  int here_ = 0;
  cairn::deadline::clock::time_point last_ = cairn::deadline::clock::time_point::min();
};

/// A thread_communicator whose waits end by simulated_time alone.
class timed_communicator {
 public:
  using cairn_role = cairn::role::communicator;

  timed_communicator(cairn::thread_communicator inner, std::shared_ptr<simulated_time> time)
      : inner_(std::move(inner)), time_(std::move(time)) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  void send(int to, std::span<const std::byte> bytes, cairn::deadline until) {
    inner_.send(to, bytes, until);
    time_->arrived(to);
  }
  [[nodiscard]] std::vector<std::byte> receive(int from, cairn::deadline until) {
    std::vector<std::byte> message;
    const auto look = [&] {
      try {
        message = inner_.receive(from, cairn::deadline::in(std::chrono::nanoseconds(0)));
        return true;
      } catch (const cairn::timeout_error&) {
        return false;
      }
    };
    bool here = false;
    do {
      const bool in_time = time_->wait(rank(), until, [&] { return here = look(); });
      if (!in_time)
        cairn::fail(cairn::error_id::timeout_peer, "no message came by the deadline", {.rank = from});
    } while (!here);
    return message;
  }

 private:
  cairn::thread_communicator inner_;
  std::shared_ptr<simulated_time> time_;
};

/// Ranks as threads, in simulated time.
class timed_ranks {
 public:
  explicit timed_ranks(int size)
      : time_(std::make_shared<simulated_time>()), ranks_(size, [this](cairn::thread_communicator comm) {
          return timed_communicator(std::move(comm), time_);
        }) {}
  /// The same as thread_ranks::run().
  template <class Body>
  std::vector<std::exception_ptr> run(Body body, const std::vector<int>& absent = {}) {
    time_->begin(ranks_.size() - static_cast<int>(absent.size()));
    return ranks_.run(
        [&](auto& all) {
          const leaving at_the_end{*time_};
          body(all);
        },
        absent);
  }
  [[nodiscard]] const simulated_time& time() const { return *time_; }

 private:
  struct leaving {
    simulated_time& time;
    ~leaving() { time.leave(); }
  };
  std::shared_ptr<simulated_time> time_;
  thread_ranks<timed_communicator> ranks_;
};

}  // namespace cairn_test
