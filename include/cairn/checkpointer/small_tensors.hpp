// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_layout.hpp>
#include <cairn/model/plan.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Bounds what is copied before save() returns for no other reason than that it is small: as long as those
/// tensors are more than `max_bytes` bytes together, the size below which a tensor counts as small is halved, from
/// always_copied_below on. The others are copied like large ones. O(items).
inline void bound_small_tensors(image_layout& layout, const save_plan& plan, std::uint64_t max_bytes) {
  const auto is_small = [&](const item_placement& at) {
    const auto& item = plan.items.at(at.item);
    return at.early && item.kind == item_kind::tensor && !item.flags.copy_now && !item.flags.per_rank &&
           at.bytes < always_copied_below;
  };
  // Bytes of all tensors whose sizes have so many bits: less than 1 << bits.
  std::array<std::uint64_t, std::bit_width(always_copied_below)> of_bits{};
  std::uint64_t sum = 0;
  for (const auto& at : layout.items) {
    if (!is_small(at)) continue;
    of_bits[static_cast<std::size_t>(std::bit_width(at.bytes))] += at.bytes;
    sum += at.bytes;
  }
  if (sum <= max_bytes) return;
  std::size_t bits = of_bits.size() - 1;
  while (sum > max_bytes) sum -= of_bits[bits--];
  for (auto& at : layout.items)
    if (is_small(at) && at.bytes >= std::uint64_t{1} << bits) at.early = false;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
