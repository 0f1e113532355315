// SPDX-License-Identifier: Apache-2.0
// Safetensors files that something else wrote, as a checkpoint: whole directories, parts on other numbers of ranks,
// and everything that such files may have wrong.
#include <doctest/doctest.h>

#include <cairn/checkpointer.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/manage/import_safetensors.hpp>
#include <cairn/safetensors_files.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/stores/file/posix_file_system.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/stores/memory_store.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <support/faulty_store.hpp>
#include <support/on_all_ranks.hpp>
#include <support/planner_conformance.hpp>
#include <support/scratch_directory.hpp>
#include <support/storage_archetype.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

using cairn::chunk;
using cairn::dtype;
using cairn::error_id;
using cairn::extents;
using cairn_test::failure_of;
using cairn_test::scratch_directory;

static_assert(cairn::Storage<cairn::safetensors_files> && cairn::ReadOnlyStorage<cairn::safetensors_files>);
static_assert(cairn::SharingReader<cairn::foreign_reader> && cairn::GatedReader<cairn::foreign_reader> &&
              !cairn::ReportsRuns<cairn::foreign_reader>);
static_assert(!cairn::ReadOnlyStorage<cairn::safetensors_storage<cairn::memory_store>> &&
              !cairn::ReadOnlyStorage<cairn_test::storage_archetype>);
struct read_only_archetype : cairn_test::storage_archetype {
  static constexpr bool is_read_only = true;
};
static_assert(cairn::ReadOnlyStorage<read_only_archetype>);
struct written_after_all : cairn_test::storage_archetype {
  static constexpr bool is_read_only = false;
};
static_assert(!cairn::ReadOnlyStorage<written_after_all>);

namespace {

/// A tensor in a file, or a part of one.
struct part {
  std::string key;
  dtype type = dtype::f32;
  extents shape;
  std::vector<std::byte> data;
  extents offsets = {};  ///< where `sharded`
  extents global = {};
  bool sharded = false;
};

/// Any bytes that tell where they were: element i of a tensor of floats is i + seed.
std::vector<float> floats(std::int64_t count, float seed = 0) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), seed);
  return values;
}
template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> out(values.size() * sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}
part whole_part(std::string key, const extents& shape, float seed = 0) {
  return {.key = std::move(key), .shape = shape, .data = bytes_of(floats(shape.volume(), seed))};
}
/// Rows [begin, begin + rows) of a tensor of `global` that holds floats().
part rows_of(std::string key, const extents& global, std::int64_t begin, std::int64_t rows) {
  auto shape = global;
  shape.set(0, rows);
  auto at = extents::zeros(global.rank());
  at.set(0, begin);
  const auto width = global.volume() / global[0];
  return {.key = std::move(key),
          .shape = shape,
          .data = bytes_of(floats(rows * width, static_cast<float>(begin * width))),
          .offsets = at,
          .global = global,
          .sharded = true};
}

std::string file_of(const std::vector<part>& parts,
                    std::vector<std::pair<std::string, std::string>> metadata = {{"format", "pt"}}) {
  cairn::safetensors_header header;
  header.metadata = std::move(metadata);
  std::uint64_t end = 0;
  for (const auto& p : parts) {
    cairn::safetensors_entry e;
    e.key = p.key, e.type = p.type, e.shape = p.shape;
    e.begin = end, e.end = end += p.data.size();
    e.sharded = p.sharded, e.saved_offsets = p.offsets, e.global_shape = p.global;
    header.entries.push_back(std::move(e));
  }
  const auto head = cairn::encode_safetensors_header(header, 8);
  std::string text(reinterpret_cast<const char*>(head.data()), head.size());
  for (const auto& p : parts) text.append(reinterpret_cast<const char*>(p.data.data()), p.data.size());
  return text;
}
/// With this text as its header.
std::string file_with(const std::string& json, std::size_t data_bytes) {
  const std::uint64_t length = json.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + json + std::string(data_bytes, '\1');
}
void put(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  REQUIRE(file.flush());
}
void put(cairn::memory_store& store, const std::string& key, const std::string& text) {
  store.put_new(key, std::as_bytes(std::span(text.data(), text.size())));
}

