// SPDX-License-Identifier: Apache-2.0
#pragma once
// Replaces operator new and delete of the program: allocations are counted, and fail as a test says. One file of a
// program includes this.
#include "faulty_file_system.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace cairn_test {

/// For the whole program: how many allocations are not freed yet, and which one is to fail.
inline std::atomic<std::int64_t> live_allocations{0};
inline constexpr std::int64_t all_well = -1;
inline std::atomic<std::int64_t> allocations_until_failure{all_well};  // at 0 the next one fails
inline std::atomic<bool> all_later_ones_fail{false};
inline std::atomic<std::uint64_t> failed_allocations{0};
inline std::atomic<std::uint64_t> the_k{0};
/// For the calling thread: the cost of one call.
inline thread_local std::uint64_t allocations_of_thread = 0;
inline thread_local std::size_t largest_of_thread = 0;

namespace failing_allocations {
inline bool fails_now() noexcept {
  auto left = allocations_until_failure.load();
  if (left < 0 || inside_file_system > 0) return false;
  while (left > 0)
    if (allocations_until_failure.compare_exchange_weak(left, left - 1)) return false;
  if (left < 0) return false;
  if (!all_later_ones_fail && !allocations_until_failure.compare_exchange_strong(left, all_well))
    return false;
  ++failed_allocations;
  return true;
}
inline void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (fails_now()) return nullptr;
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(bytes == 0 ? 1 : bytes)
                     : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) return nullptr;
  ++live_allocations;
  ++allocations_of_thread;
  largest_of_thread = std::max(largest_of_thread, bytes);
  return memory;
}
inline void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
inline void give_back(void* memory) noexcept {
  if (memory == nullptr) return;
  --live_allocations;
  std::free(memory);
}
inline constexpr std::size_t usual = alignof(std::max_align_t);
inline std::size_t number(std::align_val_t alignment) {
  return static_cast<std::size_t>(alignment);
}
}  // namespace failing_allocations

}  // namespace cairn_test

void* operator new(std::size_t n) {
  return cairn_test::failing_allocations::allocate_or_throw(n, cairn_test::failing_allocations::usual);
}
void* operator new[](std::size_t n) {
  return cairn_test::failing_allocations::allocate_or_throw(n, cairn_test::failing_allocations::usual);
}
void* operator new(std::size_t n, std::align_val_t a) {
  return cairn_test::failing_allocations::allocate_or_throw(n, cairn_test::failing_allocations::number(a));
}
void* operator new[](std::size_t n, std::align_val_t a) {
  return cairn_test::failing_allocations::allocate_or_throw(n, cairn_test::failing_allocations::number(a));
}
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return cairn_test::failing_allocations::allocate(n, cairn_test::failing_allocations::usual);
}
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  return cairn_test::failing_allocations::allocate(n, cairn_test::failing_allocations::usual);
}
void operator delete(void* p) noexcept {
  cairn_test::failing_allocations::give_back(p);
}
void operator delete[](void* p) noexcept {
  cairn_test::failing_allocations::give_back(p);
}
void operator delete(void* p, std::size_t) noexcept {
  cairn_test::failing_allocations::give_back(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  cairn_test::failing_allocations::give_back(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  cairn_test::failing_allocations::give_back(p);
}
void operator delete[](void* p, std::align_val_t) noexcept {
  cairn_test::failing_allocations::give_back(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  cairn_test::failing_allocations::give_back(p);
}
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  cairn_test::failing_allocations::give_back(p);
}
