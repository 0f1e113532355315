// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_control.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/model/save_notes.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/model/save_report.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {

CAIRN_BODY save_progress::save_progress(std::int64_t step, deadline::clock::time_point begun)
    : begun_(begun) {
  report_.step = step;
}

CAIRN_BODY void save_progress::set_place(int rank, std::shared_ptr<const place_namer> manifest) {
  const std::lock_guard lock(mutex_);
  rank_ = rank;
  manifest_ = std::move(manifest);
}

CAIRN_BODY void save_progress::set_image(std::shared_ptr<image_control> control) {
  const std::lock_guard lock(mutex_);
  image_ = std::move(control);
}

CAIRN_BODY void save_progress::lift_write_limit() const noexcept {
  const std::lock_guard lock(mutex_);
  if (image_ != nullptr) image_->lift_write_limit();
}

CAIRN_BODY void save_progress::set_copying(std::int64_t begun, span_kind how) {
  const std::lock_guard lock(mutex_);
  copying_since_ = begun;
  copying_ = how;
}

CAIRN_BODY void save_progress::await_handover() noexcept {
  const std::lock_guard lock(mutex_);
  handed_over_ = false;
}

CAIRN_BODY void save_progress::set_handed_over() noexcept {
  {
    const std::lock_guard lock(mutex_);
    handed_over_ = true;
  }
  changed_.notify_all();
}

CAIRN_BODY void save_progress::set_written() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    written_ = true;
    report_.written_seconds = seconds_since(begun_);
  }
  changed_.notify_all();
  if (on_written_) on_written_();
}

CAIRN_BODY void save_progress::begin_holding() noexcept {
  const std::lock_guard lock(mutex_);
  holding_ = true;
}

CAIRN_BODY void save_progress::set_held(std::exception_ptr why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    held_ = why == nullptr;
    not_held_ = std::move(why);
    if (held_) report_.held_seconds = seconds_since(begun_);
  }
  changed_.notify_all();
}

CAIRN_BODY void save_progress::begin_redundancy() noexcept {
  const std::lock_guard lock(mutex_);
  pieces_ = pieces::awaited;
}

CAIRN_BODY void save_progress::set_redundant(bool made, std::uint64_t bytes) noexcept {
  {
    const std::lock_guard lock(mutex_);
    pieces_ = made ? pieces::made : pieces::none;
    if (made) {
      report_.redundant_seconds = seconds_since(begun_);
      report_.piece_bytes = bytes;
    }
  }
  changed_.notify_all();
}

CAIRN_BODY void save_progress::give_up(std::exception_ptr why) noexcept {
  set_failed(std::move(why));
  const std::lock_guard lock(mutex_);
  if (image_ != nullptr) image_->fail();
}

CAIRN_BODY void save_progress::on_end(std::function<void(save_report&, const std::exception_ptr&)> callback) {
  const std::lock_guard lock(mutex_);
  on_end_ = std::move(callback);
}

CAIRN_BODY bool save_progress::released() const noexcept {
  const std::lock_guard lock(mutex_);
  const bool is = image_ != nullptr ? image_->copied() : ended();
  if (is) release_observed_ = true;
  return is;
}

CAIRN_BODY bool save_progress::release_observed() const noexcept {
  const std::lock_guard lock(mutex_);
  return release_observed_;
}

CAIRN_BODY bool save_progress::handed_over() const noexcept {
  const std::lock_guard lock(mutex_);
  return handed_over_ || ended();
}

CAIRN_BODY bool save_progress::written() const noexcept {
  const std::lock_guard lock(mutex_);
  return written_ && failure_ == nullptr;
}

CAIRN_BODY std::uint64_t save_progress::bytes_written() const noexcept {
  const std::lock_guard lock(mutex_);
  if (written_ || image_ == nullptr) return written_ ? report_.bytes : 0;
  return std::min(report_.bytes, image_->costs().written.load(std::memory_order_relaxed));
}

CAIRN_BODY bool save_progress::held() const noexcept {
  const std::lock_guard lock(mutex_);
  return held_;
}

CAIRN_BODY bool save_progress::in_tier() const noexcept {
  const std::lock_guard lock(mutex_);
  return holding_ && not_held_ == nullptr;
}

CAIRN_BODY bool save_progress::redundant() const noexcept {
  const std::lock_guard lock(mutex_);
  return pieces_ == pieces::made;
}

CAIRN_BODY bool save_progress::committed() const noexcept {
  const std::lock_guard lock(mutex_);
  return outcome_ == outcome::committed;
}

CAIRN_BODY bool save_progress::skipped() const noexcept {
  const std::lock_guard lock(mutex_);
  return outcome_ == outcome::skipped;
}

CAIRN_BODY std::exception_ptr save_progress::failure() const noexcept {
  const std::lock_guard lock(mutex_);
  return failure_;
}

