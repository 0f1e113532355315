// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/copy_engine.hpp>
#include <cairn/stage/image_sources.hpp>
#include <cairn/system/error.hpp>
#include <cairn/tiers/tier_slots.hpp>
#include <cairn/tiers/tier_stager.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Digests lie behind the image.
[[nodiscard]] inline std::uint64_t tier_bytes_for(const image_layout& layout) noexcept {
  return layout.bytes + layout.blocks * sizeof(std::uint64_t);
}

/// @throws usage_error (usage_bad_option)
inline void refuse_devices(const source_table& sources) {
  for (const auto& source : sources)
    if (source.view.space == memory_space::device)
      fail(error_id::usage_bad_option,
           "a tensor lies in device memory, of which no tier holds images yet: leave the tier out and pass "
           "cuda::pinned_stager, or give the state tensors that lie in host memory");
}

struct tier_fill final : image_fill {
  template <class... Arguments>
  explicit tier_fill(tier_slots::lease held, Arguments&&... arguments)
      : image_fill(std::forward<Arguments>(arguments)...), lease(std::move(held)) {}
  [[nodiscard]] std::optional<shared_image> shared() const override {
    return lease.block().shared(this->layout().bytes);
  }
  tier_slots::lease lease;
};

}  // namespace detail

CAIRN_BODY tier_stager::tier_stager(std::shared_ptr<detail::tier_slots> slots, host_copy_options options)
    : slots_(std::move(slots)), engine_(options), options_(std::move(options)) {}

CAIRN_BODY staged_image tier_stager::stage(std::shared_ptr<const image_layout> layout,
                                           const source_table& sources, stage_options options,
                                           deadline until) {
  process_.check("a stager was used in a child after fork(); make one there");
  detail::refuse_devices(sources);
  if (slots_->directory().on_disk()) return memory().stage(std::move(layout), sources, options, until);
  if (layout != fitting_layout_ || !(sources == fitting_sources_)) {
    check_sources(*layout, sources);
    for (const auto& source : sources) engine_.check(source);
    fitting_layout_ = layout;
    fitting_sources_ = sources;
  }
  auto lease = slots_->acquire(detail::tier_bytes_for(*layout), until);
  auto control = controls_.make_control(lease.block());
  const auto block = lease.block().bytes();
  const auto image = block.first(layout->bytes);
  std::span<std::uint64_t> digests;
  if (layout->blocks != 0)
    digests = {new (block.data() + layout->bytes) std::uint64_t[layout->blocks],
               static_cast<std::size_t>(layout->blocks)};
  auto fill = std::make_shared<detail::tier_fill>(std::move(lease), layout, sources, options, image, digests,
                                                  control);
  engine_.copy(fill, until);
  return {std::move(layout), std::move(control), image, digests, options.digest, std::move(fill)};
}
CAIRN_BODY void tier_stager::prepare(const image_layout& layout, deadline until) {
  process_.check("a stager was used in a child after fork(); make one there");
  if (slots_->directory().on_disk()) return memory().prepare(layout, until);
  slots_->reserve(detail::tier_bytes_for(layout), until);
}
CAIRN_BODY void tier_stager::prepare(const source_table& sources) {
  process_.check("a stager was used in a child after fork(); make one there");
  if (slots_->directory().on_disk()) return memory().prepare(sources);
  engine_.prepare(sources);
}
CAIRN_BODY shared_stager& tier_stager::memory() {
  if (!memory_)
    memory_ = detail::make_owned<shared_stager>(buffered_stager_options{.depth = 2}, host_copy(options_));
  return *memory_;
}
CAIRN_BODY int tier_stager::depth() const noexcept {
  return slots_->depth();
}

}  // namespace v1
}  // namespace cairn
