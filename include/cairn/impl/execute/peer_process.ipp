// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/execute/peer_process.hpp>
#include <cairn/system/file_descriptor.hpp>

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY peer_process::peer_process(int socket) noexcept {
  ucred other{};
  socklen_t size = sizeof other;
  // Without a number where it is of another namespace of processes.
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &size) != 0 || other.pid <= 0) return;
  if (::getppid() == other.pid) parent_ = other.pid;
#ifdef SYS_pidfd_open
  handle_ = file_descriptor(static_cast<int>(::syscall(SYS_pidfd_open, other.pid, 0)));
  ended_ = !handle_.open() && errno == ESRCH;
#endif
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
