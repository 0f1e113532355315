// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/group_planning.hpp>
#include <cairn/checkpointer/options.hpp>
#include <cairn/checkpointer/small_tensors.hpp>
#include <cairn/concepts/any_writer.hpp>
#include <cairn/system/shared.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A planner with the plans that it has made for saves: all ranks plan together once for each structure of
/// the state, and keep what they made. The thread of training.
class save_plans {
 public:
  save_plans(any_save_planner planner, const checkpointer_options& options)
      : planner_(std::move(planner)),
        cache_(options.cached_plans, options.cached_plan_bytes),
        small_tensor_bytes_(options.small_tensor_bytes) {}

  /// This rank's plan for a state of this structure; `cached` tells whether it was there. Collective where it
  /// was not, which is to be so on all ranks or on none: where it is not, this throws, and says so.
  /// `others_write()`: a rank that saves with a plan it has, -1 where none is seen.
  /// @throws plan_error (plan_disagreement) where one is; timeout_error, peer_error
  std::shared_ptr<const cached_plan> plan(const state_dict& state, collectives& group,
                                          const any_writer& writer, deadline until, bool& cached,
                                          const std::function<int()>& others_write = {}) {
    const auto key = key_of(state, group, writer);
    auto planned = cache_.find(key);
    cached = planned != nullptr;
    if (cached) return planned;
    const auto begin = deadline::clock::now();
    planned_alone_ = false;
    const bool first = cache_.size() == 0;
    const auto cause = "the state of rank " + std::to_string(group.rank()) +
                       " has a structure that it had not before: did all ranks change theirs?";
    const auto look = [&] {
      const int other = others_write ? others_write() : -1;
      if (other < 0) return;
      planned_alone_ = true;
      fail(error_id::plan_disagreement,
           "rank " + std::to_string(other) + " went on with this save without planning it, but " + cause,
           {.rank = group.rank()});
    };
    try {
      auto made = plan_together(planner_, group, state, until, look);
      made.seconds = seconds_since(begin);
      return cache_.put(key, std::move(made));
    } catch (const error& e) {
      const bool alone = e.id() == error_id::timeout_peer || e.id() == error_id::peer_lost ||
                         e.id() == error_id::peer_bad_message;
      if (first || !alone) throw;  // of the first plan nobody has another one
      planned_alone_ = true;
      fail(e.id(), e.message() + "; " + cause, e.fields());
    }
  }
  /// Whether the last call of plan() threw as not all ranks planned, so that others may save without this
  /// one.
  [[nodiscard]] bool planned_alone() const noexcept { return planned_alone_; }
  /// Has the plan's sources follow the state to where its memory is now, and lays out the image for the sizes
  /// that they have now: kept with the plan, made anew on this rank alone when a bytes item has another size
  /// than before.
  std::shared_ptr<const image_layout> lay_out(const cached_plan& planned, const state_dict& state,
                                              collectives& group, const any_writer& writer) {
    planned.sources->refresh(planner_, state, planned.plan);
    const auto& bytes_sizes = planned.sources->bytes_sizes();
    if (planned.layout != nullptr && planned.bytes_sizes == bytes_sizes) return planned.layout;
    auto layout = writer.layout(*planned.plan, planned.sources->stored_sizes(*planned.plan), group.rank());
    bound_small_tensors(layout, *planned.plan, small_tensor_bytes_);
    cached_plan renewed = planned;
    renewed.layout = detail::make_shared<const image_layout>(std::move(layout));
    renewed.bytes_sizes = bytes_sizes;
    return cache_.put(key_of(state, group, writer), std::move(renewed))->layout;
  }

  /// The same layout with more items apart, as if they were frozen: `apart(item)` of the plan.
  template <class Apart>
  [[nodiscard]] std::shared_ptr<const image_layout> lay_out_apart(const cached_plan& planned, int rank,
                                                                  const any_writer& writer,
                                                                  Apart&& apart) const {
    save_plan plan = *planned.plan;
    for (std::size_t i = 0; i < plan.items.size(); ++i)
      if (apart(i)) plan.items[i].flags.frozen = true;
    auto layout = writer.layout(plan, planned.sources->stored_sizes(*planned.plan), rank);
    bound_small_tensors(layout, plan, small_tensor_bytes_);
    return detail::make_shared<const image_layout>(std::move(layout));
  }

 private:
  [[nodiscard]] plan_key key_of(const state_dict& state, const collectives& group,
                                const any_writer& writer) const {
    return {.structure = state.structure(),
            .planner = planner_.fingerprint(),
            .writer = writer.fingerprint(),
            .world_size = group.size(),
            .rank = group.rank()};
  }

  any_save_planner planner_;
  plan_cache cache_;
  std::uint64_t small_tensor_bytes_;
  bool planned_alone_ = false;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
