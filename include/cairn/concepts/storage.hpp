// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/device_access.hpp>
#include <cairn/model/change_watch.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/save_announcement.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/system/callback.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// The space that a save needs in a store.
struct space_needed {
  std::uint64_t bytes = 0;
  /// The number of new objects.
  std::uint64_t objects = 0;
};

/// Writes plans as durable bytes.
///
/// One save calls these on every rank, in this order:
/// 1. `layout(plan, item_bytes, rank)`: returns the layout of the image; `item_bytes[i]` is the stored
///    size of plan item i at this save. Pure: depends only on its arguments and fingerprint(). If it
///    marks many small tensors early, the checkpointer may copy some of them late.
/// 2. `write(context, image, deadline)`: writes the image's bytes as they become available, makes the
///    data durable under names of this attempt, waits until the image is released, and publishes the
///    record. Unless image.digested(), which by default it is not, it computes image.digests() before it
///    publishes them. Calls image.read_completely() when it no longer needs the bytes.
/// 3. `commit(context, metadata, deadline)`, on the coordinator: collects the records of all ranks,
///    checks that they agree, and publishes the checkpoint as its last step; the checkpoint exists from
///    then on. What context.annotations says joins what the metadata says. Throws the failure that a rank's record reports, with that rank in the fields; peer_error
///    naming the ranks whose record is missing at the deadline; plan_error (plan_disagreement) naming
///    ranks; storage_error (storage_already_committed) if another attempt won. `await_commit(context,
///    deadline)`, on the other ranks: returns when the checkpoint exists. Throws the coordinator's reason
///    where the attempt was aborted.
/// 4. `abort(context, failure)`, if step 2 or 3 threw: tells the other ranks, and removes what this
///    attempt wrote. Never throws.
///
/// The coordinator calls these at any time:
/// - `remove(step)`: removes the manifest first, then the rest.
/// - `quarantine(step)`: moves the manifest aside, so that the checkpoint no longer exists but can be
///   examined. False on a read-only store.
/// - `clean(run)`: fences interrupted attempts of other runs, removes what they left in uncommitted
///   checkpoints, and returns the number of removed objects. It never touches data of committed
///   checkpoints.
/// - `check_space(needed)`: throws storage_no_space with the needed and the free space, where the store
///   knows it.
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

/// A StorageWriter that finds ranks which are already writing a save.
///
/// - `other_writing_rank(context)`: returns another rank of which a file of this save exists already, or
///   -1 if there is none. A rank that waits for others to plan a save learns from it that they save
///   without planning.
template <class W>
concept FindsWritingRank = StorageWriter<W> && requires(W& w, const save_context& context) {
  { w.other_writing_rank(context) } noexcept -> std::same_as<int>;
};

/// How one rank sees a mark that another rank left in the store.
enum class mark_visibility : std::uint8_t {
  seen,  ///< it sees the mark, also under a name that it had looked up before the mark was left
  late,  ///< it sees the mark only under a new name: its client remembers that the other name was absent
  none,  ///< it does not see the mark within some seconds: it uses another store
};

/// A StorageWriter that tests, before the first save, what its commits rely on.
///
/// - `test_store()`: called by one rank; see SelfTestingStore. Returns an empty report where the store
///   has no test.
/// - `look_up_mark(run)` by the other ranks, then `leave_mark(run)` by rank 0, `sees_mark(run)` by the
///   others and `remove_mark(run)` by rank 0: whether all ranks share one store and see at once what
///   another one has written. All but the last throw the store's errors.
template <class W>
concept TestsStore = requires(W& w, run_id run) {
  { w.test_store() } -> std::same_as<store_test_report>;
  { w.look_up_mark(run) } -> std::same_as<void>;
  { w.leave_mark(run) } -> std::same_as<void>;
  { w.sees_mark(run) } -> std::same_as<mark_visibility>;
  { w.remove_mark(run) } noexcept -> std::same_as<void>;
};

/// A StorageWriter for stores that several processes use.
///
/// - `lease(step, deadline)`: keeps a committed checkpoint from being removed while somebody reads it;
///   see checkpoint_lease. Throws storage_error (storage_not_committed), timeout_error. remove() of a
///   leased checkpoint throws storage_error (storage_leased) and removes nothing.
template <class W>
concept LeasingWriter = StorageWriter<W> && requires(W& w, std::int64_t step, deadline until) {
  { w.lease(step, until) } -> std::same_as<checkpoint_lease>;
};

