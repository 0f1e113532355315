// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/engine.hpp>
#include <cairn/checkpointer/follow.hpp>
#include <cairn/checkpointer/follow_options.hpp>
#include <cairn/checkpointer/following.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/owned.hpp>

#include <cstdint>
#include <optional>
#include <utility>

namespace cairn {
inline namespace v1 {

CAIRN_BODY step_follower::step_follower(detail::engine& engine, follow_options options)
    : engine_(&engine), state_(detail::make_owned<detail::following>()) {
  if (options.gone_after.count() < 0 || options.timeout.count() < 0 || options.max_pause.count() <= 0)
    fail(error_id::usage_bad_option, "a time of follow_options is negative, or max_pause is zero");
  state_->last = options.after;
  state_->options = std::move(options);
}
CAIRN_BODY step_follower::step_follower(step_follower&& other) noexcept = default;
CAIRN_BODY step_follower& step_follower::operator=(step_follower&& other) noexcept = default;
CAIRN_BODY step_follower::~step_follower() = default;

CAIRN_BODY std::optional<std::int64_t> step_follower::next() {
  if (state_ == nullptr || engine_->closed())
    fail(error_id::usage_closed,
         "the checkpointer of this follower is closed, or the follower was moved from");
  return engine_->next_step(*state_);
}
CAIRN_BODY follow_end step_follower::why() const noexcept {
  return state_ == nullptr ? follow_end::none : state_->why;
}

}  // namespace v1
}  // namespace cairn
