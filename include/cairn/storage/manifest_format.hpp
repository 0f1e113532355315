// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/digest.hpp>
#include <cairn/model/error.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/wire.hpp>
#include <cairn/storage/chunk_grid.hpp>
#include <cairn/storage/corrupt.hpp>
#include <cairn/storage/manifest_check.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

// The file `manifest.cairn`: a header of 128 bytes, a table of sections, and sections of columns.
// docs/format.md describes it byte by byte.

/// The record of one rank: where the files of its chunks are, and by what they are verified.
struct manifest_record {
  std::int64_t step = 0;      ///< in whose directory its files lie
  std::uint64_t attempt = 0;  ///< in the names of its files
  std::int32_t rank = 0;
  std::uint32_t files = 0;
  std::uint64_t record_digest = 0;  ///< record_header::header_digest, which covers the whole record
  std::uint64_t data_bytes = 0;     ///< of all files together
  friend bool operator==(const manifest_record&, const manifest_record&) = default;
};

/// All that a checkpoint's existence means: what it holds, and which records say where.
struct manifest {
  run_id run;
  std::int64_t step = 0;
  std::uint64_t attempt = 0;
  std::uint64_t plan_digest = 0;
  metadata content;
  std::vector<manifest_record> records;  ///< one for each rank, in rank order
  std::int64_t unix_time = 0;            ///< of the commit, in seconds
};

/// Chunks that the progressions of one manifest may stand for; more are written one by one.
inline constexpr std::uint64_t max_progression_chunks = std::uint64_t{1} << 22;

namespace detail {

inline constexpr std::string_view manifest_magic = "cairnman";
inline constexpr std::uint16_t manifest_major = 1;
inline constexpr std::uint16_t manifest_minor = 0;
inline constexpr std::size_t manifest_header_bytes = 128;
inline constexpr std::size_t section_entry_bytes = 32;
inline constexpr std::uint32_t max_sections = 64;
inline constexpr std::uint32_t section_required = 1;

/// Sections of version 1, all required, in this order.
enum class section_id : std::uint32_t { names = 1, items, shapes, grids, boxes, records };
inline constexpr std::size_t known_sections = 6;

enum class chunk_form : std::uint8_t { boxes = 0, grid = 1 };

inline void align_8(wire_writer& out) {
  while (out.size() % 8 != 0) out.put(std::uint8_t{0});
}
[[nodiscard]] constexpr std::uint64_t aligned_8(std::uint64_t bytes) noexcept {
  return (bytes + 7) & ~std::uint64_t{7};
}

/// The columns of a manifest while it is written.
struct manifest_columns {
  wire_writer name_sizes, names;
  wire_writer kinds, types, flags, dimensions, forms, reserved, codecs;
  wire_writer shapes;
  wire_writer first_ranks, grid_counts, pieces, rank_steps;
  wire_writer box_counts, box_ranks, boxes;
};

inline void put_grid(manifest_columns& c, const stored_item& item, const chunk_grid& grid) {
  c.first_ranks.put(grid.first_rank);
  c.grid_counts.put(grid.count);
  for (const auto piece : grid.pieces) c.pieces.put(piece);
  const auto steps = item.per_rank ? 1 : item.global.rank();
  for (int d = 0; d < steps; ++d) c.rank_steps.put(grid.rank_steps[static_cast<std::size_t>(d)]);
}

inline void put_boxes(manifest_columns& c, const stored_item& item) {
  c.box_counts.put(static_cast<std::uint32_t>(item.chunks.size()));
  for (const auto& chunk : item.chunks) {
    c.box_ranks.put(chunk.rank).put(std::uint32_t{0});
    if (item.per_rank) continue;
    for (const auto offset : chunk.box.offsets) c.boxes.put(offset);
    for (const auto size : chunk.box.sizes) c.boxes.put(size);
  }
}

[[nodiscard]] inline std::array<std::vector<std::byte>, known_sections> manifest_sections(const manifest& m) {
  manifest_columns c;
  std::uint64_t progression_chunks = 0;
  for (const auto& item : m.content.items) {
    c.name_sizes.put(static_cast<std::uint32_t>(item.name.size()));
    c.names.raw(std::as_bytes(std::span{item.name.data(), item.name.size()}));
    auto grid = find_grid(item, m.content.world_size);
    if (grid && grid->count > max_progression_chunks - progression_chunks) grid.reset();
    c.kinds.put(item.kind), c.types.put(item.type);
    c.flags.put(static_cast<std::uint8_t>(item.per_rank));
    c.dimensions.put(static_cast<std::uint8_t>(item.global.rank()));
    c.forms.put(grid ? chunk_form::grid : chunk_form::boxes);
    c.reserved.put(std::uint8_t{0});
    c.codecs.put(std::uint16_t{0});
    for (const auto size : item.global) c.shapes.put(size);
    if (grid) {
      progression_chunks += grid->count;
      put_grid(c, item, *grid);
    } else {
      put_boxes(c, item);
    }
  }
  wire_writer steps, attempts, ranks, files, digests, bytes;
  for (const auto& r : m.records) {
    steps.put(r.step), attempts.put(r.attempt), digests.put(r.record_digest), bytes.put(r.data_bytes);
    ranks.put(r.rank), files.put(r.files);
  }
  std::array<std::vector<std::byte>, known_sections> sections;
  std::size_t next = 0;
  const auto section = [&](std::initializer_list<const wire_writer*> columns) {
    wire_writer out;
    for (const auto* column : columns) out.raw(column->view());
    sections[next++] = out.take();
  };
  section({&c.name_sizes, &c.names});
  section({&c.kinds, &c.types, &c.flags, &c.dimensions, &c.forms, &c.reserved, &c.codecs});
  section({&c.shapes});
  section({&c.first_ranks, &c.grid_counts, &c.pieces, &c.rank_steps});
  align_8(c.box_counts);
  section({&c.box_counts, &c.box_ranks, &c.boxes});
  section({&steps, &attempts, &digests, &bytes, &ranks, &files});
  return sections;
}

/// Why the table of records is none.
[[nodiscard]] inline const char* records_problem(const manifest& m) noexcept {
  if (m.step < 0) return "its step is negative";
  if (m.content.world_size < 1) return "its world size is not positive";
  if (m.records.size() != static_cast<std::size_t>(m.content.world_size))
    return "it has not one record for each rank";
  for (std::size_t r = 0; r < m.records.size(); ++r) {
    if (m.records[r].rank != static_cast<std::int64_t>(r)) return "its records are not in rank order";
    if (m.records[r].step < 0 || m.records[r].step > m.step) return "a record is of a later step";
  }
  return nullptr;
}

}  // namespace detail

