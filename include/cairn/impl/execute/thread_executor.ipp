// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/execute/run_save_job.hpp>
#include <cairn/execute/save_thread.hpp>
#include <cairn/execute/thread_executor.hpp>
#include <cairn/model/save_notes.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/thread_settings.hpp>
#include <cairn/system/vector.hpp>

#include <memory>
#include <mutex>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {
/// Runs jobs in order.
class job_queue final : public thread_work {
 public:
  explicit job_queue(thread_settings settings) : settings_(std::move(settings)) {}

  void add(save_job job) override { jobs_.push_back(std::move(job)); }
  [[nodiscard]] bool busy() const noexcept override { return running_ || !jobs_.empty(); }
  void run() noexcept override {
    apply_granted(settings_);
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stopping || !jobs_.empty(); });  // idle
      if (jobs_.empty()) return;
      running_ = true;
      {
        auto job = std::move(jobs_.front());
        jobs_.erase(jobs_.begin());
        lock.unlock();
        run_save_job(std::move(job));
      }
      lock.lock();
      running_ = false;
      changed.notify_all();
    }
  }

 private:
  const thread_settings settings_;
  vector<save_job> jobs_;
  bool running_ = false;
};
}  // namespace detail

CAIRN_BODY thread_executor::thread_executor() : thread_executor(thread_executor_options()) {}
CAIRN_BODY thread_executor::thread_executor(thread_executor_options options)
    : limit_(make_rate_limiter(options.bytes_per_second, std::move(options.clock))) {
  detail::check_granted(options.thread);
  thread_ = detail::make_owned<detail::save_thread>(
      detail::make_shared<detail::job_queue>(std::move(options.thread)));
}
CAIRN_BODY thread_executor::thread_executor(thread_executor&&) noexcept = default;
CAIRN_BODY thread_executor& thread_executor::operator=(thread_executor&&) noexcept = default;
CAIRN_BODY thread_executor::~thread_executor() = default;

CAIRN_BODY void thread_executor::prepare() {
  thread_->prepare();
}
CAIRN_BODY void thread_executor::submit(save_job job) {
  job.progress->notes().write_limit = limit_;
  thread_->submit(std::move(job));
}
CAIRN_BODY bool thread_executor::drain(deadline until) {
  return thread_->drain(until);
}

}  // namespace v1
}  // namespace cairn
