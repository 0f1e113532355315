// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/roles.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace cairn {
inline namespace v1 {

/// What save() does while an earlier save is under way.
enum class busy_policy : std::uint8_t {
  block,  ///< waits until the earlier one has ended
  queue,  ///< goes on, up to the depth of the stager's pool; then waits for a buffer
  skip,   ///< the ranks agree, with one small message each, to skip this save if any of them is busy
};

/// Whether the ranks of a load share what they read. `on`: what several ranks want is read once, by one of
/// them, in stripes in turn, and comes to the others through the communicator, so that a load fetches the
/// size of the checkpoint and not replicas x size. `off`: every rank reads what it wants by itself; the store
/// does the sharing, if anyone (a page cache). The same on all ranks; a group of one never shares. Pass as
/// any argument: `cairn::read_sharing::on`.
enum class read_sharing : std::uint8_t { off, on };
template <>
struct role_of<read_sharing> {
  using type = role::read_sharing;
};

/// Options of a checkpointer, all with defaults; pass as any argument:
/// `cairn::checkpointer_options{.max_fallback = 1}`.
struct checkpointer_options {
  using cairn_role = role::options;
  busy_policy when_busy = busy_policy::block;
  /// Limit for writing one save, again for its commit, and for waits on buffers. Waits for the end of a save,
  /// which include other ranks' writing, last at most three times as long and 10 s.
  std::chrono::nanoseconds timeout = std::chrono::minutes(30);
  /// Limit for each exchange of messages between ranks (planning, loading).
  std::chrono::nanoseconds peer_timeout = std::chrono::minutes(5);
  /// Where a worker process saves: training goes on with its memory only when the worker has the save, so
  /// that the end of the trainer, in whatever moment, does not take it along; but it waits for that so long
  /// at most, in save() or, of an overlapped save, in before_update(). The worker has it long before all is
  /// copied, unless the store hangs. 0: not at all.
  std::chrono::nanoseconds handover_timeout = std::chrono::seconds(5);
  /// After so many failed saves in a row, save() throws (once its own save is under way); 0: never.
  int max_consecutive_failures = 3;
  /// Digests are computed by the writer, off the training thread's path, instead of in the same pass as the
  /// copy.
  bool checksum_in_writer = false;
  /// Of an overlapped save: tensors below 64 KiB are copied before save() returns, but at most so many bytes
  /// of them on each rank. Where there are more, only those below 32 KiB are, or below 16 KiB, and so on; the
  /// others are copied like large ones. 0: none. Values, bytes, per-rank items and copy_now do not count.
  std::uint64_t small_tensor_bytes = std::uint64_t{16} << 20;
  /// resume() waits so long for saves of an earlier run whose processes still live, such as the worker of a
  /// trainer that was killed, but at most for half of peer_timeout; then it ends them for good. 0: at once.
  std::chrono::nanoseconds earlier_run_timeout = std::chrono::seconds(30);
  /// resume() passes over at most so many damaged checkpoints.
  int max_fallback = 3;
  /// A checkpoint that so many runs resumed from, none of which committed anything after it nor ended in good
  /// order, is passed over by resume(): it loads, and the run then crashes. It counts for max_fallback, and
  /// stays as it is; where no other loads, it is taken all the same. 0: never. Not with resume_together, nor
  /// where nothing is written (read_only).
  int max_restarts = 3;
  /// Memory that a load uses besides its destinations, in bytes.
  std::uint64_t load_memory = std::uint64_t{256} << 20;
  /// Whether what several ranks want is read once; cairn::read_sharing as an argument overrides this.
  cairn::read_sharing sharing = cairn::read_sharing::on;
  /// Plans that are kept for states of different structure: so many of saves, and of loads.
  std::size_t cached_plans = 4;
  /// And so many bytes of each. A save's plan counts as the summary that all ranks share (see
  /// cached_plan::bytes), and the last one is kept whatever its size.
  std::size_t cached_plan_bytes = std::size_t{64} << 20;
  /// Of the whole job, when it is known: reports then suggest how often to save; 0: not known.
  std::chrono::nanoseconds mean_time_between_failures{0};
  /// No lines on stderr.
  bool quiet = false;
  /// See cairn::read_only.
  bool read_only = false;
};

/// Checkpoints are loaded and nothing in the store is changed, but for a lease on what is being read:
/// resume() removes nothing, moves nothing aside, and does not ask whether the store can be written; save(),
/// prepare() and remove() are refused. Programs that call load() alone need not say so. Pass as any argument.
struct read_only {
  using cairn_role = role::access;
};

/// Tensors are copied while the next forward and backward run: save() returns at once, and the memory of
/// tensors must not change until before_update() has returned. Pass as any argument.
struct overlapped {
  using cairn_role = role::overlap;
};

/// Detects memory that changed between save() and its copying, which breaks the contract of ownership: such a
/// save fails with usage_memory_changed, which names the item and its first changed block of 1 MiB, and
/// publishes nothing. For debugging, with every stager and executor: save() digests the whole memory of its
/// items once (about 10 GB/s in the calling thread, and 8 bytes of memory for each MiB), and compares when it
/// is copied. Pass as any argument; `checked{false}` is as if it was not there.
struct checked {
  using cairn_role = role::check;
  bool on = true;
};

/// For keep_last: a checkpoint counts as kept only when it was read back whole and verified, in the
/// background by rank 0, which begins when it is committed; of those committed meanwhile, the newest comes
/// next. Until then the older ones stay. Reads at most so many bytes per second; 0: no limit. A verification
/// that fails is reported with the file, and nothing is removed; close() and the destructor give up one that
/// is under way.
struct verified_t {
  std::uint64_t bytes_per_second = std::uint64_t{256} << 20;
};
/// `cairn::keep_last(3, cairn::verified)`
inline constexpr verified_t verified{};

/// After each commit, the checkpoints of this run's line but for its newest n are removed: of those up to the
/// one that the run resumed from or loaded last, as they were then, and those that it has committed since.
/// Never removed are the one that was just committed, the one that the run resumed from or loaded last, and
/// larger numbers than the one just committed. What is not in the line (another run's, a branch left by a
/// roll-back, what resume() passed over) neither counts nor is removed; a warning says so once. At least
/// 1; the checkpointer refuses 0. Pass as any argument.
struct keep_last {
  using cairn_role = role::retention;
  explicit constexpr keep_last(std::size_t n) noexcept : count(n) {}
  constexpr keep_last(std::size_t n, verified_t how) noexcept : count(n), scrub(how) {}
  std::size_t count;
  std::optional<verified_t> scrub = {};
};

}  // namespace v1
}  // namespace cairn
