// SPDX-License-Identifier: Apache-2.0
// What options of a load change: names, dtypes, sizes; on one rank and on several.
#include <doctest/doctest.h>

#include <cairn/checkpointer.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/load_options.hpp>
#include <cairn/plan/default_planner.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/stores/memory_store.hpp>
#include <support/on_all_ranks.hpp>
#include <support/planner_conformance.hpp>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using cairn::dtype;
using cairn::error_id;
using cairn::extents;
using cairn_test::failure_of;

// The least that is an option of a load.
struct least_option {
  void add_to(cairn::load_request& request) const& { request.strict = false; }
};
struct changes_itself {
  void add_to(cairn::load_request& request) { request.strict = false; }
};
static_assert(cairn::LoadOption<least_option> && !cairn::LoadOption<changes_itself> &&
              !cairn::LoadOption<int>);
static_assert(cairn::LoadOption<cairn::only> && cairn::LoadOption<cairn::partial_t> &&
              cairn::LoadOption<cairn::rename> && cairn::LoadOption<cairn::convert> &&
              cairn::LoadOption<cairn::pad> && cairn::LoadOption<cairn::cut>);
static_assert(cairn::StateLoadOption<cairn::only> && cairn::StateLoadOption<cairn::partial_t> &&
              cairn::StateLoadOption<cairn::pad> && cairn::StateLoadOption<cairn::cut> &&
              !cairn::StateLoadOption<least_option> && !cairn::StateLoadOption<cairn::convert>);

namespace {

cairn::checkpointer_options quiet() {
  return {.timeout = std::chrono::seconds(60), .peer_timeout = std::chrono::seconds(60), .quiet = true};
}
std::vector<float> floats(std::size_t count, float seed = 0) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), seed);
  return values;
}
/// A checkpoint of step 1 with whole tensors of one dimension.
template <class T>
cairn::memory_store saved(std::vector<std::pair<std::string, std::vector<T>>> tensors) {
  cairn::memory_store store;
  cairn::state_dict state;
  for (auto& [name, values] : tensors)
    state.tensor(name, values.data(), {static_cast<std::int64_t>(values.size())});
  cairn::checkpointer ckpt{store, quiet()};
  (void)ckpt.save(state, 1);
  ckpt.close();
  return store;
}
/// What a tensor of From becomes in one of To.
template <class To, class From>
std::vector<To> converted(std::vector<From> values, const cairn::convert& how) {
  const auto store = saved<From>({{"x", values}});
  std::vector<To> read(values.size());
  cairn::state_dict state;
  state.tensor("x", read, {static_cast<std::int64_t>(read.size())});
  cairn::checkpointer ckpt{store, quiet()};
  const auto report = ckpt.load(state, 1, how);
  CHECK(report.converted.size() == 1);
  return read;
}
template <class T>
std::vector<unsigned> bits_of(const std::vector<T>& values) {
  std::vector<unsigned> bits;
  for (const auto& v : values) bits.push_back(v.bits);
  return bits;
}

TEST_CASE("items are found under other names, the first one that is there") {
  const auto store = saved<float>({{"model.layers.0.attn.w", floats(4, 1)},
                                   {"model.layers.1.attn.w", floats(4, 2)},
                                   {"wte.weight", floats(3, 7)},
                                   {"same", floats(2, 9)}});
  std::vector<float> a(4), b(4), head(3), wte(3), same(2);
  cairn::state_dict state;
  state.tensor("blocks.0.w", a, {4});
  state.tensor("blocks.1.w", b, {4});
  state.tensor("head", head, {3});
  state.tensor("wte", wte, {3});
  state.tensor("same", same, {2});
  cairn::checkpointer ckpt{store, quiet()};
  const cairn::rename names{{"model.*.attn.w", "none.*.w"},
                            {"model.layers.*.attn.w", "blocks.*.w"},
                            {{"lm_head.weight", "wte.weight"}, "head"},
                            {"wte.weight", "wte"}};
  const auto report = ckpt.load(state, 1, names);
  CHECK(a == floats(4, 1));
  CHECK(b == floats(4, 2));
  CHECK(head == floats(3, 7));
  CHECK(wte == floats(3, 7));
  CHECK(same == floats(2, 9));
  CHECK(report.renamed == std::vector<std::string>{"blocks.0.w: model.layers.0.attn.w",
                                                   "blocks.1.w: model.layers.1.attn.w", "head: wte.weight",
                                                   "wte: wte.weight"});
  CHECK(report.missing.empty());
  // What no rule finds is missing, as without them; what they took is not unexpected.
  const auto missing = failure_of([&] {
    (void)ckpt.load(state, 1, cairn::rename{{"model.layers.*.attn.w", "blocks.*.w"}});
  });
  CHECK(missing.id() == error_id::plan_missing_item);
  // Two options are two sets of rules, the first one first.
  (void)ckpt.load(state, 1, cairn::rename{{"model.layers.*.attn.w", "blocks.*.w"}}, cairn::only{"blocks.*"});
  (void)ckpt.load(state, 1, cairn::rename{{"wte.*", "wt*"}}, cairn::partial);
  CHECK(failure_of([] { (void)cairn::rename{{"a.*", "b"}}; }).id() == error_id::usage_bad_option);
  CHECK(failure_of([] {
          (void)cairn::rename(std::vector<cairn::rename_rule>{{std::vector<std::string>{}, "b"}});
        }).id() == error_id::usage_bad_option);
}

