// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/system/file_descriptor.hpp>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The process that made the socket pair of which this process has an end: for a worker its trainer. Its end
/// is seen whoever else has a copy of its socket: at once by handle(), where the kernel has such handles
/// (Linux 5.3), else by asking ended() now and then, where it is the parent.
class peer_process {
 public:
  /// None: it never ends.
  peer_process() = default;
  explicit peer_process(int socket) noexcept;

  /// A descriptor that can be read, for poll(), when the process has ended; -1 where there is none.
  [[nodiscard]] int handle() const noexcept { return handle_.get(); }
  [[nodiscard]] bool ended() const noexcept { return ended_ || (parent_ > 0 && ::getppid() != parent_); }

 private:
  ::pid_t parent_ = 0;
  bool ended_ = false;
  file_descriptor handle_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_INTERPROCESS)
#include <cairn/impl/execute/peer_process.ipp>
#endif
