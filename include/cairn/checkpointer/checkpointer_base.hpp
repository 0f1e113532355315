// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/engine.hpp>
#include <cairn/checkpointer/follow.hpp>
#include <cairn/checkpointer/load_options.hpp>
#include <cairn/concepts/planner.hpp>
#include <cairn/model/annotations.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/save_handle.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/model/stored_items.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

struct resumable;

namespace detail {
/// What options of a load say together.
template <class... Options>
[[nodiscard]] load_request request_of([[maybe_unused]] const Options&... options) {
  load_request request;
  if constexpr ((LoadOption<Options> && ...)) (options.add_to(request), ...);
  return request;
}
}  // namespace detail

/// The calls of cairn::checkpointer, which composes a checkpointer, and of cairn::any_checkpointer, which
/// holds one of any composition.
///
/// Collective: all ranks call the constructor, prepare, save, load, refresh, resume, items, annotations, read, list,
/// lease, pin, unpin, pinned, remove, quarantine and any_rank in the same order, by one thread at a time; only these use the communicator. Any thread may
/// call before_update() and use handles. close() waits for this rank's saves.
///
/// Movable, not copyable. After a move from it every call throws usage_error (usage_closed), except
/// rank() and world_size(), which are undefined then. In a child of fork() the copy refuses every
/// call (usage_wrong_process), and its destructor does nothing. The state_dict may be changed or destroyed
/// once save() has returned; the memory must stay valid and unchanged until the save is `released`.
///
/// The destructor waits until memory is released and saves have ended, at most until three times the timeout
/// and 10 s after the last save(), and 15 s more where the store does not answer to who ends failed saves and gives
/// leases back; it reports failures on stderr and to the observer, and never throws. While an exception unwinds, it gives
/// up an unconfirmed overlapped save; otherwise the save goes on, and a line on stderr says that its
/// memory was not compared, as close() compares it.
class checkpointer_base {
 public:
  /// Plans saves of this state, checks that all ranks see one store, and allocates and pre-faults the
  /// buffers in the background; a save() before they are ready waits. resume() calls it. Optional:
  /// without it the first save() does this work.
  void prepare(const state_dict& state) { engine_.open().prepare(state); }

  /// Saves the state as the checkpoint of `step`, the number of completed updates. Returns when training may
  /// change its memory and, with a worker process, the worker has the save; with overlapped{} it returns at
  /// once, see before_update(). The handle tells when the save is written and committed; you may drop it.
  /// @throws usage_error and plan_error of this call, with the state unharmed. Every later error is on
  /// the handle, and wait() and close() throw it. After `max_consecutive_failures` failed saves it throws
  /// usage_error (usage_too_many_failures), after its own save has begun.
  save_handle save(const state_dict& state, std::int64_t step) { return engine_.open().save(state, step); }

  /// Says something about the checkpoint that the next save() makes, such as a commit hash, a loss or how many samples
  /// were seen: `ckpt.annotate({{"commit", "abc"}, {"loss", 2.31}})`. Several calls add up; a name that is given again
  /// gets the later value. Stands in the manifest, for that checkpoint alone: the next save() takes it, whatever
  /// becomes of it, and what is to stand in every checkpoint is given before every save. With several ranks
  /// that of rank 0 counts, and the other ranks may say nothing. Sends no message. The same thread as save().
  /// @throws usage_error (usage_bad_name, usage_bad_option); nothing was added then
  void annotate(const cairn::annotations& said) { engine_.open().annotate(said); }

  /// For overlapped saves: call it in each step, before training changes the memory. Returns when the
  /// last save has copied the memory of training and, with a worker process, the worker has the save (see
  /// handover_timeout). Costs nanoseconds where there is nothing to wait for. @throws timeout_error
  /// (timeout_staging).
  void before_update() { engine_.here().before_update(); }

