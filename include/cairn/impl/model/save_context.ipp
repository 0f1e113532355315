// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/metadata.hpp>
#include <cairn/model/peer_watch.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/digest.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace cairn {
inline namespace v1 {

CAIRN_BODY std::chrono::nanoseconds save_context::outcome_timeout() const noexcept {
  return std::min(timeout, std::chrono::nanoseconds::max() / 8) * 2 + std::chrono::seconds(5);
}

CAIRN_BODY std::chrono::nanoseconds save_context::longest() const noexcept {
  return std::min(timeout, std::chrono::nanoseconds::max() / 8) + outcome_timeout() + std::chrono::seconds(5);
}

CAIRN_BODY std::uint64_t attempt_of(const run_id& run, std::int64_t step, std::uint64_t save_count) {
  digest_stream d;
  return d.put(run.high).put(run.low).put(step).value() + save_count * detail::attempt_stride;
}

CAIRN_BODY std::uint64_t save_count_of(const run_id& run, std::int64_t step, std::uint64_t attempt) {
  return (attempt - attempt_of(run, step, 0)) * detail::attempt_stride_inverse;
}

}  // namespace v1
}  // namespace cairn
