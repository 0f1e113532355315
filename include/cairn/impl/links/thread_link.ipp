// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/collectives.hpp>
#include <cairn/concepts/peer_link.hpp>
#include <cairn/links/offer_table.hpp>
#include <cairn/links/thread_link.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What the ranks of a thread_link_group share.
class thread_link_world {
 public:
  explicit thread_link_world(int size) : size_(size), faults_(square(size)) {
    members_.reserve(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) members_.push_back(detail::make_owned<member>());
  }

  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] offer_table& table(int rank) const noexcept { return at(rank).offers; }
  [[nodiscard]] bool is_lost(int rank) const noexcept { return at(rank).lost; }

  void join(int rank) {
    check_peer(rank, size_);
    const std::lock_guard lock(mutex_);
    auto& own = at(rank);
    if (own.taken)
      fail(error_id::usage_bad_option, "this rank has a link already; end it before another is made",
           {.rank = rank});
    own.taken = true;
    own.lost = false;
    own.offers.open();
  }
  /// `left`: its link is gone, too.
  void lose(int rank, bool left) noexcept {
    auto& own = at(rank);
    own.lost = true;
    own.offers.close();
    {
      const std::lock_guard lock(mutex_);
      if (left) own.taken = false;
      changed_.notify_all();
    }
    for (const auto& each : members_) each->offers.wake();
  }
  void disturb(int rank, int peer, const link_fault& fault) {
    {
      const std::lock_guard lock(mutex_);
      faults_[index(rank, peer)] = fault;
      changed_.notify_all();
    }
    table(peer).wake();
  }

  void check_alive(int rank, int peer) const {
    if (is_lost(rank)) fail(error_id::peer_lost, "this rank itself was lost", {.rank = rank});
    if (is_lost(peer)) fail(error_id::peer_lost, "the peer is gone", {.rank = peer});
  }
  /// How many of `bytes` may move from `peer` to `rank` now: at least one, or all of none. Waits where a fault says so.
  /// @throws peer_error (peer_lost), timeout_error (timeout_peer)
  std::size_t pass(int rank, int peer, std::size_t bytes, deadline until) {
    std::unique_lock lock(mutex_);
    for (;;) {
      check_alive(rank, peer);
      if (until.passed()) fail_late(peer);
      auto& fault = faults_[index(rank, peer)];
      if (fault.what == link_fault::kind::none) return std::min(bytes, block_bytes);
      if (fault.after > 0 && bytes > 0) {
        const auto some =
            static_cast<std::size_t>(std::min<std::uint64_t>({fault.after, bytes, block_bytes}));
        fault.after -= some;
        return some;
      }
      if (fault.after > 0) return 0;
      if (fault.what == link_fault::kind::cut) {
        fault = {};
        fail(error_id::peer_lost, "the connection to the peer broke", {.rank = peer});
      }
      if (fault.what == link_fault::kind::half_open) {
        wait(lock, until);
        continue;
      }
      if (bytes == 0) return 0;
      const auto some = std::min<std::size_t>(bytes, 4096);
      const auto pause = std::chrono::nanoseconds(some * std::uint64_t{1'000'000'000} /
                                                  std::max<std::uint64_t>(fault.bytes_per_second, 1));
      const auto due = deadline::in(pause);
      while (fault.what == link_fault::kind::slow && !due.passed() && !until.passed() && !is_lost(rank) &&
             !is_lost(peer))
        wait(lock, due.earlier(until));
      check_alive(rank, peer);
      if (until.passed() && !due.passed()) fail_late(peer);
      return some;
    }
  }
  [[noreturn]] static void fail_late(int peer) {
    fail(error_id::timeout_peer, "the peer did not answer by the deadline", {.rank = peer});
  }

 private:
  static constexpr std::size_t block_bytes = std::size_t{1} << 20;
  struct member {
    offer_table offers;
    std::atomic<bool> lost = false;
    bool taken = false;
  };
  static std::size_t square(int size) {
    if (size < 1)
      fail(error_id::usage_bad_option, "a group of links needs at least one rank",
           {.got = std::to_string(size)});
    return static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
  }
  [[nodiscard]] member& at(int rank) const noexcept { return *members_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::size_t index(int rank, int peer) const noexcept {
    return static_cast<std::size_t>(rank) * static_cast<std::size_t>(size_) + static_cast<std::size_t>(peer);
  }
  void wait(std::unique_lock<std::mutex>& lock, deadline until) {
    if (until.time_point() == deadline::clock::time_point::max())
      changed_.wait(lock);
    else
      static_cast<void>(changed_.wait_until(lock, until.time_point()));
  }

  int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<link_fault> faults_;  // of each rank to each peer
  std::vector<detail::owned<member>> members_;
};

}  // namespace detail

