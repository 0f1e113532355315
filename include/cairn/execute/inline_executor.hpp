// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/executor.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/execute/run_save_job.hpp>

#include <utility>

namespace cairn {
inline namespace v1 {

/// An Executor in which the calling thread writes and commits: save() returns when the save is committed
/// or has failed. Saves cannot be overlapped.
class inline_executor {
 public:
  using cairn_role = role::executor;
  template <class Writer>
  static constexpr bool accepts = true;
  static constexpr bool jobs_end_with_process = true;
  static constexpr bool runs_in_caller = true;

  void submit(save_job job) { run_save_job(std::move(job)); }
  [[nodiscard]] bool drain(deadline) noexcept { return true; }
};

}  // namespace v1
}  // namespace cairn