/// The bytes of a manifest. O(items + chunks + ranks); their number grows with items and ranks where chunks
/// form regular grids, else with chunks.
/// @throws plan_error (plan_bad_message) naming the item if the content is not that of a checkpoint.
[[nodiscard]] inline std::vector<std::byte> encode_manifest(const manifest& m) {
  if (const auto* what = detail::records_problem(m))
    fail(error_id::plan_bad_message, std::string("a manifest cannot be written: ") + what);
  if (const auto problem = detail::find_problem(m.content); problem.what != nullptr)
    fail(error_id::plan_bad_message,
         std::string("a manifest cannot be written: one of its items ") + problem.what,
         {.item = m.content.items[problem.item].name});
  if (m.content.items.size() > UINT32_MAX)
    fail(error_id::storage_limit, "a manifest cannot hold more than 2^32 - 1 items");
  const auto sections = detail::manifest_sections(m);

  wire_writer body;
  std::uint64_t at = detail::manifest_header_bytes + sections.size() * detail::section_entry_bytes;
  for (std::size_t s = 0; s < sections.size(); ++s) {
    body.put(static_cast<std::uint32_t>(s + 1)).put(detail::section_required);
    body.put(at).put(static_cast<std::uint64_t>(sections[s].size())).put(digest(sections[s]));
    at += detail::aligned_8(sections[s].size());
  }
  for (const auto& section : sections) {
    body.raw(section);
    detail::align_8(body);
  }
  wire_writer out;
  out.raw(std::as_bytes(std::span{detail::manifest_magic.data(), detail::manifest_magic.size()}));
  out.put(detail::manifest_major).put(detail::manifest_minor);
  out.put(std::uint32_t{0}).put(std::uint32_t{0});  // required and optional features
  out.put(static_cast<std::uint32_t>(sections.size())).put(at);
  out.put(m.run.high).put(m.run.low).put(m.step).put(m.attempt).put(m.plan_digest).put(m.unix_time);
  out.put(m.content.world_size).put(static_cast<std::uint32_t>(m.content.items.size()));
  out.put(digest(body.view()));
  for (int i = 0; i < 3; ++i) out.put(std::uint64_t{0});
  out.put(digest(out.view()));
  out.raw(body.view());
  return out.take();
}