/// Who finds out whether the checkpoint of a lease is there.
enum class lease_check : std::uint8_t {
  at_once,   ///< lease() does, when nobody can remove it any more
  by_caller  ///< who called it reads the manifest next, which tells the same
};

/// A LeasingWriter that leaves that to its caller, where a look costs a round trip.
///
/// - `lease(step, deadline, check)`: as lease(step, deadline); with `by_caller`, it may return a lease where there is no
///   checkpoint.
template <class W>
concept LeasesUnchecked =
    LeasingWriter<W> && requires(W& w, std::int64_t step, deadline until, lease_check check) {
      { w.lease(step, until, check) } -> std::same_as<checkpoint_lease>;
    };

/// A StorageWriter that tells who has leases, for programs that say what they would remove.
///
/// - `readers(step)`: returns the processes that have a lease on a checkpoint, for messages; none where the store has
///   no leases. Throws the store's errors.
template <class W>
concept ReportsReaders = LeasingWriter<W> && requires(W& w, std::int64_t step) {
  { w.readers(step) } -> std::same_as<std::vector<std::string>>;
};

/// A StorageWriter that removes a checkpoint only while it is the one that its caller looked at.
///
/// - `remove_attempt(attempt)`: as remove(attempt.step), where the manifest is of this attempt; other saves of the step
///   go on. False where there is no manifest or another one, which stays. Throws what remove() throws.
template <class W>
concept RemovesAttempts = StorageWriter<W> && requires(W& w, save_attempt attempt) {
  { w.remove_attempt(attempt) } -> std::same_as<bool>;
};

/// A StorageWriter whose checkpoints can be pinned: they stay until the pin is taken off, in every process.
///
/// - `pin(step, deadline)`: pins a committed checkpoint, durably; no error where it is pinned. Throws storage_error
///   (storage_not_committed).
/// - `unpin(step)`: takes the pin off; no error where there is none.
/// - `pinned()`: returns the steps with a pin, ascending.
///
/// remove() of a pinned checkpoint throws storage_error (storage_pinned) and removes nothing. All throw the store's errors.
template <class W>
concept PinsCheckpoints = StorageWriter<W> && requires(W& w, std::int64_t step, deadline until) {
  { w.pin(step, until) } -> std::same_as<void>;
  { w.unpin(step) } -> std::same_as<void>;
  { w.pinned() } -> std::same_as<std::vector<std::int64_t>>;
};

/// A StorageWriter that remembers which runs resumed from which step and have committed nothing since, so
/// that resume() can pass over a checkpoint that makes every run crash. Rank 0 calls these.
///
/// - `note_restart(run, step)`: notes that a run resumed from a step; at most one note for a run and a step.
/// - `restarts()`: returns the step of each note, ascending.
/// - `forget_restart(run, step)`: removes that note; no error if there is none.
/// - `forget_restarts(step)`: removes the notes of all runs up to a step, and returns how many notes are
///   left.
///
/// All throw the store's errors.
template <class W>
concept TracksRestarts = requires(W& w, run_id run, std::int64_t step) {
  { w.note_restart(run, step) } -> std::same_as<void>;
  { w.restarts() } -> std::same_as<std::vector<std::int64_t>>;
  { w.forget_restart(run, step) } -> std::same_as<void>;
  { w.forget_restarts(step) } -> std::convertible_to<std::size_t>;
};

/// A StorageWriter that shows a save to other processes before its first byte is written, so that a run
/// that resumes waits for saves that processes of an earlier run still carry out. process_executor calls
/// these.
///
/// - `announce(context)`: announces this rank's files of a save, as long as the returned object lives;
///   called before the save is handed to another process. Announces nothing where the store does not
///   track writers.
/// - `announce_worker(context)`: the same, called by the process that carries out the save. Announces
///   nothing where the objects that the process writes show that it lives.
/// - `retract(context)`: removes the announcement of a process that has ended.
///
/// All but the last throw the store's errors.
template <class W>
concept AnnouncesSaves = StorageWriter<W> && requires(W& w, const save_context& context) {
  { w.announce(context) } -> std::same_as<save_announcement>;
  { w.announce_worker(context) } -> std::same_as<save_announcement>;
  { w.retract(context) } noexcept -> std::same_as<void>;
};

