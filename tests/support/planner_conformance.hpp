// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cairn/concepts/planner.hpp>
#include <cairn/system/wire.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test {

/// The seed of random tests: CAIRN_TEST_SEED, or the default; printed when a test fails.
inline std::uint64_t seed_or(std::uint64_t otherwise) {
  const char* chosen = std::getenv("CAIRN_TEST_SEED");
  return chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : otherwise;
}

/// Runs work that must throw a cairn::error, and returns the error.
template <class Work>
cairn::error failure_of(Work&& work) {
  try {
    work();
  } catch (const cairn::error& e) {
    return e;
  }
  FAIL("nothing was thrown");
  return {cairn::error_id::storage_io, "nothing was thrown", {}};
}

/// A plan for all ranks of a group that lives in one process.
template <class Planner>
struct group_plan {
  std::vector<cairn::save_plan> local;
  typename Planner::summary_type summary;
  std::vector<cairn::save_plan> plans;
  cairn::metadata stored;
};

/// The summaries of ranks [first, last), merged in a random association.
template <class Planner>
typename Planner::summary_type merged(Planner& planner, const std::vector<cairn::save_plan>& local, int first,
                                      int last, std::mt19937_64& random) {
  if (last - first == 1) return planner.summarise(local[static_cast<std::size_t>(first)], first);
  const int middle = first + 1 + static_cast<int>(random() % static_cast<std::uint64_t>(last - first - 1));
  auto a = merged(planner, local, first, middle, random);
  auto b = merged(planner, local, middle, last, random);
  if (random() % 4 == 0) a = planner.decode(planner.encode(a));
  return planner.merge(std::move(a), std::move(b));
}

template <class Planner>
group_plan<Planner> plan_group(Planner& planner, const std::deque<cairn::state_dict>& states,
                               std::uint64_t seed = 1) {
  group_plan<Planner> out;
  const auto world = static_cast<int>(states.size());
  std::mt19937_64 random(seed);
  for (int r = 0; r < world; ++r)
    out.local.push_back(planner.local_plan(states[static_cast<std::size_t>(r)], r));
  out.summary = merged(planner, out.local, 0, world, random);
  for (int r = 0; r < world; ++r)
    out.plans.push_back(planner.finish(out.local[static_cast<std::size_t>(r)], out.summary, r, world));
  out.stored = planner.metadata(out.summary, world);
  return out;
}

/// The elements of a view, packed.
inline std::vector<std::byte> packed(const cairn::tensor_view& view) {
  std::vector<std::byte> out(view.bytes());
  cairn::for_each_run(view, 0, view.bytes(), [&](std::byte* from, std::uint64_t bytes, std::uint64_t at) {
    std::memcpy(out.data() + at, from, bytes);
  });
  return out;
}
inline void unpack(const std::vector<std::byte>& from, const cairn::tensor_view& view) {
  REQUIRE(from.size() == view.bytes());
  cairn::for_each_run(view, 0, view.bytes(), [&](std::byte* to, std::uint64_t bytes, std::uint64_t at) {
    std::memcpy(to, from.data() + at, bytes);
  });
}
inline std::vector<std::byte> converted(std::vector<std::byte> from, cairn::cast_function cast,
                                        std::size_t from_bytes, std::size_t to_bytes) {
  if (cast == nullptr) return from;
  const auto elements = from.size() / from_bytes;
  std::vector<std::byte> out(elements * to_bytes);
  cast(from.data(), out.data(), elements);
  return out;
}

/// A checkpoint in a map: chunks by name, rank and box.
struct simulated_storage {
  struct key {
    std::string name;
    std::int32_t rank;
    cairn::chunk box;
    bool operator<(const key& o) const {
      return name != o.name ? name < o.name : rank != o.rank ? rank < o.rank : box < o.box;
    }
  };
  std::map<key, std::vector<std::byte>> chunks;

