// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cairn/interop/dlpack.hpp>
#include <cairn/model/annotations.hpp>
#include <cairn/model/cast.hpp>
#include <cairn/model/chunk_codec.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/callback.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/sorted_map.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <support/planner_conformance.hpp>
#include <utility>
#include <vector>

using cairn::chunk;
using cairn::dtype;
using cairn::error_id;
using cairn::extents;
using cairn_test::failure_of;

namespace {
constexpr auto most = std::numeric_limits<std::int64_t>::max();

enum class mode : std::uint16_t { cold, warm };

struct layer {
  std::vector<float> weight = std::vector<float>(6, 1);
  std::vector<float> bias = std::vector<float>(2, 2);
  void register_state(cairn::state_scope& scope) {
    scope.tensor("weight", weight, {2, 3});
    scope.tensor("bias", bias, {2}, cairn::optional);
  }
};
struct block {
  layer first, second;
  std::int64_t calls = 7;
  std::string notes = "n";
  void register_state(cairn::state_scope& scope) {
    scope.object("first", first);
    scope.object("second", second);
    scope.value("calls", calls);
    scope.bytes("notes", notes, cairn::per_rank);
  }
};
struct foreign {
  double x = 1;
};
struct foreign_element {
  std::uint16_t bits;
};
}  // namespace

template <>
struct cairn::state_of<foreign> {
  static void register_state(cairn::state_scope& scope, foreign& f) { scope.value("x", f.x); }
};
template <>
struct cairn::dtype_for<foreign_element> {
  static constexpr cairn::dtype value = cairn::dtype::bf16;
};

TEST_CASE("extents") {
  CHECK(extents{}.volume() == 1);
  CHECK(extents{2, 3u, 4l}.volume() == 24);
  CHECK(extents{2, 3}.rank() == 2);
  CHECK(cairn::to_string(extents{2, 3}) == "[2, 3]");
  CHECK(extents{2, 3} < extents{2, 4});
  CHECK(!(extents{2, 3} == extents{2, 3, 1}));
  CHECK(extents{most, 1}.checked_volume() == most);
  CHECK(!extents{most, 2}.checked_volume());
  CHECK(!extents{std::int64_t{1} << 32, std::int64_t{1} << 32}.checked_volume());
  CHECK(extents{most, most, 0}.checked_volume() == 0);
  CHECK(extents{0, most, most}.checked_volume() == 0);
  CHECK(failure_of([] { (void)extents{-1}; }).id() == error_id::usage_bad_shape);
  CHECK(failure_of([] { (void)extents{~std::uint64_t{0}}; }).id() == error_id::usage_bad_shape);
  std::vector<std::int64_t> nine(9, 1);
  CHECK(failure_of([&] { (void)extents(std::span<const std::int64_t>(nine)); }).id() ==
        error_id::usage_bad_shape);
  CHECK(cairn::checked_bytes(dtype::f32, {3}) == 12u);
  CHECK(!cairn::checked_bytes(dtype::f64, {most / 8}));
  CHECK(!cairn::checked_bytes(dtype::f4, {3}));
  CHECK(cairn::checked_bytes(dtype::f4, {4}) == 2u);
  CHECK(!cairn::checked_bytes(dtype::f6_e2m3, {6}));
  CHECK(cairn::checked_bytes(dtype::f6_e3m2, {8}) == 6u);
}

TEST_CASE("boxes: inside and intersect") {
  CHECK(cairn::inside({{0, 0}, {2, 2}}, {2, 2}));
  CHECK(!cairn::inside({{1, 0}, {2, 2}}, {2, 2}));
  CHECK(!cairn::inside({{0}, {2}}, {2, 2}));
  CHECK(!cairn::inside({{most, 0}, {most, 1}}, {2, 2}));
  CHECK(cairn::inside({{2, 0}, {0, 2}}, {2, 2}));
  CHECK(cairn::intersect({{0, 0}, {3, 3}}, {{2, 1}, {5, 1}}) == chunk{{2, 1}, {1, 1}});
  CHECK(!cairn::intersect({{0}, {2}}, {{2}, {2}}));
  CHECK(!cairn::intersect({{0}, {2}}, {{1}, {0}}));
  CHECK(cairn::intersect({{}, {}}, {{}, {}}) == chunk{{}, {}});
  CHECK(!cairn::intersect({{0}, {2}}, {{0, 0}, {2, 2}}));
}

TEST_CASE("the table of dtypes") {
  std::set<std::string_view> names;
  for (int n = 0; n <= static_cast<int>(cairn::last_dtype); ++n) {
    const auto t = static_cast<dtype>(n);
    names.insert(cairn::name_of(t));
    CHECK(cairn::dtype_from_name(cairn::name_of(t)) == t);
    CHECK(cairn::granule_of(t) * static_cast<std::int64_t>(cairn::bits_of(t)) % 8 == 0);
    CHECK(cairn::bytes_of(t, 8 * cairn::granule_of(t)) * 8 ==
          8 * static_cast<std::uint64_t>(cairn::granule_of(t)) * cairn::bits_of(t));
  }
  CHECK(names.size() == 20);
  CHECK(!cairn::dtype_from_name("F128"));
  CHECK(!cairn::dtype_from_name(""));
  CHECK(cairn::name_of(dtype::bf16) == "BF16");
  CHECK(static_cast<int>(dtype::f4) == 19);
  CHECK(cairn::dtype_v<float> == dtype::f32);
  CHECK(cairn::dtype_v<bool> == dtype::boolean);
  CHECK(cairn::dtype_v<char> == (std::is_signed_v<char> ? dtype::i8 : dtype::u8));
  CHECK(cairn::dtype_v<long long> == dtype::i64);
  CHECK(cairn::dtype_v<std::uint16_t> == dtype::u16);
  CHECK(cairn::dtype_v<mode> == dtype::u16);
  CHECK(cairn::dtype_v<std::byte> == dtype::u8);
  CHECK(cairn::dtype_v<foreign_element> == dtype::bf16);
  static_assert(!cairn::Element<long double> && !cairn::Element<std::string> && !cairn::Element<foreign>);
}

TEST_CASE("boxes_of_range covers each range exactly, in order, with few boxes") {
  const auto element_of = [](const extents& shape, const chunk& b, std::int64_t k) {
    std::int64_t flat = 0;
    std::int64_t stride = 1;
    for (int d = shape.rank() - 1; d >= 0; --d) {
      flat += (b.offsets[d] + k % b.sizes[d]) * stride;
      k /= b.sizes[d];
      stride *= shape[d];
    }
    return flat;
  };
  for (const auto& shape : {extents{}, extents{1}, extents{7}, extents{1, 5}, extents{5, 1}, extents{3, 4},
                            extents{4, 3}, extents{2, 3, 4}, extents{3, 1, 3}, extents{2, 2, 2, 3}}) {
    const auto volume = shape.volume();
    for (std::int64_t begin = 0; begin <= volume; ++begin)
      for (std::int64_t length = 0; begin + length <= volume; ++length) {
        const auto boxes = cairn::boxes_of_range(shape, begin, length);
        std::int64_t next = begin;
        bool in_order = true;
        for (const auto& b : boxes) {
          REQUIRE(cairn::inside(b, shape));
          REQUIRE(b.volume() > 0);
          for (std::int64_t k = 0; k < b.volume(); ++k) in_order &= element_of(shape, b, k) == next++;
        }
        CHECK(in_order);
        CHECK(next == begin + length);
        CHECK(boxes.size() <= static_cast<std::size_t>(std::max(1, 2 * shape.rank() - 1)));
        if (shape.rank() == 2 && length > 0) {
          // A partial first row, whole rows, a partial last row.
          const auto columns = shape[1];
          const auto end = begin + length;
          std::size_t least = 0;
          if (begin / columns == (end - 1) / columns) {
            least = 1;
          } else {
            const auto whole_from = (begin + columns - 1) / columns;
            const auto whole_to = end / columns;
            least = (begin % columns != 0 ? 1u : 0u) + (whole_to > whole_from ? 1u : 0u) +
                    (end % columns != 0 ? 1u : 0u);
          }
          CHECK(boxes.size() == least);
        }
      }
  }
  CHECK(cairn::boxes_of_range({0, 4}, 0, 0).empty());
}

