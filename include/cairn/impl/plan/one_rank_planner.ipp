// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/plan/assign/assigned_plan.hpp>
#include <cairn/plan/one_rank_planner.hpp>
#include <cairn/plan/summary/validation.hpp>
#include <cairn/system/error.hpp>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

[[noreturn]] CAIRN_BODY void refuse_other_ranks() {
  fail(error_id::usage_bad_option, "a planner for one rank was asked about the plans of several");
}
CAIRN_BODY plan_summary one_rank_planner::merge(plan_summary, plan_summary) {
  refuse_other_ranks();
}
CAIRN_BODY std::vector<std::byte> one_rank_planner::encode(const plan_summary&) {
  refuse_other_ranks();
}
CAIRN_BODY plan_summary one_rank_planner::decode(std::span<const std::byte>) {
  refuse_other_ranks();
}
CAIRN_BODY save_plan one_rank_planner::finish(save_plan plan, const plan_summary& global, int rank,
                                              int world_size) {
  validate(global, world_size);
  return plan_of(std::move(plan), global, rank, all_as_held());
}
CAIRN_BODY metadata one_rank_planner::metadata(const plan_summary& global, int world_size) {
  return metadata_by(global, all_as_held(), world_size);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
