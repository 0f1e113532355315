// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/device_access.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/save_announcement.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/state_dict.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// What of a store is needed before a save begins.
struct space_needed {
  std::uint64_t bytes = 0;
  std::uint64_t objects = 0;
};

/// How plans become durable bytes.
///
/// On every rank, in this order, for one save:
/// 1. `layout(plan, item_bytes, rank)`: the image; `item_bytes[i]` is the stored size of plan item i at this
/// save. Pure: depends on its arguments and fingerprint() only. Of many small tensors that it calls early,
/// the checkpointer lets some be copied late.
/// 2. `write(context, image, deadline)`: takes the image's bytes as they become available, makes data durable
/// under names of this attempt, then waits until the
///    image is released, then publishes the record. Calls image.read_completely() when it needs the bytes no
///    more.
/// 3. `commit(context, metadata, deadline)`: on the coordinator: collects the records of all ranks, checks
/// that they agree, publishes the checkpoint as the last step.
///    It exists from then on; before, it does not. Throws what a rank's record reports as its failure, with
///    that rank in the fields; peer_error naming the ranks whose record is missing at the deadline;
///    plan_error (plan_disagreement) naming ranks; storage_error (storage_already_committed) if another
///    attempt won. `await_commit(context, deadline)`: on the other ranks: returns when the checkpoint exists;
///    throws what the coordinator gave as the reason where it was aborted.
/// 4. `abort(context, failure)`: if step 2 or 3 threw: tells the others and removes what this attempt wrote.
/// Never throws.
///
/// And at any time, on the coordinator only:
/// - `remove(step)`: the manifest first, then the rest. `quarantine(step)`: the checkpoint does not exist any
///   more but can be examined; false on a read-only store.
/// - `clean(run)`: fences and removes what interrupted attempts of other runs left in uncommitted
///   checkpoints; the number of objects removed. Data of committed checkpoints is never touched.
/// - `check_space(needed)`: throws storage_no_space naming needed and free, where the store can tell.
///
/// Different saves may be in different steps at once, from several threads.
template <class W>
concept StorageWriter =
    std::movable<W> &&
    requires(W& w, const W& k, const save_plan& plan, std::span<const std::uint64_t> item_bytes, int rank,
             const save_context& context, const staged_image& image, const metadata& stored, deadline until,
             std::exception_ptr failure, std::int64_t step, run_id run, space_needed needed) {
      { k.layout(plan, item_bytes, rank) } -> std::same_as<image_layout>;
      { k.fingerprint() } -> std::same_as<std::uint64_t>;
      { w.write(context, image, until) } -> std::same_as<record>;
      { w.commit(context, stored, until) } -> std::same_as<void>;
      { w.await_commit(context, until) } -> std::same_as<void>;
      { w.abort(context, failure) } noexcept -> std::same_as<void>;
      { w.remove(step) } -> std::same_as<void>;
      { w.quarantine(step) } -> std::same_as<bool>;
      { w.clean(run) } -> std::same_as<std::uint64_t>;
      { w.check_space(needed) } -> std::same_as<void>;
    };

/// What a StorageWriter may offer besides.
///
/// - `other_writing_rank(context)`: a rank but this one of which a file of this very save is there
///   already, -1 where none is seen. A rank that waits in vain for others to plan a save learns by it that
///   they save without it.
template <class W>
concept FindsWritingRank = StorageWriter<W> && requires(W& w, const save_context& context) {
  { w.other_writing_rank(context) } noexcept -> std::same_as<int>;
};

/// How one rank sees the marks that another one left in the store.
enum class mark_visibility : std::uint8_t {
  seen,  ///< both
  late,  ///< the name that this rank had looked for before is not seen, though the new one is
  none,  ///< not at all within some seconds: it looks into another store
};

