// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>

namespace cairn {
inline namespace v1 {

/// Tells that objects of a store may have changed. One thread at a time.
class change_watch {
 public:
  change_watch() = default;
  change_watch(const change_watch&) = delete;
  change_watch& operator=(const change_watch&) = delete;
  virtual ~change_watch() = default;

  /// Returns true when something may have changed since the watch was made, or since the last call that returned true;
  /// false at the deadline. It may return true for nothing.
  [[nodiscard]] virtual bool wait(deadline until) = 0;
  /// False where changes may go unnoticed, such as those of other hosts; who waits asks the store as well then.
  [[nodiscard]] virtual bool sees_all() const noexcept = 0;
};

}  // namespace v1
}  // namespace cairn
