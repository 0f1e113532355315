// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/collectives.hpp>
#include <cairn/model/list_view.hpp>
#include <cairn/plan/wanted_boxes.hpp>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Carries what ranks read for each other, in windows that fit everybody's memory. Each window begins with
/// one small reduction, in which all ranks learn that its bytes were read, or what kept a rank from reading
/// them, and agree where the next one ends; so no rank sends what another has no room for, and what one
/// throws all throw. The next window is read while one is exchanged.
class read_exchange {
 public:
  using wants_type = wanted_boxes;

  /// `wants`: of all ranks, merged. @throws peer_error
  read_exchange(collectives& group, std::span<const std::byte> wants)
      : group_(group), wants_(decode_wants(wants, group.size())) {}

  [[nodiscard]] std::int32_t rank() const { return group_.rank(); }
  [[nodiscard]] wanted_boxes& wants() noexcept { return wants_; }

  /// Collective. `make()` gives this rank's units, sorted as assign_readers does; after it `source()` gives
  /// an object with read(window, head), called by one other thread at times, take(window, reader, set, bytes)
  /// and for_each_set(unit, each). A window takes up to `budget` bytes of memory for what is sent, and as
  /// much for what is received; one unit fits always.
  template <class Make, class Source>
  void run(Make&& make, std::uint64_t budget, Source&& source, deadline until) {
    budget = std::min(budget, most_window);
    using unit = typename std::invoke_result_t<Make>::value_type;
    using bundles = decltype(source().read(list_view<const unit>(), std::span<const std::byte>()));
    std::vector<unit> units;
    std::exception_ptr failure;
    const auto guarded = [](std::exception_ptr& why, auto&& body) {
      try {
        body();
      } catch (...) {
        if (why == nullptr) why = std::current_exception();
      }
    };
    guarded(failure, [&] { units = make(); });
    auto limit = agree(failure, limit_after<unit>(units, 0, budget), until);
    std::size_t begin = 0;
    auto end = index_of<unit>(units, limit);
    bundles sent;
    const auto read = [&](std::size_t first, std::size_t last, bundles& into) {
      if (first != last)
        into =
            source().read(list_view<const unit>(units).subspan(first, last - first), group_.message_head());
    };
    group_.begin_exchange();
    guarded(failure, [&] { read(begin, end, sent); });
    for (;;) {
      const bool last = limit == position::end();
      const auto next = agree(failure, last ? position::end() : limit_after<unit>(units, end, budget), until);
      const auto next_end = index_of<unit>(units, next);
      bundles next_sent;
      std::exception_ptr not_read;
      {
        const auto window = list_view<const unit>(units).subspan(begin, end - begin);
        std::jthread reading;
        const auto read_next = [&] { guarded(not_read, [&] { read(end, next_end, next_sent); }); };
        bool started = false;
        if (!last && end != next_end) {
          try {
            reading = std::jthread(read_next);
            started = true;
          } catch (const std::system_error&) {  // after the exchange, then
          }
        }
        guarded(failure, [&] { exchange(source(), window, sent, until); });
        if (!last && end != next_end && !started) read_next();
      }
      if (failure == nullptr) failure = not_read;
      if (last) break;
      sent = std::move(next_sent);
      begin = end;
      end = next_end;
      limit = next;
    }
    if (failure != nullptr) std::rethrow_exception(failure);
  }

 private:
  /// Memory of windows is then warm when it is used again; more gains nothing.
  static constexpr std::uint64_t most_window = std::uint64_t{8} << 20;

  /// A place in the order of all units of all ranks.
  struct position {
    std::uint64_t before = 0;
    std::uint64_t tie = 0;
    static constexpr position end() noexcept { return {UINT64_MAX, UINT64_MAX}; }
    friend constexpr auto operator<=>(const position&, const position&) noexcept = default;
  };
  template <class Unit>
  static position position_of(const Unit& u) noexcept {
    return {u.before, u.wanters->digest};
  }
  template <class Unit>
  static std::size_t index_of(list_view<const Unit> units, position limit) {
    return static_cast<std::size_t>(
        std::partition_point(units.begin(), units.end(),
                             [&](const Unit& u) { return position_of(u) < limit; }) -
        units.begin());
  }
  /// How far a window that begins with units[begin] can go.
  template <class Unit>
  static position limit_after(list_view<const Unit> units, std::size_t begin, std::uint64_t budget) {
    std::uint64_t cost = 0;
    for (auto i = begin; i < units.size(); ++i) {
      cost += units[i].cost;
      if (cost > budget && i != begin && position_of(units[begin]) < position_of(units[i]))
        return position_of(units[i]);
    }
    return position::end();
  }

  [[nodiscard]] position agree(const std::exception_ptr& failure, position mine, deadline until) {
    if (failure != nullptr) {
      static_cast<void>(group_.tree_reduce_broadcast(contribution(failure), least, until));
      std::rethrow_exception(failure);
    }
    wire_writer out;
    out.put(mine.before).put(mine.tie);
    return read_position(group_.tree_reduce_broadcast(out.take(), least, until));
  }
  static position read_position(std::span<const std::byte> bytes) {
    try {
      wire_reader in(bytes);
      position p;
      p.before = in.get<std::uint64_t>();
      p.tie = in.get<std::uint64_t>();
      in.finish();
      return p;
    } catch (const wire_error&) {
      fail(error_id::peer_bad_message, "the ranks' words on an exchange are damaged");
    }
  }
  static std::vector<std::byte> least(std::vector<std::byte> left, std::vector<std::byte> right) {
    return read_position(right) < read_position(left) ? right : left;
  }

  template <class Source, class Unit, class Bundles>
  void exchange(Source& source, list_view<const Unit> window, const Bundles& sent, deadline until) {
    std::map<std::int32_t, std::set<const rank_set*, by_ranks>> expected;
    for (const auto& u : window)
      if (u.reader != rank())
        source.for_each_set(u, [&](const rank_set* set) {
          if (set->has(rank())) expected[u.reader].insert(set);
        });
    // A rank that cannot have one message goes on with the others, which nobody is to wait for.
    std::exception_ptr failure;
    const auto guarded = [&](auto&& body) {
      try {
        body();
      } catch (...) {
        if (failure == nullptr) failure = std::current_exception();
      }
    };
    const int ranks = group_.size();
    const auto head = group_.message_head().size();
    for (int s = 1; s < ranks; ++s) {
      const int to = (rank() + s) % ranks;
      for (const auto& [set, bundle] : sent)
        if (set->has(to)) guarded([&] { group_.send_message(to, bundle.message(), until); });
      const auto from = expected.find((rank() - s + ranks) % ranks);
      if (from == expected.end()) continue;
      for (const auto* set : from->second)
        guarded([&] {
          const auto bundle = group_.take_message(from->first, until);
          source.take(window, from->first, set, bundle.view().subspan(head));
        });
    }
    if (failure != nullptr) std::rethrow_exception(failure);
  }

  collectives& group_;
  wanted_boxes wants_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
