// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/socket/socket_rendezvous.hpp>
#include <cairn/comm/socket/socket_world.hpp>
#include <cairn/comm/socket_communicator.hpp>
#include <cairn/system/error.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY socket_communicator::socket_communicator(const socket_job& job, const socket_options& options)
    : world_(detail::meet(job, options)) {}
CAIRN_BODY socket_communicator::socket_communicator(socket_communicator&& other) noexcept = default;
CAIRN_BODY socket_communicator& socket_communicator::operator=(socket_communicator&& other) noexcept =
    default;
CAIRN_BODY socket_communicator::~socket_communicator() = default;

CAIRN_BODY detail::socket_world& socket_communicator::world() const {
  if (world_ == nullptr) fail(error_id::usage_closed, "this communicator was moved from");
  return *world_;
}
CAIRN_BODY int socket_communicator::rank() const {
  return world().rank();
}
CAIRN_BODY int socket_communicator::size() const {
  return world().size();
}
CAIRN_BODY void socket_communicator::send(int to, std::span<const std::byte> bytes, deadline until) {
  world().send(to, bytes, until);
}
CAIRN_BODY std::vector<std::byte> socket_communicator::receive(int from, deadline until) {
  return world().receive(from, until);
}
CAIRN_BODY void socket_communicator::lend(int to, const lent_message& message, deadline until) {
  world().send(to, message.view(), until);
}
CAIRN_BODY borrowed_message socket_communicator::borrow(int from, deadline until) {
  return world().borrow(from, until);
}
CAIRN_BODY borrowed_message socket_communicator::borrow_into(int from, std::size_t first,
                                                             std::span<std::byte> rest, deadline until) {
  return world().borrow_into(from, first, rest, until);
}
CAIRN_BODY std::shared_ptr<const peer_watch> socket_communicator::watch_peers() const {
  return world().watch();
}

}  // namespace v1
}  // namespace cairn
