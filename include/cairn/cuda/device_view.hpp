// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::cuda
#pragma once
#include <cairn/cuda/runtime.hpp>
#include <cairn/model/tensor_view.hpp>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// The row-major view of memory on a device, which is asked which one it is.
/// @throws usage_error (usage_unsupported_tensor) for memory of the host; storage_error (storage_device)
[[nodiscard]] inline tensor_view device_view(void* data, dtype type, const extents& shape) {
  auto view = contiguous_view(data, type, shape);
  int device = -1;
  check_call<runtime>(runtime::device_of(view.data, device),
                      "cudaPointerGetAttributes (asking where memory lies)", device);
  if (device < 0)
    fail(error_id::usage_unsupported_tensor, "this is no memory of a device; give its address as it is");
  view.space = memory_space::device;
  view.device = device;
  return view;
}

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
