// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/metadata.hpp>
#include <cairn/plan/assign/assigned_plan.hpp>
#include <cairn/plan/assign/balance.hpp>
#include <cairn/plan/assign/balancer.hpp>
#include <cairn/plan/assign/write_assignment.hpp>
#include <cairn/plan/summary/summary.hpp>

namespace cairn {
inline namespace v1 {

CAIRN_BODY write_assignment assign_writes(const plan_summary& summary, int world_size,
                                          const default_planner_options& options) {
  return detail::balancer(summary, world_size, options).assign();
}

CAIRN_BODY metadata metadata_of(const plan_summary& summary, const write_assignment& assignment,
                                int world_size) {
  return detail::metadata_by(summary, assignment, world_size);
}

}  // namespace v1
}  // namespace cairn
