// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_journal.hpp>
#include <cairn/model/save_notes.hpp>
#include <cairn/model/save_report.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {

class image_control;

/// The state of a save, which the checkpointer, the executor and handles share. Executors call set_*, each at
/// most once and in order; calls after set_failed have no effect. Any thread.
class save_progress {
 public:
  /// `begun`: when save() was called.
  explicit save_progress(std::int64_t step, deadline::clock::time_point begun = deadline::clock::now());

  /// Names the file that commits the checkpoint of a step. Any thread; may throw.
  using place_namer = std::function<std::string(std::int64_t step)>;
  /// The rank, and what names the file that commits the checkpoint, for errors about deadlines.
  void set_place(int rank, std::shared_ptr<const place_namer> manifest);
  /// The control of the image, by which released() and bytes_written() know how far the save is.
  void set_image(std::shared_ptr<image_control> control);
  /// Training has ended: the image is written without a limit of bandwidth from now on.
  void lift_write_limit() const noexcept;
  /// When copying began, and what it was; for the report and the journal.
  void set_copying(std::int64_t begun, span_kind how);
  /// What this save carries beside its bytes, also by its image; see save_notes.
  [[nodiscard]] save_notes& notes() noexcept { return notes_; }
  /// For executors that hand saves to other processes, when they take one in; set_handed_over() when that
  /// process has it.
  void await_handover() noexcept;
  /// Says that the other process has the save; see await_handover().
  void set_handed_over() noexcept;
  /// Says that this rank's files and record are durable. Calls the function of on_written().
  void set_written() noexcept;
  /// A tier is going to hold this rank's image: set_held() comes, whatever becomes of the save.
  void begin_holding() noexcept;
  /// A tier holds this rank's image; `why`: the reason why it does not.
  void set_held(std::exception_ptr why) noexcept;
  /// Pieces may be made of this save: set_redundant() comes, unless the save is never held.
  void begin_redundancy() noexcept;
  /// All ranks keep their pieces, of which this rank has so many bytes; or, `made` false, the save goes without.
  void set_redundant(bool made, std::uint64_t bytes) noexcept;
  /// Says that the checkpoint is committed, which ends the save.
  void set_committed() noexcept { end(outcome::committed, nullptr); }
  /// Ends a save that goes to no store.
  void set_held_alone() noexcept { end(outcome::held, nullptr); }
  /// Says that all ranks have decided not to begin the save.
  void set_skipped() noexcept { end(outcome::skipped, nullptr); }
  /// Ends the save with this error, which waits throw.
  void set_failed(std::exception_ptr why) noexcept { end(outcome::failed, std::move(why)); }
  /// Fails the save and wakes a writer that waits for its image, so that it publishes nothing. @pre the image
  /// is copied, or nobody waits for the copy.
  void give_up(std::exception_ptr why) noexcept;
  /// Changes the report under the lock.
  template <class Change>
  void note(Change&& change) {
    const std::lock_guard lock(mutex_);
    change(report_);
  }
  /// Sets a function that the thread that ends the save calls once, before anybody can see the end; a
  /// null failure means committed. It may set the suggestion in the report, and must not throw. Set it
  /// before the job is submitted.
  void on_end(std::function<void(save_report&, const std::exception_ptr&)> callback);

  /// Sets a function that set_written() calls, which must not throw. Set it before the job begins.
  void on_written(std::function<void()> callback) { on_written_ = std::move(callback); }

