// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_peer_link.hpp>
#include <cairn/concepts/peer_link.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn {
inline namespace v1 {

CAIRN_BODY void any_peer_link::offer(const offer_key& key,
                                     std::span<const std::span<const std::byte>> parts) {
  face_->offer(key, parts);
}
CAIRN_BODY void any_peer_link::withdraw(const offer_key& key, deadline until) noexcept {
  face_->withdraw(key, until);
}
CAIRN_BODY std::uint64_t any_peer_link::await_offer(int peer, const offer_key& key, deadline until) {
  return face_->await_offer(peer, key, until);
}
CAIRN_BODY std::uint64_t any_peer_link::fetch(int peer, const offer_key& key,
                                              std::span<const fetch_range> ranges, deadline until) {
  return face_->fetch(peer, key, ranges, until);
}
CAIRN_BODY bool any_peer_link::is_gone(int peer) const noexcept {
  return face_->is_gone(peer);
}

static_assert(PeerLink<any_peer_link>);

}  // namespace v1
}  // namespace cairn
