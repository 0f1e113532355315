// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/error.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// One range of a batch of small copies.
struct range_copy {
  std::byte* to = nullptr;          ///< destination, in memory of the device or of the host
  const std::byte* from = nullptr;  ///< source, on the other side
  std::uint64_t bytes = 0;
};

/// The calls of a device's runtime that cairn makes, as static functions. cuda::runtime calls CUDA; tests
/// have a runtime whose copies are late and whose calls fail.
///
/// Every function returns a status: `success`, `not_ready` (only query), or an error that `name_of`
/// names. No function throws. Streams and events belong to the device that was in use when they were
/// made, and are used with that device in use.
///
/// - `current_device(d)`, `use_device(d)`: of the calling thread. `device_count(n)`. `has_context(d, yes)`:
///   whether this process has a context on the device; makes none, while `use_device` and nearly all other
///   calls make one on the device that they use.
/// - `host_node(device, node)`: the NUMA node of the host that is nearest to the device; -1: not known.
/// - `default_stream()`: the device's default stream, which comes after every stream that was not made non-blocking.
/// - `make_stream(s)`: makes a non-blocking stream of the lowest priority. `destroy_stream(s)`.
/// - `make_event(e)`, `destroy_event(e)`; `record(e, s)`: e is reached when all work that is in s now is
///   done; `query(e)`: success if it is reached; `wait(s, e)`: work that is enqueued on s from now on
///   begins after e.
/// - `copy_to_host(to, from, bytes, s)`, `copy_rows_to_host(to, from, pitch, width, rows, s)` (rows of
///   `width` bytes, `pitch` apart at the device, without gaps at `to`), `copy_ranges_to_host(parts, s)`: from
///   device memory to pinned memory, in the order of s; the call returns before the bytes are there.
/// - `copy_to_device(to, from, bytes, s)`, `copy_rows_to_device(to, to_pitch, from, from_pitch, width, rows,
///   s)`, `copy_ranges_to_device(parts, s)`: the same the other way, from pinned memory.
/// - `pin(data, bytes)`: page-locks this memory for all devices, so that copies to it are asynchronous;
///   `unpin(data)`.
/// - `device_of(data, d)`: the device on which memory lies, managed memory too; -1 for memory of the host.
/// - `allocate(data, bytes)`: memory of the device in use, aligned to 256 bytes; `deallocate(data)`.
/// - `device_address(host, there)`: the address of pinned memory on the device in use.
/// - `write_word(word, value, s)`: writes the value to a word of 4 bytes in pinned memory, given by its
///   device_address, in the order of s; the host sees it after everything that earlier copies of s wrote.
///   `unsupported` where the driver has no such call.
/// - `is_lost(status)`: whether a device with this error does no more work for this process.
/// - `capturing(s, yes)`: whether work that is enqueued on s becomes part of a graph instead of running.
/// - `exchange_capture_mode(m)`: for the calling thread; with `relaxed_capture` its calls do not disturb the
///   captures that other threads have begun.
///
/// Any thread.
template <class R>
concept DeviceRuntime =
    requires(typename R::stream_type s, typename R::stream_type& new_stream, typename R::event_type e,
             typename R::event_type& new_event, int device, int& which, std::byte* to, const std::byte* from,
             std::uint64_t bytes, std::span<const range_copy> parts, int status, std::byte*& memory,
             std::uint32_t value, bool& yes, int& mode) {
      { R::success } -> std::convertible_to<int>;
      { R::unsupported } -> std::convertible_to<int>;
      { R::relaxed_capture } -> std::convertible_to<int>;
      { R::not_ready } -> std::convertible_to<int>;
      { R::name_of(status) } noexcept -> std::convertible_to<const char*>;
      { R::text_of(status) } noexcept -> std::convertible_to<const char*>;
      { R::current_device(which) } noexcept -> std::same_as<int>;
      { R::use_device(device) } noexcept -> std::same_as<int>;
      { R::device_count(which) } noexcept -> std::same_as<int>;
      { R::has_context(device, yes) } noexcept -> std::same_as<int>;
      { R::host_node(device, which) } noexcept -> std::same_as<int>;
      { R::default_stream() } noexcept -> std::same_as<typename R::stream_type>;
      { R::make_stream(new_stream) } noexcept -> std::same_as<int>;
      { R::destroy_stream(s) } noexcept -> std::same_as<int>;
      { R::make_event(new_event) } noexcept -> std::same_as<int>;
      { R::destroy_event(e) } noexcept -> std::same_as<int>;
      { R::record(e, s) } noexcept -> std::same_as<int>;
      { R::query(e) } noexcept -> std::same_as<int>;
      { R::wait(s, e) } noexcept -> std::same_as<int>;
      { R::copy_to_host(to, from, bytes, s) } noexcept -> std::same_as<int>;
      { R::copy_rows_to_host(to, from, bytes, bytes, bytes, s) } noexcept -> std::same_as<int>;
      { R::copy_ranges_to_host(parts, s) } noexcept -> std::same_as<int>;
      { R::copy_to_device(to, from, bytes, s) } noexcept -> std::same_as<int>;
      { R::copy_rows_to_device(to, bytes, from, bytes, bytes, bytes, s) } noexcept -> std::same_as<int>;
      { R::copy_ranges_to_device(parts, s) } noexcept -> std::same_as<int>;
      { R::pin(to, bytes) } noexcept -> std::same_as<int>;
      { R::unpin(to) } noexcept -> std::same_as<int>;
      { R::device_of(from, which) } noexcept -> std::same_as<int>;
      { R::allocate(memory, bytes) } noexcept -> std::same_as<int>;
      { R::deallocate(memory) } noexcept -> std::same_as<int>;
      { R::device_address(to, memory) } noexcept -> std::same_as<int>;
      { R::write_word(to, value, s) } noexcept -> std::same_as<int>;
      { R::is_lost(status) } noexcept -> std::same_as<bool>;
      { R::capturing(s, yes) } noexcept -> std::same_as<int>;
      { R::exchange_capture_mode(mode) } noexcept -> std::same_as<int>;
    };

