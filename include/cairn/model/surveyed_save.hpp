// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/record.hpp>
#include <cairn/system/wire.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// The image of a rank that a place of a tier has, with a record that is whole.
struct surveyed_image {
  std::int32_t rank = 0;            ///< that saved it
  std::uint32_t files = 0;          ///< data files in it
  std::uint64_t record_digest = 0;  ///< see record_header::header_digest
  std::uint64_t data_bytes = 0;     ///< of all files together
};
/// A piece that a place of a tier has, with a record that is whole.
struct surveyed_piece {
  std::int32_t rank = 0;             ///< that keeps it
  std::int32_t member = 0;           ///< which one of its set that is
  std::uint64_t made_by = 0;         ///< tells redundancies apart
  std::uint64_t made_of = 0;         ///< tells apart what pieces were made of
  std::vector<std::int32_t> ranks;   ///< of the set
  std::vector<std::uint64_t> bytes;  ///< of their images
  std::uint64_t piece_bytes = 0;     ///< of the piece itself
};
/// What one place of a tier has of a save.
struct surveyed_save {
  run_id run;                          ///< that saved it
  std::uint64_t attempt = 0;           ///< see save_context::attempt
  std::int64_t step = 0;               ///< of the save
  std::int32_t world_size = 1;         ///< the ranks that saved it
  std::uint64_t plan_digest = 0;       ///< of the plan of all ranks
  bool has_plan = false;               ///< its plan is there
  bool has_runs = false;               ///< the image of rank 0 is there, and tells `runs`
  std::vector<run_id> runs;            ///< see held_step::runs
  std::vector<surveyed_image> images;  ///< ascending by rank
  std::vector<surveyed_piece> pieces;  ///< ascending by rank
  /// Whether both are of one save of one run.
  [[nodiscard]] bool is_same_save(const surveyed_save& other) const noexcept {
    return run == other.run && attempt == other.attempt && step == other.step &&
           world_size == other.world_size && plan_digest == other.plan_digest;
  }
};

/// Adds what another place has to what some have together, which stays ascending by step, and of one run as it was saved.
/// Of what both have, `all` keeps its own.
void add_survey(std::vector<surveyed_save>& all, std::span<const surveyed_save> more);

namespace detail {

void put_survey(wire_writer& out, std::span<const surveyed_save> saves);
/// @throws wire_error
[[nodiscard]] std::vector<surveyed_save> get_survey(wire_reader& in);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/surveyed_save.ipp>
#endif
