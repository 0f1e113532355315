// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/options.hpp>
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
        keep_(keep) {}

  [[nodiscard]] const std::shared_ptr<Writer>& writer() const noexcept { return writer_; }
  [[nodiscard]] Reader& reader() noexcept { return reader_; }
  [[nodiscard]] teller<O>& tell() noexcept { return teller_; }
  [[nodiscard]] const save_history& history() const noexcept { return history_; }

  /// Called once for each save, when it ends.
  void ended(save_report& report, const std::exception_ptr& failure, save_journal* journal) noexcept {
    if (failure == nullptr) {
      history_.committed(report);
      retain(journal);
    }
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
  /// Only after a commit, and only on the coordinator: the old checkpoints are good until the new one exists.
  void retain(save_journal* journal) noexcept {
    if (rank_ != 0 || keep_ == 0) return;
    try {
      const auto steps = reader_.list();
      if (steps.size() <= keep_) return;
      const span_note span(journal, span_kind::remove);
      for (std::size_t i = 0; i + keep_ < steps.size(); ++i) writer_->remove(steps[i]);
    } catch (...) {  // the next commit tries again
      teller_.warned("old checkpoints could not be removed", std::current_exception());
    }
  }

  std::shared_ptr<Writer> writer_;
  Reader reader_;
  teller<O> teller_;
  save_history history_;
  int rank_;
  std::size_t keep_;
  mutable std::mutex mutex_;
  int failures_ = 0;
  std::exception_ptr last_failure_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
