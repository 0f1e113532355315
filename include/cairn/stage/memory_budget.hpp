// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Memory that the buffers of several stagers share, so that two states in one process (a policy and a
/// critic, a model and its average) do not need the sum of both images:
///
/// `cairn::memory_budget budget{8ull << 30};`
/// `cairn::heap_stager{{.budget = budget}}  // of each checkpointer`
///
/// - The buffers of all stagers that were given copies of one budget never hold more bytes together.
/// - A stager that needs a buffer takes what is left; then buffers that other stagers keep for later are
///   freed; then it waits, in the order of asking, until an earlier save has ended, at most until the save's
///   deadline. An image that is larger than the whole budget is an error at once.
/// - Saves that are being written end without the training thread, except overlapped ones, which wait for
///   before_update(): where the budget does not hold both images, call it on the one checkpointer before
///   save() on the other.
/// - A buffer counts with its rounded size: multiples of 2 MiB from there on, of 4 KiB below.
///
/// Copies share the budget. A default-constructed one has no limit. Any thread.
class memory_budget {
 public:
  /// No limit, and nothing is counted.
  memory_budget() = default;
  /// @throws usage_error (usage_bad_option) if `bytes` is zero.
  explicit memory_budget(std::uint64_t bytes) : state_(std::make_shared<state>()) {
    if (bytes == 0) fail(error_id::usage_bad_option, "a memory budget of zero bytes holds no image");
    state_->limit = bytes;
  }

  [[nodiscard]] bool limited() const noexcept { return state_ != nullptr; }
  /// Bytes in all; the largest number where there is no limit.
  [[nodiscard]] std::uint64_t limit() const noexcept {
    return state_ ? state_->limit : std::numeric_limits<std::uint64_t>::max();
  }
  /// Bytes of buffers that are there now, in use or kept.
  [[nodiscard]] std::uint64_t used() const {
    if (!state_) return 0;
    const std::lock_guard lock(state_->mutex);
    return state_->used;
  }

 private:
  struct state;

 public:
  /// For stagers: a part of the budget, given back by the destructor.
  class share {
   public:
    share() = default;
    share(share&& other) noexcept : state_(std::move(other.state_)), bytes_(std::exchange(other.bytes_, 0)) {}
    share& operator=(share&& other) noexcept {
      std::swap(state_, other.state_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~share() {
      if (state_ != nullptr) state_->give_back(bytes_);
    }
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

   private:
    friend class memory_budget;
    share(std::shared_ptr<state> from, std::uint64_t bytes) noexcept
        : state_(std::move(from)), bytes_(bytes) {}
    std::shared_ptr<state> state_;
    std::uint64_t bytes_ = 0;
  };

  /// For stagers: the bytes that a buffer of `needed` bytes counts with.
  [[nodiscard]] static std::uint64_t rounded(std::uint64_t needed) noexcept {
    const std::uint64_t unit = needed >= (std::uint64_t{2} << 20) ? std::uint64_t{2} << 20 : 4096;
    if (needed > std::numeric_limits<std::uint64_t>::max() - unit) return needed;
    return std::max(unit, (needed + unit - 1) / unit * unit);
  }
  /// For stagers: `free_kept` frees the buffers that the stager keeps for later. It is called by other
  /// stagers that need room, by any thread, until the returned handle ends.
  [[nodiscard]] std::shared_ptr<void> join(std::function<void()> free_kept) const {
    if (!state_) return nullptr;
    auto member = std::make_shared<std::function<void()>>(std::move(free_kept));
    const std::lock_guard lock(state_->mutex);
    std::erase_if(state_->members, [](const auto& m) { return m.expired(); });
    state_->members.push_back(member);
    return member;
  }
  /// For stagers: a buffer is not in use any more and is kept; whoever waits may ask for it to be freed.
  void kept() const {
    if (!state_) return;
    {
      const std::lock_guard lock(state_->mutex);
      if (state_->waiting.empty()) return;
      ++state_->keepings;
    }
    state_->changed.notify_all();
  }
  /// For stagers: room for `needed` bytes, rounded. @throws storage_error (storage_limit) if the whole budget
  /// is smaller, timeout_error (timeout_staging) if room did not become free in time.
  [[nodiscard]] share take(std::uint64_t needed, deadline until) const {
    if (!state_) return {};
    check(needed);
    return state_->take(state_, rounded(needed), until);
  }
  /// For stagers: the same, and an empty share if there is no room without waiting or freeing.
  [[nodiscard]] share try_take(std::uint64_t needed) const {
    if (!state_) return {};
    check(needed);
    const std::lock_guard lock(state_->mutex);
    const auto bytes = rounded(needed);
    if (!state_->waiting.empty() || bytes > state_->limit - state_->used) return {};
    state_->used += bytes;
    return {state_, bytes};
  }

 private:
  void check(std::uint64_t needed) const {
    if (rounded(needed) > state_->limit)
      fail(error_id::storage_limit,
           "an image is larger than the whole memory budget: it needs a buffer of " +
               std::to_string(rounded(needed)) + " bytes, and the budget of all stagers that share it is " +
               std::to_string(state_->limit) +
               " bytes; give memory_budget more, save less on this rank, or use no_staging",
           {.expected = std::to_string(rounded(needed)) + " bytes",
            .got = std::to_string(state_->limit) + " bytes"});
  }

  struct state {
    std::uint64_t limit = 0;
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t used = 0;
    std::uint64_t keepings = 0;        // since somebody waits
    std::list<std::uint64_t> waiting;  // bytes that are waited for; the first is served first
    std::vector<std::weak_ptr<std::function<void()>>> members;

    void give_back(std::uint64_t bytes) noexcept {
      {
        const std::lock_guard lock(mutex);
        used -= bytes;
      }
      changed.notify_all();
    }
    share take(const std::shared_ptr<state>& self, std::uint64_t bytes, deadline until) {
      std::unique_lock lock(mutex);
      const auto place = waiting.insert(waiting.end(), bytes);
      const auto fits = [&] { return place == waiting.begin() && bytes <= limit - used; };
      for (auto asked = keepings - 1; !fits();) {
        if (std::exchange(asked, keepings) != keepings) {
          const auto others = members;
          lock.unlock();
          for (const auto& other : others)
            if (const auto free_kept = other.lock()) (*free_kept)();
          lock.lock();
          continue;
        }
        if (until.passed()) {
          const auto in_use = used;
          waiting.erase(place);
          lock.unlock();
          changed.notify_all();
          fail(error_id::timeout_staging,
               "no room in the memory budget in time: " + std::to_string(in_use) + " of " +
                   std::to_string(limit) +
                   " bytes hold images of saves that are still being written, or that "
                   "wait for before_update(); save less often, give memory_budget more, or call "
                   "before_update() of the one checkpointer before save() of the other",
               {.expected = std::to_string(bytes) + " bytes",
                .got = std::to_string(limit - in_use) + " bytes"});
        }
        // Years are cut to a day: wait_until overflows in some libraries at time_point::max().
        changed.wait_until(lock,
                           std::min(until.time_point(), deadline::clock::now() + std::chrono::hours(24)));
      }
      used += bytes;
      waiting.erase(place);
      lock.unlock();
      changed.notify_all();
      return {self, bytes};
    }
  };

  std::shared_ptr<state> state_;
};

}  // namespace v1
}  // namespace cairn
