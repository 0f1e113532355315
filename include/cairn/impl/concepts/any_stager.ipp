// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_stager.hpp>
#include <cairn/concepts/device_access.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/stager.hpp>
#include <cairn/model/staged_image.hpp>

#include <concepts>
#include <memory>
#include <utility>

namespace cairn {
inline namespace v1 {

CAIRN_BODY staged_image any_stager::stage(std::shared_ptr<const image_layout> layout,
                                          const source_table& sources, stage_options options,
                                          deadline until) {
  return face_->stage(std::move(layout), sources, options, until);
}
CAIRN_BODY void any_stager::prepare(const image_layout& layout, deadline until) {
  face_->prepare(layout, until);
}
CAIRN_BODY int any_stager::depth() const {
  return face_->depth();
}
CAIRN_BODY void any_stager::prepare(const source_table& sources) {
  face_->prepare(sources);
}
CAIRN_BODY std::shared_ptr<device_access> any_stager::device_memory() const {
  return face_->device_memory();
}

static_assert(PreparesSources<any_stager>);
static_assert(BringsDeviceAccess<any_stager>);

}  // namespace v1
}  // namespace cairn
