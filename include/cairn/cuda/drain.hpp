// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/cuda/owned_event.hpp>
#include <cairn/system/deadline.hpp>

#include <chrono>
#include <new>
#include <optional>
#include <thread>

namespace cairn {
inline namespace v1 {
namespace cuda {
namespace detail {

/// Finds out when all that was put into a stream is over.
template <DeviceRuntime R>
class stream_end {
 public:
  /// False while copies may still touch memory, also where it cannot be asked for the moment: for want of
  /// memory, say. A device that is lost copies nothing any more.
  [[nodiscard]] bool over(typename R::stream_type stream, int device) noexcept {
    const relaxed_capture_mode<R> guard;
    const device_in_use<R> use(device, std::nothrow);
    int status = R::success;
    if (!event_) {
      typename R::event_type made{};
      status = R::make_event(made);
      if (status == R::success) event_.emplace(made, device);
    }
    if (status == R::success && !recorded_) {
      status = R::record(event_->get(), stream);
      recorded_ = status == R::success;
    }
    if (status == R::success) status = R::query(event_->get());
    return status == R::success || R::is_lost(status);
  }

 private:
  std::optional<owned_event<R>> event_;
  bool recorded_ = false;
};

/// Waits until all that was put into a stream is over; false if it is not by the deadline: then its copies
/// may still touch memory.
template <DeviceRuntime R>
[[nodiscard]] bool drain(typename R::stream_type stream, int device, deadline until) noexcept {
  stream_end<R> end;
  while (!end.over(stream, device)) {
    if (until.passed()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
