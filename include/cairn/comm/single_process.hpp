// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/communicator.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/system/error.hpp>

#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// The world of one rank: rank 0 of 1. The default communicator; models Communicator.
///
/// Messages to rank 0 wait in a queue until they are received. Nobody else could fill an empty queue, so that
/// `receive` from it throws timeout_error (timeout_peer) at once, whatever the deadline. Another rank than 0
/// is a usage_error. One thread at a time; movable, the messages go along. Never blocks.
class single_process {
 public:
  using cairn_role = role::communicator;

  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }

  void send(int to, std::span<const std::byte> bytes, deadline) {
    check_peer(to);
    if (bytes.size() > max_message_bytes)
      fail(error_id::usage_overflow, "a message is longer than 1 GiB", {.rank = 0});
    queue_.emplace_back(bytes.begin(), bytes.end());
  }

  [[nodiscard]] std::vector<std::byte> receive(int from, deadline) {
    check_peer(from);
    if (queue_.empty())
      fail(error_id::timeout_peer, "the only rank waits for a message that it has not sent", {.rank = 0});
    auto message = std::move(queue_.front());
    queue_.pop_front();
    return message;
  }

 private:
  static void check_peer(int peer) {
    if (peer != 0)
      fail(error_id::usage_bad_option, "a world of one process has rank 0 only",
           {.expected = "0", .got = std::to_string(peer)});
  }

  std::deque<std::vector<std::byte>> queue_;
};

static_assert(Communicator<single_process>);

}  // namespace v1
}  // namespace cairn
