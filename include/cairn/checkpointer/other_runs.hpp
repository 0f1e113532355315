// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/record.hpp>
#include <cairn/observe/event_reporter.hpp>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
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
  /// After a commit of this run. @throws what the storage throws.
  template <class Reader>
  void look(Reader& reader, std::int64_t committed, event_reporter& people) {
    if constexpr (requires { run_of(reader, committed); }) {
      const std::lock_guard lock(mutex_);
      own_.push_back(committed);
      if (told_ || ++commits_ < next_) return;
      next_ = commits_ * 2;
      const auto there = reader.list();
      if (!known_) {  // it began without resume(): what comes from now on is seen
        known_ = there;
        return;
      }
      for (const auto step : there) {
        if (has(*known_, step) || has(own_, step)) continue;
        const auto run = run_of(reader, step);
        if (run == run_of(reader, committed)) continue;
        told_ = true;
        return people.warned(
            "run " + to_string(run) + " commits into the same store while this run does: step " +
            std::to_string(step) +
            "; each step can be committed by one of them alone, and a restart takes the newest of "
            "both: give each job a directory of its own");
      }
      own_.clear();
      known_ = there;
    }
  }

 private:
  template <class Reader>
  static auto run_of(Reader& reader, std::int64_t step)
      -> decltype(run_id(reader.open(step, reader.fetch(step)).manifest().run)) {
    return reader.open(step, reader.fetch(step)).manifest().run;
  }
  static bool has(const std::vector<std::int64_t>& steps, std::int64_t step) noexcept {
    return std::find(steps.begin(), steps.end(), step) != steps.end();
  }

  std::mutex mutex_;
  std::optional<std::vector<std::int64_t>> known_;
  std::vector<std::int64_t> own_;  ///< committed since the last look
  std::uint64_t commits_ = 0;
  std::uint64_t next_ = 1;
  bool told_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
