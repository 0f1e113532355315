// SPDX-License-Identifier: Apache-2.0
#pragma once
// Cases of test_gpu.cu that take two devices.
#include <cairn/cairn.hpp>
#include <cairn/cuda/gathering_stager.cuh>

#include <cuda_runtime.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace two_devices {

using gpu = cairn::cuda::gathering_runtime;

inline bool there_are_two() {
  int count = 0;
  REQUIRE(gpu::device_count(count) == gpu::success);
  if (count < 2) MESSAGE("left out: there is one device");
  return count >= 2;
}
/// The numbers of the devices on which this process has a context.
inline std::string contexts() {
  std::string found;
  int count = 0;
  REQUIRE(gpu::device_count(count) == gpu::success);
  for (int device = 0; device < count; ++device) {
    bool yes = false;
    REQUIRE(gpu::has_context(device, yes) == gpu::success);
    if (yes) found += std::to_string(device);
  }
  return found;
}

/// The memory of a rank on the second device.
struct on_second_device {
  on_second_device() {
    REQUIRE(gpu::use_device(1) == gpu::success);
    REQUIRE(cudaMalloc(&weights, bytes) == cudaSuccess);
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    options.compute = {{1, stream}};
  }
  ~on_second_device() {
    (void)cudaStreamDestroy(stream);
    (void)cudaFree(weights);
  }
  /// Works with any current device of the calling thread.
  void train(int value) const {
    std::thread([&] {
      CHECK(cudaSetDevice(1) == cudaSuccess);
      CHECK(cudaMemsetAsync(weights, value, bytes, stream) == cudaSuccess);
    }).join();
  }
  static constexpr std::int64_t count = 1'000'000;
  static constexpr std::size_t bytes = count * sizeof(float);
  float* weights = nullptr;
  cudaStream_t stream = nullptr;
  cairn::cuda::gathering_engine_options options;
};

__global__ void add_one(int* to) {
  *to += 1;
}

/// A save, and a load over what training has done since.
inline void saves_and_loads(const on_second_device& rank) {
  rank.train(7);
  const cairn::memory_store store;
  cairn::checkpointer checkpoints{
      store, cairn::cuda::gathering_stager({}, cairn::cuda::gathering_engine(rank.options)),
      cairn::overlapped{}, cairn::checkpointer_options{.quiet = true}};
  cairn::state_dict state;
  state.tensor("weights",
               cairn::cuda::device_view(rank.weights, cairn::dtype::f32, {on_second_device::count}));
  checkpoints.prepare(state);
  auto saved = checkpoints.save(state, 1);
  checkpoints.before_update(rank.stream, 1);
  rank.train(9);
  saved.wait();
  CHECK(contexts() == "1");
  checkpoints.load(state, 1);
  checkpoints.close();
}

TEST_CASE("what belongs to another device is refused, or not, as the double and the emulation have it") {
  if (!there_are_two()) return;
  cudaStream_t there = nullptr;
  cudaEvent_t of_there = nullptr, of_here = nullptr;
  int *memory = nullptr, back = 0;
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  REQUIRE(cudaStreamCreateWithFlags(&there, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(gpu::make_event(of_there) == gpu::success);
  REQUIRE(cudaMalloc(&memory, sizeof *memory) == cudaSuccess);
  CHECK(cudaMemset(memory, 0, sizeof *memory) == cudaSuccess);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  REQUIRE(gpu::make_event(of_here) == gpu::success);
  add_one<<<1, 1, 0, there>>>(memory);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  CHECK(gpu::record(of_here, there) == cudaErrorInvalidResourceHandle);
  CHECK(gpu::record(of_there, nullptr) == cudaErrorInvalidResourceHandle);
  CHECK(gpu::record(of_there, there) == gpu::success);
  CHECK(gpu::wait(nullptr, of_there) == gpu::success);
  CHECK(cudaMemcpyAsync(&back, memory, sizeof back, cudaMemcpyDeviceToHost, there) == cudaSuccess);
  CHECK(cudaStreamSynchronize(there) == cudaSuccess);
  CHECK(back == 0);
  CHECK(gpu::query(of_there) == gpu::success);
  int device = -1;
  CHECK(gpu::device_of(reinterpret_cast<std::byte*>(memory), device) == gpu::success);
  CHECK(device == 1);
  std::thread([] {
    int fresh = -1;
    CHECK(gpu::current_device(fresh) == gpu::success);
    CHECK(fresh == 0);
  }).join();
  CHECK(gpu::destroy_event(of_there) == gpu::success);
  CHECK(gpu::destroy_event(of_here) == gpu::success);
  CHECK(gpu::destroy_stream(there) == gpu::success);
  CHECK(cudaFree(memory) == cudaSuccess);
}

// In a process of their own, which has no context on the first device.
TEST_CASE("alone: a rank on the second device makes no context on the first by a save and a load" *
          doctest::skip()) {
  if (!there_are_two()) return;
  {
    on_second_device rank;
    CHECK(contexts() == "1");
    SUBCASE("on the thread that chose the device") {
      saves_and_loads(rank);
    }
    SUBCASE("on a thread that chose none") {
      std::thread([&] { saves_and_loads(rank); }).join();
    }
    std::vector<unsigned char> read(rank.bytes);
    CHECK(cudaMemcpy(read.data(), rank.weights, read.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(std::count(read.begin(), read.end(), 7) == static_cast<std::ptrdiff_t>(read.size()));
  }
  CHECK(contexts() == "1");
}
TEST_CASE("alone: what was made on a device is given back there, whatever thread does it" * doctest::skip()) {
  if (!there_are_two()) return;
  on_second_device rank;
  REQUIRE(contexts() == "1");
  const auto ends_elsewhere = [](auto& thing) {
    std::thread([&] { thing.reset(); }).join();
    CHECK(contexts() == "1");
  };
  std::optional<cairn::cuda::detail::owned_event<gpu>> event(1);
  ends_elsewhere(event);
  using memory_type = cairn::cuda::pinned<cairn::heap_memory>;
  std::optional<memory_type::block_type> block(memory_type().allocate(4096));
  ends_elsewhere(block);
  std::optional<cairn::cuda::detail::copy_queue<gpu>> queue(std::in_place, 1, rank.stream, true, 4096);
  REQUIRE(queue->staging() != nullptr);
  ends_elsewhere(queue);
}

}  // namespace two_devices
