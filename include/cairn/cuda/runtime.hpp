// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::cuda
#pragma once
#include <cairn/cuda/device_runtime.hpp>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <span>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// CUDA's runtime, 12.0 or later. See DeviceRuntime.
struct runtime {
  using stream_type = cudaStream_t;
  using event_type = cudaEvent_t;
  static constexpr int success = cudaSuccess;
  static constexpr int not_ready = cudaErrorNotReady;
  static constexpr int unsupported = cudaErrorNotSupported;
  static constexpr int relaxed_capture = cudaStreamCaptureModeRelaxed;

  static const char* name_of(int status) noexcept { return cudaGetErrorName(as_error(status)); }
  static const char* text_of(int status) noexcept { return cudaGetErrorString(as_error(status)); }
  static int current_device(int& device) noexcept { return told(cudaGetDevice(&device)); }
  static int use_device(int device) noexcept { return told(cudaSetDevice(device)); }
  static int device_count(int& count) noexcept { return told(cudaGetDeviceCount(&count)); }
  static int has_context(int device, bool& yes) noexcept {
    static const auto state =
        reinterpret_cast<decltype(&cuDevicePrimaryCtxGetState)>(driver_call("cuDevicePrimaryCtxGetState"));
    if (state == nullptr) return unsupported;
    unsigned flags = 0;
    int active = 0;
    const int status = static_cast<int>(state(device, &flags, &active));
    yes = active != 0;
    return status;
  }
  /// By the driver, whose errors are not the program's last one.
  static int host_node(int device, int& node) noexcept {
    static const auto bus_of = reinterpret_cast<int (*)(char*, int, int)>(driver_call("cuDeviceGetPCIBusId"));
    static const auto attribute_of =
        reinterpret_cast<int (*)(int*, int, int)>(driver_call("cuDeviceGetAttribute"));
    constexpr int nearest_node = 134;  // CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, whose name older toolkits lack
    node = -1;
    char bus[32] = {};
    if (bus_of != nullptr && bus_of(bus, sizeof bus, device) == success) {
      std::transform(std::begin(bus), std::end(bus), std::begin(bus),
                     [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c; });
      char path[96];
      std::snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", bus);
      if (std::FILE* const file = std::fopen(path, "re"); file != nullptr) {
        if (std::fscanf(file, "%d", &node) != 1) node = -1;
        (void)std::fclose(file);
      }
    }
    if (node < 0 && (attribute_of == nullptr || attribute_of(&node, nearest_node, device) != success))
      node = -1;
    return success;
  }
  /// By name: where null means a stream of the calling thread (--default-stream per-thread), that one is not ordered
  /// with the streams of others.
  static cudaStream_t default_stream() noexcept { return cudaStreamLegacy; }
  static int make_stream(cudaStream_t& stream) noexcept {
    int lowest = 0;
    int highest = 0;
    if (const int status = told(cudaDeviceGetStreamPriorityRange(&lowest, &highest)); status != success)
      return status;
    return told(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, lowest));
  }
  static int destroy_stream(cudaStream_t stream) noexcept { return told(cudaStreamDestroy(stream)); }
  static int make_event(cudaEvent_t& event) noexcept {
    return told(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  static int destroy_event(cudaEvent_t event) noexcept { return told(cudaEventDestroy(event)); }
  static int record(cudaEvent_t event, cudaStream_t stream) noexcept {
    return told(cudaEventRecord(event, stream));
  }
  /// By the driver: that an event is not reached yet would take the place of the last error of the program.
  static int query(cudaEvent_t event) noexcept {
    static const auto ask = reinterpret_cast<decltype(&cuEventQuery)>(driver_call("cuEventQuery"));
    return ask != nullptr ? static_cast<int>(ask(event)) : told(cudaEventQuery(event));
  }
  static int wait(cudaStream_t stream, cudaEvent_t event) noexcept {
    return told(cudaStreamWaitEvent(stream, event, 0));
  }
  static int copy_to_host(std::byte* to, const std::byte* from, std::uint64_t bytes,
                          cudaStream_t stream) noexcept {
    return told(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream));
  }
  static int copy_rows_to_host(std::byte* to, const std::byte* from, std::uint64_t pitch, std::uint64_t width,
                               std::uint64_t rows, cudaStream_t stream) noexcept {
    return told(cudaMemcpy2DAsync(to, width, from, pitch, width, rows, cudaMemcpyDeviceToHost, stream));
  }
  static int copy_to_device(std::byte* to, const std::byte* from, std::uint64_t bytes,
                            cudaStream_t stream) noexcept {
    return told(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
  }
  static int copy_rows_to_device(std::byte* to, std::uint64_t to_pitch, const std::byte* from,
                                 std::uint64_t from_pitch, std::uint64_t width, std::uint64_t rows,
                                 cudaStream_t stream) noexcept {
    return told(
        cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, rows, cudaMemcpyHostToDevice, stream));
  }
  /// One call for all of them, with a toolkit from 12.5 on and a driver of CUDA 12.8 or later; else one for
  /// each.
  static int copy_ranges_to_host(std::span<const range_copy> parts, cudaStream_t stream) noexcept {
    return copy_ranges(parts, cudaMemcpyDeviceToHost, stream);
  }
  /// See copy_ranges_to_host.
  static int copy_ranges_to_device(std::span<const range_copy> parts, cudaStream_t stream) noexcept {
    return copy_ranges(parts, cudaMemcpyHostToDevice, stream);
  }
  static int pin(std::byte* data, std::uint64_t bytes) noexcept {
    return told(cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
  }
  static int unpin(std::byte* data) noexcept { return told(cudaHostUnregister(data)); }
  static int device_of(const std::byte* data, int& device) noexcept {
    cudaPointerAttributes attributes{};
    const int status = told(cudaPointerGetAttributes(&attributes, data));
    const bool there = attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
    if (status == success) device = there ? attributes.device : -1;
    return status;
  }
  static int allocate(std::byte*& data, std::uint64_t bytes) noexcept {
    void* made = nullptr;
    const int status = told(cudaMalloc(&made, bytes));
    data = static_cast<std::byte*>(made);
    return status;
  }
  static int deallocate(std::byte* data) noexcept { return told(cudaFree(data)); }
  static int device_address(std::byte* host, std::byte*& there) noexcept {
    void* found = nullptr;
    const int status = told(cudaHostGetDevicePointer(&found, host, 0));
    there = static_cast<std::byte*>(found);
    return status;
  }
  /// The driver's call is looked up: programs need not link the driver.
  static int write_word(std::byte* word, std::uint32_t value, cudaStream_t stream) noexcept {
    static const auto write =
        reinterpret_cast<decltype(&cuStreamWriteValue32)>(driver_call("cuStreamWriteValue32"));
    if (write == nullptr) return unsupported;
    // Without a flag, the write comes after a fence behind all that the stream wrote before.
    return static_cast<int>(
        write(stream, static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(word)), value, 0));
  }
  /// The errors that CUDA calls sticky, and those of a context that is no more.
  static bool is_lost(int status) noexcept {
    constexpr int lost[] = {
        4,    // cudaErrorCudartUnloading
        46,   // cudaErrorDevicesUnavailable
        201,  // cudaErrorDeviceUninitialized
        214,  // cudaErrorECCUncorrectable
        220,  // cudaErrorNvlinkUncorrectable
        226,  // cudaErrorContained
        400,  // cudaErrorInvalidResourceHandle: after cudaDeviceReset()
        700,  // cudaErrorIllegalAddress
        702,  // cudaErrorLaunchTimeout
        709,  // cudaErrorContextIsDestroyed
        710,  // cudaErrorAssert
        714,  // cudaErrorHardwareStackError
        715,  // cudaErrorIllegalInstruction
        716,  // cudaErrorMisalignedAddress
        717,  // cudaErrorInvalidAddressSpace
        718,  // cudaErrorInvalidPc
        719,  // cudaErrorLaunchFailure
        721,  // cudaErrorTensorMemoryLeak
        810,  // cudaErrorMpsClientTerminated
        911,  // cudaErrorExternalDevice
        999,  // cudaErrorUnknown
    };
    return std::find(std::begin(lost), std::end(lost), status) != std::end(lost);
  }
  static int capturing(cudaStream_t stream, bool& yes) noexcept {
    cudaStreamCaptureStatus now = cudaStreamCaptureStatusNone;
    const int status = told(cudaStreamIsCapturing(stream, &now));
    // What is put into the legacy stream would become part of a capture of another stream.
    yes = status == cudaErrorStreamCaptureImplicit || now != cudaStreamCaptureStatusNone;
    return status == cudaErrorStreamCaptureImplicit ? success : status;
  }
  static int exchange_capture_mode(int& mode) noexcept {
    auto exchanged = static_cast<cudaStreamCaptureMode>(mode);
    const int status = told(cudaThreadExchangeStreamCaptureMode(&exchanged));
    mode = static_cast<int>(exchanged);
    return status;
  }

 protected:
  // An error that was returned must not be found again by the program's next cudaGetLastError().
  static int told(cudaError_t status) noexcept {
    if (status != cudaSuccess) (void)cudaGetLastError();
    return static_cast<int>(status);
  }

 private:
  static void* driver_call(const char* name, [[maybe_unused]] unsigned version = 12000) noexcept {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    const auto status = cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
#else
    const auto status = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
    return told(status) == success && result == cudaDriverEntryPointSuccess ? found : nullptr;
  }
  static cudaError_t as_error(int status) noexcept { return static_cast<cudaError_t>(status); }
  static int copy_ranges(std::span<const range_copy> parts, [[maybe_unused]] cudaMemcpyKind kind,
                         cudaStream_t stream) noexcept {
#if CUDART_VERSION >= 13000
    try {
      std::vector<void*> to;
      std::vector<const void*> from;
      std::vector<std::size_t> bytes;
      to.reserve(parts.size()), from.reserve(parts.size()), bytes.reserve(parts.size());
      for (const auto& part : parts)
        to.push_back(part.to), from.push_back(part.from), bytes.push_back(part.bytes);
      cudaMemcpyAttributes order{};
      order.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
      order.flags = cudaMemcpyFlagPreferOverlapWithCompute;
      std::size_t first = 0;
      return told(cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), parts.size(), &order, &first, 1,
                                       stream));
    } catch (...) {
      return cudaErrorMemoryAllocation;
    }