TEST_CASE("for_each_run against a naive walk") {
  std::mt19937_64 random(cairn_test::seed_or(3));
  const auto in = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  std::vector<std::uint16_t> memory(200000);
  std::iota(memory.begin(), memory.end(), std::uint16_t{0});
  for (int round = 0; round < 2000; ++round) {
    const auto rank = static_cast<int>(in(0, 4));
    auto shape = extents::filled(rank, 1);
    for (int d = 0; d < rank; ++d) shape.set(d, in(0, 20) == 0 ? 0 : in(1, 6));
    auto view = cairn::contiguous_view(memory.data() + 100000, dtype::u16, shape);
    const auto kind = in(0, 2);
    for (int d = 0; d < rank; ++d) {
      auto& stride = view.strides[static_cast<std::size_t>(d)];
      if (kind == 1) stride = in(-20, 20);
      if (kind == 2 && d + 1 < rank) stride += in(0, 1) * 5;
    }
    // The naive packed tensor.
    std::vector<std::uint16_t> naive;
    for (std::int64_t k = 0; k < shape.volume(); ++k) {
      std::int64_t rest = k;
      std::int64_t at = 0;
      for (int d = rank - 1; d >= 0; --d) {
        at += rest % shape[d] * view.strides[static_cast<std::size_t>(d)];
        rest /= shape[d];
      }
      naive.push_back(memory[static_cast<std::size_t>(100000 + at)]);
    }
    const auto total = static_cast<std::int64_t>(naive.size());
    const auto begin = in(0, total);
    const auto end = in(begin, total);
    std::vector<std::uint16_t> walked(naive.size());
    std::uint64_t next = static_cast<std::uint64_t>(begin) * 2;
    bool in_order = true;
    cairn::for_each_run(view, static_cast<std::uint64_t>(begin) * 2, static_cast<std::uint64_t>(end) * 2,
                        [&](std::byte* from, std::uint64_t bytes, std::uint64_t at) {
                          in_order &= at == next && bytes > 0;
                          next = at + bytes;
                          std::memcpy(reinterpret_cast<std::byte*>(walked.data()) + at, from, bytes);
                        });
    CHECK(in_order);
    CHECK(next == static_cast<std::uint64_t>(end) * 2);
    CHECK(std::equal(naive.begin() + begin, naive.begin() + end, walked.begin() + begin));
    if (kind == 0) CHECK(view.contiguous());
  }
  // Contiguous memory is one run.
  int runs = 0;
  cairn::for_each_run(cairn::contiguous_view(memory.data(), dtype::u16, {4, 5, 6}), 0, 240,
                      [&](std::byte*, std::uint64_t, std::uint64_t) { ++runs; });
  CHECK(runs == 1);
  const auto part =
      cairn::subview(cairn::contiguous_view(memory.data(), dtype::u16, {10, 10}), {{2, 3}, {2, 4}});
  CHECK(*reinterpret_cast<std::uint16_t*>(part.data) == 23);
  CHECK(!part.contiguous());
  const auto packed =
      cairn::subview(cairn::contiguous_view(memory.data(), dtype::f4, {4, 8}), {{1, 2}, {2, 4}});
  CHECK(packed.data == reinterpret_cast<std::byte*>(memory.data()) + 5);
  std::vector<std::uint64_t> at;
  cairn::for_each_run(packed, 0, packed.bytes(),
                      [&](std::byte*, std::uint64_t bytes, std::uint64_t) { at.push_back(bytes); });
  CHECK(at == std::vector<std::uint64_t>{2, 2});
}

namespace {
template <class To, class From>
To cast_one(From x) {
  To y;
  const auto cast = cairn::find_cast(cairn::dtype_v<From>, cairn::dtype_v<To>);
  REQUIRE((cast != nullptr));
  cast(reinterpret_cast<const std::byte*>(&x), reinterpret_cast<std::byte*>(&y), 1);
  return y;
}
/// The value of a 16-bit float, by its definition.
double value_of(std::uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}
}  // namespace

TEST_CASE("casts of 16-bit types, each of their values") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto b = static_cast<std::uint16_t>(bits);
    const double half = value_of(b, 5);
    const double brain = value_of(b, 8);
    const auto same = [](double x, double y) {
      return (std::isnan(x) && std::isnan(y)) || (x == y && std::signbit(x) == std::signbit(y));
    };
    wrong += !same(cast_one<float>(cairn::f16{b}), half);
    wrong += !same(cast_one<double>(cairn::f16{b}), half);
    wrong += !same(cast_one<float>(cairn::bf16{b}), brain);
    wrong += !same(cast_one<double>(cairn::bf16{b}), brain);
    // And back: nothing is lost.
    if (std::isnan(half))
      wrong += !std::isnan(value_of(cast_one<cairn::f16>(cast_one<float>(cairn::f16{b})).bits, 5));
    else
      wrong += cast_one<cairn::f16>(cast_one<float>(cairn::f16{b})).bits != b;
    if (std::isnan(brain))
      wrong += !std::isnan(value_of(cast_one<cairn::bf16>(cast_one<float>(cairn::bf16{b})).bits, 8));
    else
      wrong += cast_one<cairn::bf16>(cast_one<float>(cairn::bf16{b})).bits != b;
  }
  CHECK(wrong == 0);
}

TEST_CASE("casts to 16-bit types round to nearest, ties to even") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x7fff; ++bits) {
    const auto b = static_cast<std::uint16_t>(bits);
    for (const int exponent_bits : {5, 8}) {
      const double low = value_of(b, exponent_bits);
      const auto above = static_cast<std::uint16_t>(b + 1);
      double high = value_of(above, exponent_bits);
      if (std::isinf(high)) high = low + (low - value_of(static_cast<std::uint16_t>(b - 1), exponent_bits));
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const double middle = low / 2 + high / 2;
      const auto bits_from = [&](double x) {
        const auto f = static_cast<float>(x);
        return exponent_bits == 5 ? cast_one<cairn::f16>(f).bits : cast_one<cairn::bf16>(f).bits;
      };
      const auto tie = static_cast<float>(middle);
      if (static_cast<double>(tie) != middle) continue;
      wrong += bits_from(middle) != (b % 2 == 0 ? b : above);
      wrong += bits_from(std::nextafter(tie, -1.0F)) != b;
      wrong += bits_from(std::nextafter(tie, std::numeric_limits<float>::infinity())) != above;
      wrong += bits_from(-middle) != (b % 2 == 0 ? b : above) + 0x8000;
    }
  }
  CHECK(wrong == 0);
  CHECK(std::isnan(value_of(cast_one<cairn::bf16>(std::bit_cast<float>(0x7f800001u)).bits, 8)));
  CHECK(std::isnan(value_of(cast_one<cairn::f16>(std::bit_cast<float>(0x7f800001u)).bits, 5)));
  CHECK(cast_one<cairn::f16>(1e30F).bits == 0x7c00);
  CHECK(cast_one<cairn::f16>(-1e30).bits == 0xfc00);
  CHECK(cast_one<float>(0.1) == 0.1F);
  CHECK(cast_one<double>(0.1F) == static_cast<double>(0.1F));
  CHECK((cairn::find_cast(dtype::i32, dtype::f32) == nullptr));
  CHECK((cairn::find_cast(dtype::f32, dtype::u8) == nullptr));
}

