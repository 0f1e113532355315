// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/concepts/executor.hpp>
#include <cairn/concepts/portable.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/execute/worker_main.hpp>
#include <cairn/execute/worker_settings.hpp>
#include <cairn/system/owned.hpp>

#include <concepts>
#include <memory>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {
class save_thread;
}

/// The path of a program whose main() is worker_program_main<Writers...>.
struct worker_program {
  /// The executable file; it calls cairn::worker_main.
  std::string path;
};

/// An Executor that writes and commits in a worker process while training goes on. The worker is this
/// program, started again (see worker_main); it gets only the job's description, and reads the image in
/// shared memory. It starts with prepare() or the first save and serves all saves; a worker that died is
/// replaced at the next save. It has its own memory and CPU accounting, and can have its own cores and
/// priorities.
///
/// If the trainer dies after its image was released, the checkpoint is not lost: the worker
/// finishes, commits and exits. It is in its own process group, and ignores the signals that end batch
/// jobs; a signal that kills a whole control group kills it too (docs/worker-process.md).
///
/// Needs a Portable writer and a stager whose images are shareable (shared_stager). A program with
/// several executors has several workers. The destructor waits as thread_executor's does, then ends the
/// connection to the worker, which exits.
class process_executor {
 public:
  using cairn_role = role::executor;
  /// An any_writer is asked when a job is sent: where it is not Portable, the save fails (usage_bad_option).
  template <class Writer>
  static constexpr bool accepts = Portable<Writer> || std::same_as<Writer, any_writer>;
  static constexpr bool runs_in_caller = false;
  static constexpr bool needs_shared_images = true;

  /// @throws usage_error (usage_no_worker) if main() of this program does not call cairn::worker_main, or
  /// this code is not part of the main program; usage_bad_option.
  explicit process_executor(process_executor_options options = {});
  /// Uses another program as the worker. @throws usage_error if it does not exist.
  explicit process_executor(worker_program program, process_executor_options options = {});
  process_executor(process_executor&&) noexcept;
  process_executor& operator=(process_executor&&) noexcept;
  ~process_executor();

  /// Starts the worker in the background.
  void prepare();
  void submit(save_job job);
  [[nodiscard]] bool drain(deadline until);

 private:
  detail::owned<detail::save_thread> thread_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_INTERPROCESS)
#include <cairn/impl/execute/process_executor.ipp>
#endif
