// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <chrono>
#include <cstdint>
#include <string_view>

namespace cairn {
inline namespace v1 {

class wire_reader;
class wire_writer;
struct file_placement;

/// Options of a commit_protocol.
struct commit_options {
  /// In a world of more ranks than this, the first of every so many ranks collects the headers of their
  /// records for the coordinator, which also makes the step's directory. The same on all ranks, at least
  /// 2.
  std::int32_t block_ranks = 128;
  /// The number of consecutive ranks, which must be processes of one host, that fill one data file
  /// together; the file ends with their records. 1 to 64; above 1 only over a SharedStore, and not for compressed
  /// files. The same on all ranks.
  std::int32_t ranks_per_file = 1;
  /// In a world of more ranks than this (times ranks_per_file), the objects of every so many ranks are in
  /// a separate directory; at least 1. The same on all ranks.
  std::int32_t ranks_per_directory = 256;
  /// How long an attempt that came second waits for the one that came first, before it assumes that it is
  /// dead; and how long a rank looks again for what became of its save where such a look fails.
  std::chrono::nanoseconds rival_timeout = std::chrono::seconds(10);
  /// How long the ranks of a large world wait for the coordinator to make the step's directory.
  std::chrono::nanoseconds directory_timeout = std::chrono::seconds(5);
  /// How long a rank that sees the manifest waits for the coordinator's note that its name is durable, before
  /// it makes the name durable itself.
  std::chrono::nanoseconds durability_timeout = std::chrono::seconds(1);
};

/// The placement of the files of a world with these options.
[[nodiscard]] file_placement placement_of(const commit_options& o, std::int32_t world_size) noexcept;
/// @throws usage_bad_option where the options are not valid.
void check_options(const commit_options& o, bool store_shares, std::string_view store);

namespace detail {
/// Encodes the options for the description of a writer; decode_options() is the inverse. @throws wire_error
void encode_options(wire_writer& out, const commit_options& o);
[[nodiscard]] commit_options decode_options(wire_reader& in);

/// The number of ranks in a block: a multiple of the ranks of a file, and large enough that there are few
/// objects of blocks.
[[nodiscard]] std::int32_t block_ranks_of(const commit_options& o, std::int32_t world_size) noexcept;
}  // namespace detail

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/commit_options.ipp>
#endif
