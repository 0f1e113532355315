// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <memory>
#include <utility>

namespace cairn {
inline namespace v1 {

/// Shows other processes that a save is under way, until this object is destroyed or its process ends. One
/// thread at a time.
class save_announcement {
 public:
  /// Announces nothing.
  save_announcement() = default;
  /// `shown`: ends the announcement when it is destroyed. `lock_descriptor`: a descriptor that `shown`
  /// owns, or -1.
  explicit save_announcement(std::shared_ptr<void> shown, int lock_descriptor = -1) noexcept
      : shown_(std::move(shown)), lock_descriptor_(lock_descriptor) {}
  save_announcement(save_announcement&& other) noexcept
      : shown_(std::exchange(other.shown_, nullptr)),
        lock_descriptor_(std::exchange(other.lock_descriptor_, -1)) {}
  save_announcement& operator=(save_announcement&& other) noexcept {
    shown_ = std::exchange(other.shown_, nullptr);
    lock_descriptor_ = std::exchange(other.lock_descriptor_, -1);
    return *this;
  }

  /// True if others can see the save; false where nothing is announced.
  [[nodiscard]] bool shown() const noexcept { return shown_ != nullptr; }
  /// A process that has a duplicate of this descriptor keeps the announcement alive, too. -1 where the
  /// store has no locks.
  [[nodiscard]] int lock_descriptor() const noexcept { return lock_descriptor_; }

 private:
  std::shared_ptr<void> shown_;
  int lock_descriptor_ = -1;
};

}  // namespace v1
}  // namespace cairn
