// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/commit/step_objects.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/names.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {
/// The unfinished object by which a rank's save can be seen before another process carries it out.
[[nodiscard]] std::string announcement_key(const save_context& c, const file_placement& place);
}  // namespace detail

/// The checkpoints of a store beside their commit: which there are, their removal, and the cleaning of what
/// interrupted saves left. For formats other than safetensors too. All functions may be called by several
/// threads at once; they throw the store's errors.
class checkpoint_catalog {
 public:
  explicit checkpoint_catalog(any_store store) : store_(store), objects_(std::move(store)) {}
  template <ByteStore Store>
  explicit checkpoint_catalog(std::shared_ptr<Store> store)
      : checkpoint_catalog(any_store(std::move(store))) {}

  /// Steps with a manifest, ascending; without those whose save was ended before its manifest came to stand.
  /// One listing, without the directories of ranks, and one look at each manifest beside a mark.
  [[nodiscard]] std::vector<std::int64_t> list() const;

  /// Removes a checkpoint or what is left of one: the manifest first, then everything that cairn put beside
  /// it. Saves of the step that are under way are ended first, and fail; their marks stay for those who come
  /// late, until clean() finds them needless. A checkpoint that such a save, or another one, commits
  /// meanwhile stays.
  void remove(std::int64_t step) const;

  /// The checkpoint does not exist any more, but nothing is lost: its manifest becomes
  /// `manifest.damaged.<n>`. False if the store does not let it be changed.
  [[nodiscard]] bool quarantine(std::int64_t step) const;

  /// Attempts of other runs, in steps that are not committed, of which a writer lives: as far as the store
  /// can tell.
  [[nodiscard]] std::vector<save_attempt> live_saves(const run_id& run) const;

  /// Ends the attempts of other runs in steps that are not committed, those too that have nothing but
  /// unfinished objects, and removes their files; removes beside committed checkpoints what their manifests
  /// do not name; discards unfinished objects of writers that died. Leaves alone: damaged and set-aside
  /// checkpoints, and objects whose names cairn does not make. The number of objects removed. @pre no attempt
  /// of `run` is being saved by another process that could not be told apart: attempts count as of `run` if
  /// attempt_of() made them or a record says so.
  std::uint64_t clean(const run_id& run) const;

  /// Throws storage_no_space naming needed and free, where the store can tell.
  void check_space(std::uint64_t bytes, std::uint64_t objects) const;

 private:
  /// What stands as a step's manifest; empty for what is too long to be one.
  [[nodiscard]] std::optional<std::vector<std::byte>> manifest_bytes(std::int64_t step) const;
  /// Removes what manifest_bytes() gave. False if another manifest was put there since.
  [[nodiscard]] bool remove_manifest(std::int64_t step, const std::vector<std::byte>& bytes) const;
  static void add_begun(std::vector<detail::seen_attempt>& attempts, const std::vector<std::uint64_t>& begun,
                        std::optional<std::uint64_t> but);
  /// What an unfinished object that names its attempt, one of data or a record, belongs to.
  [[nodiscard]] static std::optional<save_attempt> attempt_of_unfinished(const std::string& key);
  /// By step, the attempts of unfinished objects, whether their writers live or not.
  [[nodiscard]] std::map<std::int64_t, std::vector<std::uint64_t>> begun_attempts(
      const std::string& prefix = "step-") const;
  std::uint64_t clean_step(std::int64_t step, const run_id& run, const std::vector<std::uint64_t>& begun,
                           std::int64_t newest) const;
  std::uint64_t remove_unnamed(std::int64_t step, const manifest& m, const run_id& run) const;
  /// True if an attempt belongs to a run.
  [[nodiscard]] bool is_of(const run_id& run, std::int64_t step, std::uint64_t attempt,
                           const std::vector<detail::step_object>& objects) const;
  /// The run that ended an attempt of another one; nothing where an attempt ended itself.
  [[nodiscard]] std::optional<std::string> marked_by(std::int64_t step, std::uint64_t attempt) const;
  /// Unfinished objects of writers that died; those of `run` are left alone.
  std::uint64_t discard_leftovers(const std::string& prefix, const run_id* run) const;

  any_store store_;
  detail::step_objects objects_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/checkpoint_catalog.ipp>
#endif
