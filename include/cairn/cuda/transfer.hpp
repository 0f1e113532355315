// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/copy_engine.hpp>
#include <cairn/cuda/copy_queue.hpp>
#include <cairn/cuda/drain.hpp>
#include <cairn/cuda/run_collector.hpp>
#include <cairn/model/tensor_view.hpp>
#include <cairn/stage/block_copy.hpp>
#include <cairn/stage/copy_job.hpp>
#include <cairn/stage/image_sources.hpp>
#include <cairn/system/shared_event.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace cuda {
namespace detail {

/// The filling of one image. begin() is called by the thread that saves, everything else by the engine's own
/// thread; ended(), enqueued() and wait() by any.
template <DeviceRuntime R>
class transfer {
 public:
  /// `queues`: those of the devices that the sources lie on. `gather_below`: contiguous pieces of fewer bytes
  /// are gathered, as are strided ones, where the runtime has a kernel for that; 0: none.
  transfer(std::shared_ptr<image_fill> fill, std::vector<copy_queue<R>*> queues, std::uint64_t batch_bytes,
           std::uint64_t gather_below)
      : fill_(std::move(fill)),
        queues_(std::move(queues)),
        ranges_(cairn::detail::cut_into_ranges(fill_->layout(), fill_->options().overlapped)),
        parts_(queues_.size()),
        last_tensor_(queues_.size()),
        batch_bytes_(std::max(batch_bytes, fill_->layout().bytes / max_batches)),
        gather_below_(gather_below) {
    if constexpr (GatheringRuntime<R>)
      for (auto* l : queues_) gatherings_.emplace_back(*l);
  }

  /// Orders the copies behind what the compute streams have been given so far, copies what the CPU can read
  /// of the early items, and puts the early copies from devices into the streams; what the compute streams
  /// are given afterwards begins after those. @throws storage_error; the transfer has failed then, and must
  /// be finished all the same.
  void begin() {
    for (auto* l : queues_) {
      const device_in_use<R> device(l->device());
      const owned_event<R> ready(l->device());
      check_call<R>(R::record(ready.get(), l->compute()),
                    "cudaEventRecord (recording an event on the compute stream)", l->device());
      check_call<R>(R::wait(l->side(), ready.get()),
                    "cudaStreamWaitEvent (ordering copies behind the compute stream)", l->device());
    }
    const image_range* first = nullptr;
    const image_range* last = nullptr;
    for (const auto& range : ranges_) {
      if (!range.early) continue;
      put(range);
      if (first == nullptr) first = &range;
      last = &range;
    }
    if (first == nullptr) return;
    batch done = close_batch({first->begin, last->end, true}, 0);
    for (std::size_t i = 0; i < queues_.size(); ++i) {
      const device_in_use<R> device(queues_[i]->device());
      check_call<R>(R::wait(queues_[i]->compute(), done.marks[i].event.get()),
                    "cudaStreamWaitEvent (ordering the compute stream behind copies)", queues_[i]->device());
    }
    batches_.push_back(std::move(done));
  }

  /// Does what can be done without waiting: puts the next copies into the streams, looks how far they are.
  /// True once the transfer has ended. Fails instead of throwing.
  [[nodiscard]] bool proceed() noexcept {
    if (ended()) return true;
    try {
      if (failure_ == nullptr && given_up_.load(std::memory_order_acquire))
        failure_ =
            cairn::make_failure(error_id::timeout_staging, "the memory of training was not copied in time");
      // All of them at a stretch: before_update() waits for it.
      while (failure_ == nullptr && next_ < ranges_.size() && !given_up_.load(std::memory_order_acquire)) {
        enqueue_batch();
        look();
      }
      if (failure_ == nullptr && !ended()) look();
    } catch (...) {
      fail(std::current_exception());
    }
    if (failure_ == nullptr || ended()) return ended();
    const bool over = drained();
    if ((over || left_behind_.load(std::memory_order_acquire)) && !std::exchange(failure_reported_, true))
      fill_->fail(failure_);
    if (over) end();
    return over;
  }
  /// For begin(): what it threw, so that the image fails with it.
  void fail(std::exception_ptr why) noexcept {
    if (failure_ == nullptr) failure_ = std::move(why);
    enqueued_.store(true, std::memory_order_release);
    event_.notify();
  }
  /// The caller waits no longer: nothing more is put into the streams, and the image fails.
  void give_up() noexcept { given_up_.store(true, std::memory_order_release); }
  /// The same, and nobody waits for the copies that are under way either: the image fails although they may
  /// still write to its buffer, which is kept until they ended.
  void leave_behind() noexcept {
    left_behind_.store(true, std::memory_order_release);
    give_up();
  }

