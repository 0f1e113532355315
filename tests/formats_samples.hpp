// SPDX-License-Identifier: Apache-2.0
// Samples for the tests of the storage formats: fixed ones (the golden files) and random ones.
#pragma once
#include <algorithm>
#include <bit>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/wire.hpp>
#include <cstdint>
#include <cstring>
#include <exception>
#include <random>
#include <string>
#include <vector>

namespace cairn_test {

using bytes = std::vector<std::byte>;

inline cairn::stored_item item_of(std::string name, cairn::dtype type, cairn::extents global,
                                  std::vector<cairn::stored_chunk> chunks) {
  return {std::move(name), cairn::item_kind::tensor, type, global, false, cairn::chunk_set::from(chunks)};
}

/// What the golden record holds: two files, three items, one of them empty and one of two blocks.
inline cairn::record golden_record() {
  cairn::record r;
  r.run = {0x0123456789abcdefu, 0xfedcba9876543210u};
  r.attempt = 0x00c0ffee00c0ffeeu;
  r.step = 1200;
  r.rank = 1;
  r.world_size = 2;
  r.plan_digest = 0x1122334455667788u;
  r.files = {{4096 + 1048576 + 24}, {4096 + 16}};
  r.blocks = {0xa1, 0xa2, 0xb1};
  const auto digest = [&](std::size_t first, std::size_t count) {
    return cairn::digest_of_blocks(std::span<const std::uint64_t>{r.blocks}.subspan(first, count));
  };
  r.items = {{cairn::key_of("wte", {{2, 0}, {2, 3}}), 0, 4096, 1048576 + 24, digest(0, 2), 0},
             {cairn::key_of("empty", {{0}, {0}}), 0, 4096 + 1048576 + 24, 0, digest(2, 0), 2},
             {cairn::key_of("rng@rank00001", {{}, {}}), 1, 4096, 16, digest(2, 1), 2}};
  return r;
}

/// The failure of rank 1, for the golden failure record.
inline std::exception_ptr golden_failure() {
  return cairn::make_failure(cairn::error_id::storage_no_space, "the disk is full",
                             {.file = "rank-00001.data", .expected = "4096 bytes", .got = "0 bytes"});
}

/// What the golden manifest holds: a grid, explicit boxes, values, bytes, and a per-rank item.
inline cairn::manifest golden_manifest() {
  using cairn::dtype;
  using cairn::extents;
  using cairn::item_kind;
  cairn::manifest m;
  m.run = {0x0123456789abcdefu, 0xfedcba9876543210u};
  m.step = 1200;
  m.attempt = 0x00c0ffee00c0ffeeu;
  m.plan_digest = 0x1122334455667788u;
  m.unix_time = 1750000000;
  m.content.world_size = 2;
  const auto all = [](int rank) { return cairn::stored_chunk{cairn::whole({}), rank}; };
  m.content.items = {{"data_loader", item_kind::bytes, dtype::u8, {}, false, {all(0)}},
                     item_of("flat", dtype::bf16, {7}, {{{{0}, {3}}, 1}, {{{3}, {4}}, 0}}),
                     {"lr", item_kind::value, dtype::f64, {}, false, {all(1)}},
                     {"rng", item_kind::bytes, dtype::u8, {}, true, {all(0), all(1)}},
                     item_of("wte", dtype::f32, {4, 3}, {{{{0, 0}, {2, 3}}, 0}, {{{2, 0}, {2, 3}}, 1}})};
  m.records = {{1200, m.attempt, 0, 1, 0x5555, 4136}, {1200, m.attempt, 1, 2, 0x6666, 8232}};
  return m;
}

/// The same with what is said of a checkpoint: one of each kind, and the version of its state.
inline cairn::manifest golden_annotated_manifest() {
  auto m = golden_manifest();
  m.content.state_version = 3;
  m.content.annotations = {
      {"commit", "00c0ffee"}, {"final", true}, {"loss", 2.3125}, {"samples_seen", 12800}};
  return m;
}

/// What the golden safetensors file holds.
inline cairn::safetensors_header golden_header() {
  using cairn::dtype;
  cairn::safetensors_header h;
  h.entries = {{"wte", dtype::f32, {2, 3}, 0, 24, {2, 0}, {4, 3}, true},
               {"na\"me\\\xc3\xa9", dtype::bf16, {4}, 24, 32, {3}, {7}, true},
               {"lr", dtype::f64, {}, 32, 40, {}, {}, true},
               {"rng@rank00001", dtype::u8, {3}, 40, 43, {0}, {3}, true}};
  return h;
}
/// The data of that file: 1.0f to 6.0f, four bfloat16, 0.5, three bytes.
inline bytes golden_data() {
  cairn::wire_writer out;
  for (int i = 1; i <= 6; ++i) out.put(static_cast<float>(i));
  for (const int bits : {0x3f80, 0x4000, 0x4040, 0x4080}) out.put(static_cast<std::uint16_t>(bits));
  out.put(0.5);
  for (const int byte : {7, 8, 9}) out.put(static_cast<std::uint8_t>(byte));
  return out.take();
}

/// Deterministic random numbers, the same with every standard library.
class dice {
 public:
  explicit dice(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t word() { return engine_(); }
  /// 0 to `below` - 1.
  std::int64_t roll(std::int64_t below) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(below));
  }

