// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/redundancy.hpp>

#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace detail {

/// @throws usage_error (usage_bad_option) unless the set has more members than are tolerated, and this one.
void check_set(const redundancy_set& set, std::int32_t member, int tolerated);
/// The image of a member can be had from nowhere. @throws peer_error (peer_lost) naming all ranks of the set whose
/// image or piece is missing
[[noreturn]] void fail_lost(const redundancy_set& set, std::int32_t member, const set_survivors& survivors,
                            int tolerated);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/redundancy/redundancy_checks.ipp>
#endif
