// SPDX-License-Identifier: Apache-2.0
#pragma once
// CUDA's functions. Each does what CUDA's documentation promises, and no more: a copy from memory that is not
// pinned returns before it is done, cudaMemset before it has begun.
#include <cstring>
#include <vector>

#include "device.hpp"

using cudaStream_t = emulated_cuda::stream*;
using cudaEvent_t = emulated_cuda::event*;
using cudaGraph_t = struct emulated_graph*;
using cudaHostFn_t = void (*)(void*);
inline const cudaStream_t cudaStreamLegacy = emulated_cuda::devices::legacy;

namespace emulated_cuda {

/// Calls `work(device, lock)` as devices::call does.
template <class Work>
cudaError_t calling(Work&& work) {
  auto& d = devices::get();
  return d.call([&](auto& lock) { return work(d, lock); });
}
template <class Work>
cudaError_t calling_unsafe(Work&& work) {
  auto& d = devices::get();
  return d.unsafe_call([&](auto& lock) { return work(d, lock); });
}

struct rows {
  void* to;
  std::size_t to_pitch;
  const void* from;
  std::size_t from_pitch, width, count;
  void copy() const {
    for (std::size_t r = 0; r < count; ++r)
      std::memcpy(static_cast<std::byte*>(to) + r * to_pitch,
                  static_cast<const std::byte*>(from) + r * from_pitch, width);
  }
};
/// The work of a stream for one copy.
struct checked_copy {
  cudaError_t status = cudaSuccess;
  std::function<void()> run = nullptr;
  bool waits = false;  ///< the call returns when it is done
};
/// A copy from host memory that is not pinned reads it at once, and one to such memory is waited for.
inline checked_copy check(devices& d, const rows& c, cudaMemcpyKind kind) {
  if (c.width == 0 || c.count == 0) return {};
  if (c.to_pitch < c.width || c.from_pitch < c.width) return {cudaErrorInvalidPitchValue};
  const std::size_t to_bytes = (c.count - 1) * c.to_pitch + c.width;
  const std::size_t from_bytes = (c.count - 1) * c.from_pitch + c.width;
  const bool to_device = kind != cudaMemcpyDeviceToHost, from_device = kind != cudaMemcpyHostToDevice;
  if (to_device != d.holds(c.to, to_device ? to_bytes : 0) && !(c.to == nullptr))
    return {cudaErrorInvalidValue};
  if (from_device != d.holds(c.from, from_device ? from_bytes : 0)) return {cudaErrorInvalidValue};
  if (kind == cudaMemcpyHostToDevice && !d.pinned(c.from, from_bytes)) {
    if (d.pinned(c.from, 1)) return {cudaErrorInvalidValue};  // reaches beyond what was registered
    const auto kept = std::make_shared<std::vector<std::byte>>(c.width * c.count);
    rows{kept->data(), c.width, c.from, c.from_pitch, c.width, c.count}.copy();
    return {cudaSuccess,
            [kept, c] { rows{c.to, c.to_pitch, kept->data(), c.width, c.width, c.count}.copy(); }};
  }
  return {cudaSuccess, [c] { c.copy(); }, kind == cudaMemcpyDeviceToHost && !d.pinned(c.to, to_bytes)};
}
/// Puts copies into a stream, in any order, as one entry of its queue.
inline cudaError_t put_copies(devices& d, std::unique_lock<std::mutex>& lock,
                              const std::vector<checked_copy>& copies, stream* to, bool asynchronous = true) {
  stream* const s = d.find(to);
  if (s == nullptr) return cudaErrorInvalidResourceHandle;
  bool waits = !asynchronous, any = false;
  for (const auto& each : copies) {
    if (each.status != cudaSuccess) return each.status;
    waits = waits || each.waits, any = any || each.run;
  }
  if (!any) return cudaSuccess;
  if (waits && s->capture != cudaStreamCaptureStatusNone) return cudaErrorStreamCaptureUnsupported;
  const auto status = d.put(lock, s,
                            {[copies] {
                               for (auto each = copies.rbegin(); each != copies.rend(); ++each)
                                 if (each->run) each->run();
                               return cudaSuccess;
                             },
                             nullptr, nullptr});
  return status == cudaSuccess && waits ? d.wait(lock, s) : status;
}

}  // namespace emulated_cuda

// --- Devices and errors
// ---------------------------------------------------------------------------------------

