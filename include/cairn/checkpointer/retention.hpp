// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/step_list.hpp>
#include <cairn/model/retention_policy.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/system/algorithm.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Chooses what a run removes by its policy. It looks at the line of this run alone, in the order in which it came to
/// be: the checkpoints up to the one that the run resumed from or loaded last, as they were then, and those
/// that it has committed since. What the policy keeps of it stays, and so does the one that the run stands on, and
/// all that are larger than the one just committed. What is not in the line neither counts nor is removed:
/// another run's, a branch that was left by a roll-back, what resume() passed over. Any thread.
class retention {
 public:
  explicit retention(retention_policy policy)
      : policy_(std::move(policy)), counts_verified_(policy_.scrub().has_value()) {}

  /// The run resumed from `step`, or loaded it, when `there` was committed, ascending.
  void set_base_step(std::int64_t step, std::vector<std::int64_t> there) {
    const std::lock_guard lock(mutex_);
    detail::erase_if(there, [&](auto s) { return s > step; });
    if (there.empty() || there.back() != step) there.push_back(step);
    line_ = std::move(there);
    base_step_ = step;
  }
  /// The same where nobody knows what was committed then: none of that will be removed.
  void set_base_step_unlisted(std::int64_t step) noexcept {
    const std::lock_guard lock(mutex_);
    line_.clear();
    base_step_ = step;
  }
  /// A save of this run is under way: its checkpoint is no stranger's, whoever lists it first.
  void begun(save_attempt save) {
    const std::lock_guard lock(mutex_);
    under_way_.push_back(save);
  }
  void ended(save_attempt save, bool committed) {
    const std::lock_guard lock(mutex_);
    std::erase(under_way_, save);  // not another one of this step
    if (!committed) return;
    std::erase(line_, save.step);
    std::erase(verified_, save.step);  // another one of this number
    forget(save.step);
    detail::erase_if(committed_, [&](const auto& a) { return a.step == save.step; });
    line_.push_back(save.step);
    committed_.push_back(save);
    newest_ = save.step;
    ++commits_;
  }
  void verified(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    verified_.push_back(step);
  }

  /// At most so many steps of the line whose manifests the policy asks for and was not told of yet, those that were
  /// postponed last.
  [[nodiscard]] std::vector<std::int64_t> unknown(std::size_t max) {
    std::vector<std::int64_t> steps;
    if (!policy_.asks_manifests()) return steps;
    const std::lock_guard lock(mutex_);
    for (const auto step : line_)
      if (steps.size() < max && known_of(step) == nullptr && !has_step(postponed_, step))
        steps.push_back(step);
    for (const auto step : postponed_)
      if (steps.size() < max && known_of(step) == nullptr && has_step(line_, step)) steps.push_back(step);
    return steps;
  }
  /// The manifest could not be read now.
  void postpone(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    std::erase(postponed_, step);
    postponed_.push_back(step);
  }
  /// What the manifest of a step says.
  void learn(retained_checkpoint about) {
    const std::lock_guard lock(mutex_);
    forget(about.step);
    known_.push_back(std::move(about));
  }

  struct choice {
    std::vector<std::int64_t> remove;       ///< the oldest first
    std::vector<std::int64_t> other_lines;  ///< steps that are not in the line and were not reported before
    /// Annotations by which the policy keeps nothing, and something goes; only the first time.
    std::vector<std::string> missing_annotations;
  };
  /// How many checkpoints this run has committed. Asked before they are listed.
  [[nodiscard]] std::uint64_t commits() {
    const std::lock_guard lock(mutex_);
    return commits_;
  }
  /// After a commit, where `there` is committed, ascending, and `now` is in seconds since 1970. Nothing where this run has
  /// committed another one since `commits` was asked: the list may lack it, and whoever committed it chooses, too.
  [[nodiscard]] choice choose(const std::vector<std::int64_t>& there, std::int64_t now,
                              std::uint64_t commits) {
    const std::lock_guard lock(mutex_);
    if (commits != commits_) return {};
    detail::erase_if(known_, [&](const auto& k) { return !has_step(there, k.step); });
    for (auto* steps : {&line_, &reported_, &leased_, &verified_, &postponed_})
      detail::erase_if(*steps, [&](auto s) { return !has_step(there, s); });
    detail::erase_if(committed_, [&](const auto& a) { return !has_step(there, a.step); });
    choice chosen;
    std::vector<retained_checkpoint> line;
    for (const auto step : line_) {
      const auto* known = known_of(step);
      line.push_back(known != nullptr ? *known : retained_checkpoint{.step = step, .readable = false});
      line.back().counts = !counts_verified_ || has_step(verified_, step);
    }
    const auto reasons = policy_.reasons(line, now);
    for (std::size_t i = 0; i < line_.size(); ++i)
      if (reasons[i].empty() && line_[i] < newest_ && line_[i] != base_step_)
        chosen.remove.push_back(line_[i]);
    if (!chosen.remove.empty() && !annotations_reported_) {
      chosen.missing_annotations = policy_.missing_annotations(line);
      annotations_reported_ = !chosen.missing_annotations.empty();
    }
    for (const auto s : there)
      if (!has_step(line_, s) && !is_under_way(s) && !has_step(reported_, s)) {
        reported_.push_back(s);
        chosen.other_lines.push_back(s);
      }
    return chosen;
  }

  /// Which attempt of the step this run has committed; nothing where the checkpoint was there before.
  [[nodiscard]] std::optional<std::uint64_t> attempt_of(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    const auto at = detail::find_if(committed_, [&](const auto& a) { return a.step == step; });
    return at != committed_.end() ? std::optional<std::uint64_t>(at->attempt) : std::nullopt;
  }
  /// It is gone; one of the same number that comes later is another one.
  void removed(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    std::erase(line_, step);
    detail::erase_if(committed_, [&](const auto& a) { return a.step == step; });
    forget(step);
  }
  /// True at the first call for a checkpoint that would go and is read.
  [[nodiscard]] bool first_lease_of(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    if (has_step(leased_, step)) return false;
    leased_.push_back(step);
    return true;
  }

 private:
  /// Under the lock, as forget().
  [[nodiscard]] const retained_checkpoint* known_of(std::int64_t step) const noexcept {
    for (const auto& k : known_)
      if (k.step == step) return &k;
    return nullptr;
  }
  [[nodiscard]] bool is_under_way(std::int64_t step) const noexcept {
    return detail::any_of(under_way_, [&](const auto& a) { return a.step == step; });
  }
  void forget(std::int64_t step) {
    detail::erase_if(known_, [&](const auto& k) { return k.step == step; });
    std::erase(postponed_, step);
  }

  const retention_policy policy_;
  const bool counts_verified_;
  std::mutex mutex_;
  std::vector<std::int64_t> line_;
  std::vector<save_attempt> under_way_;  ///< begun by this run and not ended
  std::vector<save_attempt> committed_;  ///< by this run
  std::vector<std::int64_t> reported_;   ///< steps of other lines that were reported
  std::vector<std::int64_t> leased_;     ///< would go, and stay while they are read
  std::vector<std::int64_t> verified_;
  std::vector<std::int64_t> postponed_;     ///< their manifests could not be read, the last one last
  std::vector<retained_checkpoint> known_;  ///< what manifests of the line say
  std::optional<std::int64_t> base_step_;
  std::int64_t newest_ = -1;  ///< committed last
  std::uint64_t commits_ = 0;
  bool annotations_reported_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
