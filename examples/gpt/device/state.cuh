// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cairn/cuda/device_view.hpp>
#include <cairn/model/state_dict.hpp>

#include <cstdint>
#include <vector>

#include "../state.hpp"
#include "trainer.cuh"

namespace gpt::device {

/// Adds the parameters as gpt::add_model does.
inline void add_model(cairn::state_dict& state, const model& net) {
  for (const named_tensor& tensor : net.tensors()) {
    const std::vector<std::int64_t> sizes(tensor.shape.begin(), tensor.shape.end());
    state.tensor("model." + tensor.name, cairn::cuda::device_view(net.parameters().data() + tensor.offset,
                                                                  cairn::dtype::f32, cairn::extents(sizes)));
  }
}

inline void add_part(cairn::state_dict& state, const char* name, array<float>& values,
                     const cairn::flat_shard& part) {
  const auto count = static_cast<std::int64_t>(values.size());
  state.tensor(name, cairn::cuda::device_view(values.data(), cairn::dtype::f32, {count}), part);
}

/// The same names as on the CPU, so that train_gpt and train_gpt_cuda go on from each other's checkpoints.
/// Saves read the device's memory, and a resume writes it.
using run_state = basic_run_state<trainer>;

}  // namespace gpt::device
