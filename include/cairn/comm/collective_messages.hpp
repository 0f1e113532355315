// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/collective_frame.hpp>
#include <cairn/concepts/any_communicator.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/sorted_map.hpp>
#include <cairn/system/wire.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Where the bytes of a message behind the first ones may come; see LandsMessages.
struct landing_place {
  std::size_t first = 0;
  std::span<std::byte> rest = {};
};

/// The messages of collectives between this rank and others: gives those of the call that is waited for, drops
/// what is of earlier ones, keeps what is of later ones, and answers who is at another call.
class collective_messages {
 public:
  using step = collective_step;

  /// Owns the communicator.
  explicit collective_messages(any_communicator communicator) : communicator_(std::move(communicator)) {}

  [[nodiscard]] int rank() const { return communicator_.rank(); }
  [[nodiscard]] int size() const { return communicator_.size(); }
  [[nodiscard]] any_communicator& communicator() noexcept { return communicator_; }
  /// How many collectives were begun, without the on-demand ones.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  void set_run(const std::array<std::byte, 16>& run) noexcept { run_ = run; }
  [[nodiscard]] const std::array<std::byte, 16>& run() const noexcept { return run_; }

  [[nodiscard]] collective_call begin(collective_operation kind, int root) {
    if (kind == collective_operation::planning) taken_.clear();
    apart_ = false;
    return {run_, is_on_demand(kind) ? ++on_demand_calls_ : epoch_++, kind, root};
  }
  /// Whether this rank knows that others are not in the call under way.
  [[nodiscard]] bool apart() const noexcept { return apart_; }
  void set_apart() noexcept { apart_ = true; }
  /// What a child sent last to the planning under way; null: nothing.
  [[nodiscard]] const collective_call* taken(int child) const {
    const auto found = taken_.find(child);
    return found == taken_.end() ? nullptr : &found->second;
  }

  /// Runs `body`; what it throws becomes this rank's failure in `what`.
  template <class Body>
  void guard(outcome& what, Body&& body) {
    try {
      body();
    } catch (const wire_error& e) {
      // Of a merge: nothing that a store holds is damaged.
      what.add_failure(rank(), encode_failure(make_failure(
                                   error_id::peer_bad_message,
                                   std::string("what the ranks told each other does not fit: ") + e.what() +
                                       "; all ranks must make the same calls in the same order",
                                   {.rank = rank(), .offset = static_cast<std::int64_t>(e.offset)})));
    } catch (...) {
      what.add_failure(rank(), portable_failure(std::current_exception(), rank()));
    }
  }

  /// Who is gone: the peer, or this rank itself where the transport says so.
  [[nodiscard]] int lost_rank(const peer_error& e, int peer) const {
    return e.fields().rank == rank() ? rank() : peer;
  }

  /// Sends; a peer that cannot be reached, or a transport that fails, goes into `what`.
  void send(outcome& what, int to, const std::vector<std::byte>& message, deadline until) {
    guard(what, [&] {
      try {
        communicator_.send(to, message, until);
      } catch (const timeout_error& e) {
        what.add_absent(to, false, who_is(e, to));
      } catch (const peer_error& e) {
        if (e.id() != error_id::peer_lost) throw;
        what.add_absent(lost_rank(e, to), true, who_is(e, lost_rank(e, to)));
      }
    });
  }

  /// The next frame of this call from a neighbour; those of earlier calls are dropped. Throws as the
  /// communicator does, and peer_error (peer_bad_message).
  [[nodiscard]] collective_frame receive(const collective_call& call, step wanted, int from, deadline until,
                                         landing_place place = {}) {
    for (int dropped = 0;; ++dropped) {
      // Without a limit a peer that sends old messages for ever would keep us past the deadline.
      if (dropped > max_dropped && until.passed())
        fail(error_id::timeout_peer, "only messages of earlier calls came by the deadline", {.rank = from});
      auto frame = next_frame(from, until, place);
      if (frame.landed && frame.call.epoch != call.epoch) {  // of another call, for which it may be kept
        frame.what.value.insert(frame.what.value.end(), place.rest.begin(), place.rest.end());
        frame.landed = false;
      }
      const auto& theirs = frame.call;
      if (theirs.run != run_ && theirs.run != no_run) continue;
      if (is_on_demand(theirs.operation)) {
        if (take_on_demand(call, wanted, from, frame, until)) return frame;
        continue;
      }
      const auto on_demand = is_on_demand(call.operation);
      if (theirs.epoch < (on_demand ? epoch_ : call.epoch)) continue;
      if (on_demand) {
        // Kept for the call that it is of.
        const auto text = elsewhere(from, theirs, call);
        early_.try_emplace(from, std::move(frame));
        apart_ = true;
        fail(error_id::peer_bad_message, text, {.rank = from});
      }
      if (theirs.epoch == call.epoch && theirs.operation == call.operation && theirs.root == call.root) {
        if (frame.step == wanted || (frame.step == step::waiting && wanted == step::up)) return frame;
        fail(error_id::peer_bad_message, "a message goes the wrong way in " + call_text(call),
             {.rank = from});
      }
      const auto text = elsewhere(from, theirs, call);
      // Kept: when this rank has made the calls that the other is ahead, they meet again.
      if (theirs.epoch > call.epoch) early_.try_emplace(from, std::move(frame));
      fail(error_id::peer_bad_message, text, {.rank = from});
    }
  }

