// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/cuda/basic_pinned.hpp>
#include <cairn/cuda/gather.hpp>
#include <cairn/cuda/owned_event.hpp>
#include <cairn/stage/heap_memory.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace cuda {
namespace detail {

/// A position in a stream.
template <DeviceRuntime R>
struct stream_mark {
  owned_event<R> event;
  bool numbered = false;  ///< the queue's word gets `number` or a later one when it is reached
  std::uint32_t number = 0;
};

/// A stream of a device on which images are filled, beside the device's compute stream. Lives as long as its
/// engine.
template <DeviceRuntime R>
class copy_queue {
 public:
  /// @pre the device is in use. `words`: tell by a word in pinned memory how far the stream is, where the
  /// driver can; `staging_bytes`: of device memory for gathering. @throws storage_error
  copy_queue(int device, typename R::stream_type compute, bool words, std::uint64_t staging_bytes)
      : device_(device), compute_(compute), staging_wanted_(GatheringRuntime<R> ? staging_bytes : 0) {
    check_call<R>(R::make_stream(side_), "cudaStreamCreateWithPriority (making a stream)", device);
    if (words) make_word();
  }
  copy_queue(const copy_queue&) = delete;
  copy_queue& operator=(const copy_queue&) = delete;
  /// @pre nothing of the stream is under way.
  ~copy_queue() {
    const relaxed_capture_mode<R> guard;
    const device_in_use<R> use(device_, std::nothrow);
    (void)R::destroy_stream(side_);
    page_.reset();
    if (staging_ != nullptr) (void)R::deallocate(staging_);
  }
  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] typename R::stream_type side() const noexcept { return side_; }
  [[nodiscard]] typename R::stream_type compute() const noexcept { return compute_; }
  /// Held while calls that belong together are enqueued.
  [[nodiscard]] std::mutex& mutex() noexcept { return mutex_; }

  /// Memory for gathering, of staging_bytes(); null where the device has none left, which a line on stderr
  /// says.
  /// @pre the device is in use.
  [[nodiscard]] std::byte* staging() {
    const std::lock_guard lock(mutex_);
    if (staging_ == nullptr && staging_wanted_ != 0) {
      const int status = R::allocate(staging_, staging_wanted_);
      if (status != R::success) {
        staging_ = nullptr;
        std::fprintf(
            stderr,
            "cairn: device %d has no %llu bytes for gathering small tensors (%s): they are copied one by "
            "one, which is slower\n",
            device_, static_cast<unsigned long long>(staging_wanted_), R::text_of(status));
        staging_wanted_ = 0;
      }
    }
    return staging_;
  }
  [[nodiscard]] bool ready_to_gather() const noexcept { return staging_ != nullptr || staging_wanted_ == 0; }
  [[nodiscard]] std::uint64_t staging_bytes() const noexcept { return staging_wanted_; }

  /// Marks the current position of the stream. @pre the device is in use. @throws storage_error
  [[nodiscard]] stream_mark<R> mark() {
    stream_mark<R> made{owned_event<R>(device_)};
    const std::lock_guard lock(mutex_);
    if (word_ != nullptr) {
      const int status = R::write_word(device_word_, written_ + 1, side_);
      // Where the first one fails, events tell how far the stream is.
      if (written_ == 0 && status != R::success) {
        word_ = nullptr;
      } else {
        check_call<R>(status, "cuStreamWriteValue32 (writing how far a stream is)", device_);
        made.numbered = true;
        made.number = ++written_;
      }
    }
    // Last: once it is reached, nothing is under way that touches the image, or the word.
    check_call<R>(R::record(made.event.get(), side_), "cudaEventRecord (recording an event behind copies)",
                  device_);
    return made;
  }
  /// @pre mark.numbered.
  [[nodiscard]] bool passed(const stream_mark<R>& mark) const noexcept {
    return static_cast<std::int32_t>(word_->load(std::memory_order_acquire) - mark.number) >= 0;
  }

 private:
  void make_word() {
    try {
      page_.emplace(basic_pinned<heap_memory, R>().allocate(sizeof *word_));
      if (R::device_address(page_->bytes().data(), device_word_) != R::success) return;
      word_ = new (page_->bytes().data()) std::atomic<std::uint32_t>(0);
    } catch (const error&) {
      // Events tell.
    }
  }

