// SPDX-License-Identifier: Apache-2.0
// group: files
// cost: 10
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cairn/checkpointer.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/plan/default_planner.hpp>
#include <cairn/plan/load/load_planning.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/memory_store.hpp>
#include <cairn/system/digest.hpp>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <support/dying_communicator.hpp>
#include <support/on_all_ranks.hpp>
#include <support/planner_conformance.hpp>
#include <support/rounds.hpp>
#include <support/sharded_jobs.hpp>
#include <vector>

using cairn::chunk;
using cairn::error_id;
using cairn::extents;
using cairn_test::failure_of;
using cairn_test::plan_group;
using cairn_test::simulated_storage;
using namespace cairn_test::sharded_jobs;

TEST_CASE("any sharding is saved once and loads into any other sharding") {
  const auto first_seed = cairn_test::seed_or(1);
  const std::uint64_t rounds = std::getenv("CAIRN_TEST_SEED") != nullptr ? 1 : cairn_test::rounds(150, 20);
  for (auto seed = first_seed; seed < first_seed + rounds; ++seed) {
    INFO("repeat with CAIRN_TEST_SEED=", seed);
    generator g{std::mt19937_64(seed)};
    std::vector<global_tensor> tensors;
    const auto count = g.in(1, 6);
    static constexpr cairn::dtype types[] = {cairn::dtype::f32, cairn::dtype::i16, cairn::dtype::u8,
                                             cairn::dtype::f64};
    for (std::int64_t k = 0; k < count; ++k) {
      const auto rank = static_cast<int>(g.in(0, 4));
      auto shape = extents::filled(rank, 1);
      for (int d = 0; d < rank; ++d) shape.set(d, g.chance(30) ? 0 : g.in(1, rank > 2 ? 6 : 20));
      tensors.push_back({"t" + std::to_string(g.in(0, 999)) + "." + std::to_string(k),
                         types[static_cast<std::size_t>(g.in(0, 3))], shape});
    }
    const int world = static_cast<int>(g.in(1, 16));
    job from(g, tensors, world, true);
    from.fill(tensors);
    cairn::default_planner planner{{.split_above_bytes = static_cast<std::uint64_t>(g.in(1, 4000)),
                                    .min_chunk_bytes = static_cast<std::uint64_t>(g.in(1, 100))}};
    const auto saved = plan_group(planner, from.states, seed);
    cairn_test::check_whole(saved.plans, saved.stored);
    const auto again = plan_group(planner, from.states, seed + 1);
    CHECK(again.stored.items == saved.stored.items);
    CHECK(again.summary == saved.summary);
    simulated_storage storage;
    for (int r = 0; r < world; ++r) {
      const auto k = static_cast<std::size_t>(r);
      CHECK(cairn::digest_of(again.plans[k]) == cairn::digest_of(saved.plans[k]));
      storage.write(planner, from.states[k], saved.plans[k], r);
    }

    const int other = static_cast<int>(g.in(1, 16));
    job to(g, tensors, other, true);
    for (int r = 0; r < other; ++r) {
      const auto k = static_cast<std::size_t>(r);
      to.ranks[k].rng = {77};
      const auto plan = planner.plan(to.states[k], saved.stored, {r, other, r < world, {}});
      std::uint64_t wanted = 8 + from.ranks[0].notes.size();
      if (r < world) wanted += from.ranks[k].rng.size();
      for (const auto& t : tensors)
        if (const auto* e = to.states[k].find(t.name)) wanted += cairn::bytes_of(t.type, e->elements);
      CHECK(storage.read(planner, to.states[k], saved.stored, plan) == wanted);
      for (const auto& t : tensors)
        if (const auto* e = to.states[k].find(t.name))
          for (std::size_t b = 0; b < e->boxes.size(); ++b)
            CHECK(cairn_test::packed(e->view(b)) == expected(t, e->boxes[b]));
      CHECK(to.ranks[k].step == 1234);
      CHECK(to.ranks[k].notes == "the same everywhere");
      CHECK(plan.report.mismatched.empty());
      if (r < world) {
        CHECK(to.ranks[k].rng == from.ranks[k].rng);
        CHECK(plan.report.missing.empty());
      } else {
        CHECK(to.ranks[k].rng == std::vector<std::uint8_t>{77});
        CHECK(plan.report.missing == std::vector<std::string>{"rng"});
      }
    }
  }
}

