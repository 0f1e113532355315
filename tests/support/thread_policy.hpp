// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sched.h>

#include <thread>

namespace cairn_test {

/// The scheduling policy that a thread beside training should have: SCHED_BATCH, or that of training where
/// this is another one than SCHED_OTHER or the system refuses the change.
inline int policy_beside_training() {
  int policy = -1;
  std::thread([&] {
    const sched_param none{};
    if (::sched_getscheduler(0) == SCHED_OTHER)
      static_cast<void>(::sched_setscheduler(0, SCHED_BATCH, &none));
    policy = ::sched_getscheduler(0);
  }).join();
  return policy;
}

}  // namespace cairn_test
