// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/error.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

namespace cairn {
inline namespace v1 {

/// How long to train between two saves, so that least time is lost to saving and to repeating what failures
/// undo.
///
/// `cost`: what one save costs training: of a synchronous save all of it, of others the time that training
/// stalls (save_report::blocked_seconds). `mean_time_between_failures`: of the whole job, so that of one node
/// divided by the nodes. `durable`: from save() until committed; a shorter interval than this would begin a
/// save before the last one is over, so it is the least that is given.
///
/// From the end of one save's stall to the beginning of the next, after Daly's higher order estimate:
/// sqrt(2 c M) (1 + sqrt(c / 2M) / 3 + (c / 2M) / 9) - c for a cost c < 2M, else M. For a cost far below M it
/// is Young's sqrt(2 c M). Both assume failures at random (exponentially distributed), at any time, also
/// during a save and a restart; how long a restart takes does not matter. What a run loses is flat around
/// the optimum: half or twice the interval costs about a quarter more.
///
/// J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.
/// J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3),
/// 2006.
///
/// @throws usage_error (usage_bad_option) if the mean time is not positive, another time is negative, or one
/// is no number.
[[nodiscard]] inline std::chrono::duration<double> suggested_interval(
    std::chrono::duration<double> cost, std::chrono::duration<double> mean_time_between_failures,
    std::chrono::duration<double> durable = {}) {
  const double c = cost.count();
  const double m = mean_time_between_failures.count();
  if (!(m > 0) || !(c >= 0) || !(durable.count() >= 0) || !std::isfinite(m) || !std::isfinite(c) ||
      !std::isfinite(durable.count()))
    fail(
        error_id::usage_bad_option,
        "suggested_interval: the mean time between failures must be above zero, the other times not below it",
        {.got = std::to_string(m) + " s, cost " + std::to_string(c) + " s, durable " +
                std::to_string(durable.count()) + " s"});
  double interval = m;
  if (c < 2 * m) {
    const double part = c / (2 * m);
    interval = std::sqrt(2 * c * m) * (1 + std::sqrt(part) / 3 + part / 9) - c;
  }
  return std::max(std::chrono::duration<double>(interval), durable);
}

}  // namespace v1
}  // namespace cairn
