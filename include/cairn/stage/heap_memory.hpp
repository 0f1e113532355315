// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/tensor_view.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace cairn {
inline namespace v1 {

class image_control;

/// Options of heap_memory.
struct heap_memory_options {
  /// The number of threads that touch a new buffer's pages; 0: one for each core that this process may
  /// use, at most 8.
  int threads = 0;
  /// Use huge pages (MADV_HUGEPAGE, see madvise(2)), which cause fewer faults and are faster to copy to.
  bool huge_pages = true;
  /// Check the limits of machine, control group and process before a buffer is allocated.
  bool check_limits = true;
  /// Keep the buffers from being swapped (mlock), within RLIMIT_MEMLOCK.
  bool lock = false;
};

/// An anonymous private mapping. Movable; unmapped by the destructor.
class heap_block {
 public:
  heap_block(std::byte* data, std::size_t bytes) noexcept : data_(data), bytes_(bytes) {}
  heap_block(heap_block&& other) noexcept;
  heap_block& operator=(heap_block&& other) noexcept;
  ~heap_block();
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, bytes_}; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

/// A Memory of ordinary pages of this process, which are mapped for each block and touched in parallel.
class heap_memory {
 public:
  using block_type = heap_block;
  static constexpr memory_space space = memory_space::host;
  static constexpr bool shareable = false;

  heap_memory() = default;
  explicit heap_memory(heap_memory_options options) noexcept : options_(options) {}

  /// See Memory. Cost about 0.2 s for each GiB and core with small pages. `node`: of NUMA, whose pages are
  /// preferred; negative: those of the cores that touch them.
  [[nodiscard]] heap_block allocate(std::uint64_t bytes, int node = -1);
  /// See Memory.
  [[nodiscard]] std::shared_ptr<image_control> make_control(heap_block&);

 private:
  heap_memory_options options_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stage/heap_memory.ipp>
#endif