  /// Waits only until the last save has copied the items with these names, for trainers that update one
  /// item after another. A name is that of an item, or a prefix and `*`: `before_update("layer3.*")`. The
  /// save is confirmed after before_update(), or after calls that together name every item that save()
  /// had not copied when it returned; items that were not named must not change until the next
  /// before_update(). With no_staging it waits for all items. No allocation, O(log n). Any thread.
  /// @throws usage_error (usage_unknown_name) for a name that the state of the last save or prepare() does
  /// not have; timeout_error.
  template <std::convertible_to<std::string_view>... Names>
    requires(sizeof...(Names) > 0)
  void before_update(const Names&... names) {
    auto& engine = engine_.here();
    (engine.before_update(std::string_view(names)), ...);
  }

  /// Restores the state in place from the checkpoint of `step`, on any number of ranks. Options:
  /// cairn::only{patterns}, cairn::partial; rename, convert, pad and cut of <cairn/load_options.hpp>. Moves and removes
  /// nothing in the store.
  /// @throws the same error on all ranks, storage_error (storage_not_committed) also where the checkpoint is removed
  /// meanwhile; the contents of the state are unspecified then.
  template <class... Options>
  load_report load(const state_dict& state, std::int64_t step, const Options&... options) {
    static_assert((LoadOption<Options> && ...),
                  "cairn::checkpointer::load: an argument behind the step is no option of a load: "
                  "cairn::only{\"model.*\"}, "
                  "cairn::partial, or one of <cairn/load_options.hpp> (rename, convert, pad, cut)");
    static_assert(
        !(RefreshOption<Options> || ...),
        "cairn::checkpointer::load: cairn::verify_memory is an option of refresh(); load() reads everything");
    return engine_.open().load(state, step, detail::request_of(options...));
  }

  /// load() with options that are chosen at run time. `patterns`: as cairn::only; empty for everything.
  /// `strict` false: as cairn::partial.
  load_report load(const state_dict& state, std::int64_t step, std::vector<std::string> patterns,
                   bool strict = true) {
    load_request request;
    request.only = std::move(patterns);
    request.strict = strict;
    return engine_.open().load(state, step, std::move(request));
  }

  /// Brings memory to the newest checkpoint, and reads only the blocks of 1 MiB that differ from what this checkpointer
  /// has last loaded, refreshed or saved with this state_dict or a copy of it. Any sharding; what cannot be compared
  /// is read whole: memory that is not known, containers that have moved, tensors that are stored in other pieces than
  /// before, and everything where the storage has no digests. The memory must be unchanged since then, and after a save()
  /// what several ranks hold must be the same bytes on all of them; neither is looked at, unless cairn::verify_memory is
  /// given. A checkpoint of a lower number is taken as well, where it is the newest: the run went back. Options: those
  /// of load(). Collective; a block that several ranks lack is read by one of them, which sends it to all that want it.
  ///
  /// The digests that it needs take 8 bytes of memory for each MiB and some 150 for each item.
  /// @throws the same error on all ranks: storage_error (storage_not_committed) where there is no checkpoint. Memory is as
  /// it was where torn_items() is empty on all ranks; else the next refresh loads those items whole.
  template <LoadOption... Options>
  refresh_report refresh(const state_dict& state, const Options&... options) {
    return engine_.open().refresh(state, std::nullopt, detail::request_of(options...));
  }
  /// refresh() to the checkpoint of `step`, which may be older than what memory holds. @throws storage_error
  /// (storage_not_committed) also where it is removed meanwhile
  template <LoadOption... Options>
  refresh_report refresh(const state_dict& state, std::int64_t step, const Options&... options) {
    return engine_.open().refresh(state, step, detail::request_of(options...));
  }
  /// Follows the run that saves into this store: the newest checkpoint now, if it is another one than `after` of the
  /// options, and each newest one from then on.
  ///
  ///     auto steps = ckpt.follow({.gone_after = std::chrono::minutes(30)});
  ///     while (const auto step = steps.next()) ckpt.refresh(state, *step);
  ///
  /// Reads nothing. @throws usage_error (usage_bad_option)
  [[nodiscard]] step_follower follow(follow_options options = {}) {
    return step_follower(engine_.open(), std::move(options));
  }
  /// The items that a refresh() which threw may have left partly or wholly at another step than the others, on this
  /// rank, by name. Empty after one that succeeded, and after one that threw before it changed memory.
  [[nodiscard]] std::vector<std::string> torn_items() { return engine_.open().torn_items(); }

