// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/stager.hpp>
#include <cairn/stage/host_copy.hpp>
#include <cairn/stage/shared_memory.hpp>
#include <cairn/stage/shared_stager.hpp>
#include <cairn/system/fork_guard.hpp>
#include <cairn/system/owned.hpp>

#include <memory>

namespace cairn {
inline namespace v1 {
namespace detail {
class tier_slots;
}

/// The Stager of a local_tier: threads copy into the images of the tier, which another process can map; where the tier
/// lies on a disk, into two images in memory, of which it is written.
class tier_stager {
 public:
  using cairn_role = role::stager;
  static constexpr bool shareable = true;

  /// `options`: of the threads that copy. @throws usage_error (usage_bad_option)
  tier_stager(std::shared_ptr<detail::tier_slots> slots, host_copy_options options);

  // See Stager.
  [[nodiscard]] staged_image stage(std::shared_ptr<const image_layout> layout, const source_table& sources,
                                   stage_options options, deadline until);
  void prepare(const image_layout& layout, deadline until);
  // See PreparesSources.
  void prepare(const source_table& sources);
  [[nodiscard]] int depth() const noexcept;

 private:
  [[nodiscard]] shared_stager& memory();
  std::shared_ptr<detail::tier_slots> slots_;
  shared_memory controls_;
  host_copy engine_;
  host_copy_options options_;
  detail::owned<shared_stager> memory_;  // for a tier on a disk
  detail::fork_guard process_;
  std::shared_ptr<const image_layout> fitting_layout_;
  source_table fitting_sources_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_INTERPROCESS)
#include <cairn/impl/tiers/tier_stager.ipp>
#endif
