// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/memory.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/stage/memory_limits.hpp>
#include <cairn/stage/populate.hpp>
#include <cairn/stage/prefer_node.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>

namespace cairn {
inline namespace v1 {

/// Options of heap_memory.
struct heap_memory_options {
  /// Threads that touch a new buffer's pages; 0: one for each core that this process may use, at most 8.
  int threads = 0;
  /// Ask for huge pages, which take fewer faults and are copied to faster.
  bool huge_pages = true;
  /// Look at the limits of machine, control group and process before a buffer is allocated.
  bool check_limits = true;
  /// Keep the buffers from being swapped (mlock), within RLIMIT_MEMLOCK.
  bool lock = false;
};

/// An anonymous private mapping. Movable; unmapped by the destructor.
class heap_block {
 public:
  heap_block(std::byte* data, std::size_t bytes) noexcept : data_(data), bytes_(bytes) {}
  heap_block(heap_block&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  heap_block& operator=(heap_block&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~heap_block() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, bytes_}; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

/// Ordinary memory of this process, mapped for each block and touched in parallel.
class heap_memory {
 public:
  using block_type = heap_block;
  static constexpr memory_space space = memory_space::host;
  static constexpr bool shareable = false;

  heap_memory() = default;
  explicit heap_memory(heap_memory_options options) noexcept : options_(options) {}

  /// See Memory. Cost about 0.2 s for each GiB and core with small pages. `node`: of NUMA, whose pages are
  /// preferred; negative: those of the cores that touch them.
  [[nodiscard]] heap_block allocate(std::uint64_t bytes, int node = -1) {
    constexpr std::uint64_t huge = std::uint64_t{2} << 20;
    const bool large = options_.huge_pages && bytes >= huge;
    const std::uint64_t unit = large ? huge : image_alignment;
    if (bytes > std::numeric_limits<std::uint64_t>::max() / 2)
      detail::fail_for_memory(bytes, detail::room_for_memory());
    const std::uint64_t rounded = std::max<std::uint64_t>(1, (bytes + unit - 1) / unit) * unit;
    if (options_.check_limits) {
      const auto room = detail::room_for_memory();
      if (rounded > room.bytes) detail::fail_for_memory(rounded, room);
    }
    // A little more is mapped, so that huge pages can begin at the block's beginning; it is never touched.
    const std::size_t mapped = rounded + (large ? huge - image_alignment : 0);
    void* at =
        ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) detail::fail_for_memory(rounded, detail::room_for_memory());
    auto* first = static_cast<std::byte*>(at);
    if (large) {
      const std::size_t skip = (huge - reinterpret_cast<std::uintptr_t>(first) % huge) % huge;
      if (skip != 0) ::munmap(first, skip);
      if (mapped - skip > rounded) ::munmap(first + skip + rounded, mapped - skip - rounded);
      first += skip;
      ::madvise(first, rounded, MADV_HUGEPAGE);
    }
    heap_block block(first, rounded);
    detail::prefer_node(first, rounded, node);
    if (!detail::populate(block.bytes(), options_.threads))
      detail::fail_for_memory(rounded, detail::room_for_memory());
    if (options_.lock && ::mlock2(first, rounded, 0) != 0) detail::fail_for_locked_memory(rounded, errno);
    return block;
  }
  /// See Memory.
  [[nodiscard]] std::shared_ptr<image_control> make_control(heap_block&) {
    return std::make_shared<image_control>();
  }

 private:
  heap_memory_options options_;
};
static_assert(Memory<heap_memory>, "heap_memory must model Memory");

}  // namespace v1
}  // namespace cairn
