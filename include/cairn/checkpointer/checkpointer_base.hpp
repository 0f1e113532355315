// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/engine.hpp>
#include <cairn/checkpointer/load_options.hpp>
#include <cairn/concepts/planner.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/model/save_handle.hpp>
#include <cairn/model/state_dict.hpp>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// What every checkpointer does, whatever it is made of: the calls of cairn::checkpointer, which composes one,
/// and of cairn::any_checkpointer, which holds one of any composition.
///
/// Collective: the constructor, prepare, save, load, resume, list, remove, quarantine, any_rank are called by
/// all ranks in the same order, by one thread at a time; only they use the communicator. before_update() and
/// handles: any thread. close() waits for this rank's saves.
///
/// Movable, not copyable. One that was moved from refuses every call with usage_error (usage_closed), but for
/// rank() and world_size(), which are undefined then. After fork() the child's copy refuses every call
/// (usage_wrong_process) and its destructor does nothing. A state_dict may be changed or destroyed once save()
/// has returned; the memory must stay valid and unchanged until the save is `released`.
///
/// The destructor waits, at most for the timeout, until memory is released and saves have ended; failures go to
/// stderr and to the observer. Never throws. While an exception unwinds, an overlapped save that was not
/// confirmed is given up; otherwise it goes on, and a line on stderr says that its memory was not compared, as
/// close() does.
class checkpointer_base {
 public:
  /// Plans for this state, checks that all ranks see one store, and sizes and pre-faults the buffers in the
  /// background; a save() before that is ready waits. Called by resume(). Optional: a save() without it pays
  /// for this itself.
  void prepare(const state_dict& state) { engine_.open().prepare(state); }

  /// Saves the state as the checkpoint of `step`, the count of completed updates. Returns when training may
  /// change its memory, and the process that writes, where that is another one, has the save; with
  /// overlapped{} at once, see before_update(). The handle says when it is written and committed; you may
  /// drop it.
  /// @throws usage_error and plan_error of this call, with the state unharmed; every later error is on the
  /// handle, and thrown by wait() and close(). After `max_consecutive_failures` failed saves usage_error
  /// (usage_too_many_failures), when its own save is under way.
  save_handle save(const state_dict& state, std::int64_t step) { return engine_.open().save(state, step); }

  /// For overlapped saves: call it before memory is changed, in each step. Returns when the last save has
  /// copied the memory of training, and the process that writes, where that is another one, has the save (see
  /// handover_timeout); nothing to do, it costs nanoseconds. @throws timeout_error (timeout_staging).
  void before_update() { engine_.here().before_update(); }

  /// The same for those who update one item after another: returns when the last save has copied the items of
  /// these names, and waits for nothing else. A name of the state, or the beginning of names and a `*`:
  /// `before_update("layer3.*")`. The save is confirmed when before_update() has returned, or this one for
  /// each item that was not copied before save() returned; what is left out then must not change until the
  /// next before_update(). With no_staging it waits for all items. No allocation, O(log n); any thread.
  /// @throws usage_error (usage_unknown_name) for a name that the state of the last save or prepare() does
  /// not have; timeout_error.
  template <std::convertible_to<std::string_view>... Names>
    requires(sizeof...(Names) > 0)
  void before_update(const Names&... names) {
    auto& engine = engine_.here();
    (engine.before_update(std::string_view(names)), ...);
  }

  /// Restores the state from the checkpoint of `step`, on any number of ranks, in place. Options:
  /// cairn::only{patterns}, cairn::partial.
  /// @throws on all ranks alike; after a throw the contents of the state are unspecified. Nothing is moved or
  /// removed.
  template <class... Options>
    requires((std::same_as<Options, only> || std::same_as<Options, partial_t>) && ...)
  load_report load(const state_dict& state, std::int64_t step, Options... options) {
    load_request request;
    (add(request, std::move(options)), ...);
    return engine_.open().load(state, step, std::move(request));
  }

  /// The same with options known at run time. `patterns`: as cairn::only; empty for everything. `strict` false: as
  /// cairn::partial.
  load_report load(const state_dict& state, std::int64_t step, std::vector<std::string> patterns,
                   bool strict = true) {
    load_request request;
    request.only = std::move(patterns);
    request.strict = strict;
    return engine_.open().load(state, step, std::move(request));
  }

