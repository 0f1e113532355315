// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cairn/cuda/pinned_stager.hpp>
#include <cairn/model/state_dict.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../state.hpp"
#include "trainer.cuh"

namespace gpt::device {

/// Adds the parameters as gpt::add_model does: those of the device for saving, or where `host` is given,
/// memory of the host for loading.
inline void add_model(cairn::state_dict& state, const model& net, std::vector<float>* host) {
  for (const named_tensor& tensor : net.tensors()) {
    const std::vector<std::int64_t> sizes(tensor.shape.begin(), tensor.shape.end());
    const cairn::extents shape(sizes);
    if (host != nullptr)
      state.tensor("model." + tensor.name, host->data() + tensor.offset, shape);
    else
      state.tensor("model." + tensor.name, cairn::cuda::device_view(net.parameters().data() + tensor.offset,
                                                                    cairn::dtype::f32, shape));
  }
}

/// gpt::run_state of a trainer on a GPU: the same names, so that train_gpt and train_gpt_cuda go on from each
/// other's checkpoints. Saves read the device's memory; a resume comes through memory of the host, which is
/// given back.
class run_state {
 public:
  explicit run_state(trainer& run) : run_(run), config_(run.net().config()) {
    add_model(state_, run.net(), nullptr);
    const auto moments = [&](const char* name, array<float>& values) {
      const auto count = static_cast<std::int64_t>(values.size());
      state_.tensor(name, cairn::cuda::device_view(values.data(), cairn::dtype::f32, {count}), range());
    };
    moments("adam.m", run.m());
    moments("adam.v", run.v());
    add_rest(state_);
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
  /// Calls `load(state)` for a state in memory of the host, and brings that to the device if it answers a
  /// step.
  template <class Load>
  auto through_host(Load&& load) {
    std::vector<float> parameters(run_.net().parameters().size());
    std::vector<float> m(run_.m().size()), v(run_.v().size());
    cairn::state_dict state;
    add_model(state, run_.net(), &parameters);
    state.tensor("adam.m", m, range());
    state.tensor("adam.v", v, range());
    add_rest(state);
    auto step = load(state);
    if (!step) return step;
    const context& on = run_.on();
    on.upload(run_.net().parameters().data(), std::span<const float>(parameters));
    on.upload(run_.m().data(), std::span<const float>(m));
    on.upload(run_.v().data(), std::span<const float>(v));
    return step;
  }

 private:
  cairn::flat_shard range() const {
    return {{static_cast<std::int64_t>(run_.net().parameters().size())},
            static_cast<std::int64_t>(run_.range().begin)};
  }
  void add_rest(cairn::state_dict& state) {
    state.object("config", config_);
    state.value("learning_rate", run_.learning_rate());
    state.bytes("data_loader", loader_);
    state.bytes("rng", generator_, cairn::per_rank, cairn::optional);
  }

  trainer& run_;
  stored_config config_;
  std::vector<std::byte> loader_, generator_;
  cairn::state_dict state_;
};

}  // namespace gpt::device
