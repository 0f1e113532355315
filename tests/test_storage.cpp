// SPDX-License-Identifier: Apache-2.0
// group: checkpoints
// cost: 35
// The Storage conformance suite on safetensors over several stores, and what damaged bytes do to loads.
// threaded
#include <cairn/concepts/any_storage.hpp>
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/manage/verify.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/storage/safetensors/safetensors_layout.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/stores/memory_store.hpp>
#include <cairn/system/digest.hpp>

#include "support/byte_store_archetype.hpp"
#include "support/rounds.hpp"
#include "support/scratch_directory.hpp"
#include "support/storage_archetype.hpp"
#include "support/storage_conformance.hpp"
#include "support/stored_sample.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {
using namespace cairn_test;
using cairn::error_id;

struct in_memory {
  cairn::memory_store objects;
  auto make() { return cairn::safetensors_storage{objects}; }
};
struct in_files {
  scratch_directory directory;
  auto make() { return cairn::safetensors_storage{cairn::file_store{directory.path() + "/checkpoints"}}; }
};
struct over_the_least_store {
  cairn::memory_store objects;
  auto make() { return cairn::safetensors_storage{byte_store_archetype::over(objects)}; }
};
struct the_least_storage {
  cairn::memory_store objects;
  auto make() { return storage_archetype::over(objects); }
};
struct of_any_type {
  cairn::memory_store objects;
  auto make() { return cairn::any_storage{cairn::safetensors_storage{objects}}; }
};
struct of_the_least_type {
  cairn::memory_store objects;
  auto make() { return cairn::any_storage{storage_archetype::over(objects)}; }
};
TEST_CASE_TEMPLATE_INVOKE(storage_conformance, in_memory, in_files, over_the_least_store, the_least_storage,
                          of_any_type, of_the_least_type);

// Each differs from the real one in one point, and is no StorageWriter or StorageReader.
using real_writer = cairn::safetensors_writer<cairn::memory_store>;
using real_reader = cairn::safetensors_reader;
struct write_gives_nothing : real_writer {
  void write(const cairn::save_context&, const cairn::staged_image&, cairn::deadline) {}
};
struct abort_may_throw : real_writer {
  void abort(const cairn::save_context&, std::exception_ptr) {}
};
struct list_gives_ints : real_reader {
  std::vector<int> list() { return {}; }
};
struct fetch_may_give_none : real_reader {
  std::optional<std::vector<std::byte>> fetch(std::int64_t) { return {}; }
};
static_assert(cairn::StorageWriter<real_writer> && cairn::StorageReader<real_reader>);
static_assert(!cairn::StorageWriter<write_gives_nothing> && !cairn::StorageWriter<abort_may_throw>);
static_assert(!cairn::StorageReader<list_gives_ints> && !cairn::StorageReader<fetch_may_give_none>);

// What they may offer besides, and what is none of it.
static_assert(cairn::FindsWritingRank<real_writer> && cairn::TestsStore<real_writer> &&
              cairn::LeasingWriter<real_writer> && cairn::TracksRestarts<real_writer> &&
              cairn::AnnouncesSaves<real_writer> && cairn::ReportsLiveSaves<real_writer> &&
              cairn::LocatesCheckpoints<real_writer> && cairn::ReportsReaders<real_writer> &&
              cairn::PinsCheckpoints<real_writer> && cairn::RemovesAttempts<real_writer> &&
              cairn::ShowsRuns<real_writer> && cairn::KnowsRoot<real_writer>);
static_assert(cairn::GatedReader<real_reader> && cairn::SharingReader<real_reader> &&
              cairn::ReportsRuns<real_reader> && cairn::ComparesBlocks<real_reader> &&
              cairn::ListsFrom<real_reader> && !cairn::ListsFrom<storage_reader_archetype>);
static_assert(
    !cairn::AnnouncesSaves<storage_writer_archetype> && !cairn::ReportsLiveSaves<storage_writer_archetype> &&
    !cairn::LocatesCheckpoints<storage_writer_archetype> &&
    !cairn::ReportsReaders<storage_writer_archetype> && !cairn::PinsCheckpoints<storage_writer_archetype> &&
    !cairn::RemovesAttempts<storage_writer_archetype> && !cairn::ShowsRuns<storage_writer_archetype> &&
    !cairn::KnowsRoot<storage_writer_archetype> && !cairn::SharingReader<storage_reader_archetype> &&
    !cairn::ReportsRuns<storage_reader_archetype> && !cairn::ComparesBlocks<storage_reader_archetype>);