/// What a StorageWriter may offer besides: it proves what its commits rely on, before the first save.
///
/// - `prove_store()`: see SelfTestingStore; by one rank. An empty proof where the store tries nothing.
/// - `look_early(run)`, by the others, then `leave_mark(run)`, by rank 0, `sees_mark(run)`, by the others,
///   and `remove_mark(run)`, by rank 0: whether they share one store, and whether what one writes is seen by
///   all once it is written. All but the last throw the store's errors.
template <class W>
concept ProvesStore = requires(W& w, run_id run) {
  { w.prove_store() } -> std::same_as<store_proof>;
  { w.look_early(run) } -> std::same_as<void>;
  { w.leave_mark(run) } -> std::same_as<void>;
  { w.sees_mark(run) } -> std::same_as<mark_visibility>;
  { w.remove_mark(run) } noexcept -> std::same_as<void>;
};

/// What a StorageWriter may offer besides, where several processes use one store.
///
/// - `lease(step, deadline)`: keeps a committed checkpoint from being removed while somebody reads it; see
///   checkpoint_lease. Throws storage_error (storage_not_committed), timeout_error. remove() of a checkpoint
///   that is leased throws storage_error (storage_leased), and has removed nothing.
template <class W>
concept LeasingWriter = StorageWriter<W> && requires(W& w, std::int64_t step, deadline until) {
  { w.lease(step, until) } -> std::same_as<checkpoint_lease>;
};

/// What a StorageWriter may offer besides: it remembers, from run to run, which of them resumed from which
/// step and committed nothing since, so that a checkpoint that ends each run is passed over. By rank 0.
///
/// - `note_restart(run, step)`: a run goes on from a step; once for both.
/// - `restarts()`: the step of each such note, ascending.
/// - `forget_restart(run, step)`: that note does not count any more; no error if there is none.
/// - `forget_restarts(step)`: those of all runs up to a step; how many are left.
///
/// All throw the store's errors.
template <class W>
concept TracksRestarts = requires(W& w, run_id run, std::int64_t step) {
  { w.note_restart(run, step) } -> std::same_as<void>;
  { w.restarts() } -> std::same_as<std::vector<std::int64_t>>;
  { w.forget_restart(run, step) } -> std::same_as<void>;
  { w.forget_restarts(step) } -> std::convertible_to<std::size_t>;
};

/// What a StorageWriter may offer besides: other processes see a save before its first byte is written, so that
/// a run that resumes waits for saves that processes of an earlier run still carry out. By process_executor.
///
/// - `announce(context)`: shows this rank's part of a save, as long as what it gives lives: before the save
///   is handed to another process. Shows nothing where the store cannot tell whose writers live.
/// - `announce_worker(context)`: the same by the process that carries the save out, where that is seen
///   otherwise than by the objects that it writes; shows nothing elsewhere.
/// - `retract(context)`: removes what a process that is gone has announced.
///
/// All but the last throw the store's errors.
template <class W>
concept AnnouncesSaves = StorageWriter<W> && requires(W& w, const save_context& context) {
  { w.announce(context) } -> std::same_as<save_announcement>;
  { w.announce_worker(context) } -> std::same_as<save_announcement>;
  { w.retract(context) } noexcept -> std::same_as<void>;
};

/// One attempt to save a step.
struct save_attempt {
  std::int64_t step = 0;
  std::uint64_t attempt = 0;
  bool operator==(const save_attempt&) const = default;
};

/// What a StorageWriter may offer besides, where it can tell who writes.
///
/// - `live_saves(run)`: the attempts of other runs that a process still carries out; none where the store
///   cannot tell. Throws the store's errors.
template <class W>
concept ReportsLiveSaves = StorageWriter<W> && requires(W& w, run_id run) {
  { w.live_saves(run) } -> std::same_as<std::vector<save_attempt>>;
};

/// What a StorageWriter may offer besides, for messages.
///
/// - `location_of(step)`: the object by which the checkpoint of a step comes to exist.
template <class W>
concept LocatesCheckpoints = StorageWriter<W> && requires(W& w, std::int64_t step) {
  { w.location_of(step) } -> std::convertible_to<std::string>;
};

/// How a load reads.
struct read_options {
  std::uint64_t memory_budget = std::uint64_t{256} << 20;  ///< for bounce buffers, in bytes
  device_load* devices = nullptr;  ///< what writes destinations in memory of devices; null: they are refused
};

