// SPDX-License-Identifier: Apache-2.0
// links: cairn::nccl
//
// On GPUs: that NCCL means what the double says, and the conformance suite of Communicator by NCCL, with one
// rank for each device (NCCL takes no two ranks on one). With one device that is a world of one rank:
// everything but messages. tests/gpu.sh builds and runs it.
#include <cairn/comm/nccl_communicator.hpp>
#include <cairn/comm/thread_communicator.hpp>

#include <cuda_runtime.h>

#include <doctest/doctest.h>
#include <support/communicator_conformance.hpp>
#include <support/nccl_semantics.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

namespace {

using namespace cairn_test;
using communicator = cairn::cuda::nccl_communicator<cairn::thread_communicator>;

int devices() {
  int count = 0;
  REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
  return std::min(count, 4);
}

/// A rank for each device, as threads; all long messages go by NCCL.
template <std::uint64_t Least, std::uint64_t Piece>
struct nccl_env {
  static int size() { return devices(); }
  template <class Body>
  void run(Body body) {
    const auto ranks = static_cast<std::size_t>(size());
    const cairn::thread_group group{size()};
    std::vector<std::optional<communicator>> all(ranks);
    in_threads(ranks, [&](std::size_t rank) {
      const auto number = static_cast<int>(rank);
      REQUIRE(cudaSetDevice(number) == cudaSuccess);
      all[rank].emplace(
          group.communicator(number),
          cairn::cuda::nccl_options{.device = number, .min_bytes = Least, .buffer_bytes = Piece});
    });
    in_threads(ranks, [&](std::size_t rank) { body(*all[rank]); });
    for (const auto& each : all) CHECK(each->broken().empty());
  }
  template <class Body>
  static void in_threads(std::size_t count, Body body) {
    std::vector<std::exception_ptr> thrown(count);
    {
      std::vector<std::jthread> threads;
      for (std::size_t rank = 0; rank < count; ++rank)
        threads.emplace_back([&, rank] {
          try {
            body(rank);
          } catch (...) {
            thrown[rank] = std::current_exception();
          }
        });
    }
    for (const auto& each : thrown)
      if (each) std::rethrow_exception(each);
  }
};

}  // namespace

TEST_CASE("NCCL means what cairn relies on") {
  std::printf("a world of %d rank%s, on a device each%s\n", devices(), devices() == 1 ? "" : "s",
              devices() == 1 ? ": nothing goes from device to device, which takes two" : "");
  nccl_semantics<cairn::cuda::nccl_runtime>(devices());
}

TEST_CASE_TEMPLATE_INVOKE(communicator_conformance, nccl_env<1, 1 << 20>, nccl_env<65536, 3'000'000>);
