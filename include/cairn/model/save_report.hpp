// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace cairn {
inline namespace v1 {

/// What one save cost this rank, in seconds and bytes. Parts that have not happened yet are zero.
struct save_report {
  std::int64_t step = 0;
  std::uint64_t bytes = 0;   ///< this rank writes, headers included
  std::uint64_t items = 0;   ///< this rank writes
  bool plan_cached = false;  ///< the plan came from the cache: no message was sent
  bool overlapped = false;
  double wait_seconds = 0;           ///< in save(): for preparation, an earlier save or a free buffer
  double plan_seconds = 0;           ///< in save(): planning, with its messages
  double stage_seconds = 0;          ///< in save(): copying
  double before_update_seconds = 0;  ///< in before_update(): waiting for the rest of the copy
  double blocked_seconds = 0;        ///< of the training thread in all
  double released_seconds = 0;       ///< from save() to released
  double written_seconds = 0;        ///< from save() to written
  double committed_seconds = 0;      ///< from save() to committed
  /// How long to train between two saves, by suggested_interval() from what the last saves cost; 0 where
  /// checkpointer_options::mean_time_between_failures is not given.
  double suggested_interval_seconds = 0;
};

}  // namespace v1
}  // namespace cairn
