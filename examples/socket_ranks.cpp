// SPDX-License-Identifier: Apache-2.0
// test: @DIR@/checkpoints 3
// expect: rank 0 of 1: step 3 committed
// links: cairn::links
//
// Ranks of any hosts without MPI: started by torchrun, by srun, or by hand with a rank, how many there are, and where rank 0
// listens. Each of them holds its part of a sharded state, which all of them save after each step.
#include <cairn/cairn.hpp>
#include <cairn/comm/socket_communicator.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

cairn::socket_job job_of(int argc, char** argv) {
  if (argc > 5) return cairn::socket_job::at("socket_ranks", std::atoi(argv[3]), std::atoi(argv[4]), argv[5]);
  if (std::getenv("MASTER_PORT") != nullptr) return cairn::socket_job::torchrun("socket_ranks");
  if (std::getenv("SLURM_PROCID") != nullptr) return cairn::socket_job::slurm("socket_ranks");
  return {.name = "socket_ranks"};  // one rank
}

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fprintf(
        stderr,
        "usage: socket_ranks DIRECTORY STEPS [RANK RANKS HOST:PORT]\nDIRECTORY: a store that all ranks see; "
        "RANK RANKS HOST:PORT: where neither torchrun nor srun says them\n");
    return 2;
  }
  cairn::socket_communicator ranks{job_of(argc, argv), {.lost_after = std::chrono::seconds(4)}};
  const int rank = ranks.rank(), size = ranks.size();

  constexpr std::int64_t numbers = 100'000;
  const auto first = numbers * rank / size, last = numbers * (rank + 1) / size;
  std::vector<float> weights(static_cast<std::size_t>(last - first));
  cairn::state_dict state;
  state.tensor("weights", weights, cairn::flat_shard{{numbers}, first});

  cairn::checkpointer ckpt{cairn::file_store{argv[1]}, std::move(ranks)};
  auto step = ckpt.resume(state).value_or(0);
  std::printf("rank %d of %d: begins after step %lld\n", rank, size, static_cast<long long>(step));
  for (const auto& each : weights)
    if (each != static_cast<float>(step)) throw std::runtime_error("what was loaded differs");
  while (step < std::atoll(argv[2])) {
    for (auto& each : weights) each += 1;  // your training step
    ++step;
    ckpt.save(state, step).wait();  // as a trainer would not: it goes on while its save is written
    std::printf("rank %d of %d: step %lld committed\n", rank, size, static_cast<long long>(step));
    std::fflush(stdout);
  }
  ckpt.close();
} catch (const std::exception& e) {
  std::fprintf(stderr, "socket_ranks: %s\n", e.what());
  return 1;
}
