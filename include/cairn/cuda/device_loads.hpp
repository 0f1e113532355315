// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::cuda
#pragma once
#include <cairn/cuda/basic_device_loads.hpp>
#include <cairn/cuda/device_view.hpp>
#include <cairn/cuda/runtime.hpp>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// Loads into the memory of GPUs, for programs that do not save from it; see basic_device_loads.
using device_loads = basic_device_loads<runtime>;
/// Options of device_loads.
using device_loads_options = basic_device_loads_options<runtime>;

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
