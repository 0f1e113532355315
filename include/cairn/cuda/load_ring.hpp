// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/cuda/basic_pinned.hpp>
#include <cairn/stage/heap_memory.hpp>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace cuda {
namespace detail {

/// Pinned buffers between one use and the next: to pin them takes longer than to fill them from the page
/// cache. Any thread.
template <DeviceRuntime R>
class load_ring {
 public:
  using block_type = typename basic_pinned<heap_memory, R>::block_type;

  /// What there is, of at most so many bytes together; the rest is freed.
  [[nodiscard]] std::vector<block_type> take(std::uint64_t bytes) {
    std::vector<block_type> kept;
    {
      const std::lock_guard lock(mutex_);
      kept.swap(blocks_);
    }
    while (!kept.empty() && bytes_of(kept) > bytes) kept.pop_back();
    return kept;
  }
  void give(block_type block) {
    const std::lock_guard lock(mutex_);
    blocks_.push_back(std::move(block));
  }

 private:
  static std::uint64_t bytes_of(const std::vector<block_type>& blocks) noexcept {
    std::uint64_t sum = 0;
    for (const auto& b : blocks) sum += b.bytes().size();
    return sum;
  }
  std::mutex mutex_;
  std::vector<block_type> blocks_;
};

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
