// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_progress.hpp>
#include <cairn/model/save_report.hpp>
#include <cairn/observe/save_interval.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Times of the last saves of this rank, to estimate the next one. Any thread.
class save_history {
 public:
  /// `mean_time_between_failures`: of the job; zero: unknown, and no interval is suggested.
  explicit save_history(std::chrono::duration<double> mean_time_between_failures = {}) noexcept
      : mean_time_between_failures_(mean_time_between_failures) {}

  /// Adds a committed save, and puts the suggested interval into its report. `aside`: seconds that it was only held,
  /// and nobody wrote it.
  void committed(save_report& report, double aside = 0) {
    const std::lock_guard lock(mutex_);
    const cost now{report.blocked_seconds - report.wait_seconds,
                   report.committed_seconds - report.wait_seconds - aside};
    costs_[count_++ % costs_.size()] = {std::max(now.stall, 0.0), std::max(now.durable, 0.0)};
    if (mean_time_between_failures_.count() <= 0) return;
    double stall = 0;
    for (std::size_t i = 0; i < kept(); ++i) stall += costs_[i].stall;
    stall /= static_cast<double>(kept());
    report.suggested_interval_seconds =
        suggested_interval(std::chrono::duration<double>(stall), mean_time_between_failures_,
                           std::chrono::duration<double>(longest()))
            .count();
  }
  /// Estimates how long a save that begins now takes until it is committed: the longest of the last
  /// saves, plus what is left of those under way. Returns nothing before the first commit.
  [[nodiscard]] std::optional<std::chrono::duration<double>> until_committed(
      list_view<const std::shared_ptr<save_progress>> saves) const {
    double longest_save = 0;
    {
      const std::lock_guard lock(mutex_);
      if (count_ == 0) return {};
      longest_save = longest();
    }
    double sum = longest_save;
    for (const auto& save : saves)
      if (!save->finished())
        sum += std::max(0.0, longest_save - (seconds_since(save->begun()) - save->report().wait_seconds));
    return std::chrono::duration<double>(sum);
  }

 private:
  struct cost {
    double stall = 0;    // seconds that training stood still, not counting waits for earlier saves
    double durable = 0;  // seconds from save() until committed, not counting these waits
  };
  [[nodiscard]] std::size_t kept() const noexcept { return std::min(count_, costs_.size()); }
  [[nodiscard]] double longest() const noexcept {
    double longest_save = 0;
    for (std::size_t i = 0; i < kept(); ++i) longest_save = std::max(longest_save, costs_[i].durable);
    return longest_save;
  }

  const std::chrono::duration<double> mean_time_between_failures_;
  mutable std::mutex mutex_;
  std::array<cost, 8> costs_;
  std::size_t count_ = 0;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
