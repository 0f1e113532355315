// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/collective_frame.hpp>
#include <cairn/comm/collective_input.hpp>
#include <cairn/comm/collective_messages.hpp>
#include <cairn/comm/collective_pieces.hpp>
#include <cairn/comm/collective_runner.hpp>
#include <cairn/comm/tree_timeout.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Carries each collective up a binomial tree of the ranks and down again, so that it ends alike on all of them.
class collective_tree final : public collective_runner {
 public:
  using operation = collective_operation;
  using step = collective_step;
  using bytes_view = std::span<const std::byte>;

  using collective_runner::collective_runner;

  /// Parts are merged up the tree, the value of the root goes down, each child gets its share().
  [[nodiscard]] std::vector<std::byte> run(operation kind, int root, collective_input own, deadline until,
                                           const merge_parts* merge,
                                           const function_ref<void()>* look) override {
    const int ranks = messages_.size();
    if (root < 0 || root >= ranks)
      fail(error_id::usage_bad_option, "the root of a collective is not a rank of this world",
           {.expected = "0 to " + std::to_string(ranks - 1), .got = std::to_string(root)});
    const bool on_demand = is_on_demand(kind);
    const auto call = messages_.begin(kind, root);
    look_ = look;
    look_pause_ = std::chrono::seconds(1);
    next_look_ = look != nullptr ? deadline::in(look_pause_) : deadline::never();
    const int self = messages_.rank();
    std::vector<child> children;
    for (int height = 0; (1 << height) < ranks - self && (self & (1 << height)) == 0; ++height)
      children.push_back({self + (1 << height), std::min(1 << height, ranks - self - (1 << height)), height});
    const int parent = self == 0 ? -1 : self & (self - 1);
    const int depth = std::popcount(static_cast<unsigned>(self));
    const tree_timeout wait(until, ranks);
    const auto word = wait.ends() ? deadline::in(wait.before_word) : deadline::never();

    outcome mine;
    bool parent_gone = false;
    bool left = true;
    const auto tell_parent = [&](const outcome& known) {
      if (parent < 0 || parent_gone) return;
      outcome unreachable;
      messages_.send(unreachable, parent, encode_frame(call, step::waiting, known, {}), until);
      parent_gone = !unreachable.ok();
    };
    messages_.guard(mine, [&] {
      if (own.failure()) std::rethrow_exception(own.failure());
      mine.value = std::move(own.bytes());
    });
    check_length(mine);
    std::vector<int> unreachable;
    for (const auto& each : children) {
      if (messages_.apart()) break;
      auto theirs = await(call, step::up, each.rank, wait.up(each.height), word, tell_parent);
      if (detail::any_of(theirs.absent, [&](const auto& one) { return one.rank == each.rank; }))
        unreachable.push_back(each.rank);
      if (mine.ok() && theirs.ok()) {
        messages_.guard(mine, [&] {
          mine.value = merge != nullptr ? (*merge)(std::move(mine.value), std::move(theirs.value))
                                        : merged(kind, std::move(mine.value), std::move(theirs.value));
        });
        check_length(mine);
      } else {
        mine.add_failures(std::move(theirs));
      }
    }

    // Who knows that the others are not here waits for no verdict.
    if (parent >= 0 && !messages_.apart()) {
      outcome sent;
      messages_.send(sent, parent, encode_frame(call, step::up, mine, mine.value), wait.down(0));
      auto verdict =
          sent.ok() ? await(call, step::down, parent, wait.down(depth), word, [](const auto&) {}) : sent;
      left = !verdict.from_neighbour;
      // Who has no verdict knows at least what its own part of the tree says.
      if (!verdict.ok() && verdict.failed_rank < 0) verdict.add_failures(std::move(mine));
      mine = std::move(verdict);
    }

    if (on_demand && parent >= 0 && left) {
      outcome withdrawal;
      messages_.send(withdrawal, parent, encode_frame(call, step::withdrawn, {}, {}), wait.down(0));
    }

    // Of an on-demand call a verdict answers what the child sent; one that sent nothing may be elsewhere.
    const auto taken = [&](const child& to) { return messages_.taken(to.rank); };
    const auto addressed = [&](const child& to) {
      return !on_demand ? call : taken(to) != nullptr ? *taken(to) : collective_call();
    };
    const auto is_here = [&](const child& to) {
      return !on_demand || (taken(to) != nullptr && taken(to)->operation == kind);
    };
    std::vector<std::vector<std::byte>> messages(children.size());
    if (mine.ok()) {
      messages_.guard(mine, [&] {
        for (std::size_t i = 0; i < children.size(); ++i) {
          std::vector<std::byte> made;
          const auto value = share(call, mine.value, children[i].rank - self, children[i].count, made);
          messages[i] = encode_frame(addressed(children[i]), step::down, mine, value);
        }
      });
    }
    const bool all_well = mine.ok();
    outcome below;
    // The largest part of the tree first; who is known to be absent last, so that nobody waits behind them.
    for (const bool missing : {false, true}) {
      for (std::size_t i = children.size(); i-- > 0;) {
        const int to = children[i].rank;
        if (detail::contains(unreachable, to) != missing) continue;
        if (!is_here(children[i])) continue;
        if (!all_well) messages[i] = encode_frame(addressed(children[i]), step::down, mine, {});
        messages_.send(below, to, messages[i], wait.down(missing ? 0 : depth + 1));
      }
    }
    // Who is gone only now does not change what all agreed on: the next call finds it, on all ranks alike. A rank that threw
    // here would be at another call than the others, which go on.
    if (all_well && below.failed_rank >= 0) mine.add_failures(std::move(below));
    if (!mine.ok()) raise(mine, call);
    return std::move(mine.value);
  }

