// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cairn/concepts/communicator.hpp>
#include <cairn/concepts/roles.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace cairn_test {

/// The counts of a counting_communicator; several communicators may share them. Any thread may read them.
struct message_counts {
  std::atomic<std::uint64_t> sent = 0;
  std::atomic<std::uint64_t> sent_bytes = 0;
  std::atomic<std::uint64_t> received = 0;
};

/// A communicator that counts what another one sends and receives. The counts outlive it where the test keeps
/// them.
template <cairn::Communicator C>
class counting_communicator {
 public:
  using cairn_role = cairn::role::communicator;

  explicit counting_communicator(C inner,
                                 std::shared_ptr<message_counts> counts = std::make_shared<message_counts>())
      : inner_(std::move(inner)), counts_(std::move(counts)) {}

  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  void send(int to, std::span<const std::byte> bytes, cairn::deadline until) {
    inner_.send(to, bytes, until);
    ++counts_->sent;
    counts_->sent_bytes += bytes.size();
  }
  [[nodiscard]] std::vector<std::byte> receive(int from, cairn::deadline until) {
    auto message = inner_.receive(from, until);
    ++counts_->received;
    return message;
  }
  [[nodiscard]] const std::shared_ptr<message_counts>& counts() const noexcept { return counts_; }

 private:
  C inner_;
  std::shared_ptr<message_counts> counts_;
};

}  // namespace cairn_test
