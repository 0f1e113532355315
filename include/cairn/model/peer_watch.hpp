// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

namespace cairn {
inline namespace v1 {

/// Whom of the ranks is known to be gone: what a Communicator that knows it gives to those who wait for a
/// rank's part elsewhere, in the store. Any thread, also when the communicator has ended.
class peer_watch {
 public:
  peer_watch() = default;
  peer_watch(const peer_watch&) = delete;
  peer_watch& operator=(const peer_watch&) = delete;
  virtual ~peer_watch() = default;
  /// Whether the process of a rank has ended, or has left the job: nothing that it did not do by now will be
  /// done by it. One system call at most.
  [[nodiscard]] virtual bool is_gone(int rank) const noexcept = 0;
};

}  // namespace v1
}  // namespace cairn
