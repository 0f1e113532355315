// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstdint>

namespace cairn {
inline namespace v1 {

/// The work of one process for a save: copying or writing.
struct process_share {
  std::int64_t process = 0;  ///< its id; 0: nothing was done yet
  std::uint64_t bytes = 0;
  double seconds = 0;      ///< by the clock, from the first of these bytes to the last
  double cpu_seconds = 0;  ///< of its threads that worked for this save

  /// Bytes per second; 0 where nothing was done.
  [[nodiscard]] double bytes_per_second() const noexcept {
    return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  }
};

/// The cost of one save on this rank, in seconds and bytes. What has not happened yet is zero.
struct save_report {
  /// The step that was saved.
  std::int64_t step = 0;
  std::uint64_t bytes = 0;   ///< this rank writes, headers included
  std::uint64_t items = 0;   ///< this rank writes
  bool plan_cached = false;  ///< the plan came from the cache: no message was sent
  /// The memory was copied after save() had returned.
  bool overlapped = false;
  double wait_seconds = 0;  ///< in save(): for preparation or an earlier save
  double plan_seconds = 0;  ///< in save(): planning, with its messages
  double plan_saved_seconds =
      0;                     ///< that planning would have cost: what it did when the cached plan was made
  double stage_seconds = 0;  ///< in save(): copying, and before it waiting for a free buffer
  double before_update_seconds = 0;  ///< in before_update(): waiting for the rest of the copy
  double blocked_seconds = 0;        ///< of the training thread in all
  double released_seconds = 0;       ///< from save() to released
  double written_seconds = 0;        ///< from save() to written
  double committed_seconds = 0;      ///< from save() to committed
  /// Copying by the trainer. `bytes`: those of the image, with headers; 0 where the bytes stay in
  /// training memory. `cpu_seconds`: of the calling thread in save(), with planning, and of the threads
  /// that copied (and hashed, in the same pass).
  process_share copying;
  /// Writing by the trainer or its worker process. `seconds`: until the bytes were durable; in an
  /// overlapped save with the time in which the writer waited for bytes to be copied, and with
  /// persist{.writers_at_once} for its turn. `cpu_seconds`: with
  /// the commit, of the thread that saved and of those that helped it to hash and write with file_store;
  /// for a worker, of the whole process.
  process_share writing;
  /// With process_executor, in the first save of a worker: the time from its start until it was ready,
  /// usually in the background before this save. 0 in later saves of the same worker.
  double worker_start_seconds = 0;
  /// The suggested time between two saves, by suggested_interval() from the cost of the last saves; 0 without
  /// checkpointer_options::mean_time_between_failures.
  double suggested_interval_seconds = 0;
  double held_seconds = 0;  ///< from save() until a local_tier held this rank's image; 0: it does not
  /// From save() until all ranks kept their pieces of it (partner_copies, parity); 0: they do not.
  double redundant_seconds = 0;
  std::uint64_t piece_bytes = 0;  ///< that this rank keeps of the images of others, where it is redundant
  /// False for a save that persist{} left in the local tier: it goes to no store, but for the last one, which close() writes
  /// there with a report of its own.
  bool persisted = true;
  /// Of files of frozen items that were linked instead of copied and written; not in `bytes`.
  std::uint64_t linked_bytes = 0;
};

}  // namespace v1
}  // namespace cairn
