// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/collectives.hpp>
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/model/rank_set.hpp>
#include <cairn/plan/load/read_requests.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/sorted_map.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Carries what ranks read for each other, in windows that fit everybody's memory. Each window begins with
/// one small reduction, in which all ranks learn that its bytes were read, or what kept a rank from reading
/// them, and agree where the next one ends; so no rank sends what another has no room for, and what one
/// throws all throw. The next window is read while one is exchanged.
class windowed_exchange final : public read_exchange {
 public:
  /// `wants`: of all ranks, merged. @throws peer_error
  windowed_exchange(collectives& group, std::span<const std::byte> wants)
      : group_(group), wants_(decode_wants(wants, group.size())) {}

  [[nodiscard]] std::int32_t rank() const override { return group_.rank(); }
  [[nodiscard]] shared_wants& wants() noexcept override { return wants_; }

  void run(function_ref<shared_read_list()> make, std::uint64_t budget, deadline until) override {
    budget = std::min(budget, max_window);
    shared_read_list made;
    const auto& reads = made.reads;
    std::exception_ptr failure;
    const auto guarded = [](std::exception_ptr& why, auto&& body) {
      try {
        body();
      } catch (...) {
        if (why == nullptr) why = std::current_exception();
      }
    };
    guarded(failure, [&] { made = make(); });
    auto limit = agree(failure, limit_after(reads, 0, budget), until);
    std::size_t begin = 0;
    auto end = index_of(reads, limit);
    read_bundles sent;
    const auto window_of = [&](std::size_t first, std::size_t last) {
      return shared_window{reads.data() + first, reads.data() + last};
    };
    const auto read = [&](std::size_t first, std::size_t last, read_bundles& into) {
      if (first != last) into = made.source->read(window_of(first, last), group_.message_head());
    };
    group_.begin_exchange();
    guarded(failure, [&] { read(begin, end, sent); });
    for (;;) {
      const bool last = limit == position::end();
      const auto next = agree(failure, last ? position::end() : limit_after(reads, end, budget), until);
      const auto next_end = index_of(reads, next);
      read_bundles next_sent;
      std::exception_ptr not_read;
      {
        background_thread reading;
        const auto read_next = [&] { guarded(not_read, [&] { read(end, next_end, next_sent); }); };
        const bool more = !last && end != next_end;
        bool beside = false;
        guarded(failure, [&] { beside = more && reading.start("cairn read", read_next); });
        guarded(failure, [&] { exchange(*made.source, window_of(begin, end), sent, until); });
        if (more && !beside) read_next();
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
  [[nodiscard]] std::vector<std::uint64_t> unite(function_ref<std::vector<std::uint64_t>()> make,
                                                 deadline until) override {
    auto own = collective_input::from([&] {
      auto numbers = make();
      detail::sort(numbers);
      detail::erase_repeated(numbers);
      return bytes_of_numbers(numbers);
    });
    const auto merge = [](std::vector<std::byte> left, std::vector<std::byte> right) {
      if (left == right) return left;
      auto both = read_numbers(left);
      for (const auto n : read_numbers(right)) both.push_back(n);
      detail::sort(both);
      detail::erase_repeated(both);
      return bytes_of_numbers(both);
    };
    return read_numbers(group_.tree_reduce_broadcast(std::move(own), merge, until));
  }

 private:
  /// Memory of windows is then warm when it is used again; more gains nothing.
  static constexpr std::uint64_t max_window = std::uint64_t{8} << 20;

  /// A place in the order of all reads of all ranks.
  struct position {
    std::uint64_t before = 0;
    std::uint64_t tie = 0;
    static constexpr position end() noexcept { return {UINT64_MAX, UINT64_MAX}; }
    constexpr auto operator<=>(const position&) const noexcept = default;
  };
  static position position_of(const shared_read& u) noexcept { return {u.before, u.tie}; }
  static std::size_t index_of(const std::vector<shared_read>& reads, position limit) {
    return static_cast<std::size_t>(
        std::partition_point(reads.begin(), reads.end(),
                             [&](const shared_read& u) { return position_of(u) < limit; }) -
        reads.begin());
  }
  /// How far a window that begins with reads[begin] can go.
  static position limit_after(const std::vector<shared_read>& reads, std::size_t begin,
                              std::uint64_t budget) {
    std::uint64_t cost = 0;
    for (auto i = begin; i < reads.size(); ++i) {
      cost += reads[i].cost;
      if (cost > budget && i != begin && position_of(reads[begin]) < position_of(reads[i]))
        return position_of(reads[i]);
    }
    return position::end();
  }

  [[nodiscard]] position agree(const std::exception_ptr& failure, position mine, deadline until) {
    if (failure != nullptr) {
      static_cast<void>(group_.tree_reduce_broadcast(collective_input(failure), least, until));
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
      fail(error_id::peer_bad_message, "the messages of the ranks about an exchange are damaged");
    }
  }
  static std::vector<std::byte> bytes_of_numbers(const std::vector<std::uint64_t>& numbers) {
    wire_writer out;
    for (const auto n : numbers) out.put(n);
    return out.take();
  }
  static std::vector<std::uint64_t> read_numbers(std::span<const std::byte> bytes) {
    if (bytes.size() % sizeof(std::uint64_t) != 0)
      fail(error_id::peer_bad_message, "the messages of the ranks about what they lack are damaged");
    wire_reader in(bytes);
    std::vector<std::uint64_t> numbers(bytes.size() / sizeof(std::uint64_t));
    for (auto& n : numbers) n = in.get<std::uint64_t>();
    return numbers;
  }
  static std::vector<std::byte> least(std::vector<std::byte> left, std::vector<std::byte> right) {
    return read_position(right) < read_position(left) ? right : left;
  }

  void exchange(shared_source& source, shared_window window, const read_bundles& sent, deadline until) {
    sorted_map<std::int32_t, std::vector<const rank_set*>> expected;
    std::vector<const rank_set*> sets;
    for (const auto& u : window) {
      if (u.reader == rank()) continue;
      sets.clear();
      source.sets_of(u, sets);
      for (const auto* set : sets)
        if (set->has(rank()) && !detail::contains(expected[u.reader], set)) expected[u.reader].push_back(set);
    }
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
      detail::sort(from->second, by_ranks());
      for (const auto* set : from->second)
        guarded([&] {
          const auto bundle = group_.take_message(from->first, until);
          source.take(window, from->first, set, bundle.view().subspan(head));
        });
    }
    if (failure != nullptr) std::rethrow_exception(failure);
  }

  collectives& group_;
  read_requests wants_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
