// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/record.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Which save of which rank a record in a tier is of, and where the image lies: all of it is the record's name, so
/// that a listing of the directory tells what is held.
struct held_name {
  run_id run;
  std::uint64_t attempt = 0;
  std::uint64_t plan_digest = 0;
  std::int64_t step = 0;
  std::int32_t world_size = 1;
  std::int32_t rank = 0;
  std::int32_t slot = 0;
  friend bool operator==(const held_name&, const held_name&) = default;
};

/// "held.<run>.<attempt>.<plan>.<step>.<world size>.<rank>.<slot>"
[[nodiscard]] std::string to_string(const held_name& name);
/// The reverse of to_string(held_name); nothing for any other text.
[[nodiscard]] std::optional<held_name> parse_held_name(std::string_view text);
/// "slot-00003.1": an image of a rank.
[[nodiscard]] std::string slot_name(std::int32_t rank, std::int32_t slot);
/// The number of a slot of this rank; nothing for any other text.
[[nodiscard]] std::optional<std::int32_t> parse_slot_name(std::string_view text, std::int32_t rank);
/// The rank of any slot's name.
[[nodiscard]] std::optional<std::int32_t> rank_of_slot_name(std::string_view text);
/// "plan.0123456789abcdef"
[[nodiscard]] std::string plan_name(std::uint64_t plan_digest);
/// "plan.0123456789abcdef.2"
[[nodiscard]] std::string second_plan_name(std::uint64_t plan_digest);

/// The name of the record of the piece that a rank keeps for a save: "kept." and what follows in to_string(held_name).
[[nodiscard]] std::string kept_record_name(const held_name& name);
/// The reverse of it; nothing for any other text.
[[nodiscard]] std::optional<held_name> parse_kept_name(std::string_view text);
/// "piece-00003.1"
[[nodiscard]] std::string piece_name(std::int32_t rank, std::int32_t slot);
/// The rank of a piece's name; nothing for any other text.
[[nodiscard]] std::optional<std::int32_t> rank_of_piece_name(std::string_view text);

/// What a record in a tier says.
struct held_record {
  std::vector<std::uint64_t> begins;                       ///< of the record's files, in the image
  std::vector<std::byte> record;                           ///< as encode_record() gives it
  std::optional<std::vector<run_id>> runs = std::nullopt;  ///< see tier_base::runs; of rank 0
};
[[nodiscard]] std::vector<std::byte> encode_held(const held_name& name, const held_record& content);
/// @throws corrupt_error naming the file unless the bytes are those of the record of this name.
[[nodiscard]] held_record decode_held(std::span<const std::byte> bytes, const held_name& name,
                                      const std::string& file);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/tiers/held_record.ipp>
#endif
