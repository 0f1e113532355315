// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/system/compiler.hpp>

#include <signal.h>

#include <atomic>
#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What the dynamic linker says of the program that this process runs.
struct main_program {
  std::uintptr_t begin = 0;  ///< of the code and data in memory
  std::uintptr_t end = 0;
  std::uint64_t build = 0;  ///< digest of the linker's build id, or of what the file system says of the file

  [[nodiscard]] bool contains(std::uintptr_t address) const noexcept {
    return address >= begin && address < end;
  }
};

/// The main program of this process. Cost: microseconds.
[[nodiscard]] main_program this_program();

/// The argument that makes a program a worker, and the descriptor of its socket.
inline constexpr const char* worker_argument = "--cairn-worker";
inline constexpr int worker_socket = 3;

/// Batch systems and terminals send these to every process of a job. The trainer decides when a run ends; its
/// worker goes when it is gone.
inline constexpr int signals_not_for_workers[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGPIPE, SIGALRM,
                                                  SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP, SIGTTIN,
                                                  SIGTTOU, SIGXCPU, SIGXFSZ};

/// Offsets of writers' functions are counted from here: the same distance in every process of one build.
inline void worker_anchor() {}
[[nodiscard]] inline std::uintptr_t anchor_address() noexcept {
  return reinterpret_cast<std::uintptr_t>(&worker_anchor);
}
/// Whether main() of this program called worker_main: the one thing here that is process-wide.
inline std::atomic<bool> worker_main_called{false};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_INTERPROCESS)
#include <cairn/impl/execute/main_program.ipp>
#endif
