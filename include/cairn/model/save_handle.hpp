// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_journal.hpp>
#include <cairn/model/save_report.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>

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

/// Where a save stands, shared by the checkpointer, the executor and handles. Executors call set_*; each at
/// most once, in order; after set_failed nothing else counts. Any thread.
class save_progress {
 public:
  explicit save_progress(std::int64_t step) : begun_(deadline::clock::now()) { report_.step = step; }

  /// Who saves, and the file by which the checkpoint comes to exist: for errors about deadlines.
  void set_place(int rank, std::string manifest) {
    const std::lock_guard lock(mutex_);
    rank_ = rank;
    manifest_ = std::move(manifest);
  }
  void set_image(std::shared_ptr<image_control> control, std::shared_ptr<files_under_way> files = nullptr) {
    const std::lock_guard lock(mutex_);
    image_ = std::move(control);
    files_ = std::move(files);
  }
  /// When copying began, and what it was; for the report and the journal. Null: nobody wants to know more.
  void set_copying(std::int64_t begun, span_kind how, std::shared_ptr<save_journal> journal) {
    const std::lock_guard lock(mutex_);
    copying_since_ = begun;
    copying_ = how;
    journal_ = std::move(journal);
  }
  /// Null unless somebody wants to know.
  [[nodiscard]] std::shared_ptr<save_journal> journal() const {
    const std::lock_guard lock(mutex_);
    return journal_;
  }
  /// For executors that hand saves to other processes, when they take one in; set_handed_over() when that
  /// process has it.
  void await_handover() noexcept {
    const std::lock_guard lock(mutex_);
    handed_over_ = false;
  }
  void set_handed_over() noexcept {
    {
      const std::lock_guard lock(mutex_);
      handed_over_ = true;
    }
    changed_.notify_all();
  }
  void set_written() noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (ending_) return;
      written_ = true;
      report_.written_seconds = seconds_since(begun_);
    }
    changed_.notify_all();
    if (on_written_) on_written_();
  }
  void set_committed() noexcept { end(outcome::committed, nullptr); }
  /// The save was not begun, by decision of all ranks.
  void set_skipped() noexcept { end(outcome::skipped, nullptr); }
  void set_failed(std::exception_ptr why) noexcept { end(outcome::failed, std::move(why)); }
  /// Fails the save and wakes a writer that waits for its image, so that it publishes nothing. @pre the image
  /// is copied, or nobody waits for that any more.
  void give_up(std::exception_ptr why) noexcept {
    set_failed(std::move(why));
    const std::lock_guard lock(mutex_);
    if (image_ != nullptr) image_->fail();
  }
  /// Changes the report under the lock.
  template <class Change>
  void note(Change&& change) {
    const std::lock_guard lock(mutex_);
    change(report_);
  }
  /// Is called once, by the thread that ends the save, just before anybody can see that it ended; null
  /// failure: committed. It may set the report's suggestion. Set it before the job is submitted; must not
  /// throw.
  void on_end(std::function<void(save_report&, const std::exception_ptr&)> callback) {
    const std::lock_guard lock(mutex_);
    on_end_ = std::move(callback);
  }

  /// Is called by set_written(). Set it before the job begins; must not throw.
  void on_written(std::function<void()> callback) { on_written_ = std::move(callback); }

  /// For handles: whoever is told so may change the memory.
  [[nodiscard]] bool released() const noexcept {
    const std::lock_guard lock(mutex_);
    const bool is = image_ != nullptr ? image_->copied() : ended();
    if (is) told_released_ = true;
    return is;
  }
  /// Whether somebody was told that the memory may change.
  [[nodiscard]] bool told_released() const noexcept {
    const std::lock_guard lock(mutex_);
    return told_released_;
  }
  [[nodiscard]] bool handed_over() const noexcept {
    const std::lock_guard lock(mutex_);
    return handed_over_ || ended();
  }
  [[nodiscard]] bool written() const noexcept {
    const std::lock_guard lock(mutex_);
    return written_ && failure_ == nullptr;
  }
  /// Bytes that were handed to the store so far, of report().bytes; also of a writer in another process.
  [[nodiscard]] std::uint64_t bytes_written() const noexcept {
    const std::lock_guard lock(mutex_);
    if (written_ || image_ == nullptr) return written_ ? report_.bytes : 0;
    return std::min(report_.bytes, image_->costs().written.load(std::memory_order_relaxed));
  }
  [[nodiscard]] bool committed() const noexcept {
    const std::lock_guard lock(mutex_);
    return outcome_ == outcome::committed;
  }
  [[nodiscard]] bool skipped() const noexcept {
    const std::lock_guard lock(mutex_);
    return outcome_ == outcome::skipped;
  }
  [[nodiscard]] std::exception_ptr failure() const noexcept {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  [[nodiscard]] bool finished() const noexcept {
    const std::lock_guard lock(mutex_);
    return ended();
  }
  [[nodiscard]] save_report report() const {
    const std::lock_guard lock(mutex_);
    return report_;
  }
  [[nodiscard]] deadline::clock::time_point begun() const noexcept { return begun_; }

  /// For checkpointers that look whether the memory of an overlapped save changed: called when all is copied,
  /// before the save is confirmed; what it answers fails the save. Set it before the job is submitted; it is
  /// dropped at the end.
  void before_confirmation(std::function<std::exception_ptr()> check) {
    const std::lock_guard lock(mutex_);
    check_ = std::move(check);
  }
  /// Training vouches that it kept the memory of an overlapped save unchanged so far and keeps it so until
  /// all is copied. Waits only where that is looked at. @throws timeout_error (timeout_staging)
  void confirm(deadline until) {
    std::shared_ptr<image_control> image;
    std::function<std::exception_ptr()> check;
    {
      const std::lock_guard lock(mutex_);
      image = image_;
      check = check_;
    }
    if (image == nullptr) return;
    image->hurry();
    if (check != nullptr) {
      if (!image->wait_copied(until)) return;
      if (auto why = check()) return give_up(std::move(why));
      const std::lock_guard lock(mutex_);
      check_ = nullptr;  // `check` keeps what it holds until the lock is free
    }
    image->confirm();
  }
  void wait_released(deadline until) const {
    std::shared_ptr<image_control> image;
    {
      std::unique_lock lock(mutex_);
      if (!wait(lock, until, [&] { return image_ != nullptr || ended(); }))
        fail(error_id::timeout_staging, "a save did not begin to copy in time", here());
      image = image_;
      if (image == nullptr) return;
    }
    if (!image->copied()) image->hurry();
    (void)image->wait_copied(until);
  }
  /// Until handed_over(); false at the deadline. Does not throw.
  [[nodiscard]] bool wait_handed_over(deadline until) const noexcept {
    std::unique_lock lock(mutex_);
    return wait(lock, until, [&] { return handed_over_ || ended(); });
  }
  void wait_written(deadline until) const {
    std::unique_lock lock(mutex_);
    if (!wait(lock, until, [&] { return written_ || ended(); }))
      fail(error_id::timeout_write, "a save was not durable in time; it goes on in the background" + stage(),
           here());
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }
  void wait_committed(deadline until) const {
    std::unique_lock lock(mutex_);
    if (!wait(lock, until, [&] { return ended(); }))
      fail(error_id::timeout_commit,
           "a save was not committed in time; it goes on in the background" + stage(), here());
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }
  /// Until committed or failed; false at the deadline. Does not throw.
  [[nodiscard]] bool wait_finished(deadline until) const noexcept {
    std::unique_lock lock(mutex_);
    return wait(lock, until, [&] { return ended(); });
  }
  /// Throws that a deadline passed, with the rank and the file that this save is at.
  [[noreturn]] void fail_late(error_id id, const std::string& sentence) const {
    const std::lock_guard lock(mutex_);
    fail(id, sentence + stage(), here());
  }

 private:
  enum class outcome : std::uint8_t { none, committed, failed, skipped };

  void end(outcome how, std::exception_ptr why) noexcept {
    std::function<void(save_report&, const std::exception_ptr&)> callback;
    std::function<std::exception_ptr()> check;
    save_report report;
    {
      const std::lock_guard lock(mutex_);
      if (ending_) return;
      ending_ = true;
      if (how == outcome::committed) report_.committed_seconds = seconds_since(begun_);
      note_copying();
      callback = std::move(on_end_);
      on_end_ = nullptr;
      check.swap(check_);
      report = report_;
    }
    if (callback && how != outcome::skipped) callback(report, why);
    check = nullptr;
    {
      const std::lock_guard lock(mutex_);
      report_.suggested_interval_seconds = report.suggested_interval_seconds;
      outcome_ = how;
      failure_ = std::move(why);
    }
    changed_.notify_all();
  }
  // Under the lock.
  void note_copying() noexcept {
    if (image_ == nullptr || copying_since_ == 0) return;
    const auto& costs = image_->costs();
    report_.copying.cpu_seconds += 1e-9 * static_cast<double>(costs.copy_cpu.load(std::memory_order_relaxed));
    const auto end = costs.copied_at.load(std::memory_order_relaxed);
    if (report_.copying.bytes == 0 || end <= copying_since_) return;
    report_.copying.seconds = 1e-9 * static_cast<double>(end - copying_since_);
    if (journal_ != nullptr) journal_->add(copying_, copying_since_, end, report_.copying.bytes);
  }
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
  [[nodiscard]] std::string stage() const {
    return written_ ? ": this rank's part is durable, the commit is awaited"
                    : ": this rank's part is not durable yet; if its bytes do not grow, the store hangs";
  }
  [[nodiscard]] error_fields here() const {
    auto file = written_ || files_ == nullptr ? std::string() : files_->first();
    return {.rank = rank_,
            .item = "step " + std::to_string(report_.step),
            .file = file.empty() ? manifest_ : std::move(file)};
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::shared_ptr<image_control> image_;
  std::shared_ptr<files_under_way> files_;
  std::shared_ptr<save_journal> journal_;
  std::int64_t copying_since_ = 0;
  span_kind copying_ = span_kind::copy;
  std::function<void(save_report&, const std::exception_ptr&)> on_end_;
  std::function<void()> on_written_;
  std::function<std::exception_ptr()> check_;
  std::exception_ptr failure_;
  save_report report_;
  std::string manifest_;
  int rank_ = -1;
  deadline::clock::time_point begun_;
  mutable bool told_released_ = false;
  bool handed_over_ = true;
  bool written_ = false;
  bool ending_ = false;
  outcome outcome_ = outcome::none;
};

/// A save that is under way or over, as `checkpointer::save` gives it. Copies share it; it may outlive the
/// checkpointer; dropping it neither waits nor cancels. Any thread may use it.
class save_handle {
 public:
  /// Of no save: not valid() until assigned.
  save_handle() = default;
  explicit save_handle(std::shared_ptr<save_progress> progress) noexcept : progress_(std::move(progress)) {}

  [[nodiscard]] bool valid() const noexcept { return progress_ != nullptr; }
  /// Training may change its memory: copied, or written where nothing is staged, or given up. An overlapped
  /// save is committed only after before_update(), wait() or close().
  [[nodiscard]] bool released() const noexcept { return progress_->released(); }
  /// The process that carries the save out has it, or the save has ended: where that is a worker process, the
  /// end of this one does not end the save any more once it is released(), too. save() and before_update()
  /// wait for it, for checkpointer_options::handover_timeout.
  [[nodiscard]] bool handed_over() const noexcept { return progress_->handed_over(); }
  /// This rank's bytes are durable.
  [[nodiscard]] bool written() const noexcept { return progress_->written(); }
  /// Bytes that were handed to the store so far, of report().bytes; it grows while another process writes,
  /// too.
  [[nodiscard]] std::uint64_t bytes_written() const noexcept { return progress_->bytes_written(); }
  /// The checkpoint exists. Only then is anything saved.
  [[nodiscard]] bool committed() const noexcept { return progress_->committed(); }
  /// Not begun: an earlier save was under way and busy_policy::skip was asked for. Waits return at once.
  [[nodiscard]] bool skipped() const noexcept { return progress_->skipped(); }
  [[nodiscard]] bool failed() const noexcept { return progress_->failure() != nullptr; }
  /// What failed, or null.
  [[nodiscard]] std::exception_ptr failure() const noexcept { return progress_->failure(); }

  /// Each waits until the state is reached. The last two may be called only while training keeps the memory
  /// of an overlapped save unchanged, as before_update(). @throws what failed, or timeout_error after
  /// `timeout`; the save then goes on.
  void wait_released(std::chrono::nanoseconds timeout = std::chrono::minutes(30)) const {
    progress_->wait_released(deadline::in(timeout));
    static_cast<void>(progress_->released());
  }
  void wait_handed_over(std::chrono::nanoseconds timeout = std::chrono::minutes(30)) const {
    if (!progress_->wait_handed_over(deadline::in(timeout)))
      progress_->fail_late(error_id::timeout_staging,
                           "the process that carries a save out did not have it in time; the save goes on");
  }
  void wait_written(std::chrono::nanoseconds timeout = std::chrono::minutes(30)) const {
    progress_->confirm(deadline::in(timeout));
    progress_->wait_written(deadline::in(timeout));
  }
  void wait(std::chrono::nanoseconds timeout = std::chrono::minutes(30)) const {
    progress_->confirm(deadline::in(timeout));
    progress_->wait_committed(deadline::in(timeout));
  }

  [[nodiscard]] std::int64_t step() const { return progress_->report().step; }
  [[nodiscard]] save_report report() const { return progress_->report(); }

 private:
  std::shared_ptr<save_progress> progress_;
};

}  // namespace v1
}  // namespace cairn
