// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/planner.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/plan/default_planner.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// The plans of some ranks, in ascending order of rank: the summary_type of gathered<P>.
struct gathered_plans {
  /// The plan of one rank.
  struct of_rank {
    std::int32_t rank = 0;
    save_plan plan;
  };
  std::vector<of_rank> ranks;  ///< ascending by rank, each rank once
};

namespace detail {
// What gathered does, whatever the planner; see there.
[[nodiscard]] gathered_plans merge_gathered(gathered_plans a, gathered_plans b);
[[nodiscard]] std::vector<std::byte> encode_gathered(const gathered_plans& plans);
[[nodiscard]] gathered_plans decode_gathered(std::span<const std::byte> bytes);
/// Checks that there is one plan for each rank, in order. @throws plan_error (plan_disagreement)
[[nodiscard]] std::vector<save_plan> plans_of_all(const gathered_plans& global, int world_size);
/// What plans that were created will store. @throws plan_error if they are not a whole checkpoint, or
/// store something else than was said.
[[nodiscard]] metadata metadata_of_plans(metadata stated, const std::vector<save_plan>& plans,
                                         int world_size);
/// What a rank writes of the plan that was created for it.
[[nodiscard]] save_plan plan_of_rank(save_plan mine, const metadata& stored, int rank);
}  // namespace detail

/// Adapts a planner that must see the plans of all ranks (`create_global_plan`, as in DCP) to a
/// SavePlanner, and to a LoadPlanner if P is one: `cairn::gathered<my_planner>{my_planner{...}}`. The
/// summary consists of all plans, and every rank calls create_global_plan: O(ranks) of memory, messages
/// and time on every rank. The resulting plans are validated like those of default_planner before
/// anything is written, and compared with the metadata. One thread at a time.
template <GatheringSavePlanner P>
class gathered {
 public:
  using cairn_role = std::conditional_t<LoadPlanner<P>, role::planner, role::save_planner>;
  using summary_type = gathered_plans;

  gathered() = default;
  explicit gathered(P planner) : planner_(std::move(planner)) {}

  [[nodiscard]] save_plan local_plan(const state_dict& state, int rank) {
    return planner_.local_plan(state, rank);
  }
  [[nodiscard]] gathered_plans summarise(save_plan plan, int rank) {
    gathered_plans one;
    one.ranks.push_back({rank, std::move(plan)});
    return one;
  }
  [[nodiscard]] gathered_plans merge(gathered_plans a, gathered_plans b) {
    return detail::merge_gathered(std::move(a), std::move(b));
  }
  [[nodiscard]] std::vector<std::byte> encode(const gathered_plans& plans) {
    return detail::encode_gathered(plans);
  }
  /// @throws wire_error on bytes that encode did not make.
  [[nodiscard]] gathered_plans decode(std::span<const std::byte> bytes) {
    return detail::decode_gathered(bytes);
  }

  /// @throws plan_error, the same on all ranks, if the plans of create_global_plan are not a whole
  /// checkpoint.
  [[nodiscard]] save_plan finish(save_plan, const gathered_plans& global, int rank, int world_size) {
    auto made = create(global, world_size);
    return detail::plan_of_rank(std::move(made.plans[static_cast<std::size_t>(rank)]), made.stored, rank);
  }
  [[nodiscard]] cairn::metadata metadata(const gathered_plans& global, int world_size) {
    return create(global, world_size).stored;
  }
  [[nodiscard]] item_source resolve(const state_dict& state, const write_item& item) {
    return planner_.resolve(state, item);
  }
  [[nodiscard]] std::uint64_t fingerprint() const { return planner_.fingerprint(); }

  [[nodiscard]] load_plan plan(const state_dict& state, const cairn::metadata& stored,
                               const load_request& request)
    requires LoadPlanner<P>
  {
    return planner_.plan(state, stored, request);
  }
  [[nodiscard]] item_target resolve(const state_dict& state, const cairn::metadata& stored,
                                    const read_item& item)
    requires LoadPlanner<P>
  {
    return planner_.resolve(state, stored, item);
  }

 private:
  struct created {
    std::vector<save_plan> plans;
    cairn::metadata stored;
  };
  created create(const gathered_plans& global, int world_size) {
    created out;
    out.plans = detail::plans_of_all(global, world_size);
    out.stored = detail::metadata_of_plans(planner_.create_global_plan(std::span<save_plan>(out.plans)),
                                           out.plans, world_size);
    return out;
  }

  P planner_;
};

template <class P>
inline constexpr bool resolves_by_binding<gathered<P>> = resolves_by_binding<P>;

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/plan/gathered.ipp>
#endif
