// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_planner.hpp>
#include <cairn/concepts/planner.hpp>
#include <cairn/concepts/roles.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY save_plan any_save_planner::local_plan(const state_dict& state, int rank) {
  return face_->local_plan(state, rank);
}
CAIRN_BODY any_summary any_save_planner::summarise(save_plan& plan, int rank) {
  return face_->summarise(plan, rank);
}
CAIRN_BODY any_summary any_save_planner::summarise(const save_plan& plan, int rank) {
  auto own = plan;
  return face_->summarise(own, rank);
}
CAIRN_BODY any_summary any_save_planner::merge(any_summary a, any_summary b) {
  return face_->merge(a, b);
}
CAIRN_BODY std::vector<std::byte> any_save_planner::encode(const any_summary& summary) {
  return face_->encode(summary);
}
CAIRN_BODY any_summary any_save_planner::decode(std::span<const std::byte> bytes) {
  return face_->decode(bytes);
}
CAIRN_BODY save_plan any_save_planner::finish(save_plan plan, const any_summary& global, int rank,
                                              int world_size) {
  return face_->finish(std::move(plan), global, rank, world_size);
}
CAIRN_BODY cairn::metadata any_save_planner::metadata(const any_summary& global, int world_size) {
  return face_->metadata(global, world_size);
}
CAIRN_BODY item_source any_save_planner::resolve(const state_dict& state, const write_item& item) {
  return face_->resolve(state, item);
}
CAIRN_BODY std::uint64_t any_save_planner::fingerprint() const {
  return face_->fingerprint();
}
CAIRN_BODY std::vector<item_source> any_save_planner::resolve_all(const state_dict& state,
                                                                  std::span<const write_item> items) {
  return face_->resolve_all(state, items);
}
CAIRN_BODY void any_save_planner::resolve_some(const state_dict& state, std::span<const write_item> items,
                                               std::span<const std::size_t> which,
                                               std::span<item_source> sources) {
  face_->resolve_some(state, items, which, sources);
}
CAIRN_BODY bool any_save_planner::resolves_by_binding() const noexcept {
  return face_->resolves_by_binding();
}
CAIRN_BODY load_plan any_load_planner::plan(const state_dict& state, const metadata& stored,
                                            const load_request& request) {
  return face_->plan(state, stored, request);
}
CAIRN_BODY item_target any_load_planner::resolve(const state_dict& state, const metadata& stored,
                                                 const read_item& item) {
  return face_->resolve(state, stored, item);
}
CAIRN_BODY std::optional<std::uint64_t> any_load_planner::fingerprint() const {
  return face_->fingerprint();
}

static_assert(SavePlanner<any_save_planner> && LoadPlanner<any_load_planner>);

}  // namespace v1
}  // namespace cairn
