// SPDX-License-Identifier: Apache-2.0
// group: files
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cairn/concepts/any_planner.hpp>
#include <cairn/model/chunk_codec.hpp>
#include <cairn/plan/default_planner.hpp>
#include <cairn/plan/gathered.hpp>
#include <cairn/plan/glob.hpp>
#include <cairn/plan/load/load_plan_cache.hpp>
#include <cairn/plan/plan_cache.hpp>
#include <cairn/plan/source_cache.hpp>
#include <cairn/plan/summary/validation.hpp>
#include <deque>
#include <set>
#include <string>
#include <support/planner_archetypes.hpp>
#include <support/planner_conformance.hpp>
#include <support/planning_reference.hpp>
#include <support/rounds.hpp>
#include <vector>

using cairn::chunk;
using cairn::error_id;
using cairn_test::failure_of;
using cairn_test::plan_group;

namespace {

/// A planner in the manner of DCP: the first rank that has a box writes it.
struct first_come_planner : cairn::basic_planner<first_come_planner> {
  cairn::metadata create_global_plan(std::span<cairn::save_plan> plans) {
    std::set<std::pair<std::string, chunk>> seen;
    cairn::metadata out;
    out.world_size = static_cast<std::int32_t>(plans.size());
    for (std::size_t r = 0; r < plans.size(); ++r) {
      // Items of 0 bytes tell a definition; a tensor without elements is written by the first that has it.
      std::erase_if(plans[r].items, [&](const cairn::write_item& i) {
        return !i.flags.per_rank && !definition_only(i) && !seen.emplace(i.name, i.box).second;
      });
      for (const auto& i : plans[r].items) {
        if (definition_only(i) && !cairn::whole(i.global).empty()) continue;
        auto at = std::find_if(out.items.begin(), out.items.end(), [&](auto& s) { return s.name == i.name; });
        if (at == out.items.end())
          at = out.items.insert(at, {i.name, i.kind, i.type, i.global, i.flags.per_rank, {}});
        if (!definition_only(i) || i.flags.per_rank || at->chunks.empty())
          at->chunks.push_back(
              {definition_only(i) ? cairn::whole(i.global) : i.box, static_cast<std::int32_t>(r)});
      }
    }
    if (forget_an_item) out.items.pop_back();
    if (write_twice && plans.size() > 1) plans[1] = plans[0];
    if (drop_an_item) plans[0].items.erase(plans[0].items.begin());
    return out;
  }
  static bool definition_only(const cairn::write_item& i) {
    return i.kind != cairn::item_kind::bytes && i.bytes == 0;
  }
  bool forget_an_item = false;
  bool write_twice = false;
  bool drop_an_item = false;
};
static_assert(cairn::GatheringSavePlanner<first_come_planner>);
static_assert(!cairn::GatheringSavePlanner<cairn::default_planner>);
static_assert(cairn::SavePlanner<cairn::gathered<first_come_planner>>);
static_assert(cairn::LoadPlanner<cairn::gathered<first_come_planner>>);
static_assert(cairn::plays<cairn::gathered<first_come_planner>, cairn::role::planner>);
static_assert(cairn::plays<cairn::default_planner, cairn::role::planner>);

std::vector<std::string> names_of(const cairn::save_plan& plan) {
  std::vector<std::string> names;
  for (const auto& i : plan.items) names.push_back(i.name);
  return names;
}

std::vector<std::uint64_t> loads_of(const std::vector<cairn::save_plan>& plans) {
  std::vector<std::uint64_t> loads;
  for (const auto& p : plans) {
    loads.push_back(0);
    for (const auto& i : p.items) loads.back() += i.bytes;
  }
  return loads;
}

bool mentions(const cairn::error& e, std::string_view text) {
  return std::string_view(e.what()).find(text) != std::string_view::npos;
}

cairn::write_item box_item(std::string name, cairn::extents global, chunk box) {
  return {std::move(name),
          cairn::item_kind::tensor,
          cairn::dtype::f32,
          global,
          box,
          {},
          0,
          cairn::bytes_of(cairn::dtype::f32, box.volume())};
}

/// The error of a group in which rank r's plan is plans[r]; the same on every rank, or the test fails.
cairn::error refused(std::vector<cairn::save_plan> plans) {
  cairn::default_planner planner;
  cairn::plan_summary all;
  const auto world = static_cast<int>(plans.size());
  for (int r = 0; r < world; ++r)
    all = planner.merge(all, planner.summarise(plans[static_cast<std::size_t>(r)], r));
  all = planner.decode(planner.encode(all));
  const auto error = failure_of([&] { (void)planner.finish(plans[0], all, 0, world); });
  for (int r = 1; r < world; ++r)
    CHECK(
        std::string(error.what()) ==
        failure_of([&] { (void)planner.finish(plans[static_cast<std::size_t>(r)], all, r, world); }).what());
  CHECK(std::string(error.what()) == failure_of([&] { (void)planner.metadata(all, world); }).what());
  return error;
}

}  // namespace

TEST_CASE("one rank writes everything, in the order of its state") {
  std::vector<float> w(12), m(6);
  double lr = 0.5;
  std::string blob = "abc";
  cairn::state_dict state;
  state.tensor("w", w, {3, 4});
  state.bytes("blob", blob);
  state.value("lr", lr);
  state.tensor("m", m, cairn::flat_shard{{6}, 0});
  cairn::default_planner planner;
  auto local = planner.local_plan(state, 0);
  const auto summary = planner.summarise(local, 0);
  const auto plan = planner.finish(local, summary, 0, 1);
  const auto stored = planner.metadata(summary, 1);
  CHECK(names_of(plan) == std::vector<std::string>{"w", "blob", "lr", "m"});
  CHECK(plan.items[0].bytes == 48);
  CHECK(plan.items[1].bytes == 3);
  CHECK(plan.items[2].bytes == 8);
  REQUIRE(stored.items.size() == 4);
  CHECK(stored.items[0].name == "blob");
  CHECK(stored.find("w")->chunks == cairn::chunk_set{{cairn::whole({3, 4}), 0}});
  const auto source = planner.resolve(state, plan.items[0]);
  CHECK(source.view.data == reinterpret_cast<std::byte*>(w.data()));
  CHECK(source.view.shape == cairn::extents{3, 4});
  CHECK(!source.cast);
  CHECK(planner.resolve(state, plan.items[1]).view.bytes() == 3);
  blob = "a longer one";
  CHECK(planner.resolve(state, plan.items[1]).view.bytes() == 12);
}

TEST_CASE("default_planner models SavePlanner") {
  cairn_test::save_planner_conformance([] { return cairn::default_planner{}; });
}
TEST_CASE("default_planner that splits everything models SavePlanner") {
  cairn_test::save_planner_conformance(
      [] { return cairn::default_planner{{.split_above_bytes = 1, .min_chunk_bytes = 4}}; });
}
TEST_CASE("gathered models SavePlanner") {
  cairn_test::save_planner_conformance([] { return cairn::gathered<first_come_planner>{}; });
}
TEST_CASE("any_save_planner models SavePlanner") {
  cairn_test::save_planner_conformance([] { return cairn::any_save_planner{cairn::default_planner{}}; });
}

