// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/extents.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Ranks that want the same thing; ascending.
struct rank_set {
  std::vector<std::int32_t> ranks;
  std::uint64_t digest = 0;  ///< of the ranks
  [[nodiscard]] bool has(std::int32_t rank) const noexcept {
    return std::binary_search(ranks.begin(), ranks.end(), rank);
  }
};

/// Orders by the ranks themselves, so that all processes order alike.
struct by_ranks {
  bool operator()(const rank_set* a, const rank_set* b) const noexcept {
    return a != b && a->ranks < b->ranks;
  }
};

/// Each set of ranks once, at one address while this lives.
class rank_sets {
 public:
  /// Sorted and made unique. O(ranks log sets).
  const rank_set* of(std::vector<std::int32_t> ranks) {
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    auto& made = sets_[ranks];
    if (made.ranks.empty()) {
      made.digest = cairn::digest(
          {reinterpret_cast<const std::byte*>(ranks.data()), ranks.size() * sizeof(std::int32_t)});
      made.ranks = std::move(ranks);
    }
    return &made;
  }
  /// The ranks of all of them together.
  const rank_set* unite(detail::list_view<const rank_set* const> sets) {
    if (sets.size() == 1) return sets[0];
    std::vector<std::int32_t> all;
    for (const auto* s : sets) all.insert(all.end(), s->ranks.begin(), s->ranks.end());
    return of(std::move(all));
  }

 private:
  std::map<std::vector<std::int32_t>, rank_set> sets_;
};

/// A box that some ranks want.
struct wanted_part {
  chunk box;
  const rank_set* ranks = nullptr;
};

}  // namespace v1
}  // namespace cairn
