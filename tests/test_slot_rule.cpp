// SPDX-License-Identifier: Apache-2.0
// optimised
//
// Which image of a local tier the next save takes: all interleavings of small jobs, each of which may die anywhere.
#include <doctest/doctest.h>

#include <cairn/tiers/slot_rule.hpp>
#include <support/sanitized.hpp>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <optional>
#include <set>
#include <vector>

namespace {
using cairn::detail::slot_state;

/// One rank of the model: what its images hold, in saves counted from 1.
struct modelled_rank {
  struct image {
    int held = 0;         // 0: nothing
    int filling = 0;      // 0: no
    bool stored = false;  // the store has not got it yet
    bool ready = false;   // of the next save, which has not come yet
    auto operator<=>(const image&) const = default;
  };
  std::vector<image> images;
  int called = 0;
  auto operator<=>(const modelled_rank&) const = default;
};
using modelled_job = std::vector<modelled_rank>;

std::set<int> complete_in(const modelled_job& job) {
  std::set<int> all;
  for (const auto& i : job[0].images)
    if (i.held != 0) all.insert(i.held);
  for (const auto& rank : job)
    std::erase_if(all, [&](int g) {
      return std::none_of(rank.images.begin(), rank.images.end(), [&](const auto& i) { return i.held == g; });
    });
  return all;
}

struct exploration {
  std::size_t states = 0;
  std::size_t lost = 0;     // a complete save was given up and no newer one is there
  std::size_t blocked = 0;  // a save had no image, though the store had not all that it may have
};
/// `wrong`: the oldest goes, whatever the others hold.
exploration explore(int ranks, int depth, int last, int apart, bool lossy, bool wrong) {
  exploration found;
  modelled_rank first;
  first.images.resize(static_cast<std::size_t>(depth));
  struct node {
    modelled_job job;
    int best;
    auto operator<=>(const node&) const = default;
  };
  std::set<node> seen;
  std::deque<node> todo{{modelled_job(static_cast<std::size_t>(ranks), first), 0}};
  while (!todo.empty()) {
    auto now = todo.front();
    todo.pop_front();
    const auto complete = complete_in(now.job);
    const int newest = complete.empty() ? 0 : *complete.rbegin();
    // The job may die here: what was complete once, or something newer, must be complete.
    if (newest < now.best) {
      ++found.lost;
      continue;
    }
    now.best = newest;
    for (auto& rank : now.job)
      std::sort(rank.images.begin(), rank.images.end());  // which is which does not matter
    if (!seen.insert(now).second) continue;
    ++found.states;
    int slowest = last;
    for (const auto& rank : now.job) slowest = std::min(slowest, rank.called);
    for (std::size_t r = 0; r < now.job.size(); ++r) {
      const auto& rank = now.job[r];
      const auto filling =
          std::find_if(rank.images.begin(), rank.images.end(), [](const auto& i) { return i.filling; });
      const auto ready = static_cast<std::size_t>(
          std::find_if(rank.images.begin(), rank.images.end(), [](const auto& i) { return i.ready; }) -
          rank.images.begin());
      const bool has_one = ready != rank.images.size();
      std::vector<slot_state> slots;
      std::size_t busy = 0;
      for (const auto& i : rank.images) {
        slots.push_back({.generation = static_cast<std::uint64_t>(i.held),
                         .in_use = i.stored || i.ready || i.filling != 0});
        busy += i.stored;
      }
      const auto choose = [&](bool early) {
        std::optional<std::size_t> chosen;
        if (!wrong) return cairn::detail::choose_slot(slots, static_cast<std::uint64_t>(newest), early);
        for (std::size_t i = 0; i < slots.size(); ++i)
          if (!slots[i].in_use && (!chosen || slots[i].generation < slots[*chosen].generation)) chosen = i;
        return chosen;
      };
      // One save at a time is copied; the next begins when it is held, or was given up.
      if (filling == rank.images.end() && rank.called < last && rank.called < slowest + apart) {
        const auto chosen = has_one ? std::optional(ready) : choose(false);
        if (!chosen) {
          found.blocked += busy <= 1;
        } else {
          auto next = now;
          auto& image = next.job[r].images[*chosen];
          image = {.held = 0, .filling = ++next.job[r].called};
          todo.push_back(next);
        }
      }
      // The image of the next save is chosen at any time, or not before that save.
      if (const auto chosen = has_one ? std::nullopt : choose(true)) {
        auto next = now;
        next.job[r].images[*chosen] = {.ready = true};
        todo.push_back(next);
      }
      for (std::size_t i = 0; i < rank.images.size(); ++i) {
        const auto& image = rank.images[i];
        const auto with = [&](modelled_rank::image changed) {
          auto next = now;
          next.job[r].images[i] = changed;
          todo.push_back(next);
        };
        if (image.filling != 0) {
          with({.held = image.filling});
          // The store takes one at a time.
          if (std::none_of(rank.images.begin(), rank.images.end(), [](const auto& o) { return o.stored; }))
            with({.held = image.filling, .stored = true});
          if (lossy) with({});
        }
        if (image.stored) with({.held = image.held});
      }
    }
  }
  return found;
}

// survives: rank-killed
TEST_CASE(
    "whenever a job dies, its ranks have a save in common once they had one, and no save waits for ever") {
  // Under a sanitizer shorter jobs alone: an optimised build tries these.
  const bool small = CAIRN_TEST_ADDRESS_SANITIZED != 0;
  for (const int keep : {1, 2})
    for (const bool lossy : {false, true}) {
      CAPTURE(keep);
      CAPTURE(lossy);
      const auto found = explore(2, keep + 2, small ? 3 : keep == 1 ? 5 : 4, 3, lossy, false);
      CHECK(found.states > 100);
      CHECK(found.lost == 0);
      CHECK(found.blocked == 0);
    }
  const auto three = explore(3, 3, small ? 2 : 3, 2, false, false);
  CHECK(three.states > 100);
  CHECK(three.lost == 0);
  CHECK(three.blocked == 0);
}
TEST_CASE("an image with pieces goes last, and the newest complete one does not go at all") {
  // Generation 4 is complete; those of 5 and 6 are still being written.
  std::vector<slot_state> slots{{.generation = 4, .has_pieces = true},
                                {.generation = 5, .in_use = true},
                                {.generation = 3, .has_pieces = true},
                                {.generation = 2},
                                {.generation = 6, .in_use = true}};
  CHECK(cairn::detail::choose_slot(slots, 4) == 3);
  slots[3].in_use = true;
  CHECK(cairn::detail::choose_slot(slots, 4) == 2);
  CHECK(cairn::detail::choose_slot(slots, 4, true) == std::nullopt);
  slots[2].in_use = true;
  CHECK(cairn::detail::choose_slot(slots, 4) == std::nullopt);
}
TEST_CASE(
    "where nobody tells what all ranks hold, the newest save stays, and the complete one that was told") {
  // Generation 1 is complete, 3 and 4 have pieces; each save is held before the next one begins.
  std::vector<slot_state> slots(6);
  for (std::uint64_t save = 1; save <= 40; ++save) {
    CAPTURE(save);
    const auto complete = save > 1 ? std::uint64_t{1} : 0;
    const auto chosen = cairn::detail::choose_slot(slots, complete, false, true);
    REQUIRE(chosen);
    CHECK_FALSE(cairn::detail::choose_slot(slots, complete, true, true).value_or(*chosen) != *chosen);
    slots[*chosen] = {.in_use = true};
    const auto holds = [&](std::uint64_t generation) {
      return std::any_of(slots.begin(), slots.end(),
                         [&](const auto& s) { return s.generation == generation; });
    };
    CHECK((save <= 1 || holds(1)));
    CHECK((save <= 1 || holds(save - 1)));
    slots[*chosen] = {.generation = save, .has_pieces = save == 3 || save == 4};
  }
  // A complete one with pieces goes after the newest.
  slots = {{.generation = 2, .has_pieces = true}, {.generation = 3}, {.generation = 7}};
  CHECK(cairn::detail::choose_slot(slots, 3, false, true) == 2);
}
TEST_CASE("the search finds a rule that loses the common save") {
  CHECK(explore(2, 3, 6, 5, false, true).lost > 0);
}

}  // namespace
