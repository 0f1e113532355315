// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/digest.hpp>
#include <cairn/model/error.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/wire.hpp>
#include <cairn/storage/chunk_grid.hpp>
#include <cairn/storage/manifest.hpp>
#include <cairn/storage/manifest_check.hpp>
#include <cairn/storage/manifest_reader.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {

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

inline void put_boxes(manifest_columns& c, const stored_item& item, const std::vector<stored_chunk>& chunks) {
  c.box_counts.put(static_cast<std::uint32_t>(chunks.size()));
  for (const auto& chunk : chunks) {
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
    const auto chunks = item.chunks.sorted();
    auto grid = find_grid(item, chunks, m.content.world_size);
    if (grid && grid->count > max_progression_chunks - progression_chunks) grid.reset();
    c.kinds.put(item.kind), c.types.put(item.type);
    c.flags.put(static_cast<std::uint8_t>(item.per_rank));
    c.dimensions.put(static_cast<std::uint8_t>(item.global.rank()));
    c.forms.put(grid ? chunk_form::grid : chunk_form::boxes);
    c.reserved.put(std::uint8_t{0});
    c.codecs.put(item.codec);
    for (const auto size : item.global) c.shapes.put(size);
    if (grid) {
      progression_chunks += grid->count;
      put_grid(c, item, *grid);
    } else {
      put_boxes(c, item, chunks);
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
