// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/extents.hpp>
#include <cairn/model/rank_set.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY bool rank_set::has(std::int32_t rank) const noexcept {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

CAIRN_BODY const rank_set* rank_sets::of(std::vector<std::int32_t> ranks) {
  detail::sort(ranks);
  detail::erase_repeated(ranks);
  auto& made = sets_[ranks];
  if (made.ranks.empty()) {
    made.digest = cairn::digest(
        {reinterpret_cast<const std::byte*>(ranks.data()), ranks.size() * sizeof(std::int32_t)});
    made.ranks = std::move(ranks);
  }
  return &made;
}

CAIRN_BODY const rank_set* rank_sets::unite(detail::list_view<const rank_set* const> sets) {
  if (sets.size() == 1) return sets[0];
  std::vector<std::int32_t> all;
  for (const auto* s : sets) all.insert(all.end(), s->ranks.begin(), s->ranks.end());
  return of(std::move(all));
}

}  // namespace v1
}  // namespace cairn
