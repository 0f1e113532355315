// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/manage/element_values.hpp>
#include <cairn/manage/readable_checkpoint.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/system/callback.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Statistics of one item.
struct item_statistics {
  std::string name;              ///< of the item
  dtype type = dtype::u8;        ///< of its elements
  extents shape;                 ///< of the whole tensor
  std::uint64_t ranks = 0;       ///< that have one of their own, which count together; 0: of the whole job
  value_statistics values = {};  ///< of all its numbers
};

/// Options of measure_checkpoint().
struct statistics_options {
  std::vector<std::string> items = {};                    ///< globs of the names; empty: all
  std::uint64_t memory_bytes = std::uint64_t{128} << 20;  ///< for buffers, about
  /// Called with each item when its numbers are known, in the order of their names, by one thread.
  detail::callback<void(const item_statistics&)> found = {};
  /// Called by one thread with the bytes of tensors that were read so far, and all of them.
  detail::callback<void(std::uint64_t done, std::uint64_t all)> progress = {};
  /// Called between reads; true ends it early.
  detail::callback<bool()> stop = {};
};

/// The result of measure_checkpoint().
struct statistics_report {
  std::uint64_t items = 0;           ///< that were measured
  std::uint64_t left_out = 0;        ///< items of bytes, which have no numbers
  value_statistics values = {};      ///< of all of them together
  std::uint64_t nan_items = 0;       ///< items with a NaN
  std::uint64_t infinite_items = 0;  ///< items with an infinity
  bool complete = true;              ///< false: `stop` said so
};

/// Reads all tensors and values of a checkpoint and measures their numbers; verifies each block that has a digest.
/// Streams: memory is the buffers, the manifest and the records. The numbers of a tensor do not depend on how ranks cut it,
/// to the last bit.
/// @throws corrupt_error, storage_error; usage_error (usage_unknown_name) where a pattern matches no item
statistics_report measure_checkpoint(readable_checkpoint& from, const statistics_options& options);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/manage/statistics.ipp>
#endif
