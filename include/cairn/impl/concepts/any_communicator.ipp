// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_communicator.hpp>
#include <cairn/concepts/communicator.hpp>
#include <cairn/concepts/roles.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY void any_communicator::send(int to, std::span<const std::byte> bytes, deadline until) {
  face_->send(to, bytes, until);
}
CAIRN_BODY std::vector<std::byte> any_communicator::receive(int from, deadline until) {
  return face_->receive(from, until);
}
CAIRN_BODY void any_communicator::lend(int to, const lent_message& message, deadline until) {
  face_->lend(to, message, until);
}
CAIRN_BODY borrowed_message any_communicator::borrow(int from, deadline until) {
  return face_->borrow(from, until);
}
CAIRN_BODY borrowed_message any_communicator::borrow_into(int from, std::size_t first,
                                                          std::span<std::byte> rest, deadline until) {
  return face_->borrow_into(from, first, rest, until);
}
CAIRN_BODY std::shared_ptr<const peer_watch> any_communicator::watch_peers() const {
  return face_->watch_peers();
}

static_assert(ZeroCopyCommunicator<any_communicator> && LandsMessages<any_communicator> &&
              DetectsLostPeers<any_communicator>);

}  // namespace v1
}  // namespace cairn