  [[nodiscard]] bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }
  /// Waits until the transfer has ended; false at the deadline.
  [[nodiscard]] bool wait_ended(deadline until) noexcept {
    return wait([this] { return ended(); }, until);
  }
  /// Waits until all copies are in the streams (microseconds for each item); false at the deadline.
  [[nodiscard]] bool wait_enqueued(deadline until) noexcept {
    return wait([this] { return ended() || enqueued_.load(std::memory_order_acquire); }, until);
  }
  /// Makes a stream begin what it is given from now on after all copies of its device. @pre wait_enqueued().
  void order_after(typename R::stream_type stream, int device) {
    if (ended()) return;
    for (const auto& last : last_)
      if (last.device() == device)
        check_call<R>(R::wait(stream, last.get()), "cudaStreamWaitEvent (ordering a stream behind copies)",
                      device);
  }
  [[nodiscard]] const image_fill& fill() const noexcept { return *fill_; }

 private:
  static constexpr std::uint64_t polls_without_query = 64;
  /// The most batches of one image: each costs a few calls, and a stream takes about a thousand before it
  /// lets its callers wait.
  static constexpr std::uint64_t max_batches = 64;
  using image_range = cairn::detail::image_range;

  /// Units that were put into the streams together; done once all its marks are reached.
  struct batch {
    image_range range;    ///< where its bytes lie in the image; early: all early ranges, and only those
    std::size_t end = 0;  ///< ranges before this one are done with it
    bool last = false;    ///< nothing follows
    std::vector<stream_mark<R>> marks;  ///< of each queue
  };

  template <class Condition>
  bool wait(Condition&& condition, deadline until) noexcept {
    for (;;) {
      const auto seen = event_.current();
      if (condition()) return true;
      if (until.passed()) return false;
      event_.wait(seen, until);
    }
  }
  [[nodiscard]] std::size_t queue_on(int device) const noexcept {
    return static_cast<std::size_t>(
        std::find_if(queues_.begin(), queues_.end(), [&](const auto* l) { return l->device() == device; }) -
        queues_.begin());
  }

