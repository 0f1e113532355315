// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The same file under a number above the standard streams', where it has one of theirs: in a process that has closed them,
/// what anybody prints would be written into a checkpoint. Closes the lower one. -1 and errno where there is no number.
inline int above_standard_streams(int number) noexcept {
  if (number < 0 || number > STDERR_FILENO) return number;
  const int moved = ::fcntl(number, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int why = errno;
  ::close(number);
  errno = why;
  return moved;
}

/// Owns a file descriptor, which is none of the standard streams'. Moved from, it is -1.
class file_descriptor {
 public:
  file_descriptor() = default;
  /// See above_standard_streams(): get() may be another number.
  explicit file_descriptor(int number) noexcept : number_(above_standard_streams(number)) {}
  file_descriptor(file_descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  file_descriptor& operator=(file_descriptor&& other) noexcept {
    if (this != &other) {
      close();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  ~file_descriptor() { close(); }

  [[nodiscard]] int get() const noexcept { return number_; }
  [[nodiscard]] bool open() const noexcept { return number_ >= 0; }
  void close() noexcept {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }

 private:
  int number_ = -1;
};

/// Throws what a failed system call means: a limit, memory, permission, or else storage.io.
[[noreturn]] inline void fail_system(int code, const std::string& what) {
  const auto id = code == EMFILE || code == ENFILE || code == ENOLCK || code == EFBIG
                      ? error_id::storage_limit
                  : code == ENOMEM || code == ENOBUFS ? error_id::storage_out_of_memory
                  : code == ENOSPC                    ? error_id::storage_no_space
                  : code == EACCES || code == EPERM   ? error_id::storage_permission
                                                      : error_id::storage_io;
  fail(id, what, {.got = std::generic_category().message(code)});
}

/// For people: why a rank let nobody in who connected to it.
[[nodiscard]] inline std::string refused_connection(int rank, int code) {
  return "rank " + std::to_string(rank) +
         " could not take a connection: " + std::generic_category().message(code) +
         (code == EMFILE ? "; raise the limit of its open files (ulimit -n)" : "");
}

/// What is left until a deadline, but a second at most, in milliseconds, for poll().
inline int poll_milliseconds(deadline until) noexcept {
  const auto left = std::min<std::chrono::nanoseconds>(until.left(), std::chrono::seconds(1));
  return static_cast<int>((left.count() + 999'999) / 1'000'000);
}
/// Waits for one of the events. Whether one came before the deadline.
inline bool poll_one(int number, short events, deadline until) noexcept {
  for (;;) {
    pollfd one{number, events, 0};
    if (::poll(&one, 1, poll_milliseconds(until)) > 0) return true;
    if (until.passed()) return false;
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