namespace detail {

/// One section of a manifest that is being read: takes columns off its front, each checked against what is
/// left.
class section_reader {
 public:
  section_reader(std::span<const std::byte> bytes, std::uint64_t begin, std::string_view file) noexcept
      : bytes_(bytes), begin_(begin), file_(file) {}

  /// `count` numbers, later read by column_at(column, i).
  template <class T>
  [[nodiscard]] const std::byte* column(std::uint64_t count) {
    if (count > left() / sizeof(T)) bad("a section of a manifest is too short for its columns");
    return take(count * sizeof(T));
  }
  [[nodiscard]] std::string_view text(std::uint64_t size) {
    if (size > left()) bad("a section of a manifest is too short for its names");
    return {reinterpret_cast<const char*>(take(size)), static_cast<std::size_t>(size)};
  }
  void align() {
    while (at_ % 8 != 0)
      if (left() == 0 || *take(1) != std::byte{0}) bad("the padding of a manifest's columns is not zero");
  }
  void finish() const {
    if (left() != 0) bad("a section of a manifest is longer than its columns");
  }
  [[nodiscard]] std::uint64_t left() const noexcept { return bytes_.size() - at_; }
  [[noreturn]] void unsupported(std::string_view what, std::uint64_t number) const {
    corrupt(error_id::corrupt_unsupported_feature, what, file_, begin_ + at_, {}, std::to_string(number));
  }
  [[noreturn]] void bad(std::string_view what, std::string_view item = {}) const {
    fail(error_id::corrupt_bad_value, what,
         {.item = std::string(item),
          .file = std::string(file_),
          .offset = static_cast<std::int64_t>(begin_ + at_)});
  }

