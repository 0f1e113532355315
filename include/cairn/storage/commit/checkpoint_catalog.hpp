// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/commit/store_look.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/sorted_map.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {
/// The unfinished object that announces a rank's save before another process carries it out.
[[nodiscard]] std::string announcement_key(const save_context& c, const file_placement& place);
}  // namespace detail

/// Lists, removes and quarantines the checkpoints of a store, and cleans up after interrupted saves; for
/// any format that uses the commit_protocol. Several threads may call all functions at once; they throw
/// the store's errors.
class checkpoint_catalog {
 public:
  explicit checkpoint_catalog(any_store store) : store_(store), objects_(std::move(store)) {}
  template <ByteStore Store>
  explicit checkpoint_catalog(std::shared_ptr<Store> store)
      : checkpoint_catalog(any_store(std::move(store))) {}

  /// Returns the steps with a manifest, ascending, without late manifests (see step_objects).
  /// Costs one listing, without the directories of ranks, and one request for each manifest beside a mark.
  [[nodiscard]] std::vector<std::int64_t> list() const;
  /// See ListsFrom. Where the store lists keys behind one: a listing of what is behind the directory of `step`, as that
  /// of list(), a look at its manifest, and a listing of the marks beside it; else as list().
  [[nodiscard]] std::vector<std::int64_t> list_from(std::int64_t step) const;

  /// Removes a checkpoint or what is left of one: the manifest first, then all objects of cairn in its
  /// directory. Before, it ends saves of the step that are under way, which then fail; one that begins
  /// meanwhile goes on. The marks of those that it ended stay until clean() no longer needs them. A checkpoint that such a save, or another one, commits in the
  /// meantime stays.
  void remove(std::int64_t step) const;

  /// Removes a checkpoint, the manifest first, if it is of this attempt: false, and nothing is removed, where there is
  /// no manifest or another one. Saves of the step that are under way go on; what remains of attempts that ended
  /// without a checkpoint is left to clean().
  [[nodiscard]] bool remove_attempt(save_attempt attempt) const;

  /// Renames the manifest of a checkpoint to `manifest.damaged.0`, or a higher number: the checkpoint no longer
  /// exists, but no data is lost. False if the store refuses the change.
  [[nodiscard]] bool quarantine(std::int64_t step) const;

  /// Returns the attempts of other runs, in steps that are not committed, that have a live writer, as far
  /// as the store knows, and that nobody has ended for good.
  [[nodiscard]] std::vector<save_attempt> live_saves(const run_id& run) const {
    return live_saves(run, detail::look_at_steps(store_));
  }
  /// The same of those that a look shows.
  [[nodiscard]] std::vector<save_attempt> live_saves(const run_id& run, const detail::store_look& look) const;

  /// Ends the attempts of other runs in steps that are not committed, also those with only unfinished
  /// objects, and removes their files. Removes marks, claims and what other attempts have left from committed
  /// steps. Discards unfinished objects of writers that died. Does not touch damaged and quarantined
  /// checkpoints, nor objects whose names cairn does not make. Returns the number of removed objects. An
  /// attempt counts as one of `run` if attempt_of() returns it or a record says so. @pre this rule
  /// recognises all attempts of `run` that other processes save.
  std::uint64_t clean(const run_id& run) const { return clean(run, detail::look_at_steps(store_)).removed; }
  /// What clean() with a look has done.
  struct cleaning {
    std::uint64_t removed = 0;  ///< objects
    /// Nothing was to be ended or removed in any step: what it saw of them still stands.
    bool confirmed = true;
  };
  /// The same, by a look of this call or shortly before it. A step is asked for anew where the look shows more in it than a
  /// manifest and the files of one attempt.
  [[nodiscard]] cleaning clean(const run_id& run, const detail::store_look& look) const;
  /// Ends the attempts of other runs to save one step whose writers are known to have died, and removes their files, and
  /// those of attempts that were ended before, so that tries that were killed do not fill the store. Saves that are under
  /// way go on. Where writers announce themselves, it takes only those for dead that have: any other may live. A store
  /// that does not track its writers is left as it is.
  std::uint64_t clean_abandoned(std::int64_t step, const run_id& run) const;

  /// Throws storage_no_space with the needed and the free space, where the store knows it.
  void check_space(std::uint64_t bytes, std::uint64_t objects) const;

 private:
  /// The bytes of a step's manifest; empty if they are too long for one.
  [[nodiscard]] std::optional<std::vector<std::byte>> manifest_bytes(std::int64_t step) const;
  /// Removes the manifest with the bytes of manifest_bytes(). False if there is another manifest now.
  [[nodiscard]] bool remove_manifest(std::int64_t step, const std::vector<std::byte>& bytes) const;
  /// Whether a listing of a step shows a manifest and files of one attempt alone. They are what was committed.
  [[nodiscard]] static bool is_whole(const detail::vector<detail::step_object>& objects);
  static void add_begun(detail::vector<detail::found_attempt>& attempts,
                        const std::vector<std::uint64_t>& begun, std::optional<std::uint64_t> but);
  /// The attempt of an unfinished data file or record.
  [[nodiscard]] static std::optional<save_attempt> attempt_of_unfinished(const std::string& key);
  /// The attempts of unfinished objects by step, whether their writers live or not.
  [[nodiscard]] static detail::sorted_map<std::int64_t, std::vector<std::uint64_t>> begun_attempts(
      const std::vector<listed_unfinished>& unfinished);
  std::uint64_t clean_step(std::int64_t step, const run_id& run, const std::vector<std::uint64_t>& begun,
                           std::int64_t newest) const;
  /// Ends an attempt for good, unless its mark is there still, where one was seen; false where the store refuses.
  [[nodiscard]] bool end_attempt(std::int64_t step, std::uint64_t attempt, bool marked,
                                 const run_id& run) const;
  std::uint64_t remove_unnamed(std::int64_t step, const manifest& m, const run_id& run) const;
  /// True if an attempt belongs to a run.
  [[nodiscard]] bool is_of(const run_id& run, std::int64_t step, std::uint64_t attempt,
                           const detail::vector<detail::step_object>& objects) const;
  /// The run that ended an attempt of another run; nothing where an attempt ended itself.
  [[nodiscard]] std::optional<std::string> marked_by(std::int64_t step, std::uint64_t attempt) const;
  /// Discards unfinished objects of steps whose writers died, except those of `run`.
  std::uint64_t discard_leftovers(std::vector<listed_unfinished> unfinished, const run_id& run) const;
  [[nodiscard]] std::vector<listed_unfinished> unfinished_of(std::int64_t step) const;

  any_store store_;
  detail::step_objects objects_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/checkpoint_catalog.ipp>
#endif
