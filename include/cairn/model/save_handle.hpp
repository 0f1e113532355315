// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_report.hpp>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

namespace cairn {
inline namespace v1 {

class save_progress;

/// A save that is under way or over, as `checkpointer::save` gives it. Copies share it; it may outlive the
/// checkpointer; dropping it neither waits nor cancels. Any thread may use it.
class save_handle {
 public:
  /// Of no save: not valid() until assigned.
  save_handle() = default;
  explicit save_handle(std::shared_ptr<save_progress> progress) noexcept : progress_(std::move(progress)) {}

  [[nodiscard]] bool valid() const noexcept { return progress_ != nullptr; }
  /// Training may change its memory: copied, or written where nothing is staged, or given up. An overlapped
  /// save is committed only after before_update(), wait() or close().
  [[nodiscard]] bool released() const noexcept;
  /// The process that carries the save out has it, or the save has ended: where that is a worker process, the
  /// end of this one does not end the save any more once it is released(), too. save() and before_update()
  /// wait for it, for checkpointer_options::handover_timeout.
  [[nodiscard]] bool handed_over() const noexcept;
  /// This rank's bytes are durable.
  [[nodiscard]] bool written() const noexcept;
  /// Bytes that were handed to the store so far, of report().bytes; it grows while another process writes,
  /// too.
  [[nodiscard]] std::uint64_t bytes_written() const noexcept;
  /// The checkpoint exists. Only then is anything saved.
  [[nodiscard]] bool committed() const noexcept;
  /// Not begun: an earlier save was under way and busy_policy::skip was asked for. Waits return at once.
  [[nodiscard]] bool skipped() const noexcept;
  [[nodiscard]] bool failed() const noexcept;
  /// What failed, or null.
  [[nodiscard]] std::exception_ptr failure() const noexcept;

  /// Each waits until the state is reached. The last two may be called only while training keeps the memory
  /// of an overlapped save unchanged, as before_update(). @throws what failed, or timeout_error after
  /// `timeout`; the save then goes on.
  void wait_released(std::chrono::nanoseconds timeout = std::chrono::minutes(30)) const;
  void wait_handed_over(std::chrono::nanoseconds timeout = std::chrono::minutes(30)) const;
  void wait_written(std::chrono::nanoseconds timeout = std::chrono::minutes(30)) const;
  void wait(std::chrono::nanoseconds timeout = std::chrono::minutes(30)) const;

  [[nodiscard]] std::int64_t step() const;
  [[nodiscard]] save_report report() const;

 private:
  std::shared_ptr<save_progress> progress_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/save_handle.ipp>
#endif
