// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/deadline.hpp>
#include <cairn/model/save_handle.hpp>
#include <cairn/model/save_journal.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The last overlapped save, from save() until training vouches by before_update() that it kept its memory
/// unchanged while it was copied. Any thread.
class overlap_gate {
 public:
  void shut(std::shared_ptr<save_progress> save) {
    const std::lock_guard lock(mutex_);
    save_ = std::move(save);
    waiting_.store(true, std::memory_order_release);
  }
  /// Waits until the save has copied its memory, and confirms it. Costs one load where there is none.
  /// @throws timeout_error; the save is then still not confirmed.
  void pass(deadline until) {
    if (!waiting_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    if (save_ == nullptr) return;
    const auto begin = deadline::clock::now();
    const auto journal = save_->journal();
    {
      const span_note span(journal.get(), span_kind::before_update);
      save_->wait_released(until);
    }
    save_->note([&](save_report& r) {
      r.before_update_seconds = seconds_since(begin);
      r.blocked_seconds += r.before_update_seconds;
      r.released_seconds = seconds_since(save_->begun());
    });
    save_->confirm();
    open();
  }
  /// A save whose memory may have changed while it was copied must not become a checkpoint: waits until
  /// nobody reads the memory, and fails the save.
  void give_up(deadline until) {
    const std::lock_guard lock(mutex_);
    if (save_ == nullptr) return;
    save_->wait_released(until);
    save_->give_up(make_failure(
        error_id::usage_before_update_missing,
        "an overlapped save was not followed by before_update(), so its memory may have changed while it was "
        "copied: nothing of it was published; call before_update() before each update"));
    open();
  }

 private:
  void open() noexcept {
    save_ = nullptr;
    waiting_.store(false, std::memory_order_release);
  }
  std::mutex mutex_;
  std::shared_ptr<save_progress> save_;
  std::atomic<bool> waiting_{false};
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
