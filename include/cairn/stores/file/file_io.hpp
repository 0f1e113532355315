// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stores/file/posix_file_system.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// An open file or directory; closes in the destructor, where the result does not matter.
template <FileSystem F>
class file_handle {
 public:
  file_handle() = default;
  file_handle(F& fs, int handle) noexcept : fs_(&fs), handle_(handle) {}
  file_handle(file_handle&& other) noexcept : fs_(other.fs_), handle_(std::exchange(other.handle_, -1)) {}
  file_handle& operator=(file_handle&& other) noexcept {
    if (this != &other) {
      static_cast<void>(close());
      fs_ = other.fs_;
      handle_ = std::exchange(other.handle_, -1);
    }
    return *this;
  }
  ~file_handle() { static_cast<void>(close()); }

  [[nodiscard]] int get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ >= 0; }
  /// Never repeated: on Linux the number is free after close, whatever it returned.
  [[nodiscard]] int close() noexcept {
    const int handle = std::exchange(handle_, -1);
    return handle >= 0 ? fs_->close(handle) : 0;
  }

 private:
  F* fs_ = nullptr;
  int handle_ = -1;
};

/// How often in a row a call may say EINTR, and a write or read may move nothing, before that is an error.
inline constexpr int max_interruptions = 100;

/// Calls `call` again while it was interrupted. Not for fsync and close.
template <class Call>
[[nodiscard]] auto uninterrupted(Call call) {
  auto result = call();
  for (int i = 1; result == -EINTR && i < max_interruptions; ++i) result = call();
  return result;
}

/// Calls `call` again where a server does not know what it was asked about (ESTALE): another host has removed or
/// replaced it, and `call` opens it anew by its name. At most three times.
template <class Call>
[[nodiscard]] int opened_anew(Call call) {
  int result = call();
  for (int i = 1; result == -ESTALE && i < 3; ++i) result = call();
  return result;
}

/// A file that grows beyond ulimit -f raises SIGXFSZ, whose default ends the process. While one of these
/// lives, the signal is blocked on this thread, so that the call returns EFBIG; what was raised meanwhile is
/// taken away again. Nothing of the process changes: no handler, no other thread.
class file_size_signal_blocked {
 public:
  file_size_signal_blocked() noexcept;
  file_size_signal_blocked(const file_size_signal_blocked&) = delete;
  file_size_signal_blocked& operator=(const file_size_signal_blocked&) = delete;
  ~file_size_signal_blocked();

 private:
  sigset_t set_;
  bool was_pending_ = false;
  bool blocked_ = false;
};

/// What a transfer came to: `done` bytes, and the errno that ended it early (0: complete, or the end of the
/// file).
struct transfer {
  std::uint64_t done = 0;
  int error = 0;
};

/// Writes all of it; short counts and EINTR go on, a call that moves nothing again and again is an error.
template <FileSystem F>
[[nodiscard]] transfer write_fully(F& fs, int file, const std::byte* from, std::size_t bytes,
                                   std::uint64_t offset) {
  constexpr std::size_t max_bytes = std::size_t{1} << 30;  // Linux moves at most 0x7ffff000 bytes at once
  transfer t;
  int idle = 0;
  while (t.done < bytes) {
    const auto rest = static_cast<std::size_t>(bytes - t.done);
    const auto n = fs.pwrite(file, from + t.done, rest < max_bytes ? rest : max_bytes, offset + t.done);
    if (n > 0 && static_cast<std::uint64_t>(n) <= rest) {
      t.done += static_cast<std::uint64_t>(n);
      idle = 0;
      continue;
    }
    if (n != 0 && n != -EINTR) {
      t.error = n < 0 ? static_cast<int>(-n) : EIO;
      return t;
    }
    if (++idle >= max_interruptions) {
      t.error = n == 0 ? EIO : EINTR;
      return t;
    }
  }
  return t;
}

/// Reads until `bytes` are there or the file ends.
template <FileSystem F>
[[nodiscard]] transfer read_fully(F& fs, int file, std::byte* to, std::size_t bytes, std::uint64_t offset) {
  constexpr std::size_t max_bytes = std::size_t{1} << 30;
  transfer t;
  int idle = 0;
  while (t.done < bytes) {
    const auto rest = static_cast<std::size_t>(bytes - t.done);
    const auto n = fs.pread(file, to + t.done, rest < max_bytes ? rest : max_bytes, offset + t.done);
    if (n == 0) return t;
    if (n > 0 && static_cast<std::uint64_t>(n) <= rest) {
      t.done += static_cast<std::uint64_t>(n);
      idle = 0;
      continue;
    }
    if (n != -EINTR || ++idle >= max_interruptions) {
      t.error = n < 0 ? static_cast<int>(-n) : EIO;
      return t;
    }
  }
  return t;
}

/// Aligned buffers that are used again; as many as were in use at once.
class bounce_buffers {
 public:
  explicit bounce_buffers(std::size_t bytes, std::size_t alignment) noexcept
      : bytes_(bytes), alignment_(alignment) {}
  bounce_buffers(const bounce_buffers&) = delete;
  bounce_buffers& operator=(const bounce_buffers&) = delete;
  ~bounce_buffers();

  class lease {
   public:
    lease(bounce_buffers& owner, std::byte* memory) noexcept : owner_(&owner), memory_(memory) {}
    lease(const lease&) = delete;
    lease& operator=(const lease&) = delete;
    ~lease();
    [[nodiscard]] std::byte* data() const noexcept { return memory_; }

   private:
    bounce_buffers* owner_;
    std::byte* memory_;
  };

  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  [[nodiscard]] lease take();

 private:
  void give_back(std::byte* memory) noexcept;

  std::size_t bytes_;
  std::size_t alignment_;
  std::mutex mutex_;
  vector<void*> free_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stores/file/file_io.ipp>
#endif
