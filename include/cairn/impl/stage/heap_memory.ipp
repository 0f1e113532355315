// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/memory.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/stage/heap_memory.hpp>
#include <cairn/stage/memory_limits.hpp>
#include <cairn/stage/prefer_node.hpp>
#include <cairn/system/populate.hpp>
#include <cairn/system/shared.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

namespace cairn {
inline namespace v1 {

CAIRN_BODY heap_block::heap_block(heap_block&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

CAIRN_BODY heap_block& heap_block::operator=(heap_block&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

CAIRN_BODY heap_block::~heap_block() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

CAIRN_BODY heap_block heap_memory::allocate(std::uint64_t bytes, int node) {
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

CAIRN_BODY std::shared_ptr<image_control> heap_memory::make_control(heap_block&) {
  return detail::make_shared<image_control>();
}

static_assert(Memory<heap_memory>, "heap_memory must model Memory");

}  // namespace v1
}  // namespace cairn