  /// For handles: a caller that gets true may change the memory.
  [[nodiscard]] bool released() const noexcept;
  /// Whether some caller learned that the memory may change.
  [[nodiscard]] bool release_observed() const noexcept;
  /// True if another process has the save, if none is to take it, or if the save has ended.
  [[nodiscard]] bool handed_over() const noexcept;
  /// True after set_written(), unless the save failed afterwards.
  [[nodiscard]] bool written() const noexcept;
  /// The number of bytes, of report().bytes, that were handed to the store so far; also by a worker process.
  [[nodiscard]] std::uint64_t bytes_written() const noexcept;
  /// True after set_held() without a reason.
  [[nodiscard]] bool held() const noexcept;
  /// True from begin_holding() on, unless set_held() gave a reason.
  [[nodiscard]] bool in_tier() const noexcept;
  /// True after set_redundant(true).
  [[nodiscard]] bool redundant() const noexcept;
  /// True after set_committed().
  [[nodiscard]] bool committed() const noexcept;
  /// True after set_skipped(); the save is finished() and has no failure().
  [[nodiscard]] bool skipped() const noexcept;
  /// Why the save failed; null while it is under way and where it did not.
  [[nodiscard]] std::exception_ptr failure() const noexcept;
  /// True if the save is committed, skipped, failed or held alone: nothing changes any more.
  [[nodiscard]] bool finished() const noexcept;
  /// A copy of the report as it is now; complete when the save is finished().
  [[nodiscard]] save_report report() const;
  /// When save() was called.
  [[nodiscard]] deadline::clock::time_point begun() const noexcept { return begun_; }

  /// Sets a function that checks whether the memory of an overlapped save changed. It is called when
  /// everything is copied, before the save is confirmed; an error that it returns fails the save. Set it
  /// before the job is submitted; it is destroyed at the end.
  void before_confirmation(std::function<std::exception_ptr()> check);
  /// Training confirms that it has kept the memory of an overlapped save unchanged, and keeps it so until
  /// everything is copied. Waits only where that is checked. @throws timeout_error (timeout_staging)
  void confirm(deadline until);
  /// Waits until released(). @throws what failed, or timeout_error (timeout_staging).
  void wait_released(deadline until) const;
  /// Waits until handed_over(); false at the deadline. Does not throw.
  [[nodiscard]] bool wait_handed_over(deadline until) const noexcept;
  /// Waits until written(). @throws what failed, or timeout_error (timeout_write).
  void wait_written(deadline until) const;
  /// Waits until held(). @throws the reason why it is not, what failed, or timeout_error (timeout_staging).
  void wait_held(deadline until) const;
  /// Waits until it is known whether the save is redundant, which it returns. @throws timeout_error (timeout_peer).
  [[nodiscard]] bool wait_redundant(deadline until) const;
  /// Waits until committed() or skipped(). @throws what failed, or timeout_error (timeout_commit).
  void wait_committed(deadline until) const;
  /// Waits until committed or failed; false at the deadline. Does not throw.
  [[nodiscard]] bool wait_finished(deadline until) const noexcept;
  /// Throws a timeout_error with the rank and the file that this save is writing.
  [[noreturn]] void fail_late(error_id id, const std::string& sentence) const;

 private:
  enum class outcome : std::uint8_t { none, committed, held, failed, skipped };

  void end(outcome how, std::exception_ptr why) noexcept;
  // Under the lock.
  void note_copying() noexcept;
  template <class Condition>
  bool wait(std::unique_lock<std::mutex>& lock, deadline until, Condition&& condition) const noexcept {
    // Years are cut to a day: wait_until overflows in some libraries at time_point::max().
    while (!condition()) {
      if (until.passed()) return false;
      const auto now = deadline::clock::now();
      changed_.wait_until(lock, std::min(until.time_point(), now + std::chrono::hours(24)));
    }
    return true;
  }
  [[nodiscard]] bool ended() const noexcept { return outcome_ != outcome::none; }
  // What a save that is late waits for.
  [[nodiscard]] std::string stage() const;
  [[nodiscard]] error_fields here() const;

  save_notes notes_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::shared_ptr<image_control> image_;
  std::int64_t copying_since_ = 0;
  span_kind copying_ = span_kind::copy;
  std::function<void(save_report&, const std::exception_ptr&)> on_end_;
  std::function<void()> on_written_;
  std::function<std::exception_ptr()> check_;
  std::exception_ptr failure_;
  std::exception_ptr not_held_;  // why
  save_report report_;
  std::shared_ptr<const place_namer> manifest_;
  int rank_ = -1;
  deadline::clock::time_point begun_;
  mutable bool release_observed_ = false;
  bool handed_over_ = true;
  bool holding_ = false;
  bool held_ = false;
  enum class pieces : std::uint8_t { none, awaited, made };
  pieces pieces_ = pieces::none;
  bool written_ = false;
  bool ending_ = false;
  outcome outcome_ = outcome::none;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/save_progress.ipp>
#endif
