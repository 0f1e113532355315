// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/state_dict.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// A checkpointer and the state that it restores, for resume_together. Refers to both.
class resumable {
 public:
  /// `Checkpointer`: a cairn::checkpointer or cairn::any_checkpointer.
  template <class Checkpointer>
  resumable(Checkpointer& checkpointer, const state_dict& state)
      : list_([&checkpointer] { return checkpointer.list(); }),
        resume_([&checkpointer, &state](const std::vector<std::int64_t>& among) {
          return checkpointer.resume(state, among);
        }),
        set_aside_([&checkpointer](std::int64_t step) { return checkpointer.quarantine(step); }) {}

  [[nodiscard]] std::vector<std::int64_t> list() const { return list_(); }
  std::optional<std::int64_t> resume(const std::vector<std::int64_t>& among) const { return resume_(among); }
  bool quarantine(std::int64_t step) const { return set_aside_(step); }

 private:
  std::function<std::vector<std::int64_t>()> list_;
  std::function<std::optional<std::int64_t>(const std::vector<std::int64_t>&)> resume_;
  std::function<bool(std::int64_t)> set_aside_;
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
inline std::optional<std::int64_t> resume_together(std::initializer_list<resumable> states) {
  std::vector<std::vector<std::int64_t>> lists;
  std::vector<std::int64_t> all, common;
  for (const auto& each : states) {
    lists.push_back(each.list());
    const auto& steps = lists.back();
    std::vector<std::int64_t> both;
    std::set_intersection(common.begin(), common.end(), steps.begin(), steps.end(), std::back_inserter(both));
    common = lists.size() == 1 ? steps : std::move(both);
    std::vector<std::int64_t> either;
    std::set_union(all.begin(), all.end(), steps.begin(), steps.end(), std::back_inserter(either));
    all = std::move(either);
  }
  if (common.empty() && all.size() > 1) {
    std::string text;
    for (const auto& steps : lists)
      text += (text.empty() ? "" : "; ") +
              (steps.empty() ? std::string("none")
                             : std::to_string(steps.size()) + " from step " + std::to_string(steps.front()) +
                                   " to " + std::to_string(steps.back()));
    fail(error_id::storage_nothing_loads,
         "checkpoints exist and no step is in all of the directories; nothing was changed; load(state, step) "
         "what each of them has, or choose other directories to begin anew: " +
             text);
  }
  std::optional<std::int64_t> step;
  for (bool agreed = false; !agreed;) {
    // Each takes the newest that loads; the oldest of these is the newest for all.
    agreed = true;
    step.reset();
    for (const auto& each : states) {
      const auto got = each.resume(common);
      if (!got) continue;  // `common` is empty
      agreed = agreed && (!step || *step == *got);
      step = std::min(step.value_or(*got), *got);
    }
    if (!agreed) std::erase_if(common, [&](std::int64_t s) { return s > *step; });
  }
  auto steps = lists.begin();
  for (const auto& each : states) {
    for (const auto s : *steps)
      if (!step || s > *step) static_cast<void>(each.quarantine(s));
    ++steps;
  }
  return step;
}

}  // namespace v1
}  // namespace cairn
