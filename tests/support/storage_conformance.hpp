// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every Storage does: a StorageWriter and the StorageReader that belongs to it. A storage's test file
// gives an environment of a few lines and invokes the suite:
//
//   struct in_memory {
//     cairn::memory_store objects;
//     // Each call gives a handle on the same storage, which is empty at first.
//     auto make() { return cairn::safetensors_storage{objects}; }
//   };
//   TEST_CASE_TEMPLATE_INVOKE(storage_conformance, in_memory);
#include "saved_world.hpp"

#include <cairn/concepts/storage.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace cairn_test {

/// `count` elements, make(i) each: without the calls of push_back, which builds without optimisation do not
/// inline.
template <class T, class Make>
void fill_with(std::vector<T>& list, std::size_t count, Make make) {
  list.resize(count);
  T* const to = list.data();
  for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<T>(make(i));
}

/// Fills a list with elements begin to begin + count of the `all` that make(i) gives for a key. Those of the last keys are kept:
/// to make them takes most of the time of a test whose many states are the same.
template <class T, class Make>
void fill_once(std::vector<T>& list, std::size_t key, std::size_t begin, std::size_t count, std::size_t all,
               Make make) {
  static std::mutex mutex;
  static std::map<std::size_t, std::vector<T>> kept;
  const std::lock_guard lock(mutex);
  if (kept.size() > 8) kept.clear();
  auto& made = kept[key];
  if (made.size() < all) fill_with(made, all, make);
  list.assign(made.data() + begin, made.data() + begin + count);
}

/// Compares bytes, which is far faster than == where nothing is inlined.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// One rank's memory with a bit of everything; what it holds depends on a seed.
struct sample_state {
  std::vector<float> sharded;       ///< rows of a global tensor
  std::vector<double> large;        ///< replicated, several blocks
  std::vector<std::uint16_t> flat;  ///< a range of the flattened tensor, in several boxes
  std::vector<std::int8_t> odd;
  std::vector<float> strided;  ///< every second column is part of the state
  double lr = 0;
  std::int64_t count = 0;
  bool flag = false;
  std::vector<unsigned char> loader;  ///< of any size
  std::vector<unsigned char> rng;     ///< per rank
  std::vector<float> statistics;      ///< per rank
  cairn::state_dict state;

  sample_state(int rank, int world, int seed, std::size_t blob = 3000) {
    const auto r = static_cast<std::size_t>(rank);
    const auto w = static_cast<std::size_t>(world);
    const auto s = static_cast<std::size_t>(seed);
    const std::size_t rows = 24 / w;
    fill_once(sharded, s, r * rows * 10007, rows * 10007, 24 * 10007,
              [=](std::size_t i) { return s * 7 + i; });
    fill_once(large, s, 0, 300'000, 300'000,
              [=](std::size_t i) { return static_cast<double>(s * 3 + i) * 0.25; });
    const std::size_t flat_size = 7 * 11 * 13;
    flat_begin = r * flat_size / w;
    for (std::size_t i = flat_begin; i < (r + 1) * flat_size / w; ++i)
      flat.push_back(static_cast<std::uint16_t>(s + i));
    for (std::size_t i = 0; i < 77; ++i) odd.push_back(static_cast<std::int8_t>(s + i));
    for (std::size_t i = 0; i < 40 * 6; ++i) strided.push_back(static_cast<float>(s * 100 + i));
    lr = 0.5 * seed;
    count = seed * 1'000'000'007LL;
    flag = seed % 2 == 1;
    fill_with(loader, blob * s, [=](std::size_t i) { return i * s; });
    for (std::size_t i = 0; i < 100 + r; ++i) rng.push_back(static_cast<unsigned char>(i + s + r));
    for (std::size_t i = 0; i < 5; ++i) statistics.push_back(static_cast<float>(s * 10 + r + i));

    state.value("flag", flag);
    state.bytes("loader", loader);
    state.tensor("sharded", sharded, cairn::shard{{24, 10007}, {static_cast<std::int64_t>(r * rows), 0}});
    state.tensor("odd", odd, {7, 11});
    state.tensor(
        "flat", flat.data(),
        cairn::flat_shard{
            {7, 11, 13}, static_cast<std::int64_t>(flat_begin), static_cast<std::int64_t>(flat.size())});
    state.tensor("large", large, {300, 1000});
    cairn::tensor_view view = cairn::contiguous_view(strided.data(), cairn::dtype::f32, {40, 3});
    view.strides[0] = 6, view.strides[1] = 2;
    state.tensor("strided", view);
    state.value("lr", lr);
    state.value("count", count);
    state.bytes("rng", rng, cairn::per_rank);
    state.tensor("statistics", statistics, {5}, cairn::per_rank);
  }
  sample_state(const sample_state&) = delete;
  sample_state& operator=(const sample_state&) = delete;

  /// What is saved is equal.
  [[nodiscard]] bool equals(const sample_state& o) const {
    bool same = same_bits(sharded, o.sharded) && same_bits(large, o.large) && flat == o.flat &&
                odd == o.odd && lr == o.lr && count == o.count && flag == o.flag &&
                same_bits(loader, o.loader) && rng == o.rng && statistics == o.statistics;
    for (std::size_t i = 0; i < strided.size(); i += 2) same = same && strided[i] == o.strided[i];
    return same;
  }

 private:
  std::size_t flat_begin = 0;
};

