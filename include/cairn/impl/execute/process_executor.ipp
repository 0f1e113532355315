// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/execute/main_program.hpp>
#include <cairn/execute/process_executor.hpp>
#include <cairn/execute/save_thread.hpp>
#include <cairn/execute/worker_client.hpp>
#include <cairn/execute/worker_queue.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/thread_settings.hpp>

#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY detail::owned<save_thread> thread_for(std::shared_ptr<worker_client> worker) {
  return detail::make_owned<save_thread>(detail::make_shared<worker_work>(std::move(worker)));
}

}  // namespace detail

CAIRN_BODY process_executor::process_executor(process_executor_options options) {
  detail::check(options.worker);
  if (!detail::this_program().contains(detail::anchor_address()))
    fail(error_id::usage_no_worker,
         "process_executor starts the main program again, and this code is in a library: build a small "
         "program with worker_program_main<...> and pass worker_program{path}");
  if (!detail::worker_main_called.load())
    fail(error_id::usage_no_worker,
         "process_executor starts this program again as a worker: begin main() with "
         "cairn::worker_main(argc, argv); or pass worker_program{path}");
  thread_ = detail::thread_for(
      detail::make_shared<detail::worker_client>(std::move(options), "/proc/self/exe", true));
}
CAIRN_BODY process_executor::process_executor(worker_program program, process_executor_options options) {
  detail::check(options.worker);
  if (::access(program.path.c_str(), X_OK) != 0)
    fail(error_id::usage_no_worker, "there is no worker program that can be started",
         {.file = program.path, .got = std::generic_category().message(errno)});
  thread_ = detail::thread_for(
      detail::make_shared<detail::worker_client>(std::move(options), std::move(program.path), false));
}
CAIRN_BODY process_executor::process_executor(process_executor&&) noexcept = default;
CAIRN_BODY process_executor& process_executor::operator=(process_executor&&) noexcept = default;
CAIRN_BODY process_executor::~process_executor() = default;

CAIRN_BODY void process_executor::prepare() {
  thread_->prepare();
}
CAIRN_BODY void process_executor::submit(save_job job) {
  job.progress->await_handover();
  thread_->submit(std::move(job));
}
CAIRN_BODY bool process_executor::drain(deadline until) {
  return thread_->drain(until);
}

}  // namespace v1
}  // namespace cairn
