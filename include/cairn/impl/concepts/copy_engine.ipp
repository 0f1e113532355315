// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/copy_engine.hpp>
#include <cairn/concepts/memory.hpp>
#include <cairn/concepts/stager.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/deadline.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
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

CAIRN_BODY void image_fill::fail(std::exception_ptr why) noexcept {
  failure_ = std::move(why);
  told_.store(true, std::memory_order_release);  // the control may have failed before, without a reason
  control_->fail();
}

}  // namespace v1
}  // namespace cairn