 private:
  const std::byte* take(std::uint64_t size) noexcept {
    const auto* from = bytes_.data() + at_;
    at_ += static_cast<std::size_t>(size);
    return from;
  }
  std::span<const std::byte> bytes_;
  std::uint64_t begin_;
  std::string_view file_;
  std::size_t at_ = 0;
};

template <class T>
[[nodiscard]] T column_at(const std::byte* column, std::uint64_t i) noexcept {
  T value;
  std::memcpy(&value, column + i * sizeof(T), sizeof(T));
  return value;
}

/// The header's numbers that the decoder needs beside those of `manifest`.
struct manifest_counts {
  std::uint32_t sections = 0;
  std::uint32_t items = 0;
};

[[nodiscard]] inline manifest_counts decode_manifest_header(std::span<const std::byte> bytes,
                                                            std::string_view file, manifest& m) {
  if (bytes.size() < manifest_header_bytes)
    corrupt(error_id::corrupt_truncated, "a manifest is shorter than its header", file, bytes.size(),
            "128 bytes", std::to_string(bytes.size()));
  if (std::memcmp(bytes.data(), manifest_magic.data(), manifest_magic.size()) != 0)
    corrupt(error_id::corrupt_bad_magic, "this is not a manifest of cairn", file, 0);
  const auto expected = column_at<std::uint64_t>(bytes.data() + 120, 0);
  if (const auto got = digest(bytes.first(120)); got != expected)
    corrupt(error_id::corrupt_digest, "the header of a manifest is damaged", file, 0, digest_text(expected),
            digest_text(got));
  wire_reader in{bytes.first(120).subspan(8)};
  const auto version = in.get<std::uint16_t>();
  (void)in.get<std::uint16_t>();
  if (version != manifest_major)
    corrupt(error_id::corrupt_unsupported_version,
            "this manifest was written by another major version of cairn; use that version to read it", file,
            8, std::to_string(manifest_major), std::to_string(version));
  if (const auto required = in.get<std::uint32_t>(); required != 0)
    corrupt(error_id::corrupt_unsupported_feature,
            "this checkpoint needs a feature that this version of cairn does not have", file, 12, {},
            std::to_string(required));
  (void)in.get<std::uint32_t>();
  manifest_counts counts;
  counts.sections = in.get<std::uint32_t>();
  const auto total = in.get<std::uint64_t>();
  m.run.high = in.get<std::uint64_t>(), m.run.low = in.get<std::uint64_t>();
  m.step = in.get<std::int64_t>(), m.attempt = in.get<std::uint64_t>();
  m.plan_digest = in.get<std::uint64_t>(), m.unix_time = in.get<std::int64_t>();
  m.content.world_size = in.get<std::int32_t>();
  counts.items = in.get<std::uint32_t>();
  const auto body_digest = in.get<std::uint64_t>();
  if (bytes.size() < total)
    corrupt(error_id::corrupt_truncated, "a manifest ends early", file, bytes.size(), std::to_string(total),
            std::to_string(bytes.size()));
  if (bytes.size() > total)
    corrupt(error_id::corrupt_size_mismatch, "bytes follow the end of a manifest", file, total);
  if (const auto got = digest(bytes.subspan(manifest_header_bytes)); got != body_digest)
    corrupt(error_id::corrupt_digest, "a manifest is damaged", file, manifest_header_bytes,
            digest_text(body_digest), digest_text(got));
  return counts;
}

/// The six sections by id - 1. They lie one after another, so that no byte is without meaning.
[[nodiscard]] inline std::vector<section_reader> find_sections(std::span<const std::byte> bytes,
                                                               std::string_view file, std::uint32_t count) {
  const auto bad = [&](std::string_view what, std::uint64_t at) {
    corrupt(error_id::corrupt_bad_value, what, file, at);
  };
  if (count > max_sections || count > (bytes.size() - manifest_header_bytes) / section_entry_bytes)
    bad("a manifest cannot have so many sections", 20);
  std::array<std::optional<section_reader>, known_sections> found;
  std::uint64_t position = manifest_header_bytes + std::uint64_t{count} * section_entry_bytes;
  for (std::uint32_t s = 0; s < count; ++s) {
    const auto entry_at = manifest_header_bytes + std::uint64_t{s} * section_entry_bytes;
    const auto* entry = bytes.data() + entry_at;
    const auto id = column_at<std::uint32_t>(entry, 0);
    const auto flags = column_at<std::uint32_t>(entry, 1);
    const auto offset = column_at<std::uint64_t>(entry, 1);
    const auto size = column_at<std::uint64_t>(entry, 2);
    if (offset != position || size > bytes.size() - position)
      bad("the sections of a manifest do not follow each other within the file", entry_at);
    const auto section = bytes.subspan(offset, size);
    if (digest(section) != column_at<std::uint64_t>(entry, 3))
      corrupt(error_id::corrupt_digest, "a section of a manifest is damaged", file, offset);
    position += size;
    for (; position % 8 != 0; ++position)
      if (position >= bytes.size() || bytes[position] != std::byte{0})
        bad("the padding of a manifest's sections is not zero", position);
    if (id == 0 || id > known_sections) {
      if ((flags & section_required) != 0)
        corrupt(error_id::corrupt_unsupported_feature,
                "this checkpoint needs a section that this version of cairn does not know", file, entry_at,
                {}, std::to_string(id));
      continue;
    }
    if (found[id - 1]) bad("a manifest has a section twice", entry_at);
    found[id - 1].emplace(section, offset, file);
  }
  if (position != bytes.size()) bad("bytes follow the last section of a manifest", position);
  std::vector<section_reader> sections;
  for (auto& section : found) {
    if (!section) bad("a manifest lacks a section", manifest_header_bytes);
    sections.push_back(*section);
  }
  return sections;
}

/// Reads the items section by section; each step checks its counts before it allocates.
class content_reader {
 public:
  content_reader(std::vector<section_reader>& sections, metadata& content, std::uint32_t count)
      : sections_(sections), content_(content), count_(count) {}

  void read() {
    read_items();
    read_grids();
    read_boxes();
    for (const auto& item : content_.items)
      if (const auto* what = chunks_problem(item, content_.world_size))
        section(section_id::items).bad(std::string("an item of a manifest ") + what, item.name);
  }

 private:
  [[nodiscard]] section_reader& section(section_id id) { return sections_[static_cast<std::size_t>(id) - 1]; }
  [[nodiscard]] bool is_grid(std::size_t i) const noexcept {
    return column_at<std::uint8_t>(forms_, i) == static_cast<std::uint8_t>(chunk_form::grid);
  }

