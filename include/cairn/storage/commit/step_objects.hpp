// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/vector.hpp>

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

/// What a look at the store shows of an attempt: committed, ended or superseded, or nothing yet.
struct attempt_outcome {
  bool committed = false;
  std::exception_ptr why = nullptr;  ///< why it is none, or was ended before it was committed
};

/// The objects of a step's directory, for commits and cleaning: data files, the manifest, and
/// marks that ended attempts. Any thread.
class step_objects {
 public:
  explicit step_objects(any_store store) noexcept : store_(std::move(store)) {}

  [[nodiscard]] vector<step_object> objects_of(std::int64_t step) const;

  /// True for a manifest that appeared after its attempt was ended and removed, for example because a
  /// request that was reported as failed took effect later. There is a mark of its own attempt, and an
  /// object that it names is missing. (If all objects exist, it was committed before the mark.) It is not
  /// a checkpoint. `bytes`: those of the manifest; false for a damaged one. Costs one request where there
  /// is no mark.
  [[nodiscard]] bool is_late_manifest(std::int64_t step, std::span<const std::byte> bytes) const;
  /// Whether a file is there; a data file may be compressed. One or two requests.
  [[nodiscard]] bool is_there(std::int64_t step, const object_name& file, const file_placement& place) const;
  /// Whether all files of a manifest's own attempt are there; `objects`: those of its step. One or two requests for each
  /// that is not among them.
  [[nodiscard]] bool is_whole(const manifest& m, const vector<step_object>& objects) const;
  /// The bytes of a manifest, or of one that was set aside; nothing if it is not there. What comes damaged is read once
  /// more: it may be so on its way alone.
  [[nodiscard]] std::optional<std::vector<std::byte>> read_manifest(const std::string& key) const;
  /// Removes the manifest if is_late_manifest(); true if it did.
  [[nodiscard]] bool remove_late_manifest(std::int64_t step) const;
  /// Returns the steps of these keys, ascending, that have a manifest, without late manifests. Reads only
  /// manifests beside marks.
  [[nodiscard]] std::vector<std::int64_t> committed_among(const std::vector<std::string>& keys) const;

  /// Removes objects, in this order; of many, several at once. After an error no further removal begins.
  void remove_all(const std::vector<std::string>& keys) const;
  /// The same of those that `goes` names, the coordinator's record, or the file that holds it, before all others: a commit
  /// that is under way checks for it last.
  void remove_those(const vector<step_object>& objects, function_ref<bool(const step_object&)> goes) const;
  /// Removes the files of these attempts and returns their number. @pre after their marks existed, there
  /// was no manifest of theirs.
  std::uint64_t remove_files(std::int64_t step, const std::vector<std::uint64_t>& attempts) const;
  /// Removes objects that are is_foreign() beside the manifest of `keep`, except those of quarantined
  /// checkpoints, and returns their number. It marks other attempts before it removes their files; after
  /// that the manifest must still exist and must not be one that its coordinator will withdraw, since
  /// otherwise another attempt may become the checkpoint. These marks stay: the checkpoint may be removed while a rank
  /// of such an attempt has not begun yet.
  template <class IsForeign>
  std::uint64_t remove_beside(std::int64_t step, std::uint64_t keep, const std::exception_ptr& why,
                              IsForeign is_foreign) const {
    return remove_beside(objects_of(step), step, keep, why, is_foreign);
  }
  /// The same of these objects.
  template <class IsForeign>
  std::uint64_t remove_beside(vector<step_object> objects, std::int64_t step, std::uint64_t keep,
                              const std::exception_ptr& why, IsForeign is_foreign) const {
    const auto aside = quarantined_attempts(objects);
    detail::erase_if(objects, [&](const auto& o) {
      return !is_foreign(o) || o.is_quarantined() || (o.is_file() && is_among(aside, o.name.attempt));
    });
    if (objects.empty()) return 0;
    for (const auto& a : attempts_in(objects, keep))
      if (!a.marked && a.files != 0) require_mark(step, a.attempt, why);
    const auto stays = [&] { return !store_.size(aborted_key(step, keep)) && committed_by(step, keep); };
    std::vector<std::string> files, others;
    for (const auto& o : objects) (o.is_file() ? files : others).push_back(o.key);
    if (!stays()) return 0;
    remove_all(files);
    if (!stays()) return files.size();
    remove_all(others);
    return objects.size();
  }

  [[nodiscard]] bool stands(std::int64_t step) const noexcept;
  /// The attempt of a manifest; nothing for a damaged one.
  [[nodiscard]] static std::optional<std::uint64_t> attempt_in(std::span<const std::byte> bytes,
                                                               const std::string& key);
  /// The attempt whose manifest exists; nothing where there is none, or a damaged one.
  [[nodiscard]] std::optional<std::uint64_t> standing_attempt(std::int64_t step) const;
  /// The attempts of quarantined checkpoints, as far as their manifests can be read. Their files are kept
  /// when the step is saved again.
  [[nodiscard]] std::vector<std::uint64_t> quarantined_attempts(const vector<step_object>& objects) const;
  /// True if there is a manifest of this attempt.
  [[nodiscard]] bool committed_by(std::int64_t step, std::uint64_t attempt) const {
    return standing_attempt(step) == attempt;
  }
  /// Why an attempt was ended; null where it was not.
  [[nodiscard]] std::exception_ptr why_aborted(std::int64_t step, std::uint64_t attempt) const;
  void throw_if_aborted(std::int64_t step, std::uint64_t attempt) const;
  /// Throws storage_already_committed if the step is committed, and the reason of an attempt that was
  /// aborted.
  void check_open(const save_context& c) const;
  /// @pre this rank's record existed. @throws the reason of an abort; storage_aborted where the record is
  /// gone, which on a full disk may be the only way in which a failed rank can tell the others.
  void check_record(const save_context& c, const file_placement& place) const;
  /// What has become of an attempt. Without its manifest, it is looked whether the record `own_record` is still there, as
  /// check_record() does; empty: not so. @throws the store's errors alone, which say nothing of the attempt
  [[nodiscard]] attempt_outcome outcome_of(const save_context& c, const std::string& own_record) const;
  /// @throws what a rank that failed left in its record.
  [[noreturn]] void throw_failure_in(const std::string& record_key) const;
  /// Ends an attempt for good. @throws the store's errors
  void require_mark(std::int64_t step, std::uint64_t attempt, const std::exception_ptr& why) const;
  /// Ends an attempt for good; false where the store refuses.
  bool mark(std::int64_t step, std::uint64_t attempt, const std::exception_ptr& why) const noexcept;

 private:
  /// See check_record(); null where the record is there.
  [[nodiscard]] std::exception_ptr why_record_is_gone(const save_context& c, const std::string& record) const;
  /// The files of its own attempt that a manifest names and that are not among these objects of its step.
  [[nodiscard]] static vector<object_name> missing_in(const manifest& m, const vector<step_object>& objects);

  any_store store_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/step_objects.ipp>
#endif
