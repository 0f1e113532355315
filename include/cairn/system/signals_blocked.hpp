// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <pthread.h>

#include <csignal>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Holds signals off the calling thread as long as it lives, also those that threads started meanwhile will
/// get: they are for the threads of the program. Faults of the thread itself are not held off: the kernel ends a
/// process that blocks them, and the program's handler, which prints where it crashed, would not run.
class signals_blocked {
 public:
  signals_blocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT})
      sigdelset(&all, fault);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~signals_blocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  signals_blocked(const signals_blocked&) = delete;
  signals_blocked& operator=(const signals_blocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
