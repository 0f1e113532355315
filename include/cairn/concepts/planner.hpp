// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/state_dict.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Decides what each rank writes. The global plan is a reduction over the ranks' summaries, so that no rank
/// must see all plans:
///
/// 1. `local_plan(state, rank)`: returns every box that this rank could write, in the order of the state.
///    Throws usage or plan errors.
/// 2. `summarise(plan, rank)`: returns a `summary_type` with what the other ranks must know of the plan.
/// 3. `merge(a, b)`: returns the summary of both; `a` is of lower ranks than `b`. Associative in content.
///    Never throws for the contents of summaries: conflicts stay in the summary, so that step 4 throws
///    the same error on every rank. `encode(summary)` and `decode(bytes)` carry it between ranks; decode
///    throws wire_error on anything that encode did not make.
/// 4. `finish(plan, global_summary, rank, world_size)`: returns this rank's final plan, in which one
///    holder writes each replicated box. Every rank calls it with the same global summary and decides
///    alone. Throws the same plan_error on all ranks if the union of the plans is not a whole checkpoint.
/// 5. `metadata(global_summary, world_size)`: returns what the checkpoint will hold. Only the coordinator
///    calls it.
/// 6. `resolve(state, item)`: returns the current memory of an item. One thread calls it at each save for
///    each item, also for plans from the cache; the state has the structure that was planned. See
///    resolves_by_binding for fewer calls.
/// - `fingerprint()`: returns a digest of the planner's configuration, under which plans are cached.
///   Planners that would plan differently have different fingerprints.
///
/// One thread at a time. Most planners derive from basic_planner and hide one hook; gathered<P> adapts
/// planners that must see the plans of all ranks.
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

/// Whether the result of a planner's resolve(state, item) depends only on the entry, its memory_binding
/// and fingerprint(). The checkpointer then calls resolve() again only when the state was bound to other
/// memory or a container has moved or changed its size. True for planners that derive from basic_planner
/// and keep its resolve(); specialise it for others:
///
///   template <>
///   inline constexpr bool cairn::resolves_by_binding<my_planner> = true;
template <class P>
inline constexpr bool resolves_by_binding = false;

class load_changes;

/// What a load restores, and for which rank.
struct load_request {
  int rank = 0;
  /// The number of ranks that load; `rank` is one of them.
  int world_size = 1;
  bool strict = true;  ///< missing, unexpected, mismatched or uncovered items are errors
  std::vector<std::string>
      only;  ///< patterns with * and ?; empty: everything. Others are neither read nor reported
  /// Other names, dtypes and sizes that a checkpoint may have, see <cairn/load_options.hpp>; null: none. A planner that
  /// does not derive from basic_planner asks it itself.
  std::shared_ptr<const load_changes> changes = nullptr;
  /// Patterns of items of the state that may be missing, as if they were optional; see migration.
  std::vector<std::string> may_miss = {};
  /// Patterns of items of the checkpoint that the state no longer has, which are not unexpected; see migration.
  std::vector<std::string> dropped = {};
  bool hash_memory = false;  ///< of refresh(): see cairn::verify_memory
};

/// Decides what each rank reads, and into which memory.
///
/// - `plan(state, stored, request)`: returns the boxes to read, by arithmetic, without touching memory.
///   Throws plan_error naming the item where a dtype, a shape or a kind differs, where a wanted box is
///   not covered, and, if strict, where an item is missing. `stored` outlives the plan. An item that is
///   unexpected on this rank may belong to another rank (a stage of a pipeline knows only its own items):
///   a strict plan throws for it in a group of one; otherwise it goes into the report, and the
///   checkpointer throws for items that are unexpected on all ranks.
/// - `resolve(state, stored, item)`: returns the destination of one item; any thread may fill it
///   afterwards. The reader resizes items of bytes before, through the entry's memory.resize.
/// - `stored_name(entry)` is not part of the concept: basic_planner has it, for planners that rename.
template <class P>
concept LoadPlanner = std::movable<P> && requires(P& p, const state_dict& state, const metadata& stored,
                                                  const load_request& request, const read_item& item) {
  { p.plan(state, stored, request) } -> std::same_as<load_plan>;
  { p.resolve(state, stored, item) } -> std::same_as<item_target>;
};

/// A LoadPlanner whose plans a checkpointer keeps for the same manifest, structure of the state and request.
///
/// - `fingerprint()`: as that of SavePlanner.
template <class P>
concept FingerprintedLoadPlanner = LoadPlanner<P> && requires(const P& k) {
  { k.fingerprint() } -> std::same_as<std::uint64_t>;
};

/// A planner that must see the plans of all ranks, like those of PyTorch's Distributed Checkpoint (DCP).
/// Adapt it with cairn::gathered<P>, which costs O(ranks) of memory and time on every rank.
/// `create_global_plan(plans)` changes the plans (index = rank) in place to what each rank writes, the
/// same on every rank, and returns the metadata.
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
