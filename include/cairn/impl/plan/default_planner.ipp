// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_codec.hpp>
#include <cairn/plan/assign/assigned_plan.hpp>
#include <cairn/plan/assign/balance.hpp>
#include <cairn/plan/default_planner.hpp>
#include <cairn/plan/load/load_planning.hpp>
#include <cairn/plan/summary/summary_codec.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/wire.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

inline dtype type_in_store(const state_entry& e, const planner_hooks& hooks) {
  return e.kind == item_kind::tensor ? hooks.stored_dtype(hooks.planner, e) : e.type;
}

CAIRN_BODY save_plan local_plan_of(const state_dict& state, int rank, const planner_hooks& hooks) {
  save_plan plan;
  plan.items.reserve(state.entries().size());
  for (std::size_t n = 0; n < state.entries().size(); ++n) {
    const auto& e = state.entries()[n];
    auto name = hooks.stored_name(hooks.planner, e);
    if (!name) continue;
    if (*name != e.name)
      if (const auto problem = name_problem(*name); !problem.empty())
        fail(error_id::usage_bad_name, "the name that a planner gives an item " + std::string(problem),
             {.rank = rank, .item = e.name, .got = name->substr(0, 200)});
    const auto type = type_in_store(e, hooks);
    if (type != e.type && hooks.cast_between(hooks.planner, e.type, type) == nullptr)
      fail(error_id::plan_no_cast, "there is no conversion to the dtype that a planner wants",
           {.rank = rank,
            .item = e.name,
            .expected = std::string(cairn::name_of(type)),
            .got = std::string(cairn::name_of(e.type))});
    write_item item{
        std::move(*name), e.kind, type, e.global, whole({}), e.flags, static_cast<std::uint32_t>(n), 0};
    if (e.kind == item_kind::bytes) {
      item.bytes = e.bytes().size();
      plan.items.push_back(std::move(item));
    } else if (e.boxes.empty()) {
      item.box = {extents::filled(e.global.rank(), 0), extents::filled(e.global.rank(), 0)};
      plan.items.push_back(std::move(item));
    } else {
      for (std::size_t k = 0; k < e.boxes.size(); ++k) {
        // The last one takes the item: NOLINTNEXTLINE(bugprone-use-after-move)
        auto& made = k + 1 == e.boxes.size() ? plan.items.emplace_back(std::move(item))
                                             : plan.items.emplace_back(item);
        made.box = e.boxes[k];
        made.bytes = bytes_of(type, made.box.volume());
      }
    }
  }
  return plan;
}

CAIRN_BODY std::vector<std::byte> encode_plan_summary(const plan_summary& summary) {
  compact_writer out;
  cairn::encode(out, summary);
  return out.take();
}

CAIRN_BODY plan_summary decode_plan_summary(std::span<const std::byte> bytes) {
  compact_reader in(bytes);
  auto summary = cairn::decode_plan_summary(in);
  in.finish();
  return summary;
}

CAIRN_BODY save_plan finish_plan(save_plan plan, const plan_summary& global, int rank, int world_size,
                                 const default_planner_options& options) {
  return plan_of(std::move(plan), global, rank, assign_writes(global, world_size, options));
}

CAIRN_BODY metadata plan_metadata(const plan_summary& global, int world_size,
                                  const default_planner_options& options) {
  return metadata_of(global, assign_writes(global, world_size, options), world_size);
}

CAIRN_BODY load_plan load_plan_of(const state_dict& state, const metadata& stored,
                                  const load_request& request, const planner_hooks& hooks) {
  load_planning planning(stored, request);
  for (std::size_t n = 0; n < state.entries().size(); ++n) {
    const auto& e = state.entries()[n];
    if (!planning.wants(e.name)) continue;
    const auto name = hooks.stored_name(hooks.planner, e);
    if (!name) continue;
    const auto type = type_in_store(e, hooks);
    planning.add(e, static_cast<std::uint32_t>(n), *name, type,
                 type == e.type || hooks.cast_between(hooks.planner, type, e.type) != nullptr);
  }
  return planning.finish();
}

CAIRN_BODY std::uint64_t fingerprint_of(const default_planner_options& options) {
  digest_stream d;
  return d.put("cairn.basic_planner.2").put(options.split_above_bytes).put(options.min_chunk_bytes).value();
}

CAIRN_BODY tensor_view view_of_entry(const state_dict& state, std::uint32_t entry, const chunk& box) {
  if (entry >= state.entries().size())
    fail(error_id::plan_disagreement, "a plan was made for another state_dict: it has more entries",
         {.expected = "below " + std::to_string(state.entries().size()), .got = std::to_string(entry)});
  const auto& e = state.entries()[entry];
  if (e.kind == item_kind::bytes) {
    const auto bytes = e.bytes();
    return contiguous_view(bytes.data(), dtype::u8, {bytes.size()});
  }
  if (box.empty()) return contiguous_view(nullptr, e.type, box.sizes);
  for (std::size_t k = 0; k < e.boxes.size(); ++k) {
    if (e.boxes[k] == box) {  // nearly always, and with a cached plan what a save is made of
      auto view = e.view(k);
      view.shape = box.sizes;
      return view;
    }
    if (intersect(e.boxes[k], box) != box) continue;
    chunk inner = box;
    for (int d = 0; d < box.offsets.rank(); ++d) inner.offsets.set(d, box.offsets[d] - e.boxes[k].offsets[d]);
    return subview(e.view(k), inner);
  }
  fail(error_id::plan_disagreement, "a plan wants a box that the state does not hold; was the state changed?",
       {.item = e.name, .got = to_string(box)});
}

}  // namespace detail

CAIRN_BODY any_planners both_roles_of(default_planner planner) {
  return both_roles_of<default_planner>(std::move(planner));
}

static_assert(SavePlanner<default_planner> && LoadPlanner<default_planner>);

}  // namespace v1
}  // namespace cairn
