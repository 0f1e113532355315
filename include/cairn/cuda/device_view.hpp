// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::cuda
#pragma once
#include <cairn/cuda/basic_device_view.hpp>
#include <cairn/cuda/runtime.hpp>
#include <cairn/model/tensor_view.hpp>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// The row-major view of memory on a device, which is asked which one it is. Managed memory is memory of a
/// device: the CPU would read it with no order to the streams that write it. Without elements, as the last
/// shard of an uneven split, any address will do, also none.
/// @throws usage_error (usage_unsupported_tensor) for memory of the host; storage_error (storage_device)
[[nodiscard]] inline tensor_view device_view(void* data, dtype type, const extents& shape) {
  return basic_device_view<runtime>(data, type, shape);
}

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
