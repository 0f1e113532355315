// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/state_dict.hpp>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

namespace cairn {
inline namespace v1 {

/// A checkpointer and the state that it restores, for resume_together. Refers to both.
class resumable {
 public:
  /// `Checkpointer`: a cairn::checkpointer or cairn::any_checkpointer.
  template <class Checkpointer>
  resumable(Checkpointer& checkpointer, const state_dict& state)
      : checkpointer_(std::addressof(checkpointer)),
        state_(std::addressof(state)),
        list_([](void* of) { return static_cast<Checkpointer*>(of)->list(); }),
        resume_([](void* of, const state_dict& into, const steps& among) {
          return static_cast<Checkpointer*>(of)->resume(into, among);
        }),
        set_aside_(
            [](void* of, std::int64_t step) { return static_cast<Checkpointer*>(of)->quarantine(step); }) {}

  [[nodiscard]] std::vector<std::int64_t> list() const { return list_(checkpointer_); }
  std::optional<std::int64_t> resume(const std::vector<std::int64_t>& among) const {
    return resume_(checkpointer_, *state_, among);
  }
  bool quarantine(std::int64_t step) const { return set_aside_(checkpointer_, step); }

 private:
  using steps = std::vector<std::int64_t>;
  void* checkpointer_;
  const state_dict* state_;
  steps (*list_)(void*);
  std::optional<std::int64_t> (*resume_)(void*, const state_dict&, const steps&);
  bool (*set_aside_)(void*, std::int64_t);
};

/// Restores several states of one run, each with a checkpointer and a directory of its own, from the newest
/// step that all of them have and that loads in all; that step, or nothing if none of them holds a
/// checkpoint:
///
/// `auto step = cairn::resume_together({{policy, policy_state}, {critic, critic_state}}).value_or(0);`
///
/// Damaged checkpoints are passed over as in resume(). Newer checkpoints that only some of them have (the run
/// ended between two commits) are moved aside as damaged ones are, so that the run can save these steps
/// again. If the run ended before its first step was committed everywhere, the one step that there is goes
/// aside, too, and nothing is returned.
///
/// Collective: all ranks, with the same checkpointers in the same order.
/// @throws storage_error (storage_nothing_loads) if there are several checkpoints and no step that all have,
/// and what resume() throws. The contents of the states are unspecified then.
std::optional<std::int64_t> resume_together(std::initializer_list<resumable> states);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/manage/resume_together.ipp>
#endif
