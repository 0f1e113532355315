// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/collective_input.hpp>
#include <cairn/concepts/any_communicator.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/function_ref.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {
class collective_tree;
struct collective_call;
}  // namespace detail

/// The collectives, written once above any Communicator.
///
/// Every collective goes up one binomial tree to rank 0 and comes down again, O(log n) messages deep and two
/// messages for each rank, so that it ends alike on all ranks: each returns, or each throws the same error.
/// Ranks that wait for long say so to their parent with a few messages more.
/// - A rank that failed (its collective_input is an exception, or its merge threw) is named everywhere: its error is
///   thrown on all ranks with its type and id, fields().rank filled with the rank. Of several the lowest
///   rank's.
/// - A rank that is absent is named everywhere: timeout_error (timeout_peer), or peer_error (peer_lost) where the
///   transport knows that it is gone; fields().rank is the first absent one, the message lists all that are
///   known. Ranks wait at most until the deadline and a grace of 1 s + a tenth of the time that was left at
///   the call, at most 6 s. Ranks may come with different deadlines.
/// - Ranks that call in different order get peer_error (peer_bad_message), which names a rank and the calls of
///   both. So do bytes that are no message of cairn's.
/// - A rank that vanishes while the result comes down can be seen by some ranks only.
///
/// Each message carries the run id and the count of collectives (the epoch): what a call that failed left
/// under way is dropped. All ranks make the same calls in the same order, but for the occasional ones, which
/// do not count; one thread at a time on each. A rank outside of the world as root is a usage_error, before
/// anything is sent. Values are at most 1 GiB less 64 bytes, and so is what gather, scatter and all_gather move in one message: more is a usage_error
/// (usage_overflow) on all ranks.
class collectives {
 public:
  /// Owns the communicator, which nobody else uses for messages.
  explicit collectives(any_communicator communicator);
  /// The same of a communicator of any type.
  template <class C>
    requires(!std::same_as<C, any_communicator> && !std::same_as<C, collectives> && Communicator<C>)
  explicit collectives(C communicator) : collectives(any_communicator(std::move(communicator))) {}
  collectives(collectives&& other) noexcept;
  collectives& operator=(collectives&& other) noexcept;
  ~collectives();

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  [[nodiscard]] any_communicator& communicator() noexcept;
  /// How many collectives were begun.
  [[nodiscard]] std::uint64_t epoch() const noexcept;
  /// All ranks set the same id at the same place in the order of calls. Messages of another run are dropped;
  /// zero, the value before, means that none is agreed yet.
  void set_run(const std::array<std::byte, 16>& run) noexcept;
  [[nodiscard]] const std::array<std::byte, 16>& run() const noexcept;

  /// Every rank gets what `root` brings; of the others only a failure counts.
  [[nodiscard]] std::vector<std::byte> broadcast(int root, collective_input own, deadline until);

  /// `root` gets what all bring, in rank order; the others get an empty vector.
  [[nodiscard]] std::vector<std::vector<std::byte>> gather(int root, collective_input own, deadline until);

  /// Every rank gets what all bring, in rank order.
  [[nodiscard]] std::vector<std::vector<std::byte>> all_gather(collective_input own, deadline until);

  /// Rank r gets pieces[r] of `root`; the others' pieces are ignored. A rank that cannot go on brings
  /// `failure`.
  /// @throws usage_error (usage_bad_option), on all ranks, if the root has not one piece for each rank.
  [[nodiscard]] std::vector<std::byte> scatter(int root, const std::vector<std::vector<std::byte>>& pieces,
                                               deadline until, std::exception_ptr failure = nullptr);

  /// Returns when all ranks have called it; a rank that cannot go on brings `failure`, which all throw.
  void barrier(deadline until, std::exception_ptr failure = nullptr);

  /// Every rank gets the fold of what all bring: merge(left, right), where left covers the lower ranks and
  /// the two are neighbours. Merge must be associative, not commutative, and gets and returns
  /// std::vector<std::byte>; it is called O(log n) times on a rank; what it throws is that rank's failure.
  template <class Merge>
    requires std::is_invocable_r_v<std::vector<std::byte>, Merge&, std::vector<std::byte>,
                                   std::vector<std::byte>>
  [[nodiscard]] std::vector<std::byte> tree_reduce_broadcast(collective_input own, Merge merge,
                                                             deadline until) {
    return reduce(std::move(own), merge, until);
  }

  /// As tree_reduce_broadcast(), for what ranks do together only where each finds by itself that it must, as
  /// planning. Where not all come, those that did fail as ever, and the next collective has all ranks again:
  /// a rank that makes another call meanwhile is not disturbed, and tells those who wait for it here.
  template <class Merge>
    requires std::is_invocable_r_v<std::vector<std::byte>, Merge&, std::vector<std::byte>,
                                   std::vector<std::byte>>
  [[nodiscard]] std::vector<std::byte> occasional_reduce(collective_input own, Merge merge, deadline until) {
    return reduce_at_times(std::move(own), merge, until, nullptr);
  }
  /// The same; `look()` is asked now and then while this rank waits: what it throws ends the call on this rank
  /// at once.
  template <class Merge, class Look>
    requires std::is_invocable_r_v<std::vector<std::byte>, Merge&, std::vector<std::byte>,
                                   std::vector<std::byte>> &&
             std::is_invocable_v<Look&>
  [[nodiscard]] std::vector<std::byte> occasional_reduce(collective_input own, Merge merge, deadline until,
                                                         Look look) {
    const function_ref<void()> asked(look);
    return reduce_at_times(std::move(own), merge, until, &asked);
  }
  /// As barrier(), after an occasional_reduce() that gave this rank a value.
  void occasional_barrier(deadline until, std::exception_ptr failure = nullptr);

  /// Begins an exchange: messages from rank to rank, outside of the tree, until the next collective. All
  /// ranks call it at the same place in the order of calls. A message that is not taken by then is dropped.
  /// Where a transport holds little, two ranks that each wait to be heard wait for ever: in step s of
  /// size() - 1 a rank sends to rank + s first, and then takes from rank - s.
  void begin_exchange();
  /// What a message of the exchange begins with: the caller's bytes follow.
  [[nodiscard]] std::vector<std::byte> message_head() const;
  /// Sends a message that begins with message_head(), without a copy where the communicator can. Throws as
  /// the communicator does.
  void send_message(int to, const lent_message& message, deadline until);
  /// The next message of `from` in this exchange, with its head. Throws as the communicator does, and
  /// peer_error (peer_bad_message).
  [[nodiscard]] lent_message take_message(int from, deadline until);

 private:
  template <class Signature>
  using function_ref = detail::function_ref<Signature>;
  using merge_parts =
      function_ref<std::vector<std::byte>(std::vector<std::byte>&&, std::vector<std::byte>&&)>;
  [[nodiscard]] std::vector<std::byte> reduce(collective_input own, merge_parts merge, deadline until);
  [[nodiscard]] std::vector<std::byte> reduce_at_times(collective_input own, merge_parts merge,
                                                       deadline until, const function_ref<void()>* look);

  std::unique_ptr<detail::collective_tree> tree_;
  std::unique_ptr<detail::collective_call> exchange_;  ///< the one under way
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/comm/collectives.ipp>
#endif
