// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stores/file/file_io.hpp>
#include <cairn/stores/file/io_error.hpp>
#include <cairn/stores/file/posix_file_system.hpp>

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <new>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY file_size_signal_blocked::file_size_signal_blocked() noexcept {
  sigset_t pending;
  sigemptyset(&set_);
  sigaddset(&set_, SIGXFSZ);
  sigemptyset(&pending);
  was_pending_ = ::sigpending(&pending) != 0 || sigismember(&pending, SIGXFSZ) == 1;
  sigset_t before;
  blocked_ = ::pthread_sigmask(SIG_BLOCK, &set_, &before) == 0 && sigismember(&before, SIGXFSZ) == 0;
}

CAIRN_BODY file_size_signal_blocked::~file_size_signal_blocked() {
  const int error = errno;
  if (!was_pending_) {
    const timespec none{};
    while (::sigtimedwait(&set_, nullptr, &none) == -1 && errno == EINTR) {
    }
  }
  if (blocked_) ::pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
  errno = error;
}

CAIRN_BODY bounce_buffers::~bounce_buffers() {
  for (void* const memory : free_) std::free(memory);
}

CAIRN_BODY bounce_buffers::lease::~lease() {
  owner_->give_back(memory_);
}

CAIRN_BODY bounce_buffers::lease bounce_buffers::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      auto* memory = static_cast<std::byte*>(free_.back());
      free_.pop_back();
      return {*this, memory};
    }
  }
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(alignment_, bytes_));
  if (memory == nullptr) throw std::bad_alloc();
  return {*this, memory};
}

CAIRN_BODY void bounce_buffers::give_back(std::byte* memory) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    free_.push_back(memory);
  } catch (...) {
    std::free(memory);
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