TEST_CASE("an item that does not fit is refused by name, and only reported in a partial load") {
  small_checkpoint c;
  cairn::state_dict state;
  std::vector<float> w(16);
  const auto strictly = [&](std::vector<std::string> only = {}) {
    return failure_of([&] { (void)plan_alone(state, c.stored, true, only); });
  };
  const auto partly = [&] { return plan_alone(state, c.stored, false, {"w", "lr", "new"}); };
  SUBCASE("missing") {
    state.tensor("w", w, {4, 4});
    state.tensor("new", w, {4, 4});
    const auto e = strictly({"w", "new"});
    CHECK(e.id() == error_id::plan_missing_item);
    CHECK(e.fields().item == "new");
    const auto plan = partly();
    CHECK(plan.report.missing == std::vector<std::string>{"new"});
    CHECK(plan.items.size() == 2);
  }
  SUBCASE("optional items may be missing") {
    state.tensor("new", w, {4, 4}, cairn::optional);
    CHECK(plan_alone(state, c.stored, true, {"new"}).report.missing == std::vector<std::string>{"new"});
  }
  SUBCASE("unexpected") {
    state.tensor("w", w, {4, 4});
    const auto e = strictly();
    CHECK(e.id() == error_id::plan_unexpected_item);
    CHECK(std::string(e.what()).find("blob, lr, rng") != std::string::npos);
    CHECK(plan_alone(state, c.stored, false).report.unexpected ==
          std::vector<std::string>{"blob", "lr", "rng"});
    CHECK(plan_alone(state, c.stored, true, {"w"}).report.unexpected.empty());
    CHECK(plan_alone(state, c.stored, false, {"w", "r*"}).report.unexpected ==
          std::vector<std::string>{"rng"});
    // A stage of a pipeline knows its own items only; the group decides.
    cairn::default_planner planner;
    const auto one = planner.plan(state, c.stored, {0, 2, true, {}}).report.unexpected;
    CHECK(one == std::vector<std::string>{"blob", "lr", "rng"});
    CHECK(cairn::unexpected_on_both(one, {"blob", "w"}) == std::vector<std::string>{"blob"});
  }
  SUBCASE("dtype") {
    std::vector<double> d(16);
    state.tensor("w", d, {4, 4});
    const auto e = strictly({"w"});
    CHECK(e.id() == error_id::plan_dtype_mismatch);
    CHECK(e.fields().item == "w");
    CHECK(e.fields().expected == "F64");
    CHECK(e.fields().got == "F32");
    const auto plan = partly();
    REQUIRE(plan.report.mismatched.size() == 1);
    CHECK(plan.report.mismatched[0].starts_with("w: "));
    CHECK(plan.items.empty());
  }
  SUBCASE("dtype of a value") {
    float lr = 0;
    state.value("lr", lr);
    CHECK(strictly({"lr"}).id() == error_id::plan_dtype_mismatch);
  }
  SUBCASE("shape") {
    state.tensor("w", w, {2, 8});
    CHECK(strictly({"w"}).id() == error_id::plan_shape_mismatch);
    CHECK(partly().report.mismatched.size() == 1);
  }
  SUBCASE("kind") {
    std::string text;
    state.bytes("w", text);
    CHECK(strictly({"w"}).id() == error_id::plan_kind_mismatch);
    CHECK(partly().report.mismatched.size() == 1);
  }
  SUBCASE("per_rank on one side only") {
    std::string text;
    state.bytes("rng", text);
    CHECK(strictly({"rng"}).id() == error_id::plan_kind_mismatch);
  }
  SUBCASE("not covered") {
    state.tensor("w", w, {4, 4});
    auto& item = c.stored.items[static_cast<std::size_t>(c.stored.find("w") - c.stored.items.data())];
    auto chunks = item.chunks.sorted();
    chunks.pop_back();
    item.chunks = cairn::chunk_set::from(chunks);
    const auto e = strictly({"w"});
    CHECK(e.id() == error_id::plan_not_covered);
    CHECK(e.fields().got == "nothing at offsets [2, 0] sizes [2, 4]");
    CHECK(partly().report.mismatched.size() == 1);
    CHECK(partly().items.empty());
  }
  SUBCASE("stored chunks that overlap are refused, though their volume is right") {
    state.tensor("w", w, {4, 4});
    auto& item = c.stored.items[static_cast<std::size_t>(c.stored.find("w") - c.stored.items.data())];
    item.chunks = {{{{0, 0}, {2, 4}}, 0}, {{{0, 0}, {2, 4}}, 1}};
    CHECK(strictly({"w"}).id() == error_id::plan_not_covered);
    item.chunks = {{{{0, 0}, {4, 4}}, 0}, {{{0, 0}, {2, 4}}, 1}};
    CHECK(strictly({"w"}).id() == error_id::plan_overlap);
  }
  SUBCASE("a rank that the checkpoint did not have keeps its own items") {
    std::string text = "mine";
    state.bytes("rng", text, cairn::per_rank);
    cairn::default_planner planner;
    CHECK(planner.plan(state, c.stored, {1, 3, true, {}}).items.size() == 1);
    CHECK(failure_of([&] {
            (void)planner.plan(state, c.stored, {2, 3, true, {}});
          }).id() == error_id::plan_missing_item);
    CHECK(planner.plan(state, c.stored, {2, 3, false, {}}).report.missing == std::vector<std::string>{"rng"});
  }
}