#else
#if CUDART_VERSION >= 12050
    if (parts.size() > 1)
      if (const int status = copy_batch(parts, stream); status != unsupported) return status;
#endif
    for (const auto& part : parts)
      if (const int status = told(cudaMemcpyAsync(part.to, part.from, part.bytes, kind, stream));
          status != success)
        return status;
    return success;
#endif
  }
#if CUDART_VERSION >= 12050 && CUDART_VERSION < 13000
  /// Many calls would fill the stream's queue, and hold up the calling thread in the driver. By the driver's
  /// call as it was in 12.8, whose types older toolkits lack.
  static int copy_batch(std::span<const range_copy> parts, cudaStream_t stream) noexcept {
    struct location {
      int type, id;
    };
    struct attributes {
      int source_order;
      location from, to;
      unsigned flags;
    };
    using batch_call = CUresult (*)(CUdeviceptr*, CUdeviceptr*, std::size_t*, std::size_t, attributes*,
                                    std::size_t*, std::size_t, std::size_t*, CUstream);
    static const auto batch = reinterpret_cast<batch_call>(driver_call("cuMemcpyBatchAsync", 12080));
    if (batch == nullptr) return unsupported;
    try {
      std::vector<CUdeviceptr> to, from;
      std::vector<std::size_t> bytes;
      to.reserve(parts.size()), from.reserve(parts.size()), bytes.reserve(parts.size());
      for (const auto& part : parts) {
        to.push_back(reinterpret_cast<std::uintptr_t>(part.to));
        from.push_back(reinterpret_cast<std::uintptr_t>(part.from));
        bytes.push_back(part.bytes);
      }
      attributes order{1, {}, {}, 1};  // in the order of the stream, beside kernels
      std::size_t first = 0;
      std::size_t failed = 0;
      return static_cast<int>(
          batch(to.data(), from.data(), bytes.data(), parts.size(), &order, &first, 1, &failed, stream));
    } catch (...) {
      return cudaErrorMemoryAllocation;
    }
  }
#endif
};
static_assert(DeviceRuntime<runtime>, "cuda::runtime must model DeviceRuntime");

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
