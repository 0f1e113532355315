// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/clock.hpp>
#include <cairn/stores/s3/http_call.hpp>
#include <cairn/stores/s3/sigv4.hpp>

#include <cstddef>
#include <mutex>
#include <optional>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void call_group::begin() {
  const std::lock_guard lock(mutex_);
  ++running_;
}

CAIRN_BODY void call_group::end() noexcept {
  const std::lock_guard lock(mutex_);
  --running_;
  ended_.notify_all();
}

CAIRN_BODY void call_group::wait(std::size_t max_running) {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return running_ <= max_running; });
}

CAIRN_BODY bool call_group::wait_for(std::size_t max_running, std::chrono::nanoseconds time) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, time, [&] { return running_ <= max_running; });
}

CAIRN_BODY bool call_group::wait_until(const s3_deadline& until, std::size_t max_running) {
  std::unique_lock lock(mutex_);
  return until.wait(ended_, lock, [&] { return running_ <= max_running; });
}

CAIRN_BODY std::size_t call_group::running() {
  const std::lock_guard lock(mutex_);
  return running_;
}

CAIRN_BODY std::optional<std::string_view> http_call::header(std::string_view name) const noexcept {
  std::optional<std::string_view> found;
  for (const auto& [n, value] : answer_headers) {
    if (n != name) continue;
    if (found && *found != value) return std::nullopt;
    found = value;
  }
  return found;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
