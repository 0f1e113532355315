// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/copy_engine.hpp>
#include <cairn/cuda/basic_device_loads.hpp>
#include <cairn/cuda/transfer.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/fork_guard.hpp>
#include <cairn/system/process_limits.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace cuda {

/// Options of basic_copy_engine.
template <DeviceRuntime R>
struct basic_copy_engine_options {
  /// The compute streams. Devices that are not in this list compute on their default stream, which is
  /// ordered after all streams that were not made with cudaStreamNonBlocking.
  std::vector<compute_stream<R>> compute = {};
  /// The bytes that are enqueued together, or a 64th of an image that is larger than 64 times as much.
  /// The watermark of the image grows in these steps.
  std::uint64_t batch_bytes = std::uint64_t{16} << 20;
  /// With a GatheringRuntime: a kernel gathers contiguous ranges of fewer bytes, and strided ones of any
  /// size, which are then copied as a few large ranges. 0: no gathering.
  std::uint64_t gather_below = std::uint64_t{256} << 10;
  /// The memory of each device for gathering, which is allocated when it is first needed. If a device has
  /// none left, ranges are copied one by one, which a line on stderr says.
  std::uint64_t gather_bytes = std::uint64_t{16} << 20;
  /// Learn the progress of copies from words that the device writes to pinned memory, where the driver has
  /// such calls; otherwise, and if this is false, from events, which are queried every 50 microseconds.
  bool stream_writes = true;
  /// How long a failed save, and the destructor, wait for copies that are still under way. After that the
  /// buffer is kept for them.
  std::chrono::nanoseconds drain_limit = std::chrono::minutes(1);
};

/// A CopyEngine that fills pinned memory from device memory by the copy engines of the devices, and from
/// host memory by the CPU.
///
/// Streams order a save, without waits of the host: copies run on a separate stream of low priority, and
/// begin after the work that was enqueued on the compute stream before save(). Early items (see
/// CopyEngine) in device memory are complete in stream order: work that is enqueued on the compute stream
/// after save() begins after their copies, and the host does not wait. The rest may be changed after
/// before_update(stream) (the stream waits), or after before_update() has returned (the host waits).
///
/// Views may have any strides. With a GatheringRuntime a kernel packs them, and gathers small ones, in
/// device memory. Without it, rows of regular pitch cost one call for each megabyte, small ranges are
/// copied in batches of single copies, and single elements are slow. One thread enqueues copies and
/// checks their progress every 50 microseconds while there are any. Errors of the device are
/// storage_error (storage_device) and fail the image. If a stream is being captured into a graph, the
/// call throws usage_error (usage_stream_capturing) before it enqueues anything; captures of other
/// streams are not disturbed.
///
/// The destructor waits for images in progress, at most for drain_limit. If the device has not finished
/// them by then, they fail, and a line on stderr says so; their buffers, and a thread, are kept until it
/// finishes, or for ever.
template <DeviceRuntime R>
class basic_copy_engine {
 public:
  template <class M>
  static constexpr bool accepts = M::space == memory_space::pinned;
  static constexpr bool digests = false;
  using options_type = basic_copy_engine_options<R>;

  basic_copy_engine() : basic_copy_engine(options_type{}) {}
  /// @throws usage_error (usage_bad_option) if batch_bytes is 0, or a device is named twice.
  explicit basic_copy_engine(options_type options)
      : state_(std::make_unique<shared>()), options_(std::move(options)) {
    if (options_.batch_bytes == 0)
      fail(error_id::usage_bad_option, "batch_bytes of a copy engine is at least 1", {.got = "0"});
    if (options_.gather_bytes < 4096 || options_.gather_bytes > std::uint64_t{1} << 31)
      fail(error_id::usage_bad_option, "gather_bytes of a copy engine are 4096 to 2 GiB",
           {.got = std::to_string(options_.gather_bytes)});
    for (std::size_t i = 0; i < options_.compute.size(); ++i)
      for (std::size_t k = 0; k < i; ++k)
        if (options_.compute[i].device == options_.compute[k].device)
          fail(error_id::usage_bad_option, "a device has one compute stream",
               {.got = "device " + std::to_string(options_.compute[i].device) + " twice"});
  }
  basic_copy_engine(basic_copy_engine&&) noexcept = default;
  basic_copy_engine& operator=(basic_copy_engine&& other) noexcept {
    std::swap(state_, other.state_), std::swap(options_, other.options_), std::swap(last_, other.last_);
    std::swap(process_, other.process_);
    return *this;
  }
  /// In a child after fork(), where there is no thread and no device, nothing is touched.
  ~basic_copy_engine() {
    if (state_ == nullptr) return;
    if (process_.in_child()) {
      (void)state_.release();
      return;
    }
    if (!state_->worker.joinable() || state_->finish(deadline::in(options_.drain_limit))) return;
    (void)state_.release();  // the thread has it
    std::fprintf(
        stderr,
        "cairn: copies from a device had not ended when their stager was destroyed: does it hang? Their "
        "buffers are kept, and the images are given up\n");
  }