cairn::checkpointer_options quiet() {
  return {.timeout = std::chrono::seconds(60), .peer_timeout = std::chrono::seconds(60), .quiet = true};
}
/// What is thrown when files with these texts are opened.
cairn::error refusal_of(const std::vector<std::pair<std::string, std::string>>& files) {
  cairn::memory_store store;
  for (const auto& [key, text] : files) put(store, key, text);
  auto reader = cairn::safetensors_files(store).reader();
  return failure_of([&] { (void)reader.open(0, reader.fetch(0)); });
}
[[nodiscard]] bool has(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

TEST_CASE("a directory without an index is the tensors of all of its files") {
  const scratch_directory directory;
  put(directory.path() + "/model-00001-of-00002.safetensors",
      file_of(
          {whole_part("a.weight", {300, 1000}), whole_part("empty", {0, 4}), whole_part("bias", {7}, 5)}));
  put(directory.path() + "/model-00002-of-00002.safetensors",
      file_of(
          {whole_part("scale", {}, 3),
           {.key = "mask", .type = dtype::boolean, .shape = {3}, .data = bytes_of<std::uint8_t>({1, 0, 1})},
           {.key = "half",
            .type = dtype::bf16,
            .shape = {2},
            .data = bytes_of<std::uint16_t>({0x3f80, 0x4000})}}));
  put(directory.path() + "/config.json", "{}");
  std::vector<float> a(300'000), bias(7), nothing;
  float scale = 0;
  bool mask[3] = {};
  cairn::bf16 half[2] = {};
  cairn::state_dict state;
  state.tensor("a.weight", a, {300, 1000});
  state.tensor("bias", bias, {7});
  state.tensor("empty", nothing, {0, 4});
  state.value("scale", scale);
  state.tensor("mask", mask, {3});
  state.tensor("half", half, {2});
  cairn::checkpointer ckpt{cairn::safetensors_files{directory.path()}, quiet()};
  CHECK(ckpt.list() == std::vector<std::int64_t>{0});
  SUBCASE("load") {
    (void)ckpt.load(state, cairn::safetensors_files::step);
  }
  SUBCASE("resume") {
    CHECK(ckpt.resume(state) == 0);
  }
  CHECK(a == floats(300'000));
  CHECK(bias == floats(7, 5));
  CHECK(scale == 3);
  CHECK((mask[0] && !mask[1] && mask[2]));
  CHECK((half[0].bits == 0x3f80 && half[1].bits == 0x4000));
  const auto refused = failure_of([&] { (void)ckpt.save(state, 1); });
  CHECK(refused.id() == error_id::usage_bad_option);
  CHECK(has(refused.what(), "read_only"));
  CHECK(failure_of([&] { (void)ckpt.load(state, 1); }).id() == error_id::storage_not_committed);
}

TEST_CASE("without an index, what is missing by the names of the files is no model") {
  const auto refused = [](const std::vector<std::string>& names) {
    const scratch_directory directory;
    cairn::memory_store store;
    for (const auto& name : names) {
      const auto bytes = file_of({whole_part(name, {4})});
      put(directory.path() + "/" + name, bytes);
      put(store, name, bytes);
    }
    std::string missing;
    const auto note = [&](const cairn::error& e) {
      CHECK(e.id() == error_id::corrupt_missing_file);
      missing = e.fields().expected;
    };
    // A directory as it is opened, a store as it is read.
    try {
      (void)cairn::safetensors_files{directory.path()};
    } catch (const cairn::error& e) {
      note(e);
    }
    const auto in_directory = std::exchange(missing, {});
    try {
      cairn::memory_store imported;
      (void)cairn::import_safetensors(cairn::safetensors_files{store}.reader(), cairn::any_store(imported));
    } catch (const cairn::error& e) {
      note(e);
    }
    CHECK(missing == in_directory);
    return missing;
  };
  CHECK(refused({"model-00001-of-00002.safetensors"}) == "model-00002-of-00002.safetensors");
  CHECK(refused({"model-00003-of-00004.safetensors", "model-00002-of-00004.safetensors"}) ==
        "model-00001-of-00004.safetensors, model-00004-of-00004.safetensors");
  CHECK(refused({"m-1-of-99999999.safetensors"}) ==
        "m-00000002-of-99999999.safetensors, m-00000003-of-99999999.safetensors, "
        "m-00000004-of-99999999.safetensors, m-00000005-of-99999999.safetensors, "
        "m-00000006-of-99999999.safetensors, ...");
  CHECK(refused({"a-00001-of-00001.safetensors", "b-00002-of-00002.safetensors"}) ==
        "b-00001-of-00002.safetensors");
  // A rank of PyTorch writes those files alone of which it has something.
  CHECK(refused({"shard-00001-model-00001-of-00002.safetensors",
                 "shard-00002-model-00001-of-00002.safetensors"}) == "model-00002-of-00002.safetensors");
  for (const std::vector<std::string>& whole : std::vector<std::vector<std::string>>{
           {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "other.safetensors"},
           {"model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors"},
           {"shard-00001-model-00001-of-00002.safetensors", "shard-00002-model-00002-of-00002.safetensors"},
           {"two-of-3.safetensors"},
           {"-of-3.safetensors"},
           {"model-1-of-99999999999999999999.safetensors"}})
    CHECK(refused(whole).empty());
  // Who names files means those.
  const scratch_directory directory;
  put(directory.path() + "/model-00001-of-00002.safetensors", file_of({whole_part("w", {4})}));
  std::vector<float> w(4);
  cairn::state_dict state;
  state.tensor("w", w, {4});
  (void)cairn::checkpointer{cairn::safetensors_files{directory.path() + "/model-00001-of-00002.safetensors"},
                            quiet()}
      .load(state, 0);
  CHECK(w == floats(4));
}

TEST_CASE("files without digests are read whole by a refresh, too") {
  const scratch_directory directory;
  put(directory.path() + "/model.safetensors", file_of({whole_part("a", {4}, 1)}));
  std::vector<float> a(4);
  cairn::state_dict state;
  state.tensor("a", a, {4});
  cairn::checkpointer ckpt{cairn::safetensors_files{directory.path()}, quiet()};
  for (int round = 0; round < 2; ++round) {
    a.assign(4, -1);
    const auto report = ckpt.refresh(state);
    CHECK(report.step == 0);
    CHECK(report.blocks == 0);
    CHECK(a[0] != -1);
  }
}

TEST_CASE("an index says which files are meant, and which of two tensors") {
  const scratch_directory directory;
  const auto at = [&](const char* name) { return directory.path() + "/" + name; };
  put(at("model-00001-of-00002.safetensors"), file_of({whole_part("a", {4}, 1), whole_part("tied", {2}, 7)}));
  put(at("model-00002-of-00002.safetensors"), file_of({whole_part("b", {4}, 2), whole_part("tied", {2}, 9)}));
  put(at("consolidated.safetensors"), file_of({whole_part("a", {4}, 100), whole_part("b", {4}, 100)}));
  put(at("model.safetensors.index.json"),
      R"({"metadata": {"total_size": 32, "more": {"deep": [1, 2.5, null]}},
          "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors",
                         "tied": "model-00002-of-00002.safetensors"}})");
  std::vector<float> a(4), b(4), tied(2);
  cairn::state_dict state;
  state.tensor("a", a, {4});
  state.tensor("b", b, {4});
  state.tensor("tied", tied, {2});
  const auto load = [&](cairn::safetensors_files files) {
    a.assign(4, 0), b.assign(4, 0), tied.assign(2, 0);
    cairn::checkpointer ckpt{std::move(files), quiet()};
    (void)ckpt.load(state, 0);
    CHECK(a == floats(4, 1));
    CHECK(b == floats(4, 2));
    CHECK(tied == floats(2, 9));
  };
  load(cairn::safetensors_files{directory.path()});
  load(cairn::safetensors_files{at("model.safetensors.index.json")});
  SUBCASE("in the cache of Hugging Face, files are links") {
    const scratch_directory cache;
    const auto snapshot = cache.path() + "/snapshots";
    const auto blobs = cache.path() + "/blobs";
    REQUIRE((::mkdir(snapshot.c_str(), 0700) == 0 && ::mkdir(blobs.c_str(), 0700) == 0));
    int number = 0;
    for (const char* name : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                             "model.safetensors.index.json"}) {
      const auto blob = "b10b" + std::to_string(number++);
      REQUIRE(::rename(at(name).c_str(), (blobs + "/" + blob).c_str()) == 0);
      REQUIRE(::symlink(("../blobs/" + blob).c_str(), (snapshot + "/" + name).c_str()) == 0);
    }
    load(cairn::safetensors_files{snapshot});
  }
  SUBCASE("what nobody can read and the index does not name is nobody's business") {
    put(at("old (1).safetensors"), "none");
    REQUIRE(::symlink("nowhere", at("gone.safetensors").c_str()) == 0);
    load(cairn::safetensors_files{directory.path()});
    load(cairn::safetensors_files{at("model.safetensors.index.json")});
  }
  SUBCASE("a file that the index names and no store can is refused with advice, and not called missing") {
    REQUIRE(::rename(at("model-00002-of-00002.safetensors").c_str(), at("model (2).safetensors").c_str()) ==
            0);
    put(at("model.safetensors.index.json"),
        R"({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model (2).safetensors"}})");
    for (const auto& given : {directory.path(), at("model.safetensors.index.json")}) {
      const auto refused = failure_of([&] { (void)cairn::safetensors_files{given}; });
      CHECK(refused.id() == error_id::usage_bad_option);
      CHECK(has(refused.fields().file, "model (2).safetensors"));
    }
  }
  SUBCASE("a link that the index does not name is not followed") {
    const auto odd = directory.path() + "/my models (2)";
    const scratch_directory elsewhere;
    REQUIRE(::mkdir(odd.c_str(), 0700) == 0);
    for (const char* name : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                             "model.safetensors.index.json"})
      REQUIRE(::rename(at(name).c_str(), (odd + "/" + name).c_str()) == 0);
    std::ofstream(elsewhere.path() + "/other.safetensors") << "none";
    REQUIRE(::symlink((elsewhere.path() + "/other.safetensors").c_str(),
                      (odd + "/other.safetensors").c_str()) == 0);
    load(cairn::safetensors_files{odd});
    CHECK(cairn::safetensors_files{odd}.describe().find("my models (2)") != std::string::npos);
    load(cairn::safetensors_files{odd + "/model.safetensors.index.json"});
  }
  SUBCASE("an index names files of its directory, and no paths") {
    const auto below = directory.path() + "/below";
    REQUIRE(::mkdir(below.c_str(), 0700) == 0);
    std::ofstream(below + "/b.safetensors") << "none";
    for (const auto& name :
         {std::string("../model-00001-of-00002.safetensors"), at("model-00001-of-00002.safetensors")}) {
      std::ofstream(below + "/model.safetensors.index.json") << R"({"weight_map": {"a": ")" << name << "\"}}";
      for (const auto& given : {below, below + "/model.safetensors.index.json"})
        CHECK(failure_of([&] { load(cairn::safetensors_files{given}); }).id() ==
              error_id::corrupt_missing_file);
    }
  }
  SUBCASE("what the index names and is a link to nothing is missing") {
    REQUIRE(::unlink(at("model-00002-of-00002.safetensors").c_str()) == 0);
    REQUIRE(::symlink("nowhere", at("model-00002-of-00002.safetensors").c_str()) == 0);
    CHECK(failure_of([&] { load(cairn::safetensors_files{directory.path()}); }).id() ==
          error_id::corrupt_missing_file);
  }
  SUBCASE("another index beside it leaves it open which is meant") {
    put(at("other.safetensors.index.json"), R"({"weight_map": {}})");
    load(cairn::safetensors_files{directory.path()});  // model.safetensors.index.json is the usual one
    REQUIRE(::rename(at("model.safetensors.index.json").c_str(), at("one.safetensors.index.json").c_str()) ==
            0);
    CHECK(failure_of([&] { (void)cairn::safetensors_files{directory.path()}; }).id() ==
          error_id::usage_bad_option);
    load(cairn::safetensors_files{at("one.safetensors.index.json")});
  }
  SUBCASE("files by name") {
    std::vector<float> read(4);
    cairn::state_dict one;
    one.tensor("a", read, {4});
    cairn::checkpointer ckpt{cairn::safetensors_files{at("consolidated.safetensors")}, quiet()};
    (void)ckpt.load(one, 0, cairn::only{"a"});
    CHECK(read == floats(4, 100));
    CHECK(failure_of([&] {
            (void)cairn::safetensors_files{at("consolidated.safetensors"), directory.path()};
          }).id() == error_id::usage_bad_option);
  }
}

