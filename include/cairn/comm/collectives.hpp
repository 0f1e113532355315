// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/collective_frame.hpp>
#include <cairn/comm/collective_pieces.hpp>
#include <cairn/comm/contribution.hpp>
#include <cairn/comm/tree_patience.hpp>
#include <cairn/concepts/any_communicator.hpp>
#include <cairn/model/function_ref.hpp>
#include <cairn/model/list_view.hpp>

#include <bit>
#include <chrono>
#include <functional>
#include <map>
#include <type_traits>
#include <utility>

namespace cairn {
inline namespace v1 {

/// The collectives, written once above any Communicator.
///
/// Every collective goes up one binomial tree to rank 0 and comes down again, O(log n) messages deep and two
/// messages for each rank, so that it ends alike on all ranks: each returns, or each throws the same error.
/// Ranks that wait for long say so to their parent with a few messages more.
/// - A rank that failed (its contribution is an exception, or its merge threw) is named everywhere: its error
/// is
///   thrown on all ranks with its type and id, fields().rank filled with the rank. Of several the lowest
///   rank's.
/// - A rank that is absent is named everywhere: timeout_error (timeout_peer), or peer_error (peer_lost) where
/// the
///   transport knows that it is gone; fields().rank is the first absent one, the message lists all that are
///   known. Ranks wait at most until the deadline and a grace of 1 s + a tenth of the time that was left at
///   the call, at most 6 s. Ranks may come with different deadlines.
/// - Ranks that call in different order get peer_error (peer_bad_message), which names a rank and the calls
/// of both.
///   So do bytes that are no message of cairn's.
/// - A rank that vanishes while the result comes down can be seen by some ranks only.
///
/// Each message carries the run id and the count of collectives (the epoch): what a call that failed left
/// under way is dropped. All ranks make the same calls in the same order, but for the occasional ones, which
/// do not count; one thread at a time on each. A
/// rank outside of the world as root is a usage_error, before anything is sent. Values are at most 1 GiB less
/// 64 bytes, and so is what gather, scatter and all_gather move in one message: more is a usage_error
/// (usage_overflow) on all ranks.
class collectives {
 public:
  /// Owns the communicator, which nobody else uses for messages.
  explicit collectives(any_communicator communicator) : communicator_(std::move(communicator)) {}
  /// The same of a communicator of any type.
  template <class C>
    requires(!std::same_as<C, any_communicator> && !std::same_as<C, collectives> && Communicator<C>)
  explicit collectives(C communicator) : collectives(any_communicator(std::move(communicator))) {}

  [[nodiscard]] int rank() const { return communicator_.rank(); }
  [[nodiscard]] int size() const { return communicator_.size(); }
  [[nodiscard]] any_communicator& communicator() noexcept { return communicator_; }
  [[nodiscard]] const any_communicator& communicator() const noexcept { return communicator_; }
  /// How many collectives were begun.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  /// All ranks set the same id at the same place in the order of calls. Messages of another run are dropped;
  /// zero, the value before, means that none is agreed yet.
  void set_run(const std::array<std::byte, 16>& run) noexcept { run_ = run; }
  [[nodiscard]] const std::array<std::byte, 16>& run() const noexcept { return run_; }

  /// Every rank gets what `root` brings; of the others only a failure counts.
  [[nodiscard]] std::vector<std::byte> broadcast(int root, contribution own, deadline until) {
    if (rank() != root) own.bytes().clear();
    return run_tree(operation::broadcast, root, std::move(own), until, the_roots);
  }

  /// `root` gets what all bring, in rank order; the others get an empty vector.
  [[nodiscard]] std::vector<std::vector<std::byte>> gather(int root, contribution own, deadline until) {
    const auto all = run_tree(operation::gather, root, labelled(std::move(own)), until, append);
    return rank() == root ? detail::sort_labelled(all, size()) : std::vector<std::vector<std::byte>>();
  }

  /// Every rank gets what all bring, in rank order.
  [[nodiscard]] std::vector<std::vector<std::byte>> all_gather(contribution own, deadline until) {
    return detail::sort_labelled(run_tree(operation::all_gather, 0, labelled(std::move(own)), until, append),
                                 size());
  }

  /// Rank r gets pieces[r] of `root`; the others' pieces are ignored. A rank that cannot go on brings
  /// `failure`.
  /// @throws usage_error (usage_bad_option), on all ranks, if the root has not one piece for each rank.
  [[nodiscard]] std::vector<std::byte> scatter(int root, const std::vector<std::vector<std::byte>>& pieces,
                                               deadline until, std::exception_ptr failure = nullptr) {
    auto own = contribution::from([&]() -> std::vector<std::byte> {
      if (failure) std::rethrow_exception(failure);
      if (rank() != root) return {};
      if (pieces.size() != static_cast<std::size_t>(size()))
        fail(error_id::usage_bad_option, "scatter needs one piece for each rank",
             {.expected = std::to_string(size()), .got = std::to_string(pieces.size())});
      std::vector<std::span<const std::byte>> list;
      list.reserve(pieces.size());
      for (const auto& each : pieces) list.emplace_back(each);
      return detail::join_pieces(list);
    });
    const auto mine = run_tree(operation::scatter, root, std::move(own), until, the_roots);
    const auto list = detail::split_pieces(mine);
    return {list.front().begin(), list.front().end()};
  }

  /// Returns when all ranks have called it; a rank that cannot go on brings `failure`, which all throw.
  void barrier(deadline until, std::exception_ptr failure = nullptr) {
    static_cast<void>(run_tree(operation::barrier, 0, contribution(std::move(failure)), until, the_roots));
  }

  /// Every rank gets the fold of what all bring: merge(left, right), where left covers the lower ranks and
  /// the two are neighbours. Merge must be associative, not commutative, and gets and returns
  /// std::vector<std::byte>; it is called O(log n) times on a rank; what it throws is that rank's failure.
  template <class Merge>
    requires std::is_invocable_r_v<std::vector<std::byte>, Merge&, std::vector<std::byte>,
                                   std::vector<std::byte>>
  [[nodiscard]] std::vector<std::byte> tree_reduce_broadcast(contribution own, Merge merge, deadline until) {
    return run_tree(operation::tree_reduce_broadcast, 0, std::move(own), until, merge);
  }

  /// As tree_reduce_broadcast(), for what ranks do together only where each finds by itself that it must, as
  /// planning. Where not all come, those that did fail as ever, and the next collective has all ranks again:
  /// a rank that makes another call meanwhile is not disturbed, and tells those who wait for it here. `look`
  /// is asked now and then while this rank waits: what it throws ends the call on this rank at once.
  template <class Merge>
    requires std::is_invocable_r_v<std::vector<std::byte>, Merge&, std::vector<std::byte>,
                                   std::vector<std::byte>>
  [[nodiscard]] std::vector<std::byte> occasional_reduce(contribution own, Merge merge, deadline until,
                                                         const std::function<void()>& look = {}) {
    look_ = &look;
    const look_ends at_the_end{*this};
    return run_tree(operation::planning, 0, std::move(own), until, merge);
  }
  /// As barrier(), after an occasional_reduce() that gave this rank a value.
  void occasional_barrier(deadline until, std::exception_ptr failure = nullptr) {
    static_cast<void>(
        run_tree(operation::end_of_planning, 0, contribution(std::move(failure)), until, the_roots));
  }

  /// Begins an exchange: messages from rank to rank, outside of the tree, until the next collective. All
  /// ranks call it at the same place in the order of calls. A message that is not taken by then is dropped.
  /// Where a transport holds little, two ranks that each wait to be heard wait for ever: in step s of
  /// size() - 1 a rank sends to rank + s first, and then takes from rank - s.
  void begin_exchange() { exchange_ = {run_, epoch_++, operation::exchange, 0}; }
  /// What a message of the exchange begins with: the caller's bytes follow.
  [[nodiscard]] std::vector<std::byte> message_head() const {
    return detail::encode_frame(exchange_, step::up, {}, {});
  }
  /// Sends a message that begins with message_head(), without a copy where the communicator can. Throws as
  /// the communicator does.
  void send_message(int to, const lent_message& message, deadline until) {
    communicator_.lend(to, message, until);
  }
  /// The next message of `from` in this exchange, with its head. Throws as the communicator does, and
  /// peer_error (peer_bad_message).
  [[nodiscard]] lent_message take_message(int from, deadline until) {
    auto frame = receive(exchange_, step::up, from, until);
    if (!frame.what.ok() || frame.step != step::up)
      fail(error_id::peer_bad_message, "a message of an exchange is none", {.rank = from});
    if (frame.lent.data != nullptr) return std::move(frame.lent);
    const auto bytes = std::make_shared<std::vector<std::byte>>(std::move(frame.what.value));
    return {{bytes, bytes->data()}, bytes->size()};
  }

 private:
  using operation = detail::collective_operation;
  using step = detail::collective_step;
  using bytes_view = std::span<const std::byte>;

  /// A neighbour below in the tree: it covers the ranks [rank, rank + count).
  struct child {
    int rank;
    int count;
    int height;
  };

  using merge_parts =
      detail::function_ref<std::vector<std::byte>(std::vector<std::byte>&&, std::vector<std::byte>&&)>;

  /// Only the root brings bytes.
  static constexpr auto the_roots = [](std::vector<std::byte> left, std::vector<std::byte> right) {
    return left.empty() ? std::move(right) : std::move(left);
  };
  static constexpr auto append = [](std::vector<std::byte> left, const std::vector<std::byte>& right) {
    left.insert(left.end(), right.begin(), right.end());
    return left;
  };
  /// Of the value that comes down, what `count` ranks from rank() + `first` on get; in `made` where it is none of
  /// its bytes.
  [[nodiscard]] bytes_view share(const detail::collective_call& call, bytes_view value, int first, int count,
                                 std::vector<std::byte>& made) const {
    switch (call.operation) {
      case operation::barrier:
      case operation::end_of_planning:
        return {};
      case operation::gather: {
        const int from = rank() + first;
        return call.root >= from && call.root < from + count ? value : bytes_view();
      }
      case operation::scatter:
        return made = part(value, first, count);
      default:
        return value;
    }
  }
  static std::vector<std::byte> part(bytes_view value, int first, int count) {
    const auto list = detail::split_pieces(value);
    if (static_cast<std::size_t>(first) + static_cast<std::size_t>(count) > list.size())
      fail(error_id::peer_bad_message, "a scatter brought fewer pieces than ranks");
    return detail::join_pieces(
        detail::list_view(list).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
  }

  [[nodiscard]] contribution labelled(contribution own) const {
    if (own.failure()) return own;
    return contribution::from([&] { return detail::label_piece(rank(), own.bytes()); });
  }

  /// Runs `body`; what it throws becomes this rank's failure in `what`.
  template <class Body>
  void guard(detail::outcome& what, Body&& body) {
    try {
      body();
    } catch (...) {
      what.add_failure(rank(), detail::portable_failure(std::current_exception(), rank()));
    }
  }

  /// Who is gone: the peer, or this rank itself where the transport says so.
  [[nodiscard]] int gone(const peer_error& e, int peer) const {
    return e.fields().rank == rank() ? rank() : peer;
  }

  /// Sends; a peer that cannot be reached, or a transport that fails, goes into `what`.
  void send(detail::outcome& what, int to, const std::vector<std::byte>& message, deadline until) {
    guard(what, [&] {
      try {
        communicator_.send(to, message, until);
      } catch (const timeout_error&) {
        what.add_absent(to, false);
      } catch (const peer_error& e) {
        if (e.id() != error_id::peer_lost) throw;
        what.add_absent(gone(e, to), true);
      }
    });
  }

  /// The next frame of a neighbour, of whatever call. Throws as the communicator does.
  [[nodiscard]] detail::collective_frame next_frame(int from, deadline until) {
    if (auto early = early_.extract(from); !early.empty()) return std::move(early.mapped());
    auto message = communicator_.borrow(from, until);
    try {
      return detail::decode_frame(std::move(message), size());
    } catch (const wire_error& e) {
      fail(error_id::peer_bad_message,
           std::string("a message is none of cairn's: ") + e.what() +
               "; give cairn a communicator that carries nothing else",
           {.rank = from, .offset = static_cast<std::int64_t>(e.offset)});
    }
  }

  /// The next frame of this call from a neighbour; those of earlier calls are dropped. Throws as the
  /// communicator does, and peer_error (peer_bad_message).
  [[nodiscard]] detail::collective_frame receive(const detail::collective_call& call, step wanted, int from,
                                                 deadline until) {
    for (int dropped = 0;; ++dropped) {
      // Without a limit a peer that sends old messages for ever would keep us past the deadline.
      if (dropped > most_dropped && until.passed())
        fail(error_id::timeout_peer, "only messages of earlier calls came by the deadline", {.rank = from});
      auto frame = next_frame(from, until);
      const auto& theirs = frame.call;
      if (theirs.run != run_ && theirs.run != no_run) continue;
      if (detail::is_occasional(theirs.operation)) {
        if (take_occasional(call, wanted, from, frame, until)) return frame;
        continue;
      }
      const auto occasional = detail::is_occasional(call.operation);
      if (theirs.epoch < (occasional ? epoch_ : call.epoch)) continue;
      if (occasional) {
        // Kept for the call that it is of.
        const auto text = elsewhere(from, theirs, call);
        early_.emplace(from, std::move(frame));
        apart_ = true;
        fail(error_id::peer_bad_message, text, {.rank = from});
      }
      if (theirs.epoch == call.epoch && theirs.operation == call.operation && theirs.root == call.root) {
        if (frame.step == wanted || (frame.step == step::waiting && wanted == step::up)) return frame;
        fail(error_id::peer_bad_message, "a message goes the wrong way in " + detail::call_text(call),
             {.rank = from});
      }
      const auto text = elsewhere(from, theirs, call);
      // Kept: when this rank has made the calls that the other is ahead, they meet again.
      if (theirs.epoch > call.epoch) early_.emplace(from, std::move(frame));
      fail(error_id::peer_bad_message, text, {.rank = from});
    }
  }

  [[nodiscard]] std::string elsewhere(int other, const detail::collective_call& theirs,
                                      const detail::collective_call& call) const {
    return "rank " + std::to_string(other) + " is at " + detail::call_text(theirs) + " with root " +
           std::to_string(theirs.root) + " while rank " + std::to_string(rank()) + " is at " +
           detail::call_text(call) + " with root " + std::to_string(call.root) +
           ": all ranks must make the same calls in the same order";
  }

  /// What becomes of a frame of an occasional call that comes while this rank is at `call`; whether it is
  /// what that waits for. Throws where a child has left it.
  [[nodiscard]] bool take_occasional(const detail::collective_call& call, step wanted, int from,
                                     detail::collective_frame& frame, deadline until) {
    const auto& theirs = frame.call;
    const bool of_this_call = theirs.operation == call.operation;
    // An answer to an earlier call of this rank, which does not wait for it any more.
    if (frame.step == step::down) return of_this_call && wanted == step::down && theirs.epoch == call.epoch;
    if (frame.step == step::withdrawn) {
      const auto taken = taken_.find(from);
      if (!detail::is_occasional(call.operation) || taken == taken_.end() ||
          taken->second.epoch != theirs.epoch)
        return false;
      fail(error_id::peer_bad_message,
           "rank " + std::to_string(from) + " has left " + detail::call_text(theirs) + " while rank " +
               std::to_string(rank()) + " is at " + detail::call_text(call),
           {.rank = from});
    }
    if (of_this_call && wanted == step::up) {
      if (withdrawn_since(from, theirs.epoch, until)) return false;
      taken_[from] = theirs;
      return true;
    }
    if (std::exchange(answered_[from], theirs.epoch) == theirs.epoch) return false;
    detail::outcome answer;
    answer.add_failure(
        rank(), detail::portable_failure(make_failure(error_id::peer_bad_message,
                                                      elsewhere(rank(), call, theirs), {.rank = rank()}),
                                         rank()));
    detail::outcome unreachable;
    send(unreachable, from, detail::encode_frame(theirs, step::down, answer, {}),
         until.earlier(deadline::in(std::chrono::seconds(1))));
    return false;
  }
  /// Whether a neighbour has left the occasional call of which a message was just taken, as far as it has
  /// said so already.
  [[nodiscard]] bool withdrawn_since(int from, std::uint64_t count, deadline until) {
    try {
      auto next = next_frame(from, until.earlier(deadline::in(std::chrono::nanoseconds(0))));
      const bool left = next.step == step::withdrawn && next.call.epoch == count &&
                        detail::is_occasional(next.call.operation);
      if (!left) early_.emplace(from, std::move(next));
      return left;
    } catch (const timeout_error&) {
      return false;
    } catch (const peer_error& e) {
      if (e.id() != error_id::peer_lost) throw;
      return false;  // what it said before still counts
    }
  }

  /// Waits for a neighbour's outcome. While a wait for a child lasts, `tell(absent)` says so to the parent:
  /// that this rank is here, and for whom it waits.
  [[nodiscard]] detail::outcome await(const detail::collective_call& call, step wanted, int from,
                                      deadline until, deadline word,
                                      detail::function_ref<void(const detail::outcome&)> tell) {
    detail::outcome result;
    detail::outcome known;  // whom the neighbour was waiting for when it was last heard of
    known.add_absent(from, false);
    auto next = wanted == step::up ? until.earlier(word) : until;
    guard(result, [&] {
      for (;;) {
        try {
          auto frame = receive(call, wanted, from, next.earlier(next_look_));
          if (frame.step != step::waiting) {
            result = std::move(frame.what);
            result.heard = true;
            return;
          }
          known = std::move(frame.what);
        } catch (const timeout_error&) {
          if (until.passed()) {
            result.add_troubles(std::move(known));
            return;
          }
          if (next_look_.passed()) look_around();
        } catch (const peer_error& e) {
          if (e.id() != error_id::peer_lost) throw;
          result.add_absent(gone(e, from), true);
          return;
        }
        next = until;
        tell(known);
      }
    });
    return result;
  }

  struct look_ends {
    collectives& all;
    ~look_ends() { all.look_ = nullptr; }
  };
  void look_around() {
    look_pause_ = std::min<std::chrono::nanoseconds>(2 * look_pause_, std::chrono::minutes(1));
    next_look_ = deadline::in(look_pause_);
    try {
      (*look_)();
    } catch (...) {
      apart_ = true;
      throw;
    }
  }

  /// One collective: parts are merged up the tree, the value of the root goes down, each child gets its share().
  [[nodiscard]] std::vector<std::byte> run_tree(operation kind, int root, contribution own, deadline until,
                                                merge_parts merge) {
    const int ranks = size();
    if (root < 0 || root >= ranks)
      fail(error_id::usage_bad_option, "the root of a collective is no rank of this world",
           {.expected = "0 to " + std::to_string(ranks - 1), .got = std::to_string(root)});
    const bool occasional = detail::is_occasional(kind);
    const detail::collective_call call{run_, occasional ? ++occasions_ : epoch_++, kind, root};
    if (kind == operation::planning) taken_.clear();
    apart_ = false;
    look_pause_ = std::chrono::seconds(1);
    next_look_ = look_ != nullptr && *look_ ? deadline::in(look_pause_) : deadline::never();
    const int self = rank();
    std::vector<child> children;
    for (int height = 0; (1 << height) < ranks - self && (self & (1 << height)) == 0; ++height)
      children.push_back({self + (1 << height), std::min(1 << height, ranks - self - (1 << height)), height});
    const int parent = self == 0 ? -1 : self & (self - 1);
    const int depth = std::popcount(static_cast<unsigned>(self));
    const detail::tree_patience wait(until, ranks);
    const auto word = wait.ends() ? deadline::in(wait.before_word) : deadline::never();

    detail::outcome mine;
    bool parent_gone = false;
    bool left = true;
    const auto tell_parent = [&](const detail::outcome& known) {
      if (parent < 0 || parent_gone) return;
      detail::outcome unreachable;
      send(unreachable, parent, detail::encode_frame(call, step::waiting, known, {}), until);
      parent_gone = !unreachable.ok();
    };
    guard(mine, [&] {
      if (own.failure()) std::rethrow_exception(own.failure());
      mine.value = std::move(own.bytes());
    });
    check_length(mine);
    std::vector<int> unreachable;
    for (const auto& each : children) {
      if (apart_) break;
      auto theirs = await(call, step::up, each.rank, wait.up(each.height), word, tell_parent);
      if (std::ranges::any_of(theirs.absent, [&](const auto& one) { return one.rank == each.rank; }))
        unreachable.push_back(each.rank);
      if (mine.ok() && theirs.ok()) {
        guard(mine, [&] { mine.value = merge(std::move(mine.value), std::move(theirs.value)); });
        check_length(mine);
      } else {
        mine.add_troubles(std::move(theirs));
      }
    }

    // Who knows that the others are not here waits for no verdict.
    if (parent >= 0 && !apart_) {
      detail::outcome sent;
      send(sent, parent, detail::encode_frame(call, step::up, mine, mine.value), wait.down(0));
      auto verdict =
          sent.ok() ? await(call, step::down, parent, wait.down(depth), word, [](const auto&) {}) : sent;
      left = !verdict.heard;
      // Who has no verdict knows at least what its own part of the tree says.
      if (!verdict.ok() && verdict.failed_rank < 0) verdict.add_troubles(std::move(mine));
      mine = std::move(verdict);
    }

    if (occasional && parent >= 0 && left) {
      detail::outcome unheard;
      send(unheard, parent, detail::encode_frame(call, step::withdrawn, {}, {}), wait.down(0));
    }

    // Of an occasional call a verdict answers what the child sent; one that sent nothing may be elsewhere.
    const auto addressed = [&](const child& to) { return occasional ? taken_[to.rank] : call; };
    const auto is_here = [&](const child& to) {
      const auto taken = taken_.find(to.rank);
      return !occasional || (taken != taken_.end() && taken->second.operation == kind);
    };
    std::vector<std::vector<std::byte>> messages(children.size());
    if (mine.ok()) {
      guard(mine, [&] {
        for (std::size_t i = 0; i < children.size(); ++i) {
          std::vector<std::byte> made;
          const auto value = share(call, mine.value, children[i].rank - self, children[i].count, made);
          messages[i] = detail::encode_frame(addressed(children[i]), step::down, mine, value);
        }
      });
    }
    const bool told_ok = mine.ok();
    detail::outcome below;
    // The largest part of the tree first; who is known to be absent last, so that nobody waits behind them.
    for (const bool missing : {false, true}) {
      for (std::size_t i = children.size(); i-- > 0;) {
        const int to = children[i].rank;
        if ((std::ranges::find(unreachable, to) != unreachable.end()) != missing) continue;
        if (!is_here(children[i])) continue;
        if (!told_ok) messages[i] = detail::encode_frame(addressed(children[i]), step::down, mine, {});
        send(below, to, messages[i], wait.down(missing ? 0 : depth + 1));
      }
    }
    if (told_ok) mine.add_troubles(std::move(below));
    if (!mine.ok()) detail::raise(mine, call);
    return std::move(mine.value);
  }

  void check_length(detail::outcome& what) {
    if (!what.ok() || what.value.size() <= detail::max_collective_bytes) return;
    guard(what, [&] {
      fail(error_id::usage_overflow, "the bytes of a collective are more than fit a message",
           {.expected = "at most " + std::to_string(detail::max_collective_bytes),
            .got = std::to_string(what.value.size())});
    });
  }

  static constexpr std::array<std::byte, 16> no_run{};
  static constexpr int most_dropped = 10'000;

  any_communicator communicator_;
  std::array<std::byte, 16> run_{};
  std::uint64_t epoch_ = 0;
  detail::collective_call exchange_{};
  std::map<int, detail::collective_frame> early_;
  // Of occasional calls.
  std::uint64_t occasions_ = 0;
  std::map<int, detail::collective_call> taken_;  ///< by child: what it sent last to the planning under way
  std::map<int, std::uint64_t> answered_;         ///< by child: its count of one that this rank was not in
  const std::function<void()>* look_ = nullptr;
  deadline next_look_ = deadline::never();
  std::chrono::nanoseconds look_pause_{};
  bool apart_ = false;  ///< in the call under way this rank knows that others are not in it
};

}  // namespace v1
}  // namespace cairn
