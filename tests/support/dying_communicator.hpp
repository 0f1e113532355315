// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/system/error.hpp>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace cairn_test {

/// Ends its rank at the n-th message that it would send or wait for, as a kill does: nothing leaves it from then on.
class dying_communicator {
 public:
  using cairn_role = cairn::role::communicator;
  dying_communicator(cairn::thread_communicator inner, int messages)
      : inner_(std::move(inner)), left_(messages) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  void send(int to, std::span<const std::byte> bytes, cairn::deadline until) {
    live();
    inner_.send(to, bytes, until);
  }
  [[nodiscard]] std::vector<std::byte> receive(int from, cairn::deadline until) {
    live();
    return inner_.receive(from, until);
  }

 private:
  void live() {
    if (left_ == 0) cairn::fail(cairn::error_id::peer_lost, "this rank is killed", {.rank = rank()});
    --left_;
  }
  cairn::thread_communicator inner_;
  int left_;
};

}  // namespace cairn_test
