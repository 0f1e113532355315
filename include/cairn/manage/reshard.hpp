// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/manage/readable_checkpoint.hpp>
#include <cairn/system/callback.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Options of reshard_checkpoint().
struct reshard_options {
  std::int32_t ranks = 1;  ///< for which it is written: each has a data file of its own
  int dimension =
      0;  ///< along which tensors are cut; one that has no such dimension, or less rows, stays whole
  std::int64_t step = -1;               ///< of the new checkpoint; negative: that of the old one
  std::vector<std::string> items = {};  ///< globs of the names to take; empty: all
  std::uint64_t memory_bytes = std::uint64_t{128} << 20;  ///< for buffers, about
  /// Called by one thread at a time with the bytes written so far, and all of them.
  detail::callback<void(std::uint64_t done, std::uint64_t all)> progress = {};
  /// Called between reads, by several threads; true ends it early.
  detail::callback<bool()> stop = {};
  /// The limit for the commit, which may wait for the end of another save of the same step.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
};

/// The result of reshard_checkpoint().
struct reshard_report {
  std::uint64_t items = 0;  ///< of the new checkpoint
  std::uint64_t bytes = 0;  ///< of them
  /// Items that each rank has for itself, of ranks that the new checkpoint does not have: name, and how many ranks.
  std::vector<std::string> left_out = {};
  bool complete = true;  ///< false: `stop` said so; nothing was committed
};

/// Writes a checkpoint as another number of ranks would have saved it: fewer files, or more. A load needs none of this:
/// it takes any number of ranks as it is; files that other programs read, stores with a price for each object, and
/// a thousand files of a few kB each do. What is read is verified; names, dtypes, annotations and the version of the
/// state are kept; what each rank has for itself stays with the rank of that number. Committed as every save is; ended
/// before, nothing is there but files that the next try of this step removes, or the next run into this store.
/// @throws storage_error: storage_already_committed where the target has a checkpoint of this step; corrupt_error;
/// peer_error (peer_lost) where a record that it has written is gone until `timeout`; usage_error where there is no item, a
/// pattern matches none (usage_unknown_name), or an option is out of range
[[nodiscard]] reshard_report reshard_checkpoint(readable_checkpoint& from, const any_store& target,
                                                const reshard_options& options = {});

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/manage/reshard.ipp>
#endif
