// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_planner.hpp>
#include <cairn/concepts/planner.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/plan/assign/default_planner_options.hpp>
#include <cairn/plan/summary/summary.hpp>
#include <cairn/plan/summary/summary_merge.hpp>

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
/// Calls the hooks of a planner from code that does not know its type. The planner outlives it.
struct planner_hooks {
  void* planner = nullptr;
  std::optional<std::string> (*stored_name)(void* planner, const state_entry& e) = nullptr;
  dtype (*stored_dtype)(void* planner, const state_entry& e) = nullptr;
  cast_function (*cast_between)(void* planner, dtype from, dtype to) = nullptr;
};

// What basic_planner does, whatever the planner; see there.
[[nodiscard]] save_plan local_plan_of(const state_dict& state, int rank, const planner_hooks& hooks);
[[nodiscard]] std::vector<std::byte> encode_plan_summary(const plan_summary& summary);
[[nodiscard]] plan_summary decode_plan_summary(std::span<const std::byte> bytes);
[[nodiscard]] save_plan finish_plan(save_plan plan, const plan_summary& global, int rank, int world_size,
                                    const default_planner_options& options);
[[nodiscard]] metadata plan_metadata(const plan_summary& global, int world_size,
                                     const default_planner_options& options);
[[nodiscard]] load_plan load_plan_of(const state_dict& state, const metadata& stored,
                                     const load_request& request, const planner_hooks& hooks);
[[nodiscard]] std::uint64_t fingerprint_of(const default_planner_options& options);
/// The view of `box`, which lies in one of the entry's boxes.
[[nodiscard]] tensor_view view_of_entry(const state_dict& state, std::uint32_t entry, const chunk& box);
}  // namespace detail

/// The planner of cairn, as a base class. Every rank knows the global summary and decides without
/// messages what it writes: a box with one holder is written by that holder, and replicas are spread so
/// that all ranks write about the same number of bytes. Loads work for any sharding on any number of
/// ranks.
///
/// A derived planner is the template argument, and hides any of the hooks `stored_name`, `stored_dtype`,
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
/// Hooks depend only on the entry and the planner's configuration, and return the same on all ranks. A
/// planner with a configuration also hides `fingerprint()`. One thread at a time; several threads may
/// call resolve() of loads.
template <class Derived>
class basic_planner {
 public:
  using cairn_role = role::planner;
  using summary_type = plan_summary;

  basic_planner() = default;
  explicit basic_planner(const default_planner_options& options) : options_(options) {}

  /// Hook: the name of an entry in checkpoints, or nothing for entries that are neither saved nor loaded.
  [[nodiscard]] std::optional<std::string> stored_name(const state_entry& e) const { return e.name; }
  /// Hook: the dtype of a tensor in checkpoints. Called only for tensors; values keep their dtype.
  [[nodiscard]] dtype stored_dtype(const state_entry& e) const { return e.type; }
  /// Hook: the conversion between different dtypes, or nullptr.
  [[nodiscard]] cast_function cast_between(dtype from, dtype to) const { return find_cast(from, to); }

  /// Returns every box that this rank holds, in the order of the state. An empty shard becomes an item of
  /// 0 bytes, so that the other ranks learn its definition. @throws usage_error for a bad stored name,
  /// plan_error where there is no conversion.
  [[nodiscard]] save_plan local_plan(const state_dict& state, int rank) {
    return detail::local_plan_of(state, rank, hooks());
  }

  [[nodiscard]] plan_summary summarise(const save_plan& plan, int rank) { return summarise_plan(plan, rank); }
  [[nodiscard]] plan_summary merge(plan_summary a, plan_summary b) {
    return merge_summaries(std::move(a), std::move(b));
  }
  [[nodiscard]] std::vector<std::byte> encode(const plan_summary& summary) {
    return detail::encode_plan_summary(summary);
  }
  /// @throws wire_error on bytes that encode did not make.
  [[nodiscard]] plan_summary decode(std::span<const std::byte> bytes) {
    return detail::decode_plan_summary(bytes);
  }

  /// Returns the boxes that this rank writes. @throws the same plan_error on all ranks, as
  /// cairn::validate does.
  [[nodiscard]] save_plan finish(save_plan plan, const plan_summary& global, int rank, int world_size) {
    return detail::finish_plan(std::move(plan), global, rank, world_size, options_);
  }
  [[nodiscard]] cairn::metadata metadata(const plan_summary& global, int world_size) {
    return detail::plan_metadata(global, world_size, options_);
  }

  /// Returns the current memory of an item. O(boxes of the entry).
  [[nodiscard]] item_source resolve(const state_dict& state, const write_item& item) {
    item_source source{detail::view_of_entry(state, item.entry, item.box), nullptr};
    if (source.view.type != item.type && item.kind != item_kind::bytes)
      source.cast = self().cast_between(source.view.type, item.type);
    return source;
  }
  [[nodiscard]] std::uint64_t fingerprint() const { return detail::fingerprint_of(options_); }

  /// Returns what this rank reads: for each of its boxes, the boxes of the stored chunks that cover it.
  /// The report lists items that are missing or unexpected, and, if the request is not strict, items that
  /// do not fit.
  /// @throws plan_error naming the item: see LoadPlanner. Unexpected items are an error here only in a
  /// group of one; with more ranks they are in each rank's report, and an error if they are in all
  /// reports (unexpected_on_both).
  [[nodiscard]] load_plan plan(const state_dict& state, const cairn::metadata& stored,
                               const load_request& request) {
    return detail::load_plan_of(state, stored, request, hooks());
  }

  /// Returns the destination of an item.
  [[nodiscard]] item_target resolve(const state_dict& state, const cairn::metadata& stored,
                                    const read_item& item) {
    item_target target{detail::view_of_entry(state, item.entry, item.box), nullptr};
    const auto& stored_as = stored.items.at(item.stored);
    if (target.view.type != stored_as.type && stored_as.kind != item_kind::bytes)
      target.cast = self().cast_between(stored_as.type, target.view.type);
    return target;
  }

 private:
  [[nodiscard]] Derived& self() noexcept { return static_cast<Derived&>(*this); }
  [[nodiscard]] detail::planner_hooks hooks() noexcept {
    return {static_cast<Derived*>(this),
            [](void* p, const state_entry& e) -> std::optional<std::string> {
              return static_cast<Derived*>(p)->stored_name(e);
            },
            [](void* p, const state_entry& e) -> dtype { return static_cast<Derived*>(p)->stored_dtype(e); },
            [](void* p, dtype from, dtype to) -> cast_function {
              return static_cast<Derived*>(p)->cast_between(from, to);
            }};
  }

  default_planner_options options_;
};

namespace detail {
/// The class that declares a planner's resolve() of saves: basic_planner, unless the planner hides it.
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

/// The default planner of a checkpointer: saves everything, under its own name and dtype.
class default_planner : public basic_planner<default_planner> {
 public:
  using basic_planner::basic_planner;
};

/// The same as for any planner; compiled once.
[[nodiscard]] any_planners both_roles_of(default_planner planner);

static_assert(resolves_by_binding<default_planner>);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/plan/default_planner.ipp>
#endif