TEST_CASE("each disagreement is refused by its name, with item, boxes and ranks") {
  const auto whole_item = box_item("w", {4, 4}, cairn::whole({4, 4}));
  SUBCASE("dtype") {
    auto other = whole_item;
    other.type = cairn::dtype::i32;
    const auto e = refused({{{whole_item}}, {{whole_item}}, {{other}}});
    CHECK(e.id() == error_id::plan_dtype_mismatch);
    CHECK(e.fields().item == "w");
    CHECK(mentions(e, "F32 on ranks 0-1"));
    CHECK(mentions(e, "I32 on rank 2"));
  }
  SUBCASE("shape, though one of the ranks has an empty shard only") {
    cairn::write_item other = box_item("w", {4, 5}, {{0, 0}, {0, 0}});
    const auto e = refused({{{whole_item}}, {{other}}});
    CHECK(e.id() == error_id::plan_shape_mismatch);
    CHECK(mentions(e, "[4, 4] on rank 0"));
    CHECK(mentions(e, "[4, 5] on rank 1"));
  }
  SUBCASE("kind") {
    auto other = whole_item;
    other.kind = cairn::item_kind::bytes;
    const auto e = refused({{{whole_item}}, {{other}}});
    CHECK(e.id() == error_id::plan_kind_mismatch);
    CHECK(mentions(e, "tensor on rank 0"));
    CHECK(mentions(e, "bytes on rank 1"));
  }
  SUBCASE("per_rank") {
    auto other = whole_item;
    other.flags.per_rank = true;
    const auto e = refused({{{whole_item}}, {{other}}});
    CHECK(e.id() == error_id::plan_kind_mismatch);
    CHECK(mentions(e, "per_rank on rank 1"));
  }
  SUBCASE("out of bounds") {
    const auto e = refused({{{whole_item}}, {{box_item("w", {4, 4}, {{2, 0}, {3, 4}})}}});
    CHECK(e.id() == error_id::plan_out_of_bounds);
    CHECK(e.fields().rank == 1);
    CHECK(mentions(e, "offsets [2, 0] sizes [3, 4]"));
    const auto big = std::int64_t{1} << 40;
    CHECK(refused({{{box_item("w", {big, big}, cairn::whole({big, big}))}}}).id() ==
          error_id::plan_out_of_bounds);
  }
  SUBCASE("overlap") {
    const auto e =
        refused({{{box_item("w", {4, 4}, {{0, 0}, {3, 4}})}}, {{box_item("w", {4, 4}, {{2, 0}, {2, 4}})}}});
    CHECK(e.id() == error_id::plan_overlap);
    CHECK(e.fields().item == "w");
    CHECK(e.fields().expected == "offsets [0, 0] sizes [3, 4] on rank 0");
    CHECK(e.fields().got == "offsets [2, 0] sizes [2, 4] on rank 1");
  }
  SUBCASE("a whole copy beside the shards") {
    for (const int with_the_whole : {0, 1}) {
      const auto parts = box_item("w", {4, 4}, {{2, 0}, {2, 4}});
      const auto e =
          with_the_whole == 0 ? refused({{{whole_item}}, {{parts}}}) : refused({{{parts}}, {{whole_item}}});
      CHECK(e.id() == error_id::plan_overlap);
      CHECK(e.fields().rank == with_the_whole);
      CHECK(mentions(e, "leave it out of the state of rank " + std::to_string(with_the_whole)));
    }
  }
  SUBCASE("overlap that makes up for a hole of the same size") {
    CHECK(refused({{{box_item("w", {6}, {{0}, {2}})}},
                   {{box_item("w", {6}, {{1}, {2}})}},
                   {{box_item("w", {6}, {{4}, {2}})}}})
              .id() == error_id::plan_overlap);
  }
  SUBCASE("the same box twice on one rank") {
    const auto e = refused({{{whole_item}}, {{whole_item, whole_item}}});
    CHECK(e.id() == error_id::plan_overlap);
    CHECK(e.fields().rank == 1);
    CHECK(mentions(e, "twice"));
  }
  SUBCASE("not covered") {
    const auto e =
        refused({{{box_item("w", {4, 4}, {{0, 0}, {2, 4}})}}, {{box_item("w", {4, 4}, {{2, 1}, {2, 3}})}}});
    CHECK(e.id() == error_id::plan_not_covered);
    CHECK(e.fields().got == "nothing at offsets [2, 0] sizes [2, 1]");
    CHECK(mentions(e, "ranks 0-1"));
    const auto nothing = refused({{{box_item("w", {4, 4}, {{0, 0}, {0, 0}})}}});
    CHECK(nothing.id() == error_id::plan_not_covered);
  }
  SUBCASE("a per_rank item that is not whole") {
    auto part = box_item("w", {4, 4}, {{0, 0}, {2, 4}});
    part.flags.per_rank = true;
    CHECK(refused({{{part}}}).id() == error_id::plan_not_covered);
  }
  SUBCASE("a rank that the group does not have") {
    cairn::default_planner planner;
    const auto summary = planner.summarise({{whole_item}}, 5);
    const auto e = failure_of([&] { (void)planner.finish({{whole_item}}, summary, 0, 2); });
    CHECK(e.id() == error_id::plan_disagreement);
    CHECK(e.fields().rank == 5);
  }
  SUBCASE("a plan that is not in the summary") {
    cairn::default_planner planner;
    const auto summary = planner.summarise({{whole_item}}, 0);
    CHECK(failure_of([&] {
            (void)planner.finish({{box_item("v", {2}, cairn::whole({2}))}}, summary, 0, 1);
          }).id() == error_id::plan_disagreement);
    CHECK(failure_of([&] {
            (void)planner.finish({{box_item("w", {4, 4}, {{0, 0}, {1, 4}})}}, summary, 0, 1);
          }).id() == error_id::plan_disagreement);
  }
}

TEST_CASE("holes and overlaps are found among many chunks") {
  std::vector<cairn::write_item> items;
  for (std::int64_t i = 0; i < 128; ++i)
    for (std::int64_t k = 0; k < 128; ++k)
      items.push_back(box_item("w", {256, 384}, {{2 * i, 3 * k}, {2, 3}}));
  const auto check = [](const std::vector<cairn::write_item>& from) {
    cairn::validate(cairn::summarise_plan({from}, 0), 1);
  };
  CHECK_NOTHROW(check(items));
  auto hole = items;
  hole.erase(hole.begin() + 5000);
  auto e = failure_of([&] { check(hole); });
  CHECK(e.id() == error_id::plan_not_covered);
  CHECK(e.fields().got == "nothing at " + cairn::to_string(items[5000].box));
  auto larger = items;
  larger[700].box.sizes = {2, 4};
  e = failure_of([&] { check(larger); });
  CHECK(e.id() == error_id::plan_overlap);
  CHECK(mentions(e, cairn::to_string(larger[700].box)));
  CHECK(mentions(e, cairn::to_string(larger[701].box)));
}

