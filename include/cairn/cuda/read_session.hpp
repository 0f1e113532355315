// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/device_access.hpp>
#include <cairn/cuda/basic_pinned.hpp>
#include <cairn/cuda/copy_queue.hpp>
#include <cairn/cuda/drain.hpp>
#include <cairn/cuda/load_ring.hpp>
#include <cairn/cuda/run_collector.hpp>
#include <cairn/cuda/transfer.hpp>
#include <cairn/stage/heap_memory.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
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

/// One look at memory of devices; see device_read. While one buffer is read from, the next bytes of the same
/// view are copied to another.
template <DeviceRuntime R>
class read_session final : public device_read {
 public:
  /// `drain_limit`: how long its end waits for copies that failed, were late or were not asked for. `ring`:
  /// where buffers come from, and go to at the end.
  read_session(std::vector<compute_stream<R>> compute, pinned_options pinning,
               std::chrono::nanoseconds drain_limit, std::shared_ptr<load_ring<R>> ring)
      : compute_(std::move(compute)), pinning_(pinning), drain_limit_(drain_limit), ring_(std::move(ring)) {
    auto kept = ring_->take(windows_.size() * window_bytes);
    for (auto& w : windows_) {
      if (kept.empty()) break;
      w.block.emplace(std::move(kept.back()));
      kept.pop_back();
    }
  }
  read_session(const read_session&) = delete;
  read_session& operator=(const read_session&) = delete;
  ~read_session() override {
    const bool idle =
        std::none_of(windows_.begin(), windows_.end(), [](const auto& w) { return w.under_way; });
    const auto until = deadline::in(drain_limit_);
    if (idle || std::all_of(queues_.begin(), queues_.end(),
                            [&](const auto& l) { return drain<R>(l->side(), l->device(), until); })) {
      try {
        for (auto& w : windows_)
          if (w.block && w.block->is_pinned()) ring_->give(std::move(*w.block));
      } catch (const std::bad_alloc&) {
        // The next look pins anew.
      }
      return;
    }
    // Copies may still write to them.
    for (auto& l : queues_) (void)l.release();
    for (auto& w : windows_)
      if (w.block) (void)new (std::nothrow) block_type(std::move(*w.block));
  }

  void read(const tensor_view& from, std::uint64_t first, std::uint64_t last, std::byte* to,
            std::string_view item, deadline until) override {
    if (from.device < 0)
      fail(error_id::usage_unsupported_tensor,
           "a tensor_view in device memory does not say on which device: set its `device`, or make it with "
           "cuda::device_view",
           {.item = std::string(item)});
    const relaxed_capture_mode<R> guard;
    const device_in_use<R> use(from.device);
    auto& l = queue_on(from.device);
    while (first < last) {
      const auto& here = window_at(l, from, first, item, until);
      const auto step = std::min(here.last, last) - first;
      std::memcpy(to, here.block->bytes().data() + (first - here.first), static_cast<std::size_t>(step));
      first += step, to += step;
    }
  }

 private:
  using block_type = typename load_ring<R>::block_type;
  static constexpr std::uint64_t window_bytes = std::uint64_t{8} << 20;

  /// Bytes [first, last) of a packed view, complete unless under_way.
  struct window {
    std::optional<block_type> block;
    tensor_view of;
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    std::optional<owned_event<R>> done;
    bool under_way = false;
  };

  [[nodiscard]] copy_queue<R>& queue_on(int device) {
    for (const auto& l : queues_)
      if (l->device() == device) return *l;
    const auto compute = compute_stream_of<R>(compute_, device);
    refuse_capture<R>(compute, device, "save() with checked{}");
    auto made = std::make_unique<copy_queue<R>>(device, compute, false, 0);
    const owned_event<R> ready(device);
    check_call<R>(R::record(ready.get(), compute),
                  "cudaEventRecord (recording an event on the compute stream)", device);
    check_call<R>(R::wait(made->side(), ready.get()),
                  "cudaStreamWaitEvent (ordering copies behind the compute stream)", device);
    queues_.push_back(std::move(made));
    return *queues_.back();
  }
  [[nodiscard]] static bool same(const tensor_view& a, const tensor_view& b) noexcept {
    return a.data == b.data && a.device == b.device && a.type == b.type && a.shape == b.shape &&
           a.strides == b.strides;
  }
  /// The window that has byte `at` of the packed view, complete; the bytes behind it are on their way then.
  [[nodiscard]] const window& window_at(copy_queue<R>& l, const tensor_view& from, std::uint64_t at,
                                        std::string_view item, deadline until) {
    const auto has = [&](const window& w) { return w.first <= at && at < w.last && same(w.of, from); };
    const bool second = has(windows_[1]);
    auto& here = windows_[second ? 1 : 0];
    auto& other = windows_[second ? 0 : 1];
    if (!has(here)) begin(here, l, from, at, item, until);
    await(here, item, until);
    if (here.last < from.bytes() && !(other.first == here.last && same(other.of, from)))
      begin(other, l, from, here.last, item, until);
    return here;
  }
  void begin(window& w, copy_queue<R>& l, const tensor_view& from, std::uint64_t first, std::string_view item,
             deadline until) {
    await(w, item, until);
    if (!w.block) w.block.emplace(basic_pinned<heap_memory, R>(pinning_).allocate(window_bytes));
    w.last = w.first = 0;
    const auto last = std::min(from.bytes(), first + window_bytes);
    std::byte* to = w.block->bytes().data();
    std::vector<range_copy> parts;
    w.done.reset();
    // From here on until the event is reached.
    w.under_way = true;
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
      check_call<R>(R::copy_ranges_to_host(parts, l.side()), "cudaMemcpyAsync (copying from device memory)",
                    l.device(), item);
    w.done.emplace(l.device());
    check_call<R>(R::record(w.done->get(), l.side()), "cudaEventRecord (recording an event behind copies)",
                  l.device(), item);
    w.of = from, w.first = first, w.last = last;
  }
  /// @pre what was put into the stream for it did not fail.
  void await(window& w, std::string_view item, deadline until) {
    while (w.under_way && w.done) {
      const device_in_use<R> use(w.done->device());
      const bool late = until.passed();
      const int status = R::query(w.done->get());
      if (status == R::success) {
        w.under_way = false;
        return;
      }
      if (status != R::not_ready)
        check_call<R>(status, "cudaEventQuery (a copy from device memory)", w.done->device(), item);
      if (late)
        fail(error_id::timeout_staging, "memory of a device was not read in time by checked{}",
             {.item = std::string(item)});
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  std::vector<compute_stream<R>> compute_;
  pinned_options pinning_;
  std::chrono::nanoseconds drain_limit_;
  std::shared_ptr<load_ring<R>> ring_;
  std::vector<std::unique_ptr<copy_queue<R>>> queues_;
  std::array<window, 2> windows_;
};

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
