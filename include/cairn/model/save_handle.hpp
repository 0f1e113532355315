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

/// A save that is under way or has ended; `checkpointer::save` returns it. Copies share it. It may
/// outlive the checkpointer. Destroying it neither waits nor cancels. Any thread may use it.
class save_handle {
 public:
  /// A handle of no save; valid() is false.
  save_handle() = default;
  explicit save_handle(std::shared_ptr<save_progress> progress) noexcept : progress_(std::move(progress)) {}

  /// True if it belongs to a save. The other functions need that.
  [[nodiscard]] bool valid() const noexcept { return progress_ != nullptr; }
  /// True if training may change its memory: it was copied, or written where nothing is staged, or the
  /// save was given up. An overlapped save is committed only after before_update(), wait() or close().
  [[nodiscard]] bool released() const noexcept;
  /// True if the process that carries out the save has it, or the save has ended. With a worker process,
  /// a save that is handed_over() and released() survives the end of this process. save() and
  /// before_update() wait for it, for at most checkpointer_options::handover_timeout.
  [[nodiscard]] bool handed_over() const noexcept;
  /// True if this rank's bytes are durable.
  [[nodiscard]] bool written() const noexcept;
  /// The number of bytes, of report().bytes, that were handed to the store so far; also while a worker
  /// process writes.
  [[nodiscard]] std::uint64_t bytes_written() const noexcept;
  /// True if a local_tier holds this rank's image: it survives the end of every process of this host. What is
  /// held by all ranks, resume() finds.
  [[nodiscard]] bool held() const noexcept;
  /// True if all ranks hold the save and keep pieces of it (partner_copies, parity): hosts may be lost, and nothing of it is.
  [[nodiscard]] bool redundant() const noexcept;
  /// True if the checkpoint exists. Until then nothing is saved. False for a save that persist{} left in the local tier, also
  /// where close() wrote it to the store afterwards.
  [[nodiscard]] bool committed() const noexcept;
  /// True if the save was not begun, because an earlier save was under way and busy_policy::skip is set.
  /// Waits return at once.
  [[nodiscard]] bool skipped() const noexcept;
  /// True if the save has ended without a checkpoint, or this rank cannot see whether there is one; failure() says why.
  [[nodiscard]] bool failed() const noexcept;
  /// The error that made the save fail, or null.
  [[nodiscard]] std::exception_ptr failure() const noexcept;

  /// Wait until the save has reached the state. Like before_update(), wait_written() and wait() may be
  /// called only while training keeps the memory of an overlapped save unchanged. @throws the failure of
  /// the save, or timeout_error after `timeout`; the save then goes on.
  void wait_released(std::chrono::nanoseconds timeout = std::chrono::minutes(30)) const;
  /// See wait_released(); until handed_over().
  void wait_handed_over(std::chrono::nanoseconds timeout = std::chrono::minutes(30)) const;
  /// See wait_released(); until written().
  void wait_written(std::chrono::nanoseconds timeout = std::chrono::minutes(30)) const;
  /// See wait_released(); until held(). @throws also the reason why the tier does not hold it. Only with a
  /// local_tier: without one it waits for the end of the save.
  void wait_held(std::chrono::nanoseconds timeout = std::chrono::minutes(30)) const;
  /// Waits until redundant(), and returns true; false where the save goes without pieces: it is none of those that `every`
  /// chooses, or a newer one went before it, or they could not be made, which a line told. @throws timeout_error after
  /// `timeout`; the save then goes on.
  bool wait_redundant(std::chrono::nanoseconds timeout = std::chrono::minutes(30)) const;
  /// See wait_released(); until committed(), or held() where persist{} leaves the save in the local tier.
  void wait(std::chrono::nanoseconds timeout = std::chrono::minutes(30)) const;

  /// The step that was saved.
  [[nodiscard]] std::int64_t step() const;
  /// What the save has cost so far; complete when it is committed or has failed.
  [[nodiscard]] save_report report() const;

 private:
  std::shared_ptr<save_progress> progress_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/save_handle.ipp>
#endif
