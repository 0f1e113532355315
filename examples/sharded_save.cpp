// SPDX-License-Identifier: Apache-2.0
// test: @DIR@/checkpoints
// expect: 3 ranks loaded what 4 ranks saved: every number of 40 layers is right
//
// A state that is sharded over ranks, as FSDP and ZeRO do it: 4 ranks save it, 3 load it. Ranks are threads here; with
// processes only the communicator is another one.
#include <cairn/cairn.hpp>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <thread>
#include <vector>

constexpr std::int64_t layers = 40, rows = 500, columns = 256;

/// What one rank holds: of each layer the flattened numbers [first, last), weights and a moment of the optimizer.
struct sharded_model {
  sharded_model(int rank, int ranks)
      : first(rows * columns * rank / ranks), last(rows * columns * (rank + 1) / ranks) {
    for (auto* part : {&weights, &moments})
      part->assign(layers, std::vector<float>(static_cast<std::size_t>(last - first)));
  }
  void register_state(cairn::state_scope& scope) {
    for (std::size_t i = 0; i < layers; ++i) {
      const auto name = std::to_string(i);
      scope.tensor("weight." + name, weights[i], cairn::flat_shard{{rows, columns}, first});
      scope.tensor("moment." + name, moments[i], cairn::flat_shard{{rows, columns}, first});
    }
  }
  std::int64_t first, last;
  std::vector<std::vector<float>> weights, moments;
};

/// The number that training made of place `at` of a layer, on whatever rank it lies.
float trained(std::size_t layer, std::int64_t at) {
  return static_cast<float>(layer) + static_cast<float>(at) * 1e-6f;
}

/// Runs body(rank, communicator) on a thread for each rank.
template <class Body>
void on_ranks(int ranks, Body body) {
  const cairn::thread_group group{ranks};
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank, group.communicator(rank));
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  threads.clear();  // waits for all of them
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(
        stderr,
        "usage: sharded_save DIRECTORY\nDIRECTORY: where the checkpoint is written; empty or not there\n");
    return 2;
  }
  on_ranks(4, [&](int rank, cairn::thread_communicator comm) {
    sharded_model model(rank, 4);
    for (std::size_t i = 0; i < layers; ++i)
      for (auto at = model.first; at < model.last; ++at)
        model.weights[i][static_cast<std::size_t>(at - model.first)] = trained(i, at);
    cairn::state_dict state;
    state.object("model", model);
    cairn::checkpointer ckpt{cairn::file_store{argv[1]}, std::move(comm)};
    const auto handle = ckpt.save(state, 100);
    ckpt.close();
    std::printf("rank %d of 4 wrote %llu KB of step 100\n", rank,
                static_cast<unsigned long long>(handle.report().bytes >> 10));
  });

  on_ranks(3, [&](int rank, cairn::thread_communicator comm) {
    sharded_model model(rank, 3);  // other shards: nothing else is to be said
    cairn::state_dict state;
    state.object("model", model);
    cairn::checkpointer ckpt{cairn::file_store{argv[1]}, std::move(comm)};
    ckpt.load(state, 100);
    for (std::size_t i = 0; i < layers; ++i)
      for (auto at = model.first; at < model.last; ++at)
        if (model.weights[i][static_cast<std::size_t>(at - model.first)] != trained(i, at))
          throw std::runtime_error("a number is wrong");
  });
  std::printf("3 ranks loaded what 4 ranks saved: every number of %d layers is right\n",
              static_cast<int>(layers));
} catch (const std::exception& e) {
  std::fprintf(stderr, "sharded_save: %s\n", e.what());
  return 1;
}
