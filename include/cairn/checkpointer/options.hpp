// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/roles.hpp>
#include <cairn/model/retention_policy.hpp>

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
  /// The ranks agree, with one small message each, to skip this save if any of them is busy. With persist{}, where
  /// no save waits for the store, a rank is busy while its tier does not hold the earlier save yet.
  skip,
};

/// Whether the ranks of a load share what they read. `on`: one rank reads what several ranks want, in stripes
/// that take turns, and sends it to the others through the communicator, so that a load fetches the
/// size of the checkpoint and not replicas x size. `off`: every rank reads what it wants by itself, which is
/// good where the store caches. The same on all ranks; a group of one never shares. Pass it as
/// any argument: `cairn::read_sharing::on`.
enum class read_sharing : std::uint8_t { off, on };
template <>
struct role_of<read_sharing> {
  using type = role::read_sharing;
};

/// Options of a checkpointer, all with defaults. Pass them as any argument:
/// `cairn::checkpointer_options{.max_fallback = 1}`.
struct checkpointer_options {
  using cairn_role = role::options;
  /// What save() does while an earlier save is under way.
  busy_policy when_busy = busy_policy::block;
  /// Limit for writing one save, for its commit, and for each wait for a buffer. Waits for the end of a save,
  /// which include other ranks' writing, last at most three times as long and 10 s.
  std::chrono::nanoseconds timeout = std::chrono::minutes(30);
  /// Limit for each exchange of messages between ranks (planning, loading).
  std::chrono::nanoseconds peer_timeout = std::chrono::minutes(5);
  /// With a worker process: the longest time that save(), or before_update() of an overlapped save, waits
  /// until the worker has the save. After that the save survives the end of the trainer at any moment.
  /// The worker has the save long before everything is copied, unless the store hangs. 0: do not wait.
  std::chrono::nanoseconds handover_timeout = std::chrono::seconds(5);
  /// After so many failed saves in a row, save() throws, when its own save is under way; 0: never. With persist{}, what the
  /// store does not take counts only where `strict` says so: else a save that the tier holds has not failed, whatever
  /// `every` is. With `strict` a save that is only held ends no row.
  int max_consecutive_failures = 3;
  /// Who computes digests: true: the writer, after save() has returned; false: the copy, in the same pass. Left
  /// out: the writer where save() waits for the copy and for nothing after it; the copy with overlapped{} and
  /// with inline_executor. The checkpoint is the same, and describe() tells who is asked for them. With checked{}
  /// always the copy. The writer computes what a stager whose copies make no digests leaves out.
  std::optional<bool> checksum_in_writer = {};
  /// An overlapped save copies tensors below 64 KiB before save() returns, but at most so many bytes of
  /// them on each rank. If there are more, it copies only those below 32 KiB early, or below 16 KiB, and
  /// so on, and the others like large ones. 0: none. Values, bytes, per-rank items and copy_now are
  /// copied early in addition. They block save() by 0.1 to 0.2 ms a MiB; to wake the thread that copies the others
  /// takes some 0.01 ms.
  std::uint64_t small_tensor_bytes = std::uint64_t{64} << 10;
  /// Finds tensors of 64 KiB and more that stay as they are, and treats them as if they were flagged cairn::frozen, for as
  /// long as they stay: what is the same in two saves in a row goes into files of its own, which later saves link. A
  /// change brings the tensor back within the save that finds it. save() reads these tensors to find out (some 20 GB/s a
  /// thread, on up to four), also where it is overlapped{}, and all of them at the first save. Only memory of the host that
  /// is contiguous and stored without a cast. See docs/frozen-items.md.
  bool link_unchanged = false;
  /// How long resume() waits for saves of an earlier run whose processes still live, such as the worker
  /// of a trainer that was killed, but at most half of peer_timeout; then it fences them. 0: it fences
  /// them at once, as it does those of which a tier holds a newer one of the same run.
  std::chrono::nanoseconds earlier_run_timeout = std::chrono::seconds(30);
  /// The number of damaged checkpoints that resume() passes over at most.
  int max_fallback = 3;
  /// resume() passes over a checkpoint from which so many runs resumed without committing anything after
  /// it or ending normally, and live no more: it loads, and the run then crashes. The checkpoint counts for max_fallback
  /// and is not changed; resume() takes it if no other one loads. 0: never. Does not apply to
  /// resume_together and read_only.
  int max_restarts = 3;
  /// Shows other processes that this run lives, from its resume() or its first commit to its end, so that follow() of theirs
  /// tells at once when it has ended, or has died, and never takes it for gone between two saves. Rank 0 holds a lease
  /// for it: an empty, locked file; in a bucket one request every 8 s. Nothing in a store that has no leases.
  bool announce_run = false;
  /// The memory that a load uses besides its destinations, in bytes.
  std::uint64_t load_memory = std::uint64_t{256} << 20;
  /// Whether ranks share what they read; cairn::read_sharing as an argument overrides this.
  cairn::read_sharing sharing = cairn::read_sharing::on;
  /// How many plans of saves, and how many of loads, are kept for states of different structure.
  std::size_t cached_plans = 4;
  /// The bytes of plans of saves, and of loads, that are kept at most. A save's plan counts with the size
  /// of the summary that all ranks share (see cached_plan::bytes). The last plan is kept whatever its
  /// size.
  std::size_t cached_plan_bytes = std::size_t{64} << 20;
  /// The mean time between failures of the whole job; reports then suggest how often to save. 0: not known.
  std::chrono::nanoseconds mean_time_between_failures{0};
  /// Prints nothing on stderr.
  bool quiet = false;
  /// See cairn::read_only.
  bool read_only = false;
};

