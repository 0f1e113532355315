// SPDX-License-Identifier: Apache-2.0
#pragma once
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
  explicit retention(std::size_t keep) noexcept : keep_(keep) {}

  /// Whether there is a rule at all.
  [[nodiscard]] bool removes() const noexcept { return keep_ > 0; }

  /// The run resumed from `step`, or loaded it, when `there` was committed, ascending.
  void stand_on(std::int64_t step, std::vector<std::int64_t> there) {
    const std::lock_guard lock(mutex_);
    std::erase_if(there, [&](auto s) { return s > step; });
    line_ = std::move(there);
    if (line_.empty() || line_.back() != step) line_.push_back(step);
    stands_on_ = step;
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
    line_.push_back(step);
  }

  struct choice {
    std::vector<std::int64_t> remove;     ///< the oldest first
    std::vector<std::int64_t> strangers;  ///< not in the line and never told of before
  };
  /// After the commit of `step`, where `there` is committed, ascending.
  [[nodiscard]] choice choose(std::int64_t step, const std::vector<std::int64_t>& there) {
    const std::lock_guard lock(mutex_);
    std::erase_if(line_, [&](auto s) { return s != step && !has(there, s); });
    std::erase_if(told_, [&](auto s) { return !has(there, s); });
    choice chosen;
    const auto stays = std::min(keep_, line_.size());
    for (std::size_t i = 0; i + stays < line_.size(); ++i)
      if (line_[i] < step && line_[i] != stands_on_) chosen.remove.push_back(line_[i]);
    for (const auto s : there)
      if (!has(line_, s) && !has(under_way_, s) && !has(told_, s)) {
        told_.push_back(s);
        chosen.strangers.push_back(s);
      }
    return chosen;
  }

 private:
  static bool has(const std::vector<std::int64_t>& steps, std::int64_t step) noexcept {
    return std::find(steps.begin(), steps.end(), step) != steps.end();
  }

  const std::size_t keep_;
  std::mutex mutex_;
  std::vector<std::int64_t> line_;
  std::vector<std::int64_t> under_way_;  ///< begun by this run and not ended
  std::vector<std::int64_t> told_;       ///< strangers that were told of
  std::optional<std::int64_t> stands_on_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
