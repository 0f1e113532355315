// SPDX-License-Identifier: Apache-2.0
// test: @DIR@/checkpoints
// expect: steps 2 and 3 are in plain files in .*, and load
//
// A store of one's own: plain_store.hpp is all that it takes; map_store.hpp is the smallest one.
// tests/test_your_own_store.cpp runs the suite on both that every store must pass.
#include "plain_store.hpp"

#include <cairn/cairn.hpp>

#include <cstdio>
#include <exception>
#include <vector>

static_assert(cairn::ByteStore<plain_store>);

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(
        stderr,
        "usage: your_own_store DIRECTORY\nDIRECTORY: where the store keeps its files; empty or not there\n");
    return 2;
  }
  plain_store store{argv[1]};
  std::vector<float> weights(1 << 20);
  cairn::state_dict state;
  state.tensor("weights", weights, {1024, 1024});

  cairn::checkpointer ckpt{store, cairn::keep_last(2)};
  for (int step = 1; step <= 3; ++step) {
    weights.assign(weights.size(), static_cast<float>(step));
    ckpt.save(state, step).wait();
  }
  const auto steps = ckpt.list();
  for (const auto step : steps) {
    ckpt.load(state, step);
    if (weights.back() != static_cast<float>(step)) throw std::runtime_error("this is not what was saved");
  }
  ckpt.close();
  if (steps != std::vector<std::int64_t>{2, 3})
    throw std::runtime_error("other steps are there than should be kept");
  std::printf("steps 2 and 3 are in %s, and load\n", store.describe().c_str());
} catch (const std::exception& e) {
  std::fprintf(stderr, "your_own_store: %s\n", e.what());
  return 1;
}