TEST_CASE("grids are found by arithmetic, and wrong guesses are noticed") {
  cairn::metadata stored;
  cairn::stored_item item{"w", cairn::item_kind::tensor, cairn::dtype::f32, {100, 90}, false, {}};
  std::vector<cairn::stored_chunk> chunks;
  for (std::int64_t i = 0; i < 100; i += 30)
    for (std::int64_t k = 0; k < 90; k += 20)
      chunks.push_back(
          {{{i, k}, {std::min<std::int64_t>(30, 100 - i), std::min<std::int64_t>(20, 90 - k)}}, 0});
  std::vector<float> w(8000);
  const auto wanted = [&](const chunk& box) {
    cairn::state_dict state;
    state.tensor("w", w.data(), cairn::shard{{100, 90}, box.offsets, box.sizes});
    item.chunks = cairn::chunk_set::from(chunks);
    stored.items = {item};
    std::vector<chunk> boxes;
    for (const auto& r : plan_alone(state, stored, true).items) {
      CHECK(cairn::intersect(item.chunks[r.chunk].box, r.box) == r.box);
      boxes.push_back(r.box);
    }
    return boxes;
  };
  CHECK(wanted({{0, 0}, {30, 20}}).size() == 1);
  CHECK(wanted({{29, 19}, {2, 2}}).size() == 4);
  CHECK(wanted({{0, 0}, {100, 80}}).size() == 16);
  CHECK(wanted({{95, 85}, {5, 5}}) == std::vector<chunk>{{{95, 85}, {5, 5}}});
  SUBCASE("the same grid in another order") {
    std::reverse(chunks.begin(), chunks.end());
    CHECK(wanted({{29, 19}, {2, 2}}).size() == 4);
    CHECK(wanted({{0, 0}, {100, 80}}).size() == 16);
  }
  SUBCASE("as many chunks, not in a grid") {
    chunks[0].box.sizes = {25, 20};
    chunks[5].box = {{25, 0}, {35, 20}};
    CHECK(wanted({{0, 0}, {60, 20}}).size() == 2);
    CHECK(wanted({{26, 0}, {2, 20}}) == std::vector<chunk>{{{26, 0}, {2, 20}}});
  }
}

// What a user writes to rename, leave out, and store half the bytes.
struct half_planner : cairn::basic_planner<half_planner> {
  std::optional<std::string> stored_name(const cairn::state_entry& e) const {
    if (e.name.starts_with("cache.")) return std::nullopt;
    return "model." + e.name;
  }
  cairn::dtype stored_dtype(const cairn::state_entry& e) const {
    return e.type == cairn::dtype::f32 ? cairn::dtype::bf16 : e.type;
  }
};
static_assert(cairn::SavePlanner<half_planner> && cairn::LoadPlanner<half_planner>);

