// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stage/memory_budget.hpp>

namespace cairn {
inline namespace v1 {

/// Options of buffered_stager.
struct buffered_stager_options {
  /// Images that can be alive at once, each in a buffer of its own: with 1, a save waits until the one before
  /// is written; with 2 it does not, at twice the memory.
  int depth = 1;
  /// Shared with other stagers of this process; without one, this stager takes what it needs.
  memory_budget budget = {};
};

}  // namespace v1
}  // namespace cairn