TEST_CASE("what a star stands for is the same on both sides, several in order") {
  const auto store = saved<float>({{"a.1.b.2.c", floats(1, 3)}, {"x", floats(1, 4)}});
  std::vector<float> read(1);
  const auto loads = [&](const char* stored, const char* name, const char* in_state) {
    read.assign(1, 0);
    cairn::state_dict state;
    state.tensor(in_state, read, {1});
    cairn::checkpointer ckpt{store, quiet()};
    (void)ckpt.load(state, 1, cairn::rename{{stored, name}}, cairn::partial);
    return read[0] == 3;
  };
  CHECK(loads("a.*.b.*.c", "*/*", "1/2"));
  CHECK(loads("a.*.b.*.c", "in.*.of.*.end", "in.1.of.2.end"));
  CHECK(!loads("a.*.b.*.c", "in.*.of.*.end", "in.2.of.1.end"));
  CHECK(loads("*.b.2.c", "*", "a.1"));
  CHECK(loads("a*", "z*", "z.1.b.2.c"));
  CHECK(!loads("a*", "z*c", "z.1.b.2.d"));
  CHECK(loads("a.1.b.2.c", "w", "w"));
}

TEST_CASE("dtypes are converted where it is asked for, and nowhere else") {
  const auto store = saved<float>({{"x", {1.5f, -2, 70000, 1e-30f}}, {"y", {1}}});
  std::vector<cairn::bf16> x(4);
  std::vector<float> y(1);
  cairn::state_dict state;
  state.tensor("x", x, {4});
  state.tensor("y", y, {1});
  cairn::checkpointer ckpt{store, quiet()};
  const auto refused = failure_of([&] { (void)ckpt.load(state, 1); });
  CHECK(refused.id() == error_id::plan_dtype_mismatch);
  CHECK(std::string(refused.what()).find("cairn::convert") != std::string::npos);
  CHECK(failure_of([&] { (void)ckpt.load(state, 1, cairn::convert{"y"}); }).id() ==
        error_id::plan_dtype_mismatch);
  const auto report = ckpt.load(state, 1, cairn::convert{"x"});
  CHECK(report.converted == std::vector<std::string>{"x: F32 to BF16"});
  CHECK(bits_of(x) == std::vector<unsigned>{0x3fc0, 0xc000, 0x4789, 0x0da2});
  // Nothing to do, nothing told.
  CHECK(ckpt.load(state, 1, cairn::convert{"y"}, cairn::partial).converted.empty());
  std::vector<std::int32_t> whole(4);
  cairn::state_dict integers;
  integers.tensor("x", whole, {4});
  CHECK(failure_of([&] { (void)ckpt.load(integers, 1, cairn::convert{}, cairn::only{"x"}); }).id() ==
        error_id::plan_no_cast);
}