TEST_CASE("a planner of the user's renames, leaves out, and converts on save and load") {
  half_planner planner;
  std::deque<cairn::state_dict> states(2);
  std::vector<float> w[2] = {{1, 2, 3.0009765625F, -4}, {5, 6, 7, 8}};
  std::vector<float> norm{0.5F, 0.25F};
  std::vector<float> cache(100);
  float lr = 0.1F;
  for (std::size_t r = 0; r < 2; ++r) {
    states[r].tensor("cache.keys", cache, {100});
    states[r].tensor("w", w[r], cairn::shard{{4, 2}, {2 * r, 0}});
    states[r].tensor("norm", norm, {2});
    states[r].value("lr", lr);
  }
  const auto saved = plan_group(planner, states);
  cairn_test::check_whole(saved.plans, saved.stored);
  REQUIRE(saved.stored.items.size() == 3);
  CHECK(saved.stored.find("model.w")->type == cairn::dtype::bf16);
  CHECK(saved.stored.find("model.lr")->type == cairn::dtype::f32);
  CHECK(saved.stored.find("model.cache.keys") == nullptr);
  simulated_storage storage;
  for (int r = 0; r < 2; ++r)
    storage.write(planner, states[static_cast<std::size_t>(r)], saved.plans[static_cast<std::size_t>(r)], r);

  cairn::state_dict whole;
  std::vector<float> all(8), other_norm(2);
  float other_lr = 0;
  whole.tensor("w", all, {4, 2});
  whole.tensor("norm", other_norm, {2});
  whole.value("lr", other_lr);
  const auto plan = planner.plan(whole, saved.stored, {});
  CHECK(storage.read(planner, whole, saved.stored, plan) == 8 * 2 + 2 * 2 + 4);
  CHECK(all == std::vector<float>{1, 2, 3, -4, 5, 6, 7, 8});
  CHECK(other_norm == norm);
  CHECK(other_lr == lr);

  // The plain planner sees other names, and another dtype.
  cairn::state_dict plain;
  plain.tensor("model.w", all, {4, 2});
  CHECK(failure_of([&] { (void)plan_alone(plain, saved.stored, true); }).id() ==
        error_id::plan_dtype_mismatch);
}

struct integer_planner : cairn::basic_planner<integer_planner> {
  cairn::dtype stored_dtype(const cairn::state_entry&) const { return cairn::dtype::i32; }
};
struct one_name_planner : cairn::basic_planner<one_name_planner> {
  std::optional<std::string> stored_name(const cairn::state_entry&) const { return name; }
  std::string name = "x";
};

TEST_CASE("mistakes of a user's planner are errors that name the item") {
  std::vector<float> w(4);
  std::deque<cairn::state_dict> states(1);
  states[0].tensor("w", w, {4});
  integer_planner integers;
  auto e = failure_of([&] { (void)integers.local_plan(states[0], 0); });
  CHECK(e.id() == error_id::plan_no_cast);
  CHECK(e.fields().item == "w");
  cairn::metadata stored;
  stored.items.push_back({"w", cairn::item_kind::tensor, cairn::dtype::i32, {4}, false, {{{{0}, {4}}, 0}}});
  e = failure_of([&] { (void)integers.plan(states[0], stored, {}); });
  CHECK(e.id() == error_id::plan_no_cast);
  states[0].tensor("v", w, {4});
  one_name_planner one;
  e = failure_of([&] { (void)plan_group(one, states); });
  CHECK(e.id() == error_id::plan_overlap);
  CHECK(e.fields().item == "x");
  one.name = "rng@rank00001";
  CHECK(failure_of([&] { (void)one.local_plan(states[0], 0); }).id() == error_id::usage_bad_name);
}

// --- Loads of ranks that share what they read

TEST_CASE("ranks that share reads fetch the checkpoint once, whatever each of them wants of it") {
  const auto store = saved_by_rows(4);
  auto each_alone = store;
  // One step of the two; headers of data files are not read.
  const auto data = (table::rows * table::columns + 100) * sizeof(float) + 11;
  const auto records = each_alone.stored(".record") / 2;
  struct wanted {
    const char* how;
    int ranks;
    std::uint64_t copies;  ///< that are read where ranks do not share
  };
  for (const auto& w : {wanted{"columns", 4, 4}, wanted{"whole", 4, 4}, wanted{"whole", 3, 3},
                        wanted{"rows", 2, 1}, wanted{"columns", 7, 7}}) {
    CAPTURE(w.how);
    CAPTURE(w.ranks);
    for (const auto sharing : {cairn::read_sharing::on, cairn::read_sharing::off})
      for (const std::uint64_t memory : {1U, 10'000'000U, 256'000'000U}) {
        CAPTURE(memory);
        if (sharing == cairn::read_sharing::off && memory != 1) continue;
        store.counts->data = store.counts->records = 0;
        std::atomic<std::uint64_t> told = 0;
        const auto said = on_ranks(
            store, w.ranks, sharing,
            [&](int r, auto& c) {
              table t(w.how, r, w.ranks);
              told += c.load(t.state, 1).bytes_read;
              if (!t.good()) throw std::runtime_error("a load brought other bytes");
            },
            memory);
        for (const auto& s : said) CHECK(s == "");
        const bool shared = sharing == cairn::read_sharing::on;
        if (shared) CHECK(store.counts->data == data);
        if (shared) CHECK(store.counts->records == records);
        if (!shared) CHECK(store.counts->data >= w.copies * table::rows * table::columns * sizeof(float));
        CHECK(told == store.counts->data + store.counts->records);
      }
  }
}