  /// Restores the newest checkpoint that loads on all ranks and prepares saves; its step, or nothing if the
  /// store holds no committed checkpoint. Damaged ones are passed over, at most max_fallback, and their
  /// manifests moved aside; what interrupted runs left is removed. A save of an earlier run that a process
  /// still writes is waited for, at most for earlier_run_timeout, and then ended so that it cannot commit any
  /// more; the observer and a line on stderr say what became of it.
  /// @throws storage_error (storage_nothing_loads), with the reason of each, if there are some and none
  /// loads; plan_error if the state does not fit the newest.
  std::optional<std::int64_t> resume(const state_dict& state) {
    return engine_.open().resume(state, nullptr);
  }
  /// The same with the checkpoints of these steps alone, as if there were no others; see resume_together.
  std::optional<std::int64_t> resume(const state_dict& state, const std::vector<std::int64_t>& among) {
    return engine_.open().resume(state, &among);
  }

  /// The steps of all committed checkpoints, ascending.
  [[nodiscard]] std::vector<std::int64_t> list() { return engine_.open().list(); }
  /// Keeps the checkpoint of this step from being removed, by keep_last or remove() of any process, until
  /// what it gives is destroyed on rank 0. load() and resume() take one themselves while they read. Not
  /// held() where the store takes none (memory_store, one that may not be written, a file system without
  /// locks), nor with read_only{}; a warning says so once. Costs an empty file with a lock; in a bucket
  /// five requests, and one every few seconds. @throws storage_error (storage_not_committed), timeout_error
  [[nodiscard]] checkpoint_lease lease(std::int64_t step) { return engine_.open().lease(step); }
  /// Removes a checkpoint: afterwards it does not exist. No error if there is none.
  /// @throws storage_error (storage_leased) naming who reads it; nothing was removed then.
  void remove(std::int64_t step) { engine_.open().remove(step); }
  /// The checkpoint of this step does not exist any more, but nothing is lost: its manifest becomes
  /// manifest.damaged.<n>. False if the store is read-only. No error if there is none.
  bool quarantine(std::int64_t step) { return engine_.open().quarantine(step); }

  /// What a save() that begins now would need until it is committed, by what earlier saves of this
  /// checkpointer needed: the longest of the last eight, after the rest of those under way. Nothing before
  /// the first commit. Of this rank: ranks that act on it agree with any_rank(). No message; the same thread
  /// as save().
  [[nodiscard]] std::optional<std::chrono::duration<double>> time_to_save() {
    return engine_.open().time_to_save();
  }
  /// True on all ranks if `here` is true on one: one small message up a tree and down again, nothing with one
  /// rank. Collective: for decisions that all ranks must take at the same step, such as to save and stop.
  [[nodiscard]] bool any_rank(bool here) { return engine_.open().any_rank(here); }

  /// Waits for all saves of this rank and throws what failed in the last one. An overlapped save that was not
  /// confirmed (by before_update() or wait()) is compared with the memory of the state, which must still be there,
  /// and fails with usage_before_update_missing where that changed: one pass over it. Afterwards calls are
  /// refused (usage_closed), but for rank(), world_size(), before_update() and destruction.
  void close() { engine_.open().close(); }

  /// This rank in the group of ranks, and how many there are. Also when it is closed; undefined for one that was
  /// moved from. Any thread.
  [[nodiscard]] int rank() const { return engine_.any().rank(); }
  [[nodiscard]] int world_size() const { return engine_.any().world_size(); }

 protected:
  checkpointer_base() noexcept = default;
  explicit checkpointer_base(detail::engine_owner made) noexcept : engine_(std::move(made)) {}
  checkpointer_base(checkpointer_base&&) noexcept = default;
  checkpointer_base& operator=(checkpointer_base&&) noexcept = default;
  ~checkpointer_base() = default;

  detail::engine_owner engine_;

 private:
  static void add(load_request& request, only patterns) {
    for (auto& p : patterns.patterns) request.only.push_back(std::move(p));
  }
  static void add(load_request& request, partial_t) noexcept { request.strict = false; }
};

}  // namespace v1
}  // namespace cairn
