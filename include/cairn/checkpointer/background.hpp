// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/options.hpp>
#include <cairn/checkpointer/retention.hpp>
#include <cairn/concepts/storage.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/observe/save_history.hpp>
#include <cairn/observe/teller.hpp>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What the threads of an executor share with the checkpointer, and may outlive it with: the storage, who is
/// told, and what happens at the end of each save. Any thread.
template <StorageWriter Writer, StorageReader Reader, Observer O>
class background {
 public:
  background(Writer writer, Reader reader, O observer, int rank, const checkpointer_options& options,
             std::size_t keep)
      : writer_(std::make_shared<Writer>(std::move(writer))),
        reader_(std::move(reader)),
        teller_(std::move(observer), rank, options.quiet),
        history_(options.mean_time_between_failures),
        rank_(rank),
        retention_(keep) {}

  [[nodiscard]] const std::shared_ptr<Writer>& writer() const noexcept { return writer_; }
  [[nodiscard]] Reader& reader() noexcept { return reader_; }
  [[nodiscard]] teller<O>& tell() noexcept { return teller_; }
  [[nodiscard]] const save_history& history() const noexcept { return history_; }

  /// The run goes on from this checkpoint, which it has loaded; the coordinator's word counts.
  void stand_on(std::int64_t step) noexcept {
    if (!retains()) return;
    try {
      retention_.stand_on(step, reader_.list());
    } catch (...) {
      teller_.warned("the store could not be listed: keep_last removes nothing of earlier runs",
                     std::current_exception());
      retention_.stand_on(step, {});
    }
  }
  /// A save is under way; ended() is called when it ends.
  void begun(std::int64_t step) {
    if (retains()) retention_.begun(step);
  }
  /// Called once for each save, when it ends.
  void ended(save_report& report, const std::exception_ptr& failure, save_journal* journal) noexcept {
    if (failure == nullptr) history_.committed(report);
    retain(report.step, failure == nullptr, journal);
    std::vector<save_span> spans;
    try {
      if (journal != nullptr) spans = journal->spans();
    } catch (...) {
      // Out of memory for a trace: the save is worth more.
    }
    note(failure);
    if (failure == nullptr)
      teller_.saved(report, spans);
    else
      teller_.failed(report, failure, spans);
  }
  [[nodiscard]] int failures_in_a_row() const noexcept {
    const std::lock_guard lock(mutex_);
    return failures_;
  }
  [[nodiscard]] std::string last_failure() const {
    const std::lock_guard lock(mutex_);
    return last_failure_ == nullptr ? std::string() : failure_text(last_failure_);
  }

 private:
  void note(const std::exception_ptr& failure) noexcept {
    const std::lock_guard lock(mutex_);
    failures_ = failure == nullptr ? 0 : failures_ + 1;
    last_failure_ = failure;
  }
  [[nodiscard]] bool retains() const noexcept { return rank_ == 0 && retention_.removes(); }
  /// Removes only after a commit: the old checkpoints are good until the new one exists.
  void retain(std::int64_t step, bool committed, save_journal* journal) noexcept {
    if (!retains()) return;
    try {
      retention_.ended(step, committed);
      if (!committed) return;
      const auto chosen = retention_.choose(step, reader_.list());
      tell_strangers(chosen.strangers);
      if (chosen.remove.empty()) return;
      const span_note span(journal, span_kind::remove);
      for (const auto old : chosen.remove) writer_->remove(old);
    } catch (...) {  // the next commit tries again
      teller_.warned("old checkpoints could not be removed", std::current_exception());
    }
  }
  void tell_strangers(const std::vector<std::int64_t>& steps) {
    if (steps.empty()) return;
    teller_.warned("keep_last leaves " + std::to_string(steps.size()) +
                   " checkpoints alone that are not of this run, the first of step " +
                   std::to_string(steps.front()) +
                   ": it has neither committed them nor resumed from one at or after them; remove(step) "
                   "removes one");
  }

  std::shared_ptr<Writer> writer_;
  Reader reader_;
  teller<O> teller_;
  save_history history_;
  int rank_;
  retention retention_;
  mutable std::mutex mutex_;
  int failures_ = 0;
  std::exception_ptr last_failure_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
