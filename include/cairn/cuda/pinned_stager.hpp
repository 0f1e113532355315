// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::cuda cairn::interprocess
#pragma once
#include <cairn/cuda/basic_copy_engine.hpp>
#include <cairn/cuda/basic_pinned.hpp>
#include <cairn/cuda/runtime.hpp>
#include <cairn/stage/buffered_stager.hpp>
#include <cairn/stage/shared_memory.hpp>

namespace cairn {
inline namespace v1 {
namespace cuda {

template <Memory M>
using pinned = basic_pinned<M, runtime>;
using copy_engine = basic_copy_engine<runtime>;
using copy_engine_options = basic_copy_engine_options<runtime>;

/// Images in pinned shared memory, filled by the copy units of GPUs: for a process_executor, whose worker
/// writes what the device has just put there, without a copy in between.
using pinned_stager = buffered_stager<pinned<shared_memory>, copy_engine>;
static_assert(Stager<pinned_stager>, "cuda::pinned_stager must model Stager");

/// The row-major view of memory on a device, which is asked which one it is.
/// @throws usage_error (usage_unsupported_tensor) for memory of the host; storage_error (storage_device)
[[nodiscard]] inline tensor_view device_view(void* data, dtype type, const extents& shape) {
  auto view = contiguous_view(data, type, shape);
  int device = -1;
  check_call<runtime>(runtime::device_of(view.data, device), "asking where memory lies", device);
  if (device < 0)
    fail(error_id::usage_unsupported_tensor, "this is no memory of a device; give its address as it is");
  view.space = memory_space::device;
  view.device = device;
  return view;
}

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
