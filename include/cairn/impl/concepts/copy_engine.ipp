// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/copy_engine.hpp>
#include <cairn/concepts/memory.hpp>
#include <cairn/concepts/stager.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/deadline.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <utility>

namespace cairn {
inline namespace v1 {

CAIRN_BODY image_fill::image_fill(std::shared_ptr<const image_layout> layout, source_table sources,
                                  stage_options options, std::span<std::byte> memory,
                                  std::span<std::uint64_t> digests, std::shared_ptr<image_control> control)
    : layout_(std::move(layout)),
      sources_(std::move(sources)),
      control_(std::move(control)),
      memory_(memory),
      digests_(digests),
      options_(options) {}

CAIRN_BODY void image_fill::begun() noexcept {
  if (begin_.load(std::memory_order_relaxed) == begin_state::begun) return;
  if (begin_.exchange(begin_state::begun, std::memory_order_acq_rel) != begin_state::called_for) return;
  on_begun_();
  on_begun_ = nullptr;
}

CAIRN_BODY bool image_fill::when_begun(detail::callback<void()> call) {
  auto state = begin_.load(std::memory_order_acquire);
  detail::callback<void()> earlier;
  if (state == begin_state::called_for) {
    // Taken back, so that nobody calls it while another one is added.
    if (!begin_.compare_exchange_strong(state, begin_state::awaited, std::memory_order_acq_rel)) return false;
    earlier = std::move(on_begun_);
    call = [earlier, call = std::move(call)] { earlier(), call(); };
  } else if (state != begin_state::awaited) {
    return false;
  }
  on_begun_ = std::move(call);
  state = begin_state::awaited;
  if (begin_.compare_exchange_strong(state, begin_state::called_for, std::memory_order_acq_rel)) return true;
  // It has begun meanwhile, and called nobody. `call` is not called here: its owner holds the lock that it takes.
  on_begun_ = nullptr;
  if (earlier) earlier();
  return false;
}

CAIRN_BODY void image_fill::fail(std::exception_ptr why) noexcept {
  failure_ = std::move(why);
  failure_set_.store(true,
                     std::memory_order_release);  // the control may have failed before, without a reason
  control_->fail();
  begun();
}

}  // namespace v1
}  // namespace cairn
