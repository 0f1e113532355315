// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/redundancy/save_votes.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

inline constexpr std::byte gave_up_for_newer{0};
inline constexpr std::byte gave_up_failed{1};
inline constexpr std::chrono::milliseconds vote_wait{50};

CAIRN_BODY save_votes::~save_votes() {
  for (const auto* all : {&told_, &given_up_})
    for (const auto& key : *all) link_.withdraw(key, deadline::in(std::chrono::seconds(1)));
}
CAIRN_BODY bool save_votes::is_offered(int peer, const offer_key& key, std::span<std::byte> what) {
  const fetch_range range{.offset = 0, .destination = what};
  try {
    static_cast<void>(
        link_.fetch(peer, key, std::span(&range, what.empty() ? 0 : 1), deadline::in(block_timeout_)));
    return true;
  } catch (const peer_error& e) {
    if (e.id() == error_id::peer_not_offered) return false;
    throw;
  }
}
CAIRN_BODY std::uint64_t save_votes::await(int peer, const offer_key& key, deadline until, bool until_newer) {
  for (;;) {
    if (interrupted_(until_newer)) throw passed_over();
    try {
      return link_.await_offer(peer, key, deadline::in(vote_wait).earlier(until));
    } catch (const timeout_error&) {
      if (until.passed()) throw;
    }
    std::byte why{};
    if (!is_offered(peer, {gave_up_, key.generation}, {&why, 1})) continue;
    if (why == gave_up_for_newer) throw passed_over();
    fail(error_id::peer_failed, "rank " + std::to_string(peer) + " failed to make the pieces of this save",
         {.rank = peer});
  }
}
CAIRN_BODY void save_votes::tell(const offer_key& key, std::span<const std::byte> what) {
  const std::lock_guard lock(mutex_);
  auto& all = key.name == gave_up_ ? given_up_ : told_;
  all.push_back(key);  // before it is offered: nothing fails after that
  try {
    link_.offer(key, std::span(&what, 1));
  } catch (...) {
    all.pop_back();
    throw;
  }
}
CAIRN_BODY void save_votes::withdraw_old() noexcept {
  for (std::unique_lock lock(mutex_);; lock.lock()) {
    const bool of_given_up = given_up_.size() > max_given_up;
    if (!of_given_up && told_.size() <= max_told) return;
    auto& all = of_given_up ? given_up_ : told_;
    // Who does not know yet how the newest complete save ended asks for it, however late.
    const auto newest = std::find_if(all.rbegin(), all.rend(),
                                     [this](const offer_key& key) { return key.name == complete_; });
    auto oldest = all.begin();
    if (newest != all.rend() && std::prev(newest.base()) == oldest) ++oldest;
    const auto key = std::move(*oldest);
    all.erase(oldest);
    lock.unlock();  // it may wait for somebody who reads it
    link_.withdraw(key, deadline::in(std::chrono::seconds(1)));
  }
}
CAIRN_BODY void save_votes::tell_gave_up(std::uint64_t save, bool for_newer) noexcept {
  try {
    tell({gave_up_, save}, {for_newer ? &gave_up_for_newer : &gave_up_failed, 1});
  } catch (...) {  // it was told before, or the others wait until their deadline
  }
}

CAIRN_BODY save_votes::outcome save_votes::agree(std::uint64_t save, deadline until) {
  for (int child = link_.rank() * 8 + 1; child <= link_.rank() * 8 + 8 && child < link_.size(); ++child)
    static_cast<void>(await(child, {vote_, save}, until, false));
  if (link_.rank() == 0) {
    tell({complete_, save}, {});
    return outcome::complete;
  }
  tell({vote_, save}, {});
  while (!interrupted_(false)) {
    try {
      static_cast<void>(
          link_.await_offer(parent(), {complete_, save}, deadline::in(vote_wait).earlier(until)));
    } catch (const timeout_error&) {
    } catch (...) {  // the others may rely on this rank's vote: nothing takes it back
      break;
    }
    if (const auto end = ask(save); end != outcome::unknown || until.passed()) return end;
  }
  return outcome::unknown;
}
CAIRN_BODY save_votes::outcome save_votes::ask(std::uint64_t save) noexcept {
  try {
    if (is_offered(parent(), {complete_, save}, {})) {
      tell({complete_, save}, {});
      return outcome::complete;
    }
    std::byte why{};
    if (is_offered(parent(), {gave_up_, save}, {&why, 1})) {
      tell_gave_up(save, why == gave_up_for_newer);
      return outcome::given_up;
    }
  } catch (...) {  // it does not answer
  }
  return outcome::unknown;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
