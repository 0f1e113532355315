// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::links
#pragma once
#include <cairn/comm/socket/socket_service.hpp>
#include <cairn/system/deadline.hpp>

#include <cstdint>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

// How the ranks of a job meet.

/// Rank 0: waits until all ranks have come. @throws peer_error (peer_lost), timeout_error (timeout_peer), which the
/// others throw, too
void gather(socket_service& in, deadline until);

/// What a try to reach rank 0 came to.
struct found_rank_0 {
  bool came = false;      ///< this rank was admitted
  bool refused = false;   ///< something is there, and has not proved to be of this job
  std::string text = {};  ///< what was found, for people
};
/// Another rank: tries to reach rank 0 at a numeric address. @throws usage_error (usage_bad_option) where rank 0
/// refuses this rank
[[nodiscard]] found_rank_0 come(socket_service& in, const std::string& host, std::uint16_t port,
                                std::uint64_t listener, deadline until);

/// After come(): waits until all ranks have come. @throws as gather() on rank 0
void await_begin(socket_service& in, deadline until);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_LINKS)
#include <cairn/impl/comm/socket/socket_gathering.ipp>
#endif
