// SPDX-License-Identifier: Apache-2.0
// test: @DIR@/checkpoints
// expect: step 5 is committed; [0-9]+ MB were copied while training went on
//
// A trainer of two files: this one sees the light header alone, checkpoints.cpp says how checkpoints are made.
#include "checkpoints.hpp"

#include <cstdio>
#include <exception>
#include <vector>

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: any_checkpointer DIRECTORY\nDIRECTORY: where checkpoints are written\n");
    return 2;
  }
  std::vector<float> weights(1 << 20, 0.5f);
  std::vector<float> gradients(weights.size());
  cairn::state_dict state;
  state.tensor("weights", weights, {1024, 1024});

  cairn::any_checkpointer ckpt = make_checkpointer(argv[1]);
  cairn::save_handle last;
  auto step = ckpt.resume(state).value_or(0);
  for (const auto end = step + 5; step < end;) {
    for (std::size_t i = 0; i < weights.size(); ++i)
      gradients[i] = weights[i] - 1;  // reads the weights: may overlap
    ckpt.before_update();             // from here on they change
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= 0.1f * gradients[i];
    last = ckpt.save(state, ++step);
  }
  ckpt.before_update();
  ckpt.close();
  std::printf("step %lld is committed; %llu MB were copied while training went on\n",
              static_cast<long long>(step), static_cast<unsigned long long>(last.report().bytes >> 20));
} catch (const std::exception& e) {
  std::fprintf(stderr, "any_checkpointer: %s\n", e.what());
  return 1;
}
