// SPDX-License-Identifier: Apache-2.0
// The ten lines in a trainer that has another file make its checkpointer.
#include <cairn/any_checkpointer.hpp>

#include <cstdint>
#include <vector>

cairn::any_checkpointer make_checkpointer();

int main() {
  std::vector<float> weights(512 * 64);
  double learning_rate = 0.01;

  cairn::state_dict state;
  state.tensor("weights", weights, {512, 64});
  state.value("learning_rate", learning_rate);

  auto ckpt = make_checkpointer();
  auto step = ckpt.resume(state).value_or(0);
  while (step < 200) {
    ++step;
    if (step % 100 == 0) ckpt.save(state, step);
  }
  ckpt.close();
}