inline cudaError_t cudaGetLastError() {
  return emulated_cuda::devices::get().last(true);
}
inline const char* cudaGetErrorName(cudaError_t status) {
  switch (status) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    default:
      return "another error of CUDA";
  }
}
inline const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
                                           : cudaGetErrorName(status);
}
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = emulated_cuda::devices::get().count();
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* number) {
  *number = emulated_cuda::current_device;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int number) {
  return emulated_cuda::devices::get().use(number);
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* about, int) {
  *about = {};
  std::strcpy(about->name, emulated_cuda::device_name);
  about->major = 9;
  return cudaSuccess;
}
template <class Function>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* about, Function*) {
  *about = {};
  return emulated_cuda::calling([](auto&, auto&) { return cudaSuccess; });
}
inline cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0, *highest = -5;
  return emulated_cuda::calling([](auto&, auto&) { return cudaSuccess; });
}
inline cudaError_t cudaDeviceSynchronize() {
  return emulated_cuda::calling_unsafe(
      [&](auto& d, auto& lock) { return d.wait_for_all(lock, emulated_cuda::current_device); });
}

// --- Memory
// -----------------------------------------------------------------------------------------------------

inline cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  *data = nullptr;
  return emulated_cuda::calling_unsafe([&](auto& d, auto&) {
    if (bytes == 0) return cudaSuccess;
    *data = d.allocate(bytes);
    return *data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
  });
}
template <class T>
cudaError_t cudaMalloc(T** data, std::size_t bytes) {
  void* made = nullptr;
  const auto status = cudaMalloc(&made, bytes);
  *data = static_cast<T*>(made);
  return status;
}
inline cudaError_t cudaMallocManaged(void**, std::size_t) {
  return emulated_cuda::calling([](auto&, auto&) { return cudaErrorNotSupported; });
}
inline cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  return emulated_cuda::calling_unsafe([&](auto& d, auto& lock) {
    if (!d.holds(data, 0)) return cudaErrorInvalidValue;
    if (const auto status = d.wait_for_all(lock, d.device_of(data)); status != cudaSuccess) return status;
    return d.free(data) ? cudaSuccess : cudaErrorInvalidValue;
  });
}
inline cudaError_t cudaHostRegister(void* data, std::size_t bytes, unsigned) {
  return emulated_cuda::calling_unsafe([&](auto& d, auto&) {
    if (data == nullptr || bytes == 0) return cudaErrorInvalidValue;
    return d.pin(data, bytes) ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
  });
}
inline cudaError_t cudaHostUnregister(void* data) {
  return emulated_cuda::calling_unsafe(
      [&](auto& d, auto&) { return d.unpin(data) ? cudaSuccess : cudaErrorHostMemoryNotRegistered; });
}
inline cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  return emulated_cuda::calling([&](auto& d, auto&) {
    *device = host;
    return d.pinned(host, 1) ? cudaSuccess : cudaErrorInvalidValue;
  });
}
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* about, const void* data) {
  return emulated_cuda::calling([&](auto& d, auto&) {
    *about = d.holds(data, 1)    ? cudaPointerAttributes{cudaMemoryTypeDevice, d.device_of(data)}
             : d.pinned(data, 1) ? cudaPointerAttributes{cudaMemoryTypeHost, 0}
                                 : cudaPointerAttributes{cudaMemoryTypeUnregistered, -2};
    return cudaSuccess;
  });
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t s) {
  return emulated_cuda::calling([&](auto& d, auto& lock) {
    return put_copies(d, lock, {check(d, {to, bytes, from, bytes, bytes, 1}, kind)}, s);
  });
}
inline cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                     std::size_t width, std::size_t count, cudaMemcpyKind kind,
                                     cudaStream_t s) {
  return emulated_cuda::calling([&](auto& d, auto& lock) {
    return put_copies(d, lock, {check(d, {to, to_pitch, from, from_pitch, width, count}, kind)}, s);
  });
}
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return emulated_cuda::calling_unsafe([&](auto& d, auto& lock) {
    return put_copies(d, lock, {check(d, {to, bytes, from, bytes, bytes, 1}, kind)}, cudaStreamLegacy, false);
  });
}
/// The stream must not be the legacy one.
inline cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const std::size_t* bytes,
                                        std::size_t count, cudaMemcpyAttributes* attributes,
                                        std::size_t* first, std::size_t attribute_count, cudaStream_t s) {
  return emulated_cuda::calling([&](auto& d, auto& lock) {
    if (s == nullptr || s == cudaStreamLegacy || attribute_count == 0 || attribute_count > count ||
        first[0] != 0 || attributes[0].srcAccessOrder != cudaMemcpySrcAccessOrderStream)
      return cudaErrorInvalidValue;
    std::vector<emulated_cuda::checked_copy> copies;
    for (std::size_t i = 0; i < count; ++i) {
      if (bytes[i] == 0) return cudaErrorInvalidValue;
      const auto kind = d.holds(to[i], 1) ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
      copies.push_back(check(d, {to[i], bytes[i], from[i], bytes[i], bytes[i], 1}, kind));
    }
    return put_copies(d, lock, copies, s);
  });
}
inline cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t to) {
  return emulated_cuda::calling([&](auto& d, auto& lock) {
    auto* const s = d.find(to);
    if (s == nullptr) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    if (!d.holds(data, bytes)) return cudaErrorInvalidValue;
    return d.put(lock, s,
                 {[=] {
                    std::memset(data, value, bytes);
                    return cudaSuccess;
                  },
                  nullptr, nullptr});
  });
}
inline cudaError_t cudaMemset(void* data, int value, std::size_t bytes) {
  return cudaMemsetAsync(data, value, bytes, cudaStreamLegacy);
}

