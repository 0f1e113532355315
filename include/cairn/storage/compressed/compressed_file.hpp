// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/storage/compressed/item_frames.hpp>
#include <cairn/storage/manifest/corrupt.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

// A compressed data file, `rank-RRRRR.<attempt>.<index>.cairnz`: a safetensors file whose items are encoded
// one by one, so that any range of it can be read. Offsets in records are those of the safetensors file.
//
//   | header           | the first bytes of the safetensors file, as they are                              |
//   | frames           | of each item, in the order of the file (see item_frames.hpp)                       |
//   | indices          | of each item's frames, in the same order                                          |
//   | u64, u64 × n     | for each item: bytes of its frames, of its index                                  |
//   | 8 bytes          | trailer: "cairncmp"                                                               |
//   | u16, u16, u32    | version: 1; the codec's number; 0                                                 |
//   | u64, u64, u64    | bytes of the header; of the safetensors file; n                                   |
//   | u64, u64         | XXH3-64 of the header; of the table of items                                      |
//   | u64              | XXH3-64 of the trailer up to here                                                 |

namespace detail {

inline constexpr std::string_view compressed_magic = "cairncmp";
inline constexpr std::size_t compressed_trailer_bytes = 64;

/// What the end of a compressed file says, checked by itself.
struct compressed_trailer {
  std::uint64_t header_bytes = 0;
  std::uint64_t decoded_bytes = 0;  ///< of the safetensors file
  std::uint64_t items = 0;
  std::uint64_t header_digest = 0;
  std::uint64_t table_digest = 0;
};

[[nodiscard]] inline std::vector<std::byte> encode_compressed_trailer(const compressed_trailer& t,
                                                                      std::uint16_t codec) {
  wire_writer out;
  out.raw(std::as_bytes(std::span{compressed_magic.data(), compressed_magic.size()}));
  out.put(std::uint16_t{1}).put(codec).put(std::uint32_t{0});
  out.put(t.header_bytes).put(t.decoded_bytes).put(t.items).put(t.header_digest).put(t.table_digest);
  return out.put(digest(out.view())).take();
}

/// `last`: the last compressed_trailer_bytes of a file of `file_bytes`. @throws corrupt_error
[[nodiscard]] inline compressed_trailer decode_compressed_trailer(std::span<const std::byte> last,
                                                                  std::uint64_t file_bytes,
                                                                  std::uint16_t codec,
                                                                  std::string_view file) {
  if (last.size() != compressed_trailer_bytes || file_bytes < compressed_trailer_bytes)
    corrupt(error_id::corrupt_truncated, "a compressed data file is shorter than its end", file, file_bytes);
  const auto at = file_bytes - compressed_trailer_bytes;
  if (std::memcmp(last.data(), compressed_magic.data(), compressed_magic.size()) != 0)
    corrupt(error_id::corrupt_bad_magic, "this is not the end of a compressed data file of cairn", file, at);
  wire_reader end(last.last(8));
  const auto expected = end.get<std::uint64_t>();
  if (const auto got = digest(last.first(compressed_trailer_bytes - 8)); got != expected)
    corrupt(error_id::corrupt_digest, "the end of a compressed data file is damaged", file, at,
            digest_text(expected), digest_text(got));
  wire_reader in(last.subspan(compressed_magic.size()));
  if (const auto version = in.get<std::uint16_t>(); version != 1)
    corrupt(error_id::corrupt_unsupported_version, "a compressed data file has an unknown version", file,
            at + 8, "1", std::to_string(version));
  if (const auto got = in.get<std::uint16_t>(); got != codec)
    corrupt(error_id::corrupt_identity, "a data file was compressed with another codec", file, at + 10,
            std::to_string(codec), std::to_string(got));
  if (in.get<std::uint32_t>() != 0)
    corrupt(error_id::corrupt_bad_value, "a reserved field of a compressed data file is not zero", file,
            at + 12);
  compressed_trailer t;
  t.header_bytes = in.get<std::uint64_t>(), t.decoded_bytes = in.get<std::uint64_t>();
  t.items = in.get<std::uint64_t>();
  t.header_digest = in.get<std::uint64_t>(), t.table_digest = in.get<std::uint64_t>();
  const auto room = file_bytes - compressed_trailer_bytes;
  if (t.header_bytes > room || t.items > (room - t.header_bytes) / 16 || t.header_bytes > t.decoded_bytes)
    corrupt(error_id::corrupt_bad_value, "the end of a compressed data file holds impossible numbers", file,
            at + 16);
  return t;
}

/// Where everything is in a compressed file that was opened. Immutable.
struct compressed_file {
  struct item {
    std::uint64_t begin = 0;   ///< in the safetensors file
    std::uint64_t frames = 0;  ///< where its frames begin in the compressed one
    frame_index index;
  };
  std::string key;                ///< of the compressed file
  std::uint64_t bytes = 0;        ///< of the safetensors file
  std::vector<std::byte> header;  ///< its first bytes
  std::vector<item> items;        ///< by begin; back to back from the header's end to `bytes`
};

/// Puts together what a compressed file of `file_bytes` says of itself. `header`: its first bytes, `tail`:
/// its last ones, from the first index on. Hostile bytes; takes memory of a few times theirs. @throws
/// corrupt_error
[[nodiscard]] inline compressed_file decode_compressed_file(std::string key, std::uint64_t file_bytes,
                                                            std::uint16_t codec, const compressed_trailer& t,
                                                            std::vector<std::byte> header,
                                                            std::span<const std::byte> tail) {
  if (digest(header) != t.header_digest)
    corrupt(error_id::corrupt_digest, "the header of a compressed data file is damaged", key, 0);
  const auto parsed = decode_safetensors_header(header, t.decoded_bytes, key);
  if (parsed.entries.size() != t.items)
    corrupt(error_id::corrupt_bad_value, "a compressed data file has another number of items than its header",
            key, file_bytes - compressed_trailer_bytes, std::to_string(parsed.entries.size()),
            std::to_string(t.items));
  const auto table = tail.last(compressed_trailer_bytes + 16 * static_cast<std::size_t>(t.items))
                         .first(16 * static_cast<std::size_t>(t.items));
  compressed_file made{std::move(key), t.decoded_bytes, std::move(header), {}};
  made.items.reserve(parsed.entries.size());
  wire_reader in(table);
  std::uint64_t frames_at = t.header_bytes;
  auto indices = tail.first(tail.size() - compressed_trailer_bytes - table.size());
  for (const auto& entry : parsed.entries) {
    const auto frames = in.get<std::uint64_t>();
    const auto index = in.get<std::uint64_t>();
    // Both were added up without overflow before the tail was read.
    framed_item expected{codec, entry.type, entry.end - entry.begin, frames + index, made.key, 0};
    expected.begin = file_bytes - compressed_trailer_bytes - table.size() - indices.size() - frames;
    const auto bytes = indices.first(static_cast<std::size_t>(index));
    auto parsed_index = frame_index::parse(bytes, expected);
    if (parsed_index.frames_end() != frames || frame_index::needed(bytes, expected) != index)
      corrupt(error_id::corrupt_size_mismatch,
              "the frames of a compressed item have other sizes than its file says", made.key, expected.begin,
              std::to_string(frames), std::to_string(parsed_index.frames_end()));
    made.items.push_back({t.header_bytes + entry.begin, frames_at, std::move(parsed_index)});
    frames_at += frames;
    indices = indices.subspan(static_cast<std::size_t>(index));
  }
  return made;
}

/// How many bytes the indices have, from the table. @throws corrupt_error unless header, frames, indices,
/// table and trailer are exactly the file.
[[nodiscard]] inline std::uint64_t compressed_index_bytes(std::span<const std::byte> table,
                                                          const compressed_trailer& t,
                                                          std::uint64_t file_bytes, std::string_view file) {
  const auto at = file_bytes - compressed_trailer_bytes - table.size();
  if (digest(table) != t.table_digest)
    corrupt(error_id::corrupt_digest, "the table of a compressed data file is damaged", file, at);
  wire_reader in(table);
  std::uint64_t sum = t.header_bytes;
  std::uint64_t indices = 0;
  bool overflow = false;
  for (std::uint64_t i = 0; i < t.items; ++i) {
    overflow |= __builtin_add_overflow(sum, in.get<std::uint64_t>(), &sum);
    const auto index = in.get<std::uint64_t>();
    overflow |= __builtin_add_overflow(sum, index, &sum);
    indices += index;  // at most the sum
  }
  if (overflow || sum != at)
    corrupt(error_id::corrupt_size_mismatch, "the parts of a compressed data file do not add up to its size",
            file, at, std::to_string(at), overflow ? "an overflow" : std::to_string(sum));
  return indices;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
