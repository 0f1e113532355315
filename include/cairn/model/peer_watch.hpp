// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

namespace cairn {
inline namespace v1 {

/// Tells which ranks are lost. A Communicator that knows it gives it to those who wait for a rank's
/// record in the store. Any thread, also after the communicator is destroyed.
class peer_watch {
 public:
  peer_watch() = default;
  peer_watch(const peer_watch&) = delete;
  peer_watch& operator=(const peer_watch&) = delete;
  virtual ~peer_watch() = default;
  /// Whether the process of a rank has ended or has left the job, so that it will do nothing more. At
  /// most one system call.
  [[nodiscard]] virtual bool is_gone(int rank) const noexcept = 0;
  /// Whether a worker process of a rank that is gone may go on with its save; the store shows whether one does.
  [[nodiscard]] virtual bool leaves_workers() const noexcept { return false; }
};

}  // namespace v1
}  // namespace cairn
