// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/device_access.hpp>
#include <cairn/cuda/basic_pinned.hpp>
#include <cairn/cuda/device_runtime.hpp>
#include <cairn/cuda/drain.hpp>
#include <cairn/cuda/load_ring.hpp>
#include <cairn/cuda/owned_event.hpp>
#include <cairn/stage/heap_memory.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace cuda {
namespace detail {

/// Puts runs that follow each other at regular distances together into two-dimensional copies, and gathers
/// the rest.
template <DeviceRuntime R>
class run_scatterer {
 public:
  run_scatterer(typename R::stream_type stream, int device, std::string_view item,
                std::vector<range_copy>& parts) noexcept
      : stream_(stream), device_(device), item_(item), parts_(parts) {}
  void add(const device_run& run) {
    if (rows_ != 0 && run.bytes == width_ && follows(run)) {
      if (rows_ == 1) {
        to_pitch_ = run.to - to_;
        from_pitch_ = run.from - from_;
      }
      ++rows_;
      return;
    }
    flush();
    to_ = run.to, from_ = run.from, width_ = run.bytes, rows_ = 1;
  }
  void flush() {
    const auto rows = std::exchange(rows_, 0);
    if (rows == 1) {
      parts_.push_back({to_, from_, width_});
    } else if (rows > 1) {
      check_call<R>(R::copy_rows_to_device(to_, static_cast<std::uint64_t>(to_pitch_), from_,
                                           static_cast<std::uint64_t>(from_pitch_), width_, rows, stream_),
                    "cudaMemcpy2DAsync (copying rows to device memory)", device_, item_);
    }
  }

 private:
  static constexpr std::ptrdiff_t max_pitch = (std::ptrdiff_t{1} << 31) - 1;
  [[nodiscard]] bool is_pitch(std::ptrdiff_t pitch) const noexcept {
    return pitch >= static_cast<std::ptrdiff_t>(width_) && pitch <= max_pitch;
  }
  [[nodiscard]] bool follows(const device_run& run) const noexcept {
    if (rows_ == 1) return is_pitch(run.to - to_) && is_pitch(run.from - from_);
    const auto rows = static_cast<std::ptrdiff_t>(rows_);
    return run.to - to_ == rows * to_pitch_ && run.from - from_ == rows * from_pitch_;
  }

  typename R::stream_type stream_;
  int device_;
  std::string_view item_;
  std::vector<range_copy>& parts_;
  std::byte* to_ = nullptr;
  const std::byte* from_ = nullptr;
  std::uint64_t width_ = 0;
  std::ptrdiff_t to_pitch_ = 0;
  std::ptrdiff_t from_pitch_ = 0;
  std::uint64_t rows_ = 0;
};

/// One load; see device_load.
template <DeviceRuntime R>
class load_session final : public device_load {
 public:
  /// `ring`: where buffers come from, and go to at the end.
  load_session(std::vector<compute_stream<R>> compute, std::uint64_t memory, pinned_options pinning,
               std::chrono::nanoseconds drain_limit, std::shared_ptr<load_ring<R>> ring)
      : compute_(std::move(compute)),
        memory_(memory),
        pinning_(pinning),
        drain_limit_(drain_limit),
        ring_(std::move(ring)) {
    for (auto& block : ring_->take(memory_)) add_buffer().block.emplace(std::move(block));
  }
  load_session(const load_session&) = delete;
  load_session& operator=(const load_session&) = delete;
  ~load_session() override {
    // Copies that are under way read from the ring, and write to the user's memory.
    if (!drained())
      for (auto& b : buffers_) (void)b.release();
    else
      keep_buffers();
    buffers_.clear();
    const relaxed_capture_mode<R> guard;
    for (const auto& l : open_devices_) {
      const device_in_use<R> use(l.device, std::nothrow);
      (void)R::destroy_stream(l.side);
    }
  }

  void check(const tensor_view& target, std::string_view item) override {
    if (target.device < 0)
      fail(error_id::usage_unsupported_tensor,
           "a tensor_view in device memory does not say on which device: set its `device`, or make it with "
           "cuda::device_view",
           {.item = std::string(item)});
    if (target.bytes() == 0) return;
    int device = -1;
    const relaxed_capture_mode<R> guard;
    const device_in_use<R> use(target.device, std::nothrow);
    check_call<R>(R::device_of(target.data, device), "cudaPointerGetAttributes (asking where memory lies)",
                  target.device, item);
    if (device != target.device)
      fail(error_id::usage_unsupported_tensor,
           "the destination of an item is not in the memory of its device; was it freed?",
           {.item = std::string(item),
            .expected = "device " + std::to_string(target.device),
            .got = device < 0 ? "memory of no device" : "device " + std::to_string(device)});
    for (const auto& l : open_devices_)
      if (l.device == target.device) return;
    open_stream_on(target.device);
  }
  [[nodiscard]] std::uint64_t memory() const noexcept override { return memory_; }