TEST_CASE("parts of tensors are loaded by any number of ranks, each of which gets its own") {
  cairn::memory_store store;
  const extents global{60, 1000};
  put(store, "shard-00001-model-00001-of-00001.safetensors",
      file_of({rows_of("w", global, 0, 25), rows_of("odd", {7, 3}, 0, 7)}));
  put(store, "shard-00002-model-00001-of-00001.safetensors", file_of({rows_of("w", global, 25, 10)}));
  put(store, "shard-00003-model-00001-of-00001.safetensors", file_of({rows_of("w", global, 35, 25)}));
  for (const int world : {1, 2, 3, 5}) {
    CAPTURE(world);
    const cairn::thread_group group(world);
    const auto wrong = cairn_test::said_on_ranks(world, [&](int rank) {
      const std::int64_t begin = 1000 * rank / world;
      const std::int64_t width = 1000 * (rank + 1) / world - begin;
      std::vector<float> columns(static_cast<std::size_t>(60 * width)), odd(21);
      cairn::state_dict state;
      state.tensor("w", columns.data(), cairn::shard{global, {0, begin}, {60, width}});
      state.tensor("odd", odd, {7, 3});
      cairn::checkpointer ckpt{cairn::safetensors_files(store), group.communicator(rank), quiet()};
      (void)ckpt.load(state, 0);
      for (std::int64_t r = 0; r < 60; ++r)
        for (std::int64_t c = 0; c < width; ++c)
          if (columns[static_cast<std::size_t>(r * width + c)] != static_cast<float>(r * 1000 + begin + c))
            throw std::runtime_error("an element of w is another one");
      if (odd != floats(21)) throw std::runtime_error("odd is not what was stored");
      ckpt.close();
    });
    for (const auto& text : wrong) CHECK(text == "");
  }
}

