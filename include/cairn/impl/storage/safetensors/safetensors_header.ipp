// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/json_text.hpp>
#include <cairn/storage/manifest/corrupt.hpp>
#include <cairn/storage/safetensors/safetensors_entry.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/storage/safetensors/safetensors_parser.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/json_parser.hpp>
#include <cairn/system/vector.hpp>

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
namespace detail {

inline constexpr std::string_view sharding_info_key = "DCP_SHARDING_INFO";

CAIRN_BODY void append_json(std::string& out, const extents& numbers) {
  out += '[';
  for (int d = 0; d < numbers.rank(); ++d) {
    if (d != 0) out += ',';
    append_json(out, numbers[d]);
  }
  out += ']';
}

/// A key that two entries have; null: each has its own. Digests are compared instead of keys, which begin
/// alike.
[[nodiscard]] inline const std::string* key_used_twice(const std::vector<safetensors_entry>& entries) {
  vector<std::pair<std::uint64_t, const std::string*>> keys;
  keys.reserve(entries.size());
  for (const auto& e : entries) keys.push_back({digest(e.key), &e.key});
  detail::sort(keys, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : *a.second < *b.second;
  });
  const auto twice = std::adjacent_find(keys.begin(), keys.end(), [](const auto& a, const auto& b) {
    return a.first == b.first && *a.second == *b.second;
  });
  return twice == keys.end() ? nullptr : twice->second;
}

[[nodiscard]] inline std::string sharding_info(const safetensors_header& header) {
  std::string text = "{";
  for (const auto& e : header.entries) {
    if (text.size() > 1) text += ',';
    append_json(text, e.key);
    text.append(":{\"saved_offsets\":");
    append_json(text, e.sharded ? e.saved_offsets : extents::filled(e.shape.rank(), 0));
    text.append(",\"global_shape\":");
    append_json(text, e.sharded ? e.global_shape : e.shape);
    text += '}';
  }
  return text + "}";
}

}  // namespace detail

CAIRN_BODY std::vector<std::byte> encode_safetensors_header(const safetensors_header& header,
                                                            std::uint64_t alignment) {
  std::uint64_t position = 0;
  bool sharded = false;
  std::size_t key_bytes = 0;
  for (const auto& e : header.entries) {
    const auto bytes = checked_bytes(e.type, e.shape);
    if (!bytes || e.begin != position || e.end < e.begin || e.end - e.begin != *bytes ||
        e.key == "__metadata__" || (e.sharded && !inside({e.saved_offsets, e.shape}, e.global_shape)))
      fail(error_id::usage_bad_shape,
           "a tensor does not lie in its file and its global tensor as its shape says",
           {.item = e.key,
            .expected = "a begin of " + std::to_string(position),
            .got = std::to_string(e.begin) + " to " + std::to_string(e.end)});
    position = e.end;
    sharded |= e.sharded;
    key_bytes += e.key.size();
  }
  if (const auto* const twice = detail::key_used_twice(header.entries))
    fail(error_id::usage_duplicate_name, "a file cannot hold two tensors of one key", {.item = *twice});

  std::string text(8, '\0');
  text.reserve(key_bytes + header.entries.size() * 100 + alignment);
  text += '{';
  const auto next = [&] {
    if (text.back() != '{') text += ',';
  };
  if (sharded || !header.metadata.empty()) {
    text.append("\"__metadata__\":{");
    const auto pair = [&](std::string_view key, std::string_view value) {
      next();
      detail::append_json(text, key);
      text += ':';
      detail::append_json(text, value);
    };
    const auto given = [&](std::string_view key) {
      return std::count_if(header.metadata.begin(), header.metadata.end(),
                           [&](const auto& p) { return p.first == key; });
    };
    for (const auto& [key, value] : header.metadata) {
      if (key == detail::sharding_info_key || given(key) > 1)
        fail(error_id::usage_duplicate_name, "this key of __metadata__ is given twice or made by cairn",
             {.item = key});
      pair(key, value);
    }
    if (sharded) {
      pair(detail::sharding_info_key, detail::sharding_info(header));
      if (given("DCP_VERSION") == 0) pair("DCP_VERSION", "1.0");
      if (given("format") == 0) pair("format", "pt");
    }
    text += '}';
  }
  for (const auto& e : header.entries) {
    next();
    detail::append_json(text, e.key);
    text.append(":{\"dtype\":\"").append(name_of(e.type)).append("\",\"shape\":");
    detail::append_json(text, e.shape);
    text.append(",\"data_offsets\":[");
    detail::append_json(text, e.begin);
    text += ',';
    detail::append_json(text, e.end);
    text.append("]}");
  }
  text += '}';
  if (alignment > 1) {
    const auto over = text.size() % alignment;
    if (over != 0) text.append(alignment - over, ' ');
  }
  const std::uint64_t length = text.size() - 8;
  if (length > max_safetensors_json)
    fail(error_id::storage_limit, "a file has so many tensors that its header exceeds what readers accept",
         {.expected = "at most 100000000 bytes", .got = std::to_string(length)});
  std::memcpy(text.data(), &length, 8);
  const auto bytes = std::as_bytes(std::span{text.data(), text.size()});
  return {bytes.begin(), bytes.end()};
}

