// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/single_process.hpp>
#include <cairn/concepts/communicator.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/system/error.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY void single_process::send(int to, std::span<const std::byte> bytes, deadline) {
  check_peer(to);
  if (bytes.size() > max_message_bytes)
    fail(error_id::usage_overflow, "a message is longer than 1 GiB", {.rank = 0});
  queue_.emplace_back(bytes.begin(), bytes.end());
}

CAIRN_BODY std::vector<std::byte> single_process::receive(int from, deadline) {
  check_peer(from);
  if (queue_.empty())
    fail(error_id::timeout_peer, "the only rank waits for a message that it has not sent", {.rank = 0});
  auto message = std::move(queue_.front());
  queue_.erase(queue_.begin());
  return message;
}

CAIRN_BODY void single_process::check_peer(int peer) {
  if (peer != 0)
    fail(error_id::usage_bad_option, "a world of one process has rank 0 only",
         {.expected = "0", .got = std::to_string(peer)});
}

static_assert(Communicator<single_process>);

}  // namespace v1
}  // namespace cairn
