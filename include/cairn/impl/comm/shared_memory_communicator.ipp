// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/shared_memory/shared_rank.hpp>
#include <cairn/comm/shared_memory_communicator.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/owned.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY shared_memory_communicator::shared_memory_communicator(std::string_view job, int rank, int size,
                                                                  shared_memory_options options)
    : self_(detail::make_owned<detail::shared_rank>(std::string(job), rank, size, options.ring_bytes,
                                                    deadline::in(options.timeout))) {}
CAIRN_BODY shared_memory_communicator::shared_memory_communicator(
    shared_memory_communicator&& other) noexcept = default;
CAIRN_BODY shared_memory_communicator& shared_memory_communicator::operator=(
    shared_memory_communicator&& other) noexcept = default;
CAIRN_BODY shared_memory_communicator::~shared_memory_communicator() = default;

CAIRN_BODY detail::shared_rank& shared_memory_communicator::self() const {
  if (self_ == nullptr) fail(error_id::usage_closed, "this communicator was moved from");
  return *self_;
}
CAIRN_BODY int shared_memory_communicator::rank() const {
  return self().rank();
}
CAIRN_BODY int shared_memory_communicator::size() const {
  return self().size();
}
CAIRN_BODY void shared_memory_communicator::send(int to, std::span<const std::byte> bytes, deadline until) {
  self().send(to, bytes, until);
}
CAIRN_BODY std::vector<std::byte> shared_memory_communicator::receive(int from, deadline until) {
  return self().receive(from, until);
}
CAIRN_BODY std::shared_ptr<const peer_watch> shared_memory_communicator::watch_peers() const {
  return self().watch();
}

}  // namespace v1
}  // namespace cairn
