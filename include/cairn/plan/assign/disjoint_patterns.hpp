// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/plan/assign/rank_loads.hpp>
#include <cairn/plan/summary/replica_groups.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <unordered_set>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A set of patterns of which no two have a rank in common. Patterns whose ranks lie in different ranges cost
/// O(log patterns); once ranges interleave, ranks are marked one by one.
class disjoint_patterns {
 public:
  explicit disjoint_patterns(std::size_t world_size) : world_(world_size) {}

  void clear() {
    known_.clear();
    ranges_.clear();
    marked_ = false;
  }
  /// False if one of its ranks is in another pattern, or twice in this one; the set may only be cleared then.
  /// A pattern that is there already is not added again.
  [[nodiscard]] bool add(std::uint32_t pattern, list_view<const held_boxes> members) {
    if (!known_.insert(pattern).second) return true;
    range own{members[0].p.rank, -1, members};
    bool apart = true;
    for (const auto& m : members) {
      apart = apart && m.p.rank > own.last;
      own.last = std::max(own.last, static_cast<std::int32_t>(m.p.last_rank()));
    }
    const auto next = ranges_.lower_bound(own.first);
    const auto* behind = next != ranges_.end() && next->second.first <= own.last ? &next->second : nullptr;
    const auto* before = next != ranges_.begin() && std::prev(next)->second.last >= own.first
                             ? &std::prev(next)->second
                             : nullptr;
    for (const auto* other : {before, behind})
      if (other != nullptr && (holds(*other, own.first) || holds(own, other->first))) return false;
    if (!marked_ && apart && behind == nullptr && before == nullptr) {
      ranges_.emplace(own.first, own);
      return true;
    }
    if (!marked_) {
      marked_ = true;
      marks_.resize(world_);
      ++wave_;
      for (const auto& [first, other] : ranges_)
        if (!mark(other)) return false;
    }
    return mark(own);
  }

 private:
  struct range {
    std::int32_t first = 0;
    std::int32_t last = 0;
    list_view<const held_boxes> members;
  };
  [[nodiscard]] static bool holds(const range& r, std::int32_t rank) noexcept {
    return r.members.size() == 1 && r.members[0].find(rank).has_value();
  }
  [[nodiscard]] bool mark(const range& r) {
    return std::all_of(r.members.begin(), r.members.end(), [&](const held_boxes& m) {
      return for_each_rank(m.p, [&](std::int32_t rank) {
        auto& mark = marks_[static_cast<std::size_t>(rank)];
        if (mark == wave_) return false;
        mark = wave_;
        return true;
      });
    });
  }

  std::size_t world_;
  std::unordered_set<std::uint32_t> known_;
  std::map<std::int32_t, range> ranges_;  ///< by their first ranks
  bool marked_ = false;                   ///< the set is in marks_, too
  std::vector<std::uint32_t> marks_;      ///< of each rank, the last set that it was in
  std::uint32_t wave_ = 0;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
