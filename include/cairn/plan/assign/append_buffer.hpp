// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A vector for loops that append a record each: what it had grown to is kept when it is cleared, so that to
/// append is a comparison and a store.
template <class T>
class append_buffer {
 public:
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] T* begin() noexcept { return room_.data(); }
  [[nodiscard]] T* end() noexcept { return room_.data() + size_; }
  [[nodiscard]] const T* begin() const noexcept { return room_.data(); }
  [[nodiscard]] const T* end() const noexcept { return room_.data() + size_; }
  [[nodiscard]] T& operator[](std::size_t k) noexcept { return room_[k]; }
  [[nodiscard]] T& back() noexcept { return room_[size_ - 1]; }
  void clear() noexcept { size_ = 0; }
  void pop_back() noexcept { --size_; }
  void append(const T& value) {
    if (size_ == room_.size()) grow();
    room_[size_++] = value;
  }
  /// What was behind the former end is any value.
  void resize(std::size_t size) {
    if (size > room_.size()) room_.resize(std::max(size, 2 * room_.size()));
    size_ = size;
  }
  void assign(const std::vector<T>& from) {
    resize(from.size());
    std::copy(from.begin(), from.end(), begin());
  }
  void swap(append_buffer& other) noexcept {
    room_.swap(other.room_);
    std::swap(size_, other.size_);
  }

 private:
  [[gnu::noinline]] void grow() { room_.resize(std::max<std::size_t>(64, 2 * size_)); }

  std::vector<T> room_;
  std::size_t size_ = 0;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