/// Makes a checkpointer that only loads. It changes nothing in the store, but for the lease that lease() takes: a load holds
/// none, resume() removes and quarantines nothing and does not test whether the store can be written;
/// save(), prepare() and remove() throw. A program that calls only load() does not need it, unless it is to hold no
/// lease. Pass it as any argument.
struct read_only {
  using cairn_role = role::access;
};

/// With a local_tier: only some saves go on to the store, the others end when they are held. A save that would go
/// there while an earlier one is still being written is only held, and the next one goes instead, so that the
/// store's delays and failures cost training nothing; to decide this, each such save sends one small message from
/// rank to rank. Where the one before is not in the store after `checkpointer_options::timeout`, a warning says so, again when
/// 8 saves that were due have been kept from it since, 64, ... close() writes the last save to the store. Pass it as any argument, the same on all ranks. How
/// fast a rank writes is an option of the executor (bytes_per_second).
struct persist {
  using cairn_role = role::persist;
  /// Each n-th save of a run goes, or the first that may after it; at least 1. 1: the newest, whenever the store has the one
  /// before it. One that fails there is not tried again: the next one that is due goes. Where resume() takes a step that the
  /// tier has and the store lacks, each save that finds no earlier one there goes as well until one of them is committed,
  /// so that the store does not fall back further with each restart.
  std::uint64_t every = 1;
  /// A save goes at the earliest so many seconds after the one that went before it, or after the beginning, but for those
  /// of a run whose step the store lacks; 0: it does not depend on time. To agree on it, the ranks send a few small messages in that time.
  double seconds = 0;
  /// So many ranks write their data at once, for a store that slows down where all of a large job write: each other one
  /// begins when the record of the rank so many before it is there, for which it looks up to twenty times a second (in a world
  /// of more than 500 ranks less often), or as soon as close() waits for the save. All of it has the save's timeout. 0: all
  /// ranks at once. Ranks that share a file write together, one file at least.
  std::int32_t writers_at_once = 0;
  /// What the store does counts: a save that is due waits until the one before it is written, and save() throws
  /// what kept one from being committed, once, after it has begun its own. Where it waits for
  /// `checkpointer_options::timeout` in vain, save() throws timeout_error (timeout_commit) in the same way; the next ones do
  /// not wait for that one again, and are only held until it has ended.
  bool strict = false;
};

/// Copies tensors while the next forward and backward run: save() returns at once, and the memory of
/// tensors must not change until before_update() has returned. Pass it as any argument.
struct overlapped {
  using cairn_role = role::overlap;
};

/// Detects memory that changed between save() and its copying, which breaks the contract of ownership.
/// Such a save fails with usage_memory_changed, which names the item and its first changed block of 1
/// MiB, and publishes nothing. For debugging, with every stager and executor: save() digests the whole
/// memory of its items (about 20 GB/s in the calling thread, and 8 bytes of memory for each MiB), and the
/// copy compares the digests. Pass it as any argument; `checked{false}` has no effect.
struct checked {
  using cairn_role = role::check;
  /// False: as if checked{} was not passed.
  bool on = true;
};

// Which checkpoints stay, an argument like the others: keep_last(3), or several policies with |; see retention_policy.
template <>
struct role_of<retention_policy> {
  using type = role::retention;
};
template <>
struct role_of<keep_last> {
  using type = role::retention;
};
template <>
struct role_of<keep_every> {
  using type = role::retention;
};
template <>
struct role_of<keep_best> {
  using type = role::retention;
};
template <>
struct role_of<keep_within> {
  using type = role::retention;
};

}  // namespace v1
}  // namespace cairn
