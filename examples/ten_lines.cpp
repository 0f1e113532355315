// SPDX-License-Identifier: Apache-2.0
// test
// expect: step 200 committed
//
// The program of the README, as it is printed there.
#include <cairn/cairn.hpp>

#include <vector>

int main() {
  std::vector<float> weights(512 * 64);
  double learning_rate = 0.01;

  cairn::state_dict state;
  state.tensor("weights", weights, {512, 64});
  state.value("learning_rate", learning_rate);

  cairn::checkpointer ckpt{cairn::file_store{"checkpoints"}};
  auto step = ckpt.resume(state).value_or(0);  // the newest checkpoint that loads; 0 if there is none
  while (step < 200) {
    for (auto& w : weights) w -= static_cast<float>(learning_rate) * (w - 1);  // your training step
    ++step;
    if (step % 100 == 0) ckpt.save(state, step);  // returns when the memory is copied
  }
  ckpt.close();  // waits for the last save, and throws if it failed
}
