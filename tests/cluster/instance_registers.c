// SPDX-License-Identifier: Apache-2.0
//
// Loaded before the kernel of an instance (LD_PRELOAD; user-mode Linux 6.1 of Debian 12). That kernel has room for 2,696 bytes of the
// registers of its processes. Linux gives it the first ones of a processor that has more, as those with AMX, and takes
// nothing but all of them back. This gives back the others as they are: no program of an instance uses them.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef long (*ptrace_function)(enum __ptrace_request request, ...);

long ptrace(enum __ptrace_request request, ...) {
  static ptrace_function next;
  if (next == 0) next = (ptrace_function)dlsym(RTLD_NEXT, "ptrace");
  va_list rest;
  va_start(rest, request);
  const pid_t process = va_arg(rest, pid_t);
  void* const about = va_arg(rest, void*);
  void* const data = va_arg(rest, void*);
  va_end(rest);
  if (request == PTRACE_SETREGSET && (unsigned long)about == NT_X86_XSTATE) {
    static char all[1 << 16];
    const struct iovec* const first = data;
    struct iovec whole = {all, sizeof all};
    if (next(PTRACE_GETREGSET, process, about, &whole) == 0 && whole.iov_len > first->iov_len) {
      memcpy(all, first->iov_base, first->iov_len);
      return next(request, process, about, &whole);
    }
  }
  return next(request, process, about, data);
}