/// A StorageWriter that knows which attempts are still being carried out.
///
/// - `live_saves(run)`: returns the attempts of other runs that a process still carries out, without those that were ended
///   for good; none where the store does not track writers. Throws the store's errors.
template <class W>
concept ReportsLiveSaves = StorageWriter<W> && requires(W& w, run_id run) {
  { w.live_saves(run) } -> std::same_as<std::vector<save_attempt>>;
};

/// What a run finds that takes over from earlier ones; see TakesOver.
struct takeover {
  std::uint64_t removed = 0;  ///< objects, as clean() returns
  std::optional<std::vector<std::int64_t>>
      steps;  ///< as list() of a reader returns after that; nothing: list them
  std::optional<std::vector<std::int64_t>>
      restarts;  ///< see TracksRestarts; without those of other runs that live; nothing: ask for them
};
/// Whether to look again for these saves of other runs, having waited a while. False for none.
using takeover_wait = detail::callback<bool(const std::vector<save_attempt>&)>;

/// A StorageWriter that answers together what a run asks that resumes, in fewer steps than one after another.
///
/// - `take_over(run, waits)`: calls `waits` with live_saves(run), again and again while it returns true; then as clean(run).
///   Throws the store's errors.
template <class W>
concept TakesOver = StorageWriter<W> && requires(W& w, run_id run, const takeover_wait& waits) {
  { w.take_over(run, waits) } -> std::same_as<takeover>;
};

/// A StorageWriter that shows other processes which runs live.
///
/// - `show_run(run)`: shows that the run lives, as long as the returned object and this process; null where that cannot be
///   shown.
/// - `live_runs(run)`: returns the other runs that are shown now, by any process.
/// - `has_died(run)`: whether a run that is not shown any more was shown by a process that died, as far as one can still
///   see it.
///
/// All throw the store's errors.
template <class W>
concept ShowsRuns = StorageWriter<W> && requires(W& w, run_id run) {
  { w.show_run(run) } -> std::same_as<std::shared_ptr<void>>;
  { w.live_runs(run) } -> std::same_as<std::vector<run_id>>;
  { w.has_died(run) } -> std::same_as<bool>;
};

/// A StorageWriter that finds out whether its store's root is the one that a run has used before.
///
/// - `root_identity()`: see IdentifiesRoot; empty where the store has no such root, or there is none now.
/// - `require_root(known)`: throws storage_error (storage_not_found) where the root is gone, or is another one with no
///   checkpoint of known.step or a later one. Nothing where that or the identity is not known. write() of a context
///   with a known root does this before its first byte.
///
/// Both throw the store's errors.
template <class W>
concept KnowsRoot = StorageWriter<W> && requires(W& w, const known_root& known) {
  { w.root_identity() } -> std::same_as<std::string>;
  { w.require_root(known) } -> std::same_as<void>;
};

/// A StorageWriter that names, for messages, the place of a checkpoint.
///
/// - `location_of(step)`: returns the key of the object whose publication commits the checkpoint of a step. Asked
///   for an error about a deadline alone. Any thread, under a lock of the save: it must not block, nor ask
///   handles of saves. Where it throws, the message names the storage instead.
template <class W>
concept LocatesCheckpoints = StorageWriter<W> && requires(W& w, std::int64_t step) {
  { w.location_of(step) } -> std::convertible_to<std::string>;
};

struct block_pass;

/// How a load reads.
struct read_options {
  std::uint64_t memory_budget = std::uint64_t{256} << 20;  ///< for bounce buffers, in bytes
  device_load* devices = nullptr;  ///< writes destinations in device memory; null: they are refused
  load_stages* stages = nullptr;   ///< a reader adds what it knows of its reading; null: nobody asks
  block_pass* blocks = nullptr;    ///< for a ComparesBlocks: which blocks memory holds; null: it reads all
};

/// Returns the destination of a planned read. One thread calls it.
using target_resolver = detail::callback<item_target(const read_item&)>;

