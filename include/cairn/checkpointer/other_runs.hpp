// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/step_list.hpp>
#include <cairn/model/record.hpp>
#include <cairn/observe/event_reporter.hpp>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Notices that another run commits into the same store while this one does, and tells of the first such
/// checkpoint, once. For rank 0. Looks after the 1st, 2nd, 4th, 8th ... commit: each look is a listing. Any
/// thread.
class other_runs {
 public:
  /// These were committed when the run began.
  void know(const std::vector<std::int64_t>& steps) {
    const std::lock_guard lock(mutex_);
    known_ = steps;
  }
  /// After a commit of this run; `listing`: made after it. @throws what the storage throws.
  void look(any_reader& reader, step_listing& listing, std::int64_t committed, event_reporter& reporter) {
    if (!reader.reports_runs()) return;
    const std::lock_guard lock(mutex_);
    if (warned_) return;
    own_.push_back(committed);
    if (++commits_ < next_) return;
    next_ = commits_ * 2;
    const auto& there = listing.steps();
    if (!known_) {  // it began without resume(): what comes from now on is seen
      known_ = there;
      return;
    }
    for (const auto step : there) {
      if (has_step(*known_, step) || has_step(own_, step)) continue;
      const auto run = reader.run_of(step);
      if (run == reader.run_of(committed)) continue;
      warned_ = true;
      return reporter.warned(
          "run " + to_string(*run) + " commits into the same store while this run does: step " +
          std::to_string(step) +
          "; each step can be committed by one of them alone, and a restart takes the newest of "
          "both: give each job a directory of its own");
    }
    own_.clear();
    known_ = there;
  }

 private:
  std::mutex mutex_;
  std::optional<std::vector<std::int64_t>> known_;
  std::vector<std::int64_t> own_;  ///< committed since the last look
  std::uint64_t commits_ = 0;
  std::uint64_t next_ = 1;
  bool warned_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
