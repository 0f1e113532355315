// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/plan/near_names.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY near_names::near_names(std::string_view given) : given_(given.substr(0, longest)) {
  const auto letters =
      given_.size() - static_cast<std::size_t>(std::count(given_.begin(), given_.end(), '*'));
  limit_ = letters < 4 ? 1 : std::max<std::size_t>(2, letters / 3);
}

CAIRN_BODY void near_names::offer(std::string_view name) {
  const auto away = distance(name);
  if (away > limit_) return;
  const auto at = std::upper_bound(found_.begin(), found_.end(), away,
                                   [](std::size_t d, const auto& f) { return d < f.first; });
  if (at == found_.end() && found_.size() == max_names) return;
  found_.insert(at, {away, std::string(name)});
  if (found_.size() > max_names) found_.pop_back();
}

CAIRN_BODY std::string near_names::text() const {
  std::string all;
  for (const auto& f : found_) all.append(all.empty() ? "" : ", ").append(f.second);
  return all;
}

CAIRN_BODY std::size_t near_names::distance(std::string_view name) const {
  if (name.size() > longest) return limit_ + 1;
  const auto within = [](std::string_view a, std::string_view b) {
    return !b.empty() && a.size() > b.size() && a.ends_with(b) && a[a.size() - b.size() - 1] == '.';
  };
  if (within(name, given_) || within(given_, name)) return 1;
  std::vector<std::size_t> row(name.size() + 1);
  for (std::size_t n = 0; n <= name.size(); ++n) row[n] = n;
  for (const char c : given_) {
    auto diagonal = row[0];
    if (c != '*') ++row[0];
    for (std::size_t n = 1; n <= name.size(); ++n) {
      const auto above = std::exchange(diagonal, row[n]);
      row[n] = c == '*'
                   ? std::min(row[n], row[n - 1])
                   : std::min({above + (c != '?' && c != name[n - 1] ? 1 : 0), row[n] + 1, row[n - 1] + 1});
    }
  }
  return row[name.size()];
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