  /// Writes what a plan says, as any storage would.
  template <class Planner>
  void write(Planner& planner, const cairn::state_dict& state, const cairn::save_plan& plan, int rank) {
    for (const auto& item : plan.items) {
      const cairn::item_source source = planner.resolve(state, item);
      if (item.kind != cairn::item_kind::bytes) REQUIRE(source.view.shape == item.box.sizes);
      auto bytes = converted(packed(source.view), source.cast, cairn::bits_of(source.view.type) / 8,
                             cairn::bits_of(item.type) / 8);
      if (item.kind != cairn::item_kind::bytes) REQUIRE(bytes.size() == item.bytes);
      REQUIRE(chunks.emplace(key{item.name, rank, item.box}, std::move(bytes)).second);
    }
  }
  /// Reads what a plan says into a state, and returns the number of bytes that were read.
  template <class Planner>
  std::uint64_t read(Planner& planner, const cairn::state_dict& state, const cairn::metadata& stored,
                     const cairn::load_plan& plan) const {
    std::uint64_t total = 0;
    for (const auto& item : plan.items) {
      const auto& from = stored.items.at(item.stored);
      REQUIRE(item.chunk < from.chunks.size());
      const auto chunk = from.chunks[item.chunk];
      auto data = chunks.at({from.name, chunk.rank, chunk.box});
      const auto& entry = state.entries()[item.entry];
      if (from.kind == cairn::item_kind::bytes) {
        if (entry.memory.count(entry.memory.object) != data.size())
          entry.memory.resize(entry.memory.object, data.size());
      } else {
        auto inner = item.box;
        for (int d = 0; d < inner.offsets.rank(); ++d)
          inner.offsets.set(d, item.box.offsets[d] - chunk.box.offsets[d]);
        REQUIRE(cairn::inside(inner, chunk.box.sizes));
        data = packed(cairn::subview(cairn::contiguous_view(data.data(), from.type, chunk.box.sizes), inner));
      }
      const cairn::item_target target = planner.resolve(state, stored, item);
      total += data.size();
      unpack(converted(std::move(data), target.cast, cairn::bits_of(from.type) / 8,
                       cairn::bits_of(target.view.type) / 8),
             target.view);
    }
    return total;
  }
};

/// Each element of each tensor is in exactly one item of the plans, the metadata says so too, and the bytes
/// of an item are those of its box.
inline void check_whole(const std::vector<cairn::save_plan>& plans, const cairn::metadata& stored) {
  std::map<std::string, cairn::stored_item> seen;
  for (std::size_t r = 0; r < plans.size(); ++r)
    for (const auto& i : plans[r].items) {
      auto& item = seen[i.name];
      item.name = i.name, item.kind = i.kind, item.type = i.type, item.global = i.global,
      item.per_rank = i.flags.per_rank;
      item.chunks.push_back({i.box, static_cast<std::int32_t>(r)});
      if (i.kind != cairn::item_kind::bytes) CHECK(cairn::checked_bytes(i.type, i.box.sizes) == i.bytes);
    }
  REQUIRE(seen.size() == stored.items.size());
  std::size_t n = 0;
  for (auto& [name, item] : seen) {
    auto said = stored.items[n++];
    CHECK(said.name == name);
    if (n > 1) CHECK(stored.items[n - 2].name < name);
    CHECK(said == item);
    if (item.per_rank || item.kind == cairn::item_kind::bytes) continue;
    // Count element by element: slow, but simple enough to be right.
    std::vector<int> times(static_cast<std::size_t>(item.global.volume()));
    for (const auto& c : item.chunks) {
      REQUIRE(cairn::inside(c.box, item.global));
      std::vector<std::int64_t> at(static_cast<std::size_t>(c.box.sizes.rank()));
      for (std::int64_t k = 0; k < c.box.volume(); ++k) {
        std::int64_t rest = k;
        std::int64_t flat = 0;
        std::int64_t stride = 1;
        for (int d = c.box.sizes.rank() - 1; d >= 0; --d) {
          flat += (c.box.offsets[d] + rest % c.box.sizes[d]) * stride;
          rest /= c.box.sizes[d];
          stride *= item.global[d];
        }
        ++times[static_cast<std::size_t>(flat)];
      }
    }
    CHECK(std::count(times.begin(), times.end(), 1) == item.global.volume());
  }
}

