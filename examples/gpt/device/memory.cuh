// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpt::device {

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string(what) + " failed: " + cudaGetErrorString(status));
}
inline void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string(what) + " failed: " + cublasGetStatusString(status));
}

/// Memory of the device in use, zeroed for all streams by the time that it is constructed.
template <class T>
class array {
 public:
  array() = default;
  explicit array(std::size_t count) : count_(count) {
    if (count == 0) return;
    check(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc");
    check(cudaMemset(data_, 0, count * sizeof(T)), "cudaMemset");
    // The host does not wait for it, nor would a stream that was made with cudaStreamNonBlocking.
    check(cudaStreamSynchronize(cudaStreamLegacy), "cudaMemset");
  }
  array(array&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  array& operator=(array&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~array() { cudaFree(data_); }

  T* data() const { return data_; }
  std::size_t size() const { return count_; }

 private:
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

/// The stream on which everything is computed, and cuBLAS on it: one stream, a workspace of its own, no TF32
/// and no atomics, so that the same numbers give the same bits each time on one kind of device.
class context {
 public:
  context() : workspace_(std::size_t{32} << 20) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cublasCreate(&blas_), "cublasCreate");
    check(cublasSetStream(blas_, stream_), "cublasSetStream");
    check(cublasSetWorkspace(blas_, workspace_.data(), workspace_.size()), "cublasSetWorkspace");
    check(cublasSetMathMode(blas_, CUBLAS_PEDANTIC_MATH), "cublasSetMathMode");
    check(cublasSetAtomicsMode(blas_, CUBLAS_ATOMICS_NOT_ALLOWED), "cublasSetAtomicsMode");
  }
  context(const context&) = delete;
  context& operator=(const context&) = delete;
  ~context() {
    cudaStreamSynchronize(stream_);
    cublasDestroy(blas_);
    cudaStreamDestroy(stream_);
  }
  cudaStream_t stream() const { return stream_; }
  cublasHandle_t blas() const { return blas_; }

  /// Waits for it.
  template <class T>
  void upload(T* to, std::span<const T> from) const {
    check(cudaMemcpyAsync(to, from.data(), from.size_bytes(), cudaMemcpyHostToDevice, stream_), "an upload");
    check(cudaStreamSynchronize(stream_), "an upload");
  }
  template <class T>
  void download(std::span<T> to, const T* from) const {
    check(cudaMemcpyAsync(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost, stream_), "a download");
    check(cudaStreamSynchronize(stream_), "a download");
  }

 private:
  array<std::byte> workspace_;
  cudaStream_t stream_ = nullptr;
  cublasHandle_t blas_ = nullptr;
};

}  // namespace gpt::device