CAIRN_BODY std::uint64_t safetensors_header_bytes(std::span<const std::byte> first_8_bytes,
                                                  std::uint64_t file_bytes, std::string_view file) {
  if (first_8_bytes.size() < 8 || file_bytes < 8)
    detail::corrupt(error_id::corrupt_truncated, "a safetensors file is shorter than eight bytes", file, 0,
                    {}, std::to_string(std::min<std::uint64_t>(first_8_bytes.size(), file_bytes)));
  std::uint64_t length = 0;
  std::memcpy(&length, first_8_bytes.data(), 8);
  if (length > max_safetensors_json)
    detail::corrupt(error_id::corrupt_bad_value, "the header of a safetensors file is longer than allowed",
                    file, 0, "at most 100000000 bytes", std::to_string(length));
  if (length > file_bytes - 8)
    detail::corrupt(error_id::corrupt_truncated, "a safetensors file ends within its header", file, 8,
                    std::to_string(length) + " bytes", std::to_string(file_bytes - 8));
  return 8 + length;
}

namespace detail {

/// Gives entries their places; keys of both sides must be the same.
inline void apply_sharding_info(std::vector<safetensors_entry>& entries, std::string_view text,
                                std::string_view file) {
  const auto bad = [&](std::string_view what, std::string_view item) {
    fail(error_id::corrupt_bad_json, "the DCP_SHARDING_INFO of a safetensors file " + std::string(what),
         {.item = std::string(item), .file = std::string(file), .offset = 8});
  };
  sharding_events events;
  if (text.empty() || text.front() != '{') bad("is not a JSON object", {});
  if (const auto problem = parse_json(text, events); problem.what != nullptr) bad(problem.what, {});
  std::vector<safetensors_entry*> by_key;
  by_key.reserve(entries.size());
  for (auto& e : entries) by_key.push_back(&e);
  detail::sort(by_key, [](const auto* a, const auto* b) { return a->key < b->key; });
  for (auto& place : events.places) {
    const auto found = std::lower_bound(by_key.begin(), by_key.end(), place.key,
                                        [](const auto* e, const std::string& key) { return e->key < key; });
    if (found == by_key.end() || (*found)->key != place.key)
      bad("names a tensor that is not there", place.key);
    auto& e = **found;
    if (e.sharded) bad("names a tensor twice", place.key);
    if (place.offsets.rank() != e.shape.rank())
      bad("gives offsets of another number of dimensions", place.key);
    if (!place.has_global) {
      place.global = e.shape;
      for (int d = 0; d < e.shape.rank(); ++d) {
        std::int64_t last = 0;
        if (__builtin_add_overflow(e.shape[d], place.offsets[d], &last))
          bad("gives an offset above 2^63 - 1", place.key);
        place.global.set(d, last);
      }
    }
    if (!inside({place.offsets, e.shape}, place.global) || !checked_bytes(e.type, place.global))
      bad("puts a tensor outside of its global shape", place.key);
    e.saved_offsets = place.offsets;
    e.global_shape = place.global;
    e.sharded = true;
  }
  if (events.places.size() != entries.size()) bad("lacks a tensor of the file", {});
}

}  // namespace detail

