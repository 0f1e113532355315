// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_backing.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/model/save_notes.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/callback.hpp>
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
#include <memory>
#include <optional>
#include <span>
#include <utility>

namespace cairn {
inline namespace v1 {

struct staged_image::reading {
  detail::callback<std::exception_ptr(const staged_image&)> check;
  std::atomic<bool> over{false};
  std::exception_ptr failure;  // written before the control fails
};

CAIRN_BODY staged_image::staged_image(std::shared_ptr<const image_layout> layout,
                                      std::shared_ptr<image_control> control,
                                      std::span<const std::byte> memory, std::span<std::uint64_t> digests,
                                      bool digested, std::shared_ptr<image_backing> backing)
    : layout_(std::move(layout)),
      control_(std::move(control)),
      backing_(std::move(backing)),
      notes_(detail::make_shared<save_notes>()),
      memory_(memory),
      digests_(digests),
      digested_(digested) {}

CAIRN_BODY void staged_image::carry_notes_of(const std::shared_ptr<save_progress>& save) noexcept {
  notes_ = std::shared_ptr<save_notes>(save, &save->notes());
}

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

CAIRN_BODY bool staged_image::failed() const noexcept {
  return control_->failed();
}

CAIRN_BODY void staged_image::gather(std::uint64_t begin, std::span<std::byte> out) const {
  backing_->gather(begin, out);
}

CAIRN_BODY bool staged_image::when_begun(detail::callback<void()> call) const {
  return backing_ != nullptr && backing_->when_begun(std::move(call));
}

CAIRN_BODY std::optional<shared_image> staged_image::shared() const {
  return backing_ != nullptr ? backing_->shared() : std::nullopt;
}

CAIRN_BODY void staged_image::when_read(detail::callback<std::exception_ptr(const staged_image&)> check) {
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