/// Reads checkpoints.
///
/// - `list()`: returns the steps of committed checkpoints, ascending. Some of them may turn out to be
///   damaged.
/// - `fetch(step)`: returns the manifest's bytes, which are handed to all ranks. Throws
///   storage_not_committed.
/// - `open(step, manifest)`: checks the bytes and returns a `checkpoint_type` whose `metadata()` says what is
///   stored. Reads nothing else. Throws corrupt_error.
/// - `read(checkpoint, state, plan, resolver, options, deadline)`: fills every destination and returns
///   the number of bytes fetched. Delivers only verified bytes; some destinations may be filled when it
///   throws corrupt_error (item, file, offset) or storage_error. It resizes items of bytes through
///   `state`.
/// - `verify(checkpoint, deadline)`: reads everything, checks every digest, and returns the number of
///   bytes read. Throws the first corrupt_error.
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

/// Several threads call it before each read of a verify, with the number of bytes of the read. It may
/// wait; an exception ends the verify.
using read_gate = detail::callback<void(std::uint64_t)>;

/// A StorageReader whose verify can be slowed down and ended.
///
/// - `verify(checkpoint, deadline, gate)`: as verify(checkpoint, deadline), and calls the gate before
///   each read.
template <class R>
concept GatedReader = StorageReader<R> && requires(R& r, typename R::checkpoint_type& opened, deadline until,
                                                   const read_gate& gate) {
  { r.verify(opened, until, gate) } -> std::same_as<std::uint64_t>;
};

class read_exchange;

/// A StorageReader with which ranks that load together read only once what several of them want.
///
/// - `read_shared(opened, state, plan, resolver, options, exchange, deadline)`: as read(), together with
///   the other ranks, whose plans `exchange` knows. Collective: an error of any rank before the last
///   exchange is thrown on all ranks. Returns the number of bytes that this rank fetched from the store.
template <class R>
concept SharingReader =
    StorageReader<R> &&
    requires(R& r, typename R::checkpoint_type& opened, const state_dict& state, const load_plan& plan,
             const target_resolver& resolver, read_options options, read_exchange& exchange, deadline until) {
      {
        r.read_shared(opened, state, plan, resolver, options, exchange, until)
      } -> std::same_as<std::uint64_t>;
    };

/// A StorageReader that leaves out blocks that memory holds already, and remembers those that it has read. It heeds
/// read_options::blocks in read(), and in read_shared() where it has one, see block_pass: with it, all that can fail
/// before memory changes fails before block_pass::ready is called.
///
/// - `compares_blocks`: a constant, true.
template <class R>
concept ComparesBlocks = StorageReader<R> && requires { requires R::compares_blocks; };

/// A StorageReader that tells of new checkpoints without being asked for them again and again.
///
/// - `watch()`: watches the checkpoints from now on; what it returns does not outlive the reader. Null where the store does
///   not tell.
template <class R>
concept WatchesCheckpoints = StorageReader<R> && requires(R& r) {
  { r.watch() } -> std::same_as<std::unique_ptr<change_watch>>;
};

/// A StorageReader that can prepare for reads.
///
/// - `expect_reads()`: a load or a resume begins: opens connections, for example, while it finds out what to read. Does
///   not wait for them.
template <class R>
concept ExpectsReads = StorageReader<R> && requires(R& r) {
  { r.expect_reads() } noexcept -> std::same_as<void>;
};

/// A StorageReader that lists the newest checkpoints without listing all.
///
/// - `list_from(step)`: returns what list() would, without the steps below this one.
template <class R>
concept ListsFrom = StorageReader<R> && requires(R& r, std::int64_t step) {
  { r.list_from(step) } -> std::same_as<std::vector<std::int64_t>>;
};

/// A StorageReader that knows which run committed a checkpoint.
///
/// - `run_of(step)`: returns that run. Throws what fetch() and open() throw.
template <class R>
concept ReportsRuns = StorageReader<R> && requires(R& r, std::int64_t step) {
  { r.run_of(step) } -> std::same_as<run_id>;
};

/// A StorageWriter and a StorageReader of the same format. Pass one to a checkpointer in place of a
/// ByteStore.
template <class S>
concept Storage = std::movable<S> && requires(S& s) {
  { s.writer() } -> StorageWriter;
  { s.reader() } -> StorageReader;
  { s.describe() } -> std::convertible_to<std::string>;
};

/// A Storage from which checkpoints are only loaded, such as files of another program: a checkpointer over it is
/// cairn::read_only without being told so.
///
/// - `is_read_only`: a constant, true.
template <class S>
concept ReadOnlyStorage = Storage<S> && requires { requires S::is_read_only; };

}  // namespace v1
}  // namespace cairn
