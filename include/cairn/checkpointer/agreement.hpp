// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/collectives.hpp>

#include <cstddef>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// True on all ranks if `here` is true on one. Collective; no message where there is one rank.
[[nodiscard]] inline bool any_rank(collectives& group, bool here, deadline until) {
  if (group.size() == 1) return here;
  const auto either = [](std::vector<std::byte> left, std::vector<std::byte> right) {
    return left.at(0) != std::byte{0} ? left : right;
  };
  return group.tree_reduce_broadcast(std::vector<std::byte>{std::byte{here}}, either, until).at(0) !=
         std::byte{0};
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
