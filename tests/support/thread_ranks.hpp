// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/collectives.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <support/on_all_ranks.hpp>

#include <algorithm>
#include <exception>
#include <vector>

namespace cairn_test {

/// A world of ranks as threads whose communicators live as long as it does, over several rounds of threads: a
/// rank that ends its round early is not lost for the others.
template <class Communicator = cairn::thread_communicator>
class thread_ranks {
 public:
  explicit thread_ranks(int size)
    requires std::same_as<Communicator, cairn::thread_communicator>
      : thread_ranks(size, [](cairn::thread_communicator comm) { return comm; }) {}
  /// `decorate(thread_communicator)` gives the communicator of each rank.
  template <class Decorate>
  thread_ranks(int size, Decorate decorate) : group_(size) {
    for (int rank = 0; rank < size; ++rank) ranks_.emplace_back(decorate(group_.communicator(rank)));
  }

  [[nodiscard]] int size() const { return group_.size(); }
  [[nodiscard]] const cairn::thread_group& group() const { return group_; }
  [[nodiscard]] cairn::collectives& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  /// The communicator of a rank, which its collectives own.
  [[nodiscard]] Communicator& communicator(int rank) {
    return at(rank).communicator().template get<Communicator>();
  }

  /// Runs body(collectives&) on all ranks at the same time, except those in `absent`; returns what each
  /// threw, or null.
  template <class Body>
  std::vector<std::exception_ptr> run(Body body, const std::vector<int>& absent = {}) {
    return thrown_on_ranks(size(), [&](int rank) {
      if (std::find(absent.begin(), absent.end(), rank) == absent.end()) body(at(rank));
    });
  }

 private:
  cairn::thread_group group_;
  std::vector<cairn::collectives> ranks_;
};

}  // namespace cairn_test
