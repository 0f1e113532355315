// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_storage.hpp>
#include <cairn/model/retention_policy.hpp>
#include <cairn/system/callback.hpp>

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// What becomes of one checkpoint.
struct pruned_checkpoint {
  std::int64_t step = 0;          ///< of the checkpoint
  std::uint64_t bytes = 0;        ///< of its data files; 0 where the manifest cannot be read
  std::string kept = {};          ///< why it stays; empty: it goes
  bool removed = false;           ///< it is gone
  std::exception_ptr fault = {};  ///< an error, where its manifest cannot be read
};

/// Options of a prune.
struct prune_options {
  bool remove = false;  ///< false: only says what would go
  /// What a run committed last, within so many seconds, stays: the run may be going on from it.
  double live_seconds = 24 * 3600;
  /// Called for each checkpoint in ascending order, when it was decided and, with `remove`, removed.
  detail::callback<void(const pruned_checkpoint&)> told = {};
  /// Called with how many manifests were read, and of how many, for people who wait.
  detail::callback<void(std::uint64_t done, std::uint64_t all)> progress = {};
  /// Called before each removal; true ends the prune early.
  detail::callback<bool()> stop = {};
};

/// The result of a prune.
struct prune_report {
  std::vector<pruned_checkpoint> checkpoints;  ///< ascending by step
  bool complete = true;                        ///< false: `stop` said so
};

/// Says which checkpoints of a store no policy keeps, and removes them where it is asked to, the oldest first. A job may
/// train on the same store meanwhile. These stay whatever the policy says: the newest; what is pinned; what
/// somebody reads; what a run that lives has loaded or resumed from, until it has committed; what a run resumed from,
/// while its note of that is there; what each run committed last, if lately (live_seconds); one whose manifest cannot
/// be read, which does not count for keep_last.
/// Saves that are under way are not touched, nor what was committed anew since it was looked at. Costs a listing, the
/// reading of all manifests, and a listing of notes before each removal.
///
/// resume(state) leaves the note; the next commit of any run at that step or after it takes it away. load(),
/// resume(state, {steps}) and a run with max_restarts = 0 leave none, and hold a lease alone. Pin what a run must be able
/// to go back to after its end.
///
///   cairn::safetensors_storage storage{cairn::file_store{"checkpoints"}};
///   cairn::prune(cairn::any_storage(storage), cairn::keep_last(3) | cairn::keep_every(1000), {.remove = true});
///
/// @throws usage_error: usage_bad_option where the policy is empty; usage_unknown_name where a keep_best names an annotation that
/// is a number in no checkpoint, and nothing was removed; storage_error
prune_report prune(const any_storage& storage, const retention_policy& policy,
                   const prune_options& options = {});

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/manage/prune.ipp>
#endif