class sample_world {
 public:
  sample_world(int world, int seed, std::size_t blob = 3000) {
    for (int r = 0; r < world; ++r) ranks_.push_back(std::make_unique<sample_state>(r, world, seed, blob));
  }
  [[nodiscard]] std::vector<const cairn::state_dict*> states() const {
    std::vector<const cairn::state_dict*> all;
    for (const auto& r : ranks_) all.push_back(&r->state);
    return all;
  }
  [[nodiscard]] sample_state& at(std::size_t rank) { return *ranks_[rank]; }
  friend bool operator==(const sample_world& a, const sample_world& b) {
    bool same = a.ranks_.size() == b.ranks_.size();
    for (std::size_t r = 0; same && r < a.ranks_.size(); ++r) same = a.ranks_[r]->equals(*b.ranks_[r]);
    return same;
  }

 private:
  std::vector<std::unique_ptr<sample_state>> ranks_;
};

TEST_CASE_TEMPLATE_DEFINE("a Storage keeps the contract", Environment, storage_conformance) {
  using cairn::error_id;
  Environment environment;
  auto storage = environment.make();
  auto writer = storage.writer();
  auto reader = storage.reader();
  const auto late = [] { return cairn::deadline::in(std::chrono::milliseconds(5)); };
  CHECK_FALSE(static_cast<std::string>(storage.describe()).empty());
  CHECK(reader.list().empty());

  SUBCASE(
      "what ranks write, they read back, whatever the staging, with sizes that change from save to save") {
    std::int64_t step = 0;
    for (const auto how : {staging::copied, staging::copied_without_digests, staging::none}) {
      ++step;
      const sample_world saved(3, static_cast<int>(step), static_cast<std::size_t>(700'000 * (step - 1)));
      world_save save(writer, saved.states(), step, {1, 2}, 0, how);
      save.run();
      sample_world loaded(3, 9, 1);
      load_world(reader, step, loaded.states(), {.memory_budget = step == 1 ? 1u : 64u << 20});
      CHECK(loaded == saved);
      auto opened = reader.open(step, reader.fetch(step));
      CHECK(reader.verify(opened, soon()) > 0);
    }
    CHECK(reader.list() == std::vector<std::int64_t>{1, 2, 3});
    CHECK(writer.clean({7, 7}) == 0);
    CHECK(reader.list().size() == 3);
  }
  SUBCASE("a checkpoint does not exist before its commit, nor after its removal") {
    const sample_world saved(2, 1);
    world_save save(writer, saved.states(), 4);
    save.write(0), save.write(1);
    CHECK(reader.list().empty());
    CHECK(failure_of([&] { (void)reader.fetch(4); }).id == error_id::storage_not_committed);
    CHECK(failure_of([&] { writer.await_commit(save.context(1), late()); }).id == error_id::timeout_commit);
    save.commit();
    writer.await_commit(save.context(1), late());
    CHECK(reader.list() == std::vector<std::int64_t>{4});
    writer.remove(4);
    CHECK(reader.list().empty());
    CHECK(failure_of([&] { (void)reader.fetch(4); }).id == error_id::storage_not_committed);
  }
  SUBCASE("only one save of a step is committed") {
    const sample_world saved(1, 1);
    world_save(writer, saved.states(), 4).run();
    world_save again(writer, saved.states(), 4, {1, 2}, 1);
    CHECK(failure_of([&] { again.run(); }).id == error_id::storage_already_committed);
    writer.abort(again.context(0), std::make_exception_ptr(1));
    sample_world loaded(1, 9);
    load_world(reader, 4, loaded.states());
    CHECK(loaded == saved);
  }
  SUBCASE("a failure of one rank is everyone's") {
    const sample_world saved(3, 1);
    world_save save(writer, saved.states(), 4);
    save.write(0), save.write(1);
    writer.abort(save.context(2), cairn::make_failure(error_id::storage_no_space, "full"));
    const auto why = failure_of([&] { save.commit(); });
    CHECK(why.fields.rank == 2);
    writer.abort(save.context(0), cairn::make_failure(*why.id, why.text));
    CHECK(failure_of([&] { writer.await_commit(save.context(1), late()); }).fields.rank == 2);
    CHECK(reader.list().empty());
  }
  SUBCASE("a checkpoint that is set aside does not exist") {
    const sample_world saved(1, 1);
    world_save(writer, saved.states(), 4).run();
    world_save(writer, saved.states(), 5).run();
    if (writer.quarantine(5)) CHECK(reader.list() == std::vector<std::int64_t>{4});
  }
  SUBCASE("layouts depend on nothing but their arguments") {
    const sample_world saved(2, 1);
    const auto world = plan_world(saved.states());
    std::vector<std::uint64_t> bytes;
    for (const auto& item : world.plans[0].items) bytes.push_back(item.bytes);
    const auto a = writer.layout(world.plans[0], bytes, 0);
    const auto b = storage.writer().layout(world.plans[0], bytes, 0);
    CHECK(a.bytes == b.bytes);
    CHECK(a.blocks == b.blocks);
    REQUIRE(a.segments.size() == b.segments.size());
    for (std::size_t i = 0; i < a.segments.size(); ++i) {
      CHECK(a.segments[i].header == b.segments[i].header);
      CHECK(a.segments[i].begin % cairn::image_alignment == 0);
    }
    for (std::size_t i = 1; i < a.items.size(); ++i)
      CHECK(a.items[i].begin >= a.items[i - 1].begin + a.items[i - 1].bytes);
    CHECK(writer.fingerprint() == storage.writer().fingerprint());
  }
}

}  // namespace cairn_test
