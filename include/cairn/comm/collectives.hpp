// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/collective_input.hpp>
#include <cairn/concepts/any_communicator.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/owned.hpp>

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
class collective_runner;
struct collective_call;
}  // namespace detail

/// Collective operations over any Communicator.
///
/// Every collective goes up one binomial tree to rank 0 and down again: O(log n) messages deep, and two
/// messages for each rank. So it ends alike on all ranks: each returns, or each throws the same error.
/// Ranks that wait for long tell their parent with a few more messages.
/// - If a rank fails (its collective_input is an exception, or its merge throws), all ranks throw its
///   error with the same type and id, and with the rank in fields().rank. If several fail, the error of
///   the lowest rank is thrown.
/// - If a rank is absent, all ranks throw timeout_error (timeout_peer), or peer_error (peer_lost) where
///   the transport knows that the rank is lost; fields().rank is the first absent rank, and the message
///   lists all known ones. Ranks wait at most until the deadline and a grace of 1 s and a tenth of the
///   time that was left at the call, which is at most 6 s. Ranks may call with different deadlines.
/// - Ranks that make different calls get peer_error (peer_bad_message), which names a rank and the calls of
///   both. Bytes that are not a message of cairn cause the same error.
/// - If a rank is lost while the result goes down, only some ranks may see that.
///
/// Each message carries the run id and the count of collectives (the epoch), so that late messages of a
/// failed call are dropped. All ranks make the same calls in the same order, except for the on-demand
/// ones, which do not count; one thread at a time on each rank. A root outside of the world is a
/// usage_error, before anything is sent. A value has at most 1 GiB less 64 bytes, and so have the
/// messages of gather, scatter and all_gather: more is a usage_error (usage_overflow) on all ranks.
class collectives {
 public:
  /// Takes over the communicator, which nobody else may use for messages.
  explicit collectives(any_communicator communicator);
  /// Takes over a communicator of any type.
  template <class C>
    requires(!std::same_as<C, any_communicator> && !std::same_as<C, collectives> && Communicator<C>)
  explicit collectives(C communicator) : collectives(any_communicator(std::move(communicator))) {}
  /// Takes over what carries them.
  explicit collectives(detail::owned<detail::collective_runner> runner) noexcept;
  collectives(collectives&& other) noexcept;
  collectives& operator=(collectives&& other) noexcept;
  ~collectives();

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  /// The communicator that was given. While a collective is under way nobody may send or receive by it.
  [[nodiscard]] any_communicator& communicator() noexcept;
  /// The number of collectives that were begun.
  [[nodiscard]] std::uint64_t epoch() const noexcept;
  /// Sets the run id; all ranks set the same id at the same place in the order of calls. Messages of
  /// another run are dropped. The initial value, zero, means that no id is agreed yet.
  void set_run(const std::array<std::byte, 16>& run) noexcept;
  /// The run id of set_run(); zeros before.
  [[nodiscard]] const std::array<std::byte, 16>& run() const noexcept;

  /// Returns the input of `root` on every rank; the inputs of others are ignored, except for failures.
  [[nodiscard]] std::vector<std::byte> broadcast(int root, collective_input own, deadline until);

  /// Returns the inputs of all ranks, in rank order, on `root`, and an empty vector on the others.
  [[nodiscard]] std::vector<std::vector<std::byte>> gather(int root, collective_input own, deadline until);

  /// Returns the inputs of all ranks, in rank order, on every rank.
  [[nodiscard]] std::vector<std::vector<std::byte>> all_gather(collective_input own, deadline until);

  /// Returns pieces[r] of `root` on rank r; the pieces of others are ignored. A rank that cannot go on passes
  /// `failure`.
  /// @throws usage_error (usage_bad_option), on all ranks, if the root does not have one piece for each rank.
  [[nodiscard]] std::vector<std::byte> scatter(int root, const std::vector<std::vector<std::byte>>& pieces,
                                               deadline until, std::exception_ptr failure = nullptr);

  /// Returns when all ranks have called it. A rank that cannot go on passes `failure`, which all ranks throw.
  void barrier(deadline until, std::exception_ptr failure = nullptr);

