// SPDX-License-Identifier: Apache-2.0
// What the storage formats keep: names, records, manifests and safetensors headers come back as they were,
// the golden files stay readable and are written alike, and stock safetensors reads the data
// files.
#include <doctest/doctest.h>
#include <unistd.h>

#include <bit>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/system/wire.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <formats_samples.hpp>
#include <paths.hpp>
#include <vector>

using namespace cairn;
using namespace cairn_test;

namespace {

bytes read_file(const std::string& path) {
  bytes content;
  std::FILE* file = std::fopen(path.c_str(), "rb");
  REQUIRE_MESSAGE(file != nullptr, path);
  char part[4096];
  for (std::size_t n; (n = std::fread(part, 1, sizeof part, file)) > 0;) {
    const auto read = std::as_bytes(std::span{part, n});
    content.insert(content.end(), read.begin(), read.end());
  }
  std::fclose(file);
  return content;
}

void write_file(const std::string& path, std::span<const std::byte> content) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  REQUIRE_MESSAGE(file != nullptr, path);
  CHECK(std::fwrite(content.data(), 1, content.size(), file) == content.size());
  CHECK(std::fclose(file) == 0);
}

bytes joined(bytes a, const bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The golden file of this name; made from `content` where CAIRN_WRITE_GOLDEN is set.
bytes golden(const std::string& name, const bytes& content) {
  const auto path = source_dir() + "/tests/golden/" + name;
  if (std::getenv("CAIRN_WRITE_GOLDEN") != nullptr) write_file(path, content);
  return read_file(path);
}

bool same(const record& a, const record& b) {
  // Records are compared by their bytes.
  return encode_record(a) == encode_record(b);
}

}  // namespace

TEST_CASE("names are made from numbers and parsed back") {
  CHECK(step_directory(1200) == "step-00001200");
  CHECK(step_directory(0) == "step-00000000");
  CHECK(step_directory(123456789012) == "step-123456789012");
  CHECK(data_key(1200, 3, 0xabcdef, 0) == "step-00001200/rank-00003.0000000000abcdef.0.safetensors");
  CHECK(record_key(1200, 3, 0xabcdef) == "step-00001200/rank-00003.0000000000abcdef.record");
  CHECK(manifest_key(1200) == "step-00001200/manifest.cairn");
  CHECK(aborted_key(1200, ~std::uint64_t{0}) == "step-00001200/aborted.ffffffffffffffff");
  CHECK_THROWS_AS((void)step_directory(-1), usage_error);
  CHECK_THROWS_AS((void)data_key(0, -1, 0, 0), usage_error);

  dice d(1);
  for (int i = 0; i < 2000; ++i) {
    const auto step = static_cast<std::int64_t>(d.word() >> (1 + d.roll(62)));
    object_name name;
    name.kind = static_cast<object_kind>(d.roll(5));
    if (name.kind != object_kind::manifest) name.attempt = d.word();
    if (name.kind != object_kind::manifest && name.kind != object_kind::aborted)
      name.rank = static_cast<std::int32_t>(d.word() >> (33 + d.roll(30)));
    if (name.kind == object_kind::data)
      name.index = static_cast<std::uint32_t>(d.word() >> (32 + d.roll(32)));
    const auto key = parse_key(object_key(step, name));
    REQUIRE(key);
    CHECK(key->step == step);
    CHECK(key->object == name);
  }
}

TEST_CASE("only names that cairn makes are parsed") {
  for (const char* text :
       {"", "step-", "step-1", "step-0000120", "step-000001200", "step--0000001", "step-0000120a",
        "Step-00001200", "step-00001200/", " step-00001200", "step-9223372036854775808",
        "step-99999999999999999999", "step-184467440737095516160"})
    CHECK_MESSAGE(!parse_step(text), text);
  CHECK(parse_step("step-9223372036854775807") == INT64_MAX);
  for (const char* text : {"",
                           "manifest.cairn ",
                           "manifest",
                           "Manifest.cairn",
                           "aborted.",
                           "aborted.00c0ffee",
                           "aborted.00C0FFEE00C0FFEE",
                           "aborted.00c0ffee00c0ffee0",
                           "rank-00003",
                           "rank-00003.",
                           "rank-0003.00c0ffee00c0ffee.record",
                           "rank-000003.00c0ffee00c0ffee.record",
                           "rank-2147483648.00c0ffee00c0ffee.record",
                           "rank-00003.00c0ffee00c0ffee.Record",
                           "rank-00003.00c0ffee00c0ffee.record.part",
                           "rank-00003.00c0ffee00c0ffee.safetensors",
                           "rank-00003.00c0ffee00c0ffee..safetensors",
                           "rank-00003.00c0ffee00c0ffee.00.safetensors",
                           "rank-00003.00c0ffee00c0ffee.-1.safetensors",
                           "rank-00003.00c0ffee00c0ffee.4294967296.safetensors",
                           "rank-00003.00c0ffee00c0ffee/0.safetensors",
                           "rank-00003.00c0ffee00c0ffe.0.safetensors",
                           "../manifest.cairn",
                           "/manifest.cairn"})
    CHECK_MESSAGE(!parse_object(text), text);
  for (const char* text : {"manifest.cairn", "step-00001200", "step-00001200//manifest.cairn",
                           "/step-00001200/manifest.cairn", "step-00001200/../manifest.cairn"})
    CHECK_MESSAGE(!parse_key(text), text);
}

