// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_writer.hpp>
#include <cairn/model/record.hpp>
#include <cairn/observe/event_reporter.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Remembers in the store, from run to run, which checkpoints runs resumed from without getting to a commit:
/// one that loads and then ends each run at once must not be resumed from for ever. Of rank 0. Nothing where
/// the storage keeps no such notes, or lets nothing be written; what fails is told and harms nothing. Any
/// thread.
class restart_journal {
 public:
  /// 0: nothing is noted.
  restart_journal(int rank, int max_restarts) : max_(rank == 0 ? max_restarts : 0) {}

  /// The steps that `max_restarts` runs or more resumed from since anything was committed after them,
  /// ascending. `notes`: the writer's restarts(); nothing: it is asked for them.
  [[nodiscard]] std::vector<std::int64_t> crash_looping(any_writer& writer,
                                                        std::optional<std::vector<std::int64_t>> notes,
                                                        event_reporter& reporter) noexcept {
    std::vector<std::int64_t> found;
    if (max_ == 0) return found;
    guarded(reporter, [&] {
      auto noted = notes ? std::move(*notes) : writer.restarts();
      const std::lock_guard lock(mutex_);
      any_ = !noted.empty();
      if (own_)
        if (const auto at = std::find(noted.begin(), noted.end(), *own_); at != noted.end()) noted.erase(at);
      for (auto first = noted.begin(); first != noted.end();) {
        const auto last = std::upper_bound(first, noted.end(), *first);
        if (last - first >= max_) found.push_back(*first);
        first = last;
      }
    });
    return found;
  }
  /// This run goes on from the step.
  void resumed(any_writer& writer, const run_id& run, std::int64_t step, event_reporter& reporter) noexcept {
    if (max_ == 0) return;
    guarded(reporter, [&] {
      const std::lock_guard lock(mutex_);
      if (own_ == step) return;
      if (own_) writer.forget_restart(run, *own_);
      own_.reset();
      run_ = run;
      writer.note_restart(run, step);
      own_ = step, any_ = true;
    });
  }
  /// This run goes on from a step without having asked for notes: there may be some, which its next commit ends. It does
  /// not stand on another one any more.
  void loaded(any_writer& writer, std::int64_t step, event_reporter& reporter) noexcept {
    const std::lock_guard lock(mutex_);
    any_ = max_ != 0;
    if (own_ != step) forget_own(writer, reporter);
  }
  /// A checkpoint was committed: what is noted of this step and those before it does not count any more.
  void committed(any_writer& writer, std::int64_t step, event_reporter& reporter) noexcept {
    const std::lock_guard lock(mutex_);
    if (!any_) return;
    guarded(reporter, [&] {
      any_ = writer.forget_restarts(step) != 0;
      if (own_ && *own_ <= step) own_.reset();
    });
  }
  [[nodiscard]] bool has_own() noexcept {
    const std::lock_guard lock(mutex_);
    return own_.has_value();
  }
  /// How this run ends says nothing against what it resumed from: it ends in good order, whether or not it has saved
  /// anything, or came as far as a save that the store failed. Returns what to tell(); null where all went well.
  [[nodiscard]] std::exception_ptr excused(any_writer& writer) noexcept {
    std::optional<std::int64_t> forgotten;
    run_id run;
    {
      const std::lock_guard lock(mutex_);
      forgotten = std::exchange(own_, std::nullopt);
      run = run_;
    }
    if (!forgotten) return nullptr;
    try {
      writer.forget_restart(run, *forgotten);  // without the lock: it may take as long as the store likes
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }
  static void tell(event_reporter& reporter, const std::exception_ptr& failure) noexcept {
    if (failure == nullptr) return;
    guarded(reporter, [&] { std::rethrow_exception(failure); });
  }

 private:
  /// @pre the mutex is locked
  void forget_own(any_writer& writer, event_reporter& reporter) noexcept {
    if (!own_) return;
    guarded(reporter, [&] { writer.forget_restart(run_, *own_); });
    own_.reset();
  }
  template <class Body>
  static void guarded(event_reporter& reporter, Body&& body) noexcept {
    try {
      body();
    } catch (const storage_error& e) {
      if (e.id() != error_id::storage_permission) warn(reporter);  // a store that is only read
    } catch (...) {
      warn(reporter);
    }
  }
  static void warn(event_reporter& reporter) noexcept {
    reporter.warned("the notes of restarts could not be read or written", std::current_exception());
  }

  std::mutex mutex_;
  int max_;
  bool any_ = false;  // the store holds notes, as far as this run knows
  std::optional<std::int64_t> own_;
  run_id run_;
};

/// Those of the newest checkpoints that resume() tries only when no other loads.
struct avoided_steps {
  std::vector<std::int64_t> steps;
  std::vector<std::int64_t> newer;  ///< of these, those newer than all others, newest first
  bool all_crash_looping = false;   ///< then none is avoided
};
/// `steps` ascending, of which at most `max_tried` are tried.
[[nodiscard]] inline avoided_steps choose_avoided(const std::vector<std::int64_t>& steps,
                                                  const std::vector<std::int64_t>& crash_looping,
                                                  std::size_t max_tried) {
  avoided_steps chosen;
  std::size_t others = 0;
  for (auto step = steps.rbegin(); step != steps.rend() && max_tried > 0; ++step, --max_tried) {
    if (!detail::contains(crash_looping, *step)) {
      ++others;
      continue;
    }
    chosen.steps.push_back(*step);
    if (others == 0) chosen.newer.push_back(*step);
  }
  if (others == 0 && !chosen.steps.empty()) chosen = {{}, {}, true};
  return chosen;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
