// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/extents.hpp>
#include <cairn/system/list_view.hpp>

#include <cstdint>
#include <map>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Ranks that want the same thing; ascending.
struct rank_set {
  std::vector<std::int32_t> ranks;
  std::uint64_t digest = 0;  ///< of the ranks
  [[nodiscard]] bool has(std::int32_t rank) const noexcept;
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
  const rank_set* of(std::vector<std::int32_t> ranks);
  /// The ranks of all of them together.
  const rank_set* unite(detail::list_view<const rank_set* const> sets);

 private:
  std::map<std::vector<std::int32_t>, rank_set> sets_;
};

/// A box that some ranks want.
struct wanted_box {
  chunk box;
  const rank_set* ranks = nullptr;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/rank_set.ipp>
#endif
