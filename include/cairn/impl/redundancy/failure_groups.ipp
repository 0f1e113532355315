// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/redundancy/failure_groups.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

namespace cairn {
inline namespace v1 {

CAIRN_BODY std::vector<std::vector<std::int32_t>> form_sets(std::span<const std::string> groups,
                                                            std::int32_t sets, int tolerated) {
  const auto ranks = static_cast<std::int32_t>(groups.size());
  if (ranks == 0) return {};
  std::vector<std::int32_t> by_group(groups.size());
  for (std::int32_t rank = 0; rank < ranks; ++rank) by_group[static_cast<std::size_t>(rank)] = rank;
  const auto group_of = [&](std::int32_t rank) -> const std::string& {
    return groups[static_cast<std::size_t>(rank)];
  };
  detail::sort(by_group, [&](std::int32_t a, std::int32_t b) {
    const int order = group_of(a).compare(group_of(b));
    return order != 0 ? order < 0 : a < b;
  });
  std::int32_t largest = 0;
  std::int32_t in_largest = 0;  // a rank of the largest group
  for (std::size_t i = 0; i < by_group.size();) {
    std::size_t end = i;
    while (end < by_group.size() && group_of(by_group[end]) == group_of(by_group[i])) ++end;
    if (static_cast<std::int32_t>(end - i) > largest) {
      largest = static_cast<std::int32_t>(end - i);
      in_largest = by_group[i];
    }
    i = end;
  }
  const std::int64_t count = std::max(std::max(sets, largest), 1);
  const std::int64_t least = std::int64_t{tolerated} + 1;
  if (count * least > ranks)
    fail(error_id::usage_bad_option,
         "ranks cannot be divided into sets of at least " + std::to_string(least) +
             " without two of one failure group: group '" + group_of(in_largest) + "' has " +
             std::to_string(largest) + " of the " + std::to_string(ranks) + " ranks, and no more than " +
             std::to_string(ranks / least) +
             " may be of one group. Use more hosts, name smaller failure groups, or tolerate fewer losses",
         {.rank = in_largest,
          .expected = "at most " + std::to_string(ranks / least) + " ranks of one group",
          .got = std::to_string(largest) + " of group " + group_of(in_largest)});
  // Ranks of one group are behind one another, and no more than there are sets.
  std::vector<std::vector<std::int32_t>> made(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < by_group.size(); ++i) made[i % made.size()].push_back(by_group[i]);
  for (auto& set : made) detail::sort(set);
  detail::sort(made, [](const auto& a, const auto& b) { return a.front() < b.front(); });
  return made;
}

CAIRN_BODY std::string host_failure_group() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0)
    fail(error_id::storage_io, "the name of this host could not be asked for", {});
  return name.data();
}

}  // namespace v1
}  // namespace cairn