  void read_items() {
    auto& in = section(section_id::items);
    const auto* kinds = in.column<std::uint8_t>(count_);
    const auto* types = in.column<std::uint8_t>(count_);
    const auto* flags = in.column<std::uint8_t>(count_);
    const auto* dimensions = in.column<std::uint8_t>(count_);
    forms_ = in.column<std::uint8_t>(count_);
    const auto* reserved = in.column<std::uint8_t>(count_);
    const auto* codecs = in.column<std::uint16_t>(count_);
    in.finish();
    auto& shapes = section(section_id::shapes);
    auto& names = section(section_id::names);
    const auto* name_sizes = names.column<std::uint32_t>(count_);
    content_.items.resize(count_);
    for (std::size_t i = 0; i < count_; ++i) {
      auto& item = content_.items[i];
      const auto name_size = column_at<std::uint32_t>(name_sizes, i);
      if (name_size > max_item_name) names.bad("a name in a manifest is longer than allowed");
      item.name = names.text(name_size);
      if (i != 0 && !(content_.items[i - 1].name < item.name))
        names.bad("the names in a manifest are not sorted, or one is there twice");
      const auto kind = column_at<std::uint8_t>(kinds, i);
      const auto type = column_at<std::uint8_t>(types, i);
      const auto flag = column_at<std::uint8_t>(flags, i);
      const auto rank = column_at<std::uint8_t>(dimensions, i);
      if (kind > static_cast<std::uint8_t>(item_kind::bytes) ||
          type > static_cast<std::uint8_t>(last_dtype) || flag > 1 || rank > extents::max_rank ||
          column_at<std::uint8_t>(reserved, i) != 0)
        in.bad("an item of a manifest has an unknown kind, dtype or flag, or too many dimensions");
      if (column_at<std::uint8_t>(forms_, i) > static_cast<std::uint8_t>(chunk_form::grid))
        in.bad("an item of a manifest has chunks of an unknown form");
      if (const auto codec = column_at<std::uint16_t>(codecs, i); codec != 0)
        in.unsupported("an item is compressed with a codec that this version of cairn does not have", codec);
      item.kind = static_cast<item_kind>(kind);
      item.type = static_cast<dtype>(type);
      item.per_rank = flag != 0;
      const auto* shape = shapes.column<std::int64_t>(rank);
      item.global = extents::filled(rank, 0);
      for (int d = 0; d < rank; ++d) {
        item.global.set(d, column_at<std::int64_t>(shape, static_cast<std::uint64_t>(d)));
        if (item.global[d] < 0) shapes.bad("a shape in a manifest is negative");
      }
      if (const auto* what = item_problem(item)) in.bad(std::string("an item of a manifest ") + what);
    }
    names.finish();
    shapes.finish();
  }

