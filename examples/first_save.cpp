// SPDX-License-Identifier: Apache-2.0
// test: @DIR@/checkpoints
// expect: step 3 is committed
//
// The smallest trainer that survives: run it twice with the same directory, and it goes on where it was.
#include <cairn/cairn.hpp>

#include <cstdio>
#include <exception>
#include <vector>

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: first_save DIRECTORY\nDIRECTORY: where checkpoints are written\n");
    return 2;
  }
  std::vector<float> weights(512 * 64, 0.5f);
  double learning_rate = 0.01;

  cairn::state_dict state;
  state.tensor("weights", weights, {512, 64});
  state.value("learning_rate", learning_rate);

  cairn::checkpointer ckpt{cairn::file_store{argv[1]}};
  auto step = ckpt.resume(state).value_or(0);
  for (const auto last = step + 3; step < last;) {
    for (auto& w : weights) w -= static_cast<float>(learning_rate) * w;
    ++step;
    ckpt.save(state, step);
  }
  ckpt.close();
  std::printf("step %lld is committed in %s\n", static_cast<long long>(step), argv[1]);
} catch (const std::exception& e) {
  std::fprintf(stderr, "first_save: %s\n", e.what());
  return 1;
}
