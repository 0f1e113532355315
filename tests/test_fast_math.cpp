// SPDX-License-Identifier: Apache-2.0
// Compiled with -ffast-math, as trainers are: there std::isnan is always false, and cairn finds what is not finite all the same.
#include <doctest/doctest.h>

#include <cairn/checkpointer.hpp>
#include <cairn/load_options.hpp>
#include <cairn/manage/compare.hpp>
#include <cairn/manage/statistics.hpp>
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/stores/memory_store.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

using cairn::dtype;

namespace {

constexpr std::int64_t count = 5000;  // of bytes that are looked at together, more than once
const cairn::checkpointer_options quiet{.quiet = true};

/// Ones, but for a NaN and an infinity, which no number of the program is ever made of.
template <class Bits>
std::vector<Bits> odd_values(Bits one, Bits nan, Bits infinity) {
  std::vector<Bits> values(static_cast<std::size_t>(count), one);
  values[7] = nan;
  values[4000] = infinity;
  return values;
}
template <class Bits>
cairn::memory_store saved(dtype type, std::vector<Bits> values) {
  cairn::memory_store store;
  cairn::state_dict state;
  state.tensor("x", cairn::contiguous_view(values.data(), type, {count}));
  cairn::checkpointer ckpt{store, quiet};
  (void)ckpt.save(state, 1).wait();
  return store;
}
cairn::readable_checkpoint opened(const cairn::memory_store& store) {
  return {cairn::safetensors_reader(cairn::any_store(store)), 1};
}

const std::vector<cairn::memory_store>& all_types() {
  static const std::vector<cairn::memory_store> stores{
      saved<std::uint64_t>(
          dtype::f64, odd_values<std::uint64_t>(0x3ff0000000000000, 0x7ff8000000000000, 0xfff0000000000000)),
      saved<std::uint32_t>(dtype::f32, odd_values<std::uint32_t>(0x3f800000, 0x7fc00000, 0xff800000)),
      saved<std::uint16_t>(dtype::bf16, odd_values<std::uint16_t>(0x3f80, 0x7fc0, 0xff80)),
      saved<std::uint16_t>(dtype::f16, odd_values<std::uint16_t>(0x3c00, 0x7e00, 0xfc00)),
  };
  return stores;
}

TEST_CASE("what is not finite is counted, and in no mean") {
  for (const auto& store : all_types()) {
    auto from = opened(store);
    const auto v = cairn::measure_checkpoint(from, {}).values;
    CHECK(v.nan == 1);
    CHECK(v.infinite == 1);
    CHECK(v.finite == static_cast<std::uint64_t>(count - 2));
    CHECK((v.min == 1 && v.max == 1 && v.mean == 1));
  }
}

TEST_CASE("a NaN is no number of another checkpoint, and equal to a NaN of another dtype") {
  const auto plain = saved<std::uint32_t>(dtype::f32, std::vector<std::uint32_t>(count, 0x3f800000));
  auto ones = opened(plain);
  for (const auto& store : all_types()) {
    auto from = opened(store);
    const auto report = cairn::compare_checkpoints(from, ones, {.values = true});
    REQUIRE(report.differences.size() == 1);
    CHECK(report.differences[0].values.differing == 2);
    CHECK(report.differences[0].values.nan == 1);
  }
  auto a = opened(all_types()[0]);
  auto b = opened(all_types()[1]);
  const auto report = cairn::compare_checkpoints(a, b, {.values = true});
  REQUIRE(report.differences.size() == 1);  // of the dtypes
  CHECK(report.differences[0].values.differing == 0);
}

}  // namespace
