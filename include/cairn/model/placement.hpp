// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/extents.hpp>

#include <concepts>
#include <cstdint>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Says that this rank holds one box of a global tensor: `shard{{rows, columns}, {first_row, 0}}`. For a
/// container the sizes of the box are deduced from its size (the whole global size in the dimensions
/// after the first); for a raw pointer they must be given.
struct shard {
  /// The sizes of the whole tensor.
  extents global;
  /// The first element of the box, in each dimension.
  extents offset;
  /// The sizes of the box; empty: deduced from the container.
  extents sizes = {};
};

/// Says that this rank holds consecutive elements of the flattened (row-major) global tensor, as in ZeRO
/// and FSDP1: `flat_shard{{rows, columns}, begin}`. `begin` and `length` count elements. The length is
/// deduced from a container; for a raw pointer it must be given.
struct flat_shard {
  /// The sizes of the whole tensor.
  extents global;
  /// The first element that this rank holds.
  std::int64_t begin = 0;
  /// The number of elements; negative: deduced from the container.
  std::int64_t length = -1;
};

/// How a rank's elements lie in the global tensor.
template <class P>
concept Placement = std::same_as<P, shard> || std::same_as<P, flat_shard>;

/// The fewest boxes that make up elements [begin, begin + length) of the flattened tensor, in memory order:
/// at most 2 x rank - 1.
/// @pre the range lies in the tensor.
[[nodiscard]] std::vector<chunk> boxes_of_range(const extents& shape, std::int64_t begin,
                                                std::int64_t length);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/placement.ipp>
#endif