 private:
  /// The next frame of a neighbour, of whatever call. Throws as the communicator does.
  [[nodiscard]] collective_frame next_frame(int from, deadline until, landing_place place = {}) {
    if (const auto early = early_.find(from); early != early_.end()) {
      auto frame = std::move(early->second);
      early_.erase(early);
      return frame;
    }
    auto message = place.rest.empty() ? communicator_.borrow(from, until)
                                      : communicator_.borrow_into(from, place.first, place.rest, until);
    try {
      return decode_frame(std::move(message), size());
    } catch (const wire_error& e) {
      fail(error_id::peer_bad_message,
           std::string("a message is not one of cairn's: ") + e.what() +
               "; give cairn a communicator that carries nothing else",
           {.rank = from, .offset = static_cast<std::int64_t>(e.offset)});
    }
  }

  [[nodiscard]] std::string elsewhere(int other, const collective_call& theirs,
                                      const collective_call& call) const {
    return "rank " + std::to_string(other) + " is at " + call_text(theirs) + " with root " +
           std::to_string(theirs.root) + " while rank " + std::to_string(rank()) + " is at " +
           call_text(call) + " with root " + std::to_string(call.root) +
           ": all ranks must make the same calls in the same order";
  }

  /// What becomes of a frame of an on-demand call that comes while this rank is at `call`; whether it is
  /// what that waits for. Throws where a child has left it.
  [[nodiscard]] bool take_on_demand(const collective_call& call, step wanted, int from,
                                    collective_frame& frame, deadline until) {
    const auto& theirs = frame.call;
    const bool of_this_call = theirs.operation == call.operation;
    // An answer to an earlier call of this rank, which does not wait for it any more.
    if (frame.step == step::down) return of_this_call && wanted == step::down && theirs.epoch == call.epoch;
    if (frame.step == step::withdrawn) {
      const auto taken = taken_.find(from);
      if (!is_on_demand(call.operation) || taken == taken_.end() || taken->second.epoch != theirs.epoch)
        return false;
      fail(error_id::peer_bad_message,
           "rank " + std::to_string(from) + " has left " + call_text(theirs) + " while rank " +
               std::to_string(rank()) + " is at " + call_text(call),
           {.rank = from});
    }
    if (of_this_call && wanted == step::up) {
      if (left_since(from, theirs.epoch, until)) return false;
      taken_[from] = theirs;
      return true;
    }
    if (std::exchange(answered_[from], theirs.epoch) == theirs.epoch) return false;
    outcome answer;
    answer.add_failure(
        rank(), portable_failure(make_failure(error_id::peer_bad_message, elsewhere(rank(), call, theirs),
                                              {.rank = rank()}),
                                 rank()));
    outcome unreachable;
    send(unreachable, from, encode_frame(theirs, step::down, answer, {}),
         until.earlier(deadline::in(std::chrono::seconds(1))));
    return false;
  }
  /// Whether a neighbour has left the on-demand call of which a message was just taken, as far as it has
  /// said so already.
  [[nodiscard]] bool left_since(int from, std::uint64_t count, deadline until) {
    try {
      auto next = next_frame(from, until.earlier(deadline::in(std::chrono::nanoseconds(0))));
      const bool left =
          next.step == step::withdrawn && next.call.epoch == count && is_on_demand(next.call.operation);
      if (!left) early_.try_emplace(from, std::move(next));
      return left;
    } catch (const timeout_error&) {
      return false;
    } catch (const peer_error& e) {
      if (e.id() != error_id::peer_lost) throw;
      return false;  // what it said before still counts
    }
  }

  static constexpr std::array<std::byte, 16> no_run{};
  static constexpr int max_dropped = 10'000;

  any_communicator communicator_;
  std::array<std::byte, 16> run_{};
  std::uint64_t epoch_ = 0;
  detail::sorted_map<int, collective_frame> early_;
  // Of on-demand calls.
  std::uint64_t on_demand_calls_ = 0;
  detail::sorted_map<int, collective_call> taken_;   ///< by child
  detail::sorted_map<int, std::uint64_t> answered_;  ///< by child: its count of one that this rank was not in
  bool apart_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
