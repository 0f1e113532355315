// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/step_list.hpp>
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

/// Chooses what keep_last(n) removes. It counts the line of this run alone, in the order in which it came to
/// be: the checkpoints up to the one that the run resumed from or loaded last, as they were then, and those
/// that it has committed since. The last n of the line stay, and so does the one that the run stands on, and
/// all that are larger than the one just committed. What is not in the line neither counts nor is removed:
/// another run's, a branch that was left by a roll-back, what resume() passed over. Any thread.
class retention {
 public:
  /// `keep` 0: no rule. `verified`: a checkpoint counts when verified() was told of it.
  explicit retention(std::size_t keep, bool verified) noexcept : keep_(keep), counts_verified_(verified) {}

  /// Whether there is a rule at all.
  [[nodiscard]] bool removes() const noexcept { return keep_ > 0; }

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
  void begun(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    under_way_.push_back(step);
  }
  void ended(std::int64_t step, bool committed) {
    const std::lock_guard lock(mutex_);
    std::erase(under_way_, step);
    if (!committed) return;
    std::erase(line_, step);
    std::erase(verified_, step);  // another one of this number
    line_.push_back(step);
    newest_ = step;
  }
  void verified(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    verified_.push_back(step);
  }

  struct choice {
    std::vector<std::int64_t> remove;       ///< the oldest first
    std::vector<std::int64_t> other_lines;  ///< steps that are not in the line and were not reported before
  };
  /// After a commit, where `there` is committed, ascending.
  [[nodiscard]] choice choose(const std::vector<std::int64_t>& there) {
    const std::lock_guard lock(mutex_);
    for (auto* steps : {&line_, &reported_, &leased_, &verified_})
      detail::erase_if(*steps, [&](auto s) { return !has_step(there, s); });
    choice chosen;
    std::size_t counted = 0;
    auto oldest = line_.size();  // of those that stay
    for (; oldest > 0 && counted < keep_; --oldest)
      counted += !counts_verified_ || has_step(verified_, line_[oldest - 1]);
    if (counted == keep_)
      for (std::size_t i = 0; i < oldest; ++i)
        if (line_[i] < newest_ && line_[i] != base_step_) chosen.remove.push_back(line_[i]);
    for (const auto s : there)
      if (!has_step(line_, s) && !has_step(under_way_, s) && !has_step(reported_, s)) {
        reported_.push_back(s);
        chosen.other_lines.push_back(s);
      }
    return chosen;
  }

  /// It is gone; one of the same number that comes later is another one.
  void removed(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    std::erase(line_, step);
  }
  /// True at the first call for a checkpoint that would go and is read.
  [[nodiscard]] bool first_lease_of(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    if (has_step(leased_, step)) return false;
    leased_.push_back(step);
    return true;
  }

 private:
  const std::size_t keep_;
  const bool counts_verified_;
  std::mutex mutex_;
  std::vector<std::int64_t> line_;
  std::vector<std::int64_t> under_way_;  ///< begun by this run and not ended
  std::vector<std::int64_t> reported_;   ///< steps of other lines that were reported
  std::vector<std::int64_t> leased_;     ///< would go, and stay while they are read
  std::vector<std::int64_t> verified_;
  std::optional<std::int64_t> base_step_;
  std::int64_t newest_ = -1;  ///< committed last
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
