// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/mpi/mpi_world.hpp>
#include <cairn/comm/mpi_communicator.hpp>
#include <cairn/system/error.hpp>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY mpi_communicator::mpi_communicator(MPI_Comm parent, deadline until)
    : world_(detail::mpi_world::open(parent, until)), rank_(world_->rank()), size_(world_->size()) {}
CAIRN_BODY mpi_communicator::mpi_communicator(mpi_communicator&& other) noexcept = default;
CAIRN_BODY mpi_communicator& mpi_communicator::operator=(mpi_communicator&& other) noexcept {
  if (this != &other) {
    detail::mpi_world::leave(std::move(world_));
    world_ = std::move(other.world_);
    rank_ = other.rank_;
    size_ = other.size_;
  }
  return *this;
}
CAIRN_BODY mpi_communicator::~mpi_communicator() {
  detail::mpi_world::leave(std::move(world_));
}

CAIRN_BODY detail::mpi_world& mpi_communicator::world() const {
  if (world_ == nullptr) fail(error_id::usage_closed, "this communicator was moved from");
  return *world_;
}
CAIRN_BODY void mpi_communicator::send(int to, std::span<const std::byte> bytes, deadline until) {
  world().send(to, bytes, until);
}
CAIRN_BODY std::vector<std::byte> mpi_communicator::receive(int from, deadline until) {
  return world().receive(from, until);
}
CAIRN_BODY void mpi_communicator::free(deadline until) {
  world().free(until);
}

}  // namespace v1
}  // namespace cairn
