// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/extents.hpp>
#include <cairn/system/list_view.hpp>

#include <cstdint>
#include <map>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Ranks that want the same bytes, ascending.
struct rank_set {
  std::vector<std::int32_t> ranks;  ///< each once
  std::uint64_t digest = 0;         ///< of the ranks
  /// True if the rank is one of them. O(log ranks).
  [[nodiscard]] bool has(std::int32_t rank) const noexcept;
};

/// Orders sets by their ranks, so that all processes have the same order.
struct by_ranks {
  bool operator()(const rank_set* a, const rank_set* b) const noexcept {
    return a != b && a->ranks < b->ranks;
  }
};

/// Holds each set of ranks once, at an address that is constant while this lives.
class rank_sets {
 public:
  /// Returns the set of these ranks, which it sorts and makes unique. O(ranks log sets).
  const rank_set* of(std::vector<std::int32_t> ranks);
  /// Returns the union of the sets.
  const rank_set* unite(detail::list_view<const rank_set* const> sets);

 private:
  std::map<std::vector<std::int32_t>, rank_set> sets_;
};

/// A box that some ranks want.
struct wanted_box {
  chunk box;                        ///< in elements of the global tensor
  const rank_set* ranks = nullptr;  ///< of a rank_sets, which outlives this
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/rank_set.ipp>
#endif
