// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/function_ref.hpp>

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Calls call(i, thread) for each i below `count`, in order, of which each thread that takes part does some.
class shared_calls {
 public:
  /// What `call` refers to outlives the last take_part().
  shared_calls(std::size_t count, function_ref<void(std::size_t, std::size_t)> call) noexcept
      : count_(count), call_(call) {}
  /// Returns when no call is left to begin: all were begun, or one threw. Any thread.
  void take_part(std::size_t thread) noexcept;
  /// Throws the first exception of a call. It is destroyed where it is caught, not by a thread that releases this
  /// later.
  /// @pre all that took part have returned
  void throw_failure();

 private:
  const std::size_t count_;
  const function_ref<void(std::size_t, std::size_t)> call_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/system/shared_calls.ipp>
#endif
