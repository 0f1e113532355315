// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/plan/glob.hpp>
#include <cairn/system/algorithm.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {

CAIRN_BODY bool glob_matches(std::string_view pattern, std::string_view name) noexcept {
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;
  std::size_t resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p, ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

CAIRN_BODY bool is_wanted(std::span<const std::string> only, std::string_view name) noexcept {
  return only.empty() || detail::any_of(only, [&](const auto& p) { return glob_matches(p, name); });
}

}  // namespace v1
}  // namespace cairn