  /// Does something that concerns these bytes of the image: an error of a device names the items there.
  template <class Work>
  void about(std::uint64_t begin, std::uint64_t end, Work&& work) const {
    try {
      work();
    } catch (const storage_error& e) {
      if (e.id() != error_id::storage_device || !e.fields().item.empty()) throw;
      auto fields = e.fields();
      fields.item = item_at(begin);
      const auto last = item_at(end - 1);
      cairn::fail(
          e.id(),
          e.message() +
              (last == fields.item ? "" : "; this item was copied together with others up to " + last),
          std::move(fields));
    }
  }
  [[nodiscard]] std::string item_at(std::uint64_t at) const {
    const auto& items = fill_->layout().items;
    auto place = std::partition_point(items.begin(), items.end(),
                                      [&](const auto& p) { return p.begin + p.bytes <= at; });
    if (place == items.end() && place != items.begin()) --place;
    return place != items.end() ? std::string(fill_->name(*place)) : std::string();
  }
  /// Copies what the CPU can read, and puts the rest into the queue of its device.
  void put(const image_range& range) {
    std::byte* image = fill_->memory().data();
    std::optional<device_in_use<R>> device;
    if (queues_.size() == 1) device.emplace(queues_.front()->device());
    cairn::detail::for_each_image_range(
        fill_->layout(), range.begin, range.end,
        [&](std::span<const std::byte> bytes, std::uint64_t at) {
          std::memcpy(image + at, bytes.data(), bytes.size());
        },
        [&](const item_placement& place, std::uint64_t first, std::uint64_t last) {
          const auto& source = fill_->source(place);
          std::byte* to = image + place.begin + first;
          if (source.view.space != memory_space::device)
            cairn::detail::copy_item(source, place.bytes, first, last, to, cairn::detail::streaming_copy);
          else
            about(place.begin + first, place.begin + last, [&] { put(source.view, first, last, to); });
        },
        [&](std::uint64_t at, std::uint64_t bytes) {
          std::memset(image + at, 0, bytes);
          if constexpr (GatheringRuntime<R>)
            for (auto& g : gatherings_) g.zeros(image + at, bytes);
        });
    cairn::detail::streamed_copies_done();
  }
  void put(const tensor_view& view, std::uint64_t first, std::uint64_t last, std::byte* to) {
    const auto at = queue_on(view.device);
    auto& parts = parts_[at];
    const bool continues = std::exchange(last_tensor_[at], view.data) == view.data;
    std::optional<device_in_use<R>> device;  // one for all where there is one
    if (queues_.size() != 1) device.emplace(view.device);
    const bool together = view.contiguous();
    if constexpr (GatheringRuntime<R>) {
      const bool adjacent = continues && !parts.empty() && parts.back().to + parts.back().bytes == to &&
                            parts.back().from + parts.back().bytes == view.data + first;
      // Elements that are no whole bytes have no box.
      const bool gathered = together ? last - first < gather_below_ && !adjacent
                                     : gather_below_ != 0 && bits_of(view.type) % 8 == 0;
      if (gathered && gatherings_[at].add(view, first, last, to)) return;
    }
    if (together) return add_copy(parts, {to, view.data + first, last - first}, continues ? 0 : parts.size());
    run_collector<R> runs(*queues_[at], parts);
    for_each_run(view, first, last, [&](const std::byte* from, std::uint64_t bytes, std::uint64_t position) {
      runs.add(to + (position - first), from, bytes);
    });
    runs.flush();
  }
  /// Gives the collected parts to the streams, with a mark behind them.
  batch close_batch(const image_range& range, std::size_t end) {
    batch closed;
    closed.range = range;
    closed.end = end;
    about(range.begin, range.end, [&] {
      for (std::size_t i = 0; i < queues_.size(); ++i) closed.marks.push_back(flush(i));
    });
    return closed;
  }
  stream_mark<R> flush(std::size_t i) {
    auto& l = *queues_[i];
    const device_in_use<R> device(l.device());
    auto& parts = parts_[i];
    if (parts.size() == 1)
      check_call<R>(R::copy_to_host(parts[0].to, parts[0].from, parts[0].bytes, l.side()),
                    "cudaMemcpyAsync (copying from device memory)", l.device());
    else if (!parts.empty())
      check_call<R>(R::copy_ranges_to_host(parts, l.side()),
                    "cudaMemcpyAsync (copying parts from device memory)", l.device());
    parts.clear();
    if constexpr (GatheringRuntime<R>) gatherings_[i].flush();
    return l.mark();
  }
  void enqueue_batch() {
    std::uint64_t bytes = 0;
    image_range range{ranges_[next_].begin, 0, false};
    while (next_ < ranges_.size() && bytes < batch_bytes_) {
      auto run = ranges_[next_++];
      range.end = run.end;
      if (run.early) continue;
      while (next_ < ranges_.size() && !ranges_[next_].early && run.end - run.begin < batch_bytes_ - bytes)
        range.end = run.end = ranges_[next_++].end;
      put(run);
      bytes += run.end - run.begin;
    }
    batch closed = close_batch(range, next_);
    if (next_ < ranges_.size()) {
      batches_.push_back(std::move(closed));
      return;
    }
    closed.last = true;
    // Kept apart from the batch: whoever orders a stream behind it may come when that is gone.
    for (auto* l : queues_) {
      const device_in_use<R> device(l->device());
      owned_event<R> last(l->device());
      check_call<R>(R::record(last.get(), l->side()),
                    "cudaEventRecord (recording an event behind all copies)", l->device());
      last_.push_back(std::move(last));
    }
    batches_.push_back(std::move(closed));
    enqueued_.store(true, std::memory_order_release);
    event_.notify();
  }
  /// A word in memory costs the driver's locks nothing; its event tells errors, and is asked now and then,
  /// and about the end of all.
  [[nodiscard]] bool reached(const batch& b) const {
    for (std::size_t i = 0; i < b.marks.size(); ++i) {
      const auto& mark = b.marks[i];
      if (mark.numbered) {
        const bool passed = queues_[i]->passed(mark);
        if (passed && !b.last) continue;
        if (!passed && polls_ % polls_without_query != 0) return false;
      }
      const device_in_use<R> device(mark.event.device());
      const int status = R::query(mark.event.get());
      if (status == R::not_ready) return false;
      about(b.range.begin, b.range.end, [&] {
        check_call<R>(status, "cudaEventQuery (a copy from device memory)", mark.event.device());
      });
    }
    return true;
  }
  void look() {
    ++polls_;
    while (!batches_.empty() && reached(batches_.front())) {
      const bool early = batches_.front().range.early;
      const auto end = batches_.front().end;
      batches_.pop_front();
      if (!early) done_ = end;
      // Early ranges that follow what is done are done as well: theirs was the first batch.
      while (done_ < ranges_.size() && ranges_[done_].early) ++done_;
      if (done_ > 0) fill_->control().advance(ranges_[done_ - 1].end);
    }
    if (!batches_.empty() || next_ < ranges_.size()) return;
    fill_->control().release();
    end();
  }
  /// True once no copy of this transfer can be under way: each queue is asked through an event behind them
  /// all. What fails meanwhile is tried again.
  [[nodiscard]] bool drained() noexcept {
    drain_.resize(queues_.size());
    for (std::size_t i = 0; i < queues_.size(); ++i)
      if (!drain_[i].over(queues_[i]->side(), queues_[i]->device())) return false;
    return true;
  }
  void end() noexcept {
    batches_.clear();
    drain_.clear();
    ended_.store(true, std::memory_order_release);
    event_.notify();
  }

  std::shared_ptr<image_fill> fill_;
  std::vector<copy_queue<R>*> queues_;
  cairn::detail::vector<image_range> ranges_;
  std::vector<std::vector<range_copy>> parts_;  // of each queue, for the batch that is open
  std::vector<const std::byte*> last_tensor_;   // of each queue, that was put there last
  std::vector<gathering<R>> gatherings_;        // of each queue, where the runtime gathers
  std::deque<batch> batches_;
  std::vector<owned_event<R>> last_;  // written before enqueued_
  std::vector<stream_end<R>> drain_;  // of each queue, after a failure
  std::uint64_t batch_bytes_;
  std::uint64_t gather_below_;
  std::uint64_t polls_ = 0;
  std::size_t next_ = 0;
  std::size_t done_ = 0;
  std::exception_ptr failure_;
  bool failure_reported_ = false;
  std::atomic<bool> given_up_{false};
  std::atomic<bool> left_behind_{false};
  std::atomic<bool> enqueued_{false};
  std::atomic<bool> ended_{false};
  shared_event event_;
};

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
