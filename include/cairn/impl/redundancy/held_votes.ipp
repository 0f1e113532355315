// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_context.hpp>
#include <cairn/redundancy/held_votes.hpp>
#include <cairn/redundancy/save_votes.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/error.hpp>
#include <cairn/tiers/held_store.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

struct held_votes::state {
  /// A plan that this rank offers to those below it.
  struct offered_plan {
    offer_key key;
    std::vector<std::byte> bytes;
  };
  struct vote {
    held_step which = {};
    pinned_save pinned = {};
  };
  static constexpr std::size_t max_waiting = 64;
  static constexpr std::size_t max_plans = 8;
  static constexpr std::uint64_t many_apart = 8;

  state(any_peer_link& to, std::shared_ptr<spread_tier> of, std::int32_t where,
        std::chrono::nanoseconds longest, std::chrono::nanoseconds block)
      : link(to),
        tier(std::move(of)),
        place(where),
        timeout(longest),
        block_timeout(block),
        votes(to, "cairn.held", block, [this](bool) { return ended.load(std::memory_order_acquire); }) {}
  ~state() {
    for (const auto& each : plans) link.withdraw(each.key, deadline::in(std::chrono::seconds(1)));
  }

  [[nodiscard]] static std::uint64_t generation_of(const held_step& which) {
    return attempt_of(which.run, 0, save_count_of(which.run, which.step, which.attempt));
  }

  void have_plan(std::uint64_t plan_digest, deadline until) {
    const std::lock_guard lock(plan_mutex);
    const offer_key key{"cairn.plan", plan_digest};
    const auto known =
        std::find_if(plans.begin(), plans.end(), [&](const auto& each) { return each.key == key; });
    if (known != plans.end()) {
      // The tier of a host keeps fewer plans than are known here. Rank 0 writes its own again where they come again.
      if (place == link.rank() && link.rank() != 0 && !has_plan_in_tier(tier->directory(), plan_digest))
        tier->keep_plan(plan_digest, decode_manifest(known->bytes, "a plan that came before").content);
      return;
    }
    offered_plan made{.key = key, .bytes = {}};
    if (link.rank() == 0) {
      made.bytes = plan_in_tier(tier->directory(), plan_digest).bytes;
    } else {
      // Who fetches from the lowest rank of its place finds the plan there. A rank fetches from a lower one: no ring.
      const int parent = place == link.rank() ? save_votes::parent_of(link.rank()) : place;
      const auto size = votes.await(parent, key, until, false);
      if (size > max_manifest_bytes)
        fail(error_id::peer_bad_message, "a rank offers a plan that is too long",
             {.rank = parent, .got = std::to_string(size) + " bytes"});
      made.bytes.resize(static_cast<std::size_t>(size));
      const fetch_range all{.offset = 0, .destination = made.bytes};
      static_cast<void>(
          link.fetch(parent, key, std::span(&all, 1), deadline::in(block_timeout).earlier(until)));
      const auto m = decode_manifest(made.bytes, "the plan from rank " + std::to_string(parent));
      if (m.plan_digest != plan_digest)
        fail(error_id::peer_bad_message, "a rank offers another plan than the one that it names",
             {.rank = parent});
      if (place == link.rank()) tier->keep_plan(plan_digest, m.content);
    }
    if (plans.size() == max_plans) {
      link.withdraw(plans.front().key, deadline::in(std::chrono::seconds(1)));
      plans.pop_front();
    }
    plans.push_back(std::move(made));
    const std::span<const std::byte> bytes(plans.back().bytes);
    try {
      link.offer(key, std::span(&bytes, 1));
    } catch (...) {
      plans.pop_back();
      throw;
    }
  }