/// Gives the destination of a planned read; called by one thread.
using target_resolver = std::function<item_target(const read_item&)>;

/// How durable bytes come back.
///
/// - `list()`: the steps of committed checkpoints, ascending. May name ones that turn out to be damaged.
/// - `fetch(step)`: the manifest's bytes, to be handed to all ranks; throws storage_not_committed.
/// - `open(step, manifest)`: checks the bytes and gives a `checkpoint_type` whose `metadata()` says what is
///   stored; throws corrupt_error. Reads nothing else.
/// - `read(checkpoint, state, plan, resolver, options, deadline)`: fills every destination; no byte is
///   delivered that was not verified, but destinations may hold verified parts when it throws corrupt_error
///   (item, file, offset) or storage_error. Gives the bytes fetched. `state` is for resizing bytes items.
/// - `verify(checkpoint, deadline)`: reads everything and checks every digest; throws the first
///   corrupt_error. Gives the bytes read.
///
/// One thread at a time for each checkpoint_type; several checkpoints may be read at once.
template <class R>
concept StorageReader =
    std::movable<R> &&
    requires(R& r, std::int64_t step, std::span<const std::byte> manifest,
             typename R::checkpoint_type& opened, const state_dict& state, const load_plan& plan,
             const target_resolver& resolver, read_options options, deadline until) {
      { r.list() } -> std::same_as<std::vector<std::int64_t>>;
      { r.fetch(step) } -> std::same_as<std::vector<std::byte>>;
      { r.open(step, manifest) } -> std::same_as<typename R::checkpoint_type>;
      { opened.metadata() } -> std::convertible_to<const metadata&>;
      { r.read(opened, state, plan, resolver, options, until) } -> std::same_as<std::uint64_t>;
      { r.verify(opened, until) } -> std::same_as<std::uint64_t>;
    };

/// Called before each read of a verify with the bytes that it reads, by several threads: may wait, and what
/// it throws ends the verify.
using read_gate = std::function<void(std::uint64_t)>;

/// What a StorageReader may offer besides, so that a verify can be slowed down and ended.
///
/// - `verify(checkpoint, deadline, gate)`: the same, through a read_gate.
template <class R>
concept GatedReader = StorageReader<R> && requires(R& r, typename R::checkpoint_type& opened, deadline until,
                                                   const read_gate& gate) {
  { r.verify(opened, until, gate) } -> std::same_as<std::uint64_t>;
};

class read_exchange;

/// What a StorageReader may offer besides: ranks that load together read only once what several of them want.
///
/// - `read_shared(opened, state, plan, resolver, options, exchange, deadline)`: as read(), together with the other
///   ranks, whose plans `exchange` knows. Collective: throws on all ranks alike what any of them throws before the
///   last exchange. Gives the bytes that this rank fetched from the store.
template <class R>
concept SharingReader =
    StorageReader<R> &&
    requires(R& r, typename R::checkpoint_type& opened, const state_dict& state, const load_plan& plan,
             const target_resolver& resolver, read_options options, read_exchange& exchange, deadline until) {
      {
        r.read_shared(opened, state, plan, resolver, options, exchange, until)
      } -> std::same_as<std::uint64_t>;
    };

/// What a StorageReader may offer besides.
///
/// - `run_of(step)`: the run that committed a checkpoint; throws what fetch() and open() throw.
template <class R>
concept ReportsRuns = StorageReader<R> && requires(R& r, std::int64_t step) {
  { r.run_of(step) } -> std::same_as<run_id>;
};

/// A matching pair: what `writer()` writes, `reader()` reads. Pass one to a checkpointer in place of a
/// ByteStore.
template <class S>
concept Storage = std::movable<S> && requires(S& s) {
  { s.writer() } -> StorageWriter;
  { s.reader() } -> StorageReader;
  { s.describe() } -> std::convertible_to<std::string>;
};

}  // namespace v1
}  // namespace cairn
