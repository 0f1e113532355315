// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>
#include <cairn/system/shared.hpp>

#include <cstdint>
#include <memory>
#include <utility>

namespace cairn {
inline namespace v1 {

/// A limit for the memory of the buffers of several stagers, so that two states in one process (a policy
/// and a critic, a model and its average) do not need the sum of both images:
///
/// `cairn::memory_budget budget{8ull << 30};`
/// `cairn::heap_stager{{.budget = budget}}  // of each checkpointer`
///
/// - The buffers of all stagers with copies of one budget never hold more bytes together.
/// - A stager that needs a buffer first takes unused budget, then frees buffers that other stagers keep
///   for later, and then waits, in the order of requests, until an earlier save has ended, at most until
///   the save's deadline. An image that is larger than the whole budget causes an error at once.
/// - Saves that are being written end without the training thread, except overlapped saves, which wait
///   for before_update(). If the budget does not hold both images, call before_update() on the one
///   checkpointer before save() on the other.
/// - A buffer counts with its rounded size: a multiple of 2 MiB, or below 2 MiB of 4 KiB.
///
/// Copies share the budget. A default-constructed budget has no limit. Any thread.
class memory_budget {
 public:
  /// No limit, and nothing is counted.
  memory_budget() = default;
  /// @throws usage_error (usage_bad_option) if `bytes` is zero.
  explicit memory_budget(std::uint64_t bytes);

  /// False for a budget without a limit.
  [[nodiscard]] bool limited() const noexcept { return state_ != nullptr; }
  /// The limit in bytes; the largest number where there is no limit.
  [[nodiscard]] std::uint64_t limit() const noexcept;
  /// The bytes of all buffers, in use or kept.
  [[nodiscard]] std::uint64_t used() const;

 private:
  struct state;

 public:
  /// For stagers: a share of the budget, which the destructor gives back.
  class share {
   public:
    share() = default;
    share(share&& other) noexcept;
    share& operator=(share&& other) noexcept;
    ~share();
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

   private:
    friend class memory_budget;
    share(std::shared_ptr<state> from, std::uint64_t bytes) noexcept
        : state_(std::move(from)), bytes_(bytes) {}
    std::shared_ptr<state> state_;
    std::uint64_t bytes_ = 0;
  };

  /// For stagers: the rounded size with which a buffer of `needed` bytes counts.
  [[nodiscard]] static std::uint64_t rounded(std::uint64_t needed) noexcept;
  /// For stagers: registers `free_kept`, which frees the buffers that the stager keeps for later. Other
  /// stagers that need memory call it, on any thread, until the returned handle is destroyed.
  template <class FreeKept>
  [[nodiscard]] std::shared_ptr<void> join(FreeKept free_kept) const {
    return add(detail::make_shared<member_of<FreeKept>>(std::move(free_kept)));
  }
  /// For stagers: says that a buffer is kept but no longer in use, so that a waiting stager may have it
  /// freed.
  void kept() const;
  /// For stagers: takes a share of `needed` bytes, rounded. @throws storage_error (storage_limit) if the
  /// whole budget is smaller, timeout_error (timeout_staging) if the bytes did not become free in time.
  [[nodiscard]] share take(std::uint64_t needed, deadline until) const;
  /// For stagers: the same without waiting and freeing; an empty share if too few bytes are unused.
  [[nodiscard]] share try_take(std::uint64_t needed) const;

 private:
  struct member {
    virtual ~member() = default;
    virtual void free_kept() = 0;
  };
  template <class FreeKept>
  struct member_of final : member {
    explicit member_of(FreeKept call) : call_(std::move(call)) {}
    void free_kept() override { call_(); }
    FreeKept call_;
  };
  [[nodiscard]] std::shared_ptr<void> add(std::shared_ptr<member> stager) const;
  void check(std::uint64_t needed) const;

  std::shared_ptr<state> state_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stage/memory_budget.ipp>
#endif