struct retract_may_throw : real_writer {
  void retract(const cairn::save_context&) {}
};
struct announces_a_number : real_writer {
  int announce(const cairn::save_context&) { return 0; }
};
struct live_saves_are_steps : real_writer {
  std::vector<std::int64_t> live_saves(cairn::run_id) { return {}; }
};
struct place_is_a_number : real_writer {
  int location_of(std::int64_t) { return 0; }
};
struct pinned_are_ints : real_writer {
  std::vector<int> pinned() { return {}; }
};
struct readers_are_counted : real_writer {
  std::size_t readers(std::int64_t) { return 0; }
};
static_assert(!cairn::PinsCheckpoints<pinned_are_ints> && !cairn::ReportsReaders<readers_are_counted>);
struct run_is_a_number : real_reader {
  std::uint64_t run_of(std::int64_t) { return 0; }
};
static_assert(!cairn::AnnouncesSaves<retract_may_throw> && !cairn::AnnouncesSaves<announces_a_number> &&
              !cairn::ReportsLiveSaves<live_saves_are_steps> &&
              !cairn::LocatesCheckpoints<place_is_a_number>);
static_assert(!cairn::ReportsRuns<run_is_a_number>);
struct shared_bytes_are_not_told : storage_reader_archetype {
  void read_shared(checkpoint_type&, const cairn::state_dict&, const cairn::load_plan&,
                   const cairn::target_resolver&, cairn::read_options, cairn::read_exchange&,
                   cairn::deadline);
};
struct shares_the_least : storage_reader_archetype {
  std::uint64_t read_shared(checkpoint_type&, const cairn::state_dict&, const cairn::load_plan&,
                            const cairn::target_resolver&, cairn::read_options, cairn::read_exchange&,
                            cairn::deadline) &;
};
static_assert(cairn::SharingReader<shares_the_least> && !cairn::SharingReader<shared_bytes_are_not_told>);
static_assert(cairn::Storage<cairn::any_storage> && !cairn::Portable<cairn::any_writer>);

/// A StorageWriter with no more than what the concept and one function besides ask.
struct announcing_writer : storage_writer_archetype {
  explicit announcing_writer(storage_writer_archetype inner) : storage_writer_archetype(std::move(inner)) {}
  cairn::save_announcement announce(const cairn::save_context&) & {
    return cairn::save_announcement(std::make_shared<int>(0), 7);
  }
  cairn::save_announcement announce_worker(const cairn::save_context&) & { return {}; }
  void retract(const cairn::save_context& c) & noexcept { *retracted = c.step; }
  std::shared_ptr<std::int64_t> retracted = std::make_shared<std::int64_t>(-1);
};

/// A StorageWriter that says at run time how it is made again.
struct remade_writer : storage_writer_archetype {
  explicit remade_writer(storage_writer_archetype inner) : storage_writer_archetype(std::move(inner)) {}
  static cairn::any_writer make(std::span<const std::byte>) { throw std::logic_error("not in this process"); }
  cairn::writer_maker maker() const noexcept { return &make; }
  std::string_view type_name() const noexcept { return "another type"; }
  std::vector<std::byte> description() const { return {std::byte{7}}; }
};
struct maker_may_throw : remade_writer {
  cairn::writer_maker maker() const { return nullptr; }
};
static_assert(cairn::RemadeByMaker<remade_writer> && !cairn::RemadeByMaker<maker_may_throw> &&
              !cairn::RemadeByMaker<storage_writer_archetype> && !cairn::RemadeByMaker<real_writer>);

TEST_CASE("a handle describes its writer as the writer itself says, where it says so") {
  cairn::memory_store objects;
  auto least = storage_archetype::over(objects);
  const cairn::any_writer writer(remade_writer(least.writer()));
  CHECK((writer.maker() == &remade_writer::make));
  CHECK(writer.type_name() == "another type");
  CHECK(writer.description() == std::vector<std::byte>{std::byte{7}});
}

