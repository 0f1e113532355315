// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_layout.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/shared_event.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

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

CAIRN_BODY files_under_way::note::note(files_under_way& owner, std::string key) : owner_(&owner) {
  const std::lock_guard lock(owner.mutex_);
  at_ = owner.keys_.insert(owner.keys_.end(), std::move(key));
}

CAIRN_BODY files_under_way::note::~note() {
  const std::lock_guard lock(owner_->mutex_);
  owner_->keys_.erase(at_);
}

CAIRN_BODY std::string files_under_way::first() const {
  const std::lock_guard lock(mutex_);
  return keys_.empty() ? std::string() : keys_.front();
}

CAIRN_BODY staged_image::staged_image(std::shared_ptr<const image_layout> layout,
                                      std::shared_ptr<image_control> control,
                                      std::span<const std::byte> memory, std::span<std::uint64_t> digests,
                                      bool digested, std::shared_ptr<image_backing> backing)
    : layout_(std::move(layout)),
      control_(std::move(control)),
      backing_(std::move(backing)),
      files_(detail::make_shared<files_under_way>()),
      memory_(memory),
      digests_(digests),
      digested_(digested) {}

CAIRN_BODY void staged_image::wait_for(std::uint64_t end, deadline until) const {
  if (!control_->wait_for(end, until)) rethrow();
}

CAIRN_BODY void staged_image::copy_part(std::uint64_t begin, std::uint64_t end, deadline until) const {
  if (control_->copied() || control_->watermark() >= end) return;
  if (backing_ != nullptr && backing_->copy_part(begin, end, until)) return;
  control_->lift_rate_limit();
  static_cast<void>(control_->wait_for(end, until));
}

CAIRN_BODY void staged_image::wait_released(deadline until) const {
  if (!control_->wait_released(until)) rethrow();
}

CAIRN_BODY std::exception_ptr staged_image::failure() const noexcept {
  if (reading_ != nullptr && control_->failed() && reading_->failure != nullptr) return reading_->failure;
  return backing_ != nullptr ? backing_->failure() : nullptr;
}

CAIRN_BODY void staged_image::when_read(std::function<std::exception_ptr(const staged_image&)> check) {
  reading_ = detail::make_shared<reading>();
  reading_->check = std::move(check);
}

CAIRN_BODY void staged_image::read_completely() const noexcept {
  if (resident()) return;
  if (reading_ != nullptr && !reading_->over.exchange(true)) {
    try {
      reading_->failure = reading_->check(*this);
    } catch (...) {
      reading_->failure = std::current_exception();
    }
    if (reading_->failure != nullptr) return control_->fail();
  }
  control_->release();
}

CAIRN_BODY void staged_image::rethrow() const {
  if (auto why = failure()) std::rethrow_exception(why);
  fail(error_id::storage_aborted, "the image was given up before it was complete");
}

}  // namespace v1
}  // namespace cairn
