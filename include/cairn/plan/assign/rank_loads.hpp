// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The bytes that each rank writes.
class rank_loads {
 public:
  explicit rank_loads(std::size_t world_size) : load_(world_size) {}

  [[nodiscard]] std::size_t size() const noexcept { return load_.size(); }
  [[nodiscard]] std::uint64_t operator[](std::int32_t rank) const noexcept {
    return load_[static_cast<std::size_t>(rank)];
  }
  void add(std::int32_t rank, std::uint64_t bytes) noexcept {
    load_[static_cast<std::size_t>(rank)] += bytes;
  }
  /// To each rank of a progression.
  void add(const chunk_progression& ranks, std::uint64_t bytes, int axis = 0,
           std::int32_t offset = 0) noexcept {
    auto rank = ranks.rank + offset;
    if (axis == ranks.axis_count) {
      add(rank, bytes);
      return;
    }
    const auto& a = ranks.axes[static_cast<std::size_t>(axis)];
    const bool innermost = axis + 1 == ranks.axis_count;
    for (std::int32_t k = 0; k < a.count; ++k, rank += a.rank_step)
      if (innermost)
        add(rank, bytes);
      else
        add(ranks, bytes, axis + 1, rank - ranks.rank);
  }

 private:
  std::vector<std::uint64_t> load_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
