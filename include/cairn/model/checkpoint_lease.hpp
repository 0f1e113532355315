// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstdint>
#include <memory>
#include <utility>

namespace cairn {
inline namespace v1 {

/// Keeps a checkpoint from being removed while somebody reads it: in every process that uses the store,
/// keep_last keeps it and remove() throws. The lease ends with release(), with this object, or with its
/// process, however that ends. One thread at a time.
class checkpoint_lease {
 public:
  /// Holds nothing.
  checkpoint_lease() = default;
  /// `hold`: ends the lease when it is destroyed; null where there is no lease. `kept(hold)`: whether it is a lease
  /// still; null: as long as it is there.
  checkpoint_lease(std::int64_t step, std::shared_ptr<void> hold,
                   bool (*kept)(const void*) noexcept = nullptr) noexcept
      : step_(step), hold_(std::move(hold)), kept_(kept) {}
  checkpoint_lease(checkpoint_lease&& other) noexcept
      : step_(other.step_), hold_(std::exchange(other.hold_, nullptr)), kept_(other.kept_) {}
  checkpoint_lease& operator=(checkpoint_lease&& other) noexcept {
    step_ = other.step_;
    hold_ = std::exchange(other.hold_, nullptr);
    kept_ = other.kept_;
    return *this;
  }

  /// The step of the checkpoint that is kept.
  [[nodiscard]] std::int64_t step() const noexcept { return step_; }
  /// False where the store has no leases, for example because it is read-only, and after release(). Also once it was
  /// lost: in a bucket, where others saw no sign of this process for 30 s, they may have removed the checkpoint; take
  /// another lease, which tells.
  [[nodiscard]] bool held() const noexcept {
    return hold_ != nullptr && (kept_ == nullptr || kept_(hold_.get()));
  }
  /// Gives the lease back before it is destroyed. No effect where none is held.
  void release() noexcept { hold_.reset(); }

 private:
  std::int64_t step_ = -1;
  std::shared_ptr<void> hold_;
  bool (*kept_)(const void*) noexcept = nullptr;
};

}  // namespace v1
}  // namespace cairn