TEST_CASE("a state_dict keeps what it was given") {
  cairn::state_dict state;
  std::vector<float> w(12, 1);
  std::array<double, 4> fixed{};
  int plain[6] = {};
  std::vector<foreign_element> foreign_w(2);
  CHECK(state.empty());
  state.tensor("w", w, {3, 4});
  state.tensor("fixed", fixed, {4}, cairn::copy_now, cairn::optional);
  state.tensor("plain", plain, {2, 3});
  state.tensor("foreign", foreign_w, {2});
  state.tensor("pointer", w.data(), {2, 2});
  state.tensor("scalar", w.data(), extents{});
  state.tensor("shard", w, cairn::shard{{9, 4}, {3, 0}});
  state.tensor("shard2", w.data(), cairn::shard{{9, 4}, {3, 1}, {2, 2}});
  state.tensor("flat", w, cairn::flat_shard{{5, 4}, 2});
  state.tensor("flat2", w.data(), cairn::flat_shard{{5, 4}, 2, 3});
  auto m = mode::warm;
  bool yes = true;
  state.value("mode", m);
  state.value("yes", yes);
  std::string text = "abc";
  state.bytes("text", text, cairn::per_rank);
  REQUIRE(state.entries().size() == 13);
  CHECK(state.find("absent") == nullptr);
  CHECK(state.find("w") == &state.entries()[0]);
  CHECK(state.find("w")->view(0).data == reinterpret_cast<std::byte*>(w.data()));
  CHECK(state.find("w")->boxes == std::vector<chunk>{cairn::whole({3, 4})});
  CHECK(state.find("w")->elements == 12);
  CHECK(state.find("fixed")->flags == cairn::item_flags{true, false, true});
  CHECK(state.find("fixed")->type == dtype::f64);
  CHECK(state.find("plain")->type == dtype::i32);
  CHECK(state.find("foreign")->type == dtype::bf16);
  CHECK(state.find("scalar")->elements == 1);
  CHECK(state.find("shard")->boxes == std::vector<chunk>{{{3, 0}, {3, 4}}});
  CHECK(state.find("shard2")->boxes == std::vector<chunk>{{{3, 1}, {2, 2}}});
  REQUIRE(state.find("flat")->boxes.size() == 3);
  CHECK(state.find("flat")->boxes[0] == chunk{{0, 2}, {1, 2}});
  CHECK(state.find("flat")->boxes[1] == chunk{{1, 0}, {2, 4}});
  CHECK(state.find("flat")->boxes[2] == chunk{{3, 0}, {1, 2}});
  CHECK(state.find("flat")->view(1).data == reinterpret_cast<std::byte*>(w.data() + 2));
  CHECK(state.find("flat")->view(2).data == reinterpret_cast<std::byte*>(w.data() + 10));
  CHECK(state.find("flat2")->elements == 3);
  CHECK(state.find("mode")->type == dtype::u16);
  CHECK(state.find("mode")->kind == cairn::item_kind::value);
  CHECK(state.find("yes")->type == dtype::boolean);
  CHECK(state.find("text")->bytes().size() == 3);
  CHECK(state.find("text")->flags.per_rank);
}

TEST_CASE("containers may move, but keep their size; bytes may change it") {
  cairn::state_dict state;
  std::vector<float> w(4);
  std::string text = "abc";
  state.tensor("w", w, {4});
  state.bytes("text", text);
  w = std::vector<float>{5, 6, 7, 8};
  CHECK(*reinterpret_cast<float*>(state.find("w")->view(0).data) == 5);
  CHECK(!state.find("w")->memory.resize);
  w.resize(5);
  const auto e = failure_of([&] { (void)state.find("w")->view(0); });
  CHECK(e.id() == error_id::usage_size_changed);
  CHECK(e.fields().item == "w");
  CHECK(e.fields().expected == "4");
  CHECK(e.fields().got == "5");
  text = "longer";
  CHECK(state.find("text")->bytes().size() == 6);
  state.find("text")->memory.resize(state.find("text")->memory.object, 2);
  CHECK(text == "lo");
  std::array<char, 3> fixed{};
  state.bytes("fixed", fixed);
  CHECK(!state.find("fixed")->memory.resize);
}

TEST_CASE("views with strides") {
  cairn::state_dict state;
  std::vector<float> w(100);
  std::iota(w.begin(), w.end(), 0.0F);
  auto view = cairn::contiguous_view(w.data(), dtype::f32, {4, 3});
  view.strides[0] = 10;
  state.tensor("whole", view);
  state.tensor("shard", view, cairn::shard{{8, 3}, {4, 0}, {4, 3}});
  const auto seen = state.find("shard")->view(0);
  CHECK(seen.strides[0] == 10);
  CHECK(seen.shape == extents{4, 3});
  const auto packed = cairn_test::packed(seen);
  CHECK(reinterpret_cast<const float*>(packed.data())[3] == 10);
  CHECK(failure_of([&] {
          state.tensor("flat", view, cairn::flat_shard{{12}, 0});
        }).id() == error_id::usage_bad_shape);
  CHECK(failure_of([&] { state.tensor("other", view, extents{3, 4}); }).id() == error_id::usage_bad_shape);
  auto half = cairn::contiguous_view(w.data(), dtype::f4, {4, 4});
  half.strides[0] = 8;
  CHECK(failure_of([&] { state.tensor("packed", half); }).id() == error_id::usage_bad_shape);
  // A device view keeps its space.
  auto device = cairn::contiguous_view(w.data(), dtype::f32, {4});
  device.space = cairn::memory_space::device;
  device.device = 3;
  state.tensor("device", device);
  CHECK(state.find("device")->view(0).space == cairn::memory_space::device);
  CHECK(state.find("device")->view(0).device == 3);
}

TEST_CASE("rebind gives a new address") {
  cairn::state_dict state;
  std::vector<float> a(4), b(4);
  std::vector<double> d(4);
  state.tensor("p", a.data(), {4});
  state.tensor("c", a, {4});
  const auto structure = state.structure();
  state.rebind("p", b.data());
  CHECK(state.find("p")->view(0).data == reinterpret_cast<std::byte*>(b.data()));
  CHECK(state.structure() == structure);
  CHECK(failure_of([&] { state.rebind("absent", b.data()); }).id() == error_id::usage_unknown_name);
  CHECK(failure_of([&] { state.rebind("c", b.data()); }).kind() == cairn::error_kind::usage);
  CHECK(failure_of([&] { state.rebind("p", d.data()); }).id() == error_id::plan_dtype_mismatch);
  CHECK(failure_of([&] { state.rebind("p", static_cast<float*>(nullptr)); }).id() ==
        error_id::usage_bad_shape);
  auto view = cairn::contiguous_view(a.data(), dtype::f32, {2, 2});
  view.strides[0] = 2;
  state.tensor("v", view);
  state.rebind("v", cairn::contiguous_view(b.data(), dtype::f32, {2, 2}));
  CHECK(state.find("v")->view(0).data == reinterpret_cast<std::byte*>(b.data()));
}

TEST_CASE("rebind to a view takes its strides, and refuses another shape") {
  cairn::state_dict state;
  std::vector<float> a(64), b(64);
  auto view = cairn::contiguous_view(a.data(), dtype::f32, {2, 3});
  view.strides[0] = 8;
  state.tensor("v", view);
  auto other = cairn::contiguous_view(b.data(), dtype::f32, {2, 3});
  state.rebind("v", other);
  CHECK(state.find("v")->view(0).strides[0] == 3);
  other.strides[0] = 16;
  state.rebind("v", other);
  CHECK(state.find("v")->view(0).strides[0] == 16);
  other.shape = {3, 2};
  CHECK(failure_of([&] {
          state.rebind("v", cairn::contiguous_view(b.data(), dtype::f32, {3, 3}));
        }).id() == error_id::usage_bad_shape);
  CHECK(failure_of([&] { state.rebind("v", other); }).id() == error_id::usage_bad_shape);
  CHECK(state.find("v")->view(0).shape == extents{2, 3});
  state.tensor("flat", b.data(), cairn::flat_shard{{4, 4}, 3, 6});
  other.shape = {2, 3};
  CHECK(failure_of([&] { state.rebind("flat", other); }).id() == error_id::usage_bad_shape);
  state.rebind("flat", cairn::contiguous_view(a.data(), dtype::f32, {6}));
  CHECK(state.find("flat")->view(0).data == reinterpret_cast<std::byte*>(a.data()));
}

