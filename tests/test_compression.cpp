// SPDX-License-Identifier: Apache-2.0
// threaded
// uses: cairn::zstd
// Checkpoints whose items are compressed: the Storage suite, resharding, ranges, mixed stores, hostile files.
#include <cairn/checkpointer.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/store_capabilities.hpp>
#include <cairn/manage/copy.hpp>
#include <cairn/manage/export_safetensors.hpp>
#include <cairn/manage/verify.hpp>
#include <cairn/storage/compressed/compressed_storage.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/stores/memory_store.hpp>
#if CAIRN_USES_ZSTD + 0
#include <cairn/storage/compressed/zstd_codec.hpp>
#include <cairn/system/digest.hpp>
#endif

#include <doctest/doctest.h>
#include <support/codec_archetype.hpp>
#include <support/faulty_store.hpp>
#include <support/rounds.hpp>
#include <support/scratch_directory.hpp>
#include <support/storage_conformance.hpp>
#include <support/store_capability_archetypes.hpp>
#include <support/stored_sample.hpp>

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {
using namespace cairn_test;
using cairn::error_id;

#if CAIRN_USES_ZSTD + 0
using codec = cairn::zstd_codec;
codec make_codec() {
  return codec{};
}
static_assert(cairn::Portable<cairn::compressed_writer<cairn::file_store, codec>>);
#else
using codec = codec_archetype;
codec make_codec() {
  return codec_archetype::make();
}
#endif
using memory_storage = cairn::compressed_storage<cairn::memory_store, codec>;

struct compressed_in_memory {
  cairn::memory_store objects;
  auto make() { return memory_storage(objects, make_codec(), {.frame_bytes = 1 << 18, .threads = 3}); }
};
TEST_CASE_TEMPLATE_INVOKE(storage_conformance, compressed_in_memory);

struct make_storage {
  auto operator()(const cairn::memory_store& objects) const { return memory_storage(objects, make_codec()); }
};
using stored = stored_sample<make_storage>;

TEST_CASE("files are compressed, have their own extension, and the manifest names the codec") {
  stored s;
  CHECK(s.keys(".safetensors").empty());
  const auto files = s.keys(".cairnz");
  REQUIRE(files.size() >= 2);
  for (const auto& key : files) {
    const auto parsed = cairn::parse_key(key);
    REQUIRE(parsed.has_value());
    CHECK(parsed->object.compressed);
    CHECK(cairn::object_key(parsed->step, parsed->object) == key);
  }
  auto reader = s.afresh().reader();
  const auto bytes = reader.fetch(4);
  const auto opened = reader.open(4, bytes);
  for (const auto& item : opened.metadata().items) CHECK(item.codec == codec::id);

  // A reader without the codec says so before it reads anything.
  auto plain = cairn::safetensors_storage{s.objects}.reader();
  const auto why = failure_of([&] { (void)plain.open(4, bytes); });
  CHECK(why.id == error_id::corrupt_unsupported_feature);
  CHECK(why.text.find("codec " + std::to_string(codec::id)) != std::string::npos);

  // A process without the codec can still clean up.
  auto cleaner = cairn::safetensors_storage{s.objects}.writer();
  cleaner.remove(4);
  CHECK(s.objects.list("").empty());
}

TEST_CASE(
    "resume without the codec says so, and neither sets aside what is whole nor takes an older checkpoint") {
  cairn::memory_store objects;
  const cairn::checkpointer_options quiet{.quiet = true};
  std::vector<float> weights(4096);
  cairn::state_dict state;
  state.tensor("weights", weights, {4096});
  const auto save = [&](auto& ckpt, std::int64_t step) {
    weights.assign(weights.size(), static_cast<float>(step));
    ckpt.save(state, step).wait();
  };
  {
    cairn::checkpointer plain{objects, quiet};
    save(plain, 100);
  }
  {
    cairn::checkpointer compressed{memory_storage(objects, make_codec()), quiet};
    save(compressed, 200);
    save(compressed, 300);
  }
  const auto before = objects.list("").size();
  weights.assign(weights.size(), -1);
  {
    cairn::checkpointer plain{objects, cairn::keep_last(1), quiet};
    const auto why = failure_of([&] { (void)plain.resume(state); });
    CHECK(why.id == error_id::corrupt_unsupported_feature);
    CHECK(why.fields.file == cairn::manifest_key(300));
    CHECK(weights[0] == -1);
    CHECK(plain.list() == std::vector<std::int64_t>{100, 200, 300});
    // Who wants the older one takes it by its name.
    plain.load(state, 100);
    CHECK(weights[0] == 100);
  }
  CHECK(objects.list("").size() == before);
  cairn::checkpointer compressed{memory_storage(objects, make_codec()), quiet};
  compressed.load(state, 200);
  CHECK(weights[0] == 200);
  CHECK(compressed.resume(state) == 300);
  CHECK(weights[0] == 300);
}

TEST_CASE("a compressed file gets a second key as it is, and is read under it") {
  stored s;
  cairn::detail::compressed_store<codec> over(cairn::any_store(s.objects), make_codec(), {});
  CHECK(over.links());
  std::string from = s.keys(".cairnz").front();
  from.replace(from.size() - 7, 7, ".safetensors");
  const std::string to = "step-00000009/rank-00000.00c0ffee00c0ffee.0.safetensors";
  over.link(from, to);
  CHECK(s.objects.size(cairn::compressed_key(to)) == s.objects.size(cairn::compressed_key(from)));
  CHECK_FALSE(s.objects.size(to).has_value());
  const auto bytes = over.size(from);
  REQUIRE(bytes.has_value());
  CHECK(over.size(to) == bytes);
  std::vector<std::byte> one(static_cast<std::size_t>(*bytes)), two(one.size());
  const cairn::read_range of_one{from, 0, one}, of_two{to, 0, two};
  over.read({&of_one, 1});
  over.remove(from);
  over.read({&of_two, 1});
  CHECK(one == two);
  s.objects.put_new("plain.safetensors", one);
  over.link("plain.safetensors", "step-00000009/other.safetensors");
  CHECK(s.objects.size("step-00000009/other.safetensors") == bytes);
}

TEST_CASE("over compression, too, a run waits for a save of an earlier one that is being written") {
  const scratch_directory scratch;
  const auto storage_there = [&] {
    return cairn::compressed_storage{cairn::file_store{scratch.path()}, make_codec()};
  };
  auto earlier = storage_there().writer();
  const sample_world saved(1, 1);
  world_save save(earlier, saved.states(), 3, {1, 2});
  auto shown = earlier.announce(save.context(0));
  CHECK(shown.shown());
  CHECK(shown.lock_descriptor() >= 0);
  std::vector<std::size_t> alive;
  auto next = storage_there().writer();
  const auto taken = next.take_over({3, 4}, [&](const std::vector<cairn::save_attempt>& now) {
    alive.push_back(now.size());
    if (now.empty()) return false;
    CHECK(now.front().step == 3);
    CHECK(now.front().attempt == save.context(0).attempt);
    save.run();
    shown = {};
    return true;
  });
  CHECK(alive == std::vector<std::size_t>{1, 0});
  CHECK(storage_there().reader().list() == std::vector<std::int64_t>{3});
}

namespace {
/// Counts what removes in one step.
struct comparing_store : cairn::memory_store {
  bool remove_if(std::string_view key, std::span<const std::byte> bytes) {
    ++*asked;
    return cairn::memory_store::remove_if(key, bytes);
  }
  std::shared_ptr<int> asked = std::make_shared<int>(0);
};
}  // namespace

TEST_CASE("over compression, too, a manifest is removed by the request of the store that compares it") {
  const comparing_store objects;
  auto writer = cairn::compressed_storage{objects, make_codec()}.writer();
  const sample_world saved(1, 1);
  world_save(writer, saved.states(), 1).run();
  writer.remove(1);
  CHECK(*objects.asked == 1);
}

TEST_CASE("a file that was removed below compression since it was opened, or has come, is asked for") {
  const cairn::memory_store objects;
  const auto faults = std::make_shared<store_faults>();
  const cairn::compressed_storage storage{faulty_store<cairn::memory_store>{objects, faults}, make_codec()};
  auto writer = storage.writer();
  const sample_world saved(1, 1);
  world_save save(writer, saved.states(), 1);
  auto below = objects;
  const auto key = cairn::data_key(1, 0, save.context(0).attempt, 0);
  const auto compressed = cairn::compressed_key(key);
  const cairn::any_store over(
      cairn::detail::compressed_store<codec>(cairn::any_store(objects), make_codec(), {}));
  CHECK_FALSE(over.size(key));
  save.write(0);
  const auto bytes = over.size(key);
  CHECK(bytes.has_value());
  const auto content = below.read_all(compressed, 1u << 30);
  REQUIRE(content.has_value());
  below.remove(compressed);
  CHECK_FALSE(over.size(key));
  below.put_new(compressed, *content);
  CHECK(over.size(key) == bytes);
  // Removed by somebody while the manifest is published: the save is told that it is not committed.
  faults->add({.kind = store_call::publish_new, .key_contains = "manifest", .action = [&](auto) {
                 below.remove(compressed);
               }});
  CHECK(failure_of([&] { save.commit(); }).id == error_id::storage_aborted);
  CHECK(faults->triggered() == 1);
  CHECK(storage.reader().list().empty());
}

TEST_CASE("what the store below knows of writers and changes is known over compression") {
  const cairn::memory_store objects;
  const auto asked = std::make_shared<asked_capabilities>();
  const auto over = [](auto&& below) {
    return cairn::any_store(
        cairn::detail::compressed_store<codec>(cairn::any_store(std::move(below)), make_codec(), {}));
  };
  const auto telling = over(unfinished_archetype{objects});
  CHECK(telling.tracks_writers());
  CHECK(telling.live_writers("step-") == std::vector<std::string>{"step-live"});
  CHECK(telling.writer_lives("lives"));
  static constexpr std::string_view prefixes[] = {"a"};
  const auto unfinished = telling.unfinished(prefixes);
  REQUIRE(unfinished.size() == 1);
  CHECK(unfinished.front().lives);
  CHECK_FALSE(over(not_telling_archetype{objects}).tracks_writers());
  CHECK_FALSE(over(telling_archetype{objects}).announces_writers());
  const auto announcing = over(announcing_archetype{objects, asked});
  CHECK(announcing.announces_writers());
  announcing.create("x", 0).announce();
  announcing.create("x.safetensors", 100).announce();
  static_cast<void>(announcing.show("y"));
  CHECK(asked->announced == 3);
  CHECK(over(locked_archetype{objects}).create("x.safetensors", 100).lock_descriptor() == 7);
  CHECK(over(watching_archetype{objects}).watch("step-") != nullptr);
  CHECK(over(linking_archetype{objects}).watch("step-") == nullptr);
}

TEST_CASE("leases, signs of runs and changes are those of the store below") {
  static_assert(cairn::LayeredStore<cairn::detail::compressed_store<codec>>);
  const scratch_directory directory;
  const cairn::file_store files{directory.path()};
  const cairn::compressed_storage storage{files, make_codec()};
  const cairn::checkpointer_options quiet{.quiet = true};
  std::vector<float> w(10);
  cairn::state_dict state;
  state.tensor("w", w, {10});
  cairn::checkpointer trainer{storage, cairn::keep_last(1), quiet};
  trainer.save(state, 1).wait();
  cairn::checkpointer reader{storage, quiet};
  {
    const auto lease = reader.lease(1);
    trainer.save(state, 2).wait();
    CHECK(trainer.list() == std::vector<std::int64_t>{1, 2});
    auto plain = cairn::safetensors_storage{files}.writer();
    CHECK(failure_of([&] { plain.remove(1); }).id == error_id::storage_leased);
  }
  trainer.save(state, 3).wait();
  CHECK(trainer.list() == std::vector<std::int64_t>{3});
  auto writer = storage.writer();
  const cairn::run_id run{1, 2};
  const auto sign = writer.show_run(run);
  CHECK(sign != nullptr);
  CHECK(storage.writer().live_runs({3, 4}) == std::vector{run});
  CHECK(storage.reader().watch() != nullptr);
}

TEST_CASE("a store may hold both: checkpoints that are not compressed are read as they are") {
  cairn::memory_store objects;
  const sample_world first(2, 1), second(2, 2);
  auto plain = cairn::safetensors_storage{objects}.writer();
  world_save(plain, first.states(), 1).run();
  memory_storage storage(objects, make_codec());
  auto writer = storage.writer();
  world_save(writer, second.states(), 2).run();
  auto reader = storage.reader();
  CHECK(reader.list() == std::vector<std::int64_t>{1, 2});
  for (const auto* world : {&first, &second}) {
    sample_world loaded(2, 9, 1);
    load_world(reader, world == &first ? 1 : 2, loaded.states());
    CHECK(loaded == *world);
  }
  writer.remove(1);
  CHECK(reader.list() == std::vector<std::int64_t>{2});
  for (const auto& o : objects.list("")) CHECK(o.key.starts_with("step-00000002/"));
}

TEST_CASE(
    "a save that fails leaves nothing; files in a directory, written by what another process made again") {
  scratch_directory directory;
  const sample_world saved(1, 1);
  cairn::compressed_storage storage(cairn::file_store(directory.path()), make_codec());
#if CAIRN_USES_ZSTD + 0
  auto writer = decltype(storage.writer())::from_description(storage.writer().description());
  CHECK(writer.fingerprint() == storage.writer().fingerprint());
#else
  auto writer = storage.writer();
#endif
  {
    world_save save(writer, saved.states(), 3);
    save.write(0);
    writer.abort(save.context(0), cairn::make_failure(error_id::storage_no_space, "full"));
  }
  CHECK(writer.clean({9, 9}) > 0);
  for (const auto& o : storage.store().list("")) CHECK(o.key.find(".cairnz") == std::string::npos);
  world_save(writer, saved.states(), 4).run();
  auto reader = storage.reader();
  sample_world loaded(1, 9, 1);
  load_world(reader, 4, loaded.states());
  CHECK(loaded == saved);
}

TEST_CASE("any grid loads into any other from frames of any size, and reads little more than it wants") {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  for (int round = 0; round < 12; ++round) {
    CAPTURE(round);
    const std::int64_t rows = pick(1, 300), columns = pick(1, 3000);
    const auto cells = static_cast<std::size_t>(rows * columns);
    std::vector<float> values(cells);
    for (std::size_t i = 0; i < cells; ++i) values[i] = static_cast<float>(i % 65521) * 0.001F;
    const auto cut = [&](std::vector<float>& memory, int dimension, int pieces,
                         std::vector<cairn::state_dict>& states) {
      std::vector<cairn::chunk> boxes;
      const cairn::extents shape{rows, columns};
      for (int p = 0; p < pieces; ++p) {
        auto box = cairn::whole(shape);
        const auto begin = shape[dimension] * p / pieces;
        box.offsets.set(dimension, begin);
        box.sizes.set(dimension, shape[dimension] * (p + 1) / pieces - begin);
        if (!box.empty()) boxes.push_back(box);
      }
      states.resize(boxes.size());
      std::vector<const cairn::state_dict*> all;
      for (std::size_t i = 0; i < boxes.size(); ++i) {
        const auto view = cairn::contiguous_view(memory.data(), cairn::dtype::f32, {rows, columns});
        states[i].tensor("w", cairn::subview(view, boxes[i]),
                         cairn::shard{{rows, columns}, boxes[i].offsets, boxes[i].sizes});
        all.push_back(&states[i]);
      }
      return all;
    };
    memory_storage storage(cairn::memory_store{}, make_codec(),
                           {.frame_bytes = std::uint64_t{1} << (16 + pick(0, 6)),
                            .threads = static_cast<std::size_t>(pick(1, 3))});
    auto writer = storage.writer();
    auto reader = storage.reader();
    std::vector<cairn::state_dict> from, to;
    world_save(writer, cut(values, pick(0, 1), pick(1, 4), from), 1, {1, 2}, 0,
               static_cast<staging>(round % 3))
        .run();
    std::vector<float> loaded(cells, -1);
    load_world(reader, 1, cut(loaded, pick(0, 1), pick(1, 4), to),
               {.memory_budget = static_cast<std::uint64_t>(pick(0, 6)) << 20});
    CHECK(loaded == values);
  }
}

TEST_CASE("every flipped bit of a compressed file is found, by verification and by the load that reads it") {
  stored s;
  std::mt19937_64 random(1);
  const auto keys = s.keys(".cairnz");
  for (const auto& key : keys) {
    const auto good = s.get(key);
    const auto flip = [&](std::size_t at) {
      auto bad = good;
      bad[at] ^= static_cast<std::byte>(1u << random() % 8);
      s.put(key, bad);
      CAPTURE(key);
      CAPTURE(at);
      const auto found = s.verify();
      CHECK(is_corrupt(found));
      CHECK(found.fields.file == key);
      if (random() % 8 == 0) CHECK(is_corrupt(s.load()));
    };
    const auto flips = static_cast<std::size_t>(rounds(14, 40)) / keys.size() + 1;
    for (std::size_t i = 0; i < flips; ++i) flip(random() % good.size());
    for (std::size_t i = 0; i < flips; ++i)
      flip(good.size() - 1 - random() % std::min<std::size_t>(good.size(), 400));
    s.put(key, good);
  }
  CHECK_FALSE(s.verify().id.has_value());
  CHECK_FALSE(s.load().id.has_value());
}

TEST_CASE("verification names every damaged frame's item, and copies and exports what is whole") {
  stored s;
  const auto good = s.afresh();
  // A copy is the same, byte by byte, and loads.
  cairn::memory_store other;
  const memory_storage to(other, make_codec());
  const auto report = cairn::copy_checkpoint(s.objects, to, 4);
  CHECK(report.ended == cairn::copy_report::outcome::copied);
  const auto listed = [](cairn::memory_store& store) {
    std::vector<std::pair<std::string, std::vector<std::byte>>> found;
    for (const auto& o : store.list("")) found.emplace_back(o.key, *store.read_all(o.key, 1u << 30));
    return found;
  };
  CHECK(listed(s.objects) == listed(other));
  // The export has what was saved, in one file, whatever codec it was compressed with.
  cairn::memory_store model;
  auto reader = good.reader();
  const auto exported = cairn::export_safetensors(reader, 4, model, {.memory_bytes = 1u << 20});
  CHECK(exported.complete);
  CHECK(exported.files.size() == 2);
  const auto opened = reader.open(4, reader.fetch(4));
  CHECK(exported.tensors + exported.left_out.size() == opened.metadata().items.size());

  std::mt19937 random(7);
  for (const auto& key : s.keys(".cairnz")) {
    CAPTURE(key);
    const auto bytes = s.get(key);
    for (int i = 0; i < 4; ++i) {
      auto wrong = bytes;
      const auto flipped = random() % wrong.size();
      wrong[flipped] ^= std::byte{32};
      s.put(key, wrong);
      auto fresh = s.afresh().reader();
      std::vector<cairn::damage> found;
      const auto verified =
          cairn::verify_checkpoint(fresh, 4, {.found = [&](const auto& d) { found.push_back(d); }});
      CHECK(verified.damages == found.size());
      CHECK_FALSE(found.empty());
      for (const auto& d : found) {
        CHECK(d.file == key);
        CHECK(d.offset < static_cast<std::int64_t>(bytes.size()));
        if (d.what.find("frame") != std::string::npos) CHECK(d.offset <= static_cast<std::int64_t>(flipped));
        CHECK_FALSE(d.unreadable);
        CHECK(cairn::to_string(d).find(key) != std::string::npos);
      }
      // A damaged source is not committed at the target.
      if (i != 0) continue;
      cairn::memory_store never;
      const auto why = failure_of(
          [&] { (void)cairn::copy_checkpoint(s.objects, memory_storage(never, make_codec()), 4); });
      CHECK(is_corrupt(why));
      CHECK(memory_storage(never, make_codec()).reader().list().empty());
    }
    s.put(key, bytes);
  }
  auto again = s.afresh().reader();
  CHECK(cairn::verify_checkpoint(again, 4).good());
}

TEST_CASE("cut, longer, exchanged and missing compressed files are told apart from good ones") {
  stored s;
  const auto key = s.keys(".cairnz").at(0);
  const auto good = s.get(key);
  for (const std::size_t left :
       {std::size_t{1}, std::size_t{64}, std::size_t{4096}, good.size() / 2, good.size() - 1}) {
    CAPTURE(left);
    s.put(key, {good.begin(), good.begin() + static_cast<std::ptrdiff_t>(left)});
    CHECK(is_corrupt(s.load()));
    CHECK(is_corrupt(s.verify()));
  }
  auto longer = good;
  longer.push_back(std::byte{0});
  s.put(key, longer);
  CHECK(is_corrupt(s.load()));
  s.objects.remove(key);
  CHECK(s.load().id == error_id::corrupt_missing_file);
  const auto other = s.keys(".cairnz").at(0);
  s.put(key, s.get(other));
  CHECK(is_corrupt(s.load()));
}

/// Changes numbers at the end of a compressed file, and makes the digest right again.
std::vector<std::byte> with_trailer(std::vector<std::byte> file, std::size_t at, std::uint64_t value,
                                    std::size_t bytes = 8) {
  auto* end = file.data() + file.size() - 64;
  std::memcpy(end + at, &value, bytes);
  const auto right = cairn::digest(std::span<const std::byte>(end, 56));
  std::memcpy(end + 56, &right, 8);
  return file;
}

TEST_CASE("a file that lies about its sizes is refused before anything is allocated for it") {
  stored s;
  const auto key = s.keys(".cairnz").at(0);
  const auto good = s.get(key);
  REQUIRE(with_trailer(good, 12, 0, 4) == good);
  const auto refused = [&](const std::vector<std::byte>& bad) {
    s.put(key, bad);
    const auto why = s.load();
    CHECK(is_corrupt(why));
    CHECK(why.fields.file.substr(0, key.find('.')) == key.substr(0, key.find('.')));
    return why.id;
  };
  CHECK(refused(with_trailer(good, 8, 2, 2)) == error_id::corrupt_unsupported_version);
  CHECK(refused(with_trailer(good, 10, 77, 2)) == error_id::corrupt_identity);
  CHECK(refused(with_trailer(good, 12, 1, 4)) == error_id::corrupt_bad_value);
  for (const std::uint64_t huge :
       {std::uint64_t{1} << 40, std::uint64_t{1} << 63, UINT64_MAX, std::uint64_t{0}}) {
    CAPTURE(huge);
    refused(with_trailer(good, 16, huge));  // bytes of the header
    refused(with_trailer(good, 24, huge));  // of the whole, decoded: a bomb
    refused(with_trailer(good, 32, huge));  // items
  }
  // The table: sizes whose sum overflows, or that take from each other.
  std::uint64_t items = 0;
  std::memcpy(&items, good.data() + good.size() - 64 + 32, 8);
  const auto table_bytes = static_cast<std::size_t>(items) * 16;
  for (const std::uint64_t change : {std::uint64_t{1}, std::uint64_t{0} - 1, std::uint64_t{1} << 63}) {
    auto bad = good;
    auto* table = bad.data() + bad.size() - 64 - table_bytes;
    for (const std::size_t column : {std::size_t{0}, std::size_t{8}}) {
      std::uint64_t value = 0;
      std::memcpy(&value, table + column, 8);
      value = column == 0 ? value + change : value - change;
      std::memcpy(table + column, &value, 8);
    }
    refused(with_trailer(bad, 48, cairn::digest(std::span<const std::byte>(table, table_bytes))));
  }
}

TEST_CASE("a compressed object may hold any number of empty items") {
  cairn::memory_store objects;
  cairn::detail::compressed_store<codec> store(cairn::any_store(objects), make_codec(), {});
  cairn::safetensors_header header;
  for (int i = 0; i < 30'000; ++i)
    header.entries.push_back({"e" + std::to_string(i), cairn::dtype::f32, {0}, 0, 0, {}, {}, false});
  header.entries.push_back({"last", cairn::dtype::u8, {7}, 0, 7, {}, {}, false});
  auto file = cairn::encode_safetensors_header(header, 64);
  for (int i = 0; i < 7; ++i) file.push_back(static_cast<std::byte>(i));
  const auto key = cairn::data_key(1, 0, 5, 0);
  const auto write = [&] {
    auto object = store.create(key, file.size());
    const cairn::write_range all{0, file};
    object.write({&all, 1});
    object.finish();
  };
  // With a small stack few of them show whether each takes some of it.
  pthread_attr_t small;
  REQUIRE(::pthread_attr_init(&small) == 0);
  REQUIRE(::pthread_attr_setstacksize(&small, std::size_t{1} << 20) == 0);
  pthread_t thread{};
  const auto begin = [](void* called) -> void* {
    (*static_cast<decltype(write)*>(called))();
    return nullptr;
  };
  auto called = write;
  REQUIRE(::pthread_create(&thread, &small, begin, &called) == 0);
  REQUIRE(::pthread_join(thread, nullptr) == 0);
  ::pthread_attr_destroy(&small);
  std::vector<std::byte> back(file.size());
  const cairn::read_range whole{key, 0, back};
  store.read({&whole, 1});
  CHECK(back == file);
}

TEST_CASE("a compressed object is written from front to back, completely, and only while all went well") {
  cairn::memory_store objects;
  const cairn::detail::compressed_store<codec> of_type(cairn::any_store(objects), make_codec(), {});
  auto store = of_type;
  const std::string key = cairn::data_key(1, 0, 5, 0);
  cairn::safetensors_header header;
  header.entries.push_back({"a", cairn::dtype::f32, {3, 100}, 0, 1200, {}, {}, false});
  header.entries.push_back({"nothing", cairn::dtype::f32, {0}, 1200, 1200, {}, {}, false});
  header.entries.push_back({"b", cairn::dtype::u8, {7}, 1200, 1207, {}, {}, false});
  auto file = cairn::encode_safetensors_header(header, 64);
  const auto begin = file.size();
  for (std::size_t i = 0; i < 1207; ++i) file.push_back(static_cast<std::byte>(i / 40));
  SUBCASE("in pieces of any size, read in ranges of any kind") {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{100}, file.size()}) {
      {
        auto object = store.create(key, file.size());
        for (std::size_t at = 0; at < file.size(); at += piece) {
          const cairn::write_range part{
              at, std::span<const std::byte>(file).subspan(at, std::min(piece, file.size() - at))};
          object.write({&part, 1});
        }
        object.finish();
      }
      CHECK(store.size(key) == file.size());
      for (std::size_t at = 0; at < file.size(); at += 31)
        for (const std::size_t length :
             {std::size_t{0}, std::size_t{1}, std::size_t{50}, std::size_t{1300}}) {
          if (length > file.size() - at) continue;
          std::vector<std::byte> got(length);
          const cairn::read_range range{key, at, got};
          store.read({&range, 1});
          CHECK(std::equal(got.begin(), got.end(), file.begin() + static_cast<std::ptrdiff_t>(at)));
        }
      std::vector<std::byte> beyond(2);
      const cairn::read_range range{key, file.size() - 1, beyond};
      CHECK(failure_of([&] { store.read({&range, 1}); }).id == error_id::corrupt_truncated);
      store.remove(key);
      CHECK_FALSE(store.size(key).has_value());
      CHECK(objects.list("").empty());
    }
  }
  SUBCASE("an end too early, bytes too many, a gap, and what comes after an error") {
    auto object = store.create(key, file.size());
    const cairn::write_range first{0, std::span<const std::byte>(file).first(begin + 10)};
    object.write({&first, 1});
    const cairn::write_range gap{begin + 11, std::span<const std::byte>(file).subspan(begin + 11)};
    CHECK(failure_of([&] { object.write({&gap, 1}); }).id == error_id::usage_wrong_order);
    const cairn::write_range rest{begin + 10, std::span<const std::byte>(file).subspan(begin + 10)};
    CHECK(failure_of([&] { object.write({&rest, 1}); }).id == error_id::usage_closed);
    CHECK(failure_of([&] { object.finish(); }).id == error_id::usage_closed);
    auto early = store.create(cairn::data_key(1, 0, 6, 0), file.size());
    early.write({&first, 1});
    CHECK(failure_of([&] { early.finish(); }).id == error_id::usage_incomplete_object);
    auto many = store.create(cairn::data_key(1, 0, 7, 0), file.size());
    const cairn::write_range all{0, file};
    many.write({&all, 1});
    const cairn::write_range more{file.size(), std::span<const std::byte>(file).first(1)};
    CHECK(failure_of([&] { many.write({&more, 1}); }).id == error_id::usage_overflow);
  }
  SUBCASE("what is no safetensors file is refused") {
    auto object = store.create(key, 5000);
    const std::vector<std::byte> nonsense(5000, std::byte{0x7f});
    const cairn::write_range part{0, nonsense};
    CHECK(is_corrupt(failure_of([&] { object.write({&part, 1}); })));
  }
  CHECK(failure_of([&] { memory_storage(objects, make_codec(), {.frame_bytes = 12345}); }).id ==
        error_id::usage_bad_option);
  CHECK(failure_of([&] { memory_storage(objects, make_codec(), {.threads = 0}); }).id ==
        error_id::usage_bad_option);
  CHECK(failure_of([&] { memory_storage(objects, make_codec(), {}, {.block_ranks = 1}); }).id ==
        error_id::usage_bad_option);
  // The directory can have files that several ranks share: what cannot is said.
  const scratch_directory scratch;
  const auto shared = failure_of([&] {
    const cairn::compressed_storage made{
        cairn::file_store{scratch.path()}, make_codec(), {}, {.ranks_per_file = 2}};
  });
  CHECK(shared.id == error_id::usage_bad_option);
  CHECK_MESSAGE(shared.text.find("compressed files") != std::string::npos, shared.text);
  CHECK_MESSAGE(shared.text.find(scratch.path()) == std::string::npos, shared.text);
}

}  // namespace
