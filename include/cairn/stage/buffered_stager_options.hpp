// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stage/memory_budget.hpp>

namespace cairn {
inline namespace v1 {

/// Options of buffered_stager.
struct buffered_stager_options {
  /// The number of images that can exist at once, each in its own buffer: with 1, a save waits until the
  /// one before is written; with 2 it does not, at twice the memory.
  int depth = 1;
  /// The memory budget that this stager shares with others of this process; no limit by default.
  memory_budget budget = {};
};

}  // namespace v1
}  // namespace cairn