TEST_CASE("what does not fit together is refused, with the file and the tensor") {
  const auto one = file_of({whole_part("w", {4})});
  SUBCASE("two files with one tensor") {
    const auto e = refusal_of({{"a.safetensors", one}, {"b.safetensors", one}});
    CHECK(e.id() == error_id::corrupt_bad_value);
    CHECK(e.fields().item == "w");
    CHECK(e.fields().file == "b.safetensors");
    CHECK(has(e.fields().got, "a.safetensors"));
  }
  SUBCASE("a part that is missing") {
    const auto e = refusal_of({{"a.safetensors", file_of({rows_of("w", {10, 2}, 0, 4)})},
                               {"b.safetensors", file_of({rows_of("w", {10, 2}, 6, 4)})}});
    CHECK(e.id() == error_id::corrupt_bad_value);
    CHECK(e.fields().item == "w");
    CHECK(has(e.fields().got, "offsets [4, 0]"));
  }
  SUBCASE("parts that overlap") {
    const auto e = refusal_of({{"a.safetensors", file_of({rows_of("w", {10, 2}, 0, 5)})},
                               {"b.safetensors", file_of({rows_of("w", {10, 2}, 4, 6)})}});
    CHECK(e.id() == error_id::corrupt_bad_value);
    CHECK(e.fields().file == "b.safetensors");
  }
  SUBCASE("dtypes") {
    auto other = rows_of("w", {10, 2}, 5, 5);
    other.type = dtype::i32;
    const auto e = refusal_of(
        {{"a.safetensors", file_of({rows_of("w", {10, 2}, 0, 5)})}, {"b.safetensors", file_of({other})}});
    CHECK(e.fields().got == "I32");
    CHECK(has(e.fields().expected, "F32 as in a.safetensors"));
  }
  SUBCASE("numbers of dimensions") {
    const auto e = refusal_of({{"a.safetensors", file_of({rows_of("w", {10, 2}, 0, 5)})},
                               {"b.safetensors", file_of({rows_of("w", {10}, 5, 5)})}});
    CHECK(e.id() == error_id::corrupt_bad_value);
  }
  SUBCASE("a dtype that cairn does not know") {
    const auto e =
        refusal_of({{"a.safetensors",
                     file_with(R"({"w":{"dtype":"F8_E4M3FNUZ","shape":[4],"data_offsets":[0,4]}})", 4)}});
    CHECK(e.id() == error_id::corrupt_bad_json);
    CHECK(e.fields().item == "w");
    CHECK(e.fields().got == "F8_E4M3FNUZ");
  }
  SUBCASE("a name that no item may have") {
    const auto e = refusal_of(
        {{"a.safetensors", file_with(R"({"a\nb":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4)}});
    CHECK(e.id() == error_id::corrupt_bad_value);
  }
  SUBCASE("files that are none") {
    CHECK(refusal_of({{"a.safetensors", ""}}).id() == error_id::corrupt_truncated);
    CHECK(refusal_of({{"a.safetensors", "1234567"}}).id() == error_id::corrupt_truncated);
    CHECK(refusal_of({{"a.safetensors", one.substr(0, one.size() - 1)}}).kind() ==
          cairn::error_kind::corrupt);
    CHECK(refusal_of({{"a.safetensors", one + "x"}}).id() == error_id::corrupt_size_mismatch);
    // A length that nothing explains asks for no memory.
    CHECK(refusal_of({{"a.safetensors", std::string("\0\0\0\5\0\0\0\0{}", 10)}}).id() ==
          error_id::corrupt_truncated);
    CHECK(refusal_of({{"a.safetensors", std::string(8, '\xff') + "{}"}}).id() == error_id::corrupt_bad_value);
  }
  SUBCASE("nothing") {
    CHECK(refusal_of({}).id() == error_id::storage_not_found);
    CHECK(refusal_of({{"deep/a.safetensors", one}}).id() == error_id::storage_not_found);
    const scratch_directory empty;
    CHECK(failure_of([&] { (void)cairn::safetensors_files{empty.path()}; }).id() ==
          error_id::storage_not_found);
    CHECK(failure_of([&] { (void)cairn::safetensors_files{empty.path() + "/none"}; }).id() ==
          error_id::storage_not_found);
  }
  SUBCASE("an index") {
    const auto with = [&](const std::string& index) {
      return refusal_of({{"a.safetensors", one}, {"model.safetensors.index.json", index}});
    };
    const auto gone = with(R"({"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}})");
    CHECK(gone.id() == error_id::corrupt_missing_file);
    CHECK(gone.fields().item == "v");
    CHECK(gone.fields().expected == "b.safetensors");
    const auto without = with(R"({"weight_map": {"v": "a.safetensors"}})");
    CHECK(without.id() == error_id::corrupt_bad_value);
    CHECK(without.fields().item == "v");
    CHECK(without.fields().file == "a.safetensors");
    for (const char* text : {"", "[]", "1", "\"a\"", "{}", R"({"weight_map": 1})", R"({"weight_map": "w"})",
                             R"({"weight_map": []})", R"({"weight_map": {"w": 1}})",
                             R"({"weight_map": {"w": {}}})", R"({"weight_map": {"w": ["a"]}})",
                             R"({"weight_map": {"w": ""}})", R"({"weight_map": {}, "weight_map": {}})",
                             R"({"weight_map": {"w": "a.safetensors", "w": "a.safetensors"}})",
                             R"({"weight_map": {}} {})", "{\"weight_map\": {\"w\": \"\xff\"}}"}) {
      CAPTURE(text);
      CHECK(with(text).id() == error_id::corrupt_bad_json);
    }
  }
}

TEST_CASE("every cut and every byte of the headers that ranks hand on is a checkpoint or an error") {
  cairn::memory_store store;
  put(store, "a.safetensors", file_of({rows_of("w", {4, 3}, 0, 2), rows_of("v", {2}, 0, 2)}));
  put(store, "b.safetensors", file_of({rows_of("w", {4, 3}, 2, 2)}));
  auto reader = cairn::safetensors_files(store).reader();
  const auto headers = reader.fetch(0);
  CHECK(reader.open(0, headers).metadata().items.size() == 2);
  const auto look = [&](std::span<const std::byte> bytes) {
    try {
      auto opened = reader.open(0, bytes);
      for (std::uint32_t i = 0; i < opened.metadata().items.size(); ++i)
        for (std::uint64_t c = 0; c < opened.metadata().items[i].chunks.size(); ++c) {
          const auto& place = opened.place_of(i, c);
          const auto& file = opened.files()[place.file];
          if (place.offset > file.bytes || place.bytes > file.bytes - place.offset)
            throw std::logic_error("a place lies outside of its file");
        }
    } catch (const cairn::corrupt_error&) {
    }
  };
  for (std::size_t n = 0; n < headers.size(); ++n)
    CHECK_THROWS_AS((void)reader.open(0, std::span(headers).first(n)), cairn::corrupt_error);
  for (std::size_t i = 0; i < headers.size(); ++i)
    for (const auto flip : {std::byte{1}, std::byte{4}, std::byte{0x80}}) {
      auto changed = headers;
      changed[i] ^= flip;
      look(changed);
    }
}

TEST_CASE("verify finds what has changed since the files were opened") {
  const scratch_directory directory;
  const auto path = directory.path() + "/model.safetensors";
  const auto text = file_of({whole_part("a", {1000}), whole_part("b", {1000}, 4)});
  put(path, text);
  auto reader = cairn::safetensors_files{path}.reader();
  auto opened = reader.open(0, reader.fetch(0));
  CHECK(reader.verify(opened, cairn::deadline::never()) == text.size());
  auto renamed = text;
  renamed[renamed.find("\"b\"") + 1] = 'c';
  put(path, renamed);
  CHECK(failure_of([&] { (void)reader.verify(opened, cairn::deadline::never()); }).id() ==
        error_id::corrupt_identity);
  std::vector<float> a(1000);
  cairn::state_dict state;
  state.tensor("a", a, {1000});
  put(path, file_of({whole_part("a", {900}), whole_part("b", {1000}, 4)}));
  CHECK(failure_of([&] { (void)reader.verify(opened, cairn::deadline::never()); }).kind() ==
        cairn::error_kind::corrupt);
  REQUIRE(::unlink(path.c_str()) == 0);
  CHECK(failure_of([&] { (void)reader.verify(opened, cairn::deadline::never()); }).id() ==
        error_id::corrupt_missing_file);
}

TEST_CASE("a load of a file that is replaced while it is read is an error, not a mix of two models") {
  const scratch_directory directory;
  const auto next = directory.path() + "/next";
  put(directory.path() + "/model.safetensors", file_of({whole_part("w", {1000})}));
  put(next, file_of({whole_part("w", {1000}, 5)}));
  const auto faults = std::make_shared<cairn_test::store_faults>();
  // The read after those of the header, which is read again when it is known who has it.
  faults->add({.kind = cairn_test::store_call::read, .at = 2, .action = [&](auto) {
                 REQUIRE(::rename(next.c_str(), (directory.path() + "/model.safetensors").c_str()) == 0);
               }});
  cairn::checkpointer ckpt{cairn::safetensors_files(cairn_test::faulty_store<cairn::file_store>{
                               cairn::file_store{directory.path()}, faults}),
                           quiet()};
  std::vector<float> w(1000);
  cairn::state_dict state;
  state.tensor("w", w, {1000});
  const auto refused = failure_of([&] { (void)ckpt.load(state, 0); });
  CHECK(faults->triggered() == 1);
  CHECK(refused.id() == error_id::corrupt_identity);
  CHECK(refused.fields().file == "model.safetensors");
  (void)ckpt.load(state, 0);
  CHECK(w == floats(1000, 5));
}

TEST_CASE("a file that somebody has open for writing, or mapped so, is not read: it may change unseen") {
  const scratch_directory directory;
  const auto path = directory.path() + "/model.safetensors";
  put(path, file_of({whole_part("w", {1000})}));
  cairn::detail::file_descriptor own(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const cairn::posix_file_system system;
  if (system.lease(own.get()) != 0) {
    MESSAGE("not tried: this file system does not tell who writes");
    return;
  }
  system.end_lease(own.get());
  cairn::checkpointer ckpt{cairn::safetensors_files(path), quiet()};
  std::vector<float> w(1000, 9.f);
  cairn::state_dict state;
  state.tensor("w", w, {1000});
  const auto expect_refused = [&] {
    const auto refused = failure_of([&] { (void)ckpt.load(state, 0); });
    CHECK(refused.id() == error_id::corrupt_identity);
    CHECK(refused.fields().file == "model.safetensors");
    CHECK(w == std::vector<float>(1000, 9.f));
  };
  cairn::detail::file_descriptor writer(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  expect_refused();
  void* const mapped = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, writer.get(), 0);
  REQUIRE(mapped != MAP_FAILED);
  writer = {};
  expect_refused();
  ::munmap(mapped, 4096);
  (void)ckpt.load(state, 0);
  CHECK(w == floats(1000, 0));
}

TEST_CASE("a load of a file that is replaced at any moment loads one of the two, or says what happened") {
  // Of the same size, with the tensors in another order: bytes at the places of the other one are wrong ones.
  std::string other = file_of({whole_part("b", {1000}, 5), whole_part("a", {1000}, 7)});
  SUBCASE("by one of the same size") {}
  SUBCASE("by a longer one") {
    other =
        file_of({whole_part("b", {1000}, 5), whole_part("a", {1000}, 7)}, {{"note", std::string(99, 'n')}});
  }
  const auto first = file_of({whole_part("a", {1000}, 1), whole_part("b", {1000}, 3)});
  for (const bool after : {false, true})
    for (std::uint64_t call = 0;; ++call) {
      CAPTURE(after);
      CAPTURE(call);
      const scratch_directory directory;
      const auto next = directory.path() + "/next";
      put(directory.path() + "/model.safetensors", first);
      put(next, other);
      const auto faults = std::make_shared<cairn_test::store_faults>();
      faults->add({.at = call, .after = after, .key_contains = "model", .action = [&](auto) {
                     REQUIRE(::rename(next.c_str(), (directory.path() + "/model.safetensors").c_str()) == 0);
                   }});
      cairn::checkpointer ckpt{cairn::safetensors_files(cairn_test::faulty_store<cairn::file_store>{
                                   cairn::file_store{directory.path()}, faults}),
                               quiet()};
      std::vector<float> a(1000), b(1000);
      cairn::state_dict state;
      state.tensor("a", a, {1000});
      state.tensor("b", b, {1000});
      try {
        (void)ckpt.load(state, 0);
        const bool loaded_first = a == floats(1000, 1) && b == floats(1000, 3);
        const bool loaded_other = a == floats(1000, 7) && b == floats(1000, 5);
        CHECK((loaded_first || loaded_other));
      } catch (const cairn::corrupt_error& e) {
        CHECK(e.fields().file == "model.safetensors");
        if (other.size() == first.size()) CHECK(e.id() == error_id::corrupt_identity);
      }
      if (faults->triggered() == 0) break;
    }
}

TEST_CASE("nothing is written to a storage that is only read") {
  cairn::memory_store store;
  put(store, "a.safetensors", file_of({whole_part("w", {4})}));
  auto writer = cairn::safetensors_files(store).writer();
  CHECK(failure_of([&] { writer.remove(0); }).id() == error_id::usage_bad_option);
  CHECK(failure_of([&] { writer.check_space({}); }).id() == error_id::usage_bad_option);
  CHECK(!writer.quarantine(0));
  CHECK(store.list("").size() == 1);
}

}  // namespace
