// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace cairn {
inline namespace v1 {

/// The longest name of an offer, in bytes.
inline constexpr std::size_t max_offer_name = 255;

/// What an offer is known by. Two contents of one name never have the same generation, so that what is fetched
/// is never a mixture of both.
struct offer_key {
  std::string name;              ///< 1 to max_offer_name bytes
  std::uint64_t generation = 0;  ///< which content of this name
  friend bool operator==(const offer_key&, const offer_key&) = default;
};

/// Bytes of an offer that are fetched, and where they go.
struct fetch_range {
  std::uint64_t offset = 0;          ///< from the beginning of the offer, in bytes
  std::span<std::byte> destination;  ///< as many bytes are fetched as it has
};

/// Lets the ranks of a job read memory of each other, beside the communicator of training and without its threads:
/// what copies on partners, parity and recovery use.
///
/// - `rank()`, `size()`: this rank, 0 <= rank() < size(), and the number of ranks. Both are constant.
/// - `offer(key, parts)`: from now on each rank may fetch these bytes, the parts end to end, from this one. Copies
///   the list, not the bytes: they stay where they are, unchanged, until withdraw() has returned. Throws usage_error:
///   usage_duplicate_name where the key is offered, usage_bad_name where the name is empty or too long.
/// - `withdraw(key, deadline)`: no fetch of the offer begins any more. Returns when none reads its bytes: those that
///   have begun may end until the deadline, and then are cut off; they throw peer_not_offered. Nothing happens where
///   the key is not offered. Never throws.
/// - `await_offer(peer, key, deadline)`: waits until the peer offers the key; returns how many bytes it has.
/// - `fetch(peer, key, ranges, deadline)`: reads ranges of what the peer offers, which may overlap and come in any
///   order, and returns how many bytes the whole offer has; with no range it does only that. Throws usage_error
///   (usage_bad_option, with the offset) for a range that is not within the offer, peer_error (peer_not_offered) where
///   the peer does not offer the key, or not until the end. After an exception the destinations hold anything. What
///   arrives is what the peer sent, but not proved to be what it once saved: who keeps digests checks them.
/// - `is_gone(peer)`: whether the peer has ended or left, or does not answer, as far as this rank knows: from its
///   latest calls, and from an end of the connection, which is known without a call. It may become false again. At
///   most one system call; never throws.
///
/// `peer` may be rank() itself. await_offer and fetch throw besides, with the field rank = `peer`: timeout_error
/// (timeout_peer) at the deadline, peer_error (peer_lost) as soon as the peer is known to be gone, peer_error
/// (peer_refused) where this rank and the peer do not prove to each other that they are of the same job. A rank
/// outside of the job is a usage_error (usage_bad_option).
///
/// Any number of threads may call everything at once; the destructor comes after the last call has returned. It
/// withdraws what is offered, cutting off whoever reads it, and the others then see this rank as gone.
template <class L>
concept PeerLink = std::movable<L> && requires(L& link, const L& seen, int peer, const offer_key& key,
                                               std::span<const std::span<const std::byte>> parts,
                                               std::span<const fetch_range> ranges, deadline until) {
  { seen.rank() } -> std::convertible_to<int>;
  { seen.size() } -> std::convertible_to<int>;
  { link.offer(key, parts) } -> std::same_as<void>;
  { link.withdraw(key, until) } noexcept -> std::same_as<void>;
  { link.await_offer(peer, key, until) } -> std::convertible_to<std::uint64_t>;
  { link.fetch(peer, key, ranges, until) } -> std::convertible_to<std::uint64_t>;
  { seen.is_gone(peer) } noexcept -> std::convertible_to<bool>;
};

}  // namespace v1
}  // namespace cairn
