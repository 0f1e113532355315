// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/cuda/owned_event.hpp>
#include <cairn/model/deadline.hpp>
#include <cairn/model/error.hpp>

#include <chrono>
#include <thread>

namespace cairn {
inline namespace v1 {
namespace cuda {
namespace detail {

/// Waits until all that was put into a stream is over; false if it is not by the deadline: then its copies
/// may still touch memory.
template <DeviceRuntime R>
[[nodiscard]] bool drain(typename R::stream_type stream, int device, deadline until) noexcept {
  try {
    const beside_captures<R> guard;
    const device_in_use<R> use(device);
    const owned_event<R> end(device);
    check_call<R>(R::record(end.get(), stream), "cudaEventRecord (recording an event)", device);
    while (R::query(end.get()) == R::not_ready) {
      if (until.passed()) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  } catch (const error&) {
    // A device that takes no call any more copies nothing any more.
  }
  return true;
}

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
