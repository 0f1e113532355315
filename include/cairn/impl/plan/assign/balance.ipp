// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/metadata.hpp>
#include <cairn/model/progression_joiner.hpp>
#include <cairn/plan/assign/balance.hpp>
#include <cairn/plan/assign/balancer.hpp>
#include <cairn/plan/assign/write_assignment.hpp>
#include <cairn/plan/summary/summary.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace cairn {
inline namespace v1 {

CAIRN_BODY write_assignment assign_writes(const plan_summary& summary, int world_size,
                                          const default_planner_options& options) {
  return detail::balancer(summary, world_size, options).assign();
}

CAIRN_BODY metadata metadata_of(const plan_summary& summary, const write_assignment& assignment,
                                int world_size) {
  cairn::metadata out;
  out.world_size = world_size;
  out.items.reserve(summary.size());
  for (std::size_t n = 0; n < summary.size(); ++n) {
    const auto& i = summary[n];
    auto& item = out.items.emplace_back();
    item.name = summary.name(n);
    item.kind = i.kind, item.type = i.type, item.global = i.global, item.per_rank = i.per_rank;
    const auto sink = [&](const chunk_progression& p) { item.chunks.append(p); };
    detail::progression_joiner<decltype(sink)> joiner(sink);
    const auto add = [&](chunk_progression p) {
      if (i.kind == item_kind::bytes || i.boxes == 0) p.first = whole(i.global);
      joiner.push(p);
    };
    if (i.boxes == 0 && !i.per_rank) {  // a tensor without elements: one rank writes that it is there
      std::int32_t least = INT32_MAX;
      summary.for_each_without(n, [&](const chunk_progression& p) { least = std::min(least, p.rank); });
      chunk_progression one;
      one.rank = least;
      add(one);
    } else if (i.boxes == 0) {
      summary.for_each_without(n, add);
    } else if (!assignment.written_as_held(n)) {
      assignment.for_each_chunk(n, add);
    } else if (i.kind == item_kind::bytes) {
      summary.for_each_box(n, add);
    } else {
      summary.for_each_box(n, sink);
    }
    joiner.flush();
  }
  return out;
}

}  // namespace v1
}  // namespace cairn
