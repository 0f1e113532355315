// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/wire.hpp>
#include <cairn/tiers/held_record.hpp>

#include <cinttypes>
#include <cstdio>

namespace cairn {
inline namespace v1 {
namespace detail {

// Little-endian: "cairnhld", then the version.
inline constexpr std::uint64_t held_magic = 0x646c686e72696163;
inline constexpr std::uint32_t held_version = 2;

CAIRN_BODY std::string to_string(const held_name& name) {
  char text[200];
  std::snprintf(text, sizeof text,
                "held.%016" PRIx64 "%016" PRIx64 ".%016" PRIx64 ".%016" PRIx64 ".%" PRId64 ".%" PRId32
                ".%" PRId32 ".%" PRId32,
                name.run.high, name.run.low, name.attempt, name.plan_digest, name.step, name.world_size,
                name.rank, name.slot);
  return text;
}
CAIRN_BODY std::optional<held_name> parse_held_name(std::string_view text) {
  const std::string copy(text.substr(0, 200));
  held_name name;
  if (std::sscanf(copy.c_str(),
                  "held.%16" SCNx64 "%16" SCNx64 ".%16" SCNx64 ".%16" SCNx64 ".%" SCNd64 ".%" SCNd32
                  ".%" SCNd32 ".%" SCNd32,
                  &name.run.high, &name.run.low, &name.attempt, &name.plan_digest, &name.step,
                  &name.world_size, &name.rank, &name.slot) != 8 ||
      name.step < 0 || name.world_size < 1 || name.rank < 0 || name.rank >= name.world_size ||
      name.slot < 0 || to_string(name) != text)
    return std::nullopt;
  return name;
}
CAIRN_BODY std::string slot_name(std::int32_t rank, std::int32_t slot) {
  char text[64];
  std::snprintf(text, sizeof text, "slot-%05" PRId32 ".%" PRId32, rank, slot);
  return text;
}
CAIRN_BODY std::optional<std::int32_t> parse_slot_name(std::string_view text, std::int32_t rank) {
  const std::string copy(text.substr(0, 64));
  std::int32_t of = 0;
  std::int32_t slot = 0;
  if (std::sscanf(copy.c_str(), "slot-%" SCNd32 ".%" SCNd32, &of, &slot) != 2 || of != rank || slot < 0 ||
      slot_name(of, slot) != text)
    return std::nullopt;
  return slot;
}
CAIRN_BODY std::optional<std::int32_t> rank_of_slot_name(std::string_view text) {
  std::int32_t of = 0;
  if (std::sscanf(std::string(text.substr(0, 64)).c_str(), "slot-%" SCNd32 ".", &of) != 1 ||
      !parse_slot_name(text, of))
    return std::nullopt;
  return of;
}
CAIRN_BODY std::string plan_name(std::uint64_t plan_digest) {
  char text[32];
  std::snprintf(text, sizeof text, "plan.%016" PRIx64, plan_digest);
  return text;
}
CAIRN_BODY std::string second_plan_name(std::uint64_t plan_digest) {
  return plan_name(plan_digest) + ".2";
}

CAIRN_BODY std::string kept_record_name(const held_name& name) {
  return "kept" + to_string(name).substr(4);
}
CAIRN_BODY std::optional<held_name> parse_kept_name(std::string_view text) {
  if (!text.starts_with("kept.")) return std::nullopt;
  return parse_held_name("held" + std::string(text.substr(4)));
}
CAIRN_BODY std::string piece_name(std::int32_t rank, std::int32_t slot) {
  char text[64];
  std::snprintf(text, sizeof text, "piece-%05" PRId32 ".%" PRId32, rank, slot);
  return text;
}
CAIRN_BODY std::optional<std::int32_t> rank_of_piece_name(std::string_view text) {
  std::int32_t rank = 0;
  std::int32_t slot = 0;
  if (std::sscanf(std::string(text.substr(0, 64)).c_str(), "piece-%" SCNd32 ".%" SCNd32, &rank, &slot) != 2 ||
      rank < 0 || slot < 0 || piece_name(rank, slot) != text)
    return std::nullopt;
  return rank;
}

CAIRN_BODY std::vector<std::byte> encode_held(const held_name& name, const held_record& content) {
  wire_writer out;
  out.put(held_magic).put(held_version).put(to_string(name));
  out.put(static_cast<std::uint64_t>(content.begins.size()));
  for (const auto begin : content.begins) out.put(begin);
  out.put(static_cast<std::uint64_t>(content.record.size())).raw(content.record);
  out.put(static_cast<std::uint8_t>(content.runs.has_value()));
  if (content.runs) {
    out.put(static_cast<std::uint64_t>(content.runs->size()));
    for (const auto& run : *content.runs) out.put(run.high).put(run.low);
  }
  return out.put(digest(out.view())).take();
}
CAIRN_BODY held_record decode_held(std::span<const std::byte> bytes, const held_name& name,
                                   const std::string& file) {
  held_record content;
  try {
    wire_reader in(bytes);
    if (in.get<std::uint64_t>() != held_magic)
      fail(error_id::corrupt_bad_magic, "a record of the local tier does not begin as one", {.file = file});
    if (const auto version = in.get<std::uint32_t>(); version != held_version)
      fail(error_id::corrupt_unsupported_version, "a record of the local tier has another version",
           {.file = file, .expected = std::to_string(held_version), .got = std::to_string(version)});
    const auto own = bytes.first(bytes.size() - sizeof(std::uint64_t));
    if (wire_reader(bytes.last(sizeof(std::uint64_t))).get<std::uint64_t>() != digest(own))
      fail(error_id::corrupt_digest, "a record of the local tier is damaged", {.file = file});
    if (in.get_string() != to_string(name))
      fail(error_id::corrupt_identity, "a record of the local tier lies under another name than its own",
           {.file = file});
    content.begins.resize(in.get_count(sizeof(std::uint64_t)));
    for (auto& begin : content.begins) begin = in.get<std::uint64_t>();
    const auto record = in.take(in.get_count(1));
    content.record.assign(record.begin(), record.end());
    if (in.get<std::uint8_t>() != 0) {
      content.runs.emplace(in.get_count(2 * sizeof(std::uint64_t)));
      for (auto& run : *content.runs) run.high = in.get<std::uint64_t>(), run.low = in.get<std::uint64_t>();
    }
    static_cast<void>(in.get<std::uint64_t>());
    in.finish();
  } catch (const wire_error& e) {
    fail(error_id::corrupt_truncated, std::string("a record of the local tier is damaged: ") + e.what(),
         {.file = file});
  }
  return content;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