TEST_CASE("a handle over the smallest writer and reader has a fallback for each capability") {
  cairn::memory_store objects;
  auto least = storage_archetype::over(objects);
  cairn::any_writer writer(least.writer());
  cairn::any_reader reader(least.reader());
  const auto until = cairn::deadline::in(std::chrono::minutes(1));
  CHECK(writer.other_writing_rank({}) == -1);
  CHECK_FALSE(writer.tests_store());
  CHECK(writer.test_store().points.empty());
  CHECK(writer.sees_mark({}) == cairn::mark_visibility::seen);
  CHECK_FALSE(writer.lease(1, until).held());
  writer.note_restart({}, 1);
  CHECK(writer.restarts().empty());
  CHECK(writer.forget_restarts(1) == 0);
  CHECK_FALSE(writer.announce({}).shown());
  CHECK(writer.live_saves({}).empty());
  CHECK(writer.location_of(1).empty());
  CHECK(writer.root_identity().empty());
  writer.require_root({.identity = "1", .step = 2});
  CHECK((writer.maker() == nullptr));
  CHECK(failure_of([&] { static_cast<void>(writer.description()); }).id == error_id::usage_bad_option);
  CHECK_FALSE(reader.shares());
  CHECK_FALSE(reader.reports_runs());
  CHECK_FALSE(reader.run_of(1).has_value());
}

TEST_CASE("a handle has the capabilities of its writer and its reader") {
  scratch_directory directory;
  cairn::safetensors_storage real{cairn::file_store{directory.path() + "/checkpoints"}};
  cairn::any_writer writer(real.writer());
  const auto until = cairn::deadline::in(std::chrono::minutes(1));
  CHECK(writer.location_of(3) == real.writer().location_of(3));
  CHECK(writer.root_identity().empty());  // there is none yet
  CHECK(failure_of([&] { writer.require_root({.identity = "1", .step = 2}); }).id ==
        error_id::storage_not_found);
  CHECK(writer.tests_store());
  CHECK_FALSE(writer.test_store().points.empty());
  writer.note_restart({1, 2}, 3);
  CHECK(real.writer().restarts() == std::vector<std::int64_t>{3});
  CHECK(failure_of([&] { static_cast<void>(writer.lease(3, until)); }).id == error_id::storage_not_committed);
  cairn::any_reader reader(real.reader());
  CHECK(reader.shares());
  CHECK(reader.reports_runs());
  CHECK(failure_of([&] { static_cast<void>(reader.run_of(3)); }).id == error_id::storage_not_committed);

  cairn::memory_store objects;
  auto least = storage_archetype::over(objects);
  announcing_writer announcing(least.writer());
  const auto retracted = announcing.retracted;
  cairn::any_writer shown(std::move(announcing));
  const auto copy = shown;
  CHECK(shown.announce({}).lock_descriptor() == 7);
  CHECK_FALSE(shown.announce_worker({}).shown());
  cairn::save_context c;
  c.step = 11;
  shown.retract(c);
  CHECK(*retracted == 11);
}

TEST_CASE("a handle says how its writer is made again, where that can be done") {
  scratch_directory directory;
  cairn::safetensors_storage real{cairn::file_store{directory.path() + "/checkpoints"}};
  cairn::any_writer writer(real.writer());
  REQUIRE((writer.maker() != nullptr));
  auto again = writer.maker()(writer.description());
  CHECK(again.type_name() == writer.type_name());
  CHECK(again.description() == writer.description());
  again.note_restart({1, 2}, 5);
  CHECK(writer.restarts() == std::vector<std::int64_t>{5});
}

struct make_any_storage {
  auto operator()(const cairn::memory_store& objects) const {
    return cairn::any_storage{cairn::safetensors_storage{objects}};
  }
};

TEST_CASE("a checkpoint is read only by the handle whose reader opened it") {
  stored_sample<make_any_storage> s;
  auto other = s.afresh().reader();
  auto reader = s.afresh().reader();
  auto copy = reader;
  auto opened = reader.open(4, reader.fetch(4));
  const auto until = cairn::deadline::in(std::chrono::minutes(1));
  CHECK(copy.verify(opened, until) > 0);
  std::atomic<std::uint64_t> asked = 0;  // by several threads
  CHECK(copy.verify(opened, until, [&](std::uint64_t bytes) { asked += bytes; }) >= asked.load());
  CHECK(asked.load() > 0);
  CHECK(failure_of([&] { other.verify(opened, until); }).id == error_id::usage_bad_option);
  CHECK(reader.run_of(4).has_value());
}

