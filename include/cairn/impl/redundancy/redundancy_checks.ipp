// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/redundancy/redundancy_checks.hpp>
#include <cairn/system/error.hpp>

#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void check_set(const redundancy_set& set, std::int32_t member, int tolerated) {
  if (set.size() <= static_cast<std::size_t>(tolerated))
    fail(error_id::usage_bad_option, "a set of ranks has more members than may be lost of it",
         {.expected = "more than " + std::to_string(tolerated), .got = std::to_string(set.size())});
  if (member < 0 || static_cast<std::size_t>(member) >= set.size())
    fail(error_id::usage_bad_option, "a member of a set of ranks is named by its place in it",
         {.expected = "less than " + std::to_string(set.size()), .got = std::to_string(member)});
}

CAIRN_BODY void fail_lost(const redundancy_set& set, std::int32_t member, const set_survivors& survivors,
                          int tolerated) {
  const auto ranks = [&](const std::vector<bool>& there) {
    std::string text;
    for (std::size_t i = 0; i < set.size(); ++i)
      if (!there[i]) text += (text.empty() ? "" : ", ") + std::to_string(set[i].rank);
    return text.empty() ? std::string("none") : text;
  };
  const auto rank = set[static_cast<std::size_t>(member)].rank;
  fail(error_id::peer_lost,
       "the image of a rank cannot be rebuilt: of its set, the images of ranks " + ranks(survivors.images) +
           " and the pieces of ranks " + ranks(survivors.pieces) + " are missing, and what is left of " +
           std::to_string(set.size()) + " ranks makes up for " + std::to_string(tolerated) +
           " of them that are lost; load an earlier step",
       {.rank = rank});
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
