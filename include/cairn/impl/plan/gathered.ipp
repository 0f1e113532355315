// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/plan/assign/balance.hpp>
#include <cairn/plan/gathered.hpp>
#include <cairn/plan/summary/summary.hpp>
#include <cairn/plan/summary/summary_merge.hpp>
#include <cairn/plan/summary/validation.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
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
inline metadata metadata_of_created(const plan_summary& created, int world_size) {
  // Nothing is replicated here, so that the options of balancing do not matter.
  return metadata_of(created, assign_writes(created, world_size, {}), world_size);
}

/// @throws plan_error (plan_disagreement) if a planner's metadata is not what its plans write.
inline void check_metadata(metadata stated, const metadata& made) {
  const auto by_name = [](const stored_item& a, const stored_item& b) { return a.name < b.name; };
  if (!stated.items.empty()) detail::sort(&stated.items[0], stated.items.size(), by_name);
  for (std::size_t n = 0; n < std::max(stated.items.size(), made.items.size()); ++n) {
    if (n < stated.items.size() && n < made.items.size() && stated.items[n] == made.items[n]) continue;
    fail(error_id::plan_disagreement,
         "the metadata of create_global_plan is not what its plans write, beginning with this item",
         {.item = n < made.items.size() ? made.items[n].name : stated.items[n].name});
  }
}

CAIRN_BODY gathered_plans merge_gathered(gathered_plans a, gathered_plans b) {
  const auto middle = static_cast<std::ptrdiff_t>(a.ranks.size());
  std::move(b.ranks.begin(), b.ranks.end(), std::back_inserter(a.ranks));
  std::inplace_merge(a.ranks.begin(), a.ranks.begin() + middle, a.ranks.end(),
                     [](const auto& x, const auto& y) { return x.rank < y.rank; });
  return a;
}

CAIRN_BODY std::vector<std::byte> encode_gathered(const gathered_plans& plans) {
  wire_writer out;
  out.put(static_cast<std::uint64_t>(plans.ranks.size()));
  for (const auto& r : plans.ranks) {
    out.put(r.rank);
    cairn::encode(out, r.plan);
  }
  return out.take();
}

CAIRN_BODY gathered_plans decode_gathered(std::span<const std::byte> bytes) {
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

CAIRN_BODY std::vector<save_plan> plans_of_all(const gathered_plans& global, int world_size) {
  std::vector<save_plan> plans;
  for (std::size_t n = 0; n < global.ranks.size(); ++n) {
    if (std::cmp_not_equal(global.ranks[n].rank, n)) break;
    plans.push_back(global.ranks[n].plan);
  }
  if (std::cmp_not_equal(plans.size(), world_size) || plans.size() != global.ranks.size())
    fail(error_id::plan_disagreement, "the gathered plans are not one for each rank",
         {.rank = static_cast<int>(plans.size()),
          .expected = std::to_string(world_size),
          .got = std::to_string(global.ranks.size())});
  return plans;
}

CAIRN_BODY metadata metadata_of_plans(metadata stated, const std::vector<save_plan>& plans, int world_size) {
  plan_summary summary;
  for (int r = 0; r < world_size; ++r)
    summary = merge_summaries(std::move(summary), summarise_plan(plans[static_cast<std::size_t>(r)], r));
  validate_created(summary, world_size);
  auto made = metadata_of_created(summary, world_size);
  check_metadata(std::move(stated), made);
  return made;
}

CAIRN_BODY save_plan plan_of_rank(save_plan mine, const metadata& stored, int rank) {
  // The entry of an empty shard has served its purpose; a tensor without elements is written by the first
  // rank that has it.
  detail::erase_if(mine.items, [&](const write_item& i) {
    if (!detail::definition_only(i)) return false;
    const auto* item = stored.find(i.name);
    bool here = false;
    item->chunks.of_rank(rank, [&](std::uint64_t, const stored_chunk&) { here = true; });
    return !whole(i.global).empty() || !here;
  });
  for (auto& i : mine.items)
    if (detail::definition_only(i)) i.box = whole(i.global);
  return mine;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