/// The stream on which training changes the memory of a device.
template <DeviceRuntime R>
struct compute_stream {
  int device = 0;
  typename R::stream_type stream{};
};

/// The stream that is given for the device, or else its default stream.
template <DeviceRuntime R>
[[nodiscard]] typename R::stream_type compute_stream_of(const std::vector<compute_stream<R>>& given,
                                                        int device) noexcept {
  for (const auto& each : given)
    if (each.device == device) return each.stream;
  return R::default_stream();
}

/// Throws storage_error (storage_device) with the call, the device and the runtime's text, unless the status
/// is success.
template <DeviceRuntime R>
void check_call(int status, const char* call, int device, std::string_view item = {}) {
  if (status == R::success) return;
  fail(error_id::storage_device,
       std::string(call) + " failed on device " + std::to_string(device) + ": " + R::text_of(status) +
           "; after most errors of a device the process must be started again, and resumes from the last "
           "checkpoint that was committed",
       {.item = std::string(item),
        .got = std::string(R::name_of(status)) + " (" + std::to_string(status) + ")"});
}

/// Changes the current device of the calling thread as long as this lives. Afterwards it restores the
/// former device, if this process has a context there. If not, the thread keeps the new device: restoring
/// would make a context, which takes about half a gigabyte on a device that may belong to another
/// process.
template <DeviceRuntime R>
class device_in_use {
 public:
  /// @throws storage_error (storage_device)
  explicit device_in_use(int device) {
    check_call<R>(R::current_device(before_), "cudaGetDevice (asking for the current device)", device);
    if (before_ != device) check_call<R>(R::use_device(device), "cudaSetDevice (using a device)", device);
    changed_ = before_ != device;
  }
  /// For freeing resources: if it fails, the thread keeps its device.
  device_in_use(int device, std::nothrow_t) noexcept {
    if (R::current_device(before_) != R::success || before_ == device) return;
    changed_ = R::use_device(device) == R::success;
  }
  ~device_in_use() {
    bool context = true;
    if (changed_ && (R::has_context(before_, context) != R::success || context)) (void)R::use_device(before_);
  }
  device_in_use(const device_in_use&) = delete;
  device_in_use& operator=(const device_in_use&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

/// The device for work that may be done on any device: the wanted one, unless this process has a context
/// only on others.
template <DeviceRuntime R>
[[nodiscard]] int device_with_context(int wanted) noexcept {
  const auto usable = [](int device) {
    bool yes = false;
    return R::has_context(device, yes) == R::success && yes;
  };
  int count = 0;
  if (usable(wanted) || R::device_count(count) != R::success) return wanted;
  for (int device = 0; device < count; ++device)
    if (usable(device)) return device;
  return wanted;
}

/// As long as this lives, the calls of this thread do not disturb the capture of a graph by another
/// thread. Without it, querying an event or pinning memory ends such a capture with an error.
template <DeviceRuntime R>
class relaxed_capture_mode {
 public:
  relaxed_capture_mode() noexcept { changed_ = R::exchange_capture_mode(mode_) == R::success; }
  ~relaxed_capture_mode() {
    if (changed_) (void)R::exchange_capture_mode(mode_);
  }
  relaxed_capture_mode(const relaxed_capture_mode&) = delete;
  relaxed_capture_mode& operator=(const relaxed_capture_mode&) = delete;

 private:
  int mode_ = R::relaxed_capture;
  bool changed_ = false;
};

/// @throws usage_error (usage_stream_capturing) where the stream is being captured into a graph;
/// storage_error.
template <DeviceRuntime R>
void refuse_capture(typename R::stream_type stream, int device, const char* call) {
  bool capturing = false;
  check_call<R>(R::capturing(stream, capturing),
                "cudaStreamIsCapturing (asking whether a stream is captured)", device);
  if (capturing)
    fail(error_id::usage_stream_capturing,
         std::string(call) + " was called while its stream on device " + std::to_string(device) +
             " is captured into a graph: copies of a checkpoint are no part of a graph; call it before the "
             "capture begins or after it ended, between the launches of the graph");
}

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
