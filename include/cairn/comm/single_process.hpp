// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/communicator.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/system/deadline.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace cairn {
inline namespace v1 {

/// The world of one rank: rank 0 of 1. The default communicator; models Communicator.
///
/// Messages to rank 0 wait in a queue until they are received. Since nobody else can fill an empty queue,
/// `receive` then throws timeout_error (timeout_peer) at once, whatever the deadline. A rank other than 0
/// is a usage_error. One thread at a time. Movable, with its messages. Never blocks.
class single_process {
 public:
  using cairn_role = role::communicator;

  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }

  void send(int to, std::span<const std::byte> bytes, deadline);

  [[nodiscard]] std::vector<std::byte> receive(int from, deadline);

 private:
  static void check_peer(int peer);

  std::vector<std::vector<std::byte>> queue_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/comm/single_process.ipp>
#endif
