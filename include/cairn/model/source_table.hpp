// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/plan.hpp>
#include <cairn/system/list_view.hpp>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

/// The memory of all items of a plan at one save: a source for each, at its index. Immutable; copies share
/// it, so that saves between which no memory moved are given the same one. Becomes a vector of its own where
/// one is asked for, in O(items).
class source_table {
 public:
  source_table() = default;
  /// `plan`: whose items these are the sources of; null where errors need no names.
  source_table(std::vector<item_source> sources, std::shared_ptr<const save_plan> plan = nullptr);
  source_table(std::initializer_list<item_source> sources)
      : source_table(std::vector<item_source>(sources)) {}

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] const item_source* data() const noexcept { return first_; }
  /// With end(): the sources, in the order of the plan's items.
  [[nodiscard]] const item_source* begin() const noexcept { return first_; }
  /// One past the last source; see begin().
  [[nodiscard]] const item_source* end() const noexcept { return first_ + size_; }
  /// @pre item is below size()
  [[nodiscard]] const item_source& operator[](std::size_t item) const noexcept { return first_[item]; }
  [[nodiscard]] operator detail::list_view<const item_source>() const noexcept { return {first_, size_}; }
  [[nodiscard]] operator std::vector<item_source>() const { return {begin(), end()}; }

  /// The name of an item, for errors; may be empty.
  [[nodiscard]] std::string_view name(std::size_t item) const noexcept;
  /// Whether both are copies of one. O(1).
  friend bool operator==(const source_table& a, const source_table& b) noexcept {
    return a.sources_ == b.sources_;
  }

 private:
  std::shared_ptr<const std::vector<item_source>> sources_;
  const item_source* first_ = nullptr;
  std::size_t size_ = 0;
  std::shared_ptr<const save_plan> plan_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/source_table.ipp>
#endif