TEST_CASE("records come back as they were") {
  dice d(2);
  for (int i = 0; i < 300; ++i) {
    const auto r = random_record(d);
    const auto encoded = encode_record(r);
    const auto h = decode_record_header(encoded, "r");
    CHECK(h.run == r.run);
    CHECK(h.attempt == r.attempt);
    CHECK(h.step == r.step);
    CHECK(h.rank == r.rank);
    CHECK(h.world_size == r.world_size);
    CHECK(h.plan_digest == r.plan_digest);
    CHECK(h.files == r.files.size());
    CHECK(!h.failed);
    CHECK(record_header_bytes + h.body_bytes == encoded.size());
    std::uint64_t sum = 0;
    for (const auto& f : r.files) sum += f.bytes;
    CHECK(h.data_bytes == sum);
    const auto back = decode_record(encoded, "r", h.header_digest);
    CHECK(same(r, back));
    REQUIRE(back.items.size() == r.items.size());
    for (std::size_t k = 0; k < r.items.size(); ++k) CHECK(back.items[k].key == r.items[k].key);
    CHECK(back.blocks == r.blocks);
    CHECK_THROWS_AS((void)decode_record(encoded, "r", h.header_digest + 1), corrupt_error);
    CHECK_THROWS_AS((void)decode_failure_record(encoded, "r"), corrupt_error);
  }
}

TEST_CASE("the record of a failure gives the failure back, with its rank") {
  const auto record = encode_failure_record(golden_record(), golden_failure());
  CHECK(decode_record_header(record, "r").failed);
  CHECK_THROWS_AS((void)decode_record(record, "r"), corrupt_error);
  const auto message = [](const bytes& b) -> std::string {
    try {
      std::rethrow_exception(decode_failure_record(b, "r"));
    } catch (const storage_error& e) {
      CHECK(e.fields().rank == 1);
      return e.message();
    }
  };
  CHECK(message(record) == "the disk is full");
  CHECK(message(encode_failure_record(golden_record(), std::make_exception_ptr(std::runtime_error("odd")))) ==
        "odd");
  const std::string long_text(1 << 20, 'x');
  CHECK(message(encode_failure_record(golden_record(), std::make_exception_ptr(std::runtime_error(
                                                           long_text)))) == long_text.substr(0, 4096));
  CHECK(message(encode_failure_record(golden_record(), std::make_exception_ptr(7))).size() > 10);
}

TEST_CASE("manifests come back as they were") {
  dice d(3);
  for (int i = 0; i < 400; ++i) {
    const auto m = random_manifest(d);
    const auto encoded = encode_manifest(m);
    const auto back = decode_manifest(encoded, "m");
    CHECK(cairn_test::same(m, back));
    CHECK(encode_manifest(back) == encoded);
    // A manifest that no reader would accept is not written.
    CHECK(encode_manifest(m, encoded.size()) == encoded);
    CHECK_THROWS_AS(static_cast<void>(encode_manifest(m, encoded.size() - 1)), cairn::storage_error);
  }
}