TEST_CASE("any sharding loads by shared reads into any other") {
  const auto first_seed = cairn_test::seed_or(1);
  const std::uint64_t rounds = std::getenv("CAIRN_TEST_SEED") != nullptr ? 1 : cairn_test::rounds(8, 50);
  for (auto seed = first_seed; seed < first_seed + rounds; ++seed) {
    CAPTURE(seed);
    generator g{std::mt19937_64(seed)};
    std::vector<global_tensor> tensors;
    for (std::int64_t k = g.in(1, 6); k > 0; --k) {
      const auto rank = static_cast<int>(g.in(0, 3));
      auto shape = extents::filled(rank, 1);
      for (int d = 0; d < rank; ++d) shape.set(d, g.chance(30) ? 0 : g.in(1, rank > 2 ? 6 : 20));
      if (rank == 2 && g.chance(4)) shape = extents{g.in(100, 400), g.in(100, 400)};
      tensors.push_back({"t" + std::to_string(k), g.chance(2) ? cairn::dtype::f64 : cairn::dtype::u8, shape});
    }
    const int world = static_cast<int>(g.in(1, 6));
    job from(g, tensors, world, true);
    from.fill(tensors);
    const counting_store store;
    const auto per_file = static_cast<std::int32_t>(g.in(1, 4));
    auto said = on_ranks(
        store, world, cairn::read_sharing::off,
        [&](int r, auto& c) { c.save(from.states[static_cast<std::size_t>(r)], 5).wait(); },
        std::uint64_t{1} << 20, per_file);
    for (const auto& s : said) CHECK(s == "");
    const int other = static_cast<int>(g.in(2, 7));
    job to(g, tensors, other, true);
    store.counts->data = 0;
    said = on_ranks(
        store, other, cairn::read_sharing::on,
        [&](int r, auto& c) {
          const auto k = static_cast<std::size_t>(r);
          static_cast<void>(c.load(to.states[k], 5, cairn::partial));
          if (to.ranks[k].step != 1234 || to.ranks[k].notes != "the same everywhere" ||
              (r < world && to.ranks[k].rng != from.ranks[k].rng))
            throw std::runtime_error("a load brought another value");
          for (const auto& t : tensors)
            if (const auto* e = to.states[k].find(t.name))
              for (std::size_t b = 0; b < e->boxes.size(); ++b)
                if (cairn_test::packed(e->view(b)) != expected(t, e->boxes[b]))
                  throw std::runtime_error("a load brought another tensor");
        },
        static_cast<std::uint64_t>(g.in(1, 10'000'000)));
    for (const auto& s : said) CHECK(s == "");
    auto all = store;
    CHECK(store.counts->data <= all.stored(".safetensors"));
  }
}

TEST_CASE("if one rank cannot read, a shared load ends with the same error on all ranks") {
  const auto store = saved_by_rows(4);
  const auto load = [&](std::uint64_t memory) {
    return on_ranks(
        store, 4, cairn::read_sharing::on,
        [&](int r, auto& c) {
          table t("columns", r, 4);
          static_cast<void>(c.load(t.state, 2));
        },
        memory);
  };
  SUBCASE("a store that fails once") {
    for (const std::uint64_t memory : {1U, 256'000'000U}) {
      store.counts->fail = true;
      for (const auto& s : load(memory)) CHECK(s.starts_with("storage.io"));
      for (const auto& s : load(memory)) CHECK(s == "");
    }
  }
  SUBCASE("a damaged block of the newer checkpoint") {
    auto changed = store;
    for (const auto& o : changed.list("")) {
      if (!o.key.starts_with("step-00000002/rank-00002") || !o.key.ends_with(".safetensors")) continue;
      auto bytes = changed.read_all(o.key, UINT64_MAX).value();
      bytes[bytes.size() - 1000] ^= std::byte{1};
      changed.remove(o.key);
      changed.put_new(o.key, bytes);
    }
    for (const std::uint64_t memory : {1U, 256'000'000U})
      for (const auto& s : load(memory)) CHECK(s == "corrupt.digest table");
    const auto said = on_ranks(store, 4, cairn::read_sharing::on, [&](int r, auto& c) {
      table t("whole", r, 4);
      if (c.resume(t.state) != 1 || !t.good()) throw std::runtime_error("ranks did not fall back together");
    });
    for (const auto& s : said) CHECK(s == "");
  }
  SUBCASE("a rank whose state does not fit") {
    const auto said = on_ranks(store, 4, cairn::read_sharing::on, [&](int r, auto& c) {
      table t("columns", r, 4);
      std::vector<float> more(9);
      if (r == 2) t.state.tensor("more", more, {9});
      static_cast<void>(c.load(t.state, 2));
    });
    for (const auto& s : said) CHECK(s == "plan.missing_item more");
  }
}

