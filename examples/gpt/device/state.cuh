// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cairn/cuda/device_view.hpp>
#include <cairn/model/state_dict.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
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

/// gpt::run_state of a trainer on a GPU: the same names, so that train_gpt and train_gpt_cuda go on from each
/// other's checkpoints. Saves read the device's memory, and a resume writes it.
class run_state {
 public:
  explicit run_state(trainer& run) : run_(run), config_(run.net().config()) {
    add_model(state_, run.net());
    const auto moments = [&](const char* name, array<float>& values) {
      const auto count = static_cast<std::int64_t>(values.size());
      state_.tensor(name, cairn::cuda::device_view(values.data(), cairn::dtype::f32, {count}), range());
    };
    moments("adam.m", run.m());
    moments("adam.v", run.v());
    state_.object("config", config_);
    state_.value("learning_rate", run.learning_rate());
    state_.bytes("data_loader", loader_);
    state_.bytes("rng", generator_, cairn::per_rank, cairn::optional);
    collect(0);
  }
  run_state(const run_state&) = delete;
  run_state& operator=(const run_state&) = delete;

  cairn::state_dict& dict() { return state_; }
  void collect(std::uint64_t step) {
    loader_ = run_.loader().save(step);
    generator_ = run_.generator().save();
  }
  void restored(std::uint64_t step) {
    if (config_.shape() != run_.net().config())
      throw std::runtime_error(
          "the checkpoint holds another model; give the options that it was trained with");
    run_.loader().check(loader_, step);
    run_.generator().restore(generator_);
  }

 private:
  cairn::flat_shard range() const {
    return {{static_cast<std::int64_t>(run_.net().parameters().size())},
            static_cast<std::int64_t>(run_.range().begin)};
  }

  trainer& run_;
  stored_config config_;
  std::vector<std::byte> loader_, generator_;
  cairn::state_dict state_;
};

}  // namespace gpt::device
