// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/extents.hpp>
#include <cairn/model/metadata.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The chunks of an item as a progression: the tensor cut into pieces of one size (the last of each dimension
/// may be smaller), in row-major order, where each step along dimension d adds rank_steps[d] to the rank. Of
/// a per-rank item: `count` ranks, each rank_steps[0] above the one before.
struct chunk_grid {
  extents pieces;  ///< at least 1 each; none for per-rank items
  std::array<std::int32_t, extents::max_rank> rank_steps{};
  std::int32_t first_rank = 0;
  std::uint32_t count = 0;
};

/// Pieces along a dimension; one where it is empty.
[[nodiscard]] constexpr std::int64_t pieces_along(std::int64_t size, std::int64_t piece) noexcept {
  return size == 0 ? 1 : size / piece + (size % piece != 0);
}

/// Chunks of a grid that cuts `global` into `pieces`, or nothing if there are more than `most`.
[[nodiscard]] inline std::optional<std::int64_t> grid_count(const extents& global, const extents& pieces,
                                                            std::int64_t most) noexcept {
  std::int64_t count = 1;
  for (int d = 0; d < global.rank(); ++d) {
    if (__builtin_mul_overflow(count, pieces_along(global[d], pieces[d]), &count) || count > most)
      return std::nullopt;
  }
  return count <= most ? std::optional{count} : std::nullopt;
}

/// Walks over the chunks of a grid in order.
class grid_cursor {
 public:
  /// @pre the grid fits: pieces has the rank of `item.global` (or the item is per-rank).
  grid_cursor(const chunk_grid& grid, const stored_item& item)
      : grid_(grid), item_(item), rank_(grid.first_rank) {
    at_ = extents::filled(item.global.rank(), 0);
  }
  [[nodiscard]] chunk box() const {
    if (item_.per_rank) return whole(item_.global);
    chunk c{at_, at_};
    for (int d = 0; d < at_.rank(); ++d) c.sizes.set(d, std::min(grid_.pieces[d], item_.global[d] - at_[d]));
    return c;
  }
  [[nodiscard]] std::int64_t rank() const noexcept { return rank_; }
  void next() noexcept {
    if (item_.per_rank) {
      rank_ += grid_.rank_steps[0];
      return;
    }
    for (int d = at_.rank(); d-- > 0;) {
      const auto step = grid_.rank_steps[static_cast<std::size_t>(d)];
      if (item_.global[d] - at_[d] > grid_.pieces[d]) {
        at_.set(d, at_[d] + grid_.pieces[d]);
        rank_ += step;
        return;
      }
      rank_ -= at_[d] / grid_.pieces[d] * step;
      at_.set(d, 0);
    }
  }

 private:
  const chunk_grid& grid_;
  const stored_item& item_;
  extents at_;
  std::int64_t rank_;  // cannot overflow: fewer than 2^31 steps of less than 2^31
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
