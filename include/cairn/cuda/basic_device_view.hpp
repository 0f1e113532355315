// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/cuda/device_runtime.hpp>
#include <cairn/model/tensor_view.hpp>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// See device_view.
template <DeviceRuntime R>
[[nodiscard]] tensor_view basic_device_view(void* data, dtype type, const extents& shape) {
  auto view = contiguous_view(data, type, shape);
  int device = 0;
  check_call<R>(R::current_device(device), "cudaGetDevice (asking for the current device)", -1);
  device = device_with_context<R>(device);
  if (shape.volume() != 0) {
    const device_in_use<R> use(device);
    check_call<R>(R::device_of(view.data, device), "cudaPointerGetAttributes (asking where memory lies)", -1);
    if (device < 0)
      fail(error_id::usage_unsupported_tensor, "this is not device memory; pass its address as it is");
  }
  view.space = memory_space::device;
  view.device = device;
  return view;
}

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
