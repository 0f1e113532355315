// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_set.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cairn {
inline namespace v1 {

/// How default_planner divides replicated data among the ranks that hold it.
struct default_planner_options {
  /// Replicated boxes of this many bytes and more are split among their holders; smaller ones are written by
  /// one holder each. The ranks' loads then differ by less than this.
  std::uint64_t split_above_bytes = std::uint64_t{1} << 20;
  /// Splitting makes no piece smaller than about this.
  std::uint64_t least_piece_bytes = std::uint64_t{256} << 10;
};

/// Who writes what of the items of which some rank holds a replica; of all others each rank writes what it
/// holds.
class write_assignment {
 public:
  /// True if each holder of the item writes all that it holds.
  [[nodiscard]] bool written_as_held(std::size_t item) const noexcept {
    return first_[item] == first_[item + 1];
  }
  /// What is written of another item: visit(const chunk_progression&).
  template <class Visit>
  void for_each_piece(std::size_t item, Visit&& visit) const {
    for (auto k = first_[item]; k < first_[item + 1]; ++k) {
      auto at = order_[k];
      visit(pieces_.read(at));
    }
  }

  // For those who make one.
  void add(std::size_t item, const chunk_progression& piece) {
    items_.push_back(static_cast<std::uint32_t>(item));
    begins_.push_back(pieces_.size());
    pieces_.append(piece);
  }
  void sort_by_item(std::size_t items) {
    first_.assign(items + 1, 0);
    for (const auto i : items_) ++first_[i + 1];
    for (std::size_t i = 0; i < items; ++i) first_[i + 1] += first_[i];
    order_.resize(items_.size());
    auto next = first_;
    for (std::size_t k = 0; k < items_.size(); ++k) order_[next[items_[k]]++] = begins_[k];
  }

 private:
  detail::progression_words pieces_;
  std::vector<std::uint32_t> items_;
  std::vector<std::size_t> begins_;
  std::vector<std::size_t> order_;
  std::vector<std::uint32_t> first_;
};

}  // namespace v1
}  // namespace cairn
