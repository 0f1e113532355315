// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are made of somebody else's safetensors: what arrives, and what ends an import.
#include <doctest/doctest.h>

#include <cairn/checkpointer.hpp>
#include <cairn/manage/compare.hpp>
#include <cairn/manage/export_safetensors.hpp>
#include <cairn/manage/import_safetensors.hpp>
#include <cairn/manage/verify.hpp>
#include <cairn/safetensors_files.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/stores/memory_store.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <support/faulty_store.hpp>
#include <support/planner_conformance.hpp>
#include <support/scratch_directory.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <latch>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using cairn::error_id;
using cairn::extents;
using cairn_test::failure_of;

namespace {

std::vector<float> floats(std::int64_t count, float seed = 0) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), seed);
  return values;
}
struct part {
  std::string key;
  extents shape;
  float seed = 0;
  extents offsets = {};
  extents global = {};
  bool sharded = false;
};
/// A file of floats that count up from the seed of each tensor.
void put(cairn::memory_store& store, const std::string& key, const std::vector<part>& parts) {
  cairn::safetensors_header header;
  std::vector<std::byte> data;
  for (const auto& p : parts) {
    cairn::safetensors_entry e;
    e.key = p.key, e.type = cairn::dtype::f32, e.shape = p.shape;
    e.sharded = p.sharded, e.saved_offsets = p.offsets, e.global_shape = p.global;
    const auto values = floats(p.shape.volume(), p.seed);
    e.begin = data.size();
    data.resize(data.size() + values.size() * sizeof(float));
    if (!values.empty()) std::memcpy(data.data() + e.begin, values.data(), values.size() * sizeof(float));
    e.end = data.size();
    header.entries.push_back(std::move(e));
  }
  auto file = cairn::encode_safetensors_header(header, 8);
  file.insert(file.end(), data.begin(), data.end());
  store.put_new(key, file);
}
cairn::memory_store model() {
  cairn::memory_store store;
  put(store, "a.safetensors",
      {{"w", {2, 700'000}, 0, {0, 0}, {3, 700'000}, true}, {"bias", {5}, 7, {0}, {5}, true}});
  put(store, "b.safetensors", {{"w", {1, 700'000}, 1'400'000, {2, 0}, {3, 700'000}, true}});
  put(store, "c.safetensors", {{"scale", {}, 3}, {"empty", {0, 4}}, {"small", {3}, 9}});
  return store;
}
cairn::checkpointer_options quiet() {
  return {.timeout = std::chrono::seconds(60), .peer_timeout = std::chrono::seconds(60), .quiet = true};
}

