// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_handle.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/model/save_report.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <chrono>
#include <cstdint>
#include <exception>

namespace cairn {
inline namespace v1 {

CAIRN_BODY bool save_handle::released() const noexcept {
  return progress_->released();
}

CAIRN_BODY bool save_handle::handed_over() const noexcept {
  return progress_->handed_over();
}

CAIRN_BODY bool save_handle::written() const noexcept {
  return progress_->written();
}

CAIRN_BODY std::uint64_t save_handle::bytes_written() const noexcept {
  return progress_->bytes_written();
}

CAIRN_BODY bool save_handle::held() const noexcept {
  return progress_->held();
}

CAIRN_BODY bool save_handle::committed() const noexcept {
  return progress_->committed();
}

CAIRN_BODY bool save_handle::redundant() const noexcept {
  return progress_->redundant();
}

CAIRN_BODY bool save_handle::skipped() const noexcept {
  return progress_->skipped();
}

CAIRN_BODY bool save_handle::failed() const noexcept {
  return progress_->failure() != nullptr;
}

CAIRN_BODY std::exception_ptr save_handle::failure() const noexcept {
  return progress_->failure();
}

CAIRN_BODY void save_handle::wait_released(std::chrono::nanoseconds timeout) const {
  progress_->wait_released(deadline::in(timeout));
  static_cast<void>(progress_->released());
}

CAIRN_BODY void save_handle::wait_handed_over(std::chrono::nanoseconds timeout) const {
  if (!progress_->wait_handed_over(deadline::in(timeout)))
    progress_->fail_late(error_id::timeout_staging,
                         "the worker did not take over a save in time; the save goes on");
}

CAIRN_BODY void save_handle::wait_written(std::chrono::nanoseconds timeout) const {
  const auto until = deadline::in(timeout);
  progress_->confirm(until);
  progress_->wait_written(until);
}

CAIRN_BODY void save_handle::wait_held(std::chrono::nanoseconds timeout) const {
  const auto until = deadline::in(timeout);
  progress_->confirm(until);
  progress_->wait_held(until);
}

CAIRN_BODY bool save_handle::wait_redundant(std::chrono::nanoseconds timeout) const {
  const auto until = deadline::in(timeout);
  progress_->confirm(until);
  return progress_->wait_redundant(until);
}

CAIRN_BODY void save_handle::wait(std::chrono::nanoseconds timeout) const {
  const auto until = deadline::in(timeout);
  progress_->confirm(until);
  progress_->wait_committed(until);
}

CAIRN_BODY std::int64_t save_handle::step() const {
  return progress_->report().step;
}

CAIRN_BODY save_report save_handle::report() const {
  return progress_->report();
}

}  // namespace v1
}  // namespace cairn
