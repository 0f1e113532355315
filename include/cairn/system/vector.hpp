// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstddef>
#include <initializer_list>
#include <new>
#include <type_traits>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The memory of a vector, whatever its elements are.
class vector_memory {
 protected:
  /// Moves so many elements to memory without any, and ends those that they were.
  using relocation = void (*)(void* to, void* from, std::size_t count) noexcept;

  vector_memory() noexcept = default;
  vector_memory(vector_memory&& other) noexcept { swap(other); }
  vector_memory& operator=(vector_memory&&) = delete;

  void swap(vector_memory& other) noexcept;
  /// Makes room for `count` elements and perhaps for more. Without `relocate` their bytes are copied. @throws
  /// std::bad_alloc
  void grow(std::size_t count, std::size_t element_size, relocation relocate);

  void* items_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

/// Elements side by side, as in a std::vector: that one makes ninety functions for each type of elements, this one
/// about fifteen. For what the library keeps to itself, of types that move without exceptions.
template <class T>
class vector : vector_memory {
 public:
  vector() noexcept = default;
  explicit vector(std::size_t count) : vector() { extend(count); }
  vector(std::initializer_list<T> items) : vector() {
    reserve(items.size());
    for (const T& item : items) push_back(item);
  }
  vector(const vector& other) : vector() {
    reserve(other.size_);
    for (const T& item : other) push_back(item);
  }
  vector(vector&& other) noexcept = default;
  vector& operator=(const vector& other) {
    vector(other).swap(*this);
    return *this;
  }
  vector& operator=(vector&& other) noexcept {
    vector(static_cast<vector&&>(other)).swap(*this);
    return *this;
  }
  ~vector() {
    clear();
    ::operator delete(items_);
  }

  [[nodiscard]] T* data() noexcept { return static_cast<T*>(items_); }
  [[nodiscard]] const T* data() const noexcept { return static_cast<const T*>(items_); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] T* begin() noexcept { return static_cast<T*>(items_); }
  [[nodiscard]] T* end() noexcept { return static_cast<T*>(items_) + size_; }
  [[nodiscard]] const T* begin() const noexcept { return static_cast<const T*>(items_); }
  [[nodiscard]] const T* end() const noexcept { return static_cast<const T*>(items_) + size_; }
  /// @pre `index < size()`
  [[nodiscard]] T& operator[](std::size_t index) noexcept { return static_cast<T*>(items_)[index]; }
  [[nodiscard]] const T& operator[](std::size_t index) const noexcept {
    return static_cast<const T*>(items_)[index];
  }
  /// @pre not empty()
  [[nodiscard]] T& front() noexcept { return static_cast<T*>(items_)[0]; }
  [[nodiscard]] const T& front() const noexcept { return static_cast<const T*>(items_)[0]; }
  [[nodiscard]] T& back() noexcept { return static_cast<T*>(items_)[size_ - 1]; }
  [[nodiscard]] const T& back() const noexcept { return static_cast<const T*>(items_)[size_ - 1]; }

  void swap(vector& other) noexcept { vector_memory::swap(other); }
  void reserve(std::size_t count) {
    static_assert(std::is_nothrow_move_constructible_v<T> && alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    if (count <= capacity_) return;
    if constexpr (std::is_trivially_copyable_v<T>)
      grow(count, sizeof(T), nullptr);
    else
      grow(count, sizeof(T), relocate);
  }
  void push_back(T item) {
    reserve(size_ + 1);
    ::new (static_cast<void*>(static_cast<T*>(items_) + size_)) T(static_cast<T&&>(item));
    ++size_;
  }
  /// @pre not empty()
  void pop_back() noexcept {
    --size_;
    static_cast<T*>(items_)[size_].~T();
  }
  /// Elements that are added are made of nothing.
  void resize(std::size_t count) {
    if (size_ < count) extend(count);
    while (size_ > count) pop_back();
  }
  /// The others keep their order.
  void insert(T* at, T item) {
    const auto index = static_cast<std::size_t>(at - begin());
    push_back(static_cast<T&&>(item));
    T* to = end() - 1;
    T moved(static_cast<T&&>(*to));
    for (T* const place = begin() + index; to != place; --to) *to = static_cast<T&&>(to[-1]);
    *to = static_cast<T&&>(moved);
  }
  void erase(T* from, T* to) noexcept {
    if (from == to) return;
    while (to != end()) *from++ = static_cast<T&&>(*to++);
    while (from != end()) pop_back();
  }
  void erase(T* at) noexcept { erase(at, at + 1); }

  friend bool operator==(const vector& a, const vector& b) {
    if (a.size_ != b.size_) return false;
    for (std::size_t i = 0; i < a.size_; ++i)
      if (!(a[i] == b[i])) return false;
    return true;
  }

  void clear() noexcept {
    if constexpr (std::is_trivially_destructible_v<T>)
      size_ = 0;
    else
      while (size_ > 0) pop_back();
  }

 private:
  void extend(std::size_t count) {
    reserve(count);
    for (; size_ < count; ++size_) ::new (static_cast<void*>(static_cast<T*>(items_) + size_)) T();
  }
  static void relocate(void* to, void* from, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
      T& item = static_cast<T*>(from)[i];
      ::new (static_cast<void*>(static_cast<T*>(to) + i)) T(static_cast<T&&>(item));
      item.~T();
    }
  }
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/vector.ipp>
#endif
