// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/file_descriptor.hpp>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/types.h>

#include <cstddef>
#include <mutex>
#include <span>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

class unforked_file;
/// What fork() is to take from its children. Held by fork() itself from before it forks.
inline constinit std::mutex unforked_mutex;
inline constinit unforked_file* first_unforked = nullptr;

/// While it lives, fork() of any thread waits: hold it from the making of a descriptor until an
/// unforked_file has it. Keep it short.
class fork_pause {
 public:
  fork_pause() : lock_((register_handlers(), unforked_mutex)) {}

 private:
  static void register_handlers();
  std::lock_guard<std::mutex> lock_;
};

/// A descriptor, and the memory that is mapped from it, which no child of fork() keeps, so that what it leads
/// to ends with this process however long its children live. In a child the descriptor is closed, and zeros
/// of its own are where the memory was. Children that come without the handlers of fork() (clone(2)) keep
/// both.
class unforked_file {
 public:
  unforked_file(file_descriptor file, const fork_pause&) noexcept
      : file_(std::move(file)), after_(first_unforked) {
    if (after_ != nullptr) after_->before_ = this;
    first_unforked = this;
  }
  /// Opens a file, as open(2) does: where it could not be opened, get() is -1, and errno says why.
  explicit unforked_file(const char* path, int flags, ::mode_t mode = 0) noexcept
      : unforked_file(path, flags, mode, fork_pause()) {}
  unforked_file(const unforked_file&) = delete;
  unforked_file& operator=(const unforked_file&) = delete;
  ~unforked_file() {
    const fork_pause pause;
    (before_ != nullptr ? before_->after_ : first_unforked) = after_;
    if (after_ != nullptr) after_->before_ = before_;
    file_.close();
  }

  /// -1 in a child.
  [[nodiscard]] int get() const noexcept { return file_.get(); }
  /// This memory is mapped from it, and stays so until this object has ended.
  void mapped(std::span<std::byte> memory) {
    const fork_pause pause;
    memory_ = memory;
  }

 private:
  friend class fork_pause;
  unforked_file(const char* path, int flags, ::mode_t mode, const fork_pause& pause) noexcept
      : unforked_file(file_descriptor(::open(path, flags, mode)), pause) {}
  static void in_child() noexcept {
    for (auto* each = first_unforked; each != nullptr; each = each->after_) {
      each->file_.close();
      const auto memory = std::exchange(each->memory_, {});
      if (memory.empty()) continue;
      // The addresses stay taken: whoever ends this copy of the object unmaps them.
      constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
      if (::mmap(memory.data(), memory.size(), PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED)
        static_cast<void>(::mmap(memory.data(), memory.size(), PROT_NONE, flags, -1, 0));
    }
    unforked_mutex.unlock();
  }

  file_descriptor file_;
  std::span<std::byte> memory_;
  unforked_file* before_ = nullptr;
  unforked_file* after_;
};

inline void fork_pause::register_handlers() {
  // Where there is no memory for the handlers, children keep what they inherit, as without them.
  static const int result = ::pthread_atfork([] { unforked_mutex.lock(); }, [] { unforked_mutex.unlock(); },
                                             [] { unforked_file::in_child(); });
  static_cast<void>(result);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
