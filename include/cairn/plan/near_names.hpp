// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What somebody may have meant who gave a name, or a pattern (see glob_matches), that nothing has: for
/// messages. One thread.
class near_names {
 public:
  explicit near_names(std::string_view given);

  /// O(given x name).
  void offer(std::string_view name);
  /// At most three, the nearest first: "a, b"; empty: there is none.
  [[nodiscard]] std::string text() const;

 private:
  static constexpr std::size_t max_names = 3;
  static constexpr std::size_t longest = 200;

  /// Characters to add, drop or change, where `*` stands for any; a name in another scope is one away.
  [[nodiscard]] std::size_t distance(std::string_view name) const;

  std::string_view given_;
  std::size_t limit_;
  vector<std::pair<std::size_t, std::string>> found_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/plan/near_names.ipp>
#endif
