// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::cuda
#pragma once
#include <cairn/cuda/basic_device_view.hpp>
#include <cairn/cuda/runtime.hpp>
#include <cairn/model/tensor_view.hpp>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// Returns the row-major view of device memory; asks the runtime for the device. Managed memory counts as
/// device memory, since reads by the CPU would not be ordered after the streams that write it. A tensor
/// without elements, such as the last shard of an uneven split, may have any address, also null.
/// @throws usage_error (usage_unsupported_tensor) for memory of the host; storage_error (storage_device)
[[nodiscard]] inline tensor_view device_view(void* data, dtype type, const extents& shape) {
  return basic_device_view<runtime>(data, type, shape);
}

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
