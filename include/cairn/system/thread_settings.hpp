// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace cairn {
inline namespace v1 {

/// The class of a thread's or process's input and output, where the device's scheduler knows them
/// (ioprio_set(2)).
enum class io_class : std::uint8_t { inherited = 0, best_effort = 2, idle = 3 };

/// How little a thread or a worker process of cairn is to disturb training.
struct thread_settings {
  int nice = 0;                       ///< added to that of training, up to 19; less than 0 needs a privilege
  io_class io = io_class::inherited;  ///< whose requests the device serves first
  int io_level = 4;                   ///< for best_effort: 0 (first) to 7
  std::vector<int> cores = {};        ///< it runs on these only; empty: on those of training
};

namespace detail {

[[nodiscard]] inline bool changes_anything(const thread_settings& s) noexcept {
  return s.nice != 0 || s.io != io_class::inherited || !s.cores.empty();
}
/// @throws usage_error (usage_bad_option)
void check(const thread_settings& s);

/// Applies them to the calling thread, and so to those that it starts from now on; or to another one.
/// @throws usage_error (usage_bad_option) where the system refuses.
void apply(const thread_settings& s, ::pid_t thread = 0);

/// Checks settings and whether the system grants them, by a thread that lives for a moment where they change
/// anything. @throws usage_error (usage_bad_option), storage_error (storage_limit) where no thread starts.
void check_granted(const thread_settings& s);
/// The calling thread, and those that it starts from now on, get their share of the processor but never push
/// aside the thread that wakes them, which is training's in the middle of save() (SCHED_BATCH, see sched(7)).
/// Where training has a policy of its own, they keep that.
void wait_for_a_turn() noexcept;
/// For a thread that works beside training, whose settings were granted when its owner was made: what is
/// refused meanwhile is done without.
void apply_granted(const thread_settings& s) noexcept;

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/thread_settings.ipp>
#endif
