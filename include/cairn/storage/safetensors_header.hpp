// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/storage/corrupt.hpp>
#include <cairn/storage/json_parser.hpp>

#include <algorithm>
#include <array>
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

// The header of a safetensors file: eight bytes with the length N of the JSON text (little-endian), N bytes
// of JSON padded with spaces, then the data. docs/format.md says what cairn adds.

/// One tensor of a safetensors file.
struct safetensors_entry {
  std::string key;
  dtype type = dtype::u8;
  extents shape;
  std::uint64_t begin = 0;  ///< of its bytes in the data, which follows the header
  std::uint64_t end = 0;
  // Its place in the global tensor, where DCP_SHARDING_INFO says it.
  extents saved_offsets;
  extents global_shape;
  bool sharded = false;
  friend bool operator==(const safetensors_entry&, const safetensors_entry&) = default;
};

struct safetensors_header {
  std::vector<safetensors_entry> entries;  ///< in the order of their bytes
  /// Further pairs of `__metadata__`; not DCP_SHARDING_INFO, which the entries hold.
  std::vector<std::pair<std::string, std::string>> metadata;
};

/// The most bytes of JSON that readers of the format accept.
inline constexpr std::uint64_t max_safetensors_json = 100'000'000;

namespace detail {

inline constexpr std::string_view sharding_info_key = "DCP_SHARDING_INFO";

/// Appends a JSON string with its quotes. @pre `text` is UTF-8.
inline void append_json(std::string& out, std::string_view text) {
  out += '"';
  std::size_t plain = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out.append(text.substr(plain, i - plain));
    plain = i + 1;
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else {
      constexpr std::string_view digits = "0123456789abcdef";
      out.append("\\u00");
      out += digits[c >> 4];
      out += digits[c & 15];
    }
  }
  out.append(text.substr(plain));
  out += '"';
}
inline void append_json(std::string& out, const extents& numbers) {
  out += '[';
  for (int d = 0; d < numbers.rank(); ++d) {
    if (d != 0) out += ',';
    out.append(std::to_string(numbers[d]));
  }
  out += ']';
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

/// The header of a file whose data holds `entries` back to back, padded so that the data begins at a multiple
/// of `alignment`. If any entry is sharded, `__metadata__` tells PyTorch's reader the place of every entry
/// (one that is not sharded is a whole tensor), with "DCP_VERSION" and "format" unless `metadata` gives them.
/// Keys and metadata must be UTF-8. About 1 us for each entry.
/// @throws usage_error if the entries leave a hole or have a size that is not that of their shape, or if a
/// key is used twice; storage_error (storage_limit) if the text is longer than the format allows.
[[nodiscard]] inline std::vector<std::byte> encode_safetensors_header(const safetensors_header& header,
                                                                      std::uint64_t alignment = 4096) {
  std::uint64_t position = 0;
  bool sharded = false;
  std::vector<std::string_view> keys;
  keys.reserve(header.entries.size());
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
    keys.push_back(e.key);
  }
  std::sort(keys.begin(), keys.end());
  if (const auto twice = std::adjacent_find(keys.begin(), keys.end()); twice != keys.end())
    fail(error_id::usage_duplicate_name, "a file cannot hold two tensors of one key",
         {.item = std::string(*twice)});

  std::string text(8, '\0');
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
    text.append(",\"data_offsets\":[").append(std::to_string(e.begin)).append(",");
    text.append(std::to_string(e.end)).append("]}");
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

/// Bytes of the header of a file of `file_bytes`, from its first eight. @throws corrupt_error if the file is
/// too short for it or the length is above 100,000,000.
[[nodiscard]] inline std::uint64_t safetensors_header_bytes(std::span<const std::byte> first_8_bytes,
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

/// Collects an array of at most eight numbers.
class number_list {
 public:
  void begin() noexcept { size_ = 0; }
  [[nodiscard]] bool add(std::uint64_t value) noexcept {
    if (size_ == values_.size()) return false;
    values_[size_++] = value;
    return true;
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint64_t operator[](std::size_t i) const noexcept { return values_[i]; }
  /// False if a number is above 2^63 - 1.
  [[nodiscard]] bool to_extents(extents& out) const {
    out = extents::filled(static_cast<int>(size_), 0);
    for (std::size_t i = 0; i < size_; ++i) {
      if (values_[i] > INT64_MAX) return false;
      out.set(static_cast<int>(i), static_cast<std::int64_t>(values_[i]));
    }
    return true;
  }

 private:
  std::array<std::uint64_t, extents::max_rank> values_{};
  std::size_t size_ = 0;
};

/// The header's JSON: {"__metadata__": {text: text}, key: {"dtype": text, "shape": [..], "data_offsets":
/// [b, e]}}.
class safetensors_events final : public json_events {
 public:
  std::vector<safetensors_entry> entries;
  std::vector<std::pair<std::string, std::string>> metadata;
  bool has_metadata = false;

  const char* begin_object() override {
    if (++depth_ > 2 || (depth_ == 2 && in_array_)) return "has an object where none belongs";
    if (depth_ == 2 && !in_metadata_) seen_ = 0, field_ = field::none;
    return nullptr;
  }
  const char* key(std::string_view text) override {
    if (depth_ == 1) {
      in_metadata_ = text == "__metadata__";
      if (in_metadata_) {
        if (has_metadata) return "has __metadata__ twice";
        has_metadata = true;
      } else {
        entries.emplace_back().key = text;
      }
      return nullptr;
    }
    if (in_metadata_) {
      metadata.emplace_back(text, std::string_view{});
      return nullptr;
    }
    field_ = text == "dtype"          ? field::dtype
             : text == "shape"        ? field::shape
             : text == "data_offsets" ? field::offsets
                                      : field::none;
    if (field_ == field::none) return "describes a tensor with an unknown field";
    const auto bit = 1u << static_cast<unsigned>(field_);
    if ((seen_ & bit) != 0) return "describes a tensor with a field twice";
    seen_ |= bit;
    return nullptr;
  }
  const char* end_object() override {
    if (depth_-- == 2 && !in_metadata_ && seen_ != all_fields)
      return "describes a tensor without dtype, shape or data_offsets";
    return nullptr;
  }
  const char* begin_array() override {
    if (depth_ != 2 || in_metadata_ || in_array_ || (field_ != field::shape && field_ != field::offsets))
      return "has an array where none belongs";
    in_array_ = true;
    numbers_.begin();
    return nullptr;
  }
  const char* end_array() override {
    in_array_ = false;
    auto& e = entries.back();
    if (field_ == field::shape)
      return numbers_.to_extents(e.shape) ? nullptr : "has a dimension above 2^63 - 1";
    if (numbers_.size() != 2) return "has data_offsets that are not two numbers";
    e.begin = numbers_[0];
    e.end = numbers_[1];
    return nullptr;
  }
  const char* string(std::string_view text) override {
    if (depth_ != 2 || in_array_) return "has a text where none belongs";
    if (in_metadata_) {
      metadata.back().second = text;
      return nullptr;
    }
    if (field_ != field::dtype) return "has a text where none belongs";
    const auto type = dtype_from_name(text);
    if (!type) return "has a tensor of an unknown dtype";
    entries.back().type = *type;
    return nullptr;
  }
  const char* number(std::uint64_t value) override {
    if (!in_array_) return "has a number where none belongs";
    if (!numbers_.add(value)) return "has a tensor of more than eight dimensions";
    return nullptr;
  }
  const char* other() override {
    return in_array_ ? "has a shape or offset that is not a plain integer"
                     : "has a value of a type that does not belong there";
  }

 private:
  enum class field : unsigned { none = 0, dtype, shape, offsets };
  static constexpr unsigned all_fields = 0b1110;
  number_list numbers_;
  int depth_ = 0;
  unsigned seen_ = 0;
  field field_ = field::none;
  bool in_metadata_ = false;
  bool in_array_ = false;
};

/// The text of DCP_SHARDING_INFO: {key: {"saved_offsets": [..], "global_shape": [..], ...}}. Up to sixteen
/// unknown fields of an entry are skipped where they hold no objects.
class sharding_events final : public json_events {
 public:
  struct place {
    std::string key;
    extents offsets;
    extents global;
    bool has_offsets = false;
    bool has_global = false;
  };
  std::vector<place> places;

  const char* begin_object() override {
    unknown_.clear();
    return ++depth_ > 2 ? "has an object where none belongs" : nullptr;
  }
  const char* key(std::string_view text) override {
    if (depth_ == 1) {
      places.emplace_back().key = text;
      return nullptr;
    }
    offsets_ = text == "saved_offsets";
    global_ = text == "global_shape";
    if ((offsets_ && places.back().has_offsets) || (global_ && places.back().has_global))
      return "has a field twice";
    if (offsets_ || global_) return nullptr;
    if (std::find(unknown_.begin(), unknown_.end(), text) != unknown_.end()) return "has a field twice";
    unknown_.emplace_back(text);
    return unknown_.size() > 16 ? "has too many unknown fields" : nullptr;
  }
  const char* end_object() override {
    if (--depth_ == 1 && !places.back().has_offsets) return "has an entry without saved_offsets";
    return nullptr;
  }
  const char* begin_array() override {
    if (depth_ < 2 || (depth_ > 2 && wanted())) return "has an array where none belongs";
    ++depth_;
    numbers_.begin();
    return nullptr;
  }
  const char* end_array() override {
    if (--depth_ != 2 || !wanted()) return nullptr;
    auto& p = places.back();
    (offsets_ ? p.has_offsets : p.has_global) = true;
    const bool fits = numbers_.to_extents(offsets_ ? p.offsets : p.global);
    offsets_ = global_ = false;
    return fits ? nullptr : "has a number above 2^63 - 1";
  }
  const char* string(std::string_view) override { return other(); }
  const char* number(std::uint64_t value) override {
    if (depth_ < 2 || (depth_ == 2 && wanted())) return "has a number where none belongs";
    if (wanted() && !numbers_.add(value)) return "has more than eight dimensions";
    return nullptr;
  }
  const char* other() override {
    return depth_ < 2 || wanted() ? "has a value of a type that does not belong there" : nullptr;
  }

 private:
  [[nodiscard]] bool wanted() const noexcept { return depth_ >= 2 && (offsets_ || global_); }
  number_list numbers_;
  std::vector<std::string> unknown_;
  int depth_ = 0;
  bool offsets_ = false;
  bool global_ = false;
};

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
  std::sort(by_key.begin(), by_key.end(), [](const auto* a, const auto* b) { return a->key < b->key; });
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

/// Reads the header of a safetensors file of `file_bytes`; `first_bytes` holds at least the whole header
/// (safetensors_header_bytes). Strict: see docs/format.md. What it gives is consistent: entries lie back to
/// back from 0 to the end of the file, each with the size of its shape. Allocates at most about ten times the
/// header.
/// @throws corrupt_error naming the file and the offset.
[[nodiscard]] inline safetensors_header decode_safetensors_header(std::span<const std::byte> first_bytes,
                                                                  std::uint64_t file_bytes,
                                                                  std::string_view file) {
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
    corrupt(error_id::corrupt_bad_json, "the header of a safetensors file " + std::string(problem.what), file,
            8 + problem.offset);
  if (text.back() != '}')
    corrupt(error_id::corrupt_bad_json, "the header of a safetensors file is padded with more than spaces",
            file, 8 + text.size() - 1);

  safetensors_header header;
  header.entries = std::move(events.entries);
  std::vector<std::string_view> keys;
  keys.reserve(header.entries.size());
  for (const auto& e : header.entries) keys.push_back(e.key);
  const auto refuse_twice = [&] {
    std::sort(keys.begin(), keys.end());
    if (const auto twice = std::adjacent_find(keys.begin(), keys.end()); twice != keys.end())
      fail(error_id::corrupt_bad_json, "the header of a safetensors file has a key twice",
           {.item = std::string(*twice), .file = std::string(file), .offset = 8});
  };
  refuse_twice();
  keys.clear();
  for (const auto& [key, value] : events.metadata) keys.push_back(key);
  refuse_twice();

  std::stable_sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
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

  const auto sharding = std::find_if(events.metadata.begin(), events.metadata.end(), [](const auto& pair) {
    return pair.first == detail::sharding_info_key;
  });
  if (sharding != events.metadata.end()) {
    detail::apply_sharding_info(header.entries, sharding->second, file);
    events.metadata.erase(sharding);
  }
  header.metadata = std::move(events.metadata);
  return header;
}

}  // namespace v1
}  // namespace cairn
