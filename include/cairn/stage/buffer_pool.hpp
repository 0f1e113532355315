// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/shared_event.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// At most `depth` leases on blocks; a lease that ends leaves its block for the next. Leases keep the pool
/// alive. Any thread.
template <class Block>
class buffer_pool : public std::enable_shared_from_this<buffer_pool<Block>> {
 public:
  /// `on_return` is called when a lease has ended; must not throw.
  explicit buffer_pool(int depth, std::function<void()> on_return = {})
      : depth_(depth), on_return_(std::move(on_return)), free_(depth) {
    if (depth < 1)
      fail(error_id::usage_bad_option, "the depth of a stager is the number of its buffers: at least 1",
           {.got = std::to_string(depth)});
    blocks_.reserve(static_cast<std::size_t>(depth));
  }

  /// The right to one block, which may be empty as yet.
  class lease {
   public:
    lease(std::shared_ptr<buffer_pool> pool, std::optional<Block> block) noexcept
        : pool_(std::move(pool)), block_(std::move(block)) {}
    lease(lease&& other) noexcept
        : pool_(std::move(other.pool_)), block_(std::exchange(other.block_, std::nullopt)) {}
    lease& operator=(lease&&) = delete;
    ~lease() {
      if (pool_ != nullptr) pool_->give_back(std::move(block_));
    }
    [[nodiscard]] bool empty() const noexcept { return !block_; }
    [[nodiscard]] bool holds(std::uint64_t bytes) const noexcept {
      return block_ && block_->bytes().size() >= bytes;
    }
    [[nodiscard]] Block& block() noexcept { return *block_; }
    [[nodiscard]] const Block& block() const noexcept { return *block_; }
    void clear() noexcept { block_.reset(); }
    void put(Block block) { block_.emplace(std::move(block)); }

   private:
    std::shared_ptr<buffer_pool> pool_;
    std::optional<Block> block_;
  };

  /// Waits for a lease. @throws timeout_error (timeout_staging).
  [[nodiscard]] lease acquire(deadline until) {
    for (;;) {
      const auto seen = returned_.current();
      if (auto taken = acquire_free()) return std::move(*taken);
      if (until.passed())
        fail(error_id::timeout_staging,
             "no buffer of the stager became free in time: an earlier save is still being written; save less "
             "often, or "
             "give the stager more depth",
             {.expected = "less than " + std::to_string(depth_) + " images alive",
              .got = std::to_string(depth_)});
      returned_.wait(seen, until);
    }
  }
  /// Null where all are in use.
  [[nodiscard]] std::optional<lease> acquire_free() {
    const std::lock_guard lock(mutex_);
    if (free_ == 0) return std::nullopt;
    --free_;
    std::optional<Block> block;
    if (!blocks_.empty()) {
      block.emplace(std::move(blocks_.back()));
      blocks_.pop_back();
    }
    return lease(this->shared_from_this(), std::move(block));
  }
  [[nodiscard]] int depth() const noexcept { return depth_; }
  /// Frees the blocks that no lease holds.
  void free_kept() {
    vector<Block> freed;
    freed.reserve(static_cast<std::size_t>(depth_));
    const std::lock_guard lock(mutex_);
    freed.swap(blocks_);
  }

 private:
  void give_back(std::optional<Block> block) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (block) blocks_.push_back(std::move(*block));
      ++free_;
    }
    returned_.notify();
    if (on_return_) on_return_();
  }

  const int depth_;
  const std::function<void()> on_return_;
  std::mutex mutex_;
  shared_event returned_;
  vector<Block> blocks_;  // of leases that ended; room for all is reserved
  int free_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