struct make_storage {
  auto operator()(const cairn::memory_store& objects) const {
    return cairn::safetensors_storage<cairn::memory_store>(objects);
  }
};
using stored = stored_sample<make_storage>;

TEST_CASE("every flipped bit of data is found, by verification and by the load that reads it") {
  stored s;
  std::mt19937_64 random(1);
  int in_headers = 0;
  const auto keys = s.keys(".safetensors");
  const auto flips = static_cast<std::size_t>(cairn_test::rounds(400, 5)) / keys.size() + 1;
  for (const auto& key : keys) {
    const auto good = s.get(key);
    for (std::size_t i = 0; i < flips; ++i) {
      auto bad = good;
      const auto at = random() % good.size();
      bad[at] ^= static_cast<std::byte>(1u << random() % 8);
      s.put(key, bad);
      CAPTURE(key);
      CAPTURE(at);
      const auto found = s.verify();
      CHECK(is_corrupt(found));
      if (at < 4096) {
        ++in_headers;
      } else if (i % 16 == 0) {
        const auto loading = s.load();
        CHECK(loading.id == error_id::corrupt_digest);
        CHECK(loading.fields.file == key);
        CHECK_FALSE(loading.fields.item.empty());
        CHECK(loading.fields.expected.size() == 16);
        CHECK(static_cast<std::uint64_t>(loading.fields.offset) <= at);
        CHECK(at < static_cast<std::uint64_t>(loading.fields.offset) + cairn::digest_block_bytes);
      }
    }
    // The whole header of small files: spaces and names too.
    const std::size_t stride = cairn_test::rounds(1, 2) == 1 ? 9 : 1;
    for (std::size_t at = 0; at < 4096 && key == keys.back(); at += stride) {
      auto bad = good;
      bad[at] ^= std::byte{0x10};
      s.put(key, bad);
      CHECK(is_corrupt(s.verify()));
    }
    s.put(key, good);
  }
  CHECK(in_headers > 0);
  CHECK_FALSE(s.verify().id.has_value());
  CHECK_FALSE(s.load().id.has_value());
}

TEST_CASE("a header that says another dtype or global shape than the manifest is found") {
  stored s;
  std::size_t changes = 0;
  for (const auto& key : s.keys(".safetensors")) {
    const auto good = s.get(key);
    for (const auto& [at, byte] : other_shapes_in(good)) {
      CAPTURE(key);
      CAPTURE(at);
      auto bad = good;
      bad[at] = byte;
      s.put(key, bad);
      CHECK(is_corrupt(s.verify()));
      auto reader = s.afresh().reader();
      std::vector<cairn::damage> found;
      const auto report =
          cairn::verify_checkpoint(reader, 4, {.found = [&](const auto& d) { found.push_back(d); }});
      REQUIRE(report.damages == 1);
      CHECK(found[0].file == key);
      CHECK_FALSE(s.load().id.has_value());  // which does not trust the header
      ++changes;
    }
    s.put(key, good);
  }
  CHECK(changes > 40);
  CHECK_FALSE(s.verify().id.has_value());
}

TEST_CASE("every flipped bit of the manifest is found, and of records") {
  stored s;
  const auto manifest = s.keys("manifest.cairn").at(0);
  const auto good = s.get(manifest);
  auto reader = s.afresh().reader();
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    CHECK(is_corrupt(failure_of([&] { (void)reader.open(4, bad); })));
  }
  const auto record = s.keys(".record").at(1);
  const auto good_record = s.get(record);
  for (std::size_t at = 0; at < good_record.size(); at += 13) {
    auto bad = good_record;
    bad[at] ^= std::byte{0x04};
    s.put(record, bad);
    CHECK(is_corrupt(s.verify()));
  }
}

