// SPDX-License-Identifier: Apache-2.0
// group: files
// Comparing two checkpoints, and measuring the numbers of one: what digests decide, what is read, and every dtype.
#include <doctest/doctest.h>

#include <cairn/checkpointer.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/manage/compare.hpp>
#include <cairn/manage/export_safetensors.hpp>
#include <cairn/manage/import_safetensors.hpp>
#include <cairn/manage/reshard.hpp>
#include <cairn/manage/statistics.hpp>
#include <cairn/safetensors_files.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/stores/memory_store.hpp>
#include <support/faulty_store.hpp>
#include <support/planner_conformance.hpp>
#include <support/scratch_directory.hpp>
#include <support/thread_ranks.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using cairn::difference_kind;
using cairn::dtype;
using cairn::extents;
using cairn_test::failure_of;

namespace {

constexpr std::int64_t rows = 1200, columns = 1024;  // 4.7 MiB of floats

cairn::checkpointer_options quiet() {
  return {.timeout = std::chrono::seconds(60), .peer_timeout = std::chrono::seconds(60), .quiet = true};
}
cairn::readable_checkpoint opened(const cairn::memory_store& store) {
  return {cairn::safetensors_reader(cairn::any_store(store)), 1};
}
std::vector<float> weights() {
  std::vector<float> w(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 4099) * 0.25f - 500;
  return w;
}

/// A checkpoint of `ranks` ranks: a tensor whose rows they share, one that is whole, bytes, and a number of each rank.
void save(const cairn::memory_store& store, int ranks, const std::vector<float>& w,
          const std::string& text = "text", bool of_ranks = true) {
  cairn_test::thread_ranks<> world(ranks);
  const auto thrown = world.run([&](cairn::collectives& all) {
    auto& comm = world.communicator(all.rank());
    const auto begin = rows * comm.rank() / ranks, end = rows * (comm.rank() + 1) / ranks;
    std::vector<float> part(w.begin() + begin * columns, w.begin() + end * columns);
    std::vector<double> small{1.5, -2.5, 0.0};
    auto bytes = std::vector<std::byte>(text.size());
    std::memcpy(bytes.data(), text.data(), text.size());
    double own = 10.0 + comm.rank();
    cairn::state_dict state;
    state.tensor("w", part, cairn::shard{{rows, columns}, {begin, 0}, {end - begin, columns}});
    state.tensor("small", small, {3});
    state.bytes("bytes", bytes);
    if (of_ranks) state.value("own", own, cairn::per_rank);
    cairn::checkpointer ckpt{store, std::move(comm), quiet()};
    ckpt.annotate({{"loss", 2.5}});
    (void)ckpt.save(state, 1).wait();
  });
  for (const auto& t : thrown)
    if (t) std::rethrow_exception(t);
}

TEST_CASE("checkpoints that are alike are equal by their digests, and others by their bytes") {
  const auto w = weights();
  cairn::memory_store two, again, three;
  save(two, 2, w);
  save(again, 2, w);
  save(three, 3, w);
  auto a = opened(two), b = opened(again), c = opened(three);
  const auto same = cairn::compare_checkpoints(a, b);
  CHECK(same.equal());
  CHECK(same.items == 4);
  CHECK(same.by_digests == 4);
  CHECK(same.bytes_read == 0);
  std::uint64_t told = 0;
  cairn::compare_options options;
  options.items = {"w", "small", "bytes"};
  options.progress = [&](std::uint64_t done, std::uint64_t) { told = done; };
  for (const auto memory : {std::uint64_t{1} << 20, std::uint64_t{1} << 30}) {
    options.memory_bytes = memory;
    const auto other = cairn::compare_checkpoints(a, c, options);
    CHECK(other.equal());
    CHECK(other.by_digests == 2);
    CHECK(other.bytes_read >= 2 * w.size() * sizeof(float));
    CHECK(told == w.size() * sizeof(float) + 3 * 8);
  }
  const auto ranks = cairn::compare_checkpoints(a, c);
  REQUIRE(ranks.differences.size() == 1);
  CHECK(ranks.differences[0].name == "own");
  CHECK(ranks.differences[0].kind == difference_kind::shape);
  CHECK(ranks.differences[0].a == "2 ranks, F64 []");
  options.stop = [] { return true; };
  CHECK(!cairn::compare_checkpoints(a, c, options).complete);
  // One of several that chooses nothing, too: what was meant is not compared.
  for (const auto& items : {std::vector<std::string>{"v*"}, {"w*", "ow"}}) {
    const auto none =
        cairn_test::failure_of([&] { (void)cairn::compare_checkpoints(a, b, {.items = items}); });
    CHECK(none.id() == cairn::error_id::usage_unknown_name);
    CHECK(none.fields().item == items.back());
    CHECK((items.size() == 1 || std::string(none.what()).find("near it: own") != std::string::npos));
  }
}

TEST_CASE("of what differs, the blocks and the numbers are told") {
  auto w = weights();
  cairn::memory_store two, other, three;
  save(two, 2, w);
  w[5] += 0.5f;                                   // in the first block
  w[600 * 1024 + 7] = -w[600 * 1024 + 7] + 1000;  // in the first block of the second rank
  w[1199 * 1024] = std::numeric_limits<float>::quiet_NaN();
  save(other, 2, w, "next");
  save(three, 3, w, "next");
  auto a = opened(two), b = opened(other), c = opened(three);
  cairn::compare_options options;
  const auto blocks = cairn::compare_checkpoints(a, b, options);
  REQUIRE(blocks.differences.size() == 2);
  CHECK(blocks.differences[0].name == "bytes");
  CHECK(blocks.differences[0].differing == 1);
  CHECK(blocks.differences[1].name == "w");
  CHECK(blocks.differences[1].kind == difference_kind::content);
  CHECK(blocks.differences[1].differing == 3);
  CHECK(blocks.differences[1].blocks == 6);
  CHECK(blocks.bytes_read == 0);
  options.values = true;
  const auto values = cairn::compare_checkpoints(a, b, options);
  CHECK(values.bytes_read < 2 * 3 * 1024 * 1024 + 100'000);
  const auto of_other_ranks = cairn::compare_checkpoints(a, c, options);
  for (const auto* report : {&values, &of_other_ranks}) {
    const auto& v = report->differences.back().values;
    CHECK(report->differences.back().has_values);
    CHECK(v.differing == 3);
    CHECK(v.nan == 1);
    const auto was = static_cast<double>(weights()[600 * 1024 + 7]);
    CHECK(v.largest_absolute == std::fabs(1000 - 2 * was));
    CHECK(v.largest_relative ==
          doctest::Approx(std::fabs(1000 - 2 * was) / std::max(std::fabs(was), std::fabs(1000 - was))));
  }
}

TEST_CASE("items, kinds, shapes and dtypes that differ are told, and numbers across dtypes") {
  cairn::memory_store one, two;
  std::vector<float> f{1, 2, 3, 4};
  std::vector<double> d{1, 2, 3, 4.5};
  std::vector<std::byte> bytes(4);
  float value = 3;
  const auto put = [](const cairn::memory_store& store, cairn::state_dict& state) {
    cairn::checkpointer ckpt{store, quiet()};
    (void)ckpt.save(state, 1).wait();
  };
  {
    cairn::state_dict state;
    state.tensor("kind", f, {4});
    state.tensor("old", f, {4});
    state.tensor("shape", f, {4});
    state.tensor("type", f, {4});
    state.value("value", value);
    state.tensor("zero", f, {4});
    put(one, state);
  }
  std::vector<float> single{3}, negative{1, 2, 3, 4};
  {
    cairn::state_dict state;
    state.bytes("kind", bytes);
    state.tensor("new", f, {4});
    state.tensor("shape", f, {2, 2});
    state.tensor("type", d, {4});
    state.tensor("value", single, extents{});
    state.tensor("zero", negative, {4});
    put(two, state);
  }
  auto a = opened(one), b = opened(two);
  cairn::compare_options options;
  options.values = true;
  const auto report = cairn::compare_checkpoints(a, b, options);
  std::string text;
  for (const auto& x : report.differences)
    text += x.name + " " + std::string(name_of(x.kind)) + " " + x.a + "|" + x.b + "\n";
  CHECK(text ==
        "kind kind F32 [4]|bytes\n"
        "new only in B |F32 [4]\n"
        "old only in A F32 [4]|\n"
        "shape shape F32 [4]|F32 [2, 2]\n"
        "type dtype F32 [4]|F64 [4]\n");
  CHECK(report.items == 7);
  const auto& v = report.differences.back().values;
  CHECK((v.elements == 4 && v.differing == 1 && v.largest_absolute == 0.5));
}

/// What measure_checkpoint() says of one tensor of these bytes.
cairn::value_statistics measured(dtype type, std::vector<std::uint8_t> bytes) {
  cairn::memory_store store;
  const auto elements = static_cast<std::int64_t>(bytes.size() * 8 / cairn::bits_of(type));
  cairn::state_dict state;
  state.tensor("x", cairn::contiguous_view(bytes.data(), type, {elements}));
  cairn::checkpointer ckpt{store, quiet()};
  (void)ckpt.save(state, 1).wait();
  auto from = opened(store);
  return cairn::measure_checkpoint(from, {}).values;
}
template <class T>
std::vector<std::uint8_t> bytes_of_values(const std::vector<T>& values) {
  std::vector<std::uint8_t> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST_CASE("numbers of every dtype are measured") {
  struct known {
    dtype type;
    std::vector<std::uint8_t> bytes;
    double min, max;
    std::uint64_t nan, infinite, zeros;
  };
  const std::vector<known> all{
      {dtype::boolean, {0, 1, 1, 0}, 0, 1, 0, 0, 2},
      {dtype::u8, {0, 255, 7, 1}, 0, 255, 0, 0, 1},
      {dtype::i8, {0x80, 0x7f, 0}, -128, 127, 0, 0, 1},
      {dtype::i16, bytes_of_values<std::int16_t>({-32768, 5}), -32768, 5, 0, 0, 0},
      {dtype::u16, bytes_of_values<std::uint16_t>({65535, 5}), 5, 65535, 0, 0, 0},
      {dtype::i32, bytes_of_values<std::int32_t>({-7, 5}), -7, 5, 0, 0, 0},
      {dtype::u32, bytes_of_values<std::uint32_t>({4294967295u, 5}), 5, 4294967295.0, 0, 0, 0},
      {dtype::i64, bytes_of_values<std::int64_t>({-7, 1}), -7, 1, 0, 0, 0},
      {dtype::u64, bytes_of_values<std::uint64_t>({UINT64_MAX, 1}), 1, 0x1p64, 0, 0, 0},
      {dtype::f16, bytes_of_values<std::uint16_t>({0x7bff, 0xbc00, 0x7c00, 0x7e01, 0x8000}), -1, 65504, 1, 1,
       1},
      {dtype::bf16, bytes_of_values<std::uint16_t>({0x3fc0, 0xc000, 0xff80, 0x7fc0}), -2, 1.5, 1, 1, 0},
      {dtype::f32, bytes_of_values<float>({-1e30f, 2, INFINITY, NAN}), -1e30f, 2, 1, 1, 0},
      {dtype::f64, bytes_of_values<double>({-1e300, 2, -INFINITY, NAN}), -1e300, 2, 1, 1, 0},
      {dtype::c64, bytes_of_values<float>({1, -2, 0, 4}), -2, 4, 0, 0, 1},
      {dtype::f8_e5m2, {0x7b, 0xfb, 0x7c, 0xfc, 0x7d, 0x01}, -57344, 57344, 1, 2, 0},
      {dtype::f8_e4m3, {0x7e, 0xfe, 0x7f, 0xff, 0x80, 0x01}, -448, 448, 2, 0, 1},
      {dtype::f8_e8m0, {0, 127, 254, 255}, 0x1p-127, 0x1p127, 1, 0, 0},
      {dtype::f6_e2m3, {0x5f, 0xf0, 0x07}, -7.5, 7.5, 0, 0, 0},
      {dtype::f6_e3m2, {0x1f, 0xf8, 0x83}, -28, 28, 0, 0, 2},
      {dtype::f4, {0xf7, 0x08}, -6, 6, 0, 0, 2},
  };
  REQUIRE(all.size() == static_cast<std::size_t>(cairn::last_dtype) + 1);
  for (const auto& k : all) {
    CAPTURE(name_of(k.type));
    const auto v = measured(k.type, k.bytes);
    CHECK(v.min == k.min);
    CHECK(v.max == k.max);
    CHECK(v.nan == k.nan);
    CHECK(v.infinite == k.infinite);
    CHECK(v.zeros == k.zeros);
    CHECK(v.numbers == v.finite + v.nan + v.infinite);
  }
}

TEST_CASE("what is measured does not depend on how ranks cut it, nor on memory") {
  auto w = weights();
  w[70'000] = -std::numeric_limits<float>::infinity();
  cairn::memory_store stores[2];
  save(stores[0], 1, w);
  save(stores[1], 3, w);
  double sum = 0, squares = 0;
  for (const auto x : w)
    if (std::isfinite(x))
      sum += static_cast<double>(x), squares += static_cast<double>(x) * static_cast<double>(x);
  std::vector<cairn::value_statistics> found;
  for (auto& store : stores)
    for (const auto memory : {std::uint64_t{1} << 20, std::uint64_t{64} << 20}) {
      auto from = opened(store);
      cairn::statistics_options options;
      options.memory_bytes = memory;
      std::string names;
      options.found = [&](const cairn::item_statistics& item) {
        names += item.name + " ";
        if (item.name == "w") found.push_back(item.values);
        if (item.name == "own") CHECK(item.values.numbers == item.ranks);
      };
      const auto report = cairn::measure_checkpoint(from, options);
      CHECK(names == "own small w ");
      CHECK((report.items == 3 && report.left_out == 1));
      CHECK((report.nan_items == 0 && report.infinite_items == 1));
    }
  REQUIRE(found.size() == 4);
  for (const auto& v : found) {
    CHECK(std::bit_cast<std::uint64_t>(v.mean) == std::bit_cast<std::uint64_t>(found[0].mean));
    CHECK(std::bit_cast<std::uint64_t>(v.deviations) == std::bit_cast<std::uint64_t>(found[0].deviations));
    CHECK(std::bit_cast<std::uint64_t>(v.squares) == std::bit_cast<std::uint64_t>(found[0].squares));
  }
  const auto& v = found[0];
  CHECK((v.numbers == w.size() && v.finite == w.size() - 1 && v.infinite == 1));
  const auto mean = sum / static_cast<double>(v.finite);
  CHECK(v.mean == doctest::Approx(mean));
  CHECK(v.norm() == doctest::Approx(std::sqrt(squares)));
  CHECK(v.deviation() == doctest::Approx(std::sqrt(squares / static_cast<double>(v.finite) - mean * mean)));
}

TEST_CASE("what is read is verified, and safetensors of others are compared and measured as well") {
  const auto w = weights();
  cairn::memory_store store;
  save(store, 2, w, "text", false);
  cairn::memory_store files;
  for (const auto& object : store.list("step-00000001/"))
    if (object.key.ends_with(".safetensors"))
      files.put_new(object.key.substr(object.key.rfind('/') + 1),
                    store.read_all(object.key, object.bytes).value());
  cairn::readable_checkpoint foreign(cairn::safetensors_files(files).reader());
  auto own = opened(store);
  cairn::compare_options options;
  options.items = {"w", "small"};
  const auto report = cairn::compare_checkpoints(own, foreign, options);
  CHECK(report.equal());
  CHECK(report.bytes_read >= 2 * w.size() * sizeof(float));
  cairn::statistics_options only;
  only.items = {"w"};
  CHECK(cairn::measure_checkpoint(foreign, only).values.mean ==
        cairn::measure_checkpoint(own, only).values.mean);
  for (const auto& object : store.list("step-00000001/"))
    if (object.key.ends_with(".safetensors")) {
      auto bytes = store.read_all(object.key, object.bytes).value();
      bytes[bytes.size() / 2] ^= std::byte{1};
      store.remove(object.key);
      store.put_new(object.key, bytes);
      break;
    }
  auto damaged = opened(store);
  CHECK(failure_of([&] { (void)cairn::measure_checkpoint(damaged, {}); }).kind() ==
        cairn::error_kind::corrupt);
}

TEST_CASE("a checkpoint is written for other ranks, and holds the same") {
  const auto w = weights();
  cairn::memory_store store;
  save(store, 2, w);
  auto from = opened(store);
  for (const int ranks : {1, 2, 5}) {
    CAPTURE(ranks);
    cairn::memory_store target;
    cairn::reshard_options options;
    options.ranks = ranks;
    options.dimension = ranks == 5 ? 1 : 0;
    options.memory_bytes = std::uint64_t{4} << 20;
    std::uint64_t told = 0;
    options.progress = [&](std::uint64_t done, std::uint64_t all) { told = done == all ? all : 0; };
    const auto report = cairn::reshard_checkpoint(from, cairn::any_store(target), options);
    CHECK(report.complete);
    CHECK(report.items == 4);
    CHECK(report.bytes == w.size() * 4 + 3 * 8 + 4 + static_cast<std::uint64_t>(std::min(ranks, 2)) * 8);
    CHECK(told == report.bytes);
    CHECK(report.left_out ==
          (ranks == 1 ? std::vector<std::string>{"own of 1 rank"} : std::vector<std::string>{}));
    auto made = opened(target);
    CHECK(made.metadata().world_size == ranks);
    REQUIRE(made.metadata().annotations.find("loss") != nullptr);
    CHECK(made.metadata().annotations == from.metadata().annotations);
    CHECK(made.metadata().find("w")->chunks.size() == static_cast<std::uint64_t>(ranks));
    cairn::compare_options all;
    if (ranks == 1) all.items = {"w", "small", "bytes"};
    CHECK(cairn::compare_checkpoints(from, made, all).equal());
    std::size_t files = 0;
    for (const auto& object : target.list("step-00000001/")) files += object.key.ends_with(".safetensors");
    CHECK(files == static_cast<std::size_t>(ranks));
    // It loads and goes on as any other.
    std::vector<float> back(w.size());
    cairn::state_dict state;
    state.tensor("w", back, {rows, columns});
    cairn::checkpointer ckpt{target, quiet()};
    (void)ckpt.load(state, 1, cairn::partial);
    CHECK(back == w);
    CHECK(failure_of([&] {
            (void)cairn::reshard_checkpoint(from, cairn::any_store(target), options);
          }).id() == cairn::error_id::storage_already_committed);
  }
}

/// A safetensors file of others with one number.
std::vector<std::byte> file_with(const std::string& item, float value) {
  cairn::safetensors_header header;
  cairn::safetensors_entry entry;
  entry.key = item, entry.type = dtype::f32, entry.shape = extents{1}, entry.end = sizeof value;
  header.entries.push_back(entry);
  auto bytes = cairn::encode_safetensors_header(header);
  const auto data = std::as_bytes(std::span(&value, 1));
  bytes.insert(bytes.end(), data.begin(), data.end());
  return bytes;
}

TEST_CASE("of two models that follow each other under the names of their files no checkpoint is made") {
  const cairn_test::scratch_directory directory;
  cairn::file_store models{directory.path()};
  const auto put = [&](const std::string& name, const std::string& item, float value) {
    models.put_new(name, file_with(item, value));
  };
  put("a.safetensors", "a", 1);
  put("b.safetensors", "b", 1);
  put("next-a", "a", 2);
  put("next-b", "b", 2);
  const auto replace = [&] {
    for (const std::string name : {"a", "b"})
      REQUIRE(std::rename((directory.path() + "/next-" + name).c_str(),
                          (directory.path() + "/" + name + ".safetensors").c_str()) == 0);
  };
  cairn::readable_checkpoint from(cairn::safetensors_files{directory.path()}.reader());
  cairn::memory_store target;
  SUBCASE("when the one was read, and the other not yet") {
    cairn::reshard_options options;
    options.ranks = 2;  // each has one of the numbers, and they are written one after the other
    bool replaced = false;
    options.progress = [&](std::uint64_t, std::uint64_t) {
      if (!std::exchange(replaced, true)) replace();
    };
    const auto refused =
        failure_of([&] { (void)cairn::reshard_checkpoint(from, cairn::any_store(target), options); });
    CHECK(replaced);
    CHECK(refused.id() == cairn::error_id::corrupt_identity);
    CHECK(cairn::safetensors_reader(cairn::any_store(target)).list().empty());
  }
  SUBCASE("when they were opened, and none was read yet") {
    replace();
    CHECK(failure_of([&] { (void)cairn::measure_checkpoint(from, {}); }).id() ==
          cairn::error_id::corrupt_identity);
  }
}

TEST_CASE("a resharding from a store without identities finds another header") {
  cairn::memory_store models, target;
  models.put_new("a.safetensors", file_with("a", 1));
  models.put_new("b.safetensors", file_with("b", 1));
  cairn::readable_checkpoint from(cairn::safetensors_files(models).reader());
  cairn::reshard_options options;
  options.ranks = 2;
  bool replaced = false;
  options.progress = [&](std::uint64_t, std::uint64_t) {
    if (std::exchange(replaced, true)) return;
    models.remove("b.safetensors");
    models.put_new("b.safetensors", file_with("c", 2));
  };
  CHECK(failure_of([&] { (void)cairn::reshard_checkpoint(from, cairn::any_store(target), options); }).id() ==
        cairn::error_id::corrupt_identity);
  CHECK(cairn::safetensors_reader(cairn::any_store(target)).list().empty());
}

TEST_CASE("packed tensors whose rows fill no whole bytes are measured, compared and written like others") {
  struct packed {
    const char* name;
    dtype type;
    extents shape;
  };
  const std::vector<packed> all{{"small", dtype::f4, {4, 3}},
                                {"rows", dtype::f4, {700'000, 3}},
                                {"deep", dtype::f4, {6, 2'001, 7}},
                                {"six", dtype::f6_e2m3, {8, 5}},
                                {"wide", dtype::f4, {2, 1'500'001}}};
  cairn::safetensors_header header;
  std::vector<std::byte> data;
  for (const auto& p : all) {
    cairn::safetensors_entry e;
    e.key = p.name, e.type = p.type, e.shape = p.shape, e.begin = data.size();
    data.resize(data.size() + cairn::bytes_of(p.type, p.shape.volume()));
    e.end = data.size();
    header.entries.push_back(std::move(e));
  }
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 37 % 251);
  auto file = cairn::encode_safetensors_header(header, 8);
  file.insert(file.end(), data.begin(), data.end());
  cairn::memory_store theirs;
  theirs.put_new("model.safetensors", file);
  cairn::readable_checkpoint foreign(cairn::safetensors_files(theirs).reader());
  cairn::memory_store store;
  cairn::import_options options;
  options.step = 1;
  (void)cairn::import_safetensors(cairn::safetensors_files(theirs).reader(), cairn::any_store(store),
                                  options);
  auto from = opened(store);
  const auto measured_now = cairn::measure_checkpoint(from, {});
  std::uint64_t numbers = 0;
  for (const auto& p : all) numbers += static_cast<std::uint64_t>(p.shape.volume());
  CHECK(measured_now.values.numbers == numbers);
  for (const int dimension : {0, 1}) {
    CAPTURE(dimension);
    cairn::memory_store target;
    CHECK(cairn::reshard_checkpoint(
              from, cairn::any_store(target),
              {.ranks = 2, .dimension = dimension, .memory_bytes = std::uint64_t{4} << 20})
              .complete);
    auto made = opened(target);
    CHECK(cairn::compare_checkpoints(foreign, made, {}).equal());
    const auto again = cairn::measure_checkpoint(made, {}).values;
    CHECK((again.zeros == measured_now.values.zeros && again.mean == measured_now.values.mean));
    cairn::memory_store files;
    cairn::safetensors_reader reader{cairn::any_store(target)};
    CHECK(cairn::export_safetensors(reader, 1, files, {.memory_bytes = 1}).tensors == all.size());
    cairn::readable_checkpoint exported(cairn::safetensors_files(files).reader());
    CHECK(cairn::compare_checkpoints(foreign, exported, {}).equal());
  }
}

TEST_CASE("a checkpoint is written for many ranks without a look for what none of them writes") {
  const auto w = weights();
  cairn::memory_store store, target;
  save(store, 1, w);
  const auto faults = std::make_shared<cairn_test::store_faults>();
  std::atomic<int> looks = 0;  // for headers that a rank collects of others
  faults->add(
      {.for_ever = true, .action = [&](std::string_view key) { looks += key.ends_with(".records"); }});
  auto from = opened(store);
  const auto report = cairn::reshard_checkpoint(
      from, cairn::any_store(cairn_test::faulty_store<cairn::memory_store>{target, faults}),
      {.ranks = 300, .items = {"w"}});
  CHECK(report.complete);
  CHECK(looks == 0);
  auto made = opened(target);
  CHECK(made.metadata().find("w")->chunks.size() == 300);
  CHECK(cairn::compare_checkpoints(from, made, {.items = {"w"}}).equal());
}

TEST_CASE("a checkpoint is written for more ranks than there is anything to write") {
  const cairn::memory_store store, target;
  {
    std::vector<float> few{1, 2, 3};
    cairn::state_dict state;
    state.tensor("few", few, {3});
    cairn::checkpointer ckpt{store, quiet()};
    ckpt.save(state, 1).wait();
  }
  auto from = opened(store);
  const auto report = cairn::reshard_checkpoint(from, cairn::any_store(target), {.ranks = 5});
  CHECK(report.complete);
  std::vector<float> few(3);
  cairn::state_dict state;
  state.tensor("few", few, {3});
  cairn::checkpointer ckpt{target, quiet()};
  ckpt.load(state, 1);
  CHECK(few == std::vector<float>{1, 2, 3});
}

TEST_CASE("who writes for several ranks waits for none whose record somebody removes before the commit") {
  cairn::memory_store target;
  const auto faults = std::make_shared<cairn_test::store_faults>();
  faults->add({.kind = cairn_test::store_call::put_new,
               .after = true,
               .key_contains = "/rank-00001.",
               .action = [&](std::string_view key) { target.remove(std::string(key)); }});
  const cairn::any_store watched(cairn_test::faulty_store<cairn::memory_store>{target, faults});
  cairn::error_id refused{};
  SUBCASE("a resharding") {
    cairn::memory_store store;
    save(store, 1, weights());
    auto from = opened(store);
    cairn::reshard_options options;
    options.ranks = 2;
    options.timeout = std::chrono::milliseconds(100);
    refused = failure_of([&] { (void)cairn::reshard_checkpoint(from, watched, options); }).id();
  }
  SUBCASE("an import") {
    cairn::memory_store files;
    for (const char* name : {"a", "b"}) {
      cairn::safetensors_header header;
      cairn::safetensors_entry e;
      e.key = name, e.type = cairn::dtype::f32, e.shape = cairn::extents{2}, e.end = 8;
      header.entries.push_back(e);
      auto file = cairn::encode_safetensors_header(header, 8);
      file.resize(file.size() + 8);
      files.put_new(std::string(name) + ".safetensors", file);
    }
    cairn::import_options options;
    options.timeout = std::chrono::milliseconds(100);
    refused = failure_of([&] {
                (void)cairn::import_safetensors(cairn::safetensors_files(files).reader(), watched, options);
              }).id();
  }
  CHECK(faults->triggered() == 1);
  CHECK(refused == cairn::error_id::peer_lost);
  CHECK(cairn::safetensors_reader(cairn::any_store(target)).list().empty());
}

TEST_CASE("a resharding whose record somebody has removed is ended by its caller while it waits for that") {
  cairn::memory_store store, target;
  save(store, 1, weights());
  const auto faults = std::make_shared<cairn_test::store_faults>();
  faults->add({.kind = cairn_test::store_call::put_new,
               .after = true,
               .key_contains = "/rank-00001.",
               .action = [&](std::string_view key) { target.remove(std::string(key)); }});
  auto from = opened(store);
  std::atomic<int> asked{0};
  cairn::reshard_options options;
  options.ranks = 2;
  options.stop = [&] {
    return faults->triggered() == 1 && ++asked > 1;
  };  // not at the look before the commit
  const cairn::any_store watched(cairn_test::faulty_store<cairn::memory_store>{target, faults});
  CHECK(!cairn::reshard_checkpoint(from, watched, options).complete);
  CHECK(cairn::safetensors_reader(cairn::any_store(target)).list().empty());
}

TEST_CASE("what ends a resharding leaves no checkpoint") {
  const auto w = weights();
  cairn::memory_store store, target;
  save(store, 2, w);
  auto from = opened(store);
  cairn::reshard_options options;
  options.stop = [] { return true; };
  CHECK(!cairn::reshard_checkpoint(from, cairn::any_store(target), options).complete);
  cairn::checkpointer looks{target, quiet(), cairn::read_only{}};
  CHECK(looks.list().empty());
  options.stop = {};
  options.items = {"w", "nothing"};
  CHECK(failure_of([&] { (void)cairn::reshard_checkpoint(from, cairn::any_store(target), options); }).id() ==
        cairn::error_id::usage_unknown_name);
  options.ranks = 0;
  CHECK(failure_of([&] { (void)cairn::reshard_checkpoint(from, cairn::any_store(target), options); }).id() ==
        cairn::error_id::usage_bad_option);
  options = {};
  for (const auto& object : store.list("step-00000001/"))
    if (object.key.ends_with(".safetensors")) {
      auto bytes = store.read_all(object.key, object.bytes).value();
      bytes[bytes.size() / 2] ^= std::byte{1};
      store.remove(object.key);
      store.put_new(object.key, bytes);
    }
  CHECK(failure_of([&] {
          (void)cairn::reshard_checkpoint(from, cairn::any_store(target), options);
        }).kind() == cairn::error_kind::corrupt);
  CHECK(looks.list().empty());
}

}  // namespace
