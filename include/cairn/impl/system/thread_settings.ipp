// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/background_thread.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/process_limits.hpp>
#include <cairn/system/thread_settings.hpp>

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <exception>
#include <string>
#include <system_error>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY void check(const thread_settings& s) {
  const auto bad = [](const char* what, int got) {
    fail(error_id::usage_bad_option, std::string("thread_settings: ") + what, {.got = std::to_string(got)});
  };
  if (s.nice < -20 || s.nice > 19) bad("nice is -20 to 19", s.nice);
  if (s.io != io_class::inherited && s.io != io_class::best_effort && s.io != io_class::idle)
    bad("there is no such class of input and output", static_cast<int>(s.io));
  if (s.io_level < 0 || s.io_level > 7) bad("io_level is 0 to 7", s.io_level);
  for (const int core : s.cores)
    if (core < 0 || core >= CPU_SETSIZE) bad("there is no such core", core);
}

CAIRN_BODY void apply(const thread_settings& s, ::pid_t thread) {
  const auto refused = [](const char* what) {
    fail(error_id::usage_bad_option,
         std::string("the system refuses a thread or worker of cairn its ") + what,
         {.got = std::generic_category().message(errno)});
  };
  // Linux keeps all three for each thread; 0 is the calling one.
  const auto who = static_cast<id_t>(thread);
  if (s.nice != 0 &&
      ::setpriority(PRIO_PROCESS, who, std::min(19, ::getpriority(PRIO_PROCESS, who) + s.nice)) != 0)
    refused("nice");
  if (s.io != io_class::inherited) {
    constexpr int one_thread = 1;  // IOPRIO_WHO_PROCESS
    const int level = s.io == io_class::idle ? 0 : s.io_level;
    if (::syscall(SYS_ioprio_set, one_thread, thread, static_cast<int>(s.io) << 13 | level) != 0)
      refused("class of input and output");
  }
  if (!s.cores.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int core : s.cores) CPU_SET(static_cast<std::size_t>(core), &set);
    if (::sched_setaffinity(thread, sizeof set, &set) != 0) refused("cores");
  }
}

CAIRN_BODY void check_granted(const thread_settings& s) {
  check(s);
  if (!changes_anything(s)) return;
  std::exception_ptr why;
  background_thread tries;
  if (!tries.start("cairn settings", [&] {
        try {
          apply(s);
        } catch (...) {
          why = std::current_exception();
        }
      }))
    fail_for_threads("to try its settings");
  tries.join();  // without a deadline: it asks the kernel for settings of its own, which does not wait
  if (why != nullptr) std::rethrow_exception(why);
}

CAIRN_BODY void wait_for_a_turn() noexcept {
  const sched_param none{};
  if (::sched_getscheduler(0) == SCHED_OTHER) (void)::sched_setscheduler(0, SCHED_BATCH, &none);
}

CAIRN_BODY void apply_granted(const thread_settings& s) noexcept {
  wait_for_a_turn();
  if (!changes_anything(s)) return;
  try {
    apply(s);
  } catch (...) {  // the set of cores of this process was cut: a save matters more
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
