// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::cuda cairn::interprocess
#pragma once
#include <cairn/cuda/basic_copy_engine.hpp>
#include <cairn/cuda/basic_pinned.hpp>
#include <cairn/cuda/device_view.hpp>
#include <cairn/cuda/runtime.hpp>
#include <cairn/stage/buffered_stager.hpp>
#include <cairn/stage/shared_memory.hpp>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// Pinned memory over M, for CUDA.
template <Memory M>
using pinned = basic_pinned<M, runtime>;
/// Copies from devices by CUDA.
using copy_engine = basic_copy_engine<runtime>;
/// Options of copy_engine.
using copy_engine_options = basic_copy_engine_options<runtime>;

/// A stager with images in pinned shared memory, which the copy engines of GPUs fill: for a
/// process_executor, whose worker writes them without another copy.
using pinned_stager = buffered_stager<pinned<shared_memory>, copy_engine>;
static_assert(Stager<pinned_stager>, "cuda::pinned_stager must model Stager");

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