TEST_CASE("a manifest grows with tensors and ranks, not with their product") {
  const auto sized = [](std::int32_t world, int tensors) {
    manifest m;
    m.content.world_size = world;
    for (std::int32_t r = 0; r < world; ++r) m.records.push_back({0, 1, r, 1, 2, 3});
    for (int t = 0; t < tensors; ++t) {
      char name[32];
      std::snprintf(name, sizeof name, "tensor%06d", t);
      auto item = item_of(name, dtype::f32, {std::int64_t{3} * world - 1, 16}, {});
      for (std::int32_t r = 0; r < world; ++r)
        item.chunks.push_back({{{3 * r, 0}, {r == world - 1 ? 2 : 3, 16}}, r});
      m.content.items.push_back(std::move(item));
    }
    m.content.items.push_back({"zzz", item_kind::bytes, dtype::u8, {}, true, {}});
    for (std::int32_t r = 0; r < world; ++r) m.content.items.back().chunks.push_back({whole({}), r});
    const auto encoded = encode_manifest(m);
    CHECK(cairn_test::same(decode_manifest(encoded, "m"), m));
    return encoded.size();
  };
  CHECK(sized(256, 100) < 100 * 80 + 256 * 48 + 1024);
  CHECK(sized(512, 100) - sized(256, 100) < 256 * 48);
}

TEST_CASE("a mesh of two dimensions is a progression, also with the ranks along the columns") {
  const auto with = [](bool columns, bool disturbed) {
    manifest m;
    m.content.world_size = 64;
    for (std::int32_t r = 0; r < 64; ++r) m.records.push_back({0, 1, r, 1, 2, 3});
    std::vector<stored_chunk> chunks;
    for (std::int32_t r = 0; r < 8; ++r)
      for (std::int32_t c = 0; c < 8; ++c)
        chunks.push_back({{{8 * r, 8 * c}, {8, 8}}, columns ? 8 * c + r : 8 * r + c});
    if (disturbed) std::swap(chunks[5].rank, chunks[9].rank);
    m.content.items.push_back(item_of("w", dtype::f32, {64, 64}, chunks));
    const auto encoded = encode_manifest(m);
    CHECK(cairn_test::same(decode_manifest(encoded, "m"), m));
    return encoded.size();
  };
  CHECK(with(true, false) == with(false, false));
  CHECK(with(false, true) > with(false, false) + 20);
}

TEST_CASE("a writer refuses content that is not that of a checkpoint") {
  const auto refused = [](auto change) {
    auto m = golden_manifest();
    change(m);
    CHECK_THROWS_AS((void)encode_manifest(m), plan_error);
  };
  const auto refused_chunks = [&](std::size_t item, auto change) {
    refused([&](manifest& m) {
      auto chunks = m.content.items[item].chunks.sorted();
      change(chunks);
      m.content.items[item].chunks = chunk_set::from(chunks);
    });
  };
  refused([](manifest& m) { std::swap(m.content.items[0], m.content.items[1]); });
  refused([](manifest& m) { m.content.items[1].name = m.content.items[0].name; });
  refused([](manifest& m) { m.content.items[4].name = "zz\n"; });
  refused_chunks(4, [](auto& chunks) { chunks.pop_back(); });
  refused_chunks(4, [](auto& chunks) { chunks[1].rank = 2; });
  refused_chunks(4, [](auto& chunks) { chunks[1].box.offsets.set(0, 3); });
  refused_chunks(3, [](auto& chunks) { chunks[1].rank = 0; });
  refused_chunks(2, [](auto& chunks) { chunks.push_back(chunks[0]); });
  refused([](manifest& m) { m.records.pop_back(); });
  refused([](manifest& m) { m.records[0].step = 1201; });
  refused([](manifest& m) { m.content.world_size = 0; });
}

TEST_CASE("safetensors headers come back as they were") {
  dice d(4);
  for (int i = 0; i < 300; ++i) {
    safetensors_header h;
    const bool sharded = d.roll(2) == 0;
    const auto count = static_cast<std::size_t>(d.roll(20));
    std::uint64_t position = 0;
    for (std::size_t k = 0; k < count; ++k) {
      const auto item = random_tensor(d, random_name(d, k), 4);
      const auto bytes = *checked_bytes(item.type, item.global);
      safetensors_entry e{item.name, item.type, item.global, position, position + bytes, {}, {}, sharded};
      position += bytes;
      if (sharded) {
        e.saved_offsets = e.global_shape = e.shape;
        for (int k2 = 0; k2 < e.shape.rank(); ++k2) {
          e.saved_offsets.set(k2, d.roll(100));
          e.global_shape.set(k2, e.saved_offsets[k2] + e.shape[k2] + d.roll(5));
        }
      }
      h.entries.push_back(std::move(e));
    }
    if (!h.entries.empty()) h.entries[0].key += std::string("\x01\x1f\x7f\n\t\0", 6);
    if (d.roll(2) == 0) h.metadata = {{"format", "np"}, {"\xe6\x9d\xb1 \"\\", "\b{}"}};
    const std::uint64_t alignment = d.roll(2) == 0 ? 4096 : 8;
    const auto encoded = encode_safetensors_header(h, alignment);
    CHECK(encoded.size() % alignment == 0);
    CHECK(safetensors_header_bytes(encoded, encoded.size() + position, "f") == encoded.size());
    const auto back = decode_safetensors_header(encoded, encoded.size() + position, "f");
    // Empty tensors share their offset with the next one, where the order of the text is kept.
    CHECK(back.entries == h.entries);
    for (const auto& pair : h.metadata)
      CHECK(std::find(back.metadata.begin(), back.metadata.end(), pair) != back.metadata.end());
    // Pairs of __metadata__ that cairn added come back as pairs; they may stand in another order.
    const auto again = encode_safetensors_header(back, alignment);
    CHECK(again.size() == encoded.size());
    CHECK(decode_safetensors_header(again, again.size() + position, "f").entries == h.entries);
  }
}

