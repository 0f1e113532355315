// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/concepts/executor.hpp>
#include <cairn/execute/worker_client.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/deadline.hpp>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A save on its way through a worker. One thread at a time.
class remote_save {
 public:
  explicit remote_save(save_job job) : control_(job.image.control()), job_(std::move(job)) {}
  remote_save(const remote_save&) = delete;
  remote_save& operator=(const remote_save&) = delete;

  [[nodiscard]] const save_context& context() const noexcept { return job_.context; }
  [[nodiscard]] save_progress& progress() const noexcept { return *job_.progress; }
  /// The number that the worker knows it by; nothing until it has it.
  [[nodiscard]] const std::optional<std::uint64_t>& number() const noexcept { return number_; }
  /// When the save has ended at the latest, counted from the first call.
  [[nodiscard]] deadline end() {
    if (!end_) end_ = deadline::in(context().longest());
    return *end_;
  }

  /// Shows the save in the store and sends it to the worker, which must run. @throws why it cannot be sent
  void hand_over(worker_client& client) {
    // First: a worker that outlives this process must not have a save that nobody can see.
    announced_ = job_.writer.announce(context());
    if (job_.image.failed()) job_.image.wait_for(UINT64_MAX, end());  // throws why
    number_ = client.send(job_, announced_.lock_descriptor(), deadline::in(context().timeout));
    progress().set_handed_over();
  }
  /// The worker that had it is gone, and had not begun it.
  void take_back() noexcept {
    number_.reset();
    failure_sent_ = false;
  }
  /// The bytes of this rank are durable.
  void written() noexcept {
    written_ = true;
    job_.image = staged_image();
    progress().set_written();
  }
  void committed() noexcept {
    announced_ = {};
    progress().set_committed();
  }
  /// The worker gave it up, and told the other ranks.
  void failed(std::exception_ptr why) noexcept {
    if (const auto earlier = progress().failure()) why = earlier;
    job_.image = staged_image();
    announced_ = {};
    progress().set_failed(why);
  }
  /// The worker is gone, or never had it: where this rank's bytes are durable, the rest is done here; else
  /// the save has failed.
  void finish_alone(std::exception_ptr why) noexcept {
    auto& writer = job_.writer;
    try {
      if (!written_) std::rethrow_exception(why);
      try {
        writer.await_commit(context(), deadline::in(context().coordinator() ? std::chrono::nanoseconds(0)
                                                                            : context().outcome_timeout()));
      } catch (const timeout_error&) {
        if (!context().coordinator()) throw;
        writer.commit(context(), *job_.metadata, deadline::in(context().timeout));
      }
      committed();
    } catch (...) {
      auto reason = written_ ? std::current_exception() : why;
      if (const auto earlier = progress().failure()) reason = earlier;
      writer.abort(context(), reason);
      failed(reason);
    }
  }
  /// Why its image will not be complete, if that is so, for the worker that has it: once.
  [[nodiscard]] std::exception_ptr unreported_failure() noexcept {
    if (failure_sent_ || !number_ || !control_->failed()) return nullptr;
    auto why = progress().failure();
    if (why == nullptr) why = job_.image.failure();
    failure_sent_ = why != nullptr;
    return why;
  }

 private:
  const std::shared_ptr<image_control> control_;
  save_job job_;
  save_announcement announced_;  // ends before the end of the save is told
  std::optional<std::uint64_t> number_;
  std::optional<deadline> end_;
  bool written_ = false;
  bool failure_sent_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
