// SPDX-License-Identifier: Apache-2.0
// cost: 10
// What the storage formats refuse: every flipped bit and every cut of a manifest and a record, and every
// class of hostile input, with right digests where the writer is hostile. Whatever is read, the answer is a
// value that keeps the promises of the format or a corrupt_error, and memory stays in proportion to the
// input.
#include <doctest/doctest.h>
#include <malloc.h>

#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_check.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/wire.hpp>
#include <cstdlib>
#include <formats_samples.hpp>
#include <fstream>
#include <iterator>
#include <new>
#include <paths.hpp>

namespace {
std::size_t allocated = 0;  // now, in bytes
std::size_t peak = 0;

void* counted(std::size_t size) {
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  allocated += malloc_usable_size(memory);
  if (allocated > peak) peak = allocated;
  return memory;
}
void uncounted(void* memory) noexcept {
  if (memory != nullptr) allocated -= malloc_usable_size(memory);
  std::free(memory);
}
}  // namespace

void* operator new(std::size_t size) {
  return counted(size);
}
void* operator new[](std::size_t size) {
  return counted(size);
}
void operator delete(void* memory) noexcept {
  uncounted(memory);
}
void operator delete[](void* memory) noexcept {
  uncounted(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  uncounted(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  uncounted(memory);
}

using namespace cairn;
using namespace cairn_test;

namespace {

/// Calls a decoder; true if it gave a value, false if it threw a corrupt_error with the file's name. Every
/// other exception fails the test, as does memory out of proportion to the input.
template <class Decode>
bool accepts(std::span<const std::byte> input, Decode decode, std::size_t extra = 0) {
  const auto before = allocated;
  peak = allocated;
  bool accepted = false;
  bool named = true;
  try {
    decode(input);
    accepted = true;
  } catch (const corrupt_error& e) {
    named = e.fields().file == "f" && e.fields().offset >= 0;
  }
  const bool small_enough = peak - before <= 100 * input.size() + (1 << 20) + extra;
  CHECK(small_enough);
  CHECK(named);
  return accepted;
}

bool accepts_manifest(std::span<const std::byte> input) {
  return accepts(input, [](auto b) {
    const auto m = decode_manifest(b, "f");
    if (detail::find_problem(m.content).what != nullptr || detail::records_problem(m) != nullptr)
      throw std::logic_error("a manifest was decoded that is none");
  });
}
bool accepts_record(std::span<const std::byte> input) {
  return accepts(input, [](auto b) {
    const auto r = decode_record(b, "f");
    for (const auto& i : r.items)
      if (i.file >= r.files.size() || i.offset > r.files[i.file].bytes ||
          i.bytes > r.files[i.file].bytes - i.offset ||
          i.first_block + block_count(i.bytes) > r.blocks.size())
        throw std::logic_error("a record was decoded that is none");
  });
}
bool accepts_failure(std::span<const std::byte> input) {
  return accepts(input, [](auto b) {
    if (!decode_failure_record(b, "f")) throw std::logic_error("a failure was decoded that is none");
  });
}
/// A header in a file whose data has `data_bytes`.
bool accepts_header(std::span<const std::byte> input, std::uint64_t file_bytes) {
  return accepts(input, [&](auto b) {
    const auto h = decode_safetensors_header(b, file_bytes, "f");
    std::uint64_t position = 0;
    for (const auto& e : h.entries) {
      if (e.begin != position || checked_bytes(e.type, e.shape) != e.end - e.begin)
        throw std::logic_error("a header was decoded that is none");
      if (e.sharded && !inside({e.saved_offsets, e.shape}, e.global_shape))
        throw std::logic_error("a header was decoded with a place outside of its tensor");
      position = e.end;
    }
    if (position + safetensors_header_bytes(b, file_bytes, "f") != file_bytes)
      throw std::logic_error("a header was decoded that does not fit its file");
  });
}
/// A file of this JSON text and so many bytes of data.
bool accepts_json(std::string_view json, std::uint64_t data_bytes = 0) {
  wire_writer out;
  out.put(static_cast<std::uint64_t>(json.size())).raw(std::as_bytes(std::span{json.data(), json.size()}));
  return accepts_header(out.view(), out.size() + data_bytes);
}

template <class Accepts>
void every_bit_and_cut(const bytes& good, Accepts accepts_it) {
  REQUIRE(accepts_it(good));
  auto bad = good;
  std::size_t missed = 0;
  for (std::size_t bit = 0; bit < 8 * bad.size(); ++bit) {
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    missed += accepts_it(bad);
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  for (std::size_t size = 0; size < good.size(); ++size)
    missed += accepts_it(std::span<const std::byte>{good}.first(size));
  for (const auto more : {std::byte{0}, std::byte{' '}, std::byte{0xff}}) {
    bad.push_back(more);
    missed += accepts_it(bad);
    bad.pop_back();
  }
  CHECK(missed == 0);
}

template <class T>
void put_at(bytes& b, std::size_t at, T value) {
  REQUIRE(at + sizeof value <= b.size());
  std::memcpy(b.data() + at, &value, sizeof value);
}
template <class T>
T get_at(const bytes& b, std::size_t at) {
  T value;
  REQUIRE(at + sizeof value <= b.size());
  std::memcpy(&value, b.data() + at, sizeof value);
  return value;
}
/// Where a section of a manifest begins.
std::size_t section_at(const bytes& b, std::size_t id) {
  return get_at<std::uint64_t>(b, 128 + 32 * (id - 1) + 8);
}

error_id manifest_error(const bytes& b) {
  try {
    (void)decode_manifest(b, "f");
  } catch (const corrupt_error& e) {
    CHECK(e.fields().file == "f");
    return e.id();
  }
  FAIL("the manifest was taken");
  return {};
}

/// Random changes of one to four bytes, with digests made right again.
template <class Seal, class Accepts>
void mutate(const bytes& good, int rounds, std::uint64_t seed, Seal seal, Accepts accepts_it) {
  dice d(seed);
  for (int i = 0; i < rounds; ++i) {
    auto bad = good;
    for (auto k = 1 + d.roll(4); k-- > 0;) {
      const auto at = static_cast<std::size_t>(d.roll(static_cast<std::int64_t>(bad.size())));
      static constexpr std::uint8_t values[] = {0, 1, 2, 0x7f, 0x80, 0xff};
      bad[at] = std::byte{d.roll(2) == 0 ? values[d.roll(6)] : static_cast<std::uint8_t>(d.roll(256))};
    }
    if (d.roll(8) == 0)
      bad.resize(static_cast<std::size_t>(d.roll(static_cast<std::int64_t>(bad.size()) + 1)));
    if (bad.size() >= 128) seal(bad);
    (void)accepts_it(bad);
  }
}

}  // namespace

TEST_CASE("every flipped bit, cut and trailing byte of a manifest is noticed") {
  every_bit_and_cut(encode_manifest(golden_manifest()), accepts_manifest);
  every_bit_and_cut(encode_manifest(golden_annotated_manifest()), accepts_manifest);
}
TEST_CASE("every flipped bit, cut and trailing byte of a record is noticed") {
  every_bit_and_cut(encode_record(golden_record()), accepts_record);
  every_bit_and_cut(encode_failure_record(golden_record(), golden_failure()), accepts_failure);
}
TEST_CASE("every flipped bit and cut of a safetensors header gives a consistent header or an error") {
  const auto good = encode_safetensors_header(golden_header(), 64);
  const auto file_bytes = good.size() + golden_data().size();
  REQUIRE(accepts_header(good, file_bytes));
  auto bad = good;
  for (std::size_t bit = 0; bit < 8 * bad.size(); ++bit) {
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    (void)accepts_header(bad, file_bytes);
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  const std::span<const std::byte> all{good};
  for (std::size_t size = 0; size < good.size(); ++size) {
    CHECK(!accepts_header(all.first(size), file_bytes));
    CHECK(!accepts_header(all.first(size), size));
    CHECK(!accepts_header(all, size));
  }
  CHECK(!accepts_header(good, file_bytes - 1));
  CHECK(!accepts_header(good, file_bytes + 1));
}

TEST_CASE("headers and sections of manifests of hostile writers") {
  auto m = encode_manifest(golden_manifest());
  const auto refused = [&](error_id expected) {
    seal_manifest(m);
    CHECK(manifest_error(m) == expected);
    CHECK(!accepts_manifest(m));
  };
  const auto bad_value = error_id::corrupt_bad_value;
  SUBCASE("empty") {
    m.clear();
    CHECK(manifest_error(m) == error_id::corrupt_truncated);
  }
  SUBCASE("another file") {
    put_at(m, 0, 'C');
    refused(error_id::corrupt_bad_magic);
  }
  SUBCASE("another major version") {
    for (const auto major : {std::uint16_t{0}, std::uint16_t{1}, std::uint16_t{3}, std::uint16_t{0xffff}}) {
      put_at(m, 8, major);
      refused(error_id::corrupt_unsupported_version);
    }
  }
  SUBCASE("a newer minor version and an unknown optional feature are taken") {
    put_at<std::uint16_t>(m, 10, 7);
    put_at<std::uint32_t>(m, 16, 0x80000001);
    seal_manifest(m);
    CHECK(accepts_manifest(m));
  }
  SUBCASE("an unknown required feature") {
    put_at<std::uint32_t>(m, 12, 4);
    refused(error_id::corrupt_unsupported_feature);
  }
  SUBCASE("placements: one that can be, and others") {
    put_at<std::uint32_t>(m, 12, 1);
    put_at<std::int32_t>(m, 96, 64);
    put_at<std::int32_t>(m, 100, 512);
    seal_manifest(m);
    CHECK(accepts_manifest(m));
    const auto impossible = [&](std::int32_t per_file, std::int32_t per_directory) {
      put_at<std::int32_t>(m, 96, per_file);
      put_at<std::int32_t>(m, 100, per_directory);
      refused(error_id::corrupt_bad_value);
    };
    impossible(0, 512);
    impossible(65, 512);
    impossible(-1, 0);
    impossible(2, -1);
    impossible(1, 0);
  }
  SUBCASE("cut, with a right header") {
    m.resize(m.size() - 8);
    CHECK(manifest_error(m) == error_id::corrupt_truncated);
  }
  SUBCASE("trailing bytes") {
    m.resize(m.size() + 8);
    CHECK(manifest_error(m) == error_id::corrupt_size_mismatch);
    put_at<std::uint64_t>(m, 24, m.size());
    refused(bad_value);
  }
  SUBCASE("a damaged body, with a right header") {
    m[section_at(m, 2)] ^= std::byte{1};
    CHECK(manifest_error(m) == error_id::corrupt_digest);
  }
  SUBCASE("a section's digest is wrong") {
    put_at<std::uint64_t>(m, 128 + 24, 1);
    put_at(m, 88, digest(std::span<const std::byte>{m}.subspan(128)));
    put_at(m, 120, digest(std::span<const std::byte>{m}.first(120)));
    CHECK(manifest_error(m) == error_id::corrupt_digest);
  }
  SUBCASE("an unknown optional section is skipped, a required one is not") {
    // A fourth entry in the table moves everything by 32 bytes; the new section lies at the end.
    const auto total = m.size();
    const std::size_t entry = 128 + 3 * 32;
    m.insert(m.begin() + entry, 32, std::byte{0});
    for (std::size_t s = 0; s < 3; ++s)
      put_at(m, 128 + 32 * s + 8, get_at<std::uint64_t>(m, 128 + 32 * s + 8) + 32);
    m.resize(m.size() + 16, std::byte{0x5a});
    put_at<std::uint32_t>(m, 20, 4);
    put_at<std::uint32_t>(m, entry, 77);
    put_at<std::uint64_t>(m, entry + 8, total + 32);
    put_at<std::uint64_t>(m, entry + 16, 16);
    put_at<std::uint64_t>(m, 24, m.size());
    seal_manifest(m);
    CHECK(accepts_manifest(m));
    put_at<std::uint32_t>(m, entry + 4, 1);
    refused(error_id::corrupt_unsupported_feature);
    put_at<std::uint32_t>(m, entry, 8);
    refused(bad_value);
  }
  SUBCASE("sections that leave a hole, overlap or lie outside") {
    for (const std::uint64_t offset :
         {section_at(m, 2) + 8, section_at(m, 2) - 8, std::size_t{0}, ~std::size_t{7}}) {
      auto changed = m;
      put_at(changed, 128 + 32 * 1 + 8, offset);
      std::swap(m, changed);
      refused(bad_value);
      std::swap(m, changed);
    }
    put_at(m, 128 + 32 * 2 + 16, ~std::uint64_t{0});
    refused(bad_value);
  }
  SUBCASE("as many sections as a number can say") {
    for (const std::uint32_t count : {0u, 1u, 2u, 65u, ~0u}) {
      put_at(m, 20, count);
      refused(bad_value);
    }
  }
  SUBCASE("a negative step, and a record of a later one") {
    put_at<std::int64_t>(m, 48, 1199);
    refused(bad_value);
    put_at<std::int64_t>(m, 48, -1);
    refused(bad_value);
  }
}

TEST_CASE("manifests of hostile writers") {
  auto m = encode_manifest(golden_manifest());
  const auto good = m;
  const auto refused = [&](error_id expected) {
    seal_manifest(m);
    CHECK(manifest_error(m) == expected);
    CHECK(!accepts_manifest(m));
    m = good;
  };
  const auto bad_value = error_id::corrupt_bad_value;
  // One block: 11 "data_loader" 0, then 0 4 "flat" 1, 0 2 "lr" 2, 0 3 "rng" 3, 0 3 "wte" 4.
  const auto names = section_at(m, 1);
  const auto block = names + 4;
  const auto flat = block + 13;
  // Five definitions, each of which begins with kind, dtype, flags, dimensions, codec.
  const auto definitions = section_at(m, 2);
  const auto definition = [&](std::size_t i) {
    return definitions + get_at<std::uint32_t>(m, definitions + 4 + 4 * i);
  };
  const auto records = section_at(m, 3);
  SUBCASE("as many items, definitions and ranks as numbers can say") {
    for (const std::uint32_t count : {0u, 4u, 6u, 16u, 17u, 1u << 24, ~0u}) {
      put_at(m, 84, count);
      refused(bad_value);
      if (count == 6 || count == 4) continue;
      put_at(m, definitions, count);
      refused(bad_value);
    }
    for (const std::int32_t world : {0, -1, INT32_MIN, 1, 3, INT32_MAX}) {
      put_at(m, 80, world);
      refused(bad_value);
    }
  }
  SUBCASE("sections of other numbers") {
    for (std::uint32_t s = 0; s < 3; ++s) put_at(m, 128 + 32 * s, s + 1);
    refused(error_id::corrupt_unsupported_feature);
  }
  SUBCASE("tables that point elsewhere") {
    for (const std::uint32_t at : {0u, 3u, 5u, 1000u, ~0u}) {
      put_at(m, names, at);
      refused(bad_value);
      for (std::size_t i = 0; i < 5; ++i) {
        put_at(m, definitions + 4 + 4 * i, at);
        refused(bad_value);
      }
    }
  }
  SUBCASE("names that are not sorted, twice, too long, with control characters or no UTF-8") {
    const std::pair<std::size_t, int> changes[] = {{block, 127},    {block, 0},       {flat, 12},
                                                   {flat + 1, 0},   {flat + 1, 120},  {flat + 2, 'a'},
                                                   {flat + 2, 'd'}, {flat + 2, 'm'},  {flat + 3, '\n'},
                                                   {flat + 3, 255}, {block + 2, 255}, {block + 4, '\x7f'}};
    for (const auto& [at, value] : changes) {
      CAPTURE(at - block);
      put_at(m, at, static_cast<std::uint8_t>(value));
      refused(bad_value);
    }
  }
  SUBCASE("definitions that are not there, not in their turn, or of nobody") {
    for (const int number : {5, 127, 1}) {
      put_at(m, block + 12, static_cast<std::uint8_t>(number));
      refused(bad_value);
    }
    put_at(m, flat + 6, std::uint8_t{0});
    refused(bad_value);
  }
  SUBCASE("unknown kinds, dtypes, flags, codecs and nine dimensions") {
    for (std::size_t i = 0; i < 5; ++i) {
      for (const std::size_t field : {0u, 1u, 2u, 3u}) {
        put_at(m, definition(i) + field, std::uint8_t{250});
        refused(bad_value);
      }
      put_at(m, definition(i) + 3, std::uint8_t{9});
      refused(bad_value);
      put_at(m, definition(i) + 4, std::uint8_t{0x80});
      refused(bad_value);
    }
  }
  SUBCASE("shapes and chunks that do not fit each other") {
    // Of wte: 4 3, one progression.
    const auto wte = definition(4) + 5;
    REQUIRE(m[wte] == std::byte{4});
    for (std::size_t at = wte; at < definitions + get_at<std::uint64_t>(m, 128 + 32 + 16); ++at) {
      CAPTURE(at - wte);
      put_at(m, at, static_cast<std::uint8_t>(std::to_integer<int>(m[at]) + 1));
      refused(bad_value);
    }
  }
  SUBCASE("runs that are empty, too long, or not all of their kind, and records of a later step") {
    // Both are of step 1200: 2, 1200 as two bytes.
    REQUIRE(m[records] == std::byte{2});
    for (const int count : {0, 1, 3, 127}) {
      put_at(m, records, static_cast<std::uint8_t>(count));
      refused(bad_value);
    }
    put_at(m, records + 1, std::uint8_t{0xb1});
    refused(bad_value);
    put_at<std::int64_t>(m, 48, -1);
    refused(bad_value);
  }
  SUBCASE("random changes") {
    mutate(m, 10000, 6, seal_manifest, accepts_manifest);
    // Whatever is asked for first.
    mutate(m, 3000, 7, seal_manifest, [](const bytes& b) {
      return accepts(b, [](auto all) {
        const auto opened = open_manifest({all.begin(), all.end()}, "f");
        if (const auto* item = opened.content.find("wte"); item != nullptr && item->name != "wte")
          throw std::logic_error("another item was found");
        for (auto i = opened.content.items.size(); i-- > 0;) (void)opened.content.items[i];
      });
    });
  }
}

TEST_CASE("items that share a definition share no more than is allowed") {
  // A small manifest can ask for much memory where many items say the same thing of many progressions.
  manifest m;
  constexpr std::int32_t world = 700;
  m.content.world_size = world;
  for (std::int32_t r = 0; r < world; ++r) m.records.push_back({0, 1, r, 1, 2, 3});
  auto item = item_of("", dtype::u8, {std::int64_t{world} * (world + 1) / 2}, {});
  std::int64_t at = 0;
  for (std::int32_t r = 0; r < world; at += ++r) item.chunks.push_back({{{at}, {r + 1}}, r});
  CHECK(item.chunks.progressions() == world);
  for (int i = 0; i < 100; ++i) {
    item.name = std::to_string(1000 + i);
    m.content.items.push_back(item);
  }
  const auto encoded = encode_manifest(m);
  CHECK(encoded.size() < world * (8 + 8) + 100 * 8 + 1000);
  CHECK(accepts(
      encoded, [](auto b) { (void)decode_manifest(b, "f"); }, max_shared_progressions * 64));
}

TEST_CASE("records of hostile writers") {
  auto r = encode_record(golden_record());
  const auto refused = [&](error_id expected) {
    seal_record(r);
    auto got = error_id::usage_closed;
    try {
      (void)decode_record(r, "f");
    } catch (const corrupt_error& e) {
      got = e.id();
    }
    CHECK(got == expected);
    CHECK(!accepts_record(r));
  };
  const auto each = [&](std::size_t at, std::initializer_list<std::uint64_t> values) {
    for (const auto value : values) {
      auto kept = r;
      put_at(r, at, value);
      refused(error_id::corrupt_bad_value);
      r = kept;
    }
  };
  const std::size_t items_at = 128 + 24 + 2 * 8;
  SUBCASE("empty") {
    r.clear();
    CHECK(!accepts_record(r));
  }
  SUBCASE("another file") {
    put_at(r, 3, 'x');
    refused(error_id::corrupt_bad_magic);
  }
  SUBCASE("a newer major version") {
    put_at<std::uint16_t>(r, 8, 2);
    refused(error_id::corrupt_unsupported_version);
  }
  SUBCASE("a newer minor version and an unknown optional feature are taken") {
    put_at<std::uint16_t>(r, 10, 3);
    put_at<std::uint32_t>(r, 16, 3);
    seal_record(r);
    CHECK(accepts_record(r));
  }
  SUBCASE("an unknown required feature") {
    put_at<std::uint32_t>(r, 12, 1);
    refused(error_id::corrupt_unsupported_feature);
  }
  SUBCASE("unknown flags, a negative step, and ranks outside of the world") {
    put_at<std::uint32_t>(r, 20, 2);
    refused(error_id::corrupt_bad_value);
    put_at<std::uint32_t>(r, 20, 0);
    put_at<std::int64_t>(r, 48, -1);
    refused(error_id::corrupt_bad_value);
    put_at<std::int64_t>(r, 48, 1);
    for (const std::int32_t rank : {-1, 2, INT32_MAX}) {
      put_at(r, 56, rank);
      refused(error_id::corrupt_bad_value);
    }
  }
  SUBCASE("a body that is shorter or longer than the header says") {
    put_at<std::uint64_t>(r, 80, r.size());
    refused(error_id::corrupt_truncated);
    put_at<std::uint64_t>(r, 80, ~std::uint64_t{0});
    refused(error_id::corrupt_truncated);
    put_at<std::uint64_t>(r, 80, 24);
    refused(error_id::corrupt_size_mismatch);
  }
  SUBCASE("a body without counts") {
    r.resize(128 + 16);
    put_at<std::uint64_t>(r, 80, 16);
    refused(error_id::corrupt_truncated);
  }
  SUBCASE("counts that lie") {
    for (const std::size_t at : {128u, 136u, 144u})
      each(at, {1u << 20, ~std::uint64_t{0}, (~std::uint64_t{0}) / 8 + 1, (~std::uint64_t{0}) / 56 + 1});
    put_at<std::uint64_t>(r, 144, 2);
    refused(error_id::corrupt_size_mismatch);
  }
  SUBCASE("a number of files that is not the header's") {
    put_at<std::uint32_t>(r, 96, 3);
    refused(error_id::corrupt_bad_value);
  }
  SUBCASE("sizes that do not add up, or overflow") {
    each(152, {0, ~std::uint64_t{0}, ~std::uint64_t{0} - 4111});
  }
  SUBCASE("items outside of their files") {
    each(items_at + 16, {1052697, ~std::uint64_t{0}, std::uint64_t{1} << 63});
    each(items_at + 24, {1048601, ~std::uint64_t{0}});
    each(items_at + 48, {2, 0xffffffff});
  }
  SUBCASE("blocks outside of the table, shared or left over") {
    each(items_at + 40, {1, 3, ~std::uint64_t{0}});
    each(items_at + 56 + 40, {0, 1, 3});
    auto more = golden_record();
    more.blocks.push_back(0xc1);
    r = encode_record(more);
    refused(error_id::corrupt_bad_value);
  }
  SUBCASE("an item's digest that is not that of its blocks") {
    put_at<std::uint64_t>(r, items_at + 32, 1);
    refused(error_id::corrupt_digest);
  }
  SUBCASE("a reserved field") {
    each(items_at + 48, {std::uint64_t{1} << 32});
  }
  SUBCASE("random changes") {
    mutate(r, 20000, 6, seal_record, accepts_record);
    mutate(encode_failure_record(golden_record(), golden_failure()), 20000, 7, seal_record, accepts_failure);
  }
}

TEST_CASE("a failure record that is cut inside its text is an error, not a failure") {
  auto r = encode_failure_record(golden_record(), golden_failure());
  for (std::size_t size = 128; size < r.size(); ++size) {
    auto cut = r;
    cut.resize(size);
    put_at<std::uint64_t>(cut, 80, size - 128);
    seal_record(cut);
    CHECK(!accepts_failure(cut));
  }
}

TEST_CASE("safetensors headers of hostile writers") {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  REQUIRE(accepts_json(good, 8));
  const auto refused = [](std::string_view json, std::uint64_t data_bytes = 8) {
    CHECK_MESSAGE(!accepts_json(json, data_bytes), json.substr(0, 200));
  };
  /// A tensor with other fields.
  const auto tensor = [&](std::string_view fields, std::uint64_t data_bytes = 8) {
    refused("{\"a\":{" + std::string(fields) + "}}", data_bytes);
  };
  SUBCASE("fewer than eight bytes") {
    const bytes seven(7);
    CHECK(!accepts_header(seven, 7));
    CHECK(!accepts_header({}, 0));
  }
  SUBCASE("a length above 100,000,000, above the file, or of everything") {
    for (const std::uint64_t length :
         {std::uint64_t{100'000'001}, std::uint64_t{1000}, ~std::uint64_t{0}, ~std::uint64_t{7}}) {
      wire_writer out;
      out.put(length).raw(std::as_bytes(std::span{good.data(), good.size()}));
      CHECK(!accepts_header(out.view(), length == 100'000'001 ? length + 100 : out.size() + 8));
    }
  }
  SUBCASE("empty, or not beginning with a brace") {
    refused("", 0);
    refused(" " + good);
    refused("\xef\xbb\xbf" + good);
    refused("[]", 0);
    refused("null", 0);
    refused("    ", 0);
  }
  SUBCASE("spaces behind are padding, nothing else is") {
    CHECK(accepts_json(good + "   ", 8));
    for (const std::string_view more :
         {std::string_view("\n"), std::string_view("\t "), std::string_view("\0", 1), std::string_view(",")})
      refused(good + std::string(more));
    refused(good + "{}");
    refused(good + std::string("\0", 1) + "{}");
    refused(good + "/* */");
  }
  SUBCASE("not JSON") {
    refused("{", 0);
    refused("{]", 0);
    refused("{\"a\"}", 0);
    refused(R"({'a':1})", 0);
    refused(good.substr(0, good.size() - 1) + ",}");
    refused(R"({"a":{"dtype":"F32","shape":[2,],"data_offsets":[0,8]}})");
  }
  SUBCASE("not UTF-8") {
    for (const std::string_view text : {"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe6\x9d",
                                        "\\ud800", "\\ud800\\u0041", "\x01"})
      refused("{\"" + std::string(text) + "\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}");
  }
  SUBCASE("duplicate keys at every level") {
    const std::string entry = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
    refused("{\"a\":" + entry + ",\"a\":" + entry + "}");
    refused("{\"a\":" + entry + ",\"\\u0061\":" + entry + "}");
    refused(
        R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})");
    tensor(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])");
    tensor(R"("dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8])");
    tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"data_offsets":[0,8])");
    refused(R"({"__metadata__":{"k":"1","k":"2"},"a":)" + entry + "}");
    refused(R"({"__metadata__":{},"__metadata__":{},"a":)" + entry + "}");
  }
  SUBCASE("nested 100,000 deep") {
    for (const char* open : {"{\"a\":", "["}) {
      std::string json = "{\"a\":";
      for (int i = 0; i < 100'000; ++i) json += open;
      refused(json);
    }
    std::string info = "{\"a\":{\"saved_offsets\":[0],\"x\":";
    for (int i = 0; i < 100'000; ++i) info += "[";
    std::string json = "{\"__metadata__\":{\"DCP_SHARDING_INFO\":";
    detail::append_json(json, info);
    refused(json + "},\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}");
  }
  SUBCASE("fields that are missing, unknown or of another type") {
    tensor(R"("shape":[2],"data_offsets":[0,8])");
    tensor(R"("dtype":"F32","data_offsets":[0,8])");
    tensor(R"("dtype":"F32","shape":[2])");
    tensor("");
    tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1)");
    tensor(R"("dtype":7,"shape":[2],"data_offsets":[0,8])");
    tensor(R"("dtype":["F32"],"shape":[2],"data_offsets":[0,8])");
    tensor(R"("dtype":"F32","shape":2,"data_offsets":[0,8])");
    tensor(R"("dtype":"F32","shape":{"0":2},"data_offsets":[0,8])");
    tensor(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])");
    tensor(R"("dtype":"F32","shape":[{}],"data_offsets":[0,8])");
    tensor(R"("dtype":"F32","shape":["2"],"data_offsets":[0,8])");
    tensor(R"("dtype":"F32","shape":null,"data_offsets":[0,8])");
    for (const char* value : {"5", "\"x\"", "[]", "null", "true"})
      refused("{\"a\":" + std::string(value) + "}", 0);
  }
  SUBCASE("an unknown dtype") {
    for (const char* type : {"F33", "", "f32", "F32 ", "float32"})
      tensor("\"dtype\":\"" + std::string(type) + R"(","shape":[2],"data_offsets":[0,8])");
  }
  SUBCASE("numbers that are no plain integers") {
    for (const char* number : {"-1", "-0", "2.0", "2e0", "1e400", "NaN", "Infinity", "0x2", "02", "+2",
                               "18446744073709551616", "9223372036854775808", "99999999999999999999999999"}) {
      tensor(R"("dtype":"F32","shape":[)" + std::string(number) + R"(],"data_offsets":[0,8])");
      tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,)" + std::string(number) + "]");
    }
  }
  SUBCASE("data_offsets that are not two numbers in order inside of the file") {
    for (const char* offsets : {"[]", "[8]", "[0,8,8]", "[8,0]", "[0,7]", "[0,9]", "[0,16]", "[4,12]",
                                "[1,8]", "[18446744073709551608,0]", "[0,18446744073709551615]"})
      tensor(R"("dtype":"F32","shape":[2],"data_offsets":)" + std::string(offsets));
  }
  SUBCASE("holes, overlaps, and bytes that belong to nobody") {
    const auto two = [](int b0, int e0, int b1, int e1) {
      return "{\"a\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(e0 - b0) + "],\"data_offsets\":[" +
             std::to_string(b0) + "," + std::to_string(e0) + "]},\"b\":{\"dtype\":\"U8\",\"shape\":[" +
             std::to_string(e1 - b1) + "],\"data_offsets\":[" + std::to_string(b1) + "," +
             std::to_string(e1) + "]}}";
    };
    CHECK(accepts_json(two(0, 4, 4, 8), 8));
    CHECK(accepts_json(two(4, 8, 0, 4), 8));
    refused(two(0, 4, 5, 8));
    refused(two(0, 5, 4, 8));
    refused(two(0, 8, 0, 8));
    refused(two(1, 4, 4, 8));
    refused(two(0, 4, 4, 8), 9);
    refused(two(0, 4, 4, 8), 7);
    refused("{}", 1);
    CHECK(accepts_json("{}", 0));
  }
  SUBCASE("empty tensors lie where the one before ends") {
    const auto empty_at = [](int at) {
      return R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[0,3],"data_offsets":[)" +
             std::to_string(at) + "," + std::to_string(at) + "]}}";
    };
    CHECK(accepts_json(empty_at(0), 8));
    CHECK(accepts_json(empty_at(8), 8));
    refused(empty_at(4));
    refused(empty_at(9));
  }
  SUBCASE("shapes that overflow") {
    tensor(R"("dtype":"U8","shape":[4194305,4194305,211106198978564],"data_offsets":[0,4])", 4);
    tensor(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])", 0);
    tensor(R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0])", 0);
    tensor(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0);
  }
  SUBCASE("packed elements that fill no whole bytes") {
    tensor(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])", 1);
    tensor(R"("dtype":"F6_E2M3","shape":[2],"data_offsets":[0,1])", 1);
    CHECK(accepts_json(R"({"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})", 2));
  }
  SUBCASE("nine dimensions") {
    tensor(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,8],"data_offsets":[0,8])");
    CHECK(accepts_json(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,8],"data_offsets":[0,8]}})", 8));
  }
  SUBCASE("__metadata__ holds texts only") {
    CHECK(accepts_json(R"({"__metadata__":{"k":"v"}})", 0));
    for (const char* value : {"1", "null", "{}", "[]", "true", "[\"v\"]"})
      refused("{\"__metadata__\":{\"k\":" + std::string(value) + "}}", 0);
    for (const char* value : {"1", "null", "[]", "\"v\""})
      refused("{\"__metadata__\":" + std::string(value) + "}", 0);
  }
  SUBCASE("sharding info that does not fit") {
    const auto with = [](std::string_view info) {
      std::string json = "{\"__metadata__\":{\"DCP_SHARDING_INFO\":";
      detail::append_json(json, info);
      return json + R"(},"a":{"dtype":"U8","shape":[2,4],"data_offsets":[0,8]}})";
    };
    CHECK(accepts_json(with(R"({"a":{"saved_offsets":[2,0]}})"), 8));
    CHECK(accepts_json(
        with(R"({"a":{"saved_offsets":[2,0],"global_shape":[4,4],"logical_fqn":"a","more":[1,[2]]}})"), 8));
    for (const char* info :
         {"",
          "x",
          "[]",
          "{}",
          "{\"a\":1}",
          "{\"a\":{}}",
          R"({"a":{"global_shape":[4,4]}})",
          R"({"b":{"saved_offsets":[0,0]}})",
          R"({"a":{"saved_offsets":[0,0]},"b":{"saved_offsets":[0,0]}})",
          R"({"a":{"saved_offsets":[0,0]},"a":{"saved_offsets":[0,0]}})",
          R"({"a":{"saved_offsets":[0,0],"saved_offsets":[0,0]}})",
          R"({"a":{"saved_offsets":[0,0],"x":1,"x":1}})",
          R"({"a":{"saved_offsets":[0]}})",
          R"({"a":{"saved_offsets":[0,0,0]}})",
          R"({"a":{"saved_offsets":[]}})",
          R"({"a":{"saved_offsets":[-1,0]}})",
          R"({"a":{"saved_offsets":[0.5,0]}})",
          R"({"a":{"saved_offsets":["0",0]}})",
          R"({"a":{"saved_offsets":[[0],0]}})",
          R"({"a":{"saved_offsets":{"0":0}}})",
          R"({"a":{"saved_offsets":null}})",
          R"({"a":{"saved_offsets":[0,0,0,0,0,0,0,0,0]}})",
          R"({"a":{"saved_offsets":[9223372036854775807,0]}})",
          R"({"a":{"saved_offsets":[0,0],"global_shape":[1,4]}})",
          R"({"a":{"saved_offsets":[3,0],"global_shape":[4,4]}})",
          R"({"a":{"saved_offsets":[0,0],"global_shape":[2,4,1]}})",
          R"({"a":{"saved_offsets":[0,0],"global_shape":[4294967296,9223372036854775807]}})",
          R"({"a":{"saved_offsets":[0,0],"x":{"y":1}}})",
          R"({"a":{"saved_offsets":[0,0]}} x)"})
      refused(with(info));
  }
  SUBCASE("a hundred thousand tensors") {
    std::string json = "{";
    for (int i = 0; i < 100'000; ++i)
      json += (i == 0 ? "\"" : ",\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[],"data_offsets":[)" +
              std::to_string(i) + "," + std::to_string(i + 1) + "]}";
    CHECK(accepts_json(json + "}", 100'000));
  }
  SUBCASE("random changes") {
    const auto header = encode_safetensors_header(golden_header(), 8);
    mutate(
        header, 30000, 8, [](bytes&) {},
        [&](const bytes& b) { return accepts_header(b, header.size() + 43); });
  }
}
