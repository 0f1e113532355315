// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/metadata.hpp>
#include <cairn/model/record.hpp>
#include <cairn/storage/manifest/corrupt.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_reader.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/vector.hpp>
#include <cairn/system/wire.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::string_view section_reader::text(std::uint64_t size) {
  if (size > left()) bad("a section of a manifest is too short for its names");
  return {reinterpret_cast<const char*>(take(size)), static_cast<std::size_t>(size)};
}

CAIRN_BODY void section_reader::finish() const {
  if (left() != 0) bad("a section of a manifest is longer than its columns");
}

CAIRN_BODY void section_reader::unsupported(std::string_view what, std::uint64_t number) const {
  corrupt(error_id::corrupt_unsupported_feature, what, file_, begin_ + at_, {}, std::to_string(number));
}

CAIRN_BODY void section_reader::bad(std::string_view what, std::string_view item) const {
  fail(error_id::corrupt_bad_value, what,
       {.item = std::string(item),
        .file = std::string(file_),
        .offset = static_cast<std::int64_t>(begin_ + at_)});
}

CAIRN_BODY const std::byte* section_reader::take(std::uint64_t size) noexcept {
  const auto* from = bytes_.data() + at_;
  at_ += static_cast<std::size_t>(size);
  return from;
}

CAIRN_BODY manifest_counts decode_manifest_header(std::span<const std::byte> bytes, std::string_view file,
                                                  manifest& m) {
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
  const auto required = in.get<std::uint32_t>();
  if ((required & ~feature_placement) != 0)
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

CAIRN_BODY vector<section_reader> find_sections(std::span<const std::byte> bytes, std::string_view file,
                                                std::uint32_t count) {
  const auto bad = [&](std::string_view what, std::uint64_t at) {
    corrupt(error_id::corrupt_bad_value, what, file, at);
  };
  if (count > max_sections || count > (bytes.size() - manifest_header_bytes) / section_entry_bytes)
    bad("a manifest cannot have so many sections", 20);
  vector<owned<section_reader>> found(known_sections);
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
    if (id < first_section || id - first_section >= known_sections) {
      if ((flags & section_required) != 0)
        corrupt(error_id::corrupt_unsupported_feature,
                "this checkpoint needs a section that this version of cairn does not know", file, entry_at,
                {}, std::to_string(id));
      continue;
    }
    if (found[id - first_section]) bad("a manifest has a section twice", entry_at);
    found[id - first_section] = make_owned<section_reader>(section, offset, file);
  }
  if (position != bytes.size()) bad("bytes follow the last section of a manifest", position);
  vector<section_reader> sections;
  for (std::size_t s = 0; s < found.size(); ++s) {
    if (!found[s] && s < required_sections) bad("a manifest lacks a section", manifest_header_bytes);
    sections.push_back(found[s] ? *found[s] : section_reader(std::span<const std::byte>(), position, file));
  }
  return sections;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
