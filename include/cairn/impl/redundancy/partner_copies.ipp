// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/redundancy/partner_copies.hpp>
#include <cairn/redundancy/redundancy_checks.hpp>

#include <cstring>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Whose image this member keeps.
[[nodiscard]] inline std::int32_t kept_by(const redundancy_set& set, std::int32_t member) {
  return member == 0 ? static_cast<std::int32_t>(set.size()) - 1 : member - 1;
}
/// Who keeps the image of this member.
[[nodiscard]] inline std::int32_t keeper_of(const redundancy_set& set, std::int32_t member) {
  return static_cast<std::size_t>(member) + 1 == set.size() ? 0 : member + 1;
}
[[nodiscard]] inline std::vector<redundancy_strip> copied_from(member_range from, std::uint64_t bytes) {
  std::vector<redundancy_strip> strips;
  if (bytes != 0) strips.push_back({.begin = 0, .bytes = bytes, .sources = {from}, .factors = {1}});
  return strips;
}

}  // namespace detail

CAIRN_BODY std::uint64_t partner_copies::overhead(const redundancy_set& set, std::int32_t member) const {
  detail::check_set(set, member, tolerated());
  return set[static_cast<std::size_t>(detail::kept_by(set, member))].bytes;
}
CAIRN_BODY std::vector<redundancy_strip> partner_copies::encoding(const redundancy_set& set,
                                                                  std::int32_t member) const {
  const auto bytes = overhead(set, member);
  return detail::copied_from({.member = detail::kept_by(set, member)}, bytes);
}
CAIRN_BODY std::vector<redundancy_strip> partner_copies::rebuilding(const redundancy_set& set,
                                                                    std::int32_t member,
                                                                    const set_survivors& survivors) const {
  detail::check_set(set, member, tolerated());
  const auto keeper = detail::keeper_of(set, member);
  const auto bytes = set[static_cast<std::size_t>(member)].bytes;
  if (bytes != 0 && !survivors.pieces[static_cast<std::size_t>(keeper)])
    detail::fail_lost(set, member, survivors, tolerated());
  return detail::copied_from({.member = keeper, .piece = true}, bytes);
}
CAIRN_BODY void partner_copies::combine(std::span<const std::uint8_t>,
                                        std::span<const std::byte* const> sources,
                                        std::span<std::byte> out) const {
  if (!out.empty()) std::memcpy(out.data(), sources[0], out.size());
}

}  // namespace v1
}  // namespace cairn