TEST_CASE("a header that would be wrong is not written") {
  const auto refused = [](auto change) {
    auto h = golden_header();
    change(h);
    CHECK_THROWS_AS((void)encode_safetensors_header(h), usage_error);
  };
  refused([](safetensors_header& h) { h.entries[1].begin += 1; });
  refused([](safetensors_header& h) { h.entries[3].end += 1; });
  refused([](safetensors_header& h) { h.entries[1].key = "wte"; });
  refused([](safetensors_header& h) { h.entries[1].key = "__metadata__"; });
  refused([](safetensors_header& h) { h.entries[0].saved_offsets = {3, 0}; });
  refused([](safetensors_header& h) { h.metadata = {{"DCP_SHARDING_INFO", "{}"}}; });
  refused([](safetensors_header& h) { h.metadata = {{"a", "1"}, {"a", "2"}}; });
}

TEST_CASE("golden data files and records are written byte for byte and read back") {
  const auto record = encode_record(golden_record());
  CHECK(golden("v1.record", record) == record);
  CHECK(same(decode_record(golden("v1.record", record), "v1.record"), golden_record()));

  const auto failure = encode_failure_record(golden_record(), golden_failure());
  CHECK(golden("v1.failure.record", failure) == failure);
  CHECK_THROWS_WITH_AS(std::rethrow_exception(
                           decode_failure_record(golden("v1.failure.record", failure), "v1.failure.record")),
                       "[cairn.storage.no_space] the disk is full (rank 1, file rank-00001.data, expected "
                       "4096 bytes, got 0 bytes)",
                       storage_error);

  const auto data = joined(encode_safetensors_header(golden_header()), golden_data());
  const auto kept = golden("v1.safetensors", data);
  CHECK(kept == data);
  const auto header = decode_safetensors_header(kept, kept.size(), "v1.safetensors");
  CHECK(header.entries == golden_header().entries);
}

TEST_CASE("the golden manifest is written byte for byte and read back") {
  const auto stored = encode_manifest(golden_manifest());
  CHECK(golden("v2.manifest.cairn", stored) == stored);
  CHECK(cairn_test::same(decode_manifest(stored, "v2.manifest.cairn"), golden_manifest()));
  // With a section that readers of 2.0 skip.
  const auto annotated = encode_manifest(golden_annotated_manifest());
  CHECK(golden("v2.1.manifest.cairn", annotated) == annotated);
  CHECK(cairn_test::same(decode_manifest(annotated, "v2.1.manifest.cairn"), golden_annotated_manifest()));
}

