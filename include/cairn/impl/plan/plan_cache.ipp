// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_layout.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/plan/plan_cache.hpp>
#include <cairn/plan/source_cache.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/shared.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY std::shared_ptr<const cached_plan> plan_cache::find(const plan_key& key) {
  const auto found = find_slot(key);
  if (found == slots_.end()) {
    ++misses_;
    return nullptr;
  }
  ++hits_;
  std::rotate(found, found + 1, slots_.end());
  return slots_.back().plan;
}

CAIRN_BODY std::shared_ptr<const cached_plan> plan_cache::put(const plan_key& key, cached_plan plan) {
  auto shared = detail::make_shared<const cached_plan>(std::move(plan));
  if (const auto found = find_slot(key); found != slots_.end()) slots_.erase(found);
  if (limit_ == 0) return shared;
  const auto room = max_bytes_ - std::min(max_bytes_, shared->bytes);
  while (!slots_.empty() && (slots_.size() >= limit_ || bytes() > room)) slots_.erase(slots_.begin());
  slots_.push_back({key, shared});
  return shared;
}

CAIRN_BODY void plan_cache::erase(const plan_key& key) {
  if (const auto found = find_slot(key); found != slots_.end()) slots_.erase(found);
}

CAIRN_BODY std::size_t plan_cache::bytes() const noexcept {
  std::size_t sum = 0;
  for (const auto& s : slots_) sum += s.plan->bytes;
  return sum;
}

CAIRN_BODY plan_cache::slot* plan_cache::find_slot(const plan_key& key) {
  return detail::find_if(slots_, [&](const slot& s) { return s.key == key; });
}

}  // namespace v1
}  // namespace cairn
