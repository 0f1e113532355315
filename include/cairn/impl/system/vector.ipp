// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/vector.hpp>

#include <cstring>
#include <new>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void vector_memory::swap(vector_memory& other) noexcept {
  void* const items = items_;
  const auto size = size_, capacity = capacity_;
  items_ = other.items_, size_ = other.size_, capacity_ = other.capacity_;
  other.items_ = items, other.size_ = size, other.capacity_ = capacity;
}

[[gnu::noinline]] CAIRN_BODY void vector_memory::grow(std::size_t count, std::size_t element_size,
                                                      relocation relocate) {
  const auto twice = size_ * 2;
  const auto capacity = count < twice ? twice : count;
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(capacity, element_size, &bytes)) throw std::bad_array_new_length();
  void* const items = ::operator new(bytes);
  if (relocate)
    relocate(items, items_, size_);
  else if (size_ > 0)
    std::memcpy(items, items_, size_ * element_size);
  ::operator delete(items_);
  items_ = items;
  capacity_ = capacity;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
