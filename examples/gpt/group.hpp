// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <exception>
#include <mutex>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

namespace gpt {

/// The ranks that train one model together, as one of them sees them.
class group {
 public:
  virtual ~group() = default;
  virtual std::size_t rank() const = 0;
  virtual std::size_t size() const = 0;

  /// Collective: outgoing[r] goes to rank r, incoming[r] is filled by rank r; both have size() entries, and
  /// what r sends to s has the length that s expects from r. A part that is the same memory on both sides
  /// stays as it is. Returns when all ranks may change their memory.
  /// @throws std::runtime_error on all ranks if one failed or does not arrive
  virtual void exchange(std::span<const std::span<const float>> outgoing,
                        std::span<const std::span<float>> incoming) = 0;
};

/// Ranks that are threads of this process.
class thread_team {
 public:
  explicit thread_team(std::size_t size) : sent(size) {}

  /// Runs body(group&) on a thread for each rank and waits for all.
  /// @throws what the first rank that failed threw; the others are told and end as well
  template <typename Body>
  void run(Body body) {
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < sent.size(); ++rank) {
      threads.emplace_back([this, rank, &body] {
        try {
          member one(*this, rank);
          body(static_cast<group&>(one));
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!failure) failure = std::current_exception();
          changed.notify_all();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (failure) std::rethrow_exception(failure);
  }

 private:
  class member final : public group {
   public:
    member(thread_team& owner, std::size_t rank) : team(owner), rank_(rank) {}
    std::size_t rank() const override { return rank_; }
    std::size_t size() const override { return team.sent.size(); }

    void exchange(std::span<const std::span<const float>> outgoing,
                  std::span<const std::span<float>> incoming) override {
      team.sent[rank_] = outgoing;
      team.wait();
      bool fits = true;
      for (std::size_t from = 0; from < size(); ++from) {
        const std::span<const float> part = team.sent[from][rank_];
        if (part.size() != incoming[from].size())
          fits = false;
        else if (!part.empty() && part.data() != incoming[from].data())
          std::memcpy(incoming[from].data(), part.data(), part.size_bytes());
      }
      team.wait();  // before any throw: others may still read what this rank sent
      if (!fits) throw std::logic_error("a rank sent another length than was expected");
    }

   private:
    thread_team& team;
    std::size_t rank_;
  };

  /// A barrier that ends for all when one rank has failed.
  void wait() {
    std::unique_lock lock(mutex);
    const std::size_t mine = round;
    if (++arrived == sent.size()) {
      arrived = 0;
      ++round;
      changed.notify_all();
      return;
    }
    const bool told =
        changed.wait_for(lock, std::chrono::minutes(5), [&] { return round != mine || failure != nullptr; });
    if (round == mine)
      throw std::runtime_error(told ? "another rank failed" : "another rank did not arrive in 5 minutes");
  }

  std::vector<std::span<const std::span<const float>>> sent;
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t arrived = 0;
  std::size_t round = 0;
  std::exception_ptr failure;
};

}  // namespace gpt
