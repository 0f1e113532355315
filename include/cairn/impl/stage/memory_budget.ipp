// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stage/memory_budget.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {

struct memory_budget::state {
  std::uint64_t limit = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t used = 0;
  std::uint64_t kept_calls = 0;      // of kept(), while somebody waits
  std::list<std::uint64_t> waiting;  // bytes that are waited for; the first is served first
  detail::vector<std::weak_ptr<member>> members;

  void give_back(std::uint64_t bytes) noexcept;
  share take(const std::shared_ptr<state>& self, std::uint64_t bytes, deadline until);
};

CAIRN_BODY memory_budget::memory_budget(std::uint64_t bytes) : state_(detail::make_shared<state>()) {
  if (bytes == 0) fail(error_id::usage_bad_option, "a memory budget of zero bytes holds no image");
  state_->limit = bytes;
}

CAIRN_BODY std::uint64_t memory_budget::limit() const noexcept {
  return state_ ? state_->limit : std::numeric_limits<std::uint64_t>::max();
}

CAIRN_BODY std::uint64_t memory_budget::used() const {
  if (!state_) return 0;
  const std::lock_guard lock(state_->mutex);
  return state_->used;
}

CAIRN_BODY memory_budget::share::share(share&& other) noexcept
    : state_(std::move(other.state_)), bytes_(std::exchange(other.bytes_, 0)) {}

CAIRN_BODY memory_budget::share& memory_budget::share::operator=(share&& other) noexcept {
  std::swap(state_, other.state_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

CAIRN_BODY memory_budget::share::~share() {
  if (state_ != nullptr) state_->give_back(bytes_);
}

CAIRN_BODY std::uint64_t memory_budget::rounded(std::uint64_t needed) noexcept {
  const std::uint64_t unit = needed >= (std::uint64_t{2} << 20) ? std::uint64_t{2} << 20 : 4096;
  if (needed > std::numeric_limits<std::uint64_t>::max() - unit) return needed;
  return std::max(unit, (needed + unit - 1) / unit * unit);
}

CAIRN_BODY std::shared_ptr<void> memory_budget::add(std::shared_ptr<member> stager) const {
  if (!state_) return nullptr;
  const std::lock_guard lock(state_->mutex);
  detail::erase_if(state_->members, [](const auto& m) { return m.expired(); });
  state_->members.push_back(stager);
  return stager;
}

CAIRN_BODY void memory_budget::kept() const {
  if (!state_) return;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->waiting.empty()) return;
    ++state_->kept_calls;
  }
  state_->changed.notify_all();
}

CAIRN_BODY memory_budget::share memory_budget::take(std::uint64_t needed, deadline until) const {
  if (!state_) return {};
  check(needed);
  return state_->take(state_, rounded(needed), until);
}

CAIRN_BODY memory_budget::share memory_budget::try_take(std::uint64_t needed) const {
  if (!state_) return {};
  check(needed);
  const std::lock_guard lock(state_->mutex);
  const auto bytes = rounded(needed);
  if (!state_->waiting.empty() || bytes > state_->limit - state_->used) return {};
  state_->used += bytes;
  return {state_, bytes};
}

CAIRN_BODY void memory_budget::check(std::uint64_t needed) const {
  if (rounded(needed) > state_->limit)
    fail(error_id::storage_limit,
         "an image is larger than the whole memory budget: it needs a buffer of " +
             std::to_string(rounded(needed)) + " bytes, and the budget of all stagers that share it is " +
             std::to_string(state_->limit) +
             " bytes; give memory_budget more, save less on this rank, or use no_staging",
         {.expected = std::to_string(rounded(needed)) + " bytes",
          .got = std::to_string(state_->limit) + " bytes"});
}

CAIRN_BODY void memory_budget::state::give_back(std::uint64_t bytes) noexcept {
  {
    const std::lock_guard lock(mutex);
    used -= bytes;
  }
  changed.notify_all();
}

CAIRN_BODY memory_budget::share memory_budget::state::take(const std::shared_ptr<state>& self,
                                                           std::uint64_t bytes, deadline until) {
  std::unique_lock lock(mutex);
  const auto place = waiting.insert(waiting.end(), bytes);
  const auto fits = [&] { return place == waiting.begin() && bytes <= limit - used; };
  for (auto asked = kept_calls - 1; !fits();) {
    if (std::exchange(asked, kept_calls) != kept_calls) {
      const auto others = members;
      lock.unlock();
      for (const auto& other : others)
        if (const auto free_kept = other.lock()) free_kept->free_kept();
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
           {.expected = std::to_string(bytes) + " bytes", .got = std::to_string(limit - in_use) + " bytes"});
    }
    // Years are cut to a day: wait_until overflows in some libraries at time_point::max().
    changed.wait_until(lock, std::min(until.time_point(), deadline::clock::now() + std::chrono::hours(24)));
  }
  used += bytes;
  waiting.erase(place);
  lock.unlock();
  changed.notify_all();
  return {self, bytes};
}

}  // namespace v1
}  // namespace cairn