CAIRN_BODY safetensors_header decode_safetensors_header(std::span<const std::byte> first_bytes,
                                                        std::uint64_t file_bytes, std::string_view file) {
  using detail::corrupt;
  const auto header_bytes = safetensors_header_bytes(first_bytes, file_bytes, file);
  if (first_bytes.size() < header_bytes)
    corrupt(error_id::corrupt_truncated, "the header of a safetensors file is not there as a whole", file,
            first_bytes.size(), std::to_string(header_bytes) + " bytes", std::to_string(first_bytes.size()));
  std::string_view text(reinterpret_cast<const char*>(first_bytes.data()) + 8, header_bytes - 8);
  if (text.empty() || text.front() != '{')
    corrupt(error_id::corrupt_bad_json, "the header of a safetensors file does not begin with '{'", file, 8);
  text = text.substr(0, text.find_last_not_of(' ') + 1);
  detail::safetensors_events events;
  if (const auto problem = detail::parse_json(text, events); problem.what != nullptr)
    fail(error_id::corrupt_bad_json, "the header of a safetensors file " + std::string(problem.what),
         {.item = events.last_key(),
          .file = std::string(file),
          .offset = static_cast<std::int64_t>(8 + problem.offset),
          .got = events.unknown_dtype});
  if (text.back() != '}')
    corrupt(error_id::corrupt_bad_json, "the header of a safetensors file is padded with more than spaces",
            file, 8 + text.size() - 1);

  safetensors_header header;
  header.entries = std::move(events.entries);
  std::vector<std::string_view> keys;
  keys.reserve(header.entries.size());
  for (const auto& e : header.entries) keys.push_back(e.key);
  const auto refuse_twice = [&] {
    detail::sort(keys);
    if (const auto twice = std::adjacent_find(keys.begin(), keys.end()); twice != keys.end())
      fail(error_id::corrupt_bad_json, "the header of a safetensors file has a key twice",
           {.item = std::string(*twice), .file = std::string(file), .offset = 8});
  };
  refuse_twice();
  keys.clear();
  for (const auto& [key, value] : events.metadata) keys.push_back(key);
  refuse_twice();

  // Texts in file order keep their order, also of empty tensors, which share an offset with what follows.
  const auto place = [](const safetensors_entry& e) { return std::pair(e.begin, e.end); };
  const auto& entries = header.entries;
  if (!std::is_sorted(entries.begin(), entries.end(),
                      [&](const auto& a, const auto& b) { return place(a) < place(b); }))
    detail::sort(header.entries, [&](const auto& a, const auto& b) {
      return place(a) != place(b) ? place(a) < place(b) : a.key < b.key;
    });
  const auto data_bytes = file_bytes - header_bytes;
  std::uint64_t position = 0;
  for (const auto& e : header.entries) {
    const auto bytes = checked_bytes(e.type, e.shape);
    const auto bad = [&](std::string_view what, std::string expected, std::string got) {
      fail(error_id::corrupt_bad_value, what,
           {.item = e.key,
            .file = std::string(file),
            .offset = 8,
            .expected = std::move(expected),
            .got = std::move(got)});
    };
    if (!bytes) bad("the size of a tensor overflows or is no number of whole bytes", {}, to_string(e.shape));
    if (e.begin != position)
      bad("the tensors of a safetensors file leave a hole or overlap", std::to_string(position),
          std::to_string(e.begin));
    if (e.end < e.begin || e.end - e.begin != *bytes)
      bad("the data_offsets of a tensor do not fit its shape", std::to_string(*bytes) + " bytes",
          std::to_string(e.begin) + " to " + std::to_string(e.end));
    if (e.end > data_bytes)
      bad("a tensor lies outside of its safetensors file", "at most " + std::to_string(data_bytes),
          std::to_string(e.end));
    position = e.end;
  }
  if (position != data_bytes)
    corrupt(error_id::corrupt_size_mismatch, "a safetensors file is longer than its tensors", file,
            header_bytes + position, std::to_string(header_bytes + position) + " bytes",
            std::to_string(file_bytes));

  const auto sharding = detail::find_if(
      events.metadata, [](const auto& pair) { return pair.first == detail::sharding_info_key; });
  if (sharding != events.metadata.end()) {
    detail::apply_sharding_info(header.entries, sharding->second, file);
    events.metadata.erase(sharding);
  }
  header.metadata = std::move(events.metadata);
  return header;
}

}  // namespace v1
}  // namespace cairn
