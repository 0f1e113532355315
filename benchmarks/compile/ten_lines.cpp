// SPDX-License-Identifier: Apache-2.0
// The ten lines of the README.
#include <cairn/cairn.hpp>

#include <cstdint>
#include <vector>

int main() {
  std::vector<float> weights(512 * 64);
  double learning_rate = 0.01;

  cairn::state_dict state;
  state.tensor("weights", weights, {512, 64});
  state.value("learning_rate", learning_rate);

  cairn::checkpointer ckpt{cairn::file_store{"checkpoints"}};
  auto step = ckpt.resume(state).value_or(0);
  while (step < 200) {
    ++step;
    if (step % 100 == 0) ckpt.save(state, step);
  }
  ckpt.close();
}
