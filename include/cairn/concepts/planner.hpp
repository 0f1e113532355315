// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/state_dict.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Decides what each rank writes. The global plan is a reduction over the ranks' summaries, so that no rank
/// must see all plans:
///
/// 1. `local_plan(state, rank)`: every box that this rank could write, in the order of the state. Throws
/// usage or plan errors.
/// 2. `summarise(plan, rank)`: what the others must know of it, as a `summary_type`.
/// 3. `merge(a, b)`: the summary of both; associative in what it says; `a` is of lower ranks than `b`. Never
/// throws for what ranks say: conflicts stay in the
///    summary, so that step 4 throws the same on every rank. `encode(summary)` and `decode(bytes)` carry it
///    between ranks; decode throws wire_error on anything that encode did not make.
/// 4. `finish(plan, global_summary, rank, world_size)`: this rank's final plan: each replicated box is
/// written by one holder. Every rank calls it with the same
///    global summary and decides alone; it throws plan_error, on all ranks alike, if the union of the plans
///    is not a whole checkpoint.
/// 5. `metadata(global_summary, world_size)`: what the checkpoint will hold; called on the coordinator only.
/// 6. `resolve(state, item)`: the memory of an item, now. Called at each save for each item, also with plans
/// from the cache, by one thread; the state has
///    the structure that was planned. See resolves_by_binding for fewer calls.
/// - `fingerprint()`: a digest of the planner's own configuration; plans are cached under it. Two planners
///   that would plan differently differ in it.
///
/// One thread at a time. Derive from basic_planner and hide one hook for most purposes; gathered<P>
/// adapts planners that must see the plans of all ranks.
template <class P>
concept SavePlanner =
    std::movable<P> &&
    requires(P& p, const P& k, const state_dict& state, save_plan plan, typename P::summary_type summary,
             const typename P::summary_type& global, std::span<const std::byte> bytes, const write_item& item,
             int rank, int world_size) {
      { p.local_plan(state, rank) } -> std::same_as<save_plan>;
      { p.summarise(plan, rank) } -> std::same_as<typename P::summary_type>;
      { p.merge(std::move(summary), std::move(summary)) } -> std::same_as<typename P::summary_type>;
      { p.encode(global) } -> std::same_as<std::vector<std::byte>>;
      { p.decode(bytes) } -> std::same_as<typename P::summary_type>;
      { p.finish(std::move(plan), global, rank, world_size) } -> std::same_as<save_plan>;
      { p.metadata(global, world_size) } -> std::same_as<metadata>;
      { p.resolve(state, item) } -> std::same_as<item_source>;
      { k.fingerprint() } -> std::same_as<std::uint64_t>;
    };

/// Whether what a planner's resolve(state, item) answers of an item depends on the entry, its memory_binding
/// and fingerprint() alone. A checkpointer then calls it again only when the state was bound to other memory
/// or a container has moved or changed its size, so that a save asks a container for its address and a
/// pointer for nothing. True of planners that derive from basic_planner and keep its resolve(); specialise it
/// for others:
///
///   template <>
///   inline constexpr bool cairn::resolves_by_binding<my_planner> = true;
template <class P>
inline constexpr bool resolves_by_binding = false;

/// What a load is asked for.
struct load_request {
  int rank = 0;
  int world_size = 1;
  bool strict = true;  ///< missing, unexpected, mismatched or uncovered items are errors
  std::vector<std::string>
      only;  ///< patterns with * and ?; empty: everything. Others are neither read nor reported
};

/// Decides what each rank reads, and where it goes.
///
/// - `plan(state, stored, request)`: the boxes to read, by arithmetic; throws plan_error naming the item
///   where a dtype, a shape or a kind differs, where a wanted box is not covered, and, if strict, where an
///   item is missing. No memory is touched. `stored` outlives the plan. What is unexpected on this rank may
///   be another's (a stage of a pipeline knows its own items only): a strict plan throws for it in a group of
///   one; else it is in the report, and whoever loads makes an error of what is unexpected on all ranks.
/// - `resolve(state, stored, item)`: the destination of one item, whose view may be filled by any thread
///   afterwards. Bytes items are resized by the reader through the entry's memory.resize before.
/// - `stored_name(entry)` is not part of the concept: basic_planner has it, for planners that rename.
template <class P>
concept LoadPlanner = std::movable<P> && requires(P& p, const state_dict& state, const metadata& stored,
                                                  const load_request& request, const read_item& item) {
  { p.plan(state, stored, request) } -> std::same_as<load_plan>;
  { p.resolve(state, stored, item) } -> std::same_as<item_target>;
};

/// What a LoadPlanner may offer besides.
///
/// - `fingerprint()`: as SavePlanner has it. A checkpointer then keeps its plans, and does not plan a load
///   again for the same manifest, structure of the state and request.
template <class P>
concept FingerprintedLoadPlanner = LoadPlanner<P> && requires(const P& k) {
  { k.fingerprint() } -> std::same_as<std::uint64_t>;
};

/// A planner in the manner of DCP, which must see the plans of all ranks: adapt it with cairn::gathered<P>,
/// at a cost of O(ranks) in memory and time on every rank. `create_global_plan(plans)` changes the plans
/// (index = rank) in place to what each rank writes, the same way on every rank, and returns the metadata.
template <class P>
concept GatheringSavePlanner =
    std::movable<P> && requires(P& p, const P& k, const state_dict& state, std::span<save_plan> plans,
                                const write_item& item, int rank) {
      { p.local_plan(state, rank) } -> std::same_as<save_plan>;
      { p.create_global_plan(plans) } -> std::same_as<metadata>;
      { p.resolve(state, item) } -> std::same_as<item_source>;
      { k.fingerprint() } -> std::same_as<std::uint64_t>;
    };

}  // namespace v1
}  // namespace cairn
