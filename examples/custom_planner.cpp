// SPDX-License-Identifier: Apache-2.0
// test: @DIR@/checkpoints
// expect: 2 items in half precision, largest difference after loading 0\.00[0-9]+
//
// A planner of one's own: leaves caches out, names everything "model.*", and stores fp32 tensors as bf16;
// loads cast back.
#include <cairn/cairn.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <vector>

struct half_planner : cairn::basic_planner<half_planner> {
  std::optional<std::string> stored_name(const cairn::state_entry& entry) const {
    if (entry.name.starts_with("cache.")) return std::nullopt;
    return "model." + entry.name;
  }
  cairn::dtype stored_dtype(const cairn::state_entry& entry) const {
    return entry.type == cairn::dtype::f32 ? cairn::dtype::bf16 : entry.type;
  }
};

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(
        stderr,
        "usage: custom_planner DIRECTORY\nDIRECTORY: where the checkpoint is written; empty or not there\n");
    return 2;
  }
  std::vector<float> weights(256 * 32);
  std::vector<float> bias(32, 0.125f);
  std::vector<float> scratch(1000);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = std::sin(static_cast<float>(i));
  const auto original = weights;

  cairn::state_dict state;
  state.tensor("weights", weights, {256, 32});
  state.tensor("bias", bias, {32});
  state.tensor("cache.scratch", scratch, {1000});

  cairn::checkpointer ckpt{cairn::file_store{argv[1]}, half_planner{}};
  ckpt.save(state, 1).wait();
  for (auto& w : weights) w = 0;
  ckpt.load(state, 1);

  float difference = 0;
  for (std::size_t i = 0; i < weights.size(); ++i)
    difference = std::max(difference, std::abs(weights[i] - original[i]));
  std::printf("2 items in half precision, largest difference after loading %f\n",
              static_cast<double>(difference));
} catch (const std::exception& e) {
  std::fprintf(stderr, "custom_planner: %s\n", e.what());
  return 1;
}