CAIRN_BODY thread_link& thread_link::operator=(thread_link&& other) noexcept {
  if (this != &other) {
    leave();
    world_ = std::move(other.world_);
    rank_ = other.rank_;
  }
  return *this;
}
CAIRN_BODY thread_link::~thread_link() {
  leave();
}
CAIRN_BODY void thread_link::leave() noexcept {
  if (world_ != nullptr) world_->lose(rank_, true);
}
CAIRN_BODY int thread_link::size() const noexcept {
  return world_->size();
}

CAIRN_BODY void thread_link::offer(const offer_key& key, std::span<const std::span<const std::byte>> parts) {
  world_->table(rank_).add(key, parts);
}
CAIRN_BODY void thread_link::withdraw(const offer_key& key, deadline until) noexcept {
  world_->table(rank_).withdraw(key, until);
}

CAIRN_BODY std::uint64_t thread_link::await_offer(int peer, const offer_key& key, deadline until) {
  detail::check_peer(peer, size());
  detail::check(key);
  auto& table = world_->table(peer);
  for (;;) {
    const auto wakes = table.wakes();
    world_->check_alive(rank_, peer);
    if (const auto bytes = table.size_of(key)) {
      static_cast<void>(world_->pass(rank_, peer, 0, until));
      return *bytes;
    }
    if (!table.wait(key, wakes, until))
      fail(error_id::timeout_peer, "the peer did not offer what is awaited by the deadline",
           {.rank = peer, .item = key.name, .expected = "generation " + std::to_string(key.generation)});
  }
}

CAIRN_BODY std::uint64_t thread_link::fetch(int peer, const offer_key& key,
                                            std::span<const fetch_range> ranges, deadline until) {
  detail::check_peer(peer, size());
  detail::check(key);
  static_cast<void>(world_->pass(rank_, peer, 0, until));
  auto reading = world_->table(peer).begin(key);
  if (!reading) {
    world_->check_alive(rank_, peer);
    detail::fail_not_offered(peer, key);
  }
  for (const auto& range : ranges) detail::check_range(range, reading->size(), peer, key);
  for (const auto& range : ranges)
    for (std::size_t done = 0; done < range.destination.size();) {
      const auto some = world_->pass(rank_, peer, range.destination.size() - done, until);
      const bool there = reading->read(range.offset + done, some, [&](std::span<const std::byte> bytes) {
        std::memcpy(range.destination.data() + done, bytes.data(), bytes.size());
        done += bytes.size();
      });
      if (there) continue;
      world_->check_alive(rank_, peer);
      detail::fail_not_offered(peer, key);
    }
  return reading->size();
}

CAIRN_BODY bool thread_link::is_gone(int peer) const noexcept {
  return peer >= 0 && peer < size() && world_->is_lost(peer);
}

CAIRN_BODY thread_link_group::thread_link_group(int size)
    : world_(detail::make_shared<detail::thread_link_world>(size)) {}
CAIRN_BODY int thread_link_group::size() const noexcept {
  return world_->size();
}
CAIRN_BODY thread_link thread_link_group::link(int rank) const {
  world_->join(rank);
  return thread_link(world_, rank);
}
CAIRN_BODY thread_link thread_link_group::connect(collectives& job, deadline until) const {
  std::optional<thread_link> made;
  detail::on_each_rank(job, until, [&] {
    if (job.size() != size())
      fail(error_id::usage_bad_option, "a thread_link_group has a link for each rank of a job",
           {.expected = std::to_string(job.size()), .got = std::to_string(size())});
    made.emplace(link(job.rank()));
  });
  return std::move(*made);
}
CAIRN_BODY void thread_link_group::lose(int rank) const {
  detail::check_peer(rank, world_->size());
  world_->lose(rank, false);
}
CAIRN_BODY void thread_link_group::disturb(int rank, int peer, const link_fault& fault) const {
  detail::check_peer(rank, world_->size());
  detail::check_peer(peer, world_->size());
  world_->disturb(rank, peer, fault);
}

static_assert(PeerLink<thread_link>);

}  // namespace v1
}  // namespace cairn
