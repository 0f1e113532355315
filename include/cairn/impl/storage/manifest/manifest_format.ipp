// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/annotations.hpp>
#include <cairn/model/chunk_codec.hpp>
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_check.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/manifest_items.hpp>
#include <cairn/storage/manifest/manifest_reader.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
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

/// What the definition of an item says: everything but its name.
inline void put_definition(compact_writer& out, const stored_item& item) {
  out.byte(static_cast<std::uint8_t>(item.kind)).byte(static_cast<std::uint8_t>(item.type));
  out.byte(static_cast<std::uint8_t>(item.per_rank)).byte(static_cast<std::uint8_t>(item.global.rank()));
  out.number(std::uint64_t{item.codec});
  for (const auto size : item.global) out.number(size);
  // As a reader will put them together, so that what was read is written as it was.
  if (item.chunks.is_joined())
    encode(out, item.chunks);
  else
    encode(out, item.chunks.joined());
}

/// A table of offsets from the beginning of the section, and the parts behind it.
inline void put_table(wire_writer& out, const std::vector<std::size_t>& begins,
                      std::span<const std::byte> parts) {
  const auto first = out.size() + sizeof(std::uint32_t) * begins.size();
  if (first + parts.size() > UINT32_MAX)
    fail(error_id::storage_limit, "a section of a manifest is longer than 4 GiB");
  for (const auto begin : begins) out.put(static_cast<std::uint32_t>(first + begin));
  out.raw(parts);
}

[[nodiscard]] inline std::array<std::vector<std::byte>, known_sections> manifest_sections(const manifest& m) {
  compact_writer names;
  compact_writer definitions;
  std::vector<std::size_t> blocks;
  std::vector<std::size_t> begins;
  std::unordered_map<std::string, std::uint64_t> known;
  std::uint64_t shared = 0;
  std::string_view before;
  for (std::size_t i = 0; i < m.content.items.size(); ++i) {
    const auto& item = m.content.items[i];
    if (i % names_in_block == 0) {
      blocks.push_back(names.size());
      names.number(static_cast<std::uint64_t>(item.name.size())).raw(item.name);
    } else {
      const auto kept = static_cast<std::size_t>(
          std::mismatch(before.begin(), before.end(), item.name.begin(), item.name.end()).first -
          before.begin());
      names.number(static_cast<std::uint64_t>(kept));
      names.number(static_cast<std::uint64_t>(item.name.size() - kept));
      names.raw(std::string_view(item.name).substr(kept));
    }
    before = item.name;
    compact_writer definition;
    put_definition(definition, item);
    const auto view = definition.view();
    std::string text(reinterpret_cast<const char*>(view.data()), view.size());
    auto found = known.find(text);
    if (found != known.end()) {
      shared += item.chunks.progressions();
      if (shared > max_shared_progressions) known.erase(found), found = known.end();
    }
    if (found == known.end()) {
      found = known.emplace(std::move(text), begins.size()).first;
      begins.push_back(definitions.size());
      definitions.raw(view);
    }
    names.number(found->second);
  }
  wire_writer named;
  put_table(named, blocks, names.view());
  wire_writer defined;
  defined.put(static_cast<std::uint32_t>(begins.size()));
  put_table(defined, begins, definitions.view());
  compact_writer said;
  if (m.content.state_version != 0 || !m.content.annotations.empty()) {
    said.number(m.content.state_version);
    encode(said, m.content.annotations);
  }
  return {named.take(), defined.take(), encode_records(m.records), said.take()};
}

/// What manifest_sections() put into the last section.
inline void read_said(const section_reader& section, metadata& content, std::string_view file) {
  if (section.bytes().empty()) return;
  try {
    compact_reader in(section.bytes());
    content.state_version = in.signed_number();
    content.annotations = decode_annotations(in);
    in.finish();
  } catch (const wire_error& e) {
    fail(error_id::corrupt_bad_value,
         std::string("what a manifest says of its checkpoint is damaged: ") + e.what(),
         {.file = std::string(file), .offset = static_cast<std::int64_t>(section.begin() + e.offset)});
  }
}

}  // namespace detail