  /// Returns the fold of all inputs on every rank, by merge(left, right), where left is of the lower of
  /// two neighbouring ranges of ranks. Merge must be associative, but need not be commutative. It takes
  /// and returns std::vector<std::byte>, and is called O(log n) times on a rank; an exception is a
  /// failure of that rank.
  template <class Merge>
    requires std::is_invocable_r_v<std::vector<std::byte>, Merge&, std::vector<std::byte>,
                                   std::vector<std::byte>>
  [[nodiscard]] std::vector<std::byte> tree_reduce_broadcast(collective_input own, Merge merge,
                                                             deadline until) {
    return reduce(std::move(own), merge, until);
  }

  /// As tree_reduce_broadcast(), for an operation such as planning, where each rank decides by itself
  /// that it is needed. If not all ranks call it, those that did fail as usual, and the next collective
  /// has all ranks in step again. A rank that makes another call in the meantime is not disturbed, and
  /// tells the ranks that wait here.
  template <class Merge>
    requires std::is_invocable_r_v<std::vector<std::byte>, Merge&, std::vector<std::byte>,
                                   std::vector<std::byte>>
  [[nodiscard]] std::vector<std::byte> on_demand_reduce(collective_input own, Merge merge, deadline until) {
    return reduce_on_demand(std::move(own), merge, until, nullptr);
  }
  /// The same, and calls `look()` at intervals while this rank waits; an exception ends the call on this rank
  /// at once.
  template <class Merge, class Look>
    requires std::is_invocable_r_v<std::vector<std::byte>, Merge&, std::vector<std::byte>,
                                   std::vector<std::byte>> &&
             std::is_invocable_v<Look&>
  [[nodiscard]] std::vector<std::byte> on_demand_reduce(collective_input own, Merge merge, deadline until,
                                                        Look look) {
    const function_ref<void()> check(look);
    return reduce_on_demand(std::move(own), merge, until, &check);
  }
  /// As barrier(), after an on_demand_reduce() that gave this rank a value.
  void on_demand_barrier(deadline until, std::exception_ptr failure = nullptr);

  /// Begins an exchange: messages from rank to rank, outside of the tree, until the next collective,
  /// which drops messages that were not received. All ranks call it at the same place in the order of
  /// calls. A transport may block a sender until the receiver receives. To avoid a deadlock, in step s of
  /// size() - 1 a rank first sends to rank + s, and then receives from rank - s.
  void begin_exchange();
  /// The head of each message of the exchange, before the caller's bytes.
  [[nodiscard]] std::vector<std::byte> message_head() const;
  /// Sends a message that begins with message_head(), without a copy over a ZeroCopyCommunicator. Throws as
  /// the communicator does.
  void send_message(int to, const lent_message& message, deadline until);
  /// Returns the next message of `from` in this exchange, with its head. Throws as the communicator does, and
  /// peer_error (peer_bad_message).
  [[nodiscard]] lent_message take_message(int from, deadline until);
  /// The same. Where `landed` is true then, the message has `first` bytes more than `rest`, and those behind the first ones
  /// are in `rest`; see LandsMessages.
  [[nodiscard]] lent_message take_message(int from, std::size_t first, std::span<std::byte> rest,
                                          bool& landed, deadline until);

 private:
  template <class Signature>
  using function_ref = detail::function_ref<Signature>;
  using merge_parts =
      function_ref<std::vector<std::byte>(std::vector<std::byte>&&, std::vector<std::byte>&&)>;
  [[nodiscard]] std::vector<std::byte> reduce(collective_input own, merge_parts merge, deadline until);
  [[nodiscard]] std::vector<std::byte> reduce_on_demand(collective_input own, merge_parts merge,
                                                        deadline until, const function_ref<void()>* look);

  detail::owned<detail::collective_runner> tree_;
  detail::owned<detail::collective_call> exchange_;  ///< the one under way
};

namespace detail {

/// Runs body() on this rank and returns when all ranks have run theirs. Collective: throws on all of them what one of
/// them throws; no message where there is one rank.
template <class Body>
void on_each_rank(collectives& group, deadline until, Body&& body) {
  if (group.size() == 1) return body();
  std::exception_ptr failure;
  try {
    body();
  } catch (...) {
    failure = std::current_exception();
  }
  group.barrier(until, failure);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/comm/collectives.ipp>
#endif
