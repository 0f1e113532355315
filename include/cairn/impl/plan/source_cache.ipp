// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_planner.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/plan/source_cache.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY void source_cache::refresh(any_save_planner& planner, const state_dict& state,
                                      const std::shared_ptr<const save_plan>& plan) {
  auto bindings = state.bindings();
  const bool same = planner.resolves_by_binding() && bindings == bindings_ && plan == plan_;
  bindings_ = nullptr;  // where anything throws, nothing that was kept is used again
  if (same)
    resolve_moved(planner, state, plan);
  else
    resolve_all(planner, state, plan);
  bindings_ = std::move(bindings);
  plan_ = plan;
}

CAIRN_BODY std::vector<std::uint64_t> source_cache::stored_sizes(const save_plan& plan) const {
  std::vector<std::uint64_t> sizes;
  sizes.reserve(plan.items.size());
  for (std::size_t i = 0; i < plan.items.size(); ++i)
    sizes.push_back(plan.items[i].kind == item_kind::bytes ? sources_[i].view.bytes() : plan.items[i].bytes);
  return sizes;
}

CAIRN_BODY bool source_cache::watched::moved() {
  const auto* const address_before = std::exchange(address, data(container));
  const auto elements_before = std::exchange(elements, count(container));
  return address != address_before || elements != elements_before;
}

CAIRN_BODY void source_cache::resolve_all(any_save_planner& planner, const state_dict& state,
                                          const std::shared_ptr<const save_plan>& plan) {
  watched_.clear();
  auto sources = planner.resolve_all(state, plan->items);
  const std::size_t count = planner.resolves_by_binding() ? plan->items.size() : 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& memory = state.entries()[plan->items[i].entry].memory;
    if (memory.data == nullptr) continue;
    watched_.push_back({memory.object, memory.data, memory.count, nullptr, 0, i});
    static_cast<void>(watched_.back().moved());
  }
  keep(std::move(sources), plan);
}

CAIRN_BODY void source_cache::resolve_moved(any_save_planner& planner, const state_dict& state,
                                            const std::shared_ptr<const save_plan>& plan) {
  std::vector<std::size_t> moved;
  for (auto& w : watched_)
    if (w.moved()) moved.push_back(w.item);
  if (moved.empty()) return;
  std::vector<item_source> sources = sources_;
  planner.resolve_some(state, plan->items, moved, sources);
  keep(std::move(sources), plan);
}

CAIRN_BODY void source_cache::keep(std::vector<item_source> sources,
                                   const std::shared_ptr<const save_plan>& plan) {
  sources_ = source_table(std::move(sources), plan);
  bytes_sizes_.clear();
  for (std::size_t i = 0; i < plan->items.size(); ++i)
    if (plan->items[i].kind == item_kind::bytes) bytes_sizes_.push_back(sources_[i].view.bytes());
}

}  // namespace v1
}  // namespace cairn
