// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/metadata.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// A random 128-bit number on which the ranks of a run agree once. It is in everything that the run writes.
struct run_id {
  std::uint64_t high = 0;  ///< bits 64 to 127
  std::uint64_t low = 0;   ///< bits 0 to 63
  friend bool operator==(const run_id&, const run_id&) = default;
};
[[nodiscard]] std::string to_string(const run_id& id);

/// One file of a rank.
struct record_file {
  std::uint64_t bytes = 0;  ///< its exact size
};

/// The place of one item in a rank's files.
struct record_item {
  item_key key;                   ///< which item, and which box of it
  std::uint32_t file = 0;         ///< index in record::files
  std::uint64_t offset = 0;       ///< of its first byte in the file
  std::uint64_t bytes = 0;        ///< stored size
  std::uint64_t digest = 0;       ///< digest_of_blocks of its blocks
  std::uint64_t first_block = 0;  ///< index in record::blocks
};

/// Which rank's part of which attempt of a save a record is of.
struct record_identity {
  run_id run;                     ///< of the run that saved
  std::uint64_t attempt = 0;      ///< see save_context::attempt
  std::int64_t step = 0;          ///< of the checkpoint
  std::int32_t rank = 0;          ///< whose part it is
  std::int32_t world_size = 1;    ///< ranks of the run
  std::uint64_t plan_digest = 0;  ///< of the plan of all ranks
};

/// What a rank wrote in one attempt of a save: the sizes and digests that loads verify.
struct record : record_identity {
  std::vector<record_file> files;     ///< in the order of the index in their names
  std::vector<record_item> items;     ///< in the order of their bytes
  std::vector<std::uint64_t> blocks;  ///< digests of blocks of digest_block_bytes, item after item
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/record.ipp>
#endif
