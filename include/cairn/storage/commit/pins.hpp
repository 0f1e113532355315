// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/storage/commit/store_look.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Pins, which keep checkpoints from being removed until somebody takes them off: empty objects beside the steps'
/// directories, `pin.00000300`. The names hold all information and are parsed strictly; other names are ignored. Throws
/// the store's errors.
class step_pins {
 public:
  explicit step_pins(any_store store) noexcept : store_(std::move(store)) {}

  /// No error where it is pinned.
  void add(std::int64_t step) const;
  void remove(std::int64_t step) const { store_.remove(key_of(step)); }
  [[nodiscard]] bool has(std::int64_t step) const { return store_.size(key_of(step)).has_value(); }
  /// Ascending. Costs a listing.
  [[nodiscard]] std::vector<std::int64_t> steps() const;

  /// Discards what processes left that died while they pinned.
  void clean(const store_look& look) const;

  [[nodiscard]] static std::string key_of(std::int64_t step);
  /// The step of a pin; nothing for other keys.
  [[nodiscard]] static std::optional<std::int64_t> step_of(std::string_view key) noexcept;

 private:
  static constexpr std::string_view prefix = "pin.";
  any_store store_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/pins.ipp>
#endif
