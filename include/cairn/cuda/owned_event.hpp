// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/cuda/device_runtime.hpp>

#include <new>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace cuda {
namespace detail {

/// An event that is destroyed with this, on its device.
template <DeviceRuntime R>
class owned_event {
 public:
  /// @pre the device is in use. @throws storage_error
  explicit owned_event(int device) : device_(device) {
    check_call<R>(R::make_event(event_), "cudaEventCreate (making an event)", device);
  }
  /// Owns an event that was made.
  owned_event(typename R::event_type event, int device) noexcept : event_(event), device_(device) {}
  owned_event(owned_event&& other) noexcept
      : event_(other.event_), device_(std::exchange(other.device_, -1)) {}
  owned_event& operator=(owned_event&& other) noexcept {
    std::swap(event_, other.event_);
    std::swap(device_, other.device_);
    return *this;
  }
  ~owned_event() {
    if (device_ < 0) return;
    const device_in_use<R> use(device_, std::nothrow);
    (void)R::destroy_event(event_);
  }
  [[nodiscard]] typename R::event_type get() const noexcept { return event_; }
  [[nodiscard]] int device() const noexcept { return device_; }

 private:
  typename R::event_type event_{};
  int device_;
};

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
