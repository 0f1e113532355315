// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstdint>

namespace cairn {
inline namespace v1 {

/// Options of default_planner: how it divides replicated boxes among the ranks that hold them.
struct default_planner_options {
  /// Replicated boxes of at least so many bytes may be cut among their holders; one holder writes a smaller
  /// box. The loads of ranks that hold the same then differ by less than the larger of the two options, or than
  /// the largest box or row among them that cannot be cut.
  std::uint64_t split_above_bytes = std::uint64_t{1} << 20;
  /// A cut leaves no chunk smaller than this.
  std::uint64_t min_chunk_bytes = std::uint64_t{256} << 10;
};

}  // namespace v1
}  // namespace cairn
