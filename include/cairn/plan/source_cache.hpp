// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_planner.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Where the items of a plan lie, from save to save. What a planner resolves by binding (see
/// resolves_by_binding) is kept as long as the state's entries are bound to the same memory: then only
/// containers are asked for their address and size, and only what moved is resolved anew. One thread at a
/// time.
class source_cache {
 public:
  /// Finds the memory of all items, now. O(items), O(containers) where the bindings are those of before.
  /// @throws what resolve() throws.
  void refresh(any_save_planner& planner, const state_dict& state,
               const std::shared_ptr<const save_plan>& plan);

  /// What the last refresh() found; empty before. Copies stay as they are.
  [[nodiscard]] const source_table& sources() const noexcept { return sources_; }
  /// The sizes of the plan's bytes items, in order: they may differ from save to save.
  [[nodiscard]] const std::vector<std::uint64_t>& bytes_sizes() const noexcept { return bytes_sizes_; }
  /// The sizes of all items, as stored.
  [[nodiscard]] std::vector<std::uint64_t> stored_sizes(const save_plan& plan) const;

 private:
  /// An item in a container, and what that said last.
  struct watched {
    void* container = nullptr;
    void* (*data)(void*) = nullptr;
    std::uint64_t (*count)(void*) = nullptr;
    void* address = nullptr;
    std::uint64_t elements = 0;
    std::size_t item = 0;

    /// Asks the container; true if it says something else than before.
    bool moved();
  };

  void resolve_all(any_save_planner& planner, const state_dict& state,
                   const std::shared_ptr<const save_plan>& plan);
  void resolve_moved(any_save_planner& planner, const state_dict& state,
                     const std::shared_ptr<const save_plan>& plan);
  void keep(std::vector<item_source> sources, const std::shared_ptr<const save_plan>& plan);

  std::shared_ptr<const void> bindings_;  // of the state; null: nothing is known
  std::shared_ptr<const save_plan> plan_;
  source_table sources_;
  detail::vector<watched> watched_;
  std::vector<std::uint64_t> bytes_sizes_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/plan/source_cache.ipp>
#endif
