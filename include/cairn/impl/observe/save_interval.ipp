// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/observe/save_interval.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/finite.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

namespace cairn {
inline namespace v1 {

CAIRN_BODY std::chrono::duration<double> suggested_interval(
    std::chrono::duration<double> cost, std::chrono::duration<double> mean_time_between_failures,
    std::chrono::duration<double> durable) {
  const double c = cost.count();
  const double m = mean_time_between_failures.count();
  if (!(m > 0) || !(c >= 0) || !(durable.count() >= 0) || !detail::is_finite(m) || !detail::is_finite(c) ||
      !detail::is_finite(durable.count()))
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