TEST_CASE("replicas are levelled by bytes really written") {
  const std::uint64_t mebibyte = 1 << 20;
  std::vector<float> memory(6 << 20);
  for (const int world : {1, 2, 3, 8, 16}) {
    CAPTURE(world);
    std::deque<cairn::state_dict> states(static_cast<std::size_t>(world));
    double value = 0;
    std::string blob(100000, 'x');
    for (auto& s : states) {
      s.tensor("embedding", memory.data(), {1000, 4001});
      s.tensor("wide", memory.data(), {3, 1 << 19});
      s.tensor("odd", memory.data(), {1, 1, 700001});
      for (int i = 0; i < 40; ++i) s.tensor("layer" + std::to_string(i), memory.data(), {200 + 10 * i, 300});
      s.value("value", value);
      s.bytes("blob", blob);
    }
    cairn::default_planner planner;
    const auto group = plan_group(planner, states);
    const auto loads = loads_of(group.plans);
    std::uint64_t sum = 0;
    for (auto l : loads) sum += l;
    const auto mean = sum / static_cast<std::uint64_t>(world);
    const auto most = *std::max_element(loads.begin(), loads.end());
    CHECK(most - mean <= std::max(mean / 20, mebibyte));
    for (const auto& p : group.plans) {
      // A rank has one box of a tensor at most, so that one file can hold them.
      const auto names = names_of(p);
      CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
      for (const auto& i : p.items)
        if (i.name == "embedding" && world > 1) CHECK(i.bytes >= (std::uint64_t{256} << 10));
    }
  }
}