  void take_end(vote now, save_votes::outcome end) {
    if (end == save_votes::outcome::complete) {
      apart = 0, told_next = many_apart;
      tier->held_by_all(now.which);
      newest_complete = std::move(now.pinned);
    } else if (end == save_votes::outcome::unknown) {
      unknown = std::move(now);
    }
  }
  void decide(const held_step& which) {
    const auto generation = generation_of(which);
    try {
      if (unknown) {  // the others may rely on it
        auto before = std::exchange(unknown, std::nullopt);
        const auto end = votes.ask(generation_of(before->which));
        take_end(std::move(*before), end);
        if (unknown) throw passed_over();
      }
      const auto until = deadline::in(timeout);
      auto pinned = tier->pin(which);
      if (!pinned) throw passed_over();
      have_plan(pinned->plan_digest, until);
      const auto end = votes.agree(generation, until);
      take_end({.which = which, .pinned = std::move(*pinned)}, end);
      if (end != save_votes::outcome::complete)
        stays_apart(end == save_votes::outcome::given_up ? "another rank gave it up"
                                                         : "it was not told in time");
    } catch (const passed_over&) {
      votes.tell_gave_up(generation, true);
      stays_apart("a newer one came before, or what became of an earlier one is not known yet");
    } catch (const std::exception& e) {  // the save is held as it is, and older ones stay
      votes.tell_gave_up(generation, false);
      stays_apart(e.what());
    } catch (...) {  // a link of somebody else's may throw what it likes
      votes.tell_gave_up(generation, false);
      stays_apart("its link failed without a word");
    }
  }
  void stays_apart(const std::string& why) {
    if (ended.load(std::memory_order_acquire) || ++apart != told_next) return;
    told_next *= many_apart;
    if (told) told(apart, why);
  }
  void run() {
    for (;;) {
      held_step now;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return ended.load(std::memory_order_acquire) || !waiting.empty(); });
        if (ended.load(std::memory_order_acquire)) return;
        now = std::move(waiting.front());
        waiting.pop_front();
      }
      votes.withdraw_old();
      decide(now);
    }
  }

  any_peer_link& link;
  const std::shared_ptr<spread_tier> tier;
  const std::int32_t place;
  const std::chrono::nanoseconds timeout;
  const std::chrono::nanoseconds block_timeout;
  std::atomic<bool> ended{false};
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<held_step> waiting;
  std::uint64_t last = 0;  // of hold()

  std::mutex plan_mutex;
  std::deque<offered_plan> plans;

  callback<void(std::uint64_t, const std::string&)> told;

  // Of the thread.
  std::uint64_t apart = 0;  // saves since the last of which all ranks hold theirs
  std::uint64_t told_next = many_apart;
  pinned_save newest_complete;
  std::optional<vote> unknown;
  save_votes votes;
  background_thread thread;
};

CAIRN_BODY held_votes::held_votes(any_peer_link& link, std::shared_ptr<spread_tier> tier, std::int32_t place,
                                  std::chrono::nanoseconds timeout, std::chrono::nanoseconds block_timeout)
    : state_(std::make_unique<state>(link, std::move(tier), place, timeout, block_timeout)) {
  if (!state_->thread.start("cairn-held", [s = state_.get()] { s->run(); }))
    fail(error_id::storage_limit,
         "there is no thread that learns what other ranks hold: the system gives no more");
}
CAIRN_BODY held_votes::~held_votes() {
  stop();
  state_->thread.join();
}
CAIRN_BODY void held_votes::stop() noexcept {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ended.store(true, std::memory_order_release);
  }
  state_->changed.notify_all();
}
CAIRN_BODY void held_votes::when_apart(callback<void(std::uint64_t, const std::string&)> call) {
  state_->told = std::move(call);
}
CAIRN_BODY bool held_votes::have_plan(const held_step& which) {
  const auto pinned = state_->tier->pin(which);
  if (!pinned) return false;
  try {
    state_->have_plan(pinned->plan_digest, deadline::in(state_->timeout));
    return true;
  } catch (const passed_over&) {
    return false;
  }
}

CAIRN_BODY void held_votes::hold(const held_step& which) {
  auto& s = *state_;
  const auto save = save_count_of(which.run, which.step, which.attempt);
  // What this rank does not hold, the others need not wait for.
  const auto first = std::max(s.last + 1, save - std::min(save, save_votes::max_given_up));
  for (auto missed = first; missed < save; ++missed)
    s.votes.tell_gave_up(attempt_of(which.run, 0, missed), true);
  s.last = save;
  std::optional<held_step> dropped;
  {
    const std::lock_guard lock(s.mutex);
    s.waiting.push_back(which);
    if (s.waiting.size() > state::max_waiting) {
      dropped = std::move(s.waiting.front());
      s.waiting.pop_front();
    }
  }
  if (dropped) s.votes.tell_gave_up(state::generation_of(*dropped), true);
  s.changed.notify_all();
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
