// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/callback.hpp>
#include <cairn/system/deadline.hpp>

#include <cstdint>

namespace cairn {
inline namespace v1 {

/// Why step_follower::next() returned nothing.
enum class follow_end : unsigned char {
  none,           ///< it returned a step
  stopped,        ///< follow_options::stop said so
  timed_out,      ///< follow_options::timeout has passed: the trainer may live
  trainer_gone,   ///< nothing was committed for follow_options::gone_after, and no run shows that it lives
  trainer_ended,  ///< a run that announced itself has ended: its checkpointer was closed or destroyed
  trainer_lost,   ///< such a run has died: its process was killed, or its host is gone
};

/// How to follow a run. Of several ranks, those of rank 0 count.
struct follow_options {
  /// A step that the caller has: the first one that comes is another one.
  std::int64_t after = -1;
  /// A trainer that does not announce itself (checkpointer_options::announce_run), or has not begun yet, counts as gone
  /// when this time has passed since its last commit, or since the wait began where there was none, and no process
  /// writes a save. Longer than the time between two saves.
  std::chrono::nanoseconds gone_after = std::chrono::hours(1);
  /// How long one call of next() waits at most.
  std::chrono::nanoseconds timeout = std::chrono::hours(24);
  /// The longest time between two looks into the store, where it does not tell of changes by itself.
  std::chrono::nanoseconds max_pause = std::chrono::seconds(10);
  /// Asked several times a second while next() waits; true ends the wait. Such as stop_signal::requested().
  detail::callback<bool()> stop = {};
};

}  // namespace v1
}  // namespace cairn