CAIRN_BODY bool save_progress::finished() const noexcept {
  const std::lock_guard lock(mutex_);
  return ended();
}

CAIRN_BODY save_report save_progress::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

CAIRN_BODY void save_progress::before_confirmation(std::function<std::exception_ptr()> check) {
  const std::lock_guard lock(mutex_);
  check_ = std::move(check);
}

CAIRN_BODY void save_progress::confirm(deadline until) {
  std::shared_ptr<image_control> image;
  std::function<std::exception_ptr()> check;
  {
    const std::lock_guard lock(mutex_);
    image = image_;
    check = check_;
  }
  if (image == nullptr) return;
  if (!image->copied()) image->lift_rate_limit();
  if (check != nullptr) {
    if (!image->wait_copied(until)) return;
    if (auto why = check()) return give_up(std::move(why));
    const std::lock_guard lock(mutex_);
    check_ = nullptr;  // `check` keeps what it holds until the lock is free
  }
  image->confirm();
}

CAIRN_BODY void save_progress::wait_released(deadline until) const {
  std::shared_ptr<image_control> image;
  {
    std::unique_lock lock(mutex_);
    if (!wait(lock, until, [&] { return image_ != nullptr || ended(); }))
      fail(error_id::timeout_staging, "a save did not begin to copy in time", here());
    image = image_;
    if (image == nullptr) return;
  }
  if (!image->copied()) image->lift_rate_limit();
  (void)image->wait_copied(until);
}

CAIRN_BODY bool save_progress::wait_handed_over(deadline until) const noexcept {
  std::unique_lock lock(mutex_);
  return wait(lock, until, [&] { return handed_over_ || ended(); });
}

CAIRN_BODY void save_progress::wait_written(deadline until) const {
  std::unique_lock lock(mutex_);
  if (!wait(lock, until, [&] { return written_ || ended(); }))
    fail(error_id::timeout_write, "a save was not durable in time; it goes on in the background" + stage(),
         here());
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

CAIRN_BODY void save_progress::wait_held(deadline until) const {
  std::unique_lock lock(mutex_);
  // Where the store fails first, the tier may hold the save nevertheless.
  if (!wait(lock, until, [&] { return held_ || not_held_ != nullptr || (ended() && !holding_); }))
    fail(error_id::timeout_staging, "a save was not held by the local tier in time", here());
  if (held_) return;
  if (not_held_ != nullptr) std::rethrow_exception(not_held_);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

CAIRN_BODY bool save_progress::wait_redundant(deadline until) const {
  std::unique_lock lock(mutex_);
  if (!wait(lock, until, [&] { return pieces_ != pieces::awaited; }))
    fail(error_id::timeout_peer,
         "the ranks had not made their pieces of a save in time; they go on in the background", here());
  return pieces_ == pieces::made;
}

CAIRN_BODY void save_progress::wait_committed(deadline until) const {
  std::unique_lock lock(mutex_);
  if (!wait(lock, until, [&] { return ended(); }))
    fail(error_id::timeout_commit, "a save was not committed in time; it goes on in the background" + stage(),
         here());
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

CAIRN_BODY bool save_progress::wait_finished(deadline until) const noexcept {
  std::unique_lock lock(mutex_);
  return wait(lock, until, [&] { return ended(); });
}

CAIRN_BODY void save_progress::fail_late(error_id id, const std::string& sentence) const {
  const std::lock_guard lock(mutex_);
  fail(id, sentence + stage(), here());
}

CAIRN_BODY void save_progress::end(outcome how, std::exception_ptr why) noexcept {
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

CAIRN_BODY void save_progress::note_copying() noexcept {
  if (image_ == nullptr || copying_since_ == 0) return;
  const auto& costs = image_->costs();
  report_.copying.cpu_seconds += 1e-9 * static_cast<double>(costs.copy_cpu.load(std::memory_order_relaxed));
  const auto end = costs.copied_at.load(std::memory_order_relaxed);
  if (report_.copying.bytes == 0 || end <= copying_since_) return;
  report_.copying.seconds = 1e-9 * static_cast<double>(end - copying_since_);
  if (auto* const journal = notes_.journal.get())
    journal->add(copying_, copying_since_, end, report_.copying.bytes);
}

CAIRN_BODY std::string save_progress::stage() const {
  return written_ ? ": this rank's part is durable, the commit is awaited"
                  : ": this rank's part is not durable yet; if its bytes do not grow, the store hangs, or "
                    "its worker process is stopped (kill -CONT), or, with "
                    "persist{.writers_at_once}, a rank before this one has not written";
}

CAIRN_BODY error_fields save_progress::here() const {
  auto file = written_ ? std::string() : notes_.files.first();
  return {.rank = rank_,
          .item = "step " + std::to_string(report_.step),
          .file = file.empty() && manifest_ != nullptr ? (*manifest_)(report_.step) : std::move(file)};
}

}  // namespace v1
}  // namespace cairn