TEST_CASE("missing, cut, longer and exchanged files are told apart") {
  stored s;
  const auto data = s.keys(".safetensors").at(0);
  const auto good = s.get(data);
  SUBCASE("missing data") {
    s.objects.remove(data);
    CHECK(s.load().id == error_id::corrupt_missing_file);
    CHECK(s.verify().id == error_id::corrupt_missing_file);
  }
  SUBCASE("missing record") {
    s.objects.remove(s.keys(".record").at(0));
    CHECK(s.load().id == error_id::corrupt_missing_file);
  }
  SUBCASE("cut") {
    s.put(data, {good.begin(), good.end() - 1});
    const auto why = s.load();
    CHECK(why.id == error_id::corrupt_size_mismatch);
    CHECK(why.fields.file == data);
  }
  SUBCASE("longer") {
    auto bad = good;
    bad.push_back(std::byte{0});
    s.put(data, bad);
    CHECK(s.load().id == error_id::corrupt_size_mismatch);
  }
  SUBCASE("another file of the same size") {
    stored other;
    sample_world state(2, 2);
    auto writer = other.afresh().writer();
    world_save(writer, state.states(), 5).run();
    auto bytes = other.get(other.keys(".safetensors").back());
    bytes.resize(good.size());
    s.put(data, bytes);
    CHECK(s.load().id == error_id::corrupt_digest);
  }
  SUBCASE("the manifest of another step") {
    const auto key = s.keys("manifest.cairn").at(0);
    s.objects.put_new(cairn::manifest_key(6), s.get(key));
    auto reader = s.afresh().reader();
    CHECK(failure_of([&] { (void)reader.open(6, reader.fetch(6)); }).id == error_id::corrupt_identity);
  }
  SUBCASE("the record of the other rank") {
    const auto records = s.keys(".record");
    s.put(records.at(0), s.get(records.at(1)));
    CHECK(s.load().id == error_id::corrupt_identity);
  }
}

TEST_CASE("any grid loads into any other, with any budget") {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  for (int round = 0; round < 30; ++round) {
    CAPTURE(round);
    const std::int64_t rows = pick(1, 300), columns = pick(1, 3000), depth = pick(1, 3);
    const auto cells = static_cast<std::size_t>(rows * columns * depth);
    std::vector<float> values(cells);
    for (std::size_t i = 0; i < cells; ++i) values[i] = static_cast<float>(i % 65521);
    // Cuts the tensor along one dimension into pieces, each a rank of its own.
    const auto cut = [&](int dimension, int pieces) {
      std::vector<cairn::chunk> boxes;
      const cairn::extents shape{rows, columns, depth};
      for (int p = 0; p < pieces; ++p) {
        auto box = cairn::whole(shape);
        const auto begin = shape[dimension] * p / pieces;
        box.offsets.set(dimension, begin);
        box.sizes.set(dimension, shape[dimension] * (p + 1) / pieces - begin);
        if (!box.empty()) boxes.push_back(box);
      }
      return boxes;
    };
    const auto view_of = [&](std::vector<float>& memory, const cairn::chunk& box) {
      return cairn::subview(cairn::contiguous_view(memory.data(), cairn::dtype::f32, {rows, columns, depth}),
                            box);
    };
    const auto register_all = [&](const std::vector<cairn::chunk>& boxes,
                                  std::vector<cairn::state_dict>& states, std::vector<float>& memory) {
      states.resize(boxes.size());
      std::vector<const cairn::state_dict*> all;
      for (std::size_t i = 0; i < boxes.size(); ++i) {
        states[i].tensor("w", view_of(memory, boxes[i]),
                         cairn::shard{{rows, columns, depth}, boxes[i].offsets, boxes[i].sizes});
        all.push_back(&states[i]);
      }
      return all;
    };
    cairn::safetensors_storage storage{cairn::memory_store{}};
    auto writer = storage.writer();
    auto reader = storage.reader();
    std::vector<cairn::state_dict> from, to;
    world_save(writer, register_all(cut(pick(0, 2), pick(1, 4)), from, values), 1, {1, 2}, 0,
               static_cast<staging>(round % 3))
        .run();
    std::vector<float> loaded(cells, -1);
    load_world(reader, 1, register_all(cut(pick(0, 2), pick(1, 4)), to, loaded),
               {.memory_budget = static_cast<std::uint64_t>(pick(0, 6)) << 20});
    CHECK(loaded == values);
  }
}

