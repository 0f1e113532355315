// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_set.hpp>
#include <cairn/plan/assign/replica_cut.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Who writes what of the items of which some rank holds a replica; of all others each rank writes what it
/// holds. Boxes whose holders divide them alike share what says so, and are cut into chunks when they are
/// asked for.
class write_assignment {
 public:
  /// True if each holder of the item writes all that it holds.
  [[nodiscard]] bool written_as_held(std::size_t item) const noexcept {
    return first_[item] == first_[item + 1];
  }
  /// What is written of another item: visit(const chunk_progression&).
  template <class Visit>
  void for_each_chunk(std::size_t item, Visit&& visit) const {
    for (auto k = first_[item]; k < first_[item + 1]; ++k) {
      if (parts_[k].divided)
        boxes_of(divisions_[parts_[k].at]).for_each_chunk(visit);
      else
        visit(chunk_at(parts_[k].at));
    }
  }
  /// What a rank writes of it: visit(const chunk&). O(parts + log(chunks)).
  template <class Visit>
  void for_each_chunk_of(std::size_t item, std::int32_t rank, Visit&& visit) const {
    for (auto k = first_[item]; k < first_[item + 1]; ++k) {
      if (parts_[k].divided) {
        boxes_of(divisions_[parts_[k].at]).for_each_chunk_of(rank, visit);
      } else {
        const auto p = chunk_at(parts_[k].at);
        if (const auto index = p.index_of(rank)) visit(p.at(*index).box);
      }
    }
  }

  // For those who make one.

  /// Boxes that some holders divide: ranges of what finish() is given, and of what add_shards() was.
  struct division {
    std::size_t first_member = 0;  ///< place of the boxes in the list of finish()
    std::size_t members = 0;       ///< how many entries of that list
    std::size_t first_share = 0;   ///< place of the holders' shares in the list of finish()
    std::size_t shares = 0;
    std::size_t first_shard = 0;  ///< place of the boxes' numbers; see add_shards()
    std::size_t shards = 0;       ///< 0: all
    detail::split_grain grain;    ///< in which the boxes are cut
  };
  /// Parts of one item are visited in ascending order of `order`, equal ones as they were added.
  void add(std::size_t item, std::size_t order, const chunk_progression& p) {
    parts_.push_back({static_cast<std::uint32_t>(item), static_cast<std::uint32_t>(order), chunks_.size()});
    chunks_.append(p);
  }
  void add(std::size_t item, std::size_t order, const division& d) {
    parts_.push_back(
        {static_cast<std::uint32_t>(item), static_cast<std::uint32_t>(order), divisions_.size(), true});
    divisions_.push_back(d);
  }
  /// About so many divisions will come.
  void expect(std::size_t divisions) {
    divisions_.reserve(divisions);
    parts_.reserve(divisions);
  }
  /// Keeps numbers of boxes, ascending, for division::first_shard: returns the place of the first.
  [[nodiscard]] std::size_t add_shards(detail::list_view<const std::int64_t> shards) {
    shards_.insert(shards_.end(), shards.begin(), shards.end());
    return shards_.size() - shards.size();
  }
  void finish(std::size_t items, std::vector<detail::held_boxes> members,
              std::vector<detail::replica_share> shares) {
    members_ = std::move(members);
    shares_ = std::move(shares);
    first_.assign(items + 1, 0);
    for (const auto& p : parts_) ++first_[p.item + 1];
    for (std::size_t i = 0; i < items; ++i) first_[i + 1] += first_[i];
    std::vector<part> sorted(parts_.size());
    auto next = first_;
    for (const auto& p : parts_) sorted[next[p.item]++] = p;
    parts_ = std::move(sorted);
    const auto before = [](const part& a, const part& b) { return a.order < b.order; };
    for (std::size_t i = 0; i < items; ++i)
      detail::sort(parts_.data() + first_[i], first_[i + 1] - first_[i], before);
  }

 private:
  struct part {
    std::uint32_t item = 0;
    std::uint32_t order = 0;
    std::size_t at = 0;  ///< in chunks_, or in divisions_
    bool divided = false;
  };
  [[nodiscard]] chunk_progression chunk_at(std::size_t at) const noexcept { return chunks_.read(at); }
  [[nodiscard]] detail::divided_boxes boxes_of(const division& d) const noexcept {
    return {detail::list_view(members_).subspan(d.first_member, d.members),
            detail::list_view(shards_).subspan(d.first_shard, d.shards),
            detail::list_view(shares_).subspan(d.first_share, d.shares), d.grain};
  }

  detail::progression_words chunks_;
  std::vector<division> divisions_;
  std::vector<part> parts_;
  std::vector<std::uint32_t> first_;  ///< of the parts of each item
  std::vector<detail::held_boxes> members_;
  std::vector<std::int64_t> shards_;
  std::vector<detail::replica_share> shares_;
};

}  // namespace v1
}  // namespace cairn
