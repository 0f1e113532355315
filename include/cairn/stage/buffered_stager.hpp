// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/copy_engine.hpp>
#include <cairn/concepts/memory.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/stager.hpp>
#include <cairn/model/image_backing.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/stage/buffer_pool.hpp>
#include <cairn/stage/buffered_stager_options.hpp>
#include <cairn/stage/image_sources.hpp>
#include <cairn/stage/memory_budget.hpp>
#include <cairn/system/fork_guard.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/vector.hpp>

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {

/// A Stager that copies images into a bounded pool of buffers, which are allocated once, kept, and
/// reused; a buffer that is too small is replaced. `M` allocates the buffers, `Engine` fills them. Memory
/// beyond the state: the size of the largest image times the number of images that existed at once (times
/// depth after prepare()).
template <Memory M, CopyEngine<M> Engine>
class buffered_stager {
 public:
  using cairn_role = role::stager;
  using memory_type = M;
  /// Whether another process can read the images.
  static constexpr bool shareable = M::shareable;

  buffered_stager() : buffered_stager(buffered_stager_options{}) {}
  /// @throws usage_error (usage_bad_option) if the depth is below 1.
  explicit buffered_stager(buffered_stager_options options, Engine engine = Engine(), M memory = M())
      : memory_(std::move(memory)),
        engine_(std::move(engine)),
        budget_(options.budget),
        pool_(detail::make_shared<pool_type>(options.depth, on_return(options.budget))),
        member_(budget_.join([kept = std::weak_ptr<pool_type>(pool_)] {
          if (const auto pool = kept.lock()) pool->free_kept();
        })) {}

  /// See Stager. The calling thread helps to copy. @throws also usage_error where the size of a source is
  /// not that of its place.
  [[nodiscard]] staged_image stage(std::shared_ptr<const image_layout> layout, const source_table& sources,
                                   stage_options options, deadline until) {
    check_process();
    check(layout, sources);
    auto lease = pool_->acquire(until);
    fit(lease, *layout, until);
    auto control = memory_.make_control(lease.block().block);
    const auto image = lease.block().bytes().first(layout->bytes);
    const auto digests = digests_in(lease.block().bytes(), *layout);
    auto fill =
        detail::make_shared<leased_fill>(std::move(lease), layout, sources, options, image, digests, control);
    engine_.copy(fill, until);
    return {std::move(layout), std::move(control), image, digests, options.digest && Engine::digests,
            std::move(fill)};
  }

  /// See Stager. Allocates all buffers of the pool that are not in use, as far as the budget allows.
  void prepare(const image_layout& layout, deadline) {
    check_process();
    detail::vector<lease_type> leases;
    for (int i = 0; i < depth(); ++i) {
      // What is in use may be so until the caller goes on; its next image fits it.
      auto free = pool_->acquire_free();
      if (!free) return;
      leases.push_back(std::move(*free));
      // Never waits for the budget: that would hold buffers while others wait for them.
      if (!fit(leases.back(), layout, {})) return;
    }
  }
  /// See PreparesSources.
  void prepare(const source_table& sources)
    requires PreparingCopyEngine<Engine>
  {
    check_process();
    engine_.prepare(sources);
  }
  [[nodiscard]] int depth() const noexcept { return pool_->depth(); }

  /// See StreamOrderedStager.
  template <class Stream>
    requires StreamOrderedCopyEngine<Engine, Stream>
  void before_update(Stream stream, int device, deadline until) {
    engine_.before_update(stream, device, until);
  }

  /// See BringsDeviceAccess.
  [[nodiscard]] auto device_memory() const
    requires DeviceCopyEngine<Engine>
  {
    return engine_.device_memory();
  }

 private:
  /// A buffer and its share of the budget, which is given back after the buffer.
  struct held_block {
    memory_budget::share share;
    typename M::block_type block;
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return block.bytes(); }
  };
  using pool_type = detail::buffer_pool<held_block>;
  using lease_type = typename pool_type::lease;

  static std::function<void()> on_return(const memory_budget& budget) {
    if (!budget.limited()) return {};
    return [budget] { budget.kept(); };
  }

  struct leased_fill final : image_fill {
    template <class... Arguments>
    explicit leased_fill(lease_type held, Arguments&&... arguments)
        : image_fill(std::forward<Arguments>(arguments)...), lease(std::move(held)) {}
    [[nodiscard]] std::optional<shared_image> shared() const override {
      if constexpr (M::shareable)
        return lease.block().block.shared(this->layout().bytes);
      else
        return std::nullopt;
    }
    lease_type lease;
  };

  // A child after fork() has neither the engine's threads nor those that give buffers back.
  void check_process() const { process_.check("a stager was used in a child after fork(); make one there"); }
  // Neither changes: what fitted, fits.
  void check(const std::shared_ptr<const image_layout>& layout, const source_table& sources) {
    if (layout == fitting_layout_ && sources == fitting_sources_) return;
    check_sources(*layout, sources);
    for (const auto& source : sources) engine_.check(source);
    fitting_layout_ = layout;
    fitting_sources_ = sources;
  }
  // Digests lie behind the image, so that whoever can see the block sees them.
  static std::uint64_t bytes_for(const image_layout& layout) {
    return layout.bytes + layout.blocks * sizeof(std::uint64_t);
  }
  static std::span<std::uint64_t> digests_in(std::span<std::byte> block, const image_layout& layout) {
    if (layout.blocks == 0) return {};
    return {new (block.data() + layout.bytes) std::uint64_t[layout.blocks],
            static_cast<std::size_t>(layout.blocks)};
  }
  /// Without a deadline, false if it would have to wait.
  bool fit(lease_type& lease, const image_layout& layout, std::optional<deadline> until) {
    const std::uint64_t needed = bytes_for(layout);
    if (lease.holds(needed)) return true;
    // A size that changed once may change again: leave a little room, so that not every save allocates.
    std::uint64_t bytes = needed + (lease.empty() ? 0 : needed / 64 + 64 * 1024);
    if (memory_budget::rounded(bytes) > budget_.limit()) bytes = needed;
    lease.clear();
    auto share = until ? budget_.take(bytes, *until) : budget_.try_take(bytes);
    if (budget_.limited() && share.bytes() == 0) return false;
    lease.put({std::move(share), memory_.allocate(bytes)});
    return true;
  }

  M memory_;
  Engine engine_;
  detail::fork_guard process_;
  memory_budget budget_;
  std::shared_ptr<pool_type> pool_;
  std::shared_ptr<void> member_;
  std::shared_ptr<const image_layout> fitting_layout_;
  source_table fitting_sources_;
};

}  // namespace v1
}  // namespace cairn

// The default one comes along.
#include <cairn/stage/heap_stager.hpp>
