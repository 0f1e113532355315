// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>
#include <cairn/system/vector.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What std::span is, between functions of the library. For each type of element that a std::span is made of,
/// the compiler checks the concepts of contiguous ranges anew: 30 to 60 ms of every translation unit with
/// g++. This has no concepts to check. Spans of bytes, and those that users make, stay std::span.
template <class T>
class list_view {
  using value = std::remove_const_t<T>;

 public:
  constexpr list_view() noexcept = default;
  constexpr list_view(T* data, std::size_t size) noexcept : data_(data), size_(size) {}
  constexpr list_view(std::vector<value>& from) noexcept : list_view(from.data(), from.size()) {}
  constexpr list_view(const std::vector<value>& from) noexcept
    requires std::is_const_v<T>
      : list_view(from.data(), from.size()) {}
  list_view(vector<value>& from) noexcept : list_view(from.data(), from.size()) {}
  list_view(const vector<value>& from) noexcept
    requires std::is_const_v<T>
      : list_view(from.data(), from.size()) {}
  template <std::size_t N>
  constexpr list_view(const std::array<value, N>& from) noexcept
    requires std::is_const_v<T>
      : list_view(from.data(), N) {}
  template <std::size_t N>
  constexpr list_view(T (&from)[N]) noexcept : list_view(from, N) {}
  template <class U, std::size_t N>
  constexpr list_view(std::span<U, N> from) noexcept
    requires std::is_convertible_v<U (*)[], T (*)[]>
      : list_view(from.data(), from.size()) {}
  template <class U>
  constexpr list_view(const list_view<U>& from) noexcept
    requires std::is_same_v<U, value> && std::is_const_v<T>
      : list_view(from.data(), from.size()) {}

  [[nodiscard]] constexpr T* data() const noexcept { return data_; }
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] constexpr T* begin() const noexcept { return data_; }
  [[nodiscard]] constexpr T* end() const noexcept { return data_ + size_; }
  /// @pre `index < size()`
  [[nodiscard]] constexpr T& operator[](std::size_t index) const noexcept { return data_[index]; }
  /// @pre not empty()
  [[nodiscard]] constexpr T& front() const noexcept { return data_[0]; }
  [[nodiscard]] constexpr T& back() const noexcept { return data_[size_ - 1]; }
  /// @pre `count <= size()`
  [[nodiscard]] constexpr list_view first(std::size_t count) const noexcept { return {data_, count}; }
  /// From there to the end, or so many. @pre `from + count <= size()`
  [[nodiscard]] constexpr list_view subspan(std::size_t from) const noexcept {
    return {data_ + from, size_ - from};
  }
  [[nodiscard]] constexpr list_view subspan(std::size_t from, std::size_t count) const noexcept {
    return {data_ + from, count};
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

template <class T>
list_view(const std::vector<T>&) -> list_view<const T>;
template <class T>
list_view(const vector<T>&) -> list_view<const T>;

}  // namespace detail
}  // namespace v1
}  // namespace cairn