TEST_CASE("what is imported is a checkpoint with digests, which loads as any other") {
  const auto source = model();
  cairn::memory_store store;
  std::uint64_t told = 0;
  cairn::import_options options;
  options.step = 12;
  options.progress = [&](std::uint64_t done, std::uint64_t) { told = std::max(told, done); };
  const auto report =
      cairn::import_safetensors(cairn::safetensors_files(source).reader(), cairn::any_store(store), options);
  CHECK(report.complete);
  CHECK(report.tensors == 5);
  CHECK(report.files == 3);
  CHECK(report.bytes == (2'100'000u + 5 + 1 + 3) * 4);
  CHECK(told == report.bytes);
  cairn::safetensors_reader reader{cairn::any_store(store)};
  auto opened = reader.open(12, reader.fetch(12));
  CHECK(reader.verify(opened, cairn::deadline::never()) > report.bytes);
  std::vector<float> w(2'100'000), bias(5), small(3), empty;
  float scale = 0;
  cairn::state_dict state;
  state.tensor("w", w, {3, 700'000});
  state.tensor("bias", bias, {5});
  state.tensor("small", small, {3});
  state.tensor("empty", empty, {0, 4});
  state.value("scale", scale);
  cairn::checkpointer ckpt{store, quiet()};
  CHECK(ckpt.resume(state) == 12);
  CHECK((w == floats(2'100'000) && bias == floats(5, 7) && small == floats(3, 9) && scale == 3));
  // It goes on from there as from any checkpoint.
  (void)ckpt.save(state, 13).wait();
  CHECK(ckpt.list() == std::vector<std::int64_t>{12, 13});
  options.step = 13;
  CHECK(failure_of([&] {
          (void)cairn::import_safetensors(cairn::safetensors_files(source).reader(), cairn::any_store(store),
                                          options);
        }).id() == error_id::storage_already_committed);
}

TEST_CASE("of the tensors, those that are wanted") {
  const auto source = model();
  cairn::memory_store store;
  cairn::import_options options;
  options.items = {"s*", "bias"};
  const auto report =
      cairn::import_safetensors(cairn::safetensors_files(source).reader(), cairn::any_store(store), options);
  CHECK(report.tensors == 3);
  CHECK(report.files == 2);
  cairn::checkpointer ckpt{store, quiet()};
  CHECK(ckpt.items(0).size() == 3);
  CHECK(ckpt.read<float>("bias", 0) == floats(5, 7));
  options.items = {"bias", "none"};
  CHECK(failure_of([&] {
          (void)cairn::import_safetensors(cairn::safetensors_files(source).reader(), cairn::any_store(store),
                                          options);
        }).id() == error_id::usage_unknown_name);
}

TEST_CASE("an import that was ended leaves no checkpoint, and the next one makes it") {
  const auto source = model();
  cairn::memory_store store;
  const auto reader = cairn::safetensors_files(source).reader();
  std::atomic<int> asked{0};
  cairn::import_options options;
  options.stop = [&] { return ++asked > 2; };
  CHECK(!cairn::import_safetensors(reader, cairn::any_store(store), options).complete);
  cairn::checkpointer looks{store, quiet(), cairn::read_only{}};
  CHECK(looks.list().empty());
  CHECK(cairn::import_safetensors(reader, cairn::any_store(store)).complete);
  CHECK(looks.list() == std::vector<std::int64_t>{0});
}

TEST_CASE("a fault at any call of an import leaves a whole checkpoint or none, and the next one makes it") {
  cairn::memory_store source;
  put(source, "a.safetensors", {{"w", {2, 50}, 0, {0, 0}, {3, 50}, true}, {"bias", {5}, 7}});
  put(source, "b.safetensors", {{"w", {1, 50}, 100, {2, 0}, {3, 50}, true}});
  const auto reader = cairn::safetensors_files(source).reader();
  const auto import_into = [&](const cairn::memory_store& store,
                               const std::shared_ptr<cairn_test::store_faults>& faults) {
    try {
      (void)cairn::import_safetensors(
          reader, cairn::any_store(cairn_test::faulty_store<cairn::memory_store>{store, faults}));
      return false;
    } catch (const cairn::error&) {
      return true;
    }
  };
  const auto none = std::make_shared<cairn_test::store_faults>();
  CHECK(!import_into({}, none));
  int failures = 0;
  for (std::uint64_t at = 0; at < none->count(); ++at) {
    CAPTURE(at);
    cairn::memory_store store;
    const auto faults = std::make_shared<cairn_test::store_faults>();
    faults->fail_at(cairn_test::store_call::any, at, false, at % 2 == 1);
    const bool failed = import_into(store, faults);
    failures += failed;
    cairn::safetensors_reader imported{cairn::any_store(store)};
    if (imported.list().empty()) {
      CHECK(failed);
      CHECK(cairn::import_safetensors(reader, cairn::any_store(store)).complete);
    }
    CHECK(cairn::verify_checkpoint(imported, 0).good());
    cairn::readable_checkpoint made{imported, 0}, was{reader};
    CHECK(cairn::compare_checkpoints(made, was).equal());
  }
  CHECK(failures > 5);
}

/// Begins an import that ends at once: only its looks at what is there count.
void look_and_end(const cairn::memory_store& source, cairn::any_store target) {
  cairn::import_options ended;
  ended.stop = [] { return true; };
  CHECK(!cairn::import_safetensors(cairn::safetensors_files(source).reader(), target, ended).complete);
}

/// Saves step 0; `meanwhile` runs when all is written but the manifest, or right after that.
template <class Store>
std::vector<std::int64_t> save_step(const Store& store, const std::function<void()>& meanwhile,
                                    bool after = false) {
  const auto faults = std::make_shared<cairn_test::store_faults>();
  faults->add({.kind = cairn_test::store_call::publish_new,
               .after = after,
               .key_contains = "manifest",
               .action = [&](auto) { meanwhile(); }});
  std::vector<float> w(1'000, 1.0F);
  cairn::state_dict state;
  state.tensor("w", w, {1'000});
  cairn::checkpointer ckpt{cairn::safetensors_storage{cairn_test::faulty_store<Store>{store, faults}},
                           quiet()};
  (void)ckpt.save(state, 0).wait();
  return ckpt.list();
}

TEST_CASE("an import leaves a save of its step that is under way alone") {
  const auto source = model();
  const cairn_test::scratch_directory directory;
  const cairn::file_store files{directory.path()};
  int tried = 0;
  const auto saved = save_step(files, [&] { look_and_end(source, cairn::any_store(files)), ++tried; });
  CHECK(tried == 1);
  CHECK(saved == std::vector<std::int64_t>{0});
}

TEST_CASE("what a killed import left is looked for beside a save that has just published its manifest") {
  const cairn_test::scratch_directory directory;
  const cairn::file_store files{directory.path()};
  const cairn::checkpoint_catalog catalog{cairn::any_store(files)};
  int tried = 0;
  const auto saved = save_step(
      files,
      [&] {
        CHECK(catalog.clean_abandoned(0, {7, 7}) == 0);
        ++tried;
      },
      true);
  CHECK(tried == 1);
  CHECK(saved == std::vector<std::int64_t>{0});
  CHECK(cairn::any_store(files).keys("step-00000000/aborted.").empty());
}

TEST_CASE("an import leaves a save alone that begins while it looks for what a killed one left") {
  const auto source = model();
  const cairn_test::scratch_directory directory;
  const cairn::file_store files{directory.path()};
  // The save is at its manifest when the import goes on.
  std::latch written(1), looked(1);
  std::vector<std::int64_t> saved;
  std::thread save;
  const auto faults = std::make_shared<cairn_test::store_faults>();
  faults->add(
      {.kind = cairn_test::store_call::leftovers, .key_contains = "step-00000000", .action = [&](auto) {
         save = std::thread([&] { saved = save_step(files, [&] { written.count_down(), looked.wait(); }); });
         written.wait();
       }});
  look_and_end(source, cairn::any_store(cairn_test::faulty_store<cairn::file_store>{files, faults}));
  looked.count_down();
  REQUIRE(save.joinable());
  save.join();
  CHECK(saved == std::vector<std::int64_t>{0});
}

TEST_CASE("an export under a name that is a path, or none, is refused before anything is written") {
  cairn::memory_store store;
  (void)cairn::import_safetensors(cairn::safetensors_files(model()).reader(), cairn::any_store(store));
  cairn::safetensors_reader reader{cairn::any_store(store)};
  cairn::memory_store target;
  for (const char* name : {"sub/model", "/model", "model/", ""}) {
    CAPTURE(name);
    CHECK(failure_of([&] { (void)cairn::export_safetensors(reader, 0, target, {.name = name}); }).id() ==
          error_id::usage_bad_option);
  }
  CHECK(target.list("").empty());
}

TEST_CASE("an export that leaves a tensor a name which the format needs itself says so") {
  cairn::memory_store store, target;
  std::vector<float> w(2);
  cairn::state_dict state;
  state.tensor("model.__metadata__", w, {2});
  cairn::checkpointer{store, quiet()}.save(state, 0).wait();
  cairn::safetensors_reader reader{cairn::any_store(store)};
  const auto refused =
      failure_of([&] { (void)cairn::export_safetensors(reader, 0, target, {.strip_prefix = "model."}); });
  CHECK(refused.id() == error_id::usage_bad_name);
  CHECK(refused.fields().item == "model.__metadata__");
  CHECK(std::string(refused.what()).find("is reserved by the safetensors format") != std::string::npos);
  CHECK(target.list("").empty());
}

TEST_CASE("an export that would meet a file of one of its names writes nothing") {
  cairn::memory_store store;
  (void)cairn::import_safetensors(cairn::safetensors_files(model()).reader(), cairn::any_store(store));
  cairn::safetensors_reader reader{cairn::any_store(store)};
  for (const char* name : {"model-00002-of-00002.safetensors", "model.safetensors.index.json"}) {
    CAPTURE(name);
    cairn::memory_store target;
    target.put_new(name, {});
    const auto refused = failure_of(
        [&] { (void)cairn::export_safetensors(reader, 0, target, {.max_shard_bytes = 1'000'000}); });
    CHECK(refused.id() == error_id::storage_exists);
    CHECK(refused.fields().file == name);
    CHECK(target.list("").size() == 1);
  }
}

TEST_CASE("of what is damaged nothing is made") {
  auto source = model();
  cairn::memory_store store;
  const auto bytes = source.read_all("b.safetensors", 1u << 30).value();
  source.remove("b.safetensors");
  source.put_new("b.safetensors", std::span(bytes).first(bytes.size() - 1));
  const auto refused = failure_of([&] {
    (void)cairn::import_safetensors(cairn::safetensors_files(source).reader(), cairn::any_store(store));
  });
  CHECK(refused.kind() == cairn::error_kind::corrupt);
  CHECK(refused.fields().file == "b.safetensors");
  CHECK(store.list("").empty());
}

/// A file of one tensor `w` whose elements are all the same.
void put_file(const std::string& path, float value, std::size_t count) {
  cairn::memory_store made;
  put(made, "made", {{"w", {static_cast<std::int64_t>(count)}}});
  auto bytes = made.read_all("made", 1u << 30).value();
  const std::vector<float> values(count, value);
  std::memcpy(bytes.data() + (bytes.size() - count * sizeof(float)), values.data(), count * sizeof(float));
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

TEST_CASE("an import of files that are replaced or written again meanwhile commits nothing") {
  const cairn_test::scratch_directory directory;
  const auto path = directory.path() + "/model.safetensors";
  constexpr std::size_t count = 5'000'000;  // several reads
  put_file(path, 1, count);
  // Long ago, however soon it is written again.
  const timespec times[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
  std::function<void()> meanwhile;
  SUBCASE("replaced by a rename, with the same header and size") {
    const auto next = directory.path() + "/next";
    put_file(next, 2, count);
    meanwhile = [&, next] { REQUIRE(::rename(next.c_str(), path.c_str()) == 0); };
  }
  SUBCASE("written again in place") {
    meanwhile = [&] { put_file(path, 2, count); };
  }
  std::shared_ptr<void> mapped;
  SUBCASE("written through a mapping, which not every file system notes in a time stamp") {
    meanwhile = [&] {
      const cairn::detail::file_descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
      void* const at = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
      REQUIRE(at != MAP_FAILED);
      mapped.reset(at, [](void* p) { ::munmap(p, 8192); });
      static_cast<char*>(at)[8000] ^= 1;
    };
  }
  bool done = false;
  cairn::import_options options;
  options.progress = [&](std::uint64_t, std::uint64_t) {
    if (!std::exchange(done, true)) meanwhile();
  };
  cairn::memory_store store;
  const auto refused = failure_of([&] {
    (void)cairn::import_safetensors(cairn::safetensors_files{directory.path()}.reader(),
                                    cairn::any_store(store), options);
  });
  CHECK(done);
  CHECK(refused.id() == error_id::corrupt_identity);
  CHECK(refused.fields().file == "model.safetensors");
  CHECK(cairn::safetensors_reader(cairn::any_store(store)).list().empty());
}

TEST_CASE("an import from a store without identities finds another header") {
  const auto replaced_meanwhile = [] {
    auto source = model();
    cairn::memory_store store;
    bool done = false;
    cairn::import_options options;
    options.progress = [&](std::uint64_t, std::uint64_t) {
      if (std::exchange(done, true)) return;
      source.remove("c.safetensors");
      put(source, "c.safetensors", {{"scole", {}, 3}, {"empty", {0, 4}}, {"small", {3}, 9}});
    };
    const auto refused = failure_of([&] {
      (void)cairn::import_safetensors(cairn::safetensors_files(source).reader(), cairn::any_store(store),
                                      options);
    });
    CHECK(cairn::safetensors_reader(cairn::any_store(store)).list().empty());
    return refused.id();
  };
  auto id = replaced_meanwhile();
  // Another thread may have asked for the file just when it was not there.
  for (int i = 0; i < 20 && id == error_id::storage_not_found; ++i) id = replaced_meanwhile();
  CHECK(id == error_id::corrupt_identity);
}

}  // namespace
