// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/concepts/memory.hpp>
#include <cairn/model/image_backing.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/stage/memory_limits.hpp>
#include <cairn/stage/prefer_node.hpp>
#include <cairn/system/populate.hpp>
#include <cairn/system/process_limits.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/shared_segment.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Options of the blocks of shared_memory.
struct shared_memory_block_options {
  /// The number of threads that touch a new buffer's pages; 0: one for each core that this process may
  /// use, at most 8.
  int threads = 0;
  /// Ask for huge pages, which take fewer faults and are written to devices in fewer requests: from Linux
  /// 6.1 on, or where the system gives them to shared memory
  /// (/sys/kernel/mm/transparent_hugepage/shmem_enabled). Else small ones.
  bool huge_pages = true;
  /// Check the limits of machine, control group and process before a buffer is allocated.
  bool check_limits = true;
};

namespace detail {

/// Allocates controls of images in shared memory. Handles may keep a control long after the image; its
/// slot is free again when the last handle is destroyed. Any thread.
class shared_controls : public std::enable_shared_from_this<shared_controls> {
 public:
  struct placed {
    std::shared_ptr<image_control> control;
    shared_place place;
  };
  /// @throws storage_error, std::bad_alloc
  [[nodiscard]] placed make() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) grow();
    const auto at = free_.back();
    free_.pop_back();
    auto* control = new (at.segment->bytes().data() + at.offset) image_control;
    const auto give_back = [self = this->shared_from_this(), at](image_control*) noexcept {
      const std::lock_guard again(self->mutex_);
      self->free_.push_back(at);  // room was reserved
    };
    return {std::shared_ptr<image_control>(control, give_back),
            {at.segment, at.segment->file(), at.segment->id(), at.segment->bytes().size(), at.offset}};
  }

 private:
  static constexpr std::size_t slot_bytes = 128;  // two cache lines: the neighbour's line is fetched with one
  static_assert(sizeof(image_control) <= slot_bytes);
  struct slot {
    std::shared_ptr<shared_segment> segment;
    std::size_t offset;
  };
  void grow() {
    constexpr std::size_t bytes = 4096;
    auto segment = detail::make_shared<shared_segment>(bytes);
    segment->allocate();
    slots_ += bytes / slot_bytes;
    free_.reserve(slots_);
    for (std::size_t at = 0; at < bytes; at += slot_bytes) free_.push_back({segment, at});
  }
  std::mutex mutex_;
  std::size_t slots_ = 0;
  std::vector<slot> free_;
};

/// Whether shared memory gets huge pages when it is touched.
[[nodiscard]] inline bool shared_huge_pages() {
  const auto text = kernel_file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  return text && text->find("[never]") == std::string::npos && text->find("[deny]") == std::string::npos;
}

}  // namespace detail

/// A buffer that another process can map. Movable.
class shared_block {
 public:
  explicit shared_block(std::shared_ptr<shared_segment> segment) noexcept : segment_(std::move(segment)) {}
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return segment_->bytes(); }
  /// The place, for another process, of an image at the beginning of the block, with its digests at
  /// `digests_offset`.
  [[nodiscard]] shared_image shared(std::uint64_t digests_offset) const {
    return {
        {segment_, segment_->file(), segment_->id(), segment_->bytes().size(), 0}, digests_offset, control_};
  }

 private:
  friend class shared_memory;
  std::shared_ptr<shared_segment> segment_;
  shared_place control_;  // of the image that is in the block
};

/// A Memory that the worker of a process_executor can map by a descriptor (memfd_create(2)). It has no
/// name and ends with the last process that has it. It is allocated before use and touched in parallel,
/// so that too little memory of the machine or control group causes a storage_error, never SIGBUS.
class shared_memory {
 public:
  using block_type = shared_block;
  static constexpr memory_space space = memory_space::host;
  static constexpr bool shareable = true;

  shared_memory() : controls_(detail::make_shared<detail::shared_controls>()) {}
  explicit shared_memory(shared_memory_block_options options) : shared_memory() { options_ = options; }

  /// See Memory. Cost about 0.2 s for each GiB and core with small pages. `node`: of NUMA, whose pages are
  /// preferred; negative: those of the cores that touch them.
  [[nodiscard]] shared_block allocate(std::uint64_t bytes, int node = -1) {
    constexpr std::uint64_t huge = std::uint64_t{2} << 20;
    if (bytes > std::numeric_limits<std::uint64_t>::max() / 4)
      detail::fail_for_memory(bytes, detail::room_for_memory());
    const bool large = options_.huge_pages && bytes >= huge;
    const std::uint64_t unit = large ? huge : image_alignment;
    const std::uint64_t rounded = std::max<std::uint64_t>(1, (bytes + unit - 1) / unit) * unit;
    if (options_.check_limits) {
      const auto room = detail::room_for_memory();
      if (rounded > room.bytes) detail::fail_for_memory(rounded, room);
    }
    auto segment = detail::make_shared<shared_segment>(rounded);
    detail::prefer_node(segment->bytes().data(), rounded, node);
    // Pages that are allocated before they are mapped are small ones. Huge ones must come from a call that
    // can fail: to touch what is not there would be SIGBUS.
    const bool on_request = large && detail::shared_huge_pages() &&
                            ::madvise(segment->bytes().data(), rounded, MADV_HUGEPAGE) == 0 &&
                            detail::kernel_populates(segment->bytes().data());
    if (large && !on_request) detail::populate_huge(segment->bytes());
    if (!on_request) segment->allocate();
    if (!detail::populate(segment->bytes(), options_.threads))
      detail::fail_for_memory(rounded, detail::room_for_memory());
    return shared_block(std::move(segment));
  }
  /// See Memory.
  [[nodiscard]] std::shared_ptr<image_control> make_control(shared_block& block) {
    auto made = controls_->make();
    block.control_ = std::move(made.place);
    return std::move(made.control);
  }

 private:
  std::shared_ptr<detail::shared_controls> controls_;
  shared_memory_block_options options_;
};
static_assert(Memory<shared_memory>, "shared_memory must model Memory");

}  // namespace v1
}  // namespace cairn
