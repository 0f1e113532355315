// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/system/callback.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Bytes of an item that are about to be written.
struct streamed_bytes {
  std::uint32_t item = 0;    ///< index in the plan of the rank
  std::uint64_t begin = 0;   ///< of the item
  std::span<std::byte> out;  ///< where they belong
};

/// A checkpoint that is written without a job: what each rank has of it, and where its bytes come from.
struct streamed_checkpoint {
  std::int64_t step = 0;
  std::string_view maker;           ///< what makes it, in the digest of its plan
  metadata stored;                  ///< with the number of ranks
  std::vector<save_plan> plans;     ///< of each rank; each item with its bytes
  std::size_t ranks_at_a_time = 1;  ///< that are written at once
  /// Reads bytes of items of a rank; of several ranks at once, and of one by several threads.
  callback<void(std::size_t rank, std::span<const streamed_bytes> wanted)> fetch;
  /// Called when all is written, before the commit: what it throws ends the checkpoint. May be empty.
  callback<void()> check;
  /// True ends it early; may be empty.
  callback<bool()> stop;
  /// The limit for the commit: it waits for another save of the step, and for records of its own that somebody removed.
  std::chrono::nanoseconds commit_timeout = std::chrono::minutes(10);
};

/// Writes and commits a checkpoint as every save is committed; memory is 24 MiB for each rank that is written at once.
/// False: `stop` said so, and nothing is committed. @throws storage_error: storage_already_committed where there is a
/// checkpoint of this step; peer_error where records are gone; what `fetch` throws
[[nodiscard]] bool write_streamed(const any_store& target, const streamed_checkpoint& made);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/manage/streamed_checkpoint.ipp>
#endif
