// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/planner.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/plan/assign/balance.hpp>
#include <cairn/plan/load/load_planning.hpp>
#include <cairn/plan/summary/summary.hpp>
#include <cairn/plan/summary/summary_codec.hpp>
#include <cairn/plan/summary/summary_merge.hpp>
#include <cairn/plan/summary/validation.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

namespace detail {

/// The final plan of one rank: its items, cut to what it writes, in the order of the state. O(items).
[[nodiscard]] inline save_plan finish_plan(save_plan plan, const plan_summary& global,
                                           const write_assignment& assignment, int rank) {
  save_plan out;
  out.items.reserve(plan.items.size());
  std::size_t guess = 0;
  std::vector<chunk> pieces;
  for (auto& i : plan.items) {
    // States are often registered in the order of their names.
    if (guess >= global.size() || global.name(guess) != i.name) guess = global.find(i.name);
    if (guess == global.size())
      fail(error_id::plan_disagreement, "an item of a rank's plan is not in the global plan",
           {.rank = rank, .item = i.name});
    const auto item = guess++;
    if (global[item].boxes == 0) {
      // A tensor without elements: one rank writes that it is there.
      std::int32_t least = rank;
      global.for_each_without(item, [&](const chunk_progression& p) { least = std::min(least, p.rank); });
      if (least != rank && !i.flags.per_rank) continue;
      i.box = whole(i.global);
      out.items.push_back(std::move(i));
      continue;
    }
    if (definition_only(i)) continue;
    if (!global.holds(item, rank, i.box))
      fail(error_id::plan_disagreement, "a box of a rank's plan is not in the global plan",
           {.rank = rank, .item = i.name, .got = to_string(i.box)});
    if (assignment.written_as_held(item)) {
      out.items.push_back(std::move(i));
      continue;
    }
    pieces.clear();
    assignment.for_each_piece_of(item, rank, [&](const chunk& piece) {
      const auto& box = i.kind == item_kind::bytes ? i.box : piece;
      if (i.box.empty() || intersect(box, i.box) == box) pieces.push_back(box);
    });
    for (std::size_t k = 0; k < pieces.size(); ++k) {
      auto& made = k + 1 == pieces.size() ? out.items.emplace_back(std::move(i)) : out.items.emplace_back(i);
      if (made.box == pieces[k]) continue;
      made.box = pieces[k];
      if (made.kind != item_kind::bytes) made.bytes = bytes_of(made.type, made.box.volume());
    }
  }
  return out;
}

/// The part of an entry's memory that is `box`, which lies in one of its boxes.
[[nodiscard]] inline tensor_view view_of(const state_entry& e, const chunk& box) {
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

[[nodiscard]] inline const state_entry& entry_of(const state_dict& state, std::uint32_t index) {
  if (index >= state.entries().size())
    fail(error_id::plan_disagreement, "a plan was made for another state_dict: it has more entries",
         {.expected = "below " + std::to_string(state.entries().size()), .got = std::to_string(index)});
  return state.entries()[index];
}

}  // namespace detail

/// The planner of cairn, to derive from. Every rank knows the global summary and decides alone, without
/// messages, what it writes: boxes with one holder by their holder, replicas spread so that all ranks write
/// about the same number of bytes. Loads take any sharding on any number of ranks.
///
/// A planner of yours names itself as the argument and hides any of the hooks `stored_name`, `stored_dtype`,
/// `cast_between`:
///
///   struct half_planner : cairn::basic_planner<half_planner> {
///     std::optional<std::string> stored_name(const cairn::state_entry& e) const {
///       if (e.name.starts_with("cache.")) return std::nullopt;     // neither saved nor loaded
///       return "model." + e.name;
///     }
///     cairn::dtype stored_dtype(const cairn::state_entry& e) const {
///       return e.type == cairn::dtype::f32 ? cairn::dtype::bf16 : e.type;
///     }
///   };
///
/// Hooks depend on the entry and the planner's configuration alone and answer alike on all ranks. A planner
/// with a configuration of its own hides `fingerprint()` too. One thread at a time; resolve() of loads may
/// be called by several.
template <class Derived>
class basic_planner {
 public:
  using cairn_role = role::planner;
  using summary_type = plan_summary;

  basic_planner() = default;
  explicit basic_planner(const default_planner_options& options) : options_(options) {}

  /// Hook: the name of an entry in checkpoints, or nothing for entries that are neither saved nor loaded.
  [[nodiscard]] std::optional<std::string> stored_name(const state_entry& e) const { return e.name; }
  /// Hook: the dtype of a tensor in checkpoints. Asked for tensors only; values keep theirs.
  [[nodiscard]] dtype stored_dtype(const state_entry& e) const { return e.type; }
  /// Hook: the conversion between different dtypes, or nullptr.
  [[nodiscard]] cast_function cast_between(dtype from, dtype to) const { return find_cast(from, to); }

