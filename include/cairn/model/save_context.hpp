// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/metadata.hpp>
#include <cairn/model/peer_watch.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/model/staged_image.hpp>

#include <chrono>
#include <cstdint>
#include <memory>

namespace cairn {
inline namespace v1 {

/// What identifies one rank's part of one save. Plain data, but for `peers`.
struct save_context {
  run_id run;
  std::int64_t step = 0;
  std::uint64_t attempt =
      0;  ///< the same on all ranks, different for every save of every run; see attempt_of
  std::uint64_t plan_digest = 0;  ///< digest of the global summary: the same on all ranks
  std::int32_t rank = 0;
  std::int32_t world_size = 1;
  std::chrono::nanoseconds timeout = std::chrono::minutes(30);  ///< for writing, and again for the commit
  /// Which ranks are gone, where that is known and means that their part will never come; null: nobody
  /// knows. Of this process: it does not go to a worker, as a rank's worker may live on.
  std::shared_ptr<const peer_watch> peers = nullptr;

  /// How long the other ranks wait for the coordinator once their part is written. It may still be writing, and
  /// then waits for records, at most `timeout` for each: so the coordinator gives up first, and its error names
  /// the rank that is missing.
  [[nodiscard]] std::chrono::nanoseconds outcome_timeout() const noexcept;
  /// The longest that a save takes on this rank, whatever happens.
  [[nodiscard]] std::chrono::nanoseconds longest() const noexcept;
  /// Rank 0 commits.
  [[nodiscard]] bool coordinator() const noexcept { return rank == 0; }
};

namespace detail {
inline constexpr std::uint64_t attempt_stride = 0x9E3779B97F4A7C15;  // odd, so that it can be divided by
inline constexpr std::uint64_t attempt_stride_inverse = 0xF1DE83E19937733D;
static_assert(attempt_stride * attempt_stride_inverse == 1);
}  // namespace detail

/// The attempt number that every rank derives alone.
[[nodiscard]] std::uint64_t attempt_of(const run_id& run, std::int64_t step, std::uint64_t save_count);
/// The save_count of which attempt_of() makes this attempt, if it is of this run and step; else any number,
/// most probably a huge one.
[[nodiscard]] std::uint64_t save_count_of(const run_id& run, std::int64_t step, std::uint64_t attempt);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/save_context.ipp>
#endif
