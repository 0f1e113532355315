// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/concepts/storage.hpp>
#include <cairn/execute/worker_client.hpp>
#include <cairn/model/save_job.hpp>
#include <cairn/system/deadline.hpp>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A save on its way through a worker, whatever its writer is. One thread at a time.
class remote_save {
 public:
  remote_save(save_context context, std::shared_ptr<save_progress> progress,
              std::shared_ptr<image_control> control)
      : context_(std::move(context)), progress_(std::move(progress)), control_(std::move(control)) {}
  remote_save(const remote_save&) = delete;
  remote_save& operator=(const remote_save&) = delete;
  virtual ~remote_save() = default;

  [[nodiscard]] const save_context& context() const noexcept { return context_; }
  [[nodiscard]] save_progress& progress() const noexcept { return *progress_; }
  /// The number that the worker knows it by; nothing until it has it.
  [[nodiscard]] const std::optional<std::uint64_t>& number() const noexcept { return number_; }
  /// After which it has ended, come what may; counted from the first call.
  [[nodiscard]] deadline end() {
    if (!end_) end_ = deadline::in(context_.longest());
    return *end_;
  }

  /// Shows the save in the store and sends it to the worker, which must run. @throws why it cannot be sent
  virtual void hand_over(worker_client& client) = 0;
  /// The worker that had it is gone, and had not begun it.
  void take_back() noexcept {
    number_.reset();
    told_failure_ = false;
  }
  /// The bytes of this rank are durable.
  void written() noexcept {
    written_ = true;
    drop_image();
    progress_->set_written();
  }
  void committed() noexcept {
    end_announcement();
    progress_->set_committed();
  }
  /// The worker gave it up, and told the other ranks.
  void failed(std::exception_ptr why) noexcept {
    if (const auto earlier = progress_->failure()) why = earlier;
    drop_image();
    end_announcement();
    progress_->set_failed(why);
  }
  /// The worker is gone, or never had it: where this rank's bytes are durable, the rest is done here; else
  /// the save has failed.
  virtual void finish_alone(std::exception_ptr why) noexcept = 0;
  /// Why its image will not be complete, if that is so, for the worker that has it: once.
  [[nodiscard]] std::exception_ptr untold_failure() noexcept {
    if (told_failure_ || !number_ || !control_->failed()) return nullptr;
    auto why = progress_->failure();
    if (why == nullptr) why = image_failure();
    told_failure_ = why != nullptr;
    return why;
  }

 protected:
  virtual void drop_image() noexcept = 0;
  virtual void end_announcement() noexcept = 0;
  [[nodiscard]] virtual std::exception_ptr image_failure() const noexcept = 0;
  [[nodiscard]] bool is_written() const noexcept { return written_; }
  void handed_over(std::uint64_t number) noexcept {
    number_ = number;
    progress_->set_handed_over();
  }

 private:
  const save_context context_;
  const std::shared_ptr<save_progress> progress_;
  const std::shared_ptr<image_control> control_;
  std::optional<std::uint64_t> number_;
  std::optional<deadline> end_;
  bool written_ = false;
  bool told_failure_ = false;
};

template <class Writer>
class remote_save_of final : public remote_save {
 public:
  explicit remote_save_of(save_job<Writer> job)
      : remote_save(job.context, job.progress, job.image.control()), job_(std::move(job)) {}

  void hand_over(worker_client& client) override {
    // First: a worker that outlives this process must not have a save that nobody can see.
    if constexpr (AnnouncesSaves<Writer>) announced_ = job_.writer->announce(job_.context);
    if (job_.image.failed()) job_.image.wait_for(UINT64_MAX, end());  // throws why
    handed_over(client.send(job_, announced_.lock_descriptor(), deadline::in(context().timeout)));
  }
  void finish_alone(std::exception_ptr why) noexcept override {
    auto& writer = *job_.writer;
    try {
      if (!is_written()) std::rethrow_exception(why);
      try {
        writer.await_commit(context(), deadline::in(context().coordinator() ? std::chrono::nanoseconds(0)
                                                                            : context().outcome_timeout()));
      } catch (const timeout_error&) {
        if (!context().coordinator()) throw;
        writer.commit(context(), *job_.metadata, deadline::in(context().timeout));
      }
      committed();
    } catch (...) {
      auto reason = is_written() ? std::current_exception() : why;
      if (const auto earlier = progress().failure()) reason = earlier;
      writer.abort(context(), reason);
      failed(reason);
    }
  }

 private:
  void drop_image() noexcept override { job_.image = staged_image(); }
  void end_announcement() noexcept override { announced_ = {}; }
  [[nodiscard]] std::exception_ptr image_failure() const noexcept override { return job_.image.failure(); }

  save_job<Writer> job_;
  save_announcement announced_;  // must end before the end of the save is told
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
