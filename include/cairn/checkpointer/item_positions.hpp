// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_layout.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/plan/near_names.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The names of a state, in order, and where the items of each lie in this rank's image. One thread at a
/// time.
class item_positions {
 public:
  /// Consecutive names, or parts.
  struct range {
    std::size_t first = 0;
    std::size_t last = 0;
  };
  /// Bytes of the image that belong to one item.
  struct part {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint32_t item = 0;  ///< of the plan
  };

  /// O(1) where structure and layout are those of before, O(n log n) for another structure.
  void set_layout(const state_dict& state, const save_plan& plan,
                  const std::shared_ptr<const image_layout>& layout) {
    if (structure_ != state.structure()) {
      structure_.reset();
      const auto entries = state.entries();
      names_.resize(entries.size());
      for (std::size_t i = 0; i < entries.size(); ++i)
        names_[i] = {entries[i].name, static_cast<std::uint32_t>(i)};
      detail::sort(names_);
      place_.resize(entries.size());
      for (std::size_t i = 0; i < names_.size(); ++i) place_[names_[i].second] = i;
      layout_ = nullptr;
      structure_ = state.structure();
    }
    if (layout_ == layout) return;
    const auto each_late = [&](auto&& visit) {
      for (const auto& at : layout->items)
        if (!at.early && at.bytes != 0) visit(place_.at(plan.items.at(at.item).entry), at);
    };
    layout_ = nullptr;
    first_.assign(names_.size() + 1, 0);
    each_late([&](std::size_t name, const item_placement&) { ++first_[name + 1]; });
    late_ =
        static_cast<std::size_t>(std::count_if(first_.begin(), first_.end(), [](auto n) { return n != 0; }));
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    auto parts = detail::make_shared<vector<part>>(first_.back());
    auto next = first_;
    each_late([&](std::size_t name, const item_placement& at) {
      (*parts)[next[name]++] = {at.begin, at.begin + at.bytes, at.item};
    });
    parts_ = std::move(parts);
    layout_ = layout;
  }
  [[nodiscard]] bool known() const noexcept { return layout_ != nullptr; }
  [[nodiscard]] std::size_t size() const noexcept { return names_.size(); }
  /// Names with items that are not copied before save() returns.
  [[nodiscard]] std::size_t late() const noexcept { return late_; }
  [[nodiscard]] const std::string& name(std::size_t i) const { return names_[i].first; }
  /// The place of an entry of the state among the names.
  [[nodiscard]] std::size_t of_entry(std::size_t entry) const { return place_.at(entry); }

  /// The name itself, or, with a final `*`, all that begin with what stands before it.
  /// @throws usage_error (usage_unknown_name) if there is none.
  [[nodiscard]] range find(std::string_view name) const {
    const auto before = [](const named& a, std::string_view b) { return a.first < b; };
    auto first = std::lower_bound(names_.begin(), names_.end(), name, before);
    auto last = first;
    if (first != names_.end() && first->first == name) {
      ++last;
    } else if (name.ends_with('*')) {
      const auto prefix = name.substr(0, name.size() - 1);
      first = std::lower_bound(names_.begin(), names_.end(), prefix, before);
      last = std::partition_point(first, names_.end(),
                                  [&](const named& a) { return a.first.starts_with(prefix); });
    }
    if (first == last) {
      near_names similar(name);
      for (const auto& n : names_) similar.offer(n.first);
      const auto others = similar.text();
      fail(error_id::usage_unknown_name,
           "before_update was given a name that the state does not have" +
               (others.empty() ? std::string() : "; near it: " + others),
           {.item = std::string(name.substr(0, 200))});
    }
    return {static_cast<std::size_t>(first - names_.begin()),
            static_cast<std::size_t>(last - names_.begin())};
  }
  /// Whether a name has items on this rank that are copied late.
  [[nodiscard]] bool is_late(std::size_t i) const { return first_[i] != first_[i + 1]; }
  /// The parts of the items of all names; parts_of() says which belong to consecutive names.
  [[nodiscard]] const std::shared_ptr<const vector<part>>& parts() const noexcept { return parts_; }
  [[nodiscard]] range parts_of(range names) const { return {first_[names.first], first_[names.last]}; }

 private:
  using named = std::pair<std::string, std::uint32_t>;  // and its index among the entries
  std::optional<std::uint64_t> structure_;
  std::vector<named> names_;        // in order
  std::vector<std::size_t> place_;  // of each entry, in names_
  std::shared_ptr<const image_layout> layout_;
  std::shared_ptr<const vector<part>> parts_;  // by name
  std::vector<std::size_t> first_;             // part of each name, and their number
  std::size_t late_ = 0;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
