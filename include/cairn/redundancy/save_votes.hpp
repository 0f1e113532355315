// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_peer_link.hpp>
#include <cairn/system/callback.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A newer save is there, here or on a peer, before all members have come to this one; or the engine ends.
struct passed_over {};

/// How the ranks of a job agree, over their links, that a save has all its pieces: until each of them knows that all
/// have theirs, none gives up what it has of the save before. Up a tree with eight children at each rank goes who has
/// its pieces, down from rank 0 that all have; messages are offers that the others wait for, one byte or none. A rank that
/// fails says so, and then nobody goes on waiting for it. One thread; tell_gave_up() any.
class save_votes {
 public:
  /// `subject`: what the votes are about; those of another one never meet them. `interrupted(until_newer)`: whether to stop waiting, because the engine ends, or, where that is asked, because a newer
  /// save is there. The link outlives this.
  save_votes(any_peer_link& link, const std::string& subject, std::chrono::nanoseconds block_timeout,
             callback<bool(bool)> interrupted)
      : link_(link),
        block_timeout_(block_timeout),
        interrupted_(std::move(interrupted)),
        gave_up_(subject + ".gave_up"),
        vote_(subject + ".vote"),
        complete_(subject + ".complete") {}
  save_votes(const save_votes&) = delete;
  save_votes& operator=(const save_votes&) = delete;
  ~save_votes();

  /// Of so many saves that were given up the others are told. Any of them may ask for the oldest.
  static constexpr std::uint64_t max_given_up = 16'384;
  /// The rank above this one in the tree. @pre not rank 0
  [[nodiscard]] static int parent_of(int rank) noexcept { return (rank - 1) / 8; }

  /// Waits until the peer offers something of a save; returns its size. @throws passed_over; peer_error where the peer has
  /// given up this save; what PeerLink's await_offer() throws
  std::uint64_t await(int peer, const offer_key& key, deadline until, bool until_newer);
  /// Offers something for good, or until withdraw_old() takes it back: `what` stays where it is.
  void tell(const offer_key& key, std::span<const std::byte> what);
  /// Withdraws what is older than the last 256 that were told, except that the newest complete save was one, and the last
  /// max_given_up saves that were given up: who heard nothing for as long as links were silent asks for one of them when they
  /// are back, and nothing goes on without an answer.
  void withdraw_old() noexcept;
  /// Tells that this rank has given up a save: for a newer one, or because it failed.
  void tell_gave_up(std::uint64_t save, bool for_newer) noexcept;

  enum class outcome : std::uint8_t {
    complete,  ///< all ranks of the job have their pieces of it
    given_up,  ///< some never will
    unknown,   ///< this rank has its own, and has not heard of the others: it keeps what it has
  };
  /// This rank has its pieces. @throws as await(), before anybody was told that it has
  outcome agree(std::uint64_t save, deadline until);
  /// What became of a save whose outcome was unknown.
  outcome ask(std::uint64_t save) noexcept;

 private:
  [[nodiscard]] bool is_offered(int peer, const offer_key& key, std::span<std::byte> what);
  [[nodiscard]] int parent() const noexcept { return parent_of(link_.rank()); }

  any_peer_link& link_;
  std::chrono::nanoseconds block_timeout_;
  callback<bool(bool)> interrupted_;
  const std::string gave_up_;   // an offer of one byte: for which of two reasons
  const std::string vote_;      // this rank and those below it have what the save needs
  const std::string complete_;  // all have
  std::mutex mutex_;
  static constexpr std::size_t max_told = 256;
  std::deque<offer_key> told_, given_up_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/redundancy/save_votes.ipp>
#endif