TEST_CASE("a reader that was written from the description alone reads manifests") {
  char directory[] = "/tmp/cairn_formats_XXXXXX";
  REQUIRE(mkdtemp(directory) != nullptr);
  const std::string root = directory;
  const auto text_of = [](const manifest& m) {
    auto text = "step " + std::to_string(m.step) + ", " + std::to_string(m.content.world_size) + " ranks\n";
    for (const auto& item : m.content.items) {
      text.append(item.name).append(": ").append(name_of(item.kind)).append(" ");
      text.append(name_of(item.type)).append(" ").append(to_string(item.global));
      text.append(item.per_rank ? " per rank: " : ": ");
      auto chunks = item.chunks.expand();
      std::sort(chunks.begin(), chunks.end(), [](const auto& a, const auto& b) {
        return a.rank != b.rank ? a.rank < b.rank : a.box < b.box;
      });
      for (std::size_t k = 0; k < chunks.size(); ++k)
        text += (k ? ", rank " : "rank ") + std::to_string(chunks[k].rank) + " " +
                to_string(chunks[k].box.offsets) + " " + to_string(chunks[k].box.sizes);
      text += "\n";
    }
    for (const auto& r : m.records) {
      char line[200];
      std::snprintf(
          line, sizeof line, "record of rank %d: step %lld, attempt %016llx, %u files, %llu bytes, %llx\n",
          r.rank, static_cast<long long>(r.step), static_cast<unsigned long long>(r.attempt), r.files,
          static_cast<unsigned long long>(r.data_bytes), static_cast<unsigned long long>(r.record_digest));
      text += line;
    }
    if (m.content.state_version != 0 || !m.content.annotations.empty())
      text += "state version " + std::to_string(m.content.state_version) + "\n";
    for (const auto& a : m.content.annotations) {
      char bits[32];
      std::snprintf(
          bits, sizeof bits, "%016llx",
          static_cast<unsigned long long>(std::bit_cast<std::uint64_t>(a.value.number().value_or(0))));
      text += a.name + ": " +
              (a.value.kind() == annotation_kind::text   ? "text " + a.value.text()
               : a.value.kind() == annotation_kind::real ? "real " + std::string(bits)
                                                         : std::to_string(a.value.integer())) +
              "\n";
    }
    return text;
  };
  const auto check = [&](const bytes& stored, const manifest& m) {
    write_file(root + "/manifest", stored);
    const auto text = text_of(m);
    write_file(root + "/expected", std::as_bytes(std::span{text.data(), text.size()}));
    CHECK(std::system(("PYTHONIOENCODING=utf-8 '" + python() + "' '" + source_dir() +
                       "/tests/python/read_manifest.py' '" + root + "/manifest' > '" + root +
                       "/got' && cmp '" + root + "/got' '" + root + "/expected'")
                          .c_str()) == 0);
  };
  check(read_file(source_dir() + "/tests/golden/v2.manifest.cairn"), golden_manifest());
  check(read_file(source_dir() + "/tests/golden/v2.1.manifest.cairn"), golden_annotated_manifest());
  dice d(8);
  for (int i = 0; i < 3; ++i) {
    const auto m = random_manifest(d);
    check(encode_manifest(m), m);
  }
  CHECK(std::system(("rm -r '" + root + "'").c_str()) == 0);
}

TEST_CASE("an item of a manifest is made when it is asked for, and nothing else is looked at") {
  manifest m;
  m.content.world_size = 64;
  for (std::int32_t r = 0; r < 64; ++r) m.records.push_back({0, 1, r, 1, 2, 3});
  std::vector<stored_item> shapes;
  for (int over = 0; over < 10; ++over) {
    auto& item = shapes.emplace_back(item_of("", dtype::f32, {std::int64_t{64} + over, 16}, {}));
    // The last shards take the rows that are over.
    std::int64_t row = 0;
    for (std::int32_t r = 0; r < 64; ++r) {
      const std::int64_t rows = r < 64 - over ? 1 : 2;
      item.chunks.push_back({{{row, 0}, {rows, 16}}, r});
      row += rows;
    }
  }
  for (int t = 0; t < 1000; ++t) {
    char name[32];
    std::snprintf(name, sizeof name, "layers.%03d.weight", t);
    auto item = shapes[static_cast<std::size_t>(t % 10)];
    item.name = name;
    m.content.items.push_back(std::move(item));
  }
  const auto encoded = encode_manifest(m);
  CHECK(encoded.size() < 64 * 9 + 1000 * 14);
  const auto opened = open_manifest(encoded, "m");
  const auto& items = opened.content.items;
  CHECK(items.size() == 1000);
  CHECK(items.made() == 0);
  CHECK(opened.content.find("layers.517.weight")->chunks == m.content.items[517].chunks);
  CHECK(opened.content.find("layers.517.weigh") == nullptr);
  CHECK(opened.content.find("layers.517.weight.") == nullptr);
  CHECK(opened.content.find("a") == nullptr);
  CHECK(opened.content.find("z") == nullptr);
  CHECK(items.made() == 1);
  for (std::size_t i = 0; i < 1000; ++i) CHECK(items.index_of(m.content.items[i].name) == i);
  std::size_t names = 0;
  items.for_each_name([&](std::size_t i, std::string_view name) {
    names += i == names && name == std::as_const(m.content.items)[i].name;
  });
  CHECK(names == 1000);
  CHECK(items.made() == 1);
  CHECK(cairn_test::same(opened, m));
  CHECK(items.made() == 1000);
  // A damaged definition is no error as long as nobody asks for it.
  auto bad = encoded;
  std::uint64_t definitions = 0;
  std::memcpy(&definitions, bad.data() + 128 + 32 + 8, 8);
  std::uint32_t first = 0;
  std::memcpy(&first, bad.data() + definitions + 4, 4);
  bad[definitions + first] = std::byte{9};
  cairn_test::seal_manifest(bad);
  const auto damaged = open_manifest(bad, "m");
  CHECK(damaged.content.find("layers.517.weight") != nullptr);
  CHECK_THROWS_AS((void)damaged.content.find("layers.500.weight"), corrupt_error);
  CHECK_THROWS_AS((void)decode_manifest(bad, "m"), corrupt_error);
}

