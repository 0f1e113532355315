// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/digest.hpp>
#include <cairn/model/error.hpp>
#include <cairn/model/wire.hpp>
#include <cairn/storage/chunk_grid.hpp>
#include <cairn/storage/corrupt.hpp>
#include <cairn/storage/manifest.hpp>
#include <cairn/storage/manifest_check.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
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
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t begin() const noexcept { return begin_; }
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
  std::uint16_t version = 0;
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
  if (version != 1 && version != manifest_major)
    corrupt(error_id::corrupt_unsupported_version,
            "this manifest was written by another major version of cairn; use that version to read it", file,
            8, "1 or " + std::to_string(manifest_major), std::to_string(version));
  const auto required = in.get<std::uint32_t>();
  if ((required & ~feature_placement) != 0)
    corrupt(error_id::corrupt_unsupported_feature,
            "this checkpoint needs a feature that this version of cairn does not have", file, 12, {},
            std::to_string(required));
  (void)in.get<std::uint32_t>();
  manifest_counts counts;
  counts.version = version;
  counts.sections = in.get<std::uint32_t>();
  const auto total = in.get<std::uint64_t>();
  m.run.high = in.get<std::uint64_t>(), m.run.low = in.get<std::uint64_t>();
  m.step = in.get<std::int64_t>(), m.attempt = in.get<std::uint64_t>();
  m.plan_digest = in.get<std::uint64_t>(), m.unix_time = in.get<std::int64_t>();
  m.content.world_size = in.get<std::int32_t>();
  counts.items = in.get<std::uint32_t>();
  const auto body_digest = in.get<std::uint64_t>();
  m.placement = {};
  if ((required & feature_placement) != 0) {
    m.placement.ranks_per_file = in.get<std::int32_t>();
    m.placement.ranks_per_directory = in.get<std::int32_t>();
    if (m.placement.ranks_per_file < 1 || m.placement.ranks_per_file > max_ranks_per_file ||
        m.placement.ranks_per_directory < 0 || m.placement == file_placement{})
      corrupt(error_id::corrupt_bad_value, "a manifest places its files in an impossible way", file, 96);
  }
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

/// The `known` sections of a version, by id - first. They lie one after another, so that no byte is without
/// meaning.
[[nodiscard]] inline std::vector<section_reader> find_sections(std::span<const std::byte> bytes,
                                                               std::string_view file, std::uint32_t count,
                                                               std::uint32_t first, std::size_t known) {
  const auto bad = [&](std::string_view what, std::uint64_t at) {
    corrupt(error_id::corrupt_bad_value, what, file, at);
  };
  if (count > max_sections || count > (bytes.size() - manifest_header_bytes) / section_entry_bytes)
    bad("a manifest cannot have so many sections", 20);
  std::vector<std::optional<section_reader>> found(known);
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
    if (id < first || id - first >= known) {
      if ((flags & section_required) != 0)
        corrupt(error_id::corrupt_unsupported_feature,
                "this checkpoint needs a section that this version of cairn does not know", file, entry_at,
                {}, std::to_string(id));
      continue;
    }
    if (found[id - first]) bad("a manifest has a section twice", entry_at);
    found[id - first].emplace(section, offset, file);
  }
  if (position != bytes.size()) bad("bytes follow the last section of a manifest", position);
  std::vector<section_reader> sections;
  for (auto& section : found) {
    if (!section) bad("a manifest lacks a section", manifest_header_bytes);
    sections.push_back(*section);
  }
  return sections;
}

/// Reads the items of version 1 section by section; each step checks its counts before it allocates.
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
      item.codec = column_at<std::uint16_t>(codecs, i);
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
    std::vector<stored_chunk> chunks;
    chunks.reserve(grid.count);
    grid_cursor cursor(grid, item);
    for (std::uint32_t k = 0; k < grid.count; ++k, cursor.next()) {
      if (cursor.rank() < 0 || cursor.rank() >= content_.world_size)
        in.bad("a progression in a manifest leaves the world", item.name);
      chunks.push_back({cursor.box(), static_cast<std::int32_t>(cursor.rank())});
    }
    item.chunks = chunk_set::from(chunks);
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
      std::vector<stored_chunk> own(count);
      std::int32_t before = -1;
      for (auto& c : own) {
        c.rank = column_at<std::int32_t>(ranks, 0);
        if (column_at<std::uint32_t>(ranks, 1) != 0)
          in.bad("a reserved field of a manifest is not zero", item.name);
        ranks += 8;
        c.box = whole(item.global);
        if (item.per_rank) {
          if (c.rank <= before) in.bad("an item of a manifest names a rank twice or out of order", item.name);
          before = c.rank;
          continue;
        }
        for (int d = 0; d < item.global.rank(); ++d, boxes += 8)
          c.box.offsets.set(d, column_at<std::int64_t>(boxes, 0));
        for (int d = 0; d < item.global.rank(); ++d, boxes += 8)
          c.box.sizes.set(d, column_at<std::int64_t>(boxes, 0));
      }
      item.chunks = chunk_set::from(own);
    }
  }

  std::vector<section_reader>& sections_;
  metadata& content_;
  std::size_t count_;
  const std::byte* forms_ = nullptr;
};

}  // namespace detail

}  // namespace v1
}  // namespace cairn
