// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_executor.hpp>
#include <cairn/concepts/executor.hpp>

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace cairn {
inline namespace v1 {

CAIRN_BODY void any_executor::submit(save_job job) {
  face_->submit(std::move(job));
}
CAIRN_BODY bool any_executor::drain(deadline until) {
  return face_->drain(until);
}
CAIRN_BODY void any_executor::prepare() {
  face_->prepare();
}
CAIRN_BODY bool any_executor::ends_with_process() const noexcept {
  return face_->ends_with_process();
}
CAIRN_BODY bool any_executor::runs_in_caller() const noexcept {
  return face_->runs_in_caller();
}

}  // namespace v1
}  // namespace cairn
