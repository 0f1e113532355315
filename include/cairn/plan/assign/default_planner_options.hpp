// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstdint>

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

}  // namespace v1
}  // namespace cairn
