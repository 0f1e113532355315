// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/metadata.hpp>
#include <cairn/model/record.hpp>
#include <cairn/storage/manifest/names.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

// The file `manifest.cairn`: a header of 128 bytes, a table of sections, and sections of columns.
// docs/format.md describes it byte by byte.

/// The entry for the record of one rank: identifies its files and verifies them.
struct manifest_record {
  std::int64_t step = 0;      ///< in whose directory its files lie
  std::uint64_t attempt = 0;  ///< in the names of its files
  std::int32_t rank = 0;
  std::uint32_t files = 0;          ///< number of its data files
  std::uint64_t record_digest = 0;  ///< record_header::header_digest, which covers the whole record
  std::uint64_t data_bytes = 0;     ///< of all files together
  friend bool operator==(const manifest_record&, const manifest_record&) = default;
};

/// The content of a manifest: the items of a checkpoint, and the records with their places.
struct manifest {
  run_id run;                            ///< that saved the checkpoint
  std::int64_t step = 0;                 ///< of the checkpoint
  std::uint64_t attempt = 0;             ///< that was committed; in the names of its records and files
  std::uint64_t plan_digest = 0;         ///< of the plan of all ranks, which each record repeats
  metadata content;                      ///< the items and their chunks
  std::vector<manifest_record> records;  ///< one for each rank, in rank order
  std::int64_t unix_time = 0;            ///< of the commit, in seconds
  std::vector<std::uint16_t> codecs;     ///< of a manifest that was read: what its items name, ascending
  file_placement placement;              ///< of the files that the records name
};

/// Progressions of definitions that items of one manifest may share with an item before them; where there
/// would be more, a definition is written once more.
inline constexpr std::uint64_t max_shared_progressions = std::uint64_t{1} << 22;

namespace detail {

inline constexpr std::string_view manifest_magic = "cairnman";
inline constexpr std::uint16_t manifest_major = 2;
inline constexpr std::uint16_t manifest_minor = 1;  ///< of one with a section that readers may skip; else 0
inline constexpr std::size_t manifest_header_bytes = 128;
inline constexpr std::size_t section_entry_bytes = 32;
inline constexpr std::uint32_t max_sections = 64;
inline constexpr std::uint32_t section_required = 1;
/// A required feature: the header tells how files are placed, another way than one or more for each rank in
/// the step's directory.
inline constexpr std::uint32_t feature_placement = 1;
inline constexpr std::int32_t max_ranks_per_file = 64;

/// Sections in this order: names, definitions, records, which are required; what is said of the checkpoint, where
/// anything is.
inline constexpr std::uint32_t first_section = 7;
inline constexpr std::size_t known_sections = 4;
inline constexpr std::size_t required_sections = 3;
/// Items whose names are told by what they add to the one before.
inline constexpr std::size_t names_in_block = 16;

}  // namespace detail
}  // namespace v1
}  // namespace cairn