 private:
  std::mt19937_64 engine_;
};

inline std::string random_name(dice& d, std::size_t number) {
  static const char* const parts[] = {"layer.", "w\xc3\xa9", "\xe6\x9d\xb1",    "\"", "\\",
                                      "/..",    " ",         "\xf0\x9f\x98\x80"};
  std::string name = std::to_string(d.roll(1000)) + ".";
  for (auto k = d.roll(4); k-- > 0;) name += parts[d.roll(8)];
  return name + "#" + std::to_string(number);
}

/// A grid of random chunks whose ranks grow along random dimensions, or (one time in four) irregular chunks.
inline cairn::stored_item random_tensor(dice& d, std::string name, std::int32_t world) {
  cairn::stored_item item;
  item.name = std::move(name);
  item.type = static_cast<cairn::dtype>(d.roll(17));
  const auto rank = static_cast<int>(d.roll(5));
  item.global = cairn::extents::filled(rank, 0);
  for (int i = 0; i < rank; ++i) item.global.set(i, d.roll(20) == 0 ? 0 : 1 + d.roll(12));
  if (rank > 0 && d.roll(4) == 0) {
    std::vector<cairn::stored_chunk> chunks;
    for (std::int64_t at = 0; at < item.global[0];) {
      const auto size = 1 + d.roll(item.global[0] - at);
      auto box = cairn::whole(item.global);
      box.offsets.set(0, at), box.sizes.set(0, size);
      chunks.push_back({box, static_cast<std::int32_t>(d.roll(world))});
      at += size;
    }
    if (item.global.volume() == 0) chunks.resize(std::min<std::size_t>(chunks.size(), 1));
    item.chunks = cairn::chunk_set::from(chunks);
    return item;
  }
  std::vector<cairn::stored_chunk> chunks{{cairn::whole(item.global), 0}};
  std::int32_t stride = 1;
  for (int i = rank; i-- > 0;) {
    if (d.roll(2) == 0 || item.global[i] < 2) continue;
    const auto piece = 1 + d.roll(item.global[i]);
    std::vector<cairn::stored_chunk> cut;
    std::int32_t index = 0;
    for (std::int64_t at = 0; at < item.global[i]; at += piece, ++index)
      for (auto c : chunks) {
        c.box.offsets.set(i, at), c.box.sizes.set(i, std::min(piece, item.global[i] - at));
        c.rank = (c.rank + index * stride) % world;
        cut.push_back(c);
      }
    chunks = std::move(cut);
    stride *= index;
  }
  item.chunks = cairn::chunk_set::from(chunks);
  return item;
}