  [[nodiscard]] buffer acquire(std::uint64_t bytes, deadline until) override {
    const relaxed_capture_mode<R> guard;
    std::unique_lock lock(mutex_);
    for (;;) {
      look();
      if (auto* found = find_free(bytes)) {
        found->held = true;
        return {found->index, found->block->bytes()};
      }
      if (until.passed()) fail_late();
      changed_.wait_for(lock, look_every);
    }
  }
  void put(const buffer& from, int device, std::string_view item, std::span<const device_run> runs) override {
    auto& b = at(from);
    const auto device_index = index_of(device);
    const relaxed_capture_mode<R> guard;
    const device_in_use<R> use(device);
    if (b.parts.size() < open_devices_.size()) b.parts.resize(open_devices_.size());
    auto& parts = b.parts[device_index];
    if (b.item.empty()) b.item = item;
    b.touched = true;
    run_scatterer<R> scatterer(open_devices_[device_index].side, device, item, parts);
    for (const auto& run : runs) scatterer.add(run);
    scatterer.flush();
    // One call for many, but not so many that the device waits for them.
    if (parts.size() >= max_parts) copy_ranges(b, device_index);
  }
  void give(const buffer& done) noexcept override {
    auto& b = at(done);
    std::exception_ptr failure;
    std::vector<owned_event<R>> events;
    const relaxed_capture_mode<R> guard;
    try {
      if (b.touched)
        for (std::size_t i = 0; i < b.parts.size(); ++i) {
          const device_in_use<R> use(open_devices_[i].device);
          copy_ranges(b, i);
          events.emplace_back(open_devices_[i].device);
          check_call<R>(R::record(events.back().get(), open_devices_[i].side),
                        "cudaEventRecord (recording an event behind copies)", open_devices_[i].device,
                        b.item);
        }
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      b.events = std::move(events);
      // Nobody knows when its copies are done: it is used no more.
      if (failure == nullptr) b.held = b.touched = false;
      if (failure_ == nullptr) failure_ = std::move(failure);
    }
    changed_.notify_all();
  }
  void finish(deadline until) override {
    const relaxed_capture_mode<R> guard;
    std::unique_lock lock(mutex_);
    for (;;) {
      look();
      if (std::all_of(buffers_.begin(), buffers_.end(), [](const auto& b) { return b->events.empty(); }))
        return;
      if (until.passed()) fail_late();
      changed_.wait_for(lock, look_every);
    }
  }

 private:
  using memory_type = basic_pinned<heap_memory, R>;  // as the ring's
  static constexpr auto look_every = std::chrono::microseconds(50);
  static constexpr std::size_t max_parts = 1024;
  static constexpr std::uint64_t huge_page = std::uint64_t{2} << 20;
  struct open_device {
    int device = 0;
    typename R::stream_type side{};
  };
  /// Its fields are those of the thread that holds it, and under the mutex where nobody does.
  struct ring_buffer {
    std::size_t index = 0;
    std::optional<typename memory_type::block_type> block;
    std::vector<std::vector<range_copy>> parts;  ///< of each device, not yet copied
    std::vector<owned_event<R>> events;          ///< behind its copies
    std::string item;                            ///< the first that it has something of
    bool held = false;
    bool touched = false;
  };

