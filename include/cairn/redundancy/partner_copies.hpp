// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/redundancy.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/redundancy/make_redundant_saves.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// A Redundancy: ranks are in pairs, and each keeps a copy of its partner's image, so that one failure group (a host,
/// if nothing else is said) of each pair may be lost. Where the number of ranks is odd, three of them keep copies in a
/// ring. Costs the memory of one more image and its way over the link; nothing is computed.
struct partner_copies {
  using cairn_role = role::redundancy;

  int every = 1;                   ///< see Redundancy
  std::string failure_group = {};  ///< see Redundancy

  // See Redundancy.
  [[nodiscard]] int tolerated() const { return 1; }
  [[nodiscard]] std::int32_t set_count(std::int32_t members) const { return members < 4 ? 1 : members / 2; }
  [[nodiscard]] std::uint64_t overhead(const redundancy_set& set, std::int32_t member) const;
  [[nodiscard]] std::vector<redundancy_strip> encoding(const redundancy_set& set, std::int32_t member) const;
  [[nodiscard]] std::vector<redundancy_strip> rebuilding(const redundancy_set& set, std::int32_t member,
                                                         const set_survivors& survivors) const;
  void combine(std::span<const std::uint8_t> factors, std::span<const std::byte* const> sources,
               std::span<std::byte> out) const;
};
static_assert(Redundancy<partner_copies>);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/redundancy/partner_copies.ipp>
#endif
