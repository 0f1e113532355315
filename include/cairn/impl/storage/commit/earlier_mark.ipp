// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/commit/earlier_mark.hpp>
#include <cairn/storage/commit/leases.hpp>
#include <cairn/storage/commit/store_look.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY earlier_mark::earlier_mark(const any_store& store, std::int64_t step, std::uint64_t attempt)
    : store_(store),
      objects_(store),
      step_(step),
      attempt_(attempt),
      seen_(deadline::clock::now()),
      there_(store.size(aborted_key(step, attempt)).has_value()) {
  if (there_) require_nobody();
}

CAIRN_BODY void earlier_mark::remove(std::chrono::nanoseconds timeout, const std::function<void()>& stop) {
  if (!there_) return;
  const auto until = deadline::at(seen_ + timeout);
  for (poll_backoff pause(attempt_, 0); pause.wait(until);) stop();
  require_nobody();
  store_.remove(aborted_key(step_, attempt_));
  // Whoever shows itself from now on looks for the mark after that, and makes one of its own.
  try {
    require_nobody();
  } catch (...) {
    (void)objects_.mark(step_, attempt_, std::current_exception());
    throw;
  }
  there_ = false;
}

CAIRN_BODY void earlier_mark::require_nobody() const {
  auto who = step_leases(store_).removers(step_);
  for (const auto& save :
       checkpoint_catalog(store_).live_saves({}, look_at_steps(store_, step_directory(step_) + "/")))
    if (save.attempt != attempt_) who.push_back("a save of this step");
  if (who.empty()) return;
  fail(error_id::storage_aborted,
       "a process has ended an earlier copy of step " + std::to_string(step_) + " to " +
           std::string(store_.describe()) + " and is removing what that sent: copy again when it has done so",
       {.file = aborted_key(step_, attempt_), .got = who.front()});
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