  /// @throws usage_error where a view in device memory does not say on which device, or is cast: a conversion
  /// belongs on the device, before the save.
  void check(const item_source& source) const {
    if (source.view.space != memory_space::device) return;
    if (source.view.device < 0)
      fail(error_id::usage_unsupported_tensor,
           "a tensor_view in device memory does not say on which device: set its `device`, or make it with "
           "cuda::device_view");
    if (source.cast != nullptr)
      fail(error_id::usage_unsupported_tensor,
           "a tensor in device memory cannot be converted while it is saved: convert it on the device, or "
           "save "
           "it in its own dtype");
  }

  /// Returns the device_access for loads, ordered after the same compute streams.
  [[nodiscard]] std::shared_ptr<device_access> device_memory() const {
    basic_device_loads_options<R> options;
    options.compute = options_.compute;
    return std::make_shared<basic_device_loads<R>>(std::move(options));
  }

  /// Makes the streams, allocates the memory for gathering and loads the kernels that the first image
  /// from these sources needs. @throws storage_error; copy() tries again.
  void prepare(const source_table& sources) {
    const relaxed_capture_mode<R> guard;
    for (const auto& source : sources) {
      const auto& view = source.view;
      if (view.space != memory_space::device || view.device < 0 || view.bytes() == 0) continue;
      auto& l = queue_on(view.device);
      if constexpr (GatheringRuntime<R>) {
        const bool few_bytes =
            view.contiguous() ? view.bytes() < options_.gather_below : options_.gather_below != 0;
        if (!few_bytes || l.ready_to_gather()) continue;
        const device_in_use<R> use(view.device);
        check_call<R>(R::load_kernels(), "cudaFuncGetAttributes (loading a kernel)", view.device);
        (void)l.staging();
      }
    }
  }

  /// See CopyEngine.
  void copy(std::shared_ptr<image_fill> fill, deadline until) {
    const relaxed_capture_mode<R> guard;
    const bool overlapped = fill->options().overlapped;
    const auto queues = queues_of(*fill);
    for (const auto* l : queues) {
      const device_in_use<R> use(l->device());
      refuse_capture<R>(l->compute(), l->device(), "save()");
    }
    auto filled = std::make_shared<transfer>(fill, queues, options_.batch_bytes, options_.gather_below);
    std::list<std::shared_ptr<transfer>> queued{
        filled};  // before any copy is under way: it may find no memory
    start();
    last_ = filled;
    std::exception_ptr failure;
    try {
      filled->begin();
    } catch (...) {
      failure = std::current_exception();
      filled->fail(failure);
    }
    {
      const std::lock_guard lock(state_->mutex);
      state_->transfers.splice(state_->transfers.end(), queued);
    }
    state_->changed.notify_all();
    if (failure == nullptr && overlapped) return;
    if (!filled->wait_ended(failure == nullptr ? until : deadline::in(options_.drain_limit))) {
      filled->give_up();
      // Copies that are under way write to the buffer: it is not given back before they are through.
      (void)filled->wait_ended(deadline::in(options_.drain_limit));
      if (failure == nullptr && !filled->ended())
        fail_late("the memory of training was not copied in time, and the device does not answer");
    }
    if (failure != nullptr) std::rethrow_exception(failure);
    if (const auto why = filled->fill().failure()) std::rethrow_exception(why);
  }

