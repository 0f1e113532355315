// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/engine.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/owned.hpp>

#include <exception>
#include <memory>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY engine_owner::engine_owner(detail::owned<engine> made) noexcept : engine_(std::move(made)) {}
CAIRN_BODY engine_owner::engine_owner(engine_owner&& other) noexcept = default;
CAIRN_BODY engine_owner& engine_owner::operator=(engine_owner&& other) noexcept {
  if (this != &other) {
    end();
    engine_ = std::move(other.engine_);
    process_ = other.process_;
  }
  return *this;
}
CAIRN_BODY engine_owner::~engine_owner() {
  end();
}

CAIRN_BODY engine& engine_owner::here() const {
  if (engine_ == nullptr) fail(error_id::usage_closed, "this checkpointer was moved from");
  process_.check("a checkpointer does not work in a child of fork(); make one there");
  return *engine_;
}
CAIRN_BODY engine& engine_owner::open() const {
  auto& found = here();
  if (found.closed()) fail(error_id::usage_closed, "the checkpointer is closed; make a new one");
  return found;
}
CAIRN_BODY void engine_owner::end() noexcept {
  if (engine_ == nullptr) return;
  if (process_.in_child()) {
    static_cast<void>(engine_.release());  // the threads and buffers belong to the parent
    return;
  }
  engine_->shut_down(std::uncaught_exceptions() > 0);
  engine_.reset();
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
