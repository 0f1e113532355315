// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_context.hpp>
#include <cairn/observe/event_reporter.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/backoff.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/function_ref.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Saves of earlier runs that processes still carry out when a run resumes: the workers of a trainer that was
/// killed. For rank 0, in this order: waits() until it is false, the cleaning, report().
class earlier_runs {
 public:
  earlier_runs(std::chrono::nanoseconds timeout, event_reporter& reporter)
      : reporter_(reporter),
        timeout_(timeout),
        begin_(deadline::clock::now()),
        until_(deadline::in(timeout)) {}

  /// These live now: false where there are none that are to be waited for, or the time is over; else after a while.
  /// `is_needless`: see clean_and_list().
  [[nodiscard]] bool waits(const std::vector<save_attempt>& alive,
                           function_ref<bool(const save_attempt&)> is_needless) {
    bool wanted = false;
    const auto now = seconds_since(begin_);
    for (auto& s : attempts_)
      if (!s.ended &&
          !detail::any_of(alive, [&](const auto& a) { return a.step == s.step && a.attempt == s.attempt; }))
        s.ended = true, s.seconds = now;
    for (const auto& a : alive) {
      const auto* const known = find(a.step, a.attempt);
      const bool needless = known != nullptr ? known->needless : is_needless(a);
      wanted = wanted || !needless;
      if (known != nullptr) continue;
      attempts_.push_back({.step = a.step, .attempt = a.attempt, .needless = needless});
      if (timeout_.count() > 0 && !needless)
        reporter_.earlier(observation::event::wait_began, a.step, 0,
                          "is being saved by a process of an earlier run: waiting for it, at most " +
                              seconds_text(std::chrono::duration<double>(timeout_).count()));
    }
    if (wanted && polling_.wait(until_)) return waited_ = true;
    for (auto& s : attempts_)
      if (!s.ended) s.seconds = seconds_since(begin_);
    return false;
  }
  [[nodiscard]] bool have_waited() const noexcept { return waited_; }
  /// `cleaned`: what lived was ended for good; `steps`: those that are committed now.
  void report(bool cleaned, const std::vector<std::int64_t>& steps) const {
    for (const auto& s : attempts_) {
      const auto after = " after " + seconds_text(s.seconds);
      if (detail::contains(steps, s.step))
        reporter_.earlier(observation::event::wait_ended, s.step, s.seconds,
                          "was committed by a process of an earlier run" + after);
      else if (s.ended)
        reporter_.earlier(observation::event::wait_ended, s.step, s.seconds,
                          "was given up by the process of an earlier run that saved it" + after);
      else if (cleaned)
        reporter_.earlier(observation::event::fenced, s.step, s.seconds,
                          "was still being saved by a process of an earlier run" + after +
                              ": its save is ended for good and cannot be committed any more" +
                              (s.needless ? ", as the local tiers hold a newer one" : ""));
    }
  }

 private:
  struct other_attempt {
    std::int64_t step;
    std::uint64_t attempt;
    bool needless = false;
    bool ended = false;
    double seconds = 0;
  };
  [[nodiscard]] const other_attempt* find(std::int64_t step, std::uint64_t attempt) const noexcept {
    for (const auto& s : attempts_)
      if (s.step == step && s.attempt == attempt) return &s;
    return nullptr;
  }
  static std::string seconds_text(double seconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3g s", seconds);
    return text;
  }

  event_reporter& reporter_;
  std::chrono::nanoseconds timeout_;
  deadline::clock::time_point begin_;
  deadline until_;
  backoff polling_{std::chrono::milliseconds(1), std::chrono::milliseconds(250)};
  vector<other_attempt> attempts_;
  bool waited_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
