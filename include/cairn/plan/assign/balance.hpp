// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/metadata.hpp>
#include <cairn/plan/assign/default_planner_options.hpp>
#include <cairn/plan/assign/write_assignment.hpp>
#include <cairn/plan/summary/summary.hpp>

namespace cairn {
inline namespace v1 {

/// Gives each box to ranks that hold it, levelling the bytes that ranks write: what has one holder first,
/// then what each set of ranks holds, sets of the fewest ranks first. Depends on nothing but its arguments,
/// so every rank comes to the same result. O(progressions), and a few passes over the ranks of each distinct
/// pattern of replicas.
/// @throws plan_error as validate() does.
[[nodiscard]] write_assignment assign_writes(const plan_summary& summary, int world_size,
                                             const default_planner_options& options);

/// What a checkpoint that is written so will hold.
[[nodiscard]] metadata metadata_of(const plan_summary& summary, const write_assignment& assignment,
                                   int world_size);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/plan/assign/balance.ipp>
#endif
