// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <chrono>

namespace cairn {
inline namespace v1 {

/// Returns the time to train between two saves that loses the least time to saving and to repeating lost
/// steps.
///
/// `cost`: the time that one save costs training: for a synchronous save all of it, for others the time
/// that training stalls (save_report::blocked_seconds). `mean_time_between_failures`: that of the whole
/// job, which is that of one node divided by the number of nodes. `durable`: the time from save() until
/// the commit. A shorter interval would begin a save before the last one has ended, so the result is at
/// least `durable`.
///
/// The interval is from the end of one save's stall to the beginning of the next, by Daly's higher order
/// estimate: sqrt(2 c M) (1 + sqrt(c / 2M) / 3 + (c / 2M) / 9) - c for a cost c < 2M, otherwise M. For a
/// cost far below M it is Young's sqrt(2 c M). Both assume exponentially distributed failures at any
/// time, also during a save and a restart; the duration of a restart does not matter. The loss is flat
/// around the optimum: half or twice the interval costs about a quarter more.
///
/// J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.
/// J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3),
/// 2006.
///
/// @throws usage_error (usage_bad_option) if the mean time is not positive, another time is negative, or one
/// is NaN.
[[nodiscard]] std::chrono::duration<double> suggested_interval(
    std::chrono::duration<double> cost, std::chrono::duration<double> mean_time_between_failures,
    std::chrono::duration<double> durable = {});

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/observe/save_interval.ipp>
#endif
