// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/state_dict.hpp>

#include <cstdint>
#include <initializer_list>
#include <optional>

namespace cairn {
inline namespace v1 {

class checkpointer_base;

/// A checkpointer and the state that it restores, for resume_together.
struct resumable {
  /// The checkpointer of this state.
  checkpointer_base& checkpointer;
  const state_dict& state;
};

/// Restores several states of one run, each with its own checkpointer and directory, from the newest
/// step that all of them have and that loads in all. Returns that step, or nothing if none of them has a
/// checkpoint:
///
/// `auto step = cairn::resume_together({{policy, policy_state}, {critic, critic_state}}).value_or(0);`
///
/// Passes over damaged checkpoints as resume() does. Quarantines newer checkpoints that only some
/// directories have (because the run ended between two commits, or one is damaged), so that the run can save
/// these steps again. One that all have and that could not be read stays, as with resume(). If the run ended before its first step was committed everywhere, it quarantines that step as
/// well and returns nothing: the only one that there is, and the first save of its run. Waits for saves of an earlier run in each directory as resume() does, and counts
/// what they commit meanwhile.
///
/// Collective: all ranks, with the same checkpointers in the same order.
/// Where they have keep_last(n), n is 2 or more: a run that ends between two commits has its newest in one alone.
///
/// @throws storage_error (storage_nothing_loads) if there are checkpoints, not of a first save alone, but no step is in all
/// directories, and what resume() throws. The contents of the states are unspecified then.
std::optional<std::int64_t> resume_together(std::initializer_list<resumable> states);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/manage/resume_together.ipp>
#endif