  int device_;
  typename R::stream_type compute_;
  typename R::stream_type side_{};
  std::mutex mutex_;
  std::byte* staging_ = nullptr;
  std::uint64_t staging_wanted_;
  std::optional<typename basic_pinned<heap_memory, R>::block_type> page_;
  std::byte* device_word_ = nullptr;            // the word, as the device sees it
  std::atomic<std::uint32_t>* word_ = nullptr;  // in the page; null: events tell
  std::uint32_t written_ = 0;
};

/// Brings small and strided pieces together in a queue's staging memory, from where they are copied as few
/// large ones. For one thread at a time; several of one queue may exist, since what each puts into the stream
/// is in the order of the stream done with the staging memory. For a GatheringRuntime.
template <DeviceRuntime R>
class gathering {
 public:
  explicit gathering(copy_queue<R>& on) noexcept : queue_(on) {}

  /// Bytes [first, last) of the packed view go to `to`, in pinned memory. False: the device has no memory for
  /// this. @pre the device is in use. @throws storage_error
  [[nodiscard]] bool add(const tensor_view& view, std::uint64_t first, std::uint64_t last, std::byte* to) {
    if (staging_ == nullptr && (staging_ = queue_.staging()) == nullptr) return false;
    const bool together = view.contiguous();
    while (first < last) {
      const auto room = make_room(to);
      const auto wanted = std::min<std::uint64_t>(last - first, gather_tile_bytes);
      // What is cut here leaves the rest aligned as it was.
      const auto bytes = wanted <= room ? wanted : room / 16 * 16;
      if (bytes == 0) {
        flush();
        continue;
      }
      gather_range part;
      const gather_box* box = nullptr;
      if (together) {
        part.from = view.data + first;
      } else {
        if (boxed_ != &view) boxes_.push_back(box_of(view)), boxed_ = &view;
        part.from = view.data;
        part.first = first;
        part.box = static_cast<std::uint32_t>(boxes_.size() - 1);
        box = &boxes_.back();
      }
      put(part, box, bytes);
      first += bytes, to += bytes;
    }
    return true;
  }
  /// Zeros between two pieces, which are in place already: copying them again makes one copy of two.
  void zeros(const std::byte* at, std::uint64_t bytes) {
    if (at != end_ || bytes > gather_tile_bytes || used_ + bytes > queue_.staging_bytes()) return;
    put({}, nullptr, bytes);
  }
  /// Gives all to the stream. @pre the device is in use. @throws storage_error
  void flush() {
    if (!parts_.empty()) {
      const std::lock_guard lock(queue_.mutex());
      check_call<R>(R::gather(parts_, boxes_, staging_, queue_.side()),
                    "the launch of a kernel (gathering small tensors)", queue_.device());
      check_call<R>(ranges_.size() == 1
                        ? R::copy_to_host(ranges_[0].to, ranges_[0].from, ranges_[0].bytes, queue_.side())
                        : R::copy_ranges_to_host(ranges_, queue_.side()),
                    "cudaMemcpyAsync (copying gathered tensors from device memory)", queue_.device());
    }
    parts_.clear(), boxes_.clear(), ranges_.clear();
    used_ = 0, end_ = nullptr, boxed_ = nullptr;
  }

 private:
  /// Bytes that are free for a piece that goes to `to`.
  [[nodiscard]] std::uint64_t make_room(std::byte* to) {
    if (to != end_) {
      // Copies are fastest where both sides are aligned alike.
      const std::uint64_t begin = (used_ + 255) / 256 * 256 + reinterpret_cast<std::uintptr_t>(to) % 256;
      if (begin + 16 > queue_.staging_bytes()) return 0;
      ranges_.push_back({to, staging_ + begin, 0});
      used_ = begin, end_ = to;
    }
    return queue_.staging_bytes() - used_;
  }
  void put(gather_range part, const gather_box* box, std::uint64_t bytes) {
    part.to = static_cast<std::uint32_t>(used_);
    part.bytes = static_cast<std::uint32_t>(bytes);
    part.width = width_of(part, box);
    parts_.push_back(part);
    used_ += bytes, end_ += bytes, ranges_.back().bytes += bytes;
  }

  copy_queue<R>& queue_;
  std::byte* staging_ = nullptr;
  std::vector<gather_range> parts_;
  std::vector<gather_box> boxes_;
  std::vector<range_copy> ranges_;
  const tensor_view* boxed_ = nullptr;  ///< whose box is the last
  std::byte* end_ = nullptr;            ///< of the last range, at its destination
  std::uint64_t used_ = 0;
};

}  // namespace detail
}  // namespace cuda
}  // namespace v1
}  // namespace cairn
