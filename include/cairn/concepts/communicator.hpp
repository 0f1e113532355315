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

/// Sends messages between ranks. The messages of each pair of ranks arrive in order, and none is lost
/// while both live.
///
/// - `rank()`, `size()`: this rank, 0 <= rank() < size(), and the world size, at least 1. Both are constant.
/// - `send(to, bytes, deadline)`: hands the message to the transport; may return before it is received.
///   The caller may reuse the bytes when it returns. Throws timeout_error (timeout_peer, field rank =
///   `to`) when the deadline passes first, peer_error (peer_lost) when the transport knows that `to` is
///   gone.
/// - `receive(from, deadline)`: returns the next message of `from`, which may be empty. A message that
///   has arrived already is returned even if the deadline has passed, and even if `from` is gone. Throws
///   as send does, naming `from`.
///
/// A message has at most max_message_bytes; `to` and `from` may be rank() itself. A rank outside of the
/// world is a usage_error. One thread at a time uses a communicator. After an exception, messages may
/// still be under way: the collectives (comm/collectives.hpp) put an epoch into each message and drop
/// messages of earlier epochs. Messages of the trainer must not arrive on cairn's communicator: give
/// cairn one of its own, such as a duplicate.
template <class C>
concept Communicator = std::movable<C> && requires(C& c, const C& k, int peer,
                                                   std::span<const std::byte> bytes, deadline until) {
  { k.rank() } -> std::convertible_to<int>;
  { k.size() } -> std::convertible_to<int>;
  { c.send(peer, bytes, until) } -> std::same_as<void>;
  { c.receive(peer, until) } -> std::same_as<std::vector<std::byte>>;
};

/// A message that several ranks may hold at once. Its bytes are immutable.
struct lent_message {
  std::shared_ptr<const std::byte[]> data;
  std::size_t size = 0;
  /// Valid as long as `data` or a copy of it is held.
  [[nodiscard]] std::span<const std::byte> view() const noexcept { return {data.get(), size}; }
};
/// What borrow() returns: a message that was lent, or one that was sent.
struct borrowed_message {
  std::vector<std::byte> sent;  ///< the bytes of a sent message; empty where one was lent
  lent_message lent;            ///< data is null where the message was sent
  bool landed = false;          ///< `sent` has the first bytes alone; see LandsMessages
};

/// A Communicator between ranks that share memory, which passes messages without a copy.
///
/// - `lend(to, message, deadline)`: as send(), but the receiver gets the same memory.
/// - `borrow(from, deadline)`: as receive(), but without a copy of a lent message. receive() copies a
///   lent message.
template <class C>
concept ZeroCopyCommunicator =
    Communicator<C> && requires(C& c, int peer, const lent_message& message, deadline until) {
      { c.lend(peer, message, until) } -> std::same_as<void>;
      { c.borrow(peer, until) } -> std::same_as<borrowed_message>;
    };

/// A Communicator that receives long messages into memory of its caller, without a copy.
///
/// - `borrow_into(from, first, rest, deadline)`: as borrow(). But where the message has `first` + `rest.size()` bytes, and
///   nothing of it was kept before, its first bytes may come as a message that has `landed`, and the others in `rest`. What
///   `rest` holds else when it returns, or throws, is unspecified; it is not touched afterwards.
template <class C>
concept LandsMessages = Communicator<C> && requires(C& c, int peer, std::size_t first,
                                                    std::span<std::byte> rest, deadline until) {
  { c.borrow_into(peer, first, rest, until) } -> std::same_as<borrowed_message>;
};

/// A Communicator that knows at once when a peer is gone.
///
/// - `watch_peers()`: returns a peer_watch, which any thread may ask; null where this communicator cannot
///   know. A save that waits for the record of a lost rank then fails at once, unless a worker process of
///   that rank may still write it.
template <class C>
concept DetectsLostPeers = Communicator<C> && requires(const C& k) {
  { k.watch_peers() } -> std::convertible_to<std::shared_ptr<const peer_watch>>;
};

}  // namespace v1
}  // namespace cairn
