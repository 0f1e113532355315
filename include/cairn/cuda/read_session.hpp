// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/device_access.hpp>
#include <cairn/cuda/basic_pinned.hpp>
#include <cairn/cuda/drain.hpp>
#include <cairn/cuda/lane.hpp>
#include <cairn/cuda/transfer.hpp>
#include <cairn/stage/heap_memory.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace cuda {
namespace detail {

/// One look at memory of devices; see device_read.
template <DeviceRuntime R>
class read_session final : public device_read {
 public:
  /// `drain_limit`: how long its end waits for a copy that failed or was late.
  read_session(std::vector<compute_stream<R>> compute, pinned_options pinning,
               std::chrono::nanoseconds drain_limit)
      : compute_(std::move(compute)), pinning_(pinning), drain_limit_(drain_limit) {}
  read_session(const read_session&) = delete;
  read_session& operator=(const read_session&) = delete;
  ~read_session() override {
    const auto until = deadline::in(drain_limit_);
    if (!under_way_ || std::all_of(lanes_.begin(), lanes_.end(),
                                   [&](const auto& l) { return drain<R>(l->side(), l->device(), until); }))
      return;
    // The copy may still write to it.
    for (auto& l : lanes_) (void)l.release();
    (void)block_.release();
  }

  void read(const tensor_view& from, std::uint64_t first, std::uint64_t last, std::byte* to,
            std::string_view item, deadline until) override {
    if (from.device < 0)
      fail(error_id::usage_unsupported_tensor,
           "a tensor_view in device memory does not say on which device: set its `device`, or make it with "
           "cuda::device_view",
           {.item = std::string(item)});
    const beside_captures<R> guard;
    const device_in_use<R> use(from.device);
    auto& l = lane_on(from.device);
    for (auto at = first; at < last;) {
      const auto step = std::min(buffer_bytes, last - at);
      copy(l, from, at, at + step, item, until);
      std::memcpy(to + (at - first), block_->bytes().data(), static_cast<std::size_t>(step));
      at += step;
    }
  }

 private:
  using memory_type = basic_pinned<heap_memory, R>;
  static constexpr std::uint64_t buffer_bytes = std::uint64_t{1} << 20;

  [[nodiscard]] lane<R>& lane_on(int device) {
    for (const auto& l : lanes_)
      if (l->device() == device) return *l;
    if (block_ == nullptr)
      block_ =
          std::make_unique<typename memory_type::block_type>(memory_type(pinning_).allocate(buffer_bytes));
    typename R::stream_type compute{};
    for (const auto& given : compute_)
      if (given.device == device) compute = given.stream;
    refuse_capture<R>(compute, device, "save() with checked{}");
    auto made = std::make_unique<lane<R>>(device, compute, false, 0);
    const owned_event<R> ready(device);
    check_call<R>(R::record(ready.get(), compute),
                  "cudaEventRecord (recording an event on the compute stream)", device);
    check_call<R>(R::wait(made->side(), ready.get()),
                  "cudaStreamWaitEvent (ordering copies behind the compute stream)", device);
    lanes_.push_back(std::move(made));
    return *lanes_.back();
  }
  /// Bytes [first, last) of the packed view are in the buffer when it returns.
  void copy(lane<R>& l, const tensor_view& from, std::uint64_t first, std::uint64_t last,
            std::string_view item, deadline until) {
    std::byte* to = block_->bytes().data();
    std::vector<copy_part> parts;
    // From here on until the event is reached.
    under_way_ = true;
    if (from.contiguous()) {
      parts.push_back({to, from.data + first, last - first});
    } else {
      run_collector<R> runs(l, parts, item);
      for_each_run(from, first, last, [&](const std::byte* at, std::uint64_t bytes, std::uint64_t position) {
        runs.add(to + (position - first), at, bytes);
      });
      runs.flush();
    }
    if (!parts.empty())
      check_call<R>(R::copy_parts_to_host(parts, l.side()), "cudaMemcpyAsync (copying from device memory)",
                    l.device(), item);
    const owned_event<R> done(l.device());
    check_call<R>(R::record(done.get(), l.side()), "cudaEventRecord (recording an event behind copies)",
                  l.device(), item);
    for (;;) {
      const bool late = until.passed();
      const int status = R::query(done.get());
      if (status == R::success) break;
      if (status != R::not_ready)
        check_call<R>(status, "cudaEventQuery (a copy from device memory)", l.device(), item);
      if (late)
        fail(error_id::timeout_staging, "memory of a device was not read in time by checked{}",
             {.item = std::string(item)});
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    under_way_ = false;
  }

  std::vector<compute_stream<R>> compute_;
  pinned_options pinning_;
  std::chrono::nanoseconds drain_limit_;
  std::vector<std::unique_ptr<lane<R>>> lanes_;
  std::unique_ptr<typename memory_type::block_type> block_;
  bool under_way_ = false;
};

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
