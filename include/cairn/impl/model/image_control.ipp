// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_control.hpp>
#include <cairn/system/clocks.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/shared_event.hpp>

#include <atomic>
#include <cstdint>

namespace cairn {
inline namespace v1 {

CAIRN_BODY void image_control::advance(std::uint64_t watermark) noexcept {
  watermark_.store(watermark, std::memory_order_release);
  event_.notify();
}

CAIRN_BODY void image_control::release() noexcept {
  std::int64_t never = 0;
  costs_.copied_at.compare_exchange_strong(never, steady_now(), std::memory_order_relaxed);
  copied_.store(true, std::memory_order_release);
  event_.notify();
}

CAIRN_BODY void image_control::confirm() noexcept {
  confirmed_.store(true, std::memory_order_release);
  event_.notify();
}

CAIRN_BODY void image_control::fail() noexcept {
  failed_.store(true, std::memory_order_release);
  release();
}

CAIRN_BODY void image_control::lift_rate_limit() noexcept {
  if (rate_limit_lifted_.exchange(true, std::memory_order_acq_rel)) return;
  event_.notify();
}

CAIRN_BODY void image_control::lift_write_limit() noexcept {
  if (write_limit_lifted_.exchange(true, std::memory_order_acq_rel)) return;
  event_.notify();
}

CAIRN_BODY bool image_control::wait_for(std::uint64_t end, deadline until) {
  return wait([&] { return watermark() >= end; }, until, "the image was not filled in time");
}

CAIRN_BODY bool image_control::wait_copied(deadline until) {
  return wait([&] { return copied(); }, until, "the memory of training was not copied in time");
}

CAIRN_BODY bool image_control::wait_released(deadline until) {
  return wait([&] { return released(); }, until,
              "a save was not released in time: its memory was not copied, or nobody called before_update(), "
              "wait() or close() after an overlapped save");
}

CAIRN_BODY void image_control::fail_with(const char* sentence) {
  cairn::fail(error_id::timeout_staging, sentence);
}

}  // namespace v1
}  // namespace cairn
