// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/manifest/names.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The objects of a step's directory, as the commit and the cleaning both see them: files, the manifest,
/// marks that ended attempts. Any thread.
class step_objects {
 public:
  explicit step_objects(any_store store) noexcept : store_(std::move(store)) {}

  [[nodiscard]] std::vector<step_object> objects_of(std::int64_t step) const;

  /// True for a manifest that came to stand after its attempt was ended and removed, as where a request that
  /// was told as failed took effect later: one beside its own attempt's mark, with not all that it names.
  /// (With all of it, it was committed before the mark came.) It is no checkpoint. `bytes`: the manifest's;
  /// damaged ones are none. Costs one look where there is no mark.
  [[nodiscard]] bool is_late_manifest(std::int64_t step, std::span<const std::byte> bytes) const;
  /// True, and its manifest is gone, if that was a ghost.
  [[nodiscard]] bool remove_late_manifest(std::int64_t step) const;
  /// The steps of these keys, ascending, that have a manifest; those with a ghost are left out. Reads no
  /// manifest but those beside marks.
  [[nodiscard]] std::vector<std::int64_t> committed_among(const std::vector<std::string>& keys) const;

  /// Removes the files of these attempts; the number. @pre it was seen that no manifest of theirs stands,
  /// when their marks already stood.
  std::uint64_t remove_files(std::int64_t step, const std::vector<std::uint64_t>& attempts) const;
  /// Removes what is_foreign() of the objects beside the manifest of `keep`, but not what was set aside.
  /// Other attempts are marked before their files go, and the manifest must stand after that, and be none
  /// that its coordinator will take back: else one of the others may become the checkpoint. The number of
  /// objects removed.
  template <class IsForeign>
  std::uint64_t remove_beside(std::int64_t step, std::uint64_t keep, const std::exception_ptr& why,
                              IsForeign is_foreign) const {
    auto objects = objects_of(step);
    const auto aside = set_aside_attempts(objects);
    std::erase_if(objects, [&](const auto& o) {
      return !is_foreign(o) || o.is_set_aside() || (o.is_file() && is_among(aside, o.name.attempt));
    });
    if (objects.empty()) return 0;
    std::vector<std::uint64_t> made;
    for (const auto& a : attempts_in(objects, keep)) {
      if (a.marked || a.files == 0) continue;
      require_mark(step, a.attempt, why);
      made.push_back(a.attempt);
    }
    const auto stays = [&] { return !store_.size(aborted_key(step, keep)) && committed_by(step, keep); };
    std::uint64_t removed = 0;
    const auto remove = [&](const std::string& key) { store_.remove(key), ++removed; };
    if (!stays()) return removed;
    for (const auto& o : objects)
      if (o.is_file()) remove(o.key);
    if (!stays()) return removed;
    for (const auto& o : objects)
      if (!o.is_file()) remove(o.key);
    for (const auto attempt : made) store_.remove(aborted_key(step, attempt));
    return removed;
  }

  [[nodiscard]] bool stands(std::int64_t step) const noexcept;
  /// The attempt that a manifest names; nothing for a damaged one.
  [[nodiscard]] static std::optional<std::uint64_t> attempt_in(std::span<const std::byte> bytes,
                                                               const std::string& key);
  /// The attempt whose manifest stands; nothing where none does, or a damaged one.
  [[nodiscard]] std::optional<std::uint64_t> standing_attempt(std::int64_t step) const;
  /// The attempts of checkpoints that were set aside, as far as their manifests tell: what they name is kept,
  /// whoever saves the step again.
  [[nodiscard]] std::vector<std::uint64_t> set_aside_attempts(const std::vector<step_object>& objects) const;
  /// True if a manifest of this attempt stands.
  [[nodiscard]] bool committed_by(std::int64_t step, std::uint64_t attempt) const {
    return standing_attempt(step) == attempt;
  }
  void throw_if_aborted(std::int64_t step, std::uint64_t attempt) const;
  /// Throws storage_already_committed if the step is committed, and the reason of an attempt that was
  /// aborted.
  void check_open(const save_context& c) const;
  /// @pre this rank's record stood. @throws the reason of an abort, storage_aborted where the record is gone:
  /// on a full disk that may be all by which a rank that failed can tell.
  void check_record(const save_context& c, const file_placement& place) const;
  /// Ends an attempt for good. @throws why the store does not let it
  void require_mark(std::int64_t step, std::uint64_t attempt, const std::exception_ptr& why) const;
  /// Ends an attempt for good: true. False where the store does not let it.
  bool mark(std::int64_t step, std::uint64_t attempt, const std::exception_ptr& why) const noexcept;

 private:
  any_store store_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/step_objects.ipp>
#endif
