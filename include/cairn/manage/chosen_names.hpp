// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/plan/glob.hpp>
#include <cairn/plan/near_names.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/function_ref.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Names that were chosen by patterns, and whether each pattern chose any: one that chooses none is a slip of the pen, and
/// what the others choose is not what was meant. The patterns outlive this.
class chosen_names {
 public:
  explicit chosen_names(std::span<const std::string> patterns)
      : patterns_(patterns), used_(patterns.size(), false) {}

  /// Whether a name is chosen: all are where there are no patterns. O(patterns x name).
  [[nodiscard]] bool take(std::string_view name) {
    bool chosen = patterns_.empty();
    for (std::size_t i = 0; i < patterns_.size(); ++i)
      if (!(chosen && used_[i]) && glob_matches(patterns_[i], name)) chosen = used_[i] = true;
    return chosen;
  }

  /// @throws usage_error (usage_unknown_name) where a pattern chose none of the names that were asked for. `each_name` calls
  /// what it is given with each of them, for the error's text.
  void require_all_used(function_ref<void(function_ref<void(std::string_view)>)> each_name) const {
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (used_[i]) continue;
      near_names similar(patterns_[i]);
      each_name([&](std::string_view name) { similar.offer(name); });
      const auto names = similar.text();
      fail(error_id::usage_unknown_name,
           "no item matches this pattern" + (names.empty() ? std::string() : "; near it: " + names),
           {.item = patterns_[i].substr(0, 200)});
    }
  }

 private:
  std::span<const std::string> patterns_;
  std::vector<bool> used_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
