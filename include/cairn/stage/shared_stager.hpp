// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::interprocess
#pragma once
#include <cairn/stage/buffered_stager.hpp>
#include <cairn/stage/host_copy.hpp>
#include <cairn/stage/shared_memory.hpp>

namespace cairn {
inline namespace v1 {

/// A stager with images in shared memory that threads fill: for a process_executor, whose worker writes
/// them without another copy.
using shared_stager = buffered_stager<shared_memory, host_copy>;
static_assert(Stager<shared_stager>, "shared_stager must model Stager");

}  // namespace v1
}  // namespace cairn
