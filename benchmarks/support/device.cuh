// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the benchmarks of devices share: memory, matrix work of a known size, and images by hand.
#include <cairn/cuda/gathering_stager.cuh>
#include <cairn/model/image_layout.hpp>
#include <cairn/system/digest.hpp>

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <support/bench.hpp>
#include <utility>
#include <vector>

namespace cairn_bench {

inline void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}
inline void check_blas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string(what) + ": " + cublasGetStatusString(status));
}

/// "NVIDIA H200, compute capability 9.0, ..."; throws where there is no device.
inline std::string device_text() {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "there is no GPU");
  if (count == 0) throw std::runtime_error("there is no GPU");
  cudaDeviceProp device{};
  check_cuda(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  int driver = 0;
  check_cuda(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  return std::string(device.name) + ", compute capability " + std::to_string(device.major) + "." +
         std::to_string(device.minor) + ", " + std::to_string(device.multiProcessorCount) +
         " multiprocessors, driver for CUDA " + std::to_string(driver / 1000) + "." +
         std::to_string(driver % 1000 / 10);
}

/// Numbers that differ everywhere, small enough for matrix products.
static __global__ void fill_numbers(std::uint64_t count, __nv_bfloat16* out, std::uint32_t seed) {
  const std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  auto x = static_cast<std::uint32_t>(i) * 2654435761u + seed;
  x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
  out[i] = __float2bfloat16((static_cast<float>(x >> 8) * 0x1p-24f - 0.5f) * 0.1f);
}

/// Memory of the device, filled.
class device_memory {
 public:
  explicit device_memory(std::uint64_t bytes, std::uint32_t seed = 1) : bytes_(bytes) {
    check_cuda(cudaMalloc(&data_, bytes), "cudaMalloc");
    const std::uint64_t count = bytes / 2;
    fill_numbers<<<static_cast<unsigned>((count + 255) / 256), 256>>>(
        count, static_cast<__nv_bfloat16*>(data_), seed);
    check_cuda(cudaDeviceSynchronize(), "filling memory");
  }
  device_memory(device_memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  ~device_memory() { cudaFree(data_); }
  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  void* data_ = nullptr;
  std::uint64_t bytes_;
};

class device_stream {
 public:
  device_stream() {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  device_stream(const device_stream&) = delete;
  device_stream& operator=(const device_stream&) = delete;
  ~device_stream() { cudaStreamDestroy(stream_); }
  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }
  void wait() const { check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Products of bf16 matrices of 8192 x 8192 on a stream.
class matrix_work {
 public:
  explicit matrix_work(cudaStream_t stream)
      : a_(bytes, 1), b_(bytes, 2), c_(bytes, 3), workspace_(std::uint64_t{32} << 20) {
    check_blas(cublasCreate(&blas_), "cublasCreate");
    check_blas(cublasSetStream(blas_, stream), "cublasSetStream");
    check_blas(cublasSetWorkspace(blas_, workspace_.data(), workspace_.bytes()), "cublasSetWorkspace");
  }
  matrix_work(const matrix_work&) = delete;
  matrix_work& operator=(const matrix_work&) = delete;
  ~matrix_work() { cublasDestroy(blas_); }
  void launch(int times) const {
    const float one = 1;
    const float zero = 0;
    for (int i = 0; i < times; ++i)
      check_blas(cublasGemmEx(blas_, CUBLAS_OP_N, CUBLAS_OP_N, side, side, side, &one, a_.data(), CUDA_R_16BF,
                              side, b_.data(), CUDA_R_16BF, side, &zero, c_.data(), CUDA_R_16BF, side,
                              CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                 "cublasGemmEx");
  }
  [[nodiscard]] const __nv_bfloat16* result() const noexcept {
    return reinterpret_cast<const __nv_bfloat16*>(c_.data());
  }
  static constexpr int side = 8192;
  static constexpr double operations = 2.0 * side * side * side;  ///< of one product
  static constexpr std::uint64_t elements = std::uint64_t{side} * side;

 private:
  static constexpr std::uint64_t bytes = elements * 2;
  device_memory a_, b_, c_, workspace_;
  cublasHandle_t blas_ = nullptr;
};

/// One file of device tensors behind each other, as a stager takes it.
struct device_image {
  std::shared_ptr<const cairn::image_layout> layout;
  std::vector<cairn::item_source> sources;
};
inline device_image image_of(const std::vector<cairn::tensor_view>& views) {
  cairn::image_layout layout;
  cairn::image_segment file;
  file.header.resize(4096);
  std::uint64_t at = file.header.size();
  device_image made;
  for (const auto& view : views) {
    cairn::item_placement place;
    place.item = static_cast<std::uint32_t>(made.sources.size());
    place.begin = at;
    place.bytes = view.bytes();
    place.first_block = layout.blocks;
    layout.blocks += cairn::block_count(place.bytes);
    at += place.bytes;
    layout.items.push_back(place);
    made.sources.push_back({view, nullptr});
  }
  file.bytes = at;
  layout.segments.push_back(std::move(file));
  layout.bytes = (at + cairn::image_alignment - 1) / cairn::image_alignment * cairn::image_alignment;
  made.layout = std::make_shared<const cairn::image_layout>(std::move(layout));
  return made;
}

}  // namespace cairn_bench
