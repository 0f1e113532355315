// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/interop/c_interface.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Opens the checkpoints of one rank; returns when all ranks of the job of this name have called it. Null:
/// see cairn_error_message().
cairn_checkpointer* open_checkpoints(const char* directory, const char* job, int rank, int ranks);

#ifdef __cplusplus
}
#endif