  [[noreturn]] void fail_late() const {
    std::string item;
    for (const auto& b : buffers_)
      if (!b->events.empty()) item = b->item;
    fail(error_id::timeout_load,
         "memory of a device was not loaded in time; what the destinations hold is undefined",
         {.item = item});
  }
  void open_stream_on(int device) {
    const device_in_use<R> use(device);
    // Pins with this device in use, on whatever thread: no other device gets a context for it.
    if (!ring_memory_) ring_memory_.emplace(pinning_);
    const auto compute = compute_stream_of<R>(compute_, device);
    refuse_capture<R>(compute, device, "a load");
    open_devices_.reserve(open_devices_.size() + 1);
    open_device made{device, {}};
    check_call<R>(R::make_stream(made.side), "cudaStreamCreateWithPriority (making a stream)", device);
    open_devices_.push_back(made);
    const owned_event<R> ready(device);
    check_call<R>(R::record(ready.get(), compute),
                  "cudaEventRecord (recording an event on the compute stream)", device);
    check_call<R>(R::wait(made.side, ready.get()),
                  "cudaStreamWaitEvent (ordering copies behind the compute stream)", device);
  }
  [[nodiscard]] std::size_t index_of(int device) const {
    const auto found = std::find_if(open_devices_.begin(), open_devices_.end(),
                                    [&](const open_device& l) { return l.device == device; });
    if (found == open_devices_.end())
      fail(error_id::usage_unsupported_tensor, "a destination on a device was not checked before the load",
           {.got = "device " + std::to_string(device)});
    return static_cast<std::size_t>(found - open_devices_.begin());
  }
  [[nodiscard]] ring_buffer& at(const buffer& b) {
    const std::lock_guard lock(mutex_);
    return *buffers_[b.index];
  }
  /// @pre its device is in use.
  void copy_ranges(ring_buffer& b, std::size_t device_index) {
    auto& parts = b.parts[device_index];
    const auto& l = open_devices_[device_index];
    if (parts.size() == 1)
      check_call<R>(R::copy_to_device(parts[0].to, parts[0].from, parts[0].bytes, l.side),
                    "cudaMemcpyAsync (copying to device memory)", l.device, b.item);
    else if (!parts.empty())
      check_call<R>(R::copy_ranges_to_device(parts, l.side),
                    "cudaMemcpyAsync (copying parts to device memory)", l.device, b.item);
    parts.clear();
  }
  /// Finds out which copies are done. @pre the mutex is held. @throws what failed.
  void look() {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    for (auto& b : buffers_) {
      while (!b->events.empty()) {
        const auto& event = b->events.back();
        const device_in_use<R> use(event.device());
        const int status = R::query(event.get());
        if (status == R::not_ready) break;
        check_call<R>(status, "cudaEventQuery (a copy to device memory)", event.device(), b->item);
        b->events.pop_back();
      }
      if (b->events.empty() && !b->held) b->item.clear();
    }
  }
  ring_buffer& add_buffer() {
    buffers_.push_back(std::make_unique<ring_buffer>());
    buffers_.back()->index = buffers_.size() - 1;
    return *buffers_.back();
  }
  void keep_buffers() noexcept {
    try {
      for (auto& b : buffers_)
        if (b->block && b->block->is_pinned()) ring_->give(std::move(*b->block));
    } catch (const std::bad_alloc&) {
      // The next load pins anew.
    }
  }
  /// A buffer that nobody uses, made if there is room for it; nullptr if that must be waited for. @pre the
  /// mutex is held.
  [[nodiscard]] ring_buffer* find_free(std::uint64_t bytes) {
    ring_buffer* spare = nullptr;
    std::uint64_t total = 0;
    for (auto& b : buffers_) {
      total += b->block ? b->block->bytes().size() : 0;
      if (b->held || !b->events.empty()) continue;
      if (b->block && b->block->bytes().size() >= bytes) return b.get();
      spare = b.get();
    }
    if (spare != nullptr && spare->block) {
      total -= spare->block->bytes().size();
      spare->block.reset();
    }
    if (total != 0 && (total > memory_ || bytes > memory_ - total)) return nullptr;
    if (spare == nullptr) spare = &add_buffer();
    // A smaller one would have small pages, for which a disk is asked in several requests.
    const bool fits = huge_page <= memory_ && total <= memory_ - huge_page;
    spare->block.emplace(ring_memory_->allocate(fits ? std::max(bytes, huge_page) : bytes));
    return spare;
  }
  [[nodiscard]] bool drained() noexcept {
    const auto until = deadline::in(drain_limit_);
    return std::all_of(open_devices_.begin(), open_devices_.end(),
                       [&](const open_device& l) { return drain<R>(l.side, l.device, until); });
  }

  std::vector<compute_stream<R>> compute_;
  std::uint64_t memory_;
  pinned_options pinning_;
  std::chrono::nanoseconds drain_limit_;
  std::shared_ptr<load_ring<R>> ring_;
  std::vector<open_device> open_devices_;  ///< complete before the first put
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<memory_type> ring_memory_;
  std::deque<std::unique_ptr<ring_buffer>> buffers_;
  std::exception_ptr failure_;
};

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