TEST_CASE("a rank that dies at any message of a shared load ends it on the others as a rank that is lost") {
  constexpr int ranks = 4;
  const auto store = saved_by_rows(ranks);
  for (const int dies : {1, 2, 3}) {
    bool whole = false;
    for (int messages = 0; !whole; ++messages) {
      CAPTURE(dies);
      CAPTURE(messages);
      const cairn::thread_group group{ranks};
      std::array<bool, ranks> good{};
      const auto thrown = cairn_test::thrown_on_ranks(ranks, [&](int r) {
        cairn::checkpointer c{
            cairn::safetensors_storage{store},
            cairn_test::dying_communicator(group.communicator(r), r == dies ? messages : INT_MAX),
            cairn::read_sharing::on,
            cairn::checkpointer_options{.timeout = std::chrono::seconds(60),
                                        .peer_timeout = std::chrono::seconds(60),
                                        .max_restarts = 0,
                                        .quiet = true}};
        table t("columns", r, ranks);
        good.at(static_cast<std::size_t>(r)) = c.resume(t.state) == 2 && t.good();
      });
      whole = true;
      for (int r = 0; r < ranks; ++r) {
        CAPTURE(r);
        const auto& mine = thrown[static_cast<std::size_t>(r)];
        whole = whole && mine == nullptr;
        if (mine == nullptr) {
          CHECK(good.at(static_cast<std::size_t>(r)));
          continue;
        }
        try {
          std::rethrow_exception(mine);
        } catch (const cairn::error& e) {
          CAPTURE(e.what());
          CHECK(e.id() == error_id::peer_lost);
        }
      }
    }
  }
}

TEST_CASE("a load of the same checkpoint into a state of the same structure is planned once") {
  const auto store = saved_by_rows(4);
  for (const auto sharing : {cairn::read_sharing::on, cairn::read_sharing::off}) {
    const auto said = on_ranks(store, 3, sharing, [&](int r, auto& c) {
      const auto must = [](bool holds, const char* what) {
        if (!holds) throw std::runtime_error(what);
      };
      auto& planned = store.counts->plans[static_cast<std::size_t>(r)];
      planned = 0;
      cairn::load_report report;
      const auto load = [&](std::int64_t step, std::vector<float>* more = nullptr) {
        table t("columns", r, 3);  // other memory each time
        if (more != nullptr) t.state.tensor("more", *more, {4}, cairn::optional);
        const int before = planned;
        report = c.load(t.state, step);
        must(t.good(), "a load brought other bytes");
        must(report.plan_cached == (planned == before), "the report tells whether this rank planned");
        must(report.plan_cached == (report.plan_saved_seconds > 0), "and what it saved");
        return !report.plan_cached;
      };
      must(load(1), "a first load plans");
      const auto first = report;
      must(!load(1), "a second one does not");
      must(report.bytes == first.bytes && report.bytes_read == first.bytes_read, "and reads the same");
      must(load(2), "another checkpoint is planned");
      must(!load(1) && !load(2), "both plans are kept");
      // One rank has another state: it plans, the others need not, and all load.
      std::vector<float> more(4);
      must(load(1, r == 1 ? &more : nullptr) == (r == 1), "a rank whose state has changed plans alone");
      must(report.missing.size() == (r == 1 ? 1 : 0), "and tells what it misses");
      // A checkpoint that is saved again under its number is another one.
      c.remove(2);
      table t("columns", r, 3);
      t.fill();
      c.save(t.state, 2).wait();
      must(load(2) && !load(2), "a checkpoint of the same number is planned anew");
    });
    for (const auto& s : said) CHECK(s == "");
  }
}
