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
  constexpr owned(decltype(nullptr)) noexcept {}
  explicit owned(T* made) noexcept : held_(made) {}
  owned(owned&& other) noexcept : held_(other.release()) {}
  /// Takes over an object of a class that is derived from T.
  template <class Derived>
  owned(owned<Derived>&& other) noexcept : held_(other.release()) {}
  owned& operator=(owned&& other) noexcept {
    owned(static_cast<owned&&>(other)).swap(*this);
    return *this;
  }
  ~owned() {
    // NOLINTNEXTLINE(bugprone-sizeof-expression): it asks whether T is complete
    static_assert(sizeof(T) > 0, "where the owner ends, the class is complete");
    delete held_;
  }

  [[nodiscard]] explicit operator bool() const noexcept { return held_ != nullptr; }
  [[nodiscard]] bool operator==(decltype(nullptr)) const noexcept { return held_ == nullptr; }
  [[nodiscard]] T& operator*() const noexcept { return *held_; }
  [[nodiscard]] T* operator->() const noexcept { return held_; }
  [[nodiscard]] T* get() const noexcept { return held_; }
  void reset() noexcept { owned().swap(*this); }
  /// The object, which this no longer owns.
  T* release() noexcept {
    T* const mine = held_;
    held_ = nullptr;
    return mine;
  }

 private:
  void swap(owned& other) noexcept {
    T* const mine = held_;
    held_ = other.held_;
    other.held_ = mine;
  }
  T* held_ = nullptr;
};

template <class T, class... Arguments>
[[nodiscard]] owned<T> make_owned(Arguments&&... arguments) {
  return owned<T>(new T(static_cast<Arguments&&>(arguments)...));
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