TEST_CASE("mistakes of registration leave the state unharmed") {
  cairn::state_dict state;
  std::vector<float> w(12);
  state.tensor("w", w, {12});
  const auto structure = state.structure();
  const auto id = [&](auto work) { return failure_of(work).id(); };
  CHECK(id([&] { state.tensor("w", w, {12}); }) == error_id::usage_duplicate_name);
  for (const auto* name : {"", "__metadata__", "a\nb", "a\x7f", "rng@rank00003", "\xff", "\xc0\x80",
                           "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    CAPTURE(name);
    CHECK(id([&] { state.tensor(name, w, {12}); }) == error_id::usage_bad_name);
  }
  CHECK(id([&] { state.tensor(std::string(4097, 'a'), w, {12}); }) == error_id::usage_bad_name);
  CHECK(cairn::name_problem(std::string(4096, 'a')).empty());
  CHECK(cairn::name_problem("stra\xc3\x9f"
                            "e.\xe2\x82\xac.\xf0\x9f\x8e\x89")
            .empty());
  CHECK(cairn::name_problem("a@rank").empty());
  CHECK(cairn::name_problem("a@rank1b").empty());
  CHECK(id([&] { state.tensor("x", w, {11}); }) == error_id::usage_bad_shape);
  CHECK(id([&] { state.tensor("x", static_cast<float*>(nullptr), {1}); }) == error_id::usage_bad_shape);
  CHECK(id([&] { state.tensor("x", w.data(), extents{most}); }) == error_id::usage_bad_shape);
  CHECK(id([&] { state.tensor("x", w.data(), cairn::shard{{4, 4}, {0, 0}}); }) == error_id::usage_bad_shape);
  CHECK(id([&] { state.tensor("x", w, cairn::shard{{4, 4}, {0}}); }) == error_id::usage_bad_shape);
  CHECK(id([&] { state.tensor("x", w, cairn::shard{{8, 5}, {0, 0}}); }) == error_id::usage_bad_shape);
  CHECK(id([&] { state.tensor("x", w, cairn::shard{{8, 4}, {6, 0}}); }) == error_id::usage_bad_shape);
  CHECK(id([&] { state.tensor("x", w, cairn::flat_shard{{20}, 9}); }) == error_id::usage_bad_shape);
  CHECK(id([&] { state.tensor("x", w, cairn::flat_shard{{20}, -1}); }) == error_id::usage_bad_shape);
  CHECK(id([&] { state.tensor("x", w.data(), cairn::flat_shard{{20}, 0}); }) == error_id::usage_bad_shape);
  CHECK(id([&] {
          state.tensor("x", cairn::contiguous_view(w.data(), dtype::f4, {3}), cairn::flat_shard{{8}, 1});
        }) == error_id::usage_bad_shape);
  CHECK(state.entries().size() == 1);
  CHECK(state.structure() == structure);
}

TEST_CASE("objects register themselves under a prefix") {
  cairn::state_dict state;
  block b;
  foreign f;
  state.object("block", b);
  state.object("foreign", f);
  std::vector<std::string> names;
  for (const auto& e : state.entries()) names.push_back(e.name);
  CHECK(names == std::vector<std::string>{"block.first.weight", "block.first.bias", "block.second.weight",
                                          "block.second.bias", "block.calls", "block.notes", "foreign.x"});
  CHECK(state.find("block.first.bias")->flags.optional);
  CHECK(state.find("block.notes")->flags.per_rank);
}

TEST_CASE("the structure has everything that plans depend on, and nothing else") {
  std::vector<float> w(16), v(16);
  std::vector<std::int32_t> i(16);
  std::string text = "a";
  std::set<std::uint64_t> seen;
  const auto structure = [](auto fill) {
    cairn::state_dict s;
    fill(s);
    return s.structure();
  };
  const auto base = structure([&](auto& s) { s.tensor("w", w, {4, 4}); });
  CHECK(base == structure([&](auto& s) { s.tensor("w", v, {4, 4}); }));
  seen.insert(base);
  seen.insert(structure([&](auto& s) { s.tensor("x", w, {4, 4}); }));
  seen.insert(structure([&](auto& s) { s.tensor("w", w, {16}); }));
  seen.insert(structure([&](auto& s) { s.tensor("w", w, {2, 8}); }));
  seen.insert(structure([&](auto& s) { s.tensor("w", i, {4, 4}); }));
  seen.insert(structure([&](auto& s) { s.tensor("w", w, {4, 4}, cairn::copy_now); }));
  seen.insert(structure([&](auto& s) { s.tensor("w", w, {4, 4}, cairn::per_rank); }));
  seen.insert(structure([&](auto& s) { s.tensor("w", w, {4, 4}, cairn::optional); }));
  seen.insert(structure([&](auto& s) { s.tensor("w", w, cairn::shard{{8, 4}, {0, 0}}); }));
  seen.insert(structure([&](auto& s) { s.tensor("w", w, cairn::shard{{8, 4}, {4, 0}}); }));
  seen.insert(structure([&](auto& s) { s.tensor("w", w, cairn::flat_shard{{8, 4}, 8}); }));
  seen.insert(structure([&](auto& s) { s.bytes("w", text); }));
  seen.insert(structure([&](auto& s) { s.tensor("w", w, {4, 4}), s.tensor("v", v, {4, 4}); }));
  seen.insert(structure([&](auto& s) { s.tensor("v", v, {4, 4}), s.tensor("w", w, {4, 4}); }));
  seen.insert(structure([](auto&) {}));
  CHECK(seen.size() == 15);
  cairn::state_dict s;
  s.bytes("text", text);
  const auto before = s.structure();
  text = "longer";
  CHECK(s.structure() == before);
  s.tensor("w", w, {16});
  CHECK(s.structure() != before);
}

TEST_CASE("errors cross processes as data and come out as the same type") {
  const auto failure =
      cairn::make_failure(error_id::corrupt_digest, "a block is damaged",
                          {.rank = 3, .item = "w", .file = "f", .offset = 9, .expected = "1", .got = "2"});
  const auto bytes = cairn::encode_failure(failure);
  const auto back = [&](std::span<const std::byte> from, int rank = -1) {
    cairn::wire_reader in(from);
    auto e = cairn::decode_failure(in, rank);
    in.finish();
    return e;
  };
  try {
    std::rethrow_exception(back(bytes));
  } catch (const cairn::corrupt_error& e) {
    CHECK(e.id() == error_id::corrupt_digest);
    CHECK(std::string(e.what()) ==
          "[cairn.corrupt.digest] a block is damaged (rank 3, item w, file f, offset 9, expected 1, got 2)");
    CHECK(e.message() == "a block is damaged");
  }
  CHECK_THROWS_AS(
      std::rethrow_exception(back(cairn::encode_failure(std::make_exception_ptr(std::bad_alloc{})))),
      cairn::storage_error);
  const auto foreign_failure = cairn::encode_failure(std::make_exception_ptr(std::runtime_error("odd")));
  CHECK(failure_of([&] { std::rethrow_exception(back(foreign_failure, 5)); }).fields().rank == 5);
  CHECK(failure_of([&] { std::rethrow_exception(back(foreign_failure, 5)); }).message() == "odd");
  CHECK_THROWS_AS(std::rethrow_exception(back(cairn::encode_failure(std::make_exception_ptr(1)))),
                  cairn::storage_error);
  for (std::size_t n = 0; n < bytes.size(); ++n)
    CHECK_THROWS_AS((void)back(std::span(bytes).first(n)), cairn::wire_error);
  for (const auto id : {error_id::usage_overflow, error_id::plan_overlap, error_id::storage_io,
                        error_id::timeout_commit, error_id::peer_lost})
    CHECK(failure_of([&] { cairn::fail(id, "x"); }).kind() == cairn::kind_of(id));
  CHECK(cairn::error_name(static_cast<error_id>(999)) == "unknown");
}

TEST_CASE("wire: values come back as they were put, and hostile input ends in wire_error") {
  cairn::wire_writer out;
  out.put(std::uint8_t{7}).put(std::int64_t{-5}).put(2.5).put("text").put(dtype::f32).put(std::uint64_t{3});
  const auto bytes = out.take();
  cairn::wire_reader in(bytes);
  CHECK(in.get<std::uint8_t>() == 7);
  CHECK(in.get<std::int64_t>() == -5);
  CHECK(in.get<double>() == 2.5);
  CHECK(in.get_string() == "text");
  CHECK(in.get_enum(cairn::last_dtype) == dtype::f32);
  CHECK_THROWS_AS((void)in.get_count(1), cairn::wire_error);
  CHECK_THROWS_AS((void)in.get<std::uint8_t>(), cairn::wire_error);
  CHECK_NOTHROW(in.finish());

  const auto reader_of = [](auto... values) {
    cairn::wire_writer w;
    (w.put(values), ...);
    return w.take();
  };
  const auto huge = reader_of(std::uint32_t{0xffffffff}, std::uint32_t{0xffffffff});
  CHECK_THROWS_AS((void)cairn::wire_reader(huge).get_string(), cairn::wire_error);
  CHECK_THROWS_AS((void)cairn::wire_reader(huge).get_count(1), cairn::wire_error);
  CHECK_THROWS_AS((void)cairn::wire_reader(huge).get_count(0), cairn::wire_error);
  CHECK_THROWS_AS((void)cairn::wire_reader(huge).take(9), cairn::wire_error);
  CHECK_THROWS_AS(cairn::wire_reader(huge).finish(), cairn::wire_error);
  CHECK_THROWS_AS((void)cairn::wire_reader(huge).get_enum(cairn::last_dtype), cairn::wire_error);
  const auto text = reader_of(std::uint32_t{5}, std::uint64_t{0});
  CHECK_THROWS_AS((void)cairn::wire_reader(text).get_string(4), cairn::wire_error);
  try {
    cairn::wire_reader r(text);
    (void)r.get<std::uint64_t>();
    (void)r.get<std::uint64_t>();
    FAIL("nothing was thrown");
  } catch (const cairn::wire_error& e) {
    CHECK(e.offset == 8);
  }
  const auto nine = reader_of(std::uint8_t{9});
  cairn::wire_reader r(nine);
  CHECK_THROWS_AS((void)cairn::decode_extents(r), cairn::wire_error);
  const auto negative = reader_of(std::uint8_t{1}, std::int64_t{-1});
  cairn::wire_reader n(negative);
  CHECK_THROWS_AS((void)cairn::decode_extents(n), cairn::wire_error);
}

TEST_CASE("plans as messages") {
  cairn::save_plan plan;
  plan.items.push_back(
      {"w", cairn::item_kind::tensor, dtype::f32, {4, 4}, {{2, 0}, {2, 4}}, {true, false, true}, 3, 32});
  plan.items.push_back({"b", cairn::item_kind::bytes, dtype::u8, {}, {}, {false, true, false}, 4, 999});
  cairn::wire_writer out;
  cairn::encode(out, plan);
  const auto bytes = out.take();
  const auto decode = [](std::span<const std::byte> from) {
    cairn::wire_reader in(from);
    auto p = cairn::decode_save_plan(in);
    in.finish();
    return p;
  };
  const auto back = decode(bytes);
  REQUIRE(back.items.size() == 2);
  CHECK(back.items[0].flags == plan.items[0].flags);
  CHECK(back.items[0].box == plan.items[0].box);
  CHECK(back.items[1].bytes == 999);
  CHECK(cairn::digest_of(back) == cairn::digest_of(plan));
  for (std::size_t n = 0; n < bytes.size(); ++n)
    CHECK_THROWS_AS((void)decode(std::span(bytes).first(n)), cairn::wire_error);
  auto refused = [&](auto change) {
    auto p = plan;
    change(p.items[0]);
    cairn::wire_writer w;
    cairn::encode(w, p);
    const auto from = w.take();
    CHECK_THROWS_AS((void)decode(from), cairn::wire_error);
  };
  refused([](auto& i) { i.box.offsets = {3, 0}; });
  refused([](auto& i) { i.bytes = 31; });
  refused([](auto& i) { i.global = {most, most}; });
  refused([](auto& i) { i.name = std::string(5000, 'a'); });
  auto other = plan;
  other.items[1].bytes = 5;
  other.items[0].entry = 9;
  CHECK(cairn::digest_of(other) == cairn::digest_of(plan));
  other.items[0].box.offsets = {1, 0};
  CHECK(cairn::digest_of(other) != cairn::digest_of(plan));
}

TEST_CASE("annotations are typed, small and sorted, and a bad one changes nothing") {
  cairn::annotations said{{"loss", 2.5f}, {"commit", "abc"}, {"final", false}, {"seen", std::uint32_t{7}}};
  CHECK(said.size() == 4);
  CHECK(said.begin()->name == "commit");
  CHECK(said.find("commit")->text() == "abc");
  CHECK(said.find("loss")->number() == 2.5);
  CHECK(said.find("seen")->number() == 7.0);
  CHECK(said.find("final")->kind() == cairn::annotation_kind::boolean);
  CHECK_FALSE(said.find("final")->number());
  CHECK(said.find("los") == nullptr);
  said.merge({{"loss", 1}, {"a", "\n\t\xc3\xa9"}});
  CHECK(said.find("loss")->integer() == 1);
  CHECK(said.size() == 5);
  const auto before = said;
  const auto refuses = [&](std::string_view name, cairn::annotation_value value) {
    const auto id = failure_of([&] { said.set(name, value); }).id();
    CHECK(said == before);
    return id;
  };
  CHECK(refuses("", 1) == error_id::usage_bad_name);
  CHECK(refuses("a\n", 1) == error_id::usage_bad_name);
  CHECK(refuses(std::string(257, 'x'), 1) == error_id::usage_bad_name);
  CHECK(refuses("b", "\xff") == error_id::usage_bad_option);
  CHECK(refuses("b", std::string(cairn::max_annotation_bytes, 'x')) == error_id::usage_bad_option);
  CHECK(failure_of([] { (void)cairn::annotation_value(~std::uint64_t{0}); }).id() ==
        error_id::usage_bad_option);
  CHECK(failure_of([] {
          (void)cairn::annotations{{"a", 1}, {"a", 2}};
        }).id() == error_id::usage_duplicate_name);
  CHECK(failure_of([&] {
          said.merge({{"new", 1}, {"z", std::string(65'530, 'x')}});
        }).id() == error_id::usage_bad_option);
  CHECK(said == before);
  for (auto i = said.size(); i < cairn::max_annotations; ++i) said.set("n" + std::to_string(i), -1);
  CHECK(failure_of([&] { said.set("one more", 1); }).id() == error_id::usage_bad_option);
  said.set("n63", 1);
  // What is not a number of anybody's is kept bit by bit, and equal to itself.
  CHECK(cairn::annotation_value(std::nan("")) == cairn::annotation_value(std::nan("")));
  CHECK_FALSE(cairn::annotation_value(1) == cairn::annotation_value(1.0));

  cairn::compact_writer out;
  encode(out, said);
  cairn::compact_reader in(out.view());
  CHECK(cairn::decode_annotations(in) == said);
  in.finish();
  const auto hostile = [](std::initializer_list<int> bytes) {
    std::vector<std::byte> all;
    for (const int b : bytes) all.push_back(static_cast<std::byte>(b));
    cairn::compact_reader bad(all);
    try {
      (void)cairn::decode_annotations(bad);
    } catch (const cairn::wire_error&) {
      return true;
    }
    return false;
  };
  CHECK_FALSE(hostile({1, 1, 'a', 3, 1}));
  CHECK(hostile({1, 1, 'a', 3, 2}));                      // neither true nor false
  CHECK(hostile({1, 1, 'a', 4, 1}));                      // a kind that nobody knows
  CHECK(hostile({65}));                                   // too many
  CHECK(hostile({2, 1, 'b', 3, 1, 1, 'a', 3, 1}));        // out of order
  CHECK(hostile({2, 1, 'a', 3, 1, 1, 'a', 3, 1}));        // twice
  CHECK(hostile({1, 1, '\n', 3, 1}));                     // a name that breaks a line
  CHECK(hostile({1, 1, 'a', 0, 1, 0xff}));                // not UTF-8
  CHECK(hostile({1, 1, 'a', 0, 0x81, 0x80, 0x04, 'x'}));  // longer than all may be
  CHECK(hostile({1, 1, 'a', 1, 0, 0, 0}));                // cut
}

TEST_CASE("metadata is found by name") {
  cairn::metadata m;
  CHECK(m.find("a") == nullptr);
  for (const auto* name : {"a", "b", "bb", "c"}) m.items.push_back({name, {}, {}, {}, false, {}});
  for (const auto& i : m.items) CHECK(m.find(i.name) == &i);
  CHECK(m.find("") == nullptr);
  CHECK(m.find("ba") == nullptr);
  CHECK(m.find("d") == nullptr);
  CHECK(cairn::per_rank_key("rng", 3) == "rng@rank00003");
  CHECK(!cairn::name_problem(cairn::per_rank_key("rng", 123456)).empty());
  CHECK(cairn::key_of("a", cairn::whole({2})) == cairn::key_of("a", cairn::whole({2})));
  CHECK(!(cairn::key_of("a", cairn::whole({2})) == cairn::key_of("a", cairn::whole({3}))));
  CHECK(!(cairn::key_of("a", cairn::whole({2})) == cairn::key_of("b", cairn::whole({2}))));
}

// --- DLPack
// --------------------------------------------------------------------------------------------------------

namespace {
// As <dlpack/dlpack.h> declares them, with enumerations where cairn's twins have numbers.
enum ForeignDeviceType : std::int32_t { foreign_cpu = 1, foreign_cuda = 2, foreign_opencl = 4 };
struct ForeignTensor {
  void* data;
  struct {
    ForeignDeviceType device_type;
    std::int32_t device_id;
  } device;
  std::int32_t ndim;
  struct {
    std::uint8_t code, bits;
    std::uint16_t lanes;
  } dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct ForeignManaged {
  ForeignTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(ForeignManaged*);
};
static_assert(cairn::dlpack::ManagedTensor<ForeignManaged>);
static_assert(!cairn::dlpack::VersionedManagedTensor<ForeignManaged>);
static_assert(cairn::dlpack::VersionedManagedTensor<cairn::dlpack::versioned_managed_tensor>);

/// A 2 x 3 tensor of floats that counts the calls of its deleter.
struct counted_tensor {
  std::array<float, 6> values{1, 2, 3, 4, 5, 6};
  std::array<std::int64_t, 9> shape{2, 3};
  std::array<std::int64_t, 9> strides{3, 1};
  int deleted = 0;
  cairn::dlpack::versioned_managed_tensor managed{
      {1, 0},
      this,
      [](cairn::dlpack::versioned_managed_tensor* m) {
        ++static_cast<counted_tensor*>(m->manager_ctx)->deleted;
      },
      0,
      {values.data(), {1, 0}, 2, {2, 32, 1}, shape.data(), strides.data(), 0}};
  cairn::dlpack::tensor& tensor() { return managed.dl_tensor; }
};

template <class Managed>
void round_trip(const cairn::tensor_view& view) {
  auto owner = std::make_shared<int>(0);
  auto exported = cairn::dlpack::export_tensor<Managed>(view, owner);
  CHECK(owner.use_count() == 2);
  {
    auto imported = cairn::dlpack::import_tensor(exported.release());
    const auto& got = imported.view();
    CHECK((got.data == view.data && got.type == view.type && got.shape == view.shape &&
           got.space == view.space));
    CHECK(got.device == view.device);
    for (int d = 0; d < view.shape.rank(); ++d)
      CHECK((view.shape[d] < 2 || view.bytes() == 0 ||
             got.strides[static_cast<std::size_t>(d)] == view.strides[static_cast<std::size_t>(d)]));
    auto moved = std::move(imported);
    CHECK((moved.view().data == view.data && owner.use_count() == 2));
  }
  CHECK(owner.use_count() == 1);
}
}  // namespace

TEST_CASE("DLPack: an exported tensor is imported unchanged, and given back once") {
  std::array<std::byte, 4096> memory{};
  for (int number = 0; number <= static_cast<int>(cairn::last_dtype); ++number) {
    const auto type = static_cast<dtype>(number);
    CAPTURE(cairn::name_of(type));
    auto view = cairn::contiguous_view(memory.data(), type, {2, 4, 8});
    const auto code = cairn::dlpack::data_type_of(type);
    CHECK((cairn::dlpack::dtype_from(code.code, code.bits) == type && code.lanes == 1));
    round_trip<cairn::dlpack::managed_tensor>(view);
    round_trip<cairn::dlpack::versioned_managed_tensor>(view);
    round_trip<ForeignManaged>(view);
    if (cairn::granule_of(type) == 1) {
      auto columns = cairn::subview(view, {{0, 1, 2}, {2, 2, 3}});
      round_trip<ForeignManaged>(columns);
      columns.strides = {-32, 0, 8};
      columns.data = memory.data() + 2048;
      round_trip<ForeignManaged>(columns);
    } else {
      view.strides[0] = 64;
      CHECK(failure_of([&] { (void)cairn::dlpack::export_tensor(view); }).id() == error_id::usage_bad_shape);
    }
  }
  for (const auto& shape :
       {extents{}, extents{0}, extents{3, 0, most, most}, extents{1, 1, 1, 1, 1, 1, 1, 8}})
    round_trip<ForeignManaged>(
        cairn::contiguous_view(shape.volume() == 0 ? nullptr : memory.data(), dtype::u8, shape));
  auto view = cairn::contiguous_view(memory.data(), dtype::f32, {8});
  view.space = cairn::memory_space::pinned;
  round_trip<cairn::dlpack::managed_tensor>(view);
  view.space = cairn::memory_space::device;
  view.device = 3;
  round_trip<ForeignManaged>(view);
  CHECK(cairn::dlpack::export_tensor<ForeignManaged>(view)->dl_tensor.device.device_type == foreign_cuda);
}

TEST_CASE("DLPack: strides may be missing, the beginning may have an offset, and a state takes the view") {
  counted_tensor t;
  t.tensor().strides = nullptr;
  auto view = cairn::dlpack::view_of(t.tensor());
  CHECK((view.contiguous() && view.strides[0] == 3 && view.strides[1] == 1));
  t.tensor().byte_offset = 4;
  t.shape[1] = 2;
  t.strides = {3, 1};
  t.tensor().strides = t.strides.data();
  view = cairn::dlpack::view_of(t.tensor());
  CHECK(view.data == reinterpret_cast<std::byte*>(t.values.data() + 1));
  cairn::state_dict state;
  state.tensor("t", view);
  std::vector<float> packed(4);
  cairn::for_each_run(state.find("t")->view(0), 0, 16,
                      [&](std::byte* first, std::uint64_t bytes, std::uint64_t at) {
                        std::memcpy(reinterpret_cast<std::byte*>(packed.data()) + at, first, bytes);
                      });
  CHECK(packed == std::vector<float>{2, 3, 5, 6});
  // Managed memory belongs to its device: kernels write it while the CPU could read it, too.
  t.tensor() = {t.values.data(), {13, 1}, 0, {2, 32, 1}, nullptr, nullptr, 0};
  view = cairn::dlpack::view_of(t.tensor());
  CHECK((view.shape.rank() == 0 && view.bytes() == 4 && view.space == cairn::memory_space::device));
  CHECK(view.device == 1);
  // Sizes of one or none make their strides meaningless.
  t.shape = {1, 0};
  t.strides = {most, most};
  t.tensor() = {nullptr, {1, 0}, 2, {2, 32, 1}, t.shape.data(), t.strides.data(), ~0ull};
  view = cairn::dlpack::view_of(t.tensor());
  CHECK((view.bytes() == 0 && view.contiguous()));
  t.shape = {1, 6};
  t.strides = {most, 1};
  t.tensor() = {t.values.data(), {1, 0}, 2, {2, 32, 1}, t.shape.data(), t.strides.data(), 0};
  CHECK(cairn::dlpack::view_of(t.tensor()).contiguous());
}

TEST_CASE("DLPack: a tensor that cannot be a view is refused with a sentence, and still given back once") {
  struct hostile {
    const char* title;
    void (*spoil)(counted_tensor&);
    error_id id;
    const char* sentence;
  };
  constexpr auto bad_shape = error_id::usage_bad_shape;
  constexpr auto unsupported = error_id::usage_unsupported_tensor;
  const hostile cases[] = {
      {"negative rank", [](counted_tensor& t) { t.tensor().ndim = -1; }, bad_shape, "number of dimensions"},
      {"nine dimensions", [](counted_tensor& t) { t.tensor().ndim = 9; }, bad_shape, "number of dimensions"},
      {"huge rank", [](counted_tensor& t) { t.tensor().ndim = 0x7fffffff; }, bad_shape,
       "number of dimensions"},
      {"no shape", [](counted_tensor& t) { t.tensor().shape = nullptr; }, unsupported, "no shape"},
      {"negative size", [](counted_tensor& t) { t.shape[1] = -3; }, bad_shape, "negative"},
      {"volume overflow",
       [](counted_tensor& t) {
         t.shape = {most, most};
       },
       bad_shape, "2^63 bits"},
      {"bits overflow",
       [](counted_tensor& t) {
         t.shape = {1, most / 16};
       },
       bad_shape, "2^63 bits"},
      {"lanes", [](counted_tensor& t) { t.tensor().dtype.lanes = 4; }, unsupported,
       "vectors as its elements"},
      {"no lanes", [](counted_tensor& t) { t.tensor().dtype.lanes = 0; }, unsupported,
       "vectors as its elements"},
      {"complex of doubles",
       [](counted_tensor& t) {
         t.tensor().dtype = {5, 128, 1};
       },
       unsupported, "no dtype"},
      {"odd integer",
       [](counted_tensor& t) {
         t.tensor().dtype = {0, 24, 1};
       },
       unsupported, "no dtype"},
      {"handle",
       [](counted_tensor& t) {
         t.tensor().dtype = {3, 64, 1};
       },
       unsupported, "no dtype"},
      {"unknown code",
       [](counted_tensor& t) {
         t.tensor().dtype = {255, 8, 1};
       },
       unsupported, "no dtype"},
      {"device", [](counted_tensor& t) { t.tensor().device.device_type = 10; }, unsupported,
       "kind of device"},
      {"no device", [](counted_tensor& t) { t.tensor().device.device_type = -1; }, unsupported,
       "kind of device"},
      {"null", [](counted_tensor& t) { t.tensor().data = nullptr; }, unsupported, "is null"},
      {"offset", [](counted_tensor& t) { t.tensor().byte_offset = ~0ull; }, unsupported, "byte_offset"},
      {"stride up", [](counted_tensor& t) { t.strides[0] = most; }, unsupported, "address space"},
      {"stride far up", [](counted_tensor& t) { t.strides[0] = most / 60; }, unsupported, "address space"},
      {"stride down", [](counted_tensor& t) { t.strides[0] = -most; }, unsupported, "address space"},
      {"strides both",
       [](counted_tensor& t) {
         t.strides = {most / 3, most / 4};
       },
       unsupported, "address space"},
      {"below zero", [](counted_tensor& t) { t.tensor().data = &t, t.strides[0] = -(std::int64_t{1} << 50); },
       unsupported, "address space"},
      {"packed with strides",
       [](counted_tensor& t) {
         t.tensor().dtype = {17, 4, 1}, t.shape = {2, 2}, t.strides = {4, 1};
       },
       unsupported, "packed type has strides"},
      {"half a byte",
       [](counted_tensor& t) {
         t.tensor().dtype = {17, 4, 1}, t.shape = {1, 3};
       },
       bad_shape, "whole bytes"},
      {"padded",
       [](counted_tensor& t) {
         t.tensor().dtype = {17, 4, 1}, t.managed.flags = 4;
       },
       unsupported, "a byte for each element"},
      {"version 2", [](counted_tensor& t) { t.managed.version.major = 2; }, unsupported, "major version"},
      {"read-only", [](counted_tensor& t) { t.managed.flags = 1; }, unsupported, "read-only"},
  };
  for (const auto& c : cases) {
    CAPTURE(std::string(c.title));
    counted_tensor t;
    c.spoil(t);
    const auto failure = failure_of([&] { (void)cairn::dlpack::import_tensor(&t.managed); });
    CHECK(failure.id() == c.id);
    CHECK(failure.message().find(c.sentence) != std::string::npos);
    CHECK(t.deleted == 1);
  }
  CHECK(failure_of([] {
          (void)cairn::dlpack::import_tensor(static_cast<cairn::dlpack::managed_tensor*>(nullptr));
        }).id() == unsupported);
  counted_tensor read_only;
  read_only.managed.flags = 1;
  {
    auto imported =
        cairn::dlpack::import_tensor(&read_only.managed, cairn::dlpack::read_only_tensors::accept);
    CHECK(imported.read_only());
    counted_tensor other;
    auto second = cairn::dlpack::import_tensor(&other.managed);
    CHECK(!second.read_only());
    second = std::move(imported);
    CHECK((other.deleted == 1 && second.read_only()));
  }
  CHECK(read_only.deleted == 1);
  const auto view = cairn::contiguous_view(read_only.values.data(), dtype::f32, {6});
  CHECK(cairn::dlpack::export_tensor(view, {}, true)->flags == cairn::dlpack::read_only_flag);
  CHECK(failure_of([&] { (void)cairn::dlpack::export_tensor<ForeignManaged>(view, {}, true); }).id() ==
        error_id::usage_bad_option);
  counted_tensor no_deleter;
  no_deleter.managed.deleter = nullptr;
  CHECK(cairn::dlpack::import_tensor(&no_deleter.managed).view().bytes() == 24);
}

namespace {

/// A tensor cut by a mesh of ranks: one axis of the mesh for each entry, the last one with the ranks that are
/// neighbours; dimension -1 means replicas.
struct random_mesh {
  std::vector<int> counts;
  std::vector<int> dimensions;
  cairn::extents global;
  std::int32_t first_rank = 0;

  explicit random_mesh(std::mt19937_64& random) {
    const auto roll = [&](std::size_t n) { return static_cast<int>(random() % n); };
    const int rank = 1 + roll(3);
    global = cairn::extents::filled(rank, 0);
    for (int d = 0; d < rank; ++d) global.set(d, 1 + roll(20));
    for (int axes = roll(4); axes-- > 0;)
      counts.push_back(1 + roll(7)), dimensions.push_back(roll(static_cast<std::size_t>(rank) + 1) - 1);
    first_rank = roll(5);
  }
  /// What each rank has of a dimension is cut evenly, the last part shorter or empty.
  [[nodiscard]] std::vector<cairn::stored_chunk> chunks() const {
    std::vector<cairn::stored_chunk> all{{cairn::whole(global), first_rank}};
    for (std::size_t k = 0; k < counts.size(); ++k) {
      std::vector<cairn::stored_chunk> next;
      for (const auto& c : all)
        for (int i = 0; i < counts[k]; ++i) {
          auto cut = c;
          cut.rank = first_rank + (c.rank - first_rank) * counts[k] + i;
          if (const int d = dimensions[k]; d >= 0) {
            const auto each = (c.box.sizes[d] + counts[k] - 1) / counts[k];
            const auto from = std::min(i * each, c.box.sizes[d]);
            cut.box.offsets.set(d, c.box.offsets[d] + from);
            cut.box.sizes.set(d, std::min(each, c.box.sizes[d] - from));
          }
          if (!cut.box.empty()) next.push_back(cut);
        }
      all = std::move(next);
    }
    return all;
  }
};

bool by_box(const cairn::stored_chunk& a, const cairn::stored_chunk& b) {
  return a.box == b.box ? a.rank < b.rank : a.box < b.box;
}

}  // namespace

TEST_CASE("a chunk_set is the list that it was made of") {
  std::mt19937_64 random(17);
  const auto roll = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  int apart = 0;  // sets that are put together in other ways than a reader's
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    const random_mesh mesh(random);
    auto list = mesh.chunks();
    // Sometimes chunks that no mesh gives: other ranks, chunks left out, chunks twice.
    for (int k = round % 4 == 0 ? 5 : 0; k-- > 0 && !list.empty();) {
      const auto at = static_cast<std::size_t>(roll(static_cast<std::int64_t>(list.size())));
      if (k == 0) list.push_back(list[at]);
      if (k == 1) list[at].rank = static_cast<std::int32_t>(roll(50));
      if (k > 1) list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
    }
    std::shuffle(list.begin(), list.end(), random);
    const auto set = cairn::chunk_set::from(list);
    std::sort(list.begin(), list.end(), by_box);
    CHECK(set.size() == list.size());
    CHECK(set.sorted() == list);
    CHECK(std::vector<cairn::stored_chunk>(set.begin(), set.end()) == set.expand());
    std::uint64_t index = 0;
    for (const auto& c : set) CHECK(set[index++] == c);
    cairn::chunk_set one_by_one;
    for (const auto& c : list) one_by_one.push_back(c);
    CHECK(one_by_one == set);
    CHECK(one_by_one.expand().size() == list.size());

    // Put together as by a reader that appends one progression after another.
    const auto joined = one_by_one.joined();
    CHECK(joined == set);
    CHECK(joined.is_joined());
    CHECK(joined.progressions() <= one_by_one.progressions());
    cairn::chunk_set again;
    joined.for_each_progression([&](const cairn::chunk_progression& p) { again.append(p); });
    CHECK(
        std::equal(again.words().begin(), again.words().end(), joined.words().begin(), joined.words().end()));
    apart += one_by_one.is_joined() ? 0 : 1;

    cairn::compact_writer out;
    cairn::encode(out, set);
    cairn::compact_reader in(out.view());
    const auto back = cairn::decode_chunk_set(in, mesh.global, 10000);
    in.finish();
    CHECK(back == set);
    CHECK(back.expand() == set.expand());

    for (int k = 0; k < 10; ++k) {
      auto wanted = cairn::whole(mesh.global);
      for (int d = 0; d < mesh.global.rank(); ++d) {
        wanted.offsets.set(d, roll(mesh.global[d]));
        wanted.sizes.set(d, roll(mesh.global[d] - wanted.offsets[d] + 1));
      }
      std::vector<cairn::stored_chunk> found;
      set.overlaps(wanted, [&](std::uint64_t at, const cairn::stored_chunk& c, const chunk& common) {
        CHECK(set[at] == c);
        CHECK(cairn::intersect(c.box, wanted) == common);
        found.push_back(c);
      });
      std::sort(found.begin(), found.end(), by_box);
      std::vector<cairn::stored_chunk> expected;
      for (const auto& c : list)
        if (cairn::intersect(c.box, wanted)) expected.push_back(c);
      CHECK(found == expected);
      const auto rank = static_cast<std::int32_t>(roll(60));
      std::uint64_t of_rank = 0;
      set.of_rank(rank, [&](std::uint64_t at, const cairn::stored_chunk& c) {
        CHECK(c.rank == rank);
        CHECK(set[at] == c);
        ++of_rank;
      });
      CHECK(std::cmp_equal(of_rank,
                           std::count_if(list.begin(), list.end(), [&](auto& c) { return c.rank == rank; })));
      const auto last = rank + static_cast<std::int32_t>(roll(60));
      found.clear(), expected.clear();
      set.of_ranks(rank, last, [&](std::uint64_t at, const cairn::stored_chunk& c) {
        CHECK(set[at] == c);
        found.push_back(c);
      });
      for (const auto& c : list)
        if (c.rank >= rank && c.rank < last) expected.push_back(c);
      std::sort(found.begin(), found.end(), by_box);
      CHECK(found == expected);
    }
  }
  CHECK(apart > 0);
}

TEST_CASE("a digest is the XXH3-64 of the bytes, whatever vectors the processor has") {
  std::vector<std::byte> bytes((std::size_t{1} << 20) + 64);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((i * 7 + i / 256 * 13) % 256);
  const std::span<const std::byte> all(bytes);
  const std::pair<std::size_t, std::uint64_t> known[] = {{0, 0x2d06800538d394c2},
                                                         {240, 0x4917a75c0ef8eed7},
                                                         {1024, 0xcbeb9f3a1aeccda2},
                                                         {4096, 0xd369ccdd2fdab183},
                                                         {std::size_t{1} << 20, 0x0897bfa3a6d80f14}};
  for (const auto& [size, value] : known) CHECK(cairn::digest(all.first(size)) == value);
  for (std::size_t begin = 0; begin < 2; ++begin)
    for (std::size_t size = 0; size <= 4200; ++size) {
      const auto part = all.subspan(begin, size);
      if (cairn::digest(part) != XXH3_64bits(part.data(), part.size())) FAIL(begin << ", " << size);
    }
  std::mt19937_64 random(31);
  for (int k = 0; k < 20; ++k) {
    cairn::detail::hash_state state;
    const auto part = all.subspan(static_cast<std::size_t>(k));
    for (std::size_t at = 0; at < part.size();) {
      const auto piece = std::min<std::size_t>(part.size() - at, random() % (k % 2 == 0 ? 3000 : 40'000));
      state.put(part.data() + at, piece);
      at += piece;
    }
    CHECK(state.value() == XXH3_64bits(part.data(), part.size()));
  }
}

TEST_CASE("a digest_stream gives the same digest as all its input at once") {
  std::mt19937_64 random(29);
  for (const std::size_t longest : {40U, 3000U, 100'000U}) {
    cairn::digest_stream stream;
    std::string bytes;
    const auto same = [&] { return stream.value() == cairn::digest(std::string_view(bytes)); };
    CHECK(same());
    for (int k = 0; k < 50; ++k) {
      const std::string text(random() % longest, static_cast<char>(random()));
      const auto size = static_cast<std::uint64_t>(text.size());
      stream.put(text).put(static_cast<std::uint8_t>(k));
      bytes.append(reinterpret_cast<const char*>(&size), sizeof size).append(text);
      bytes.push_back(static_cast<char>(k));
      if (k % 7 == 0) REQUIRE(same());
    }
    CHECK(same());
    CHECK(same());
  }
}

TEST_CASE("a chunk_set is as large as its pattern, not as its chunks") {
  const auto of = [](std::int32_t rows, std::int32_t columns, std::int32_t copies, std::int64_t short_row) {
    std::vector<cairn::stored_chunk> list;
    std::int32_t rank = 0;
    for (std::int32_t r = 0; r < rows; ++r)
      for (std::int32_t k = 0; k < copies; ++k)
        for (std::int32_t c = 0; c < columns; ++c)
          list.push_back({{{10 * r, 8 * c}, {10 - (r == rows - 1 ? short_row : 0), 8}}, rank++});
    return cairn::chunk_set::from(list);
  };
  CHECK(of(1000, 1, 1, 0).progressions() == 1);
  CHECK(of(60, 6, 3, 0).progressions() == 1);
  CHECK(of(61, 7, 5, 0).progressions() == 1);
  CHECK(of(61, 7, 5, 3).progressions() == 2);
  CHECK(of(61, 7, 5, 3).bytes() < 256);
  const auto big = of(61, 7, 5, 3);
  CHECK(big.size() == 61 * 7 * 5);
}

TEST_CASE("sort gives what std::stable_sort gives") {
  std::mt19937_64 random(7);
  for (std::size_t size = 0; size < 120; ++size)
    for (const std::uint64_t keys : {2U, 10U, 1000U}) {
      std::vector<std::pair<std::uint64_t, std::string>> items;
      for (std::size_t i = 0; i < size; ++i) items.emplace_back(random() % keys, std::to_string(i));
      const auto by_key = [](const auto& a, const auto& b) { return a.first < b.first; };
      auto expected = items;
      std::stable_sort(expected.begin(), expected.end(), by_key);
      cairn::detail::sort(items, by_key);
      CHECK(items == expected);
      cairn::detail::sort(items, by_key);
      CHECK(items == expected);
    }
}

TEST_CASE("items that are erased leave the others in order") {
  std::vector<std::string> items{"a", "b", "b", "c", "b", "d", "d"};
  cairn::detail::erase_repeated(items);
  CHECK(items == std::vector<std::string>{"a", "b", "c", "b", "d"});
  CHECK(cairn::detail::erase_if(items, [](const auto& item) { return item == "b"; }) == 2);
  CHECK(items == std::vector<std::string>{"a", "c", "d"});
}

TEST_CASE("a sorted map holds what std::map holds, at addresses that stay") {
  std::mt19937_64 random(8);
  cairn::detail::sorted_map<int, std::string> map;
  std::map<int, std::string> expected;
  std::map<int, const std::string*> addresses;
  for (int i = 0; i < 2000; ++i) {
    const auto key = static_cast<int>(random() % 50);
    switch (random() % 4) {
      case 0:
        map.erase(key), expected.erase(key), addresses.erase(key);
        break;
      case 1:
        CHECK(map.try_emplace(key, "new").second == expected.try_emplace(key, "new").second);
        break;
      default:
        map[key] = expected[key] = std::to_string(i);
    }
    if (expected.contains(key)) addresses.try_emplace(key, &map.find(key)->second);
    CHECK((map.find(key) != map.end()) == expected.contains(key));
  }
  auto& same = map;
  map = std::move(same);
  const auto moved = std::move(map);
  REQUIRE(moved.size() == expected.size());
  auto next = expected.begin();
  for (const auto& [key, value] : moved) {
    CHECK(key == next->first);
    CHECK(value == next->second);
    CHECK(&value == addresses.at(key));
    ++next;
  }
}

namespace {
int one_more(int number) {
  return number + 1;
}
}  // namespace

TEST_CASE("a callback made of an empty function is empty") {
  using callback = cairn::detail::callback<int(int)>;
  int (*none)(int) = nullptr;
  CHECK_FALSE(callback(none));
  CHECK_FALSE(callback(std::function<int(int)>()));
  const std::function<int(int)> constant;
  CHECK_FALSE(callback(constant));
  CHECK(callback(std::function<int(int)>(one_more))(1) == 2);
  CHECK(callback(one_more)(1) == 2);
  CHECK(callback(&one_more)(1) == 2);
  CHECK(callback([](int number) { return number + 1; })(1) == 2);
  int asked = 0;
  cairn::detail::callback<void(int)>([&](int number) { return asked = number; })(3);
  CHECK(asked == 3);
  CHECK(callback([by = 2](int number) { return number + by; })(1) == 3);
}

TEST_CASE("a shared object may ask who owns it") {
  struct asks : std::enable_shared_from_this<asks> {};
  const auto object = cairn::detail::make_shared<asks>();
  CHECK(object->shared_from_this() == object);
  const std::shared_ptr<const void> plain = cairn::detail::make_shared<const std::string>("plain");
  CHECK(plain.use_count() == 1);
}
