// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/peer_link.hpp>
#include <cairn/concepts/roles.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace cairn {
inline namespace v1 {

class collectives;

namespace detail {
class thread_link_world;
}  // namespace detail

/// What a thread_link_group does to the way from one rank to another, for tests.
struct link_fault {
  /// The kinds of faults.
  enum class kind : std::uint8_t {
    none,  ///< heals the way
    slow,  ///< at most bytes_per_second arrive
    cut,   ///< the connection breaks once: the call that meets it throws peer_lost, and the next one works
    half_open,  ///< nothing arrives until the way is healed: calls end at their deadlines
  };
  kind what = kind::none;                                   ///< which one
  std::uint64_t after = 0;                                  ///< bytes that still arrive before it is met
  std::uint64_t bytes_per_second = std::uint64_t{1} << 20;  ///< of `slow`
};

/// One rank of a thread_link_group; models PeerLink. A fetch copies from the memory of the peer, which is in this
/// process. Movable.
class thread_link {
 public:
  thread_link(thread_link&&) noexcept = default;
  thread_link& operator=(thread_link&& other) noexcept;
  ~thread_link();

  // See PeerLink.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept;
  void offer(const offer_key& key, std::span<const std::span<const std::byte>> parts);
  void withdraw(const offer_key& key, deadline until) noexcept;
  /// See PeerLink.
  std::uint64_t await_offer(int peer, const offer_key& key, deadline until);
  /// See PeerLink.
  std::uint64_t fetch(int peer, const offer_key& key, std::span<const fetch_range> ranges, deadline until);
  [[nodiscard]] bool is_gone(int peer) const noexcept;

 private:
  friend class thread_link_group;
  thread_link(std::shared_ptr<detail::thread_link_world> world, int rank) noexcept
      : world_(std::move(world)), rank_(rank) {}
  void leave() noexcept;

  std::shared_ptr<detail::thread_link_world> world_;
  int rank_;
};

/// Links between ranks that are threads of one process, with faults to choose: for tests of what is above links.
///
///     cairn::thread_link_group group{4};
///     cairn::thread_link mine = group.link(rank);
///
/// Copies refer to the same group. Any thread. The links keep the group alive.
class thread_link_group {
 public:
  using cairn_role = role::link;

  /// @throws usage_error (usage_bad_option) if size < 1.
  explicit thread_link_group(int size);

  [[nodiscard]] int size() const noexcept;
  /// The link of a rank. A rank that was lost is there again, and offers nothing.
  /// @throws usage_error (usage_bad_option) if there is no such rank or its link still exists.
  [[nodiscard]] thread_link link(int rank) const;
  /// See LinkMaker: the link of this rank of the job, when all ranks have theirs.
  [[nodiscard]] thread_link connect(collectives& job, deadline until) const;
  /// Loses a rank, as if its process had died: what it offers is gone, and calls that it makes or that name it throw
  /// peer_error (peer_lost), also those that wait. Its memory is not read when this has returned.
  /// @throws usage_error (usage_bad_option) if there is no such rank.
  void lose(int rank) const;
  /// What the calls of `rank` to `peer` meet from now on, in place of an earlier fault.
  /// @throws usage_error (usage_bad_option) if there is no such rank.
  void disturb(int rank, int peer, const link_fault& fault) const;

 private:
  std::shared_ptr<detail::thread_link_world> world_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/links/thread_link.ipp>
#endif