  /// Every box that this rank holds, in the order of the state. An empty shard gives an item of 0 bytes, so
  /// that the others learn its definition. @throws usage_error on a bad stored name, plan_error where there
  /// is no conversion.
  [[nodiscard]] save_plan local_plan(const state_dict& state, int rank) {
    save_plan plan;
    plan.items.reserve(state.entries().size());
    for (std::size_t n = 0; n < state.entries().size(); ++n) {
      const auto& e = state.entries()[n];
      auto name = self().stored_name(e);
      if (!name) continue;
      if (*name != e.name)
        if (const auto problem = name_problem(*name); !problem.empty())
          fail(error_id::usage_bad_name, "the name that a planner gives an item " + std::string(problem),
               {.rank = rank, .item = e.name, .got = name->substr(0, 200)});
      const auto type = type_in_store(e);
      if (type != e.type && self().cast_between(e.type, type) == nullptr)
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
          auto& made = k + 1 == e.boxes.size() ? plan.items.emplace_back(std::move(item))
                                               : plan.items.emplace_back(item);
          made.box = e.boxes[k];
          made.bytes = bytes_of(type, made.box.volume());
        }
      }
    }
    return plan;
  }

  [[nodiscard]] plan_summary summarise(const save_plan& plan, int rank) { return summarise_plan(plan, rank); }
  [[nodiscard]] plan_summary merge(plan_summary a, plan_summary b) {
    return merge_summaries(std::move(a), std::move(b));
  }
  [[nodiscard]] std::vector<std::byte> encode(const plan_summary& summary) {
    compact_writer out;
    cairn::encode(out, summary);
    return out.take();
  }
  /// @throws wire_error on bytes that encode did not make.
  [[nodiscard]] plan_summary decode(std::span<const std::byte> bytes) {
    compact_reader in(bytes);
    auto summary = decode_plan_summary(in);
    in.finish();
    return summary;
  }

  /// This rank's part of the checkpoint. @throws plan_error, the same on all ranks, as cairn::validate does.
  [[nodiscard]] save_plan finish(save_plan plan, const plan_summary& global, int rank, int world_size) {
    return detail::finish_plan(std::move(plan), global, assign_writes(global, world_size, options_), rank);
  }
  [[nodiscard]] cairn::metadata metadata(const plan_summary& global, int world_size) {
    return metadata_of(global, assign_writes(global, world_size, options_), world_size);
  }

  /// The memory of an item, now. O(boxes of the entry).
  [[nodiscard]] item_source resolve(const state_dict& state, const write_item& item) {
    const auto& e = detail::entry_of(state, item.entry);
    item_source source{detail::view_of(e, item.box), nullptr};
    if (source.view.type != item.type && e.kind != item_kind::bytes)
      source.cast = self().cast_between(source.view.type, item.type);
    return source;
  }
  [[nodiscard]] std::uint64_t fingerprint() const {
    digest_stream d;
    return d.put("cairn.basic_planner.1")
        .put(options_.split_above_bytes)
        .put(options_.least_piece_bytes)
        .value();
  }

  /// What this rank reads: for each of its boxes, the stored chunks that make it up. Items that are missing
  /// or unexpected, and, where the request is not strict, items that do not fit, are in the report.
  /// @throws plan_error naming the item: see LoadPlanner. Unexpected items are an error here in a group of
  /// one only; with more ranks they are in each rank's report, and an error if they are in all of them
  /// (unexpected_on_both).
  [[nodiscard]] load_plan plan(const state_dict& state, const cairn::metadata& stored,
                               const load_request& request) {
    detail::load_planning planning(stored, request);
    for (std::size_t n = 0; n < state.entries().size(); ++n) {
      const auto& e = state.entries()[n];
      if (!planning.wants(e.name)) continue;
      const auto name = self().stored_name(e);
      if (!name) continue;
      const auto type = type_in_store(e);
      planning.add(e, static_cast<std::uint32_t>(n), *name, type,
                   type == e.type || self().cast_between(type, e.type) != nullptr);
    }
    return planning.finish();
  }

  /// The destination of an item.
  [[nodiscard]] item_target resolve(const state_dict& state, const cairn::metadata& stored,
                                    const read_item& item) {
    const auto& e = detail::entry_of(state, item.entry);
    const auto view = detail::view_of(e, item.box);
    const auto type = stored.items.at(item.stored).type;
    return {view,
            view.type == type || e.kind == item_kind::bytes ? nullptr : self().cast_between(type, view.type)};
  }

 private:
  [[nodiscard]] Derived& self() noexcept { return static_cast<Derived&>(*this); }
  [[nodiscard]] dtype type_in_store(const state_entry& e) {
    return e.kind == item_kind::tensor ? self().stored_dtype(e) : e.type;
  }

  default_planner_options options_;
};

namespace detail {
/// The class whose resolve() of saves a planner has: another one than basic_planner where it hides that.
template <class C>
C class_of(item_source (C::*)(const state_dict&, const write_item&));
template <class C>
inline constexpr bool is_basic_planner = false;
template <class Derived>
inline constexpr bool is_basic_planner<basic_planner<Derived>> = true;
template <class P>
concept ResolvingAsBasic = requires { requires is_basic_planner<decltype(class_of(&P::resolve))>; };
}  // namespace detail

template <detail::ResolvingAsBasic P>
inline constexpr bool resolves_by_binding<P> = true;

/// The planner that a checkpointer has unless it is given another: everything, under its own name and dtype.
class default_planner : public basic_planner<default_planner> {
 public:
  using basic_planner::basic_planner;
};

static_assert(SavePlanner<default_planner> && LoadPlanner<default_planner>);
static_assert(resolves_by_binding<default_planner>);

}  // namespace v1
}  // namespace cairn
