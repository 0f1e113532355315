// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_layout.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/plan/source_cache.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Everything that a finished plan and its layout depend on.
struct plan_key {
  std::uint64_t structure = 0;  ///< state_dict::structure()
  std::uint64_t planner = 0;    ///< fingerprint of the planner
  std::uint64_t writer = 0;     ///< fingerprint of the writer
  std::int32_t world_size = 1;  ///< ranks that save
  std::int32_t rank = 0;
  friend bool operator==(const plan_key&, const plan_key&) = default;
};

/// A finished plan that is kept for later saves.
struct cached_plan {
  std::shared_ptr<const save_plan> plan;
  std::uint64_t digest = 0;                    ///< digest_of(plan)
  std::shared_ptr<const metadata> stored;      ///< on the coordinator only
  std::shared_ptr<const image_layout> layout;  ///< for `bytes_sizes`
  std::vector<std::uint64_t> bytes_sizes;      ///< of the plan's bytes items, in order, when it was laid out
  std::shared_ptr<source_cache> sources;       ///< where the items lie; asked anew at each save
  double seconds = 0;                          ///< that planning cost, messages included
  std::size_t bytes = 0;  ///< what it counts in the cache: of the summary that all ranks have, alike on all
};

/// The plans of the last few structures that one checkpointer saved. Each structure (the model, the
/// optimizer, the state of an evaluation) has its own entry, so that saving one of them does not drop the
/// plan of another. Which entry is dropped depends only on the order of calls and on cached_plan::bytes,
/// so that ranks that make the same calls hit and miss together. The memory of a plan on one rank must
/// not count: a rank that has dropped a plan that the others have would wait for them in vain. One thread
/// at a time; a plan that was found stays valid when the cache drops it.
class plan_cache {
 public:
  /// Keeps up to `limit` plans that count up to `bytes` together, and always the last one; a limit of 0
  /// keeps nothing.
  explicit plan_cache(std::size_t limit = 8, std::size_t bytes = std::size_t{64} << 20)
      : limit_(limit), max_bytes_(bytes) {}

  /// The plan of a key, or nullptr. O(limit), without allocation.
  [[nodiscard]] std::shared_ptr<const cached_plan> find(const plan_key& key);
  /// Adds a plan. It replaces an earlier plan with the same key, or else the least recently used one.
  /// Called after all ranks have agreed on the plan.
  std::shared_ptr<const cached_plan> put(const plan_key& key, cached_plan plan);
  /// Drops the plan of this key, if there is one.
  void erase(const plan_key& key);
  /// Drops all plans; those that somebody holds stay valid. The counts of hits and misses stay.
  void clear() noexcept { slots_.clear(); }
  [[nodiscard]] std::size_t size() const noexcept { return slots_.size(); }
  /// The bytes with which its plans count.
  [[nodiscard]] std::size_t bytes() const noexcept;
  /// The numbers of calls of find() that found a plan, and that found none.
  [[nodiscard]] std::uint64_t hits() const noexcept { return hits_; }
  /// Calls of find() that found no plan.
  [[nodiscard]] std::uint64_t misses() const noexcept { return misses_; }

 private:
  struct slot {
    plan_key key;
    std::shared_ptr<const cached_plan> plan;
  };
  slot* find_slot(const plan_key& key);
  std::size_t limit_;
  std::size_t max_bytes_;
  std::uint64_t hits_ = 0;
  std::uint64_t misses_ = 0;
  detail::vector<slot> slots_;  ///< the one used last at the end
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/plan/plan_cache.ipp>
#endif
