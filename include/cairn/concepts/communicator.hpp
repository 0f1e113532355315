// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/peer_watch.hpp>
#include <cairn/system/deadline.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace cairn {
inline namespace v1 {

/// The longest message that send() takes, in bytes.
inline constexpr std::size_t max_message_bytes = std::size_t{1} << 30;

/// What a rank can say to another: messages of bytes, in order for each pair of ranks, none lost while both
/// live.
///
/// - `rank()`: 0 <= rank() < size(); `size()`: the world size, at least 1. Both constant.
/// - `send(to, bytes, deadline)`: gives the message to the transport; may return before it is received. The
///   bytes may be reused when it returns. Throws timeout_error (timeout_peer, field rank = `to`) when the
///   deadline passes first, peer_error (peer_lost) when the transport knows that `to` is gone.
/// - `receive(from, deadline)`: the next message of `from`, which may be empty. One that has arrived already
///   is returned even if the deadline has passed, and even if `from` is gone. Throws as send does, naming
///   `from`.
///
/// Messages are at most max_message_bytes; `to` and `from` may be rank() itself. A rank outside of the world
/// is a usage_error. One thread at a time uses a communicator. After a throw, messages may be under way: the
/// collectives above (comm/collectives.hpp) carry an epoch in each message and drop what belongs to an
/// earlier one. Nobody else receives what two ranks of a transport send: give cairn a communicator of its
/// own (a duplicate, where the trainer uses it too).
template <class C>
concept Communicator = std::movable<C> && requires(C& c, const C& k, int peer,
                                                   std::span<const std::byte> bytes, deadline until) {
  { k.rank() } -> std::convertible_to<int>;
  { k.size() } -> std::convertible_to<int>;
  { c.send(peer, bytes, until) } -> std::same_as<void>;
  { c.receive(peer, until) } -> std::same_as<std::vector<std::byte>>;
};

/// A message that several ranks may hold at once. Nobody changes its bytes.
struct lent_message {
  std::shared_ptr<const std::byte[]> data;
  std::size_t size = 0;
  [[nodiscard]] std::span<const std::byte> view() const noexcept { return {data.get(), size}; }
};
/// What borrow() gives: a message that was lent, or one that was sent.
struct borrowed_message {
  std::vector<std::byte> sent;
  lent_message lent;  ///< without data: it was sent
};

/// What a Communicator may offer besides, where ranks see each other's memory.
///
/// - `lend(to, message, deadline)`: as send(), but what arrives is the same memory.
/// - `borrow(from, deadline)`: as receive(), which gives what was lent as a copy.
template <class C>
concept ZeroCopyCommunicator =
    Communicator<C> && requires(C& c, int peer, const lent_message& message, deadline until) {
      { c.lend(peer, message, until) } -> std::same_as<void>;
      { c.borrow(peer, until) } -> std::same_as<borrowed_message>;
    };

/// What a Communicator may offer besides, where it knows at once that a peer is gone.
///
/// - `watch_peers()`: tells that to any thread, see peer_watch; null where this one does not know after all. A save
///   that waits for the part of such a rank ends then, where the part cannot come from a process of its own.
template <class C>
concept DetectsLostPeers = Communicator<C> && requires(const C& k) {
  { k.watch_peers() } -> std::convertible_to<std::shared_ptr<const peer_watch>>;
};

}  // namespace v1
}  // namespace cairn