// --- Streams and events
// -----------------------------------------------------------------------------------------

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned flags) {
  return emulated_cuda::calling([&](auto& d, auto&) {
    // Streams that the legacy one waits for are not emulated.
    if (flags != cudaStreamNonBlocking) return cudaErrorNotSupported;
    *made = d.make_stream();
    return cudaSuccess;
  });
}
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned flags, int) {
  return cudaStreamCreateWithFlags(made, flags);
}
inline cudaError_t cudaStreamDestroy(cudaStream_t s) {
  return emulated_cuda::calling([&](auto& d, auto&) {
    if (s == nullptr || s == cudaStreamLegacy || d.find(s) == nullptr) return cudaErrorInvalidResourceHandle;
    d.destroy(s);
    return cudaSuccess;
  });
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t of) {
  return emulated_cuda::calling_unsafe([&](auto& d, auto& lock) {
    auto* const s = d.find(of);
    return s == nullptr ? cudaErrorInvalidResourceHandle : d.wait(lock, s);
  });
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) {
  return emulated_cuda::calling([&](auto& d, auto&) {
    *made = d.make_event();
    return cudaSuccess;
  });
}
inline cudaError_t cudaEventDestroy(cudaEvent_t e) {
  return emulated_cuda::calling([&](auto& d, auto&) {
    if (d.find(e) == nullptr) return cudaErrorInvalidResourceHandle;
    d.destroy(e);
    return cudaSuccess;
  });
}
inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t in) {
  return emulated_cuda::calling([&](auto& d, auto& lock) {
    auto* const s = d.find(in);
    if (s == nullptr || d.find(e) == nullptr) return cudaErrorInvalidResourceHandle;
    if (s->device != e->device) return cudaErrorInvalidResourceHandle;
    const auto reached = std::make_shared<bool>(false);
    const auto status = d.put(lock, s, {{}, nullptr, reached});
    if (status == cudaSuccess) e->last = reached;
    return status;
  });
}
inline cudaError_t cudaEventQuery(cudaEvent_t e) {
  return emulated_cuda::calling_unsafe([&](auto& d, auto&) {
    if (d.find(e) == nullptr) return cudaErrorInvalidResourceHandle;
    return e->last == nullptr || *e->last ? cudaSuccess : cudaErrorNotReady;
  });
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t which, cudaEvent_t e, unsigned) {
  return emulated_cuda::calling([&](auto& d, auto& lock) {
    auto* const s = d.find(which);
    if (s == nullptr || d.find(e) == nullptr) return cudaErrorInvalidResourceHandle;
    return e->last == nullptr ? cudaSuccess : d.put(lock, s, {{}, e->last, nullptr});
  });
}
inline cudaError_t cudaLaunchHostFunc(cudaStream_t which, cudaHostFn_t function, void* given) {
  return emulated_cuda::calling([&](auto& d, auto& lock) {
    auto* const s = d.find(which);
    if (s == nullptr) return cudaErrorInvalidResourceHandle;
    return d.put(lock, s,
                 {[=] {
                    function(given);
                    return cudaSuccess;
                  },
                  nullptr, nullptr});
  });
}

// --- Captures
// ---------------------------------------------------------------------------------------------------