 private:
  /// A neighbour below in the tree: it covers the ranks [rank, rank + count).
  struct child {
    int rank;
    int count;
    int height;
  };

  [[nodiscard]] static std::vector<std::byte> merged(operation kind, std::vector<std::byte> left,
                                                     std::vector<std::byte> right) {
    // Of the others only the root brings bytes.
    if (kind != operation::gather && kind != operation::all_gather)
      return left.empty() ? std::move(right) : std::move(left);
    left.insert(left.end(), right.begin(), right.end());
    return left;
  }
  /// The part of the value that comes down which `count` ranks from messages_.rank() + `first` on get; it
  /// lies in `made` if it is not a range of the value.
  [[nodiscard]] bytes_view share(const collective_call& call, bytes_view value, int first, int count,
                                 std::vector<std::byte>& made) const {
    switch (call.operation) {
      case operation::barrier:
      case operation::end_of_planning:
        return {};
      case operation::gather: {
        const int from = messages_.rank() + first;
        return call.root >= from && call.root < from + count ? value : bytes_view();
      }
      case operation::scatter:
        return made = part(value, first, count);
      default:
        return value;
    }
  }
  static std::vector<std::byte> part(bytes_view value, int first, int count) {
    const auto list = split_pieces(value);
    if (static_cast<std::size_t>(first) + static_cast<std::size_t>(count) > list.size())
      fail(error_id::peer_bad_message, "a scatter has fewer messages than ranks");
    return join_pieces(
        list_view(list).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
  }

  /// Waits for a neighbour's outcome. While a wait for a child lasts, `report(absent)` says so to the parent:
  /// that this rank is here, and for whom it waits.
  [[nodiscard]] outcome await(const collective_call& call, step wanted, int from, deadline until,
                              deadline word, function_ref<void(const outcome&)> report) {
    outcome result;
    outcome known;  // the ranks that the neighbour waited for when its last message came
    known.add_absent(from, false);
    auto next = wanted == step::up ? until.earlier(word) : until;
    messages_.guard(result, [&] {
      for (;;) {
        try {
          auto frame = messages_.receive(call, wanted, from, next.earlier(next_look_));
          if (frame.step != step::waiting) {
            result = std::move(frame.what);
            result.from_neighbour = true;
            return;
          }
          known = std::move(frame.what);
        } catch (const timeout_error& e) {
          if (until.passed()) {
            for (auto& each : known.absent)
              if (each.who.empty()) each.who = who_is(e, each.rank);
            result.add_failures(std::move(known));
            return;
          }
          if (next_look_.passed()) check_peers();
        } catch (const peer_error& e) {
          if (e.id() != error_id::peer_lost) throw;
          const auto lost = messages_.lost_rank(e, from);
          result.add_absent(lost, true, who_is(e, lost));
          return;
        }
        next = until;
        report(known);
      }
    });
    return result;
  }

  void check_peers() {
    look_pause_ = std::min<std::chrono::nanoseconds>(2 * look_pause_, std::chrono::minutes(1));
    next_look_ = deadline::in(look_pause_);
    try {
      (*look_)();
    } catch (...) {
      messages_.set_apart();
      throw;
    }
  }
  void check_length(outcome& what) {
    if (!what.ok() || what.value.size() <= max_collective_bytes) return;
    messages_.guard(what, [&] {
      fail(error_id::usage_overflow, "the bytes of a collective are more than fit a message",
           {.expected = "at most " + std::to_string(max_collective_bytes),
            .got = std::to_string(what.value.size())});
    });
  }

  const function_ref<void()>* look_ = nullptr;  ///< of the call under way
  deadline next_look_ = deadline::never();
  std::chrono::nanoseconds look_pause_{};
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