  /// What the checkpoint of `step` holds: names, kinds, dtypes, shapes. Reads no data. Collective. @throws
  /// storage_error, corrupt_error
  [[nodiscard]] stored_items items(std::int64_t step) { return engine_.open().items(step); }

  /// What annotate() said about the checkpoint of `step`; empty where it said nothing. Reads the manifest of the store alone,
  /// also where a tier holds the step. Collective. @throws storage_error (storage_not_committed), corrupt_error
  [[nodiscard]] cairn::annotations annotations(std::int64_t step) { return engine_.open().annotations(step); }

  /// The elements of one item of the checkpoint of `step`, in row-major order, without a state; items() tells its shape.
  /// Of a per-rank item, this rank's. Bytes and booleans are read as std::uint8_t or std::byte; with cairn::convert{} of
  /// <cairn/load_options.hpp> other dtypes as T; cairn::rename says what `name` stands for. Options that say something
  /// about a state (only, partial, pad, cut) are refused: an item has the shape that the checkpoint says. Collective:
  /// each rank gets the whole item, which must fit into its memory; none is asked for before files are found that
  /// have as many bytes. What it reads is no step from which this run goes on.
  /// @throws usage_error (usage_unknown_name), plan_error (plan_dtype_mismatch), corrupt_error, storage_error
  template <class T, class... Options>
  [[nodiscard]] std::vector<T> read(std::string_view name, std::int64_t step, const Options&... options) {
    constexpr bool readable = Element<T> && !std::same_as<T, bool>;
    static_assert(readable,
                  "cairn::checkpointer::read: elements are numbers of one dtype, such as float or "
                  "cairn::bf16; booleans "
                  "and bytes are read as std::uint8_t");
    static_assert(
        (LoadOption<Options> && ...),
        "cairn::checkpointer::read: an argument behind the step is no option, such as cairn::convert{} of "
        "<cairn/load_options.hpp>");
    static_assert(
        !(StateLoadOption<Options> || ...),
        "cairn::checkpointer::read: only, partial, pad and cut say something about a state, which read "
        "does not have: an item is read whole, with the shape that items(step) tells; load it into a state "
        "to pad or cut it");
    std::vector<T> elements;
    if constexpr (readable && ((LoadOption<Options> && !StateLoadOption<Options>)&&...)) {
      engine_.open().read_item(name, step, dtype_v<T>, detail::request_of(options...),
                               [&](std::size_t count) -> void* {
                                 elements.resize(count);
                                 return elements.data();
                               });
    }
    return elements;
  }

  /// Restores the newest checkpoint that loads on all ranks, and prepares saves. Returns its step, or
  /// nothing if the store has no committed checkpoint. Passes over at most max_fallback damaged
  /// checkpoints and quarantines them; removes what interrupted runs left. Waits for a save of an earlier
  /// run that a process still writes, at most for earlier_run_timeout, and then ends that save so that it
  /// can no longer commit; the observer and a line on stderr report the outcome.
  /// @throws storage_error (storage_nothing_loads) with the reason of each, if there are checkpoints and none
  /// loads; plan_error if the state does not fit the newest; corrupt_error (corrupt_unsupported_feature,
  /// corrupt_unsupported_version) if the newest is whole, but needs a codec or a version that this program lacks:
  /// nothing is passed over for that, or moved.
  std::optional<std::int64_t> resume(const state_dict& state) {
    return engine_.open().resume(state, nullptr);
  }
  /// resume() that considers only the checkpoints of these steps; see resume_together.
  std::optional<std::int64_t> resume(const state_dict& state, const std::vector<std::int64_t>& among) {
    return engine_.open().resume(state, &among);
  }

