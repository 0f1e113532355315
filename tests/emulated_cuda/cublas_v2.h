// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of cuBLAS that training uses: products as sums in the order of their terms.
#include "cuda_runtime_api.h"

enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_EXECUTION_FAILED = 13
};
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasMath_t { CUBLAS_DEFAULT_MATH = 0, CUBLAS_PEDANTIC_MATH = 2 };
enum cublasAtomicsMode_t { CUBLAS_ATOMICS_NOT_ALLOWED = 0 };

struct cublasContext {
  cudaStream_t stream = nullptr;
  int device = emulated_cuda::current_device;
};
using cublasHandle_t = cublasContext*;

inline const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
         : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
                                                 : "CUBLAS_STATUS_EXECUTION_FAILED";
}
inline cublasStatus_t cublasCreate(cublasHandle_t* made) {
  *made = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasDestroy(cublasHandle_t h) {
  (void)cudaDeviceSynchronize();
  delete h;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetStream(cublasHandle_t h, cudaStream_t s) {
  h->stream = s;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetWorkspace(cublasHandle_t, void* data, std::size_t) {
  return reinterpret_cast<std::uintptr_t>(data) % 256 == 0 ? CUBLAS_STATUS_SUCCESS
                                                           : CUBLAS_STATUS_INVALID_VALUE;
}
inline cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) {
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetAtomicsMode(cublasHandle_t, cublasAtomicsMode_t) {
  return CUBLAS_STATUS_SUCCESS;
}

/// Column-major, as in Fortran: c (m x n) = alpha * op(a) (m x k) * op(b) (k x n) + beta * c.
inline cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t h, cublasOperation_t op_a,
                                                cublasOperation_t op_b, int m, int n, int k,
                                                const float* alpha, const float* a, int lda,
                                                long long stride_a, const float* b, int ldb,
                                                long long stride_b, const float* beta, float* c, int ldc,
                                                long long stride_c, int count) {
  const bool plain_a = op_a == CUBLAS_OP_N, plain_b = op_b == CUBLAS_OP_N;
  if (m < 0 || n < 0 || k < 0 || count < 0 || lda < std::max(1, plain_a ? m : k) ||
      ldb < std::max(1, plain_b ? k : n) || ldc < std::max(1, m))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (m == 0 || n == 0 || count == 0) return CUBLAS_STATUS_SUCCESS;
  const auto status = emulated_cuda::calling([&](auto& d, auto& lock) {
    auto* const s = d.find(h->stream);
    if (s == nullptr || s->device != h->device) return cudaErrorInvalidResourceHandle;
    return d.put(
        lock, s,
        {[=, factor = *alpha, keep = *beta] {
           // Checks that the memory of a matrix is as large as its shape says.
           const auto there = [&](const float* at, int columns, int ld, int rows, long long stride) {
             const auto floats = (count - 1) * stride + (columns - 1) * static_cast<long long>(ld) + rows;
             return emulated_cuda::devices::get().holds_now(at,
                                                            static_cast<std::size_t>(floats) * sizeof(float));
           };
           if (!there(a, plain_a ? k : m, lda, plain_a ? m : k, stride_a) ||
               !there(b, plain_b ? n : k, ldb, plain_b ? k : n, stride_b) || !there(c, n, ldc, m, stride_c))
             return cudaErrorIllegalAddress;
           for (int i = 0; i < count; ++i) {
             const float *a1 = a + i * stride_a, *b1 = b + i * stride_b;
             float* const c1 = c + i * stride_c;
             const auto index = [](int row, int column, int ld) {
               return row + static_cast<std::ptrdiff_t>(column) * ld;
             };
             for (int column = 0; column < n; ++column)
               for (int row = 0; row < m; ++row) {
                 float sum = 0;
                 for (int j = 0; j < k; ++j)
                   sum += a1[plain_a ? index(row, j, lda) : index(j, row, lda)] *
                          b1[plain_b ? index(j, column, ldb) : index(column, j, ldb)];
                 float& out = c1[index(row, column, ldc)];
                 out = keep == 0 ? factor * sum : factor * sum + keep * out;
               }
           }
           return cudaSuccess;
         },
         nullptr, nullptr});
  });
  return status == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