TEST_CASE("a cast is applied to the bytes that are read, also for a part with strides") {
  cairn::safetensors_storage storage{cairn::memory_store{}};
  auto writer = storage.writer();
  auto reader = storage.reader();
  std::vector<double> values(1000 * 700);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  cairn::state_dict state;
  state.tensor("w", values, {1000, 700});
  world_save(writer, {&state}, 1).run();
  auto opened = reader.open(1, reader.fetch(1));
  std::vector<float> narrow(1000 * 700, -1);
  cairn::load_plan plan;
  plan.items.push_back({0, 0, 0, 0, {{0, 100}, {1000, 300}}});
  plan.items.push_back({0, 0, 0, 0, {{0, 400}, {1000, 300}}});
  const cairn::target_resolver resolver = [&](const cairn::read_item& item) {
    const auto all = cairn::contiguous_view(narrow.data(), cairn::dtype::f32, {1000, 700});
    return cairn::item_target{cairn::subview(all, item.box),
                              cairn::find_cast(cairn::dtype::f64, cairn::dtype::f32)};
  };
  reader.read(opened, state, plan, resolver, {}, soon());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    wrong += narrow[i] != (i % 700 < 100 ? -1.0F : static_cast<float>(values[i]));
  CHECK(wrong == 0);
  SUBCASE("a destination of another size is refused") {
    const cairn::target_resolver bad = [&](const cairn::read_item&) {
      return cairn::item_target{cairn::contiguous_view(narrow.data(), cairn::dtype::f32, {1000, 299}),
                                nullptr};
    };
    CHECK(failure_of([&] { reader.read(opened, state, plan, bad, {}, soon()); }).id ==
          error_id::usage_size_changed);
  }
  SUBCASE("a plan of another checkpoint is refused") {
    plan.items[0].chunk = 1;
    CHECK(failure_of([&] { reader.read(opened, state, plan, resolver, {}, soon()); }).id ==
          error_id::plan_out_of_bounds);
  }
  SUBCASE("a deadline that has passed") {
    CHECK(failure_of([&] {
            reader.read(opened, state, plan, resolver, {}, cairn::deadline::in(std::chrono::seconds(-1)));
          }).id == error_id::timeout_load);
  }
}

TEST_CASE("layout: aligned, without holes, one box of a tensor in each file, also with ten thousand items") {
  cairn::save_plan plan;
  std::vector<std::uint64_t> bytes;
  std::mt19937 random(3);
  for (int i = 0; i < 10'000; ++i) {
    cairn::write_item item;
    item.name = "tensor." + std::to_string(i / 2);
    item.type = static_cast<cairn::dtype>(i / 2 % 20);
    item.global = {2, 96};
    item.box = {{i % 2, 0}, {1, 96}};
    item.bytes = cairn::bytes_of(item.type, 96);
    bytes.push_back(item.bytes);
    plan.items.push_back(item);
  }
  const auto image = cairn::safetensors_layout(plan, bytes, 3);
  REQUIRE(image.segments.size() == 2);
  CHECK(image.items.size() == 10'000);
  CHECK(image.bytes % cairn::image_alignment == 0);
  std::vector<std::uint64_t> at;
  for (const auto& s : image.segments) {
    CHECK(s.begin % cairn::image_alignment == 0);
    CHECK(s.header.size() % 4096 == 0);
    at.push_back(s.begin + s.header.size());
    const auto decoded = cairn::decode_safetensors_header(s.header, s.bytes, "x");
    CHECK(decoded.entries.size() == 5'000);
  }
  std::uint64_t block = 0;
  for (const auto& i : image.items) {
    CHECK(i.begin == at[i.segment]);
    at[i.segment] += i.bytes;
    CHECK(i.first_block == block);
    block += cairn::block_count(i.bytes);
    const auto bits = cairn::bits_of(plan.items[i.item].type);
    if (bits >= 8) CHECK(i.begin % (bits / 8) == 0);
  }
  CHECK(block == image.blocks);
  for (std::size_t s = 0; s < 2; ++s) CHECK(at[s] == image.segments[s].begin + image.segments[s].bytes);
  const auto nothing = cairn::safetensors_layout({}, {}, 0);
  CHECK(nothing.segments.empty());
  CHECK(nothing.bytes == 0);
}

}  // namespace
