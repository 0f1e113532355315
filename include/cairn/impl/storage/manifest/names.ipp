// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {

CAIRN_BODY std::string step_directory(std::int64_t step) {
  if (step < 0)
    fail(error_id::usage_bad_option, "a step cannot be negative; number checkpoints by completed updates",
         {.got = std::to_string(step)});
  char text[32];
  std::snprintf(text, sizeof text, "step-%08lld", static_cast<long long>(step));
  return text;
}

CAIRN_BODY std::string to_string(const object_name& name) {
  if (name.kind == object_kind::manifest) return "manifest.cairn";
  char text[96];
  const auto attempt = static_cast<unsigned long long>(name.attempt);
  if (name.kind == object_kind::aborted) {
    std::snprintf(text, sizeof text, "aborted.%016llx", attempt);
    return text;
  }
  if (name.rank < 0)
    fail(error_id::usage_bad_option, "a rank cannot be negative", {.got = std::to_string(name.rank)});
  if (name.kind == object_kind::record || name.kind == object_kind::records)
    std::snprintf(text, sizeof text, "rank-%05d.%016llx.%s", static_cast<int>(name.rank), attempt,
                  name.kind == object_kind::record ? "record" : "records");
  else
    std::snprintf(text, sizeof text, "rank-%05d.%016llx.%u.%s", static_cast<int>(name.rank), attempt,
                  static_cast<unsigned>(name.index), name.compressed ? "cairnz" : "safetensors");
  return text;
}

CAIRN_BODY std::string rank_directory(std::int64_t step, std::int32_t rank, const file_placement& place) {
  if (place.ranks_per_directory <= 0 || rank < 0) return step_directory(step);
  char text[32];
  std::snprintf(text, sizeof text, "/ranks-%05d", static_cast<int>(rank - rank % place.ranks_per_directory));
  return step_directory(step) + text;
}

CAIRN_BODY std::string object_key(std::int64_t step, const object_name& name, const file_placement& place) {
  const bool of_ranks = name.kind != object_kind::manifest && name.kind != object_kind::aborted;
  return (of_ranks ? rank_directory(step, name.rank, place) : step_directory(step)) + "/" + to_string(name);
}

CAIRN_BODY std::string data_key(std::int64_t step, std::int32_t rank, std::uint64_t attempt,
                                std::uint32_t index, const file_placement& place) {
  return object_key(step, {object_kind::data, place.first_of(rank), attempt, index}, place);
}

CAIRN_BODY std::string compressed_key(std::string_view data_key) {
  return std::string(data_key.substr(0, data_key.rfind(".safetensors"))) + ".cairnz";
}

CAIRN_BODY std::string record_key(std::int64_t step, std::int32_t rank, std::uint64_t attempt,
                                  const file_placement& place) {
  if (place.shared()) return data_key(step, rank, attempt, 0, place);
  return object_key(step, {object_kind::record, rank, attempt, 0}, place);
}

namespace detail {

CAIRN_BODY std::optional<std::uint64_t> parse_padded(std::string_view digits, std::size_t least,
                                                     std::uint64_t last) noexcept {
  if (digits.size() < least || digits.empty() || digits.size() > 20) return std::nullopt;
  if (digits.size() > least && digits[0] == '0') return std::nullopt;
  std::uint64_t number = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return std::nullopt;
    if (__builtin_mul_overflow(number, std::uint64_t{10}, &number) ||
        __builtin_add_overflow(number, static_cast<std::uint64_t>(c - '0'), &number))
      return std::nullopt;
  }
  return number <= last ? std::optional{number} : std::nullopt;
}

CAIRN_BODY std::optional<std::uint64_t> parse_hex16(std::string_view digits) noexcept {
  if (digits.size() != 16) return std::nullopt;
  std::uint64_t number = 0;
  for (const char c : digits) {
    if (c >= '0' && c <= '9')
      number = number << 4 | static_cast<std::uint64_t>(c - '0');
    else if (c >= 'a' && c <= 'f')
      number = number << 4 | static_cast<std::uint64_t>(c - 'a' + 10);
    else
      return std::nullopt;
  }
  return number;
}

}  // namespace detail

CAIRN_BODY std::optional<std::int64_t> parse_step(std::string_view directory) noexcept {
  if (!directory.starts_with("step-")) return std::nullopt;
  const auto number = detail::parse_padded(directory.substr(5), 8, INT64_MAX);
  return number ? std::optional{static_cast<std::int64_t>(*number)} : std::nullopt;
}

CAIRN_BODY std::optional<object_name> parse_object(std::string_view name) noexcept {
  if (name == "manifest.cairn") return object_name{object_kind::manifest, 0, 0, 0};
  if (name.starts_with("aborted.")) {
    const auto attempt = detail::parse_hex16(name.substr(8));
    return attempt ? std::optional{object_name{object_kind::aborted, 0, *attempt, 0}} : std::nullopt;
  }
  if (!name.starts_with("rank-")) return std::nullopt;
  name.remove_prefix(5);
  const auto dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const auto rank = detail::parse_padded(name.substr(0, dot), 5, INT32_MAX);
  name.remove_prefix(dot + 1);
  if (!rank || name.size() < 18 || name[16] != '.') return std::nullopt;
  const auto attempt = detail::parse_hex16(name.substr(0, 16));
  name.remove_prefix(17);
  if (!attempt) return std::nullopt;
  if (name == "record" || name == "records")
    return object_name{name == "record" ? object_kind::record : object_kind::records,
                       static_cast<std::int32_t>(*rank), *attempt, 0};
  const bool compressed = name.ends_with(".cairnz");
  if (!compressed && !name.ends_with(".safetensors")) return std::nullopt;
  name.remove_suffix(compressed ? 7 : 12);
  const auto index = detail::parse_padded(name, 1, UINT32_MAX);
  if (!index) return std::nullopt;
  return object_name{object_kind::data, static_cast<std::int32_t>(*rank), *attempt,
                     static_cast<std::uint32_t>(*index), compressed};
}

CAIRN_BODY std::optional<object_name> parse_placed_object(std::string_view name) noexcept {
  const auto slash = name.find('/');
  if (slash == std::string_view::npos) return parse_object(name);
  if (!name.starts_with("ranks-")) return std::nullopt;
  const auto first = detail::parse_padded(name.substr(6, slash - 6), 5, INT32_MAX);
  const auto object = parse_object(name.substr(slash + 1));
  if (!first || !object || object->kind == object_kind::manifest || object->kind == object_kind::aborted ||
      static_cast<std::uint64_t>(object->rank) < *first)
    return std::nullopt;
  return object;
}

CAIRN_BODY std::optional<parsed_key> parse_key(std::string_view key) noexcept {
  const auto slash = key.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const auto step = parse_step(key.substr(0, slash));
  const auto object = parse_placed_object(key.substr(slash + 1));
  if (!step || !object) return std::nullopt;
  return parsed_key{*step, *object};
}

}  // namespace v1
}  // namespace cairn
