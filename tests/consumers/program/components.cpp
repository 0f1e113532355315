// SPDX-License-Identifier: Apache-2.0
// What find_package(cairn COMPONENTS ...) brings besides, in one program: a worker process saves into a store that is chosen
// by its URL; a rank reads over its own peer link; MPI is linked, and not started.
#include <cairn/cairn.hpp>
#include <cairn/comm/mpi_communicator.hpp>
#include <cairn/comm/shared_memory_communicator.hpp>
#include <cairn/execute/process_executor.hpp>
#include <cairn/execute/worker_main.hpp>
#include <cairn/links/tls_link.hpp>
#include <cairn/stage/shared_stager.hpp>
#include <cairn/stores/s3_url.hpp>

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

int main(int argc, char** argv) try {
  cairn::worker_main(argc, argv);
  if (argc == 3) {
    MPI_Init(&argc, &argv);
    return cairn::mpi_communicator{MPI_COMM_WORLD}.size();
  }
  if (argc != 2) return 2;
  std::vector<float> weights(512 * 64, 0.5f);
  cairn::state_dict state;
  state.tensor("weights", weights, {512, 64});
  cairn::checkpointer ckpt{cairn::open_store("file:" + std::string(argv[1])), cairn::shared_stager{},
                           cairn::process_executor{},
                           cairn::shared_memory_communicator{"consumer." + std::to_string(::getpid()), 0, 1}};
  ckpt.save(state, 1).wait();
  weights.assign(weights.size(), 0);
  if (ckpt.resume(state) != 1 || weights.back() != 0.5f)
    throw std::runtime_error("what a worker saved does not load");
  ckpt.close();
  cairn::tls_link_port port({.address = "127.0.0.1"});
  const std::vector<std::vector<std::byte>> addresses{port.address()};
  cairn::tls_link link(std::move(port), cairn::link_key::random(), 0, addresses);
  const std::span<const std::byte> parts[] = {std::as_bytes(std::span(weights))};
  link.offer({"weights", 1}, parts);
  if (link.await_offer(0, {"weights", 1}, cairn::deadline::in(std::chrono::minutes(1))) != parts[0].size())
    throw std::runtime_error("what a link offers is not there");
  std::printf("saved by a worker process and loaded\n");
} catch (const std::exception& e) {
  std::fprintf(stderr, "consumer: %s\n", e.what());
  return 1;
}