  /// Makes work that is enqueued on `stream` of `device` from now on begin after the copies of the last
  /// image. The host waits only until the copies are enqueued: microseconds for each step of batch_bytes,
  /// and less for each item. Only the thread that saves calls it. @throws storage_error, timeout_error,
  /// usage_error (usage_stream_capturing).
  void before_update(typename R::stream_type stream, int device, deadline until) {
    const auto copying = last_.lock();
    if (copying == nullptr || copying->ended()) return;
    {
      const device_in_use<R> use(device);
      refuse_capture<R>(stream, device, "before_update()");
    }
    if (!copying->wait_enqueued(until)) fail_late("copies were not given to the device in time");
    const device_in_use<R> use(device);
    copying->order_after(stream, device);
  }

 private:
  using transfer = detail::transfer<R>;
  using copy_queue = detail::copy_queue<R>;
  static constexpr auto poll_interval = std::chrono::microseconds(50);
  static constexpr auto idle_poll_interval = std::chrono::microseconds(10'000);

  struct shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::list<std::shared_ptr<transfer>> transfers;
    std::vector<std::unique_ptr<copy_queue>> queues;  // of the thread that saves, until the destructor
    cairn::detail::background_thread worker;
    bool stopping = false;
    bool over = false;
    bool left_behind = false;

    /// Ends the thread when all images are filled. False: they are not by the deadline, are given up, and
    /// this belongs to the thread.
    [[nodiscard]] bool finish(deadline until) noexcept {
      std::unique_lock lock(mutex);
      stopping = true;
      changed.notify_all();
      if (changed.wait_until(lock, until.time_point(), [&] { return over; })) {
        lock.unlock();
        worker.join();
        return true;
      }
      for (const auto& t : transfers) t->leave_behind();
      left_behind = true;
      worker.detach();
      return false;
    }
    /// The thread. True if it is to destroy this.
    [[nodiscard]] bool run() noexcept {
      const relaxed_capture_mode<R> guard;
      std::unique_lock lock(mutex);
      for (;;) {
        if (transfers.empty()) {
          if (stopping) break;
          changed.wait(lock);  // idle
          continue;
        }
        // Images are filled in the order of their saves; all queues are in that order.
        auto first = transfers.front();
        lock.unlock();
        const bool ended = first->proceed();
        first.reset();
        lock.lock();
        if (ended)
          transfers.pop_front();
        else
          changed.wait_for(lock, left_behind ? idle_poll_interval : poll_interval);
      }
      over = true;
      changed.notify_all();
      return left_behind;
    }
  };

  [[noreturn]] static void fail_late(const char* sentence) { fail(error_id::timeout_staging, sentence); }

  void start() {
    if (state_->worker.joinable()) return;
    const auto run = [state = state_.get()] {
      if (state->run()) delete state;
    };
    if (!state_->worker.start("cairn cuda", run)) cairn::detail::fail_for_threads("to copy from a device");
  }
  /// A queue for each device that a source lies on.
  [[nodiscard]] std::vector<copy_queue*> queues_of(const image_fill& fill) {
    std::vector<copy_queue*> used;
    for (const auto& place : fill.layout().items) {
      const auto& view = fill.source(place).view;
      if (view.space != memory_space::device || place.bytes == 0) continue;
      const auto on = [&](const copy_queue* l) { return l->device() == view.device; };
      if (std::find_if(used.begin(), used.end(), on) == used.end()) used.push_back(&queue_on(view.device));
    }
    return used;
  }
  [[nodiscard]] copy_queue& queue_on(int device) {
    for (const auto& l : state_->queues)
      if (l->device() == device) return *l;
    const auto compute = compute_stream_of<R>(options_.compute, device);
    const device_in_use<R> use(device);
    state_->queues.push_back(
        std::make_unique<copy_queue>(device, compute, options_.stream_writes, options_.gather_bytes));
    return *state_->queues.back();
  }

  std::unique_ptr<shared> state_;
  options_type options_;
  std::weak_ptr<transfer> last_;
  cairn::detail::fork_guard process_;
};

}  // namespace cuda
}  // namespace v1
}  // namespace cairn
