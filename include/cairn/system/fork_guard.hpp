// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <sys/types.h>
#include <unistd.h>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Remembers the process that made it. A child of fork() has a copy of every object, perhaps with locked mutexes,
/// but none of their threads, and what they own outside of memory is still the parent's: such an object asks this
/// before it waits for a thread or gives anything back. Copies remember the same process.
class fork_guard {
 public:
  /// Whether this process is a child of fork().
  [[nodiscard]] bool in_child() const noexcept { return ::getpid() != process_; }
  /// `sentence`: what does not work in a child. @throws usage_error (usage_wrong_process) in a child
  void check(const char* sentence) const {
    if (in_child()) fail_in_child(sentence);
  }

 private:
  [[noreturn]] void fail_in_child(const char* sentence) const;

  ::pid_t process_ = ::getpid();
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/fork_guard.ipp>
#endif