CAIRN_BODY std::vector<std::byte> encode_manifest(const manifest& m, std::uint64_t max_bytes) {
  if (const auto* what = detail::records_problem(m))
    fail(error_id::plan_bad_message, std::string("a manifest cannot be written: ") + what);
  if (const auto problem = detail::find_problem(m.content); problem.what != nullptr)
    fail(error_id::plan_bad_message,
         std::string("a manifest cannot be written: one of its items ") + problem.what,
         {.item = m.content.items[problem.item].name});
  if (m.content.items.size() > UINT32_MAX)
    fail(error_id::storage_limit, "a manifest cannot hold more than 2^32 - 1 items");
  if (m.content.state_version < 0)
    fail(error_id::plan_bad_message, "a manifest cannot be written: the version of its state is negative");
  const auto all = detail::manifest_sections(m);
  const std::span sections(all.data(), all.back().empty() ? detail::required_sections : all.size());
  std::uint64_t bytes = detail::manifest_header_bytes;
  for (const auto& s : sections) bytes += detail::section_entry_bytes + detail::aligned_8(s.size());
  if (bytes > max_bytes)
    fail(error_id::storage_limit,
         "the list of what the checkpoint holds is longer than readers take: give its " +
             std::to_string(m.content.items.size()) + " items shorter names, or join small tensors",
         {.expected = "at most " + std::to_string(max_bytes) + " bytes",
          .got = std::to_string(bytes) + " bytes"});

  wire_writer body;
  std::uint64_t at = detail::manifest_header_bytes + sections.size() * detail::section_entry_bytes;
  for (std::size_t s = 0; s < sections.size(); ++s) {
    body.put(static_cast<std::uint32_t>(detail::first_section + s));
    body.put(s < detail::required_sections ? detail::section_required : 0u);
    body.put(at).put(static_cast<std::uint64_t>(sections[s].size())).put(digest(sections[s]));
    at += detail::aligned_8(sections[s].size());
  }
  for (const auto& section : sections) {
    body.raw(section);
    detail::align_8(body);
  }
  wire_writer out;
  out.raw(std::as_bytes(std::span{detail::manifest_magic.data(), detail::manifest_magic.size()}));
  out.put(detail::manifest_major);
  out.put(sections.size() > detail::required_sections ? detail::manifest_minor : std::uint16_t{0});
  const bool placed = !(m.placement == file_placement{});
  out.put(placed ? detail::feature_placement : 0U).put(std::uint32_t{0});  // required, optional features
  out.put(static_cast<std::uint32_t>(sections.size())).put(at);
  out.put(m.run.high).put(m.run.low).put(m.step).put(m.attempt).put(m.plan_digest).put(m.unix_time);
  out.put(m.content.world_size).put(static_cast<std::uint32_t>(m.content.items.size()));
  out.put(digest(body.view()));
  out.put(placed ? m.placement.ranks_per_file : 0).put(placed ? m.placement.ranks_per_directory : 0);
  for (int i = 0; i < 2; ++i) out.put(std::uint64_t{0});
  out.put(digest(out.view()));
  out.raw(body.view());
  return out.take();
}

namespace detail {

CAIRN_BODY manifest read_manifest(std::span<const std::byte> bytes, std::string_view file,
                                  std::vector<std::byte>* owned) {
  manifest m;
  const auto counts = decode_manifest_header(bytes, file, m);
  const auto sections = find_sections(bytes, file, counts.sections);
  m.records = decode_records(sections[2], m.content.world_size);
  if (const auto* what = records_problem(m))
    sections[2].bad(std::string("a manifest holds impossible numbers: ") + what);
  const bool later = owned != nullptr;
  auto items = std::make_unique<manifest_items>(sections[0], sections[1], counts.items, m.content.world_size,
                                                file, later ? std::move(*owned) : std::vector<std::byte>());
  if (!later) items->check_definitions();
  m.codecs = items->codecs();
  read_said(sections[3], m.content, file);
  m.content.committed_at = m.unix_time;
  m.content.items = stored_items(std::move(items));
  if (!later) m.content.items = stored_items(m.content.items);
  return m;
}

}  // namespace detail

CAIRN_BODY manifest open_manifest(std::vector<std::byte> bytes, std::string_view file) {
  const std::span<const std::byte> view(bytes);  // stays where it is when the vector moves
  return detail::read_manifest(view, file, &bytes);
}

}  // namespace v1
}  // namespace cairn
