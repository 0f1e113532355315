// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/error.hpp>
#include <cairn/model/wire.hpp>

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// The class of a process's input and output, where the device's scheduler knows them (ioprio_set(2)).
enum class io_class : std::uint8_t { inherited = 0, best_effort = 2, idle = 3 };

/// How little a worker is to disturb training.
struct worker_settings {
  int nice = 0;                       ///< added to the trainer's, up to 19; less than 0 needs a privilege
  io_class io = io_class::inherited;  ///< whose requests the device serves first
  int io_level = 4;                   ///< for best_effort: 0 (first) to 7
  std::vector<int> cores = {};        ///< the worker runs on these only; empty: on those of the trainer
};

namespace detail {

/// @throws usage_error (usage_bad_option)
inline void check(const worker_settings& s) {
  const auto bad = [](const char* what, int got) {
    fail(error_id::usage_bad_option, std::string("worker_settings: ") + what, {.got = std::to_string(got)});
  };
  if (s.nice < -20 || s.nice > 19) bad("nice is -20 to 19", s.nice);
  if (s.io_level < 0 || s.io_level > 7) bad("io_level is 0 to 7", s.io_level);
  for (const int core : s.cores)
    if (core < 0 || core >= CPU_SETSIZE) bad("there is no such core", core);
}
inline void encode(wire_writer& out, const worker_settings& s) {
  out.put(static_cast<std::int32_t>(s.nice)).put(s.io).put(static_cast<std::int32_t>(s.io_level));
  out.put(static_cast<std::uint64_t>(s.cores.size()));
  for (const int core : s.cores) out.put(static_cast<std::int32_t>(core));
}
[[nodiscard]] inline worker_settings decode_worker_settings(wire_reader& in) {
  worker_settings s;
  s.nice = in.get<std::int32_t>();
  s.io = in.get_enum(io_class::idle);
  s.io_level = in.get<std::int32_t>();
  s.cores.resize(in.get_count(4));
  for (int& core : s.cores) core = in.get<std::int32_t>();
  return s;
}

/// Applies them to this process. @throws usage_error where the system refuses.
inline void apply(const worker_settings& s) {
  const auto refused = [](const char* what) {
    fail(error_id::usage_bad_option, std::string("the system refuses the worker's ") + what,
         {.got = std::generic_category().message(errno)});
  };
  if (s.nice != 0 &&
      ::setpriority(PRIO_PROCESS, 0, std::min(19, ::getpriority(PRIO_PROCESS, 0) + s.nice)) != 0)
    refused("nice");
  if (s.io != io_class::inherited) {
    constexpr int this_process = 1;  // IOPRIO_WHO_PROCESS
    const int level = s.io == io_class::idle ? 0 : s.io_level;
    if (::syscall(SYS_ioprio_set, this_process, 0, static_cast<int>(s.io) << 13 | level) != 0)
      refused("class of input and output");
  }
  if (!s.cores.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int core : s.cores) CPU_SET(static_cast<std::size_t>(core), &set);
    if (::sched_setaffinity(0, sizeof set, &set) != 0) refused("cores");
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
