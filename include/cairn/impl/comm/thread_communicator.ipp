// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/concepts/communicator.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/sorted_map.hpp>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What the ranks of a thread_group share. A rank's box holds what was sent to it and whether it is gone;
/// each box has its own lock, so that pairs of ranks do not disturb each other.
class thread_world {
 public:
  explicit thread_world(int size);

  [[nodiscard]] int size() const noexcept { return static_cast<int>(boxes_.size()); }

  void check(int rank) const;

  void join(int rank);

  /// Ends a rank's life: waits on it fail from now on, and what it had not received is gone. `left`: so is
  /// its communicator.
  void lose(int rank, bool left) noexcept;

  void send(int from, int to, borrowed_message message);

  [[nodiscard]] bool is_lost(int rank) const noexcept { return at(rank).lost; }

  [[nodiscard]] borrowed_message receive(int self, int from, deadline until);

 private:
  struct box {
    std::mutex mutex;
    std::condition_variable arrived;
    detail::sorted_map<int, std::deque<borrowed_message>> from;
    bool taken = false;
    std::atomic<bool> lost = false;  ///< written under the mutex, read by those who wait for this rank
  };

  [[nodiscard]] box& at(int rank) const noexcept { return *boxes_[static_cast<std::size_t>(rank)]; }

  std::vector<detail::owned<box>> boxes_;
};

CAIRN_BODY thread_world::thread_world(int size) {
  if (size < 1)
    fail(error_id::usage_bad_option, "a group of ranks needs at least one rank",
         {.got = std::to_string(size)});
  boxes_.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) boxes_.push_back(detail::make_owned<box>());
}

CAIRN_BODY void thread_world::check(int rank) const {
  if (rank < 0 || rank >= size())
    fail(error_id::usage_bad_option, "there is no such rank",
         {.expected = "0 to " + std::to_string(size() - 1), .got = std::to_string(rank)});
}

CAIRN_BODY void thread_world::join(int rank) {
  check(rank);
  box& own = at(rank);
  const std::lock_guard lock(own.mutex);
  if (own.taken)
    fail(error_id::usage_bad_option, "this rank has a communicator already; each rank is one thread's",
         {.rank = rank});
  own.taken = true;
  own.lost = false;
}

CAIRN_BODY void thread_world::lose(int rank, bool left) noexcept {
  {
    box& own = at(rank);
    const std::lock_guard lock(own.mutex);
    own.lost = true;
    own.from.clear();
    if (left) own.taken = false;
  }
  for (auto& each : boxes_) {
    // Under the lock, so that no receiver is between its look at `lost` and its wait.
    const std::lock_guard lock(each->mutex);
    each->arrived.notify_all();
  }
}

CAIRN_BODY void thread_world::send(int from, int to, borrowed_message message) {
  if (at(from).lost) fail(error_id::peer_lost, "this rank itself was marked as lost", {.rank = from});
  box& target = at(to);
  const std::lock_guard lock(target.mutex);
  if (target.lost) fail(error_id::peer_lost, "the rank that a message is for is gone", {.rank = to});
  target.from[from].push_back(std::move(message));
  target.arrived.notify_all();
}

CAIRN_BODY borrowed_message thread_world::receive(int self, int from, deadline until) {
  box& own = at(self);
  const box& sender = at(from);
  std::unique_lock lock(own.mutex);
  const auto waiting = [&] {
    const auto queue = own.from.find(from);
    return queue != own.from.end() && !queue->second.empty();
  };
  const auto done = [&] { return own.lost || waiting() || sender.lost; };
  if (until.time_point() == deadline::clock::time_point::max())
    own.arrived.wait(lock, done);
  else
    own.arrived.wait_until(lock, until.time_point(), done);
  if (own.lost) fail(error_id::peer_lost, "this rank itself was marked as lost", {.rank = self});
  // Once more: a sender may have sent and left between the two looks.
  if (waiting()) {
    auto& messages = own.from[from];
    auto message = std::move(messages.front());
    messages.pop_front();
    return message;
  }
  if (sender.lost)
    fail(error_id::peer_lost, "the rank that a message is expected from is gone", {.rank = from});
  fail(error_id::timeout_peer, "no message came by the deadline", {.rank = from});
}

class thread_watch final : public peer_watch {
 public:
  explicit thread_watch(std::shared_ptr<const thread_world> world) noexcept : world_(std::move(world)) {}
  [[nodiscard]] bool is_gone(int rank) const noexcept override { return world_->is_lost(rank); }

 private:
  std::shared_ptr<const thread_world> world_;
};

}  // namespace detail

CAIRN_BODY thread_communicator& thread_communicator::operator=(thread_communicator&& other) noexcept {
  if (this != &other) {
    leave();
    world_ = std::move(other.world_);
    rank_ = other.rank_;
  }
  return *this;
}

CAIRN_BODY thread_communicator::~thread_communicator() {
  leave();
}

CAIRN_BODY int thread_communicator::size() const noexcept {
  return world_->size();
}

CAIRN_BODY void thread_communicator::send(int to, std::span<const std::byte> bytes, deadline) {
  world_->check(to);
  if (bytes.size() > max_message_bytes)
    fail(error_id::usage_overflow, "a message is longer than 1 GiB", {.rank = rank_});
  world_->send(rank_, to, {{bytes.begin(), bytes.end()}, {}});
}

CAIRN_BODY std::vector<std::byte> thread_communicator::receive(int from, deadline until) {
  world_->check(from);
  auto message = world_->receive(rank_, from, until);
  if (message.lent.data == nullptr) return std::move(message.sent);
  const auto bytes = message.lent.view();
  return {bytes.begin(), bytes.end()};
}

CAIRN_BODY std::shared_ptr<const peer_watch> thread_communicator::watch_peers() const {
  return detail::make_shared<detail::thread_watch>(world_);
}

CAIRN_BODY void thread_communicator::lend(int to, const lent_message& message, deadline until) {
  if (message.data == nullptr || message.size > max_message_bytes) return send(to, message.view(), until);
  world_->check(to);
  world_->send(rank_, to, {{}, message});
}

CAIRN_BODY borrowed_message thread_communicator::borrow(int from, deadline until) {
  world_->check(from);
  return world_->receive(rank_, from, until);
}

CAIRN_BODY void thread_communicator::leave() noexcept {
  if (world_) world_->lose(rank_, true);
}

CAIRN_BODY thread_group::thread_group(int size) : world_(detail::make_shared<detail::thread_world>(size)) {}

CAIRN_BODY int thread_group::size() const noexcept {
  return world_->size();
}

CAIRN_BODY thread_communicator thread_group::communicator(int rank) const {
  world_->join(rank);
  return thread_communicator(world_, rank);
}

CAIRN_BODY void thread_group::lose(int rank) const {
  world_->check(rank);
  world_->lose(rank, false);
}

static_assert(ZeroCopyCommunicator<thread_communicator> && DetectsLostPeers<thread_communicator>);

}  // namespace v1
}  // namespace cairn
