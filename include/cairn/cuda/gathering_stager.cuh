// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::cuda cairn::interprocess
#pragma once
#include <cairn/cuda/gathering_runtime.cuh>
#include <cairn/cuda/pinned_stager.hpp>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// A copy_engine that gathers small and strided tensors by a kernel.
using gathering_engine = basic_copy_engine<gathering_runtime>;
/// Options of gathering_engine.
using gathering_engine_options = basic_copy_engine_options<gathering_runtime>;

/// pinned_stager, with a kernel that gathers small tensors and packs strided ones on the device; for programs
/// that nvcc compiles.
using gathering_stager = buffered_stager<pinned<shared_memory>, gathering_engine>;
static_assert(Stager<gathering_stager>, "cuda::gathering_stager must model Stager");

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