inline cairn::manifest random_manifest(dice& d) {
  cairn::manifest m;
  m.run = {d.word(), d.word()};
  m.step = d.roll(1'000'000);
  m.attempt = d.word(), m.plan_digest = d.word(), m.unix_time = d.roll(2'000'000'000);
  const auto world = static_cast<std::int32_t>(1 + d.roll(40));
  m.content.world_size = world;
  if (d.roll(2) == 0) m.placement.ranks_per_file = static_cast<std::int32_t>(1 + d.roll(64));
  if (d.roll(2) == 0) m.placement.ranks_per_directory = static_cast<std::int32_t>(d.roll(1000));
  for (std::int32_t r = 0; r < world; ++r)
    m.records.push_back({m.step - d.roll(m.step + 1), d.word(), r, static_cast<std::uint32_t>(d.roll(5)),
                         d.word(), d.word()});
  if (d.roll(2) == 0) m.content.state_version = d.roll(1000);
  for (auto n = d.roll(3) == 0 ? d.roll(static_cast<std::int64_t>(cairn::max_annotations) + 1) : 0;
       n-- > 0;) {
    const auto name = random_name(d, static_cast<std::size_t>(n));
    switch (d.roll(4)) {
      case 0:
        m.content.annotations.set(name, static_cast<std::int64_t>(d.word()));
        break;
      case 1:
        m.content.annotations.set(name, std::bit_cast<double>(d.word()));
        break;
      case 2:
        m.content.annotations.set(name, d.roll(2) == 0);
        break;
      default:
        m.content.annotations.set(name, random_name(d, 7) + "\n");
    }
  }
  const auto items = static_cast<std::size_t>(d.roll(30));
  for (std::size_t i = 0; i < items; ++i) {
    auto item = random_tensor(d, random_name(d, i), world);
    if (d.roll(4) == 0) {
      item.kind = static_cast<cairn::item_kind>(1 + d.roll(2));
      item.global = {};
      if (item.kind == cairn::item_kind::bytes) item.type = cairn::dtype::u8;
      item.chunks = {{cairn::whole({}), static_cast<std::int32_t>(d.roll(world))}};
    }
    if (d.roll(4) == 0) {
      item.per_rank = true;
      item.chunks.clear();
      const auto step = d.roll(3);
      for (std::int32_t r = 0; r < world; r += static_cast<std::int32_t>(step == 0 ? 1 + d.roll(3) : step))
        item.chunks.push_back({cairn::whole(item.global), r});
    }
    m.content.items.push_back(std::move(item));
  }
  std::sort(m.content.items.begin(), m.content.items.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return m;
}

inline bool same(const cairn::manifest& a, const cairn::manifest& b) {
  return a.run == b.run && a.step == b.step && a.attempt == b.attempt && a.plan_digest == b.plan_digest &&
         a.content.world_size == b.content.world_size && a.content.items == b.content.items &&
         a.records == b.records && a.unix_time == b.unix_time && a.placement == b.placement &&
         a.content.state_version == b.content.state_version && a.content.annotations == b.content.annotations;
}

inline cairn::record random_record(dice& d) {
  cairn::record r;
  r.run = {d.word(), d.word()};
  r.attempt = d.word(), r.plan_digest = d.word();
  r.step = d.roll(1'000'000);
  r.world_size = static_cast<std::int32_t>(1 + d.roll(1000));
  r.rank = static_cast<std::int32_t>(d.roll(r.world_size));
  for (auto f = d.roll(4); f-- > 0;)
    r.files.push_back({static_cast<std::uint64_t>(d.roll(std::int64_t{1} << 40))});
  for (auto i = r.files.empty() ? 0 : d.roll(20); i-- > 0;) {
    cairn::record_item item;
    item.key = {d.word(), d.word()};
    item.file = static_cast<std::uint32_t>(d.roll(static_cast<std::int64_t>(r.files.size())));
    item.offset = static_cast<std::uint64_t>(d.roll(static_cast<std::int64_t>(r.files[item.file].bytes) + 1));
    const auto room = r.files[item.file].bytes - item.offset;
    item.bytes = std::min(room, static_cast<std::uint64_t>(d.roll(8 << 20)));
    item.first_block = r.blocks.size();
    for (auto b = cairn::block_count(item.bytes); b-- > 0;) r.blocks.push_back(d.word());
    item.digest = cairn::digest_of_blocks(std::span<const std::uint64_t>{r.blocks}.subspan(item.first_block));
    r.items.push_back(item);
  }
  return r;
}

/// Makes the digests of a record right again that a test has changed, as a hostile writer would.
inline void seal_record(bytes& record) {
  const auto put = [&](std::size_t at, std::uint64_t value) { std::memcpy(record.data() + at, &value, 8); };
  put(88, cairn::digest(std::span<const std::byte>{record}.subspan(128)));
  put(120, cairn::digest(std::span<const std::byte>{record}.first(120)));
}

/// The same for a manifest: of its sections (where they lie in it), its body and its header.
inline void seal_manifest(bytes& manifest) {
  const auto get = [&](std::size_t at, auto& value) {
    std::memcpy(&value, manifest.data() + at, sizeof value);
  };
  const auto put = [&](std::size_t at, std::uint64_t value) { std::memcpy(manifest.data() + at, &value, 8); };
  const std::span<const std::byte> all{manifest};
  std::uint32_t sections = 0;
  get(20, sections);
  for (std::size_t s = 0; s < std::min(sections, 64u) && 128 + 32 * s + 32 <= all.size(); ++s) {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
    get(128 + 32 * s + 8, offset), get(128 + 32 * s + 16, size);
    if (offset <= all.size() && size <= all.size() - offset)
      put(128 + 32 * s + 24, cairn::digest(all.subspan(offset, size)));
  }
  put(88, cairn::digest(all.subspan(128)));
  put(120, cairn::digest(all.first(120)));
}

}  // namespace cairn_test
