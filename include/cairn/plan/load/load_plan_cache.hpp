// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/plan.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Everything that a rank's plan of a load depends on, except the manifest.
struct load_plan_key {
  std::int64_t step = 0;        ///< of the checkpoint
  std::uint64_t structure = 0;  ///< state_dict::structure()
  std::uint64_t planner = 0;    ///< fingerprint of the planner
  std::int32_t world_size = 1;  ///< ranks that load
  std::int32_t rank = 0;
  bool strict = true;             ///< whether missing and unexpected items are errors
  std::vector<std::string> only;  ///< patterns, in order
  friend bool operator==(const load_plan_key&, const load_plan_key&) = default;
};

/// A plan of a load that is kept for later loads. Holds no pointer into the user's memory.
struct cached_load_plan {
  load_plan plan;
  double seconds = 0;  ///< that planning cost
};

/// The plans of the last few loads of one checkpointer. A plan is found only for the manifest that it was
/// made for, whose bytes are kept and compared: a checkpoint that was saved again under the same step has
/// another manifest. Ranks plan their loads without messages, so that it does not matter whether all of
/// them find their plans. One thread at a time; a plan that was found stays valid when the cache drops
/// it.
class load_plan_cache {
 public:
  /// Keeps up to `limit` plans, which with their manifests take up to `bytes` of memory; a larger plan is
  /// not kept.
  explicit load_plan_cache(std::size_t limit = 4, std::size_t bytes = std::size_t{64} << 20)
      : limit_(limit), max_bytes_(bytes) {}

  /// The plan, or nullptr. O(limit + manifest).
  [[nodiscard]] std::shared_ptr<const cached_load_plan> find(const load_plan_key& key,
                                                             std::span<const std::byte> manifest);
  /// Adds a plan. It replaces those with the same key and, if memory is needed, the least recently used ones.
  void put(const load_plan_key& key, std::span<const std::byte> manifest, cached_load_plan plan);
  /// Drops all plans and manifests; plans that somebody holds stay valid.
  void clear() noexcept { slots_.clear(); }
  [[nodiscard]] std::size_t size() const noexcept { return slots_.size(); }
  /// The memory of the plans and manifests.
  [[nodiscard]] std::size_t bytes() const noexcept;

 private:
  struct slot {
    load_plan_key key;
    std::vector<std::byte> manifest;
    std::size_t bytes = 0;
    std::shared_ptr<const cached_load_plan> plan;
  };
  [[nodiscard]] static std::size_t bytes_of(const load_plan& plan) noexcept;

  std::size_t limit_;
  std::size_t max_bytes_;
  detail::vector<slot> slots_;  ///< the one used last at the end
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/plan/load/load_plan_cache.ipp>
#endif