  /// Returns the steps of all committed checkpoints, ascending.
  [[nodiscard]] std::vector<std::int64_t> list() { return engine_.open().list(); }
  /// Keeps the checkpoint of this step from being removed, by keep_last or remove() of any process, until
  /// the lease is destroyed on rank 0, whose held() alone tells if it was lost. load() and resume() take a lease
  /// themselves and hold it until a save that began afterwards is committed, a load(), refresh() or resume() of another
  /// step, remove() of it, or the end of the checkpointer; refresh() holds one while it reads. One that is read_only{}
  /// takes none. The lease is not held() where the store has no leases (memory_store, a store that
  /// may not be written, a file system without locks); a warning says so once. Costs an empty locked
  /// file; in a bucket five requests, and one every few seconds. @throws storage_error
  /// (storage_not_committed), timeout_error
  [[nodiscard]] checkpoint_lease lease(std::int64_t step) { return engine_.open().lease(step); }
  /// Keeps the checkpoint of this step until unpin(), whatever policy any run or program has: an empty object beside
  /// the checkpoints, which outlives the process. Once is enough. Collective. @throws storage_error
  /// (storage_not_committed), usage_error (usage_bad_option) where the storage has no pins
  void pin(std::int64_t step) { engine_.open().pin(step, true); }
  /// Ends pin(). No error if it is not pinned. Collective.
  void unpin(std::int64_t step) { engine_.open().pin(step, false); }
  /// The steps that are pinned, ascending. Collective.
  [[nodiscard]] std::vector<std::int64_t> pinned() { return engine_.open().pinned(); }
  /// Removes a checkpoint. No error if there is none. Waits for the end of a save of this step by this run; one that
  /// rank 0 does not make any more is ended.
  /// @throws storage_error (storage_leased) naming who reads it, or (storage_pinned); it removes nothing then.
  void remove(std::int64_t step) { engine_.open().remove(step); }
  /// Renames the manifest of this checkpoint to `manifest.damaged.0`, or a higher number: the checkpoint no longer
  /// exists, but no data is lost. False if the store is read-only. No error if there is none.
  bool quarantine(std::int64_t step) { return engine_.open().quarantine(step); }

  /// Estimates how long a save() that begins now takes until it is committed: the longest of the last
  /// eight saves of this checkpointer, plus what is left of those under way. Returns nothing before the
  /// first commit. An estimate of this rank; ranks that act on it agree by any_rank(). Sends no message.
  /// The same thread as save().
  [[nodiscard]] std::optional<std::chrono::duration<double>> time_to_save() {
    return engine_.open().time_to_save();
  }
  /// True on all ranks if `here` is true on at least one. Collective, for decisions that all ranks must
  /// take at the same step, such as to save and stop. Costs one small message up a tree and down again.
  [[nodiscard]] bool any_rank(bool here) { return engine_.open().any_rank(here); }

  /// Waits for all saves of this rank, and throws the failure of the last one. It compares an overlapped
  /// save that before_update() or wait() did not confirm with the memory of the state, which must still
  /// be valid, in one pass; the save fails with usage_before_update_missing where the memory changed.
  /// Afterwards every call throws usage_error (usage_closed), except rank(), world_size(),
  /// before_update() and the destructor.
  void close() { engine_.open().close(); }

  /// This rank in the group of ranks, and how many there are. Also when it is closed; undefined for one
  /// that was moved from. Any thread.
  [[nodiscard]] int rank() const { return engine_.any().rank(); }
  /// See rank().
  [[nodiscard]] int world_size() const { return engine_.any().world_size(); }
  /// Where checkpoints lie, and what was chosen where the options leave it open, in one line for people. The same as
  /// long as the checkpointer lives; also when it is closed. Any thread.
  [[nodiscard]] std::string describe() const { return engine_.here().describe(); }

 protected:
  friend std::optional<std::int64_t> resume_together(std::initializer_list<resumable> states);
  checkpointer_base() noexcept = default;
  explicit checkpointer_base(detail::engine_owner made) noexcept : engine_(std::move(made)) {}
  checkpointer_base(checkpointer_base&&) noexcept = default;
  checkpointer_base& operator=(checkpointer_base&&) noexcept = default;
  ~checkpointer_base() = default;

  detail::engine_owner engine_;
};

}  // namespace v1
}  // namespace cairn
