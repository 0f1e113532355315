// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/// Trains up to and with step `last_step` with checkpoints below the working directory; before step
/// `kill_before`
/// (-1: never) the process is ended with SIGKILL. Writes losses[step] of each step. Returns the step at which
/// it resumed.
int existing_trainer(int last_step, int kill_before, float* losses);

#ifdef __cplusplus
}
#endif