/// What every SavePlanner must do, for planners that store all entries under their own names. `make` gives
/// planners that plan alike.
template <class Make>
void save_planner_conformance(Make make) {
  auto planner = make();
  using planner_type = decltype(planner);
  static_assert(cairn::SavePlanner<planner_type>);
  const auto seed = seed_or(11);
  CAPTURE(seed);

  struct rank_memory {
    std::vector<float> w = std::vector<float>(24);
    std::vector<std::int16_t> rows = std::vector<std::int16_t>(10);
    std::vector<std::uint8_t> rng = std::vector<std::uint8_t>(5);
    double lr = 0.25;
  };
  const int world = 3;
  std::deque<rank_memory> memory(world);
  std::deque<cairn::state_dict> states(world);
  for (int r = 0; r < world; ++r) {
    auto& m = memory[static_cast<std::size_t>(r)];
    auto& s = states[static_cast<std::size_t>(r)];
    m.rng[0] = static_cast<std::uint8_t>(r);
    s.tensor("w", m.w, {4, 6});
    s.value("lr", m.lr);
    s.tensor("rows", m.rows, cairn::shard{{6, 5}, {2 * r, 0}});
    s.bytes("rng", m.rng, cairn::per_rank);
  }
  const auto group = plan_group(planner, states, seed);
  SUBCASE("the plans of all ranks are a whole checkpoint, and the metadata tells it") {
    check_whole(group.plans, group.stored);
    CHECK(group.stored.world_size == world);
    REQUIRE(group.stored.find("rng") != nullptr);
    REQUIRE(group.stored.find("rng")->chunks.size() == 3);
    for (std::int32_t r = 0; r < world; ++r)
      CHECK(group.stored.find("rng")->chunks[static_cast<std::uint64_t>(r)].rank == r);
  }
  SUBCASE("how summaries are merged does not matter, and planners that plan alike agree") {
    auto other = make();
    for (std::uint64_t k = 0; k < 8; ++k) {
      const auto again = plan_group(other, states, seed + k);
      for (std::size_t r = 0; r < world; ++r)
        CHECK(cairn::digest_of(again.plans[r]) == cairn::digest_of(group.plans[r]));
      CHECK(again.stored.items == group.stored.items);
      CHECK(planner.encode(again.summary) == planner.encode(group.summary));
    }
    CHECK(planner.fingerprint() == other.fingerprint());
  }
  SUBCASE("items are in the order of the state and resolve to its memory, also when it has moved") {
    for (std::size_t r = 0; r < world; ++r) {
      memory[r].w = std::vector<float>(24, static_cast<float>(r) + 1);
      std::uint32_t last = 0;
      for (const auto& i : group.plans[r].items) {
        CHECK(i.entry >= last);
        last = i.entry;
        const cairn::item_source source = planner.resolve(states[r], i);
        if (i.name == "w") CHECK(packed(source.view).size() == i.bytes);
        if (i.name == "w")
          CHECK(*reinterpret_cast<const float*>(source.view.data) == static_cast<float>(r) + 1);
      }
    }
  }
  SUBCASE("decode refuses what encode did not make") {
    const auto bytes = planner.encode(group.summary);
    for (std::size_t n = 0; n < bytes.size(); ++n)
      CHECK_THROWS_AS((void)planner.decode(std::span(bytes).first(n)), cairn::wire_error);
    auto longer = bytes;
    longer.push_back(std::byte{0});
    CHECK_THROWS_AS((void)planner.decode(longer), cairn::wire_error);
    std::mt19937_64 random(seed);
    for (int k = 0; k < 2000; ++k) {
      auto damaged = bytes;
      for (int times = 0; times < 3; ++times)
        damaged[random() % damaged.size()] = static_cast<std::byte>(random());
      try {
        const auto decoded = planner.decode(damaged);
        CHECK(planner.encode(decoded) == damaged);
      } catch (const cairn::wire_error&) {
      }
    }
  }
  SUBCASE("ranks that do not fit together are refused, on all ranks alike") {
    float other = 0;
    std::deque<cairn::state_dict> wrong(2);
    wrong[0].tensor("w", memory[0].w, {4, 6});
    wrong[1].value("w", other);
    std::vector<cairn::save_plan> local{planner.local_plan(wrong[0], 0), planner.local_plan(wrong[1], 1)};
    const auto summary = planner.merge(planner.summarise(local[0], 0), planner.summarise(local[1], 1));
    std::vector<std::string> said;
    for (int r = 0; r < 2; ++r)
      said.emplace_back(failure_of([&] {
                          (void)planner.finish(local[static_cast<std::size_t>(r)], summary, r, 2);
                        }).what());
    CHECK(said[0] == said[1]);
    CHECK(said[0].find("w") != std::string::npos);
    CHECK(failure_of([&] { (void)planner.metadata(summary, 2); }).kind() == cairn::error_kind::plan);
  }
}

}  // namespace cairn_test