TEST_CASE("replicas of any sizes are levelled in groups of any size") {
  const auto seed = cairn_test::seed_or(61);
  std::mt19937_64 random(seed);
  const auto roll = [&](std::int64_t n) {
    return 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (std::uint64_t round = 0; round < cairn_test::rounds(40, 40); ++round) {
    CAPTURE(seed);
    CAPTURE(round);
    const auto world = static_cast<int>(roll(70));
    cairn::save_plan plan;
    for (auto n = roll(40); n > 0; --n) {
      const auto columns = roll(n % 3 == 0 ? 3 : 4096);
      const cairn::extents shape{roll((std::int64_t{1} << roll(25)) / columns + 1), columns};
      plan.items.push_back(box_item("t" + std::to_string(n), shape, cairn::whole(shape)));
    }
    cairn::default_planner planner;
    const std::vector<cairn::save_plan> plans(static_cast<std::size_t>(world), plan);
    const auto all = cairn_test::merged(planner, plans, 0, world, random);
    std::vector<std::uint64_t> loads(static_cast<std::size_t>(world));
    std::uint64_t sum = 0;
    std::uint64_t chunks = 0;
    for (const auto& item : planner.metadata(all, world).items)
      for (const auto& c : item.chunks) {
        const auto bytes = cairn::bytes_of(item.type, c.box.volume());
        if (c.box != cairn::whole(item.global))
          CHECK(bytes >= cairn::default_planner_options{}.min_chunk_bytes);
        loads[static_cast<std::size_t>(c.rank)] += bytes;
        sum += bytes;
        ++chunks;
      }
    CHECK(chunks < plan.items.size() + loads.size());  // a cut for each rank but the last at most
    const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
    CHECK(*most - *least <=
          std::max<std::uint64_t>(sum / static_cast<std::uint64_t>(world) / 20, std::uint64_t{1} << 20));
  }
}

TEST_CASE("fixed loads are placed first, replicas fill the ranks that write less") {
  std::vector<float> memory(1 << 20);
  std::vector<std::int64_t> rows{4, 320, 700};
  do {
    CAPTURE(rows[0]);
    CAPTURE(rows[1]);
    std::deque<cairn::state_dict> states(3);
    std::int64_t at = 0;
    for (std::size_t r = 0; r < 3; ++r) {
      // Names before and after: the order of names must not matter.
      states[r].tensor("a.replica", memory.data(), {1024, 1024});
      states[r].tensor("b.shard", memory.data(), cairn::shard{{1024, 1024}, {at, 0}, {rows[r], 1024}});
      at += rows[r];
    }
    cairn::default_planner planner;
    const auto group = plan_group(planner, states);
    const auto loads = loads_of(group.plans);
    const auto mean = (loads[0] + loads[1] + loads[2]) / 3;
    for (auto l : loads) CHECK(std::max(l, mean) - std::min(l, mean) <= mean / 20);
    cairn_test::check_whole(group.plans, group.stored);
  } while (std::next_permutation(rows.begin(), rows.end()));
}

TEST_CASE("small replicas go to the holder with the least, ties to the lowest rank") {
  std::vector<float> memory(1 << 18);
  std::deque<cairn::state_dict> states(3);
  for (std::size_t r = 0; r < 3; ++r) {
    states[r].tensor("a", memory.data(), {1000});
    states[r].tensor("b", memory.data(), {3000});
    states[r].tensor("c", memory.data(), {2000});
    states[r].tensor("d", memory.data(), {500});
    if (r != 0) states[r].tensor("e", memory.data(), {4000});  // not on rank 0
  }
  cairn::default_planner planner;
  const auto group = plan_group(planner, states);
  CHECK(names_of(group.plans[0]) == std::vector<std::string>{"b", "d"});
  CHECK(names_of(group.plans[1]) == std::vector<std::string>{"e"});
  CHECK(names_of(group.plans[2]) == std::vector<std::string>{"a", "c"});
}

TEST_CASE("packed types are split at whole bytes") {
  std::vector<std::byte> memory(8 << 20);
  std::deque<cairn::state_dict> states(5);
  for (auto& s : states) {
    s.tensor("f4", cairn::contiguous_view(memory.data(), cairn::dtype::f4, {6000002}));
    s.tensor("f6", cairn::contiguous_view(memory.data(), cairn::dtype::f6_e2m3, {1000, 5004}));
  }
  cairn::default_planner planner;
  const auto group = plan_group(planner, states);
  std::uint64_t total = 0;
  for (const auto& p : group.plans)
    for (const auto& i : p.items) {
      CHECK(i.box.offsets[i.box.offsets.rank() - 1] % cairn::granule_of(i.type) == 0);
      CHECK(cairn::checked_bytes(i.type, i.box.sizes) == i.bytes);
      total += i.bytes;
    }
  CHECK(total == 3000001 + 1000 * 5004 * 6 / 8);
}

TEST_CASE("empty shards and tensors without elements") {
  std::deque<cairn::state_dict> states(3);
  float scale = 2;
  std::vector<float> none;
  for (std::size_t r = 0; r < 3; ++r) {
    // As FSDP shards a scalar: one rank has it, the others hold nothing of it.
    if (r == 1)
      states[r].tensor("scale", &scale, cairn::flat_shard{{}, 0, 1});
    else
      states[r].tensor("scale", &scale, cairn::flat_shard{{}, r == 0 ? 0 : 1, 0});
    states[r].tensor("none", none, {0, 4});
    states[r].tensor("own", none, {0}, cairn::per_rank);
  }
  cairn::default_planner planner;
  const auto group = plan_group(planner, states);
  CHECK(names_of(group.plans[0]) == std::vector<std::string>{"none", "own"});
  CHECK(names_of(group.plans[1]) == std::vector<std::string>{"scale", "own"});
  CHECK(names_of(group.plans[2]) == std::vector<std::string>{"own"});
  CHECK(group.stored.find("scale")->chunks == cairn::chunk_set{{{}, 1}});
  CHECK(group.stored.find("none")->chunks == cairn::chunk_set{{cairn::whole({0, 4}), 0}});
  CHECK(group.stored.find("own")->chunks.size() == 3);
  CHECK(planner.resolve(states[0], group.plans[0].items[0]).view.bytes() == 0);
  CHECK(planner.plan(states[0], group.stored, {0, 3, true, {}}).items.empty());
  CHECK(planner.plan(states[1], group.stored, {1, 3, true, {}}).items.size() == 1);

  cairn::gathered<first_come_planner> all_seeing;
  const auto gathered = plan_group(all_seeing, states);
  CHECK(gathered.stored.items == group.stored.items);
  CHECK(names_of(gathered.plans[0]) == std::vector<std::string>{"none", "own"});
  CHECK(names_of(gathered.plans[1]) == std::vector<std::string>{"scale", "own"});
}

TEST_CASE("options differ in the fingerprint") {
  const cairn::default_planner a;
  const cairn::default_planner b{{.split_above_bytes = 5}};
  const cairn::default_planner c{{.min_chunk_bytes = 5}};
  CHECK(a.fingerprint() == cairn::default_planner{}.fingerprint());
  CHECK(a.fingerprint() != b.fingerprint());
  CHECK(a.fingerprint() != c.fingerprint());
  CHECK(b.fingerprint() != c.fingerprint());
}

TEST_CASE("resolve refuses a state that is not the planned one") {
  std::vector<float> w(4), v(4);
  cairn::state_dict state;
  state.tensor("w", w, cairn::shard{{8}, {4}});
  cairn::default_planner planner;
  auto item = planner.local_plan(state, 0).items[0];
  CHECK(planner.resolve(state, item).view.data == reinterpret_cast<std::byte*>(w.data()));
  item.box = {{3}, {2}};
  CHECK(failure_of([&] { (void)planner.resolve(state, item); }).id() == error_id::plan_disagreement);
  item.entry = 1;
  CHECK(failure_of([&] { (void)planner.resolve(state, item); }).id() == error_id::plan_disagreement);
}

TEST_CASE("gathered planners are validated") {
  std::vector<float> w(4);
  std::deque<cairn::state_dict> states(2);
  for (auto& s : states) s.tensor("w", w, {4}), s.tensor("v", w, {4});
  const auto refused_by = [&](auto change) {
    first_come_planner p;
    change(p);
    cairn::gathered<first_come_planner> planner(p);
    return failure_of([&] { (void)plan_group(planner, states); });
  };
  CHECK(refused_by([](auto& p) { p.forget_an_item = true; }).id() == error_id::plan_disagreement);
  CHECK(refused_by([](auto& p) { p.drop_an_item = true; }).id() == error_id::plan_disagreement);
  CHECK(refused_by([](auto& p) { p.write_twice = true; }).id() == error_id::plan_overlap);
  cairn::gathered<first_come_planner> planner;
  const auto one = planner.summarise(planner.local_plan(states[0], 0), 0);
  CHECK(failure_of([&] { (void)planner.finish({}, one, 0, 2); }).id() == error_id::plan_disagreement);
}

namespace {
/// Its items lie where it says, whatever the state is bound to.
struct wandering_planner : cairn::basic_planner<wandering_planner> {
  using basic_planner::resolve;
  [[nodiscard]] cairn::item_source resolve(const cairn::state_dict& state, const cairn::write_item& item) {
    ++resolved;
    auto source = basic_planner::resolve(state, item);
    source.view.data = elsewhere;
    return source;
  }
  std::byte* elsewhere = nullptr;
  int resolved = 0;
};
struct renaming_planner : cairn::basic_planner<renaming_planner> {
  [[nodiscard]] std::optional<std::string> stored_name(const cairn::state_entry& e) const {
    return "model." + e.name;
  }
};
struct renamed_planner : cairn::default_planner {};
static_assert(cairn::resolves_by_binding<renaming_planner>);
static_assert(cairn::resolves_by_binding<renamed_planner>);
static_assert(cairn::resolves_by_binding<cairn::gathered<first_come_planner>>);
static_assert(!cairn::resolves_by_binding<wandering_planner>);
static_assert(!cairn::resolves_by_binding<cairn_test::save_planner_archetype>);
static_assert(cairn::FingerprintedLoadPlanner<renaming_planner>);
static_assert(!cairn::FingerprintedLoadPlanner<cairn_test::load_planner_archetype>);
static_assert(!cairn::FingerprintedLoadPlanner<cairn_test::load_with_32_bit_fingerprint>);
static_assert(!cairn::FingerprintedLoadPlanner<cairn_test::save_planner_archetype>);
static_assert(!std::copyable<cairn::any_save_planner> && !std::copyable<cairn::any_load_planner>);
}  // namespace

TEST_CASE("sources are kept while the bindings are the same, unless the planner decides where they lie") {
  std::vector<float> in_container(6);
  std::array<float, 4> pointed{};
  std::string blob = "blob";
  cairn::state_dict state;
  state.tensor("container", in_container, {2, 3});
  state.tensor("pointed", pointed.data(), {4});
  state.bytes("blob", blob);
  const auto address = [](const auto* p) { return reinterpret_cast<const std::byte*>(p); };

  cairn::any_save_planner planner{renaming_planner{}};
  const auto plan = std::make_shared<const cairn::save_plan>(planner.local_plan(state, 0));
  cairn::source_cache bound;
  bound.refresh(planner, state, plan);
  const auto first = bound.sources();
  REQUIRE(first.size() == 3);
  CHECK(first[0].view.data == address(in_container.data()));
  CHECK(first[1].view.data == address(pointed.data()));
  CHECK(first[2].view.data == address(blob.data()));
  CHECK(first.name(0) == "model.container");
  CHECK(first.name(3).empty());
  CHECK(bound.bytes_sizes() == std::vector<std::uint64_t>{4});
  CHECK(bound.stored_sizes(*plan) == std::vector<std::uint64_t>{24, 16, 4});
  bound.refresh(planner, state, plan);
  CHECK(bound.sources() == first);

  std::vector<float> other(6);
  in_container.swap(other);
  blob += " of another size, which does not fit where it was before";
  bound.refresh(planner, state, plan);
  CHECK_FALSE(bound.sources() == first);
  CHECK(bound.sources()[0].view.data == address(in_container.data()));
  CHECK(bound.sources()[1].view.data == address(pointed.data()));
  CHECK(bound.sources()[2].view.data == address(blob.data()));
  CHECK(bound.bytes_sizes() == std::vector<std::uint64_t>{blob.size()});
  CHECK(first[0].view.data == address(other.data()));  // holders of the earlier sources keep them

  // An error on the way leaves nothing behind.
  blob.pop_back();
  in_container.resize(7);
  CHECK(failure_of([&] { bound.refresh(planner, state, plan); }).id() == cairn::error_id::usage_size_changed);
  in_container.resize(6);
  bound.refresh(planner, state, plan);
  CHECK(bound.sources()[0].view.data == address(in_container.data()));
  CHECK(bound.bytes_sizes() == std::vector<std::uint64_t>{blob.size()});

  const auto wandering = std::make_shared<wandering_planner>();
  cairn::any_save_planner asking(wandering);
  std::array<std::byte, 24> here{}, there{};
  cairn::source_cache asked;
  wandering->elsewhere = here.data();
  asked.refresh(asking, state, plan);
  wandering->elsewhere = there.data();
  asked.refresh(asking, state, plan);
  CHECK(wandering->resolved == 6);
  CHECK(asked.sources()[0].view.data == there.data());
}

TEST_CASE("planners whose types are chosen at run time") {
  std::vector<float> w(6), v(4);
  double lr = 0.5;
  cairn::state_dict state;
  state.tensor("w", w, {2, 3});
  state.tensor("v", v, {4});
  state.value("lr", lr);

  SUBCASE("many items are resolved as each alone") {
    cairn::any_save_planner planner{cairn::default_planner{}};
    const auto plan = planner.local_plan(state, 0);
    auto sources = planner.resolve_all(state, plan.items);
    REQUIRE(sources.size() == 3);
    for (std::size_t i = 0; i < 3; ++i)
      CHECK(sources[i].view.data == planner.resolve(state, plan.items[i]).view.data);
    const auto* const before = sources[1].view.data;
    w = std::vector<float>(6);
    v = std::vector<float>(4);
    planner.resolve_some(state, plan.items, std::vector<std::size_t>{0, 2}, sources);
    CHECK(sources[0].view.data == reinterpret_cast<std::byte*>(w.data()));
    CHECK(sources[1].view.data == before);
    CHECK(sources[2].view.data == reinterpret_cast<std::byte*>(&lr));
    CHECK(planner.resolves_by_binding());
    CHECK_FALSE(cairn::any_save_planner(wandering_planner{}).resolves_by_binding());
  }
  SUBCASE("the least planners will do") {
    cairn::any_save_planner saves{cairn_test::save_planner_archetype{}};
    cairn::any_load_planner loads{cairn_test::load_planner_archetype{}};
    auto plan = saves.local_plan(state, 0);
    auto own = saves.summarise(plan, 0);
    const auto all = saves.merge(saves.decode(saves.encode(own)), saves.summarise(cairn::save_plan{}, 1));
    const auto stored = saves.metadata(all, 2);
    CHECK(stored.world_size == 2);
    CHECK(saves.finish(plan, all, 0, 2).items.size() == 3);
    const auto load = loads.plan(state, stored, {});
    REQUIRE(load.items.size() == 3);
    CHECK(loads.resolve(state, stored, load.items[0]).view.data == reinterpret_cast<std::byte*>(w.data()));
    CHECK(saves.fingerprint() == 1);
    CHECK_FALSE(loads.fingerprint().has_value());  // so that its plans are not kept
    own = {};
    CHECK_FALSE(own.has_value());
  }
  SUBCASE("one planner of both roles is one object") {
    struct counting_planner : cairn::basic_planner<counting_planner> {
      std::optional<std::string> stored_name(const cairn::state_entry& e) const {
        ++*asked;
        return e.name;
      }
      std::unique_ptr<int> asked = std::make_unique<int>(0);
    };
    static_assert(!std::copyable<counting_planner>);
    counting_planner planner;
    const int& asked = *planner.asked;
    auto both = cairn::both_roles_of(std::move(planner));
    const auto plan = both.save.local_plan(state, 0);
    CHECK(asked == 3);
    auto summary = both.save.summarise(plan, 0);
    static_cast<void>(both.load.plan(state, both.save.metadata(summary, 1), {}));
    CHECK(asked == 6);
    CHECK(both.load.fingerprint() == both.save.fingerprint());
  }
}

TEST_CASE("the plan cache drops the plan that was used longest ago") {
  cairn::plan_cache cache(2);
  const auto key = [](std::uint64_t s) { return cairn::plan_key{s, 1, 2, 4, 3}; };
  const auto plan = [](std::uint64_t d) {
    cairn::cached_plan p;
    p.digest = d;
    return p;
  };
  cache.put(key(1), plan(10));
  cache.put(key(2), plan(20));
  const auto kept = cache.find(key(1));
  REQUIRE(kept);
  cache.put(key(3), plan(30));
  CHECK(!cache.find(key(2)));
  CHECK(cache.find(key(1)) == kept);
  CHECK(cache.find(key(3))->digest == 30);
  cache.put(key(3), plan(31));
  CHECK(cache.size() == 2);
  CHECK(cache.find(key(3))->digest == 31);
  for (auto other : {cairn::plan_key{1, 9, 2, 4, 3}, cairn::plan_key{1, 1, 9, 4, 3},
                     cairn::plan_key{1, 1, 2, 9, 3}, cairn::plan_key{1, 1, 2, 4, 9}})
    CHECK(!cache.find(other));
  cache.erase(key(3));
  CHECK(!cache.find(key(3)));
  cache.clear();
  CHECK(cache.size() == 0);
  CHECK(kept->digest == 10);
  CHECK(cache.hits() == 4);
  CHECK(cache.misses() == 6);
  cairn::plan_cache none(0);
  CHECK(none.put(key(1), plan(1))->digest == 1);
  CHECK(!none.find(key(1)));
}

TEST_CASE("the plan cache drops plans that exceed its bytes, except the last one") {
  cairn::plan_cache cache(4, 100);
  const auto key = [](std::uint64_t s) { return cairn::plan_key{s, 1, 2, 4, 3}; };
  const auto put = [&](std::uint64_t s, std::size_t bytes) {
    cairn::cached_plan p;
    p.bytes = bytes;
    cache.put(key(s), p);
  };
  put(1, 60);
  put(2, 40);
  CHECK(cache.size() == 2);
  CHECK(cache.bytes() == 100);
  put(2, 41);  // with the layout of another size, say
  CHECK(!cache.find(key(1)));
  CHECK(cache.find(key(2)));
  put(3, 1000);
  CHECK(cache.size() == 1);
  CHECK(cache.find(key(3)));
  put(4, 1);
  CHECK(!cache.find(key(3)));
  CHECK(cache.bytes() == 1);
}

TEST_CASE("a plan of a load is found for the same manifest and the same request only") {
  const cairn::load_plan_key key{.step = 7,
                                 .structure = 1,
                                 .planner = 2,
                                 .world_size = 4,
                                 .rank = 3,
                                 .strict = true,
                                 .only = {"a*", "b"}};
  const auto bytes = [](std::size_t n, int fill) { return std::vector<std::byte>(n, std::byte(fill)); };
  const auto plan = [](std::size_t items) {
    cairn::cached_load_plan p;
    p.plan.items.resize(items);
    p.seconds = 0.5;
    return p;
  };
  const auto size = [&](std::size_t items, std::size_t manifest) {
    cairn::load_plan_cache one(1);
    one.put(key, bytes(manifest, 1), plan(items));
    return one.bytes();
  };
  CHECK(size(2, 1000) > size(2, 100) + 899);
  CHECK(size(2, 100) > size(1, 100));

  cairn::load_plan_cache cache(2);
  CHECK(!cache.find(key, bytes(9, 1)));
  cache.put(key, bytes(9, 1), plan(3));
  const auto kept = cache.find(key, bytes(9, 1));
  REQUIRE(kept);
  CHECK(kept->plan.items.size() == 3);
  CHECK(kept->seconds == 0.5);
  for (const auto& manifest : {bytes(9, 2), bytes(8, 1), bytes(10, 1), bytes(0, 1)})
    CHECK(!cache.find(key, manifest));
  const auto other = [&](auto change) {
    auto changed = key;
    change(changed);
    return changed;
  };
  for (const auto& k : {other([](auto& o) { o.step = 8; }), other([](auto& o) { o.structure = 9; }),
                        other([](auto& o) { o.planner = 9; }), other([](auto& o) { o.world_size = 5; }),
                        other([](auto& o) { o.rank = 2; }), other([](auto& o) { o.strict = false; }),
                        other([](auto& o) { o.only = {"a*"}; })})
    CHECK(!cache.find(k, bytes(9, 1)));
  // Another checkpoint of the same number takes the place of this one.
  cache.put(key, bytes(9, 2), plan(4));
  CHECK(cache.size() == 1);
  CHECK(!cache.find(key, bytes(9, 1)));
  CHECK(kept->plan.items.size() == 3);

  const auto second = other([](auto& o) { o.step = 8; });
  const auto third = other([](auto& o) { o.step = 9; });
  cache.put(second, {}, plan(1));
  REQUIRE(cache.find(key, bytes(9, 2)));
  cache.put(third, {}, plan(1));
  CHECK(cache.size() == 2);
  CHECK(!cache.find(second, {}));
  CHECK(cache.find(key, bytes(9, 2)));
  CHECK(cache.find(third, {}));
  cache.clear();
  CHECK(cache.size() == 0);

  const auto each = size(3, 1000);
  cairn::load_plan_cache few_bytes(4, 2 * each);
  for (int step = 1; step <= 3; ++step)
    few_bytes.put(other([&](auto& o) { o.step = step; }), bytes(1000, 1), plan(3));
  CHECK(few_bytes.size() == 2);
  CHECK(few_bytes.bytes() == 2 * each);
  CHECK(!few_bytes.find(other([](auto& o) { o.step = 1; }), bytes(1000, 1)));
  few_bytes.put(key, bytes(3 * each, 1), plan(3));  // too large to be kept, and costs no other its place
  CHECK(!few_bytes.find(key, bytes(3 * each, 1)));
  CHECK(few_bytes.size() == 2);
  cairn::load_plan_cache none(0);
  none.put(key, bytes(9, 1), plan(1));
  CHECK(!none.find(key, bytes(9, 1)));
}

TEST_CASE("patterns") {
  CHECK(cairn::glob_matches("*", ""));
  CHECK(cairn::glob_matches("model.*", "model.w"));
  CHECK(!cairn::glob_matches("model.*", "mode.w"));
  CHECK(cairn::glob_matches("*.w?", "a.b.w1"));
  CHECK(!cairn::glob_matches("*.w?", "a.b.w"));
  CHECK(cairn::glob_matches("a*b*c", "axxbyybzc"));
  CHECK(!cairn::glob_matches("a*b*c", "axxbyybz"));
  CHECK(cairn::glob_matches("", ""));
  CHECK(!cairn::glob_matches("", "a"));
  CHECK(cairn::is_wanted({}, "anything"));
}

namespace {

/// What a group writes, from the plans that each rank finishes for itself.
std::vector<cairn_test::written_box> written_by(cairn::default_planner& planner,
                                                const std::vector<cairn::save_plan>& plans,
                                                const cairn::plan_summary& all) {
  std::vector<cairn_test::written_box> out;
  for (std::size_t r = 0; r < plans.size(); ++r)
    for (const auto& i :
         planner.finish(plans[r], all, static_cast<int>(r), static_cast<int>(plans.size())).items)
      out.push_back({i.name, i.box, static_cast<std::int32_t>(r)});
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<cairn_test::written_box> written_in(const cairn::metadata& stored) {
  std::vector<cairn_test::written_box> out;
  for (const auto& i : stored.items)
    for (const auto& c : i.chunks) out.push_back({i.name, c.box, c.rank});
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

TEST_CASE("the reduction comes to the plans of the reference, in whichever order ranks are merged") {
  const auto seed = cairn_test::seed_or(23);
  std::mt19937_64 random(seed);
  for (std::uint64_t round = 0; round < cairn_test::rounds(150, 40); ++round) {
    CAPTURE(seed);
    CAPTURE(round);
    const auto world = 1 + static_cast<int>(random() % (round % 40 == 0 ? 150 : 24));
    const cairn_test::random_group group(random, world);
    const cairn::default_planner_options options{.split_above_bytes = 1 + random() % 400,
                                                 .min_chunk_bytes = 4 + random() % 60};
    cairn_test::reference_planner reference(group.plans, options);
    REQUIRE(reference.broken() == "");
    cairn::default_planner planner(options);
    const auto expected = reference.plan();
    for (int order = 0; order < 2; ++order) {
      const auto all = cairn_test::merged(planner, group.plans, 0, world, random);
      const auto stored = planner.metadata(all, world);
      REQUIRE(written_in(stored) == expected);
      if (order == 1) REQUIRE(written_by(planner, group.plans, all) == expected);
    }
  }
}

TEST_CASE("stages, shards and many copies come to the plans of the reference") {
  const auto seed = cairn_test::seed_or(43);
  std::mt19937_64 random(seed);
  for (std::uint64_t round = 0; round < cairn_test::rounds(30, 40); ++round) {
    CAPTURE(seed);
    CAPTURE(round);
    const cairn_test::pipeline_group group(random, round % 10 == 0 ? 300 : 90);
    const auto world = static_cast<int>(group.plans.size());
    const cairn::default_planner_options options{.split_above_bytes = 1 + random() % 300,
                                                 .min_chunk_bytes = 4 + random() % 12};
    cairn_test::reference_planner reference(group.plans, options);
    REQUIRE(reference.broken() == "");
    cairn::default_planner planner(options);
    const auto expected = reference.plan();
    const auto all = cairn_test::merged(planner, group.plans, 0, world, random);
    REQUIRE(written_in(planner.metadata(all, world)) == expected);
    for (int k = 0; k < 3; ++k) {
      const auto rank = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(world));
      std::vector<cairn_test::written_box> mine;
      for (const auto& i :
           planner.finish(group.plans[static_cast<std::size_t>(rank)], all, rank, world).items)
        mine.push_back({i.name, i.box, rank});
      std::sort(mine.begin(), mine.end());
      auto wanted = expected;
      std::erase_if(wanted, [&](const auto& w) { return w.rank != rank; });
      REQUIRE(mine == wanted);
    }
  }
}

TEST_CASE("boxes of one item on sets of ranks that overlap are balanced box by box") {
  // However they are put together: box 0 is on ranks 0 and 1, box 1 on ranks 1 and 2, as two rows of shards.
  std::vector<cairn::save_plan> plans(3);
  cairn::plan_summary made;
  for (const char* name : {"a", "b"}) {
    cairn::chunk_progression p;
    p.first = {{0}, {4}};
    p.axis_count = 1;
    p.axes[0] = {2, 1, 0, 4};
    cairn::summary_item definition;
    definition.type = cairn::dtype::f32;
    definition.global = {8};
    made.add(name, definition).boxes = 2;
    for (p.rank = 0; p.rank < 2; ++p.rank) {
      made.append(p);
      for (std::int64_t k = 0; k < 2; ++k) {
        const auto c = p.at(k);
        plans[static_cast<std::size_t>(c.rank)].items.push_back(box_item(name, {8}, c.box));
      }
    }
  }
  cairn_test::reference_planner reference(plans, {});
  REQUIRE(reference.broken() == "");
  cairn::default_planner planner;
  const auto expected = reference.plan();
  CHECK(written_in(planner.metadata(made, 3)) == expected);
  CHECK(written_by(planner, plans, made) == expected);
}

TEST_CASE("files that are no checkpoint are refused and named, as by the reference") {
  const auto seed = cairn_test::seed_or(29);
  std::mt19937_64 random(seed);
  const auto roll = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  int refused_plans = 0;
  for (std::uint64_t round = 0; round < cairn_test::rounds(500, 20); ++round) {
    CAPTURE(seed);
    CAPTURE(round);
    const auto world = 1 + static_cast<int>(roll(12));
    cairn_test::random_group group(random, world);
    auto& items = group.plans[roll(group.plans.size())].items;
    if (items.empty()) continue;
    const auto at = roll(items.size());
    auto& i = items[at];
    const auto d = static_cast<int>(roll(static_cast<std::size_t>(i.box.sizes.rank()) + 1)) - 1;
    switch (roll(7)) {
      case 0:
        items.erase(items.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 1:
        items.push_back(i);
        break;
      case 2:
        i.type = cairn::dtype::i32;
        break;
      case 3:
        i.flags.per_rank = !i.flags.per_rank;
        break;
      case 4:
        if (d >= 0) i.global.set(d, i.global[d] + 1);
        break;
      case 5:
        if (d >= 0) i.box.offsets.set(d, i.box.offsets[d] + 1);
        break;
      default:
        if (d >= 0 && i.box.sizes[d] > 1) i.box.sizes.set(d, i.box.sizes[d] - 1);
        if (i.bytes != 0 && i.kind == cairn::item_kind::tensor)
          i.bytes = cairn::bytes_of(i.type, i.box.volume());
        break;
    }
    // A definition that a rank without elements of the tensor gives twice changes nothing.
    cairn_test::reference_planner reference(group.plans, {});
    cairn::default_planner planner;
    const auto all = cairn_test::merged(planner, group.plans, 0, world, random);
    const auto again = planner.decode(planner.encode(all));
    std::string said;
    try {
      cairn::validate(again, world);
    } catch (const cairn::plan_error& e) {
      said = e.fields().item;
    }
    CHECK(said == reference.broken());
    refused_plans += !said.empty();
  }
  CHECK(refused_plans > 200);
}

TEST_CASE("a load by any other group reads each wanted element once, from the rank that wrote it") {
  const auto seed = cairn_test::seed_or(31);
  std::mt19937_64 random(seed);
  float memory = 0;
  for (std::uint64_t round = 0; round < cairn_test::rounds(100, 20); ++round) {
    CAPTURE(seed);
    CAPTURE(round);
    const auto world = 1 + static_cast<int>(random() % 40);
    cairn_test::random_group saved(random, world);
    cairn::default_planner planner({.split_above_bytes = 50, .min_chunk_bytes = 8});
    const auto stored = planner.metadata(cairn_test::merged(planner, saved.plans, 0, world, random), world);
    for (const auto& item : stored.items) {
      if (item.kind != cairn::item_kind::tensor || item.per_rank || item.global.rank() == 0) continue;
      // A random mesh over one or two dimensions of the same tensor.
      const auto dimension = static_cast<int>(random() % static_cast<std::uint64_t>(item.global.rank()));
      const auto parts = 1 + static_cast<std::int64_t>(random() % 9);
      const auto each = (item.global[dimension] + parts - 1) / parts;
      for (std::int64_t part = 0; part < parts; ++part) {
        auto box = cairn::whole(item.global);
        const auto from = std::min(part * each, item.global[dimension]);
        box.offsets.set(dimension, from);
        box.sizes.set(dimension, std::min(each, item.global[dimension] - from));
        cairn::state_dict state;
        state.tensor(item.name, &memory, cairn::shard{item.global, box.offsets, box.sizes});
        const auto plan = planner.plan(state, stored, {0, 1, false, {}});
        CHECK(plan.report.mismatched.empty());
        std::vector<int> times(static_cast<std::size_t>(box.volume()));
        for (const auto& read : plan.items) {
          REQUIRE(stored.items[read.stored].name == item.name);
          const auto chunk = item.chunks[read.chunk];
          CHECK(cairn::intersect(chunk.box, read.box) == read.box);
          CHECK(cairn::intersect(box, read.box) == read.box);
          for (std::int64_t k = 0; k < read.box.volume(); ++k) {
            std::int64_t rest = k;
            std::int64_t flat = 0;
            std::int64_t stride = 1;
            for (int d = box.sizes.rank() - 1; d >= 0; --d) {
              flat += (read.box.offsets[d] - box.offsets[d] + rest % read.box.sizes[d]) * stride;
              rest /= read.box.sizes[d];
              stride *= box.sizes[d];
            }
            ++times[static_cast<std::size_t>(flat)];
          }
        }
        CHECK(std::count(times.begin(), times.end(), 1) == box.volume());
      }
    }
  }
}

TEST_CASE("summaries grow with patterns, not with ranks") {
  const auto summarised = [](int world) {
    cairn::default_planner planner;
    std::vector<cairn::save_plan> plans(static_cast<std::size_t>(world));
    for (std::int64_t r = 0; r < world; ++r) {
      auto& items = plans[static_cast<std::size_t>(r)].items;
      const auto rows = std::int64_t{3} * world - 1;
      items.push_back(
          box_item("fsdp", {rows, 8}, {{3 * r, 0}, {std::min<std::int64_t>(3, rows - 3 * r), 8}}));
      items.push_back(box_item("hsdp", {12, 8}, {{r % 6 * 2, 0}, {2, 8}}));
      items.push_back(box_item("mesh", {64, 80}, {{r / 10 % 2 * 32, r % 10 * 8}, {32, 8}}));
      // Half of the ranks hold nothing of it.
      items.push_back(
          box_item("few", {world / 2, 4}, r < world / 2 ? chunk{{r, 0}, {1, 4}} : chunk{{0, 0}, {0, 0}}));
      items.push_back(box_item("same", {5}, cairn::whole({5})));
    }
    // Merged one after another, as a tree would merge them, and at random.
    std::mt19937_64 random(5);
    const auto all = cairn_test::merged(planner, plans, 0, world, random);
    const auto bytes = planner.encode(all);
    CHECK(planner.decode(bytes) == all);
    const auto stored = planner.metadata(all, world);
    for (const auto& item : stored.items) CHECK(item.chunks.progressions() <= 6);
    return bytes.size();
  };
  CHECK(summarised(60) < 300);
  CHECK(summarised(1260) < 300);
}

TEST_CASE("six ranks with a pencil: docs/planning.md, step by step") {
  using steps = std::vector<std::string>;
  const auto add_to = [](steps& out) {
    return [&out](const cairn::chunk_progression& p) {
      const auto first = p.first.offsets[0];
      auto text = "[" + std::to_string(first) + "," + std::to_string(first + p.first.sizes[0]) + ") on " +
                  std::to_string(p.rank);
      for (const auto& a : p)
        text += " (" + std::to_string(a.count) + ", rank +" + std::to_string(a.rank_step) +
                (a.dimension < 0 ? ", replica)" : ", rows +" + std::to_string(a.offset_step) + ")");
      out.push_back(text);
    };
  };
  const auto of = [&](const cairn::plan_summary& s, std::size_t item) {
    steps out;
    s.for_each_box(item, add_to(out));
    return out;
  };
  cairn::default_planner planner;
  const auto of_rank = [&](std::int64_t rank) {
    const auto from = rank % 3 * 3;
    cairn::save_plan plan;
    for (const auto& [name, columns] : {std::pair("v", 8), std::pair("w", 4)})
      plan.items.push_back(
          box_item(name, {7, columns}, {{from, 0}, {std::min<std::int64_t>(3, 7 - from), columns}}));
    return planner.summarise(plan, static_cast<int>(rank));
  };
  const auto low = planner.merge(of_rank(0), of_rank(1));
  const auto middle = planner.merge(of_rank(2), of_rank(3));
  const auto high = planner.merge(of_rank(4), of_rank(5));
  const auto lower = planner.merge(low, middle);
  const auto all = planner.merge(lower, high);
  for (const std::size_t item : {std::size_t{0}, std::size_t{1}}) {
    CHECK(of(low, item) == steps{"[0,3) on 0 (2, rank +1, rows +3)"});
    CHECK(of(middle, item) == steps{"[6,7) on 2", "[0,3) on 3"});
    CHECK(of(high, item) == steps{"[3,6) on 4", "[6,7) on 5"});
    CHECK(of(lower, item) == steps{"[0,3) on 0 (2, rank +1, rows +3)", "[6,7) on 2", "[0,3) on 3"});
    CHECK(of(all, item) == steps{"[0,3) on 0 (2, rank +3, replica) (2, rank +1, rows +3)",
                                 "[6,7) on 2 (2, rank +3, replica)"});
  }
  const auto stored = planner.metadata(all, 6);
  const auto written = [&](const char* name) {
    steps out;
    stored.find(name)->chunks.for_each_progression(add_to(out));
    return out;
  };
  CHECK(written("v") == steps{"[0,3) on 0 (2, rank +1, rows +3)", "[6,7) on 2"});
  CHECK(written("w") == steps{"[0,3) on 3 (2, rank +1, rows +3)", "[6,7) on 5"});
}

TEST_CASE("bytes that are no summary are refused") {
  const auto seed = cairn_test::seed_or(37);
  std::mt19937_64 random(seed);
  CAPTURE(seed);
  std::uint64_t accepted = 0;
  for (std::uint64_t round = 0; round < cairn_test::rounds(60, 50); ++round) {
    const auto world = 1 + static_cast<int>(random() % 24);
    const cairn_test::random_group group(random, world);
    cairn::default_planner planner;
    const auto bytes = planner.encode(cairn_test::merged(planner, group.plans, 0, world, random));
    for (int k = 0; k < 60; ++k) {
      auto damaged = bytes;
      for (auto times = 1 + random() % 3; times > 0; --times)
        damaged[random() % damaged.size()] = static_cast<std::byte>(random());
      if (random() % 4 == 0) damaged.resize(random() % damaged.size());
      try {
        const auto decoded = planner.decode(damaged);
        ++accepted;
        CHECK(planner.encode(decoded) == damaged);
        static_cast<void>(planner.merge(decoded, planner.decode(bytes)));
        static_cast<void>(planner.metadata(decoded, world));
      } catch (const cairn::wire_error&) {
      } catch (const cairn::plan_error&) {
      } catch (const cairn::usage_error& e) {
        CHECK(e.id() == error_id::usage_bad_name);
      }
    }
  }
  CHECK(accepted > 0);
}

TEST_CASE("an item that ranks know and nobody holds is refused") {
  // Bytes that a rank knows without holding them: no rank's plan says so.
  cairn::compact_writer message;
  message.number(std::uint64_t{1}).number(std::uint64_t{0}).number(std::uint64_t{1}).raw("b");
  message.byte(static_cast<std::uint8_t>(cairn::item_kind::bytes))
      .byte(static_cast<std::uint8_t>(cairn::dtype::u8));
  message.number(std::uint64_t{0}).number(std::uint64_t{1}).number(std::uint64_t{1} << 3);
  cairn::default_planner planner;
  CHECK_THROWS_AS(static_cast<void>(planner.decode(message.view())), cairn::wire_error);
  // And what a program makes by hand, of each kind.
  for (const auto kind : {cairn::item_kind::tensor, cairn::item_kind::value, cairn::item_kind::bytes})
    for (const bool per_rank : {false, true}) {
      CAPTURE(per_rank);
      cairn::plan_summary made;
      cairn::summary_item definition;
      definition.kind = kind;
      definition.per_rank = per_rank;
      made.add("b", definition).without = 1;
      made.append(cairn::chunk_progression{.first = cairn::whole({}), .rank = 1});
      try {
        static_cast<void>(planner.finish({}, made, 0, 2));
        FAIL("an item that nobody holds was planned");
      } catch (const cairn::plan_error& e) {
        CHECK(e.id() == error_id::plan_not_covered);
        CHECK(e.fields().item == "b");
      }
    }
}

TEST_CASE("replicas of shards and of whole tensors are levelled in large groups") {
  std::mt19937_64 random(41);
  for (const auto& [world, shards] : {std::pair(200, 1), std::pair(96, 8), std::pair(510, 5)}) {
    CAPTURE(world);
    cairn::default_planner planner;
    std::vector<std::int64_t> rows;
    for (int n = 0; n < 120; ++n) rows.push_back(std::int64_t{1} << (random() % 15));
    cairn::plan_summary all;
    for (int r = 0; r < world; ++r) {
      cairn::save_plan plan;
      for (std::size_t n = 0; n < rows.size(); ++n) {
        const cairn::extents global{rows[n] * shards + static_cast<std::int64_t>(n % 3), 1000};
        const auto each = (global[0] + shards - 1) / shards;
        const auto from = std::min(each * (r % shards), global[0]);
        const auto size = std::min(each, global[0] - from);
        plan.items.push_back(box_item("t" + std::to_string(n), global,
                                      size > 0 ? chunk{{from, 0}, {size, 1000}} : chunk{{0, 0}, {0, 0}}));
      }
      all = planner.merge(std::move(all), planner.summarise(plan, r));
    }
    const auto stored = planner.metadata(all, world);
    std::vector<std::uint64_t> loads(static_cast<std::size_t>(world));
    std::uint64_t sum = 0;
    for (const auto& item : stored.items)
      for (const auto& c : item.chunks) {
        loads[static_cast<std::size_t>(c.rank)] += cairn::bytes_of(item.type, c.box.volume());
        sum += cairn::bytes_of(item.type, c.box.volume());
      }
    const auto mean = sum / static_cast<std::uint64_t>(world);
    CHECK(*std::max_element(loads.begin(), loads.end()) - mean <=
          std::max<std::uint64_t>(mean / 20, std::uint64_t{1} << 20));
    std::size_t progressions = 0;
    for (const auto& item : stored.items) progressions += item.chunks.progressions();
    CHECK(progressions < stored.items.size() * 40);
  }
}