inline cudaError_t cudaStreamBeginCapture(cudaStream_t which, cudaStreamCaptureMode mode) {
  return emulated_cuda::calling([&](auto& d, auto&) {
    if (which == nullptr || which == cudaStreamLegacy) return cudaErrorStreamCaptureUnsupported;
    auto* const s = d.find(which);
    if (s == nullptr) return cudaErrorInvalidResourceHandle;
    if (s->capture != cudaStreamCaptureStatusNone) return cudaErrorInvalidValue;
    s->capture = cudaStreamCaptureStatusActive;
    s->capture_mode = mode;
    s->captured_by = std::this_thread::get_id();
    return cudaSuccess;
  });
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t which, cudaGraph_t* graph) {
  *graph = nullptr;
  return emulated_cuda::calling([&](auto& d, auto&) {
    auto* const s = d.find(which);
    if (s == nullptr) return cudaErrorInvalidResourceHandle;
    switch (std::exchange(s->capture, cudaStreamCaptureStatusNone)) {
      case cudaStreamCaptureStatusActive:
        return cudaSuccess;
      case cudaStreamCaptureStatusInvalidated:
        return cudaErrorStreamCaptureInvalidated;
      default:
        return cudaErrorStreamCaptureUnmatched;
    }
  });
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t) {
  return cudaSuccess;
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t which, cudaStreamCaptureStatus* now) {
  return emulated_cuda::calling([&](auto& d, auto&) {
    auto* const s = d.find(which);
    if (s == nullptr) return cudaErrorInvalidResourceHandle;
    *now = s->capture;
    return cudaSuccess;
  });
}
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, emulated_cuda::thread_capture_mode);
  return cudaSuccess;
}

// --- The driver
// -------------------------------------------------------------------------------------------------

using CUdeviceptr = unsigned long long;
namespace emulated_cuda {
/// As long as it lives, the calling thread is in a call of the driver.
struct driver_call {
  driver_call() { in_the_driver = true; }
  ~driver_call() { in_the_driver = false; }
};
}  // namespace emulated_cuda

inline cudaError_t cuStreamWriteValue32(cudaStream_t which, CUdeviceptr where, std::uint32_t value,
                                        unsigned) {
  const emulated_cuda::driver_call in_the_driver;
  return emulated_cuda::calling([&](auto& d, auto& lock) {
    auto* const s = d.find(which);
    auto* const word = reinterpret_cast<std::uint32_t*>(where);
    if (s == nullptr) return cudaErrorInvalidResourceHandle;
    if (where % 4 != 0 || !(d.pinned(word, 4) || d.holds(word, 4))) return cudaErrorInvalidValue;
    return d.put(lock, s,
                 {[=] {
                    if (!emulated_cuda::devices::get().reaches_now(word, s->device))
                      return cudaErrorIllegalAddress;
                    __atomic_store_n(word, value, __ATOMIC_RELEASE);
                    return cudaSuccess;
                  },
                  nullptr, nullptr});
  });
}
inline cudaError_t cuDevicePrimaryCtxGetState(int number, unsigned* flags, int* active) {
  *flags = 0, *active = emulated_cuda::devices::get().has_context(number);
  return cudaSuccess;
}
inline cudaError_t cuEventQuery(cudaEvent_t e) {
  const emulated_cuda::driver_call in_the_driver;
  return cudaEventQuery(e);
}
/// As of 12.8.
using CUresult = cudaError_t;
using CUstream = cudaStream_t;
inline CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes, std::size_t count,
                                   const int* attributes, std::size_t* first, std::size_t attribute_count,
                                   std::size_t*, CUstream s) {
  const emulated_cuda::driver_call in_the_driver;
  cudaMemcpyAttributes order{static_cast<cudaMemcpySrcAccessOrder>(attributes[0]), 0};
  return cudaMemcpyBatchAsync(reinterpret_cast<void**>(to), reinterpret_cast<const void**>(from), bytes,
                              count, &order, first, attribute_count, s);
}
inline cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned,
                                                    unsigned long long,
                                                    cudaDriverEntryPointQueryResult* result) {
  const std::pair<const char*, void*> known[] = {
      {"cuStreamWriteValue32", reinterpret_cast<void*>(&cuStreamWriteValue32)},
      {"cuDevicePrimaryCtxGetState", reinterpret_cast<void*>(&cuDevicePrimaryCtxGetState)},
      {"cuEventQuery", reinterpret_cast<void*>(&cuEventQuery)},
      {"cuMemcpyBatchAsync", reinterpret_cast<void*>(&cuMemcpyBatchAsync)}};
  *found = nullptr;
  for (const auto& [each, call] : known)
    if (std::strcmp(name, each) == 0) *found = call;
  *result = *found != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
