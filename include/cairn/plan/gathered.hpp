// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/planner.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/plan/default_planner.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
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
  std::vector<of_rank> ranks;
};

namespace detail {
/// Every box of a created plan is written, by one rank alone.
inline void validate_created(const plan_summary& created, int world_size) {
  summary_check check(created, world_size);
  for (std::size_t n = 0; n < created.size(); ++n) {
    check.check(n);
    if (created[n].per_rank || created[n].boxes == 0) continue;
    const auto& groups = check.groups();
    for (std::size_t g = 0; g < groups.size(); ++g)
      if (groups[g].size() > 1 || groups[g][0].replicas() > 1)
        fail(error_id::plan_overlap, "create_global_plan lets several ranks write the same box",
             {.rank = groups[g][0].p.rank,
              .item = std::string(created.name(n)),
              .got = to_string(groups[g][0].p.first)});
  }
}

/// What plans that have been validated will store; the same order as metadata_of.
[[nodiscard]] inline metadata metadata_of_created(const plan_summary& created, int world_size) {
  // Nothing is replicated here, so that the options of balancing do not matter.
  return metadata_of(created, assign_writes(created, world_size, {}), world_size);
}

/// @throws plan_error (plan_disagreement) if a planner's metadata is not what its plans write.
inline void check_metadata(metadata said, const metadata& made) {
  const auto by_name = [](const stored_item& a, const stored_item& b) { return a.name < b.name; };
  std::sort(said.items.begin(), said.items.end(), by_name);
  for (std::size_t n = 0; n < std::max(said.items.size(), made.items.size()); ++n) {
    if (n < said.items.size() && n < made.items.size() && said.items[n] == made.items[n]) continue;
    fail(error_id::plan_disagreement,
         "the metadata of create_global_plan is not what its plans write, beginning with this item",
         {.item = n < made.items.size() ? made.items[n].name : said.items[n].name});
  }
}
}  // namespace detail

/// Lets a planner that must see the plans of all ranks (`create_global_plan`, as in DCP) be a SavePlanner;
/// and a LoadPlanner if P is one: `cairn::gathered<my_planner>{my_planner{...}}`. The summary is all plans,
/// and every rank calls create_global_plan for itself: O(ranks) in memory, messages and time on every rank.
/// What comes out is validated like the plans of default_planner before anything is written, and its
/// metadata is compared with the plans. One thread at a time.
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
    const auto middle = static_cast<std::ptrdiff_t>(a.ranks.size());
    std::move(b.ranks.begin(), b.ranks.end(), std::back_inserter(a.ranks));
    std::inplace_merge(a.ranks.begin(), a.ranks.begin() + middle, a.ranks.end(),
                       [](const auto& x, const auto& y) { return x.rank < y.rank; });
    return a;
  }
  [[nodiscard]] std::vector<std::byte> encode(const gathered_plans& plans) {
    wire_writer out;
    out.put(static_cast<std::uint64_t>(plans.ranks.size()));
    for (const auto& r : plans.ranks) {
      out.put(r.rank);
      cairn::encode(out, r.plan);
    }
    return out.take();
  }
  /// @throws wire_error on bytes that encode did not make.
  [[nodiscard]] gathered_plans decode(std::span<const std::byte> bytes) {
    wire_reader in(bytes);
    gathered_plans plans;
    const auto count = in.get_count(12);
    for (std::size_t n = 0; n < count; ++n) {
      const auto rank = in.get<std::int32_t>();
      if (rank < 0 || (n > 0 && plans.ranks.back().rank > rank)) in.fail_here("ranks are out of order");
      plans.ranks.push_back({rank, decode_save_plan(in)});
    }
    in.finish();
    return plans;
  }

  /// @throws plan_error, the same on all ranks, if the plans of create_global_plan are not a whole
  /// checkpoint.
  [[nodiscard]] save_plan finish(save_plan, const gathered_plans& global, int rank, int world_size) {
    auto made = create(global, world_size);
    auto mine = std::move(made.plans[static_cast<std::size_t>(rank)]);
    // Empty shards have told what they had to tell; a tensor without elements is written where it stands
    // first.
    std::erase_if(mine.items, [&](const write_item& i) {
      if (!detail::definition_only(i)) return false;
      const auto* item = made.stored.find(i.name);
      bool here = false;
      item->chunks.of_rank(rank, [&](std::uint64_t, const stored_chunk&) { here = true; });
      return !whole(i.global).empty() || !here;
    });
    for (auto& i : mine.items)
      if (detail::definition_only(i)) i.box = whole(i.global);
    return mine;
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
    for (std::size_t n = 0; n < global.ranks.size(); ++n) {
      if (std::cmp_not_equal(global.ranks[n].rank, n)) break;
      out.plans.push_back(global.ranks[n].plan);
    }
    if (std::cmp_not_equal(out.plans.size(), world_size) || out.plans.size() != global.ranks.size())
      fail(error_id::plan_disagreement, "the gathered plans are not one for each rank",
           {.rank = static_cast<int>(out.plans.size()),
            .expected = std::to_string(world_size),
            .got = std::to_string(global.ranks.size())});
    const cairn::metadata said = planner_.create_global_plan(std::span<save_plan>(out.plans));
    plan_summary summary;
    for (int r = 0; r < world_size; ++r)
      summary =
          merge_summaries(std::move(summary), summarise_plan(out.plans[static_cast<std::size_t>(r)], r));
    detail::validate_created(summary, world_size);
    out.stored = detail::metadata_of_created(summary, world_size);
    detail::check_metadata(said, out.stored);
    return out;
  }

  P planner_;
};

template <class P>
inline constexpr bool resolves_by_binding<gathered<P>> = resolves_by_binding<P>;

}  // namespace v1
}  // namespace cairn
