// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/plan/default_planner.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// default_planner in a world of one rank, which makes the same plans: there is nothing to merge or to divide, and programs
/// of one rank compile nothing of it.
class one_rank_planner : public basic_planner<one_rank_planner> {
 public:
  // One rank calls none of these.
  [[nodiscard]] plan_summary merge(plan_summary a, plan_summary b);
  [[nodiscard]] std::vector<std::byte> encode(const plan_summary& summary);
  [[nodiscard]] plan_summary decode(std::span<const std::byte> bytes);
  /// See basic_planner. @throws plan_error, as there
  [[nodiscard]] save_plan finish(save_plan plan, const plan_summary& global, int rank, int world_size);
  [[nodiscard]] cairn::metadata metadata(const plan_summary& global, int world_size);
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/plan/one_rank_planner.ipp>
#endif
