// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/planner.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/plan/load/load_plan_cache.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/shared.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

namespace cairn {
inline namespace v1 {

CAIRN_BODY std::shared_ptr<const cached_load_plan> load_plan_cache::find(
    const load_plan_key& key, std::span<const std::byte> manifest) {
  const auto found = detail::find_if(slots_, [&](const slot& s) {
    return s.key == key && s.manifest.size() == manifest.size() &&
           (manifest.empty() || std::memcmp(s.manifest.data(), manifest.data(), manifest.size()) == 0);
  });
  if (found == slots_.end()) return nullptr;
  std::rotate(found, found + 1, slots_.end());
  return slots_.back().plan;
}

CAIRN_BODY void load_plan_cache::put(const load_plan_key& key, std::span<const std::byte> manifest,
                                     cached_load_plan plan) {
  detail::erase_if(slots_, [&](const slot& s) { return s.key == key; });
  const auto size = bytes_of(plan.plan) + manifest.size();
  if (limit_ == 0 || size > max_bytes_) return;
  while (slots_.size() >= limit_ || bytes() > max_bytes_ - size) slots_.erase(slots_.begin());
  slots_.push_back({key,
                    {manifest.begin(), manifest.end()},
                    size,
                    detail::make_shared<const cached_load_plan>(std::move(plan))});
}

CAIRN_BODY std::size_t load_plan_cache::bytes() const noexcept {
  std::size_t sum = 0;
  for (const auto& s : slots_) sum += s.bytes;
  return sum;
}

CAIRN_BODY std::size_t load_plan_cache::bytes_of(const load_plan& plan) noexcept {
  auto sum = plan.items.size() * sizeof(read_item);
  for (const auto* names :
       {&plan.report.missing, &plan.report.unexpected, &plan.report.mismatched, &plan.report.unmatched,
        &plan.report.renamed, &plan.report.converted, &plan.report.resized})
    for (const auto& n : *names) sum += sizeof n + n.size();
  return sum;
}

}  // namespace v1
}  // namespace cairn
