// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/storage/foreign/foreign_reader.hpp>
#include <cairn/system/callback.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Options of an import.
struct import_options {
  std::int64_t step = 0;           ///< of the checkpoint that is made
  std::vector<std::string> items;  ///< globs of the names to import; empty: all
  /// Called by one thread at a time with the bytes read so far and the bytes in all.
  detail::callback<void(std::uint64_t done, std::uint64_t all)> progress = {};
  /// Called between reads, by several threads; true ends the import early.
  detail::callback<bool()> stop = {};
  /// The limit for the commit, which may wait for the end of another save of the same step.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
};

/// The result of an import.
struct import_report {
  /// Tensors of the checkpoint.
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;  ///< of tensors
  std::uint64_t files = 0;  ///< data files that were written
  bool complete = true;     ///< false: `stop` said so; nothing was committed
};

/// Makes a checkpoint of safetensors files that something else wrote, in a store: with digests, so that every later
/// load verifies it. Each file becomes the part of one rank; any number of ranks loads it. Streams: memory is 24 MiB a
/// file that is copied at a time (four), whatever the size of the model. The checkpoint is committed as every save is;
/// ended before, nothing is there but files that the next import of this step removes, or the next run into this store.
///
///   cairn::any_store target(cairn::file_store{"checkpoints"});
///   cairn::import_safetensors(cairn::safetensors_files{"models/llama"}.reader(), target);
///
/// A file that is replaced or written again meanwhile ends the import with corrupt_identity: nothing is committed then.
/// Where the source does not model IdentifiesObjects, that is found by headers and sizes alone.
///
/// @throws corrupt_error, storage_error: storage_already_committed where there is a checkpoint of this step; peer_error
/// (peer_lost) where a record that it has written is gone until `timeout`; usage_error (usage_unknown_name) where there is
/// no tensor, or a pattern matches none
[[nodiscard]] import_report import_safetensors(foreign_reader from, any_store target,
                                               const import_options& options = {});

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/manage/import_safetensors.ipp>
#endif
