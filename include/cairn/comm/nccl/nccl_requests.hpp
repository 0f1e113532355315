// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <cstdint>
#include <map>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace cuda {
namespace detail {

/// A transfer that one rank of a pair asks the other for.
struct nccl_request {
  std::uint64_t id;     ///< of the message, see nccl_frame
  std::uint64_t bytes;  ///< of it
  bool mine;            ///< this rank sends it
  std::uint64_t ticket = 0;
};

/// The transfers that peers ask for, at most one of each peer, until they are answered in turn. Used by one
/// thread.
class nccl_requests {
 public:
  [[nodiscard]] bool empty() const noexcept { return of_.empty(); }
  void put(int peer, const nccl_request& what) { of_[peer] = what; }
  void forget(int peer) { of_.erase(peer); }
  void cancel(int peer, std::uint64_t id, bool mine) {
    const auto at = of_.find(peer);
    if (at != of_.end() && at->second.id == id && at->second.mine == mine) of_.erase(at);
  }
  /// What the next rank behind `turn` asks for, which has its turn then. @pre !empty().
  [[nodiscard]] std::pair<int, nccl_request> take(int& turn) {
    auto next = of_.upper_bound(turn);
    if (next == of_.end()) next = of_.begin();
    const std::pair<int, nccl_request> taken(*next);
    of_.erase(next);
    turn = taken.first;
    return taken;
  }
  [[nodiscard]] std::map<int, nccl_request> take_all() { return std::exchange(of_, {}); }

 private:
  std::map<int, nccl_request> of_;
};

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