  void read_grids() {
    auto& in = section(section_id::grids);
    std::uint64_t grids = 0;
    std::uint64_t pieces = 0;
    std::uint64_t steps = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      if (!is_grid(i)) continue;
      const auto& item = content_.items[i];
      ++grids;
      pieces += item.per_rank ? 0 : static_cast<std::uint64_t>(item.global.rank());
      steps += item.per_rank ? 1 : static_cast<std::uint64_t>(item.global.rank());
    }
    const auto* first_ranks = in.column<std::int32_t>(grids);
    const auto* counts = in.column<std::uint32_t>(grids);
    const auto* piece_column = in.column<std::int64_t>(pieces);
    const auto* step_column = in.column<std::int32_t>(steps);
    in.finish();
    std::uint64_t total = 0;
    for (std::uint64_t g = 0; g < grids; ++g) total += column_at<std::uint32_t>(counts, g);
    if (total > max_progression_chunks) in.bad("the progressions of a manifest stand for too many chunks");
    std::uint64_t g = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      if (!is_grid(i)) continue;
      auto& item = content_.items[i];
      chunk_grid grid;
      grid.first_rank = column_at<std::int32_t>(first_ranks, g);
      grid.count = column_at<std::uint32_t>(counts, g++);
      const int dimensions = item.per_rank ? 0 : item.global.rank();
      grid.pieces = extents::filled(dimensions, 0);
      for (int d = 0; d < dimensions; ++d, piece_column += 8) {
        grid.pieces.set(d, column_at<std::int64_t>(piece_column, 0));
        if (grid.pieces[d] < 1) in.bad("a progression in a manifest has empty pieces", item.name);
      }
      for (int d = 0; d < (item.per_rank ? 1 : dimensions); ++d, step_column += 4)
        grid.rank_steps[static_cast<std::size_t>(d)] = column_at<std::int32_t>(step_column, 0);
      expand(in, grid, item);
    }
  }

  void expand(const section_reader& in, const chunk_grid& grid, stored_item& item) const {
    const auto fits = item.per_rank ? std::optional{std::int64_t{grid.count}}
                                    : grid_count(item.global, grid.pieces, grid.count);
    if (grid.count == 0 || grid.count > static_cast<std::uint32_t>(content_.world_size) ||
        fits != std::int64_t{grid.count})
      in.bad("a progression in a manifest has another number of chunks than it says", item.name);
    item.chunks.reserve(grid.count);
    grid_cursor cursor(grid, item);
    for (std::uint32_t k = 0; k < grid.count; ++k, cursor.next()) {
      if (cursor.rank() < 0 || cursor.rank() >= content_.world_size)
        in.bad("a progression in a manifest leaves the world", item.name);
      item.chunks.push_back({cursor.box(), static_cast<std::int32_t>(cursor.rank())});
    }
  }

  void read_boxes() {
    auto& in = section(section_id::boxes);
    std::uint64_t items = 0;
    for (std::size_t i = 0; i < count_; ++i) items += !is_grid(i);
    const auto* counts = in.column<std::uint32_t>(items);
    in.align();
    std::uint64_t chunks = 0;
    for (std::uint64_t e = 0; e < items; ++e) chunks += column_at<std::uint32_t>(counts, e);
    const auto* ranks = in.column<std::uint64_t>(chunks);
    std::uint64_t numbers = 0;
    for (std::size_t i = 0, e = 0; i < count_; ++i) {
      if (is_grid(i)) continue;
      const auto& item = content_.items[i];
      const auto each = item.per_rank ? 0 : 2 * static_cast<std::uint64_t>(item.global.rank());
      numbers += each * column_at<std::uint32_t>(counts, e++);
    }
    const auto* boxes = in.column<std::int64_t>(numbers);
    in.finish();
    for (std::size_t i = 0, e = 0; i < count_; ++i) {
      if (is_grid(i)) continue;
      auto& item = content_.items[i];
      const auto count = column_at<std::uint32_t>(counts, e++);
      item.chunks.resize(count);
      for (auto& c : item.chunks) {
        c.rank = column_at<std::int32_t>(ranks, 0);
        if (column_at<std::uint32_t>(ranks, 1) != 0)
          in.bad("a reserved field of a manifest is not zero", item.name);
        ranks += 8;
        c.box = whole(item.global);
        if (item.per_rank) continue;
        for (int d = 0; d < item.global.rank(); ++d, boxes += 8)
          c.box.offsets.set(d, column_at<std::int64_t>(boxes, 0));
        for (int d = 0; d < item.global.rank(); ++d, boxes += 8)
          c.box.sizes.set(d, column_at<std::int64_t>(boxes, 0));
      }
    }
  }

  std::vector<section_reader>& sections_;
  metadata& content_;
  std::size_t count_;
  const std::byte* forms_ = nullptr;
};

}  // namespace detail

/// Reads and checks a manifest: digests, structure, and that its content is that of a checkpoint (names
/// sorted and unique, ranks in their world, chunks inside their tensors and together of their volume; not
/// that they do not overlap, which planners check before they write). Allocates about sixteen times the input
/// at most, apart from the chunks that progressions stand for: no more than one for each item and rank, and
/// max_progression_chunks in all.
/// @throws corrupt_error naming the file and the offset.
[[nodiscard]] inline manifest decode_manifest(std::span<const std::byte> bytes, std::string_view file) {
  manifest m;
  const auto counts = detail::decode_manifest_header(bytes, file, m);
  auto sections = detail::find_sections(bytes, file, counts.sections);

  auto& in = sections[static_cast<std::size_t>(detail::section_id::records) - 1];
  if (m.content.world_size < 1) in.bad("the world size of a manifest is not positive");
  const auto world = static_cast<std::uint64_t>(m.content.world_size);
  const auto* steps = in.column<std::int64_t>(world);
  const auto* attempts = in.column<std::uint64_t>(world);
  const auto* digests = in.column<std::uint64_t>(world);
  const auto* bytes_of_files = in.column<std::uint64_t>(world);
  const auto* ranks = in.column<std::int32_t>(world);
  const auto* files = in.column<std::uint32_t>(world);
  in.finish();
  m.records.resize(world);
  for (std::uint64_t r = 0; r < world; ++r)
    m.records[r] = {
        detail::column_at<std::int64_t>(steps, r),    detail::column_at<std::uint64_t>(attempts, r),
        detail::column_at<std::int32_t>(ranks, r),    detail::column_at<std::uint32_t>(files, r),
        detail::column_at<std::uint64_t>(digests, r), detail::column_at<std::uint64_t>(bytes_of_files, r)};
  if (const auto* what = detail::records_problem(m))
    in.bad(std::string("a manifest holds impossible numbers: ") + what);

  detail::content_reader(sections, m.content, counts.items).read();
  return m;
}

}  // namespace v1
}  // namespace cairn