TEST_CASE("numbers that a dtype has no room for are infinite, or the largest that it has") {
  const auto infinity = std::numeric_limits<float>::infinity();
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  const cairn::convert largest(cairn::overflow::largest);
  CHECK(bits_of(converted<cairn::f16, float>({65504, 65520, -1e9f, infinity, 0.5f}, cairn::convert{})) ==
        std::vector<unsigned>{0x7bff, 0x7c00, 0xfc00, 0x7c00, 0x3800});
  CHECK(bits_of(converted<cairn::f16, float>({65504, 65520, -1e9f, infinity, 0.5f}, largest)) ==
        std::vector<unsigned>{0x7bff, 0x7bff, 0xfbff, 0x7c00, 0x3800});
  CHECK(bits_of(converted<cairn::f16, float>({nan}, largest))[0] % 0x8000 > 0x7c00);
  CHECK(converted<float, double>({1e300, -1e300, 0.1}, largest) ==
        std::vector<float>{std::numeric_limits<float>::max(), -std::numeric_limits<float>::max(), 0.1f});
  CHECK(converted<double, float>({0.1f, infinity}, largest) ==
        std::vector<double>{static_cast<double>(0.1f), std::numeric_limits<double>::infinity()});
  // F8: 448 and 57344 are the largest; half a unit more is as far from the next, which is even or none.
  CHECK(bits_of(converted<cairn::f8_e4m3, float>(
            {0, 1, 448, 464, 465, -1000, 0x1p-9f, 0x1p-10f, 0x1.8p-10f, 17}, cairn::convert{})) ==
        std::vector<unsigned>{0, 0x38, 0x7e, 0x7e, 0x7f, 0xff, 1, 0, 1, 0x58});
  CHECK(bits_of(converted<cairn::f8_e4m3, float>({465, -1000, infinity}, largest)) ==
        std::vector<unsigned>{0x7e, 0xfe, 0x7e});
  CHECK(bits_of(converted<cairn::f8_e5m2, float>({1, 57344, 61439, 61440, -infinity, 0x1p-16f},
                                                 cairn::convert{})) ==
        std::vector<unsigned>{0x3c, 0x7b, 0x7b, 0x7c, 0xfc, 1});
  CHECK(bits_of(converted<cairn::f8_e5m2, float>({61440, -infinity}, largest)) ==
        std::vector<unsigned>{0x7b, 0xfc});
  // What was stored as an infinity, as masks are, is one wherever there are any.
  CHECK(converted<float, cairn::bf16>({{0xff80}, {0x7f80}}, largest) ==
        std::vector<float>{-infinity, infinity});
  CHECK(bits_of(converted<cairn::bf16, float>({-infinity, std::numeric_limits<float>::max()}, largest)) ==
        std::vector<unsigned>{0xff80, 0x7f7f});
  CHECK(converted<float, double>({-std::numeric_limits<double>::infinity(), -1e300}, largest) ==
        std::vector<float>{-infinity, -std::numeric_limits<float>::max()});
  // Every code that is a number is itself after a way to floats and back.
  std::vector<cairn::f8_e4m3> small;
  std::vector<cairn::f8_e5m2> other;
  for (unsigned code = 0; code < 256; ++code) {
    if ((code & 0x7f) != 0x7f) small.push_back({static_cast<std::uint8_t>(code)});
    if ((code & 0x7f) <= 0x7c) other.push_back({static_cast<std::uint8_t>(code)});
  }
  CHECK(bits_of(converted<cairn::f8_e4m3>(converted<float>(small, cairn::convert{}), cairn::convert{})) ==
        bits_of(small));
  CHECK(bits_of(converted<cairn::f8_e5m2>(converted<cairn::f16>(other, cairn::convert{}),
                                          cairn::convert{})) == bits_of(other));
  CHECK(std::isnan(converted<float, cairn::f8_e4m3>({{0x7f}}, cairn::convert{})[0]));
}

