// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cairn/model/state_dict.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "trainer.hpp"

namespace gpt {

/// The shape of a model as a checkpoint keeps it: five values.
struct stored_config {
  std::uint64_t layers = 0, width = 0, heads = 0, context = 0;
  bool tied_head = false;

  stored_config() = default;
  explicit stored_config(const model_config& config)
      : layers(config.layers),
        width(config.width),
        heads(config.heads),
        context(config.context),
        tied_head(config.tied_head) {}

  model_config shape() const {
    return {.layers = layers, .width = width, .heads = heads, .context = context, .tied_head = tied_head};
  }
  void register_state(cairn::state_scope& scope) {
    scope.value("layers", layers);
    scope.value("width", width);
    scope.value("heads", heads);
    scope.value("context", context);
    scope.value("tied_head", tied_head);
  }
};

/// Adds the parameters, each under "model." and its name: whole tensors, on every rank the same. The model
/// must outlive the state.
inline void add_model(cairn::state_dict& state, model<float>& net) {
  for (const named_tensor& tensor : net.tensors()) {
    const std::vector<std::int64_t> shape(tensor.shape.begin(), tensor.shape.end());
    state.tensor("model." + tensor.name, net.parameters().data() + tensor.offset, cairn::extents(shape));
  }
}

/// Adds this rank's part of a flat tensor.
inline void add_part(cairn::state_dict& state, const char* name, std::vector<float>& values,
                     const cairn::flat_shard& part) {
  state.tensor(name, values, part);
}

/// Everything that a rank of a run needs to go on as if it had never stopped, under the names that a
/// checkpoint gives it. Refers to the trainer, which must outlive it: a gpt::trainer, or another one like it,
/// which brings add_model and add_part for what it has.
template <class Trainer>
class basic_run_state {
 public:
  explicit basic_run_state(Trainer& run) : run_(run), config_(run.net().config()) {
    const cairn::flat_shard part{{static_cast<std::int64_t>(run.net().parameters().size())},
                                 static_cast<std::int64_t>(run.range().begin)};
    state_.object("config", config_);
    add_model(state_, run.net());
    add_part(state_, "adam.m", run.m(), part);
    add_part(state_, "adam.v", run.v(), part);
    state_.value("learning_rate", run.learning_rate());
    state_.bytes("data_loader", loader_);
    // Optional: on more ranks than the checkpoint had, the new ones begin with their own.
    state_.bytes("rng", generator_, cairn::per_rank, cairn::optional);
    collect(0);
  }
  basic_run_state(const basic_run_state&) = delete;
  basic_run_state& operator=(const basic_run_state&) = delete;

  cairn::state_dict& dict() { return state_; }

  /// Before a save: writes down where generator and data are.
  /// @param step completed updates
  void collect(std::uint64_t step) {
    loader_ = run_.loader().save(step);
    generator_ = run_.generator().save();
  }

  /// After a load: takes up what was written down.
  /// @throws std::runtime_error if the checkpoint belongs to another model or another stream of data
  void restored(std::uint64_t step) {
    if (config_.shape() != run_.net().config())
      throw std::runtime_error(
          "the checkpoint holds another model; give the options that it was trained with");
    run_.loader().check(loader_, step);
    run_.generator().restore(generator_);
  }

 private:
  Trainer& run_;
  stored_config config_;
  std::vector<std::byte> loader_, generator_;
  cairn::state_dict state_;
};
using run_state = basic_run_state<trainer>;

}  // namespace gpt
