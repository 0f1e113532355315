// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Divides ranks into sets, none of which has two members of one failure group, so that the loss of a whole group costs
/// each set one member at most. `groups[rank]` is the name of the rank's group; `sets` of them are wanted
/// (Redundancy::set_count), and there are more where a group has more ranks than that. Sizes differ by at most one,
/// and are larger than `tolerated`. Each rank is in one set; ranks ascend in a set, and sets by their first rank. The same on all
/// ranks for the same arguments. O(n log n): some milliseconds for 10,000 ranks.
/// @throws usage_error (usage_bad_option) naming the group that has too many ranks, where there are no such sets
[[nodiscard]] std::vector<std::vector<std::int32_t>> form_sets(std::span<const std::string> groups,
                                                               std::int32_t sets, int tolerated);

/// The name of this host, which is a rank's failure group where none is given. @throws storage_error (storage_io)
[[nodiscard]] std::string host_failure_group();

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/redundancy/failure_groups.ipp>
#endif
