// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/other_writers.hpp>
#include <cairn/concepts/any_writer.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/shared.hpp>

#include <atomic>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What the thread shares with its owner, and may outlive it with.
struct other_writers::inside {
  inside(const any_writer& w, const save_context& c) : writer(w), context(c) {}
  any_writer writer;
  const save_context context;
  std::atomic<int> seen{-1};
  std::atomic<bool> looking{false};
};

CAIRN_BODY int other_writers::look() noexcept {
  try {
    if (in_ == nullptr) in_ = detail::make_shared<inside>(writer_, context_);
    if (in_->looking) return in_->seen;
    const auto ask = [in = in_] {
      in->seen = in->writer.other_writing_rank(in->context);
      in->looking = false;
    };
    in_->looking = true;
    if (thread_.start("cairn look", ask))
      thread_.join(deadline::in(longest_wait));
    else
      in_->looking = false;
    return in_->seen;
  } catch (...) {  // out of memory: the deadline tells what is missing
    return -1;
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
