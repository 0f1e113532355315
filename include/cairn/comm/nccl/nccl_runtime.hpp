// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::nccl
#pragma once
#include <cairn/comm/nccl/nccl_calls.hpp>
#include <cairn/cuda/runtime.hpp>

#include <nccl.h>

#include <cstddef>
#include <cstdint>

namespace cairn {
inline namespace v1 {
namespace cuda {

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0), "cairn::nccl needs NCCL 2.19 or later");

/// NCCL, 2.19 or later. See NcclRuntime.
struct nccl_runtime : runtime {
  using nccl_type = ncclComm_t;
  using nccl_id = ncclUniqueId;
  /// NCCL's statuses follow those of CUDA.
  static constexpr int first_of_nccl = 1 << 20;
  static constexpr int in_progress = first_of_nccl + ncclInProgress;

  static const char* name_of(int status) noexcept {
    if (status < first_of_nccl) return runtime::name_of(status);
    switch (as_result(status)) {
      case ncclUnhandledCudaError:
        return "ncclUnhandledCudaError";
      case ncclSystemError:
        return "ncclSystemError";
      case ncclInternalError:
        return "ncclInternalError";
      case ncclInvalidArgument:
        return "ncclInvalidArgument";
      case ncclInvalidUsage:
        return "ncclInvalidUsage";
      case ncclRemoteError:
        return "ncclRemoteError";
      case ncclInProgress:
        return "ncclInProgress";
      default:
        return "an error of NCCL";
    }
  }
  static const char* text_of(int status) noexcept {
    return status < first_of_nccl ? runtime::text_of(status) : ncclGetErrorString(as_result(status));
  }

  static int make_id(ncclUniqueId& id) noexcept { return code(ncclGetUniqueId(&id)); }
  static int open(ncclComm_t& comm, int size, const ncclUniqueId& id, int rank) noexcept {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    // Messages are few, and training wants the multiprocessors.
    config.maxCTAs = 4;
    return code(ncclCommInitRankConfig(&comm, size, id, rank, &config));
  }
  static int state(ncclComm_t comm, int& now) noexcept {
    ncclResult_t asynchronous = ncclSuccess;
    const auto status = code(ncclCommGetAsyncError(comm, &asynchronous));
    now = code(asynchronous);
    return status;
  }
  static int send(ncclComm_t comm, const std::byte* from, std::uint64_t bytes, int peer,
                  cudaStream_t stream) noexcept {
    return code(ncclSend(from, bytes, ncclUint8, peer, comm, stream));
  }
  static int receive(ncclComm_t comm, std::byte* to, std::uint64_t bytes, int peer,
                     cudaStream_t stream) noexcept {
    return code(ncclRecv(to, bytes, ncclUint8, peer, comm, stream));
  }
  static int abort(ncclComm_t comm) noexcept { return code(ncclCommAbort(comm)); }
  static int register_buffer(ncclComm_t comm, std::byte* data, std::uint64_t bytes, void*& handle) noexcept {
    return code(ncclCommRegister(comm, data, bytes, &handle));
  }
  static const char* last_error(ncclComm_t comm) noexcept {
    const char* words = ncclGetLastError(comm);
    return words != nullptr ? words : "";
  }

 private:
  static ncclResult_t as_result(int status) noexcept {
    return static_cast<ncclResult_t>(status - first_of_nccl);
  }
  static int code(ncclResult_t result) noexcept {
    // What NCCL met in CUDA must not be found again by the program's next cudaGetLastError().
    if (result == ncclUnhandledCudaError) (void)cudaGetLastError();
    return result == ncclSuccess ? success : first_of_nccl + static_cast<int>(result);
  }
};
static_assert(NcclRuntime<nccl_runtime>, "cuda::nccl_runtime must model NcclRuntime");

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