TEST_CASE("stock safetensors opens the files and sees the values, names and places") {
  char directory[] = "/tmp/cairn_formats_XXXXXX";
  REQUIRE(mkdtemp(directory) != nullptr);
  const std::string root = directory;
  // Two ranks: wte by rows, a name that needs every kind of escaping, a value, and an item of each rank.
  const std::string odd = "q\"b\\s/\xc3\xa9\xe6\x9d\xb1\xf0\x9f\x98\x80";
  for (int rank = 0; rank < 2; ++rank) {
    safetensors_header h;
    h.entries = {{"wte", dtype::f32, {2, 3}, 0, 24, {2 * rank, 0}, {4, 3}, true},
                 {odd, dtype::bf16, {2, 1}, 24, 28, {0, rank}, {2, 2}, true},
                 {per_rank_key("rng", rank), dtype::u8, {2}, 28, 30, {0}, {2}, true}};
    wire_writer data;
    for (int i = 0; i < 6; ++i) data.put(static_cast<float>(6 * rank + i));
    for (const int bits : {0x100 + rank, 0x200 + rank}) data.put(static_cast<std::uint16_t>(bits));
    data.put(static_cast<std::uint8_t>(rank)).put(std::uint8_t{9});
    if (rank == 0) {
      h.entries.push_back({"lr", dtype::f64, {}, 30, 38, {}, {}, true});
      h.entries.push_back({"empty", dtype::i64, {0, 4}, 38, 38, {0, 0}, {0, 4}, true});
      data.put(0.5);
    }
    write_file(root + "/" + to_string({object_kind::data, rank, 7, 0}),
               joined(encode_safetensors_header(h), data.take()));
  }
  const auto hex = [](const wire_writer& w) {
    std::string text;
    char two[3];
    for (const auto b : w.view())
      std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(b)), text += two;
    return text;
  };
  const auto expect = [&](const std::string& wte) {
    std::string json = "{\"wte\":{\"dtype\":\"F32\",\"shape\":[4,3],\"hex\":\"" + wte + "\"},";
    detail::append_json(json, odd);
    json += ":{\"dtype\":\"BF16\",\"shape\":[2,2],\"hex\":\"0001010100020102\"},";
    json += "\"rng@rank00000\":{\"dtype\":\"U8\",\"shape\":[2],\"hex\":\"0009\"},";
    json += "\"rng@rank00001\":{\"dtype\":\"U8\",\"shape\":[2],\"hex\":\"0109\"},";
    json += "\"empty\":{\"dtype\":\"I64\",\"shape\":[0,4],\"hex\":\"\"},";
    json += "\"lr\":{\"dtype\":\"F64\",\"shape\":[],\"hex\":\"000000000000e03f\"}}";
    write_file(root + "/expected.json", std::as_bytes(std::span{json.data(), json.size()}));
  };
  const auto check = [&](const std::string& where) {
    return std::system(("'" + python() + "' '" + source_dir() + "/tests/python/check_safetensors.py' '" +
                        where + "' > '" + root + "/log' 2>&1 || { cat '" + root + "/log'; exit 1; }")
                           .c_str());
  };
  wire_writer wte;
  for (int i = 0; i < 12; ++i) wte.put(static_cast<float>(i));
  expect(hex(wte));
  CHECK(check(root) == 0);
  CHECK(check(source_dir() + "/tests/golden") != 0);  // one of two ranks: its tensors are not complete
  expect("ff" + hex(wte).substr(2));
  CHECK_MESSAGE(check(root) != 0, "the check must see a wrong value");
  CHECK(std::system(("rm -r '" + root + "'").c_str()) == 0);
}