TEST_CASE("a long tensor is converted in the pass that delivers it") {
  const auto values = floats(700'001);
  const auto store = saved<float>({{"x", values}});
  std::vector<double> read(values.size());
  cairn::state_dict state;
  state.tensor("x", read, {700'001});
  cairn::checkpointer ckpt{store, quiet()};
  (void)ckpt.load(state, 1, cairn::convert{});
  for (std::size_t i = 0; i < read.size(); ++i)
    if (read[i] != static_cast<double>(values[i])) FAIL("element " << i << " is another one");
}

TEST_CASE("ranks that share what they read convert what they get") {
  const auto values = floats(600'000);
  const auto store = saved<float>({{"x", values}});
  for (const auto sharing : {cairn::read_sharing::on, cairn::read_sharing::off}) {
    constexpr int world = 3;
    const cairn::thread_group group(world);
    const auto wrong = cairn_test::said_on_ranks(world, [&](int rank) {
      std::vector<double> read(values.size());
      cairn::state_dict state;
      state.tensor("y", read, {600'000});
      cairn::checkpointer ckpt{store, group.communicator(rank), sharing, quiet()};
      const auto report = ckpt.load(state, 1, cairn::rename{{"x", "y"}}, cairn::convert{});
      if (report.renamed.size() != 1 || report.converted.size() != 1) throw std::runtime_error("report");
      for (std::size_t i = 0; i < read.size(); ++i)
        if (read[i] != static_cast<double>(values[i])) throw std::runtime_error("elements");
      ckpt.close();
    });
    for (const auto& text : wrong) CHECK(text == "");
  }
}

/// A vocabulary of 10 words of 3 numbers, saved as step 1.
cairn::memory_store vocabulary() {
  cairn::memory_store store;
  auto words = floats(30);
  cairn::state_dict state;
  state.tensor("wte", words, {10, 3});
  cairn::checkpointer ckpt{store, quiet()};
  (void)ckpt.save(state, 1);
  ckpt.close();
  return store;
}

TEST_CASE("a vocabulary is padded or cut, by any number of ranks") {
  const auto store = vocabulary();
  for (const int world : {1, 2, 3, 7}) {
    for (const std::int64_t rows : {8, 10, 14, 21}) {
      CAPTURE(world);
      CAPTURE(rows);
      std::vector<float> all(static_cast<std::size_t>(rows * 3), -5);
      const cairn::thread_group group(world);
      const auto wrong = cairn_test::said_on_ranks(world, [&](int rank) {
        const auto begin = rows * rank / world;
        const auto size = rows * (rank + 1) / world - begin;
        cairn::state_dict state;
        state.tensor("wte", all.data() + begin * 3, cairn::shard{{rows, 3}, {begin, 0}, {size, 3}});
        cairn::checkpointer ckpt{store, group.communicator(rank), quiet()};
        const auto report =
            ckpt.load(state, 1, cairn::pad{"w*", 0, 0.25}, cairn::cut{"w*", 0}, cairn::convert{});
        if (report.resized.size() != (rows == 10 ? 0u : 1u)) throw std::runtime_error("report");
        ckpt.close();
      });
      for (const auto& text : wrong) CHECK(text == "");
      for (std::size_t i = 0; i < all.size(); ++i)
        if (all[i] != (i < 30 ? static_cast<float>(i) : 0.25f)) FAIL("element " << i << " is " << all[i]);
    }
  }
}

TEST_CASE("what is padded and how is said for each dimension") {
  const auto store = vocabulary();
  const auto load = [&](const extents& shape, auto... options) {
    std::vector<float> all(static_cast<std::size_t>(shape.volume()), -5);
    cairn::state_dict state;
    state.tensor("wte", all, shape);
    cairn::checkpointer ckpt{store, quiet()};
    (void)ckpt.load(state, 1, options...);
    return all;
  };
  const auto refused = [&](const extents& shape, auto... options) {
    return failure_of([&] { (void)load(shape, options...); }).id() == error_id::plan_shape_mismatch;
  };
  CHECK(refused({12, 3}));
  CHECK(refused({12, 3}, cairn::cut{"wte", 0}));
  CHECK(refused({8, 3}, cairn::pad{"wte", 0}));
  CHECK(refused({12, 3}, cairn::pad{"wte", 1}));
  CHECK(refused({12, 3}, cairn::pad{"other", 0}));
  CHECK(refused({12, 4}, cairn::pad{"wte", 0}));
  CHECK(refused({30}, cairn::pad{"wte", 0}));
  const auto kept = load({12, 3}, cairn::pad{"wte", 0, cairn::keep_rest});
  CHECK((kept[29] == 29 && kept[30] == -5 && kept[35] == -5));
  const auto both = load({12, 4}, cairn::pad{"wte", 0}, cairn::pad{"wte", 1});
  for (std::int64_t row = 0; row < 12; ++row)
    for (std::int64_t column = 0; column < 4; ++column)
      CHECK(both[static_cast<std::size_t>(row * 4 + column)] ==
            (row < 10 && column < 3 ? static_cast<float>(row * 3 + column) : 0.0f));
  const auto narrow = load({12, 2}, cairn::pad{"wte", 0}, cairn::cut{"wte", 1});
  CHECK((narrow[0] == 0 && narrow[1] == 1 && narrow[2] == 3 && narrow[19] == 28 && narrow[20] == 0));
  CHECK(failure_of([] { (void)cairn::pad{"wte", -1}; }).id() == error_id::usage_bad_option);
  CHECK(failure_of([] { (void)cairn::cut{"wte", 8}; }).id() == error_id::usage_bad_option);
}

TEST_CASE("each dimension is filled as its own rule says") {
  cairn::memory_store store;
  auto values = floats(4, 5);
  cairn::state_dict saved_state;
  saved_state.tensor("wte", values, {2, 2});
  cairn::checkpointer ckpt{store, quiet()};
  (void)ckpt.save(saved_state, 1).wait();
  std::vector<float> read(12, -5);
  cairn::state_dict state;
  state.tensor("wte", read, {3, 4});
  (void)ckpt.load(state, 1, cairn::pad{"*", 0, 1.0}, cairn::pad{"wte", 1});
  CHECK(read == std::vector<float>{5, 6, 0, 0, 7, 8, 0, 0, 1, 1, 1, 1});
  read.assign(12, -5);
  (void)ckpt.load(state, 1, cairn::pad{"wte", 0, cairn::keep_rest}, cairn::pad{"wte", 1, 0.5});
  CHECK(read == std::vector<float>{5, 6, 0.5f, 0.5f, 7, 8, 0.5f, 0.5f, -5, -5, -5, -5});
}

TEST_CASE("a number that a floating-point dtype does not have is refused, not made infinite") {
  const auto store = saved<float>({{"x", {1, 2}}});
  cairn::checkpointer ckpt{store, quiet()};
  const auto fills = [&](auto element, double value) {
    std::vector<decltype(element)> read(3);
    cairn::state_dict state;
    state.tensor("x", read, {3});
    try {
      (void)ckpt.load(state, 1, cairn::convert{}, cairn::pad{"x", 0, value});
      return true;
    } catch (const cairn::error& e) {
      CHECK(e.id() == error_id::usage_bad_option);
      return false;
    }
  };
  CHECK(fills(cairn::f16{}, 60000));
  CHECK(!fills(cairn::f16{}, 1e6));
  CHECK(fills(cairn::f16{}, std::numeric_limits<double>::infinity()));
  CHECK(fills(cairn::f8_e4m3{}, 448));
  CHECK(!fills(cairn::f8_e4m3{}, 1000));
  CHECK(!fills(float{}, 1e300));
  CHECK(fills(double{}, 1e300));
}

/// Has floats as integers in checkpoints, under other names.
struct integer_planner : cairn::basic_planner<integer_planner> {
  [[nodiscard]] std::optional<std::string> stored_name(const cairn::state_entry& e) const {
    return "model." + e.name;
  }
  [[nodiscard]] dtype stored_dtype(const cairn::state_entry& e) const {
    return e.type == dtype::f32 ? dtype::i32 : e.type;
  }
  [[nodiscard]] cairn::cast_function cast_between(dtype from, dtype to) const {
    if (from != dtype::i32 || to != dtype::f32) return nullptr;
    return [](const std::byte* in, std::byte* out, std::size_t elements) noexcept {
      for (std::size_t i = 0; i < elements; ++i) {
        std::int32_t whole = 0;
        std::memcpy(&whole, in + i * sizeof whole, sizeof whole);
        const auto made = static_cast<float>(whole);
        std::memcpy(out + i * sizeof made, &made, sizeof made);
      }
    };
  }
};

TEST_CASE("a planner's own names and conversions stay beside the options") {
  const auto store = saved<std::int32_t>({{"model.x", {1, -2, 3}}, {"old.y", {7}}});
  std::vector<float> x(3), y(1);
  cairn::state_dict state;
  state.tensor("x", x, {3});
  state.tensor("y", y, {1});
  cairn::checkpointer ckpt{store, integer_planner{}, quiet()};
  (void)ckpt.load(state, 1, cairn::convert{}, cairn::rename{{"old.y", "y"}});
  CHECK(x == std::vector<float>{1, -2, 3});
  CHECK(y == std::vector<float>{7});
}

TEST_CASE("a rank whose rest cannot be filled ends the load on all ranks") {
  const auto store = saved<std::uint8_t>({{"x", {1, 2}}});
  const cairn::thread_group group(2);
  const auto wrong = cairn_test::said_on_ranks(2, [&](int rank) {
    // Only the second rank has what lies behind the stored part.
    std::vector<std::uint8_t> read(2);
    cairn::state_dict state;
    state.tensor("x", read.data(), cairn::shard{{4}, {2 * rank}, {2}});
    cairn::checkpointer ckpt{store, group.communicator(rank), cairn::read_sharing::on, quiet()};
    (void)ckpt.load(state, 1, cairn::pad{"x", 0, 256.0});
  });
  for (const auto& text : wrong) CHECK(text.find("usage.bad_option") != std::string::npos);
}

TEST_CASE("a rest is filled with a number that its dtype has") {
  const auto store = saved<std::uint8_t>({{"x", {1, 2}}});
  std::vector<std::uint8_t> read(4, 9);
  cairn::state_dict state;
  state.tensor("x", read, {4});
  cairn::checkpointer ckpt{store, quiet()};
  (void)ckpt.load(state, 1, cairn::pad{"x", 0, 200});
  CHECK(read == std::vector<std::uint8_t>{1, 2, 200, 200});
  for (const double value : {256.0, -1.0, 0.5, std::numeric_limits<double>::quiet_NaN()})
    CHECK(failure_of([&] {
            (void)ckpt.load(state, 1, cairn::pad{"x", 0, value});
          }).id() == error_id::usage_bad_option);
}

TEST_CASE("what does not fit is told as that alone, not as renamed, converted or resized") {
  const auto store = saved<float>({{"w", floats(6)}, {"y", floats(2)}});
  std::vector<cairn::bf16> x(4);
  std::vector<cairn::bf16> y(2);
  cairn::state_dict state;
  state.tensor("x", x, {4});
  state.tensor("z", y, {2});
  cairn::checkpointer ckpt{store, quiet()};
  const auto report =
      ckpt.load(state, 1, cairn::partial, cairn::convert{}, cairn::rename{{"w", "x"}, {"y", "z"}});
  CHECK(report.mismatched.size() == 1);
  CHECK(report.renamed == std::vector<std::string>{"z: y"});
  CHECK(report.converted == std::vector<std::string>{"z: F32 to BF16"});

  // The checkpoint has nothing of its own for a second rank.
  const cairn::memory_store of_one;
  std::vector<float> own(2);
  cairn::state_dict saving;
  saving.tensor("own", own, {2}, cairn::per_rank);
  (void)cairn::checkpointer{of_one, quiet()}.save(saving, 1).wait();
  cairn::thread_group group{2};
  cairn_test::on_all_ranks(2, [&](int rank) {
    std::vector<cairn::bf16> mine(2);
    cairn::state_dict loading;
    loading.tensor("mine", mine, {2}, cairn::per_rank);
    cairn::checkpointer of_rank{of_one, quiet(), group.communicator(rank)};
    const auto told =
        of_rank.load(loading, 1, cairn::partial, cairn::convert{}, cairn::rename{{"own", "mine"}});
    const std::size_t loaded = rank == 0 ? 1 : 0;
    if (told.renamed.size() != loaded || told.converted.size() != loaded || told.missing.size() != 1 - loaded)
      throw std::runtime_error("report");
  });
}

TEST_CASE("a rest in pinned memory is filled as in any other of the host") {
  const auto store = saved<float>({{"x", floats(3)}});
  std::vector<float> x(5, -5);
  auto view = cairn::contiguous_view(x.data(), dtype::f32, {5});
  view.space = cairn::memory_space::pinned;
  cairn::state_dict state;
  state.tensor("x", view, extents{5});
  cairn::checkpointer ckpt{store, quiet()};
  (void)ckpt.load(state, 1, cairn::pad{"x", 0, 7});
  CHECK(x == std::vector<float>{0, 1, 2, 7, 7});
}

TEST_CASE("options are for one load: what is saved has the state's names and dtypes") {
  const auto store = saved<float>({{"old.x", floats(5)}});
  std::vector<cairn::f16> x(6);
  cairn::state_dict state;
  state.tensor("new.x", x, {6});
  cairn::checkpointer ckpt{store, quiet()};
  (void)ckpt.load(state, 1, cairn::rename{{"old.*", "new.*"}}, cairn::convert{}, cairn::pad{"*", 0, 1});
  const auto first = x;
  CHECK(bits_of(first) == std::vector<unsigned>{0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x3c00});
  (void)ckpt.save(state, 2).wait();
  x.assign(6, {});
  CHECK(ckpt.resume(state) == 2);
  CHECK(bits_of(x) == bits_of(first));
  // The plan of a load without options is not that of one with them.
  CHECK(failure_of([&] { (void)ckpt.load(state, 1); }).id() == error_id::plan_missing_item);
}

TEST_CASE("what a checkpoint holds, and one item of it, without a state") {
  cairn::memory_store store;
  auto w = floats(6, 1);
  double rate = 0.5;
  bool mask[3] = {true, false, true};
  std::string blob = "opaque";
  {
    cairn::state_dict state;
    state.tensor("w", w, {2, 3});
    state.value("rate", rate);
    state.tensor("mask", mask, {3});
    state.bytes("blob", blob);
    cairn::checkpointer ckpt{store, quiet()};
    (void)ckpt.save(state, 4);
    ckpt.close();
  }
  cairn::checkpointer ckpt{store, quiet()};
  const auto items = ckpt.items(4);
  REQUIRE(items.size() == 4);
  CHECK(items.find("w")->global == extents{2, 3});
  CHECK(items.find("rate")->kind == cairn::item_kind::value);
  CHECK(ckpt.read<float>("w", 4) == w);
  CHECK(ckpt.read<double>("rate", 4) == std::vector<double>{0.5});
  CHECK(ckpt.read<std::uint8_t>("mask", 4) == std::vector<std::uint8_t>{1, 0, 1});
  const auto opaque = ckpt.read<std::uint8_t>("blob", 4);
  CHECK(std::string(opaque.begin(), opaque.end()) == blob);
  CHECK(ckpt.read<float>("weight", 4, cairn::rename{{"w", "weight"}}) == w);
  CHECK(ckpt.read<double>("w", 4, cairn::convert{}) == std::vector<double>{1, 2, 3, 4, 5, 6});
  CHECK(failure_of([&] { (void)ckpt.read<double>("w", 4); }).id() == error_id::plan_dtype_mismatch);
  CHECK(failure_of([&] { (void)ckpt.read<std::int32_t>("w", 4, cairn::convert{}); }).id() ==
        error_id::plan_no_cast);
  CHECK(failure_of([&] { (void)ckpt.read<float>("blob", 4, cairn::convert{}); }).id() ==
        error_id::plan_dtype_mismatch);
  const auto unknown = failure_of([&] { (void)ckpt.read<float>("x", 4); });
  CHECK(unknown.id() == error_id::usage_unknown_name);
  CHECK(failure_of([&] { (void)ckpt.items(5); }).id() == error_id::storage_not_committed);
  CHECK(failure_of([&] { (void)ckpt.read<float>("w", 5); }).id() == error_id::storage_not_committed);
}

TEST_CASE("reading an item asks for no memory that only a manifest claims") {
  auto store = saved<float>({{"w", floats(6)}});
  const auto key = cairn::manifest_key(1);
  auto m = cairn::open_manifest(store.read_all(key, 1 << 20).value(), key);
  auto item = std::as_const(m.content.items)[0];
  item.global = {std::int64_t{1} << 44};  // 64 TiB
  item.chunks = {{{{0}, item.global}, 0}};
  cairn::stored_items claimed;
  claimed.push_back(item);
  m.content.items = claimed;
  store.remove(key);
  REQUIRE(store.publish_new(key, cairn::encode_manifest(m)));
  cairn::checkpointer ckpt{store, quiet()};
  CHECK(ckpt.items(1).find("w")->global == extents{std::int64_t{1} << 44});
  CHECK(failure_of([&] { (void)ckpt.read<float>("w", 1); }).id() == error_id::corrupt_bad_value);
}

TEST_CASE("each rank reads a whole item, or its own of those that each rank has") {
  cairn::memory_store store;
  const auto run = [&](int world, auto body) {
    const cairn::thread_group group(world);
    const auto wrong = cairn_test::said_on_ranks(world, [&](int rank) {
      cairn::checkpointer ckpt{store, group.communicator(rank), quiet()};
      body(ckpt, rank);
      ckpt.close();
    });
    return wrong;
  };
  const auto none = [](int world) { return std::vector<std::string>(static_cast<std::size_t>(world)); };
  CHECK(run(3, [&](auto& ckpt, int rank) {
          auto rows = floats(4, static_cast<float>(4 * rank));
          std::vector<std::int32_t> own{rank, rank + 10};
          cairn::state_dict state;
          state.tensor("w", rows, cairn::shard{{6, 2}, {2 * rank, 0}});
          state.tensor("own", own, {2}, cairn::per_rank);
          (void)ckpt.save(state, 1).wait();
        }) == none(3));
  CHECK(run(2, [&](auto& ckpt, int rank) {
          if (ckpt.items(1).size() != 2) throw std::runtime_error("items");
          if (ckpt.template read<float>("w", 1) != floats(12)) throw std::runtime_error("w");
          if (ckpt.template read<std::int32_t>("own", 1) != std::vector<std::int32_t>{rank, rank + 10})
            throw std::runtime_error("own");
        }) == none(2));
  // A rank that has none of its own ends the call on all of them.
  for (const auto& text : run(4, [&](auto& ckpt, int) { (void)ckpt.template read<std::int32_t>("own", 1); }))
    CHECK(text.find("plan.missing_item") != std::string::npos);
}

/// A checkpoint of step 1 of one rank: "w" [4], "old" and "rate", of this version.
cairn::memory_store saved_of_version(std::int64_t version) {
  cairn::memory_store store;
  auto w = floats(4, 1), old = floats(1);
  double rate = 50;
  cairn::state_dict state;
  state.version(version);
  state.tensor("w", w, {4});
  state.tensor("old", old, {1});
  state.value("rate", rate);
  cairn::checkpointer ckpt{store, quiet()};
  (void)ckpt.save(state, 1);
  ckpt.close();
  return store;
}

TEST_CASE("a hook migrates a checkpoint of an older version, on one rank and on two") {
  for (const std::int64_t from : {0, 1}) {
    const auto store = saved_of_version(from);
    for (const int ranks : {1, 2}) {
      cairn::thread_group group{ranks};
      std::vector<std::thread> threads;
      std::vector<std::string> wrong(static_cast<std::size_t>(ranks));
      for (int r = 0; r < ranks; ++r)
        threads.emplace_back([&, r] {
          auto& told = wrong[static_cast<std::size_t>(r)];
          const auto expect = [&](bool right, const char* what) {
            if (!right) told += std::string(what) + "; ";
          };
          try {
            const std::int64_t rows = 6 / ranks;
            std::vector<float> weight(static_cast<std::size_t>(rows)), average(6, -1);
            double rate = 0;
            int asked = 0;
            cairn::state_dict state;
            state.tensor("weight", weight, cairn::shard{{6}, {r * rows}});
            state.tensor("average", average, {6});
            state.value("rate", rate);
            state.version(2);
            state.migrate([&](cairn::migration& m) {
              ++asked;
              expect(m.from() == from && m.to() == 2 && m.items().find("w") != nullptr, "what it is told");
              m.use(cairn::rename{{"w", "weight"}}, cairn::pad{"weight", 0, -7});
              m.added("aver*");
              m.dropped("old");
              m.after([&] { rate /= 100; });
              m.after([&] { average.assign(6, weight[0]); });
            });
            cairn::checkpointer ckpt{store, group.communicator(r), quiet()};
            const auto report = ckpt.load(state, 1);
            expect(asked == 1 && report.migrated_from == from, "the hook");
            expect(report.renamed.size() == 1 && report.resized.size() == 1 && report.unexpected.empty() &&
                       report.missing == std::vector<std::string>{"average"},
                   "the report");
            const std::vector<float> whole{1, 2, 3, 4, -7, -7};
            expect(std::equal(weight.begin(), weight.end(), whole.begin() + r * rows), "the weights");
            expect(rate == 0.5 && average[5] == weight[0], "what is computed");
            // A resume does the same, and what it saves needs none.
            expect(ckpt.resume(state) == 1 && asked == 2, "the resume");
            ckpt.save(state, 2).wait();
            expect(ckpt.load(state, 2).migrated_from == -1 && asked == 2, "a load of the same version");
            ckpt.remove(2);
          } catch (const std::exception& e) {
            told += e.what();
          }
        });
      for (auto& t : threads) t.join();
      for (const auto& w : wrong) CHECK(w == "");
    }
  }
}

TEST_CASE("a version that does not fit is refused, and nothing is passed over for it") {
  const auto store = saved_of_version(3);
  auto w = floats(4), old = floats(1);
  double rate = 0;
  cairn::state_dict state;
  state.tensor("w", w, {4});
  state.tensor("old", old, {1});
  state.value("rate", rate);
  cairn::checkpointer ckpt{store, quiet()};
  (void)ckpt.load(state, 1);  // of no version: it asks for none
  CHECK(w == floats(4, 1));
  const auto refused = [&](std::int64_t version) {
    state.version(version);
    const auto of_load = failure_of([&] { (void)ckpt.load(state, 1); });
    const auto of_resume = failure_of([&] { (void)ckpt.resume(state); });
    CHECK(of_load.id() == error_id::plan_state_version);
    CHECK(of_resume.id() == error_id::plan_state_version);
    CHECK(ckpt.list() == std::vector<std::int64_t>{1});
    return std::string(of_load.what());
  };
  CHECK(refused(2).find("a newer version") != std::string::npos);
  CHECK(refused(4).find("state.migrate(hook)") != std::string::npos);
  state.migrate([](cairn::migration&) { throw std::runtime_error("no way from there"); });
  CHECK_THROWS_WITH_AS((void)ckpt.load(state, 1), "no way from there", std::runtime_error);
  CHECK(refused(2).find("a newer version") != std::string::npos);
  state.version(4);
  state.migrate([](cairn::migration& m) { m.after([] { throw std::runtime_error("it does not add up"); }); });
  CHECK_THROWS_WITH_AS((void)ckpt.load(state, 1), "it does not add up", std::runtime_error);
  state.migrate([](cairn::migration&) {});
  CHECK(ckpt.load(state, 1).migrated_from == 3);
  CHECK_THROWS_AS(state.version(-1), cairn::usage_error);
}

}  // namespace
