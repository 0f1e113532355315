// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_journal.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/storage/block_hasher.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/large_buffer.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/shared_event.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Buffers through which an image without memory of its own is written; aligned to image_alignment.
class write_ring {
 public:
  static constexpr std::size_t slot_bytes = std::size_t{4} << 20;
  static constexpr std::size_t slots = 6;
  write_ring() : bytes_(slot_bytes * slots) {}
  [[nodiscard]] std::span<std::byte> slot(std::uint64_t n) const noexcept {
    return {bytes_.data() + n % slots * slot_bytes, slot_bytes};
  }

 private:
  large_buffer bytes_;
};

/// Rings that were used before, so that a save does not touch new memory. Any thread.
class ring_pool {
 public:
  [[nodiscard]] std::unique_ptr<write_ring> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        auto ring = std::move(free_.back());
        free_.pop_back();
        return ring;
      }
    }
    return std::make_unique<write_ring>();
  }
  void give_back(std::unique_ptr<write_ring> ring) noexcept {
    const std::lock_guard lock(mutex_);
    if (free_.capacity() > free_.size()) free_.push_back(std::move(ring));
  }
  ring_pool() { free_.reserve(2); }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<write_ring>> free_;
};

/// The bytes of an image from front to back, for one thread that writes them: as they become available,
/// digested before they are handed out. A second thread digests ahead, and gathers ahead where the bytes lie
/// in training memory.
class write_source {
 public:
  /// `image` outlives the source.
  write_source(const staged_image& image, ring_pool& rings, deadline until)
      : image_(image), rings_(rings), until_(until), total_(image.layout().bytes) {
    if (!image_.resident()) ring_ = rings_.take();
    if (image_.resident() && image_.digested()) return;
    if (total_ <= first_request && image_.resident()) {
      image_.wait_for(total_, until_);
      block_hasher hasher(image_.layout(), image_.digests());
      hasher.feed(image_.bytes().first(static_cast<std::size_t>(total_)));
      ready_.store(total_, std::memory_order_release);
      return;
    }
    worker_ = std::thread([this] { run(); });
  }
  write_source(const write_source&) = delete;
  write_source& operator=(const write_source&) = delete;
  ~write_source() {
    stop_.store(true, std::memory_order_release);
    event_.notify();
    if (worker_.joinable()) worker_.join();
    if (ring_) rings_.give_back(std::move(ring_));
  }

  /// The next bytes of the image from `begin` on, not beyond `end`: at least one span, in order, without
  /// holes; all but the last end at multiples of image_alignment. The spans stay valid until done(). Waits
  /// until at least 8 MiB or all up to `end` are there. @throws what failed in the stager, timeout_error.
  [[nodiscard]] list_view<const std::span<const std::byte>> next(std::uint64_t begin, std::uint64_t end) {
    count_ = 0;
    if (auto* const limit = image_.write_limit()) end = limited(*limit, begin, end);
    if (ring_) {
      // Slots hold consecutive ranges of the image, also across the ends of segments.
      std::uint64_t stop = std::min(end, begin + 2 * write_ring::slot_bytes);
      const auto there =
          wait_ready(std::min(stop, (begin / write_ring::slot_bytes + 1) * write_ring::slot_bytes));
      stop = std::min({end, there, begin + 3 * write_ring::slot_bytes});
      for (auto at = begin; at < stop;) {
        const auto slot = at / write_ring::slot_bytes;
        const auto slot_end = std::min(stop, (slot + 1) * write_ring::slot_bytes);
        add(ring_->slot(slot).subspan(static_cast<std::size_t>(at % write_ring::slot_bytes),
                                      static_cast<std::size_t>(slot_end - at)));
        at = slot_end;
      }
      return {spans_.data(), count_};
    }
    const auto wanted = std::min(end, begin + least);
    auto there = wait_ready(wanted);
    there = std::min({there, end, begin + most});
    if (there < end) there = std::max(wanted, there / unit * unit);
    add(image_.bytes().subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(there - begin)));
    return {spans_.data(), count_};
  }
  /// The bytes below `end` are not needed any more.
  void done(std::uint64_t end) noexcept {
    done_.store(end, std::memory_order_release);
    event_.notify();
  }
  /// When all was handed out: ends the second thread. Digests are complete afterwards.
  void finish() {
    if (worker_.joinable()) {
      (void)wait_ready(total_);
      worker_.join();
    }
  }

 private:
  static constexpr std::uint64_t first_request = std::uint64_t{1} << 20;
  static constexpr std::uint64_t least = std::uint64_t{8} << 20;
  static constexpr std::uint64_t most = std::uint64_t{64} << 20;
  static constexpr std::uint64_t unit = std::uint64_t{1} << 20;

  /// The end of what may be written next, when it may be written.
  [[nodiscard]] std::uint64_t limited(rate_limiter& limit, std::uint64_t begin, std::uint64_t end) {
    end = std::min(end, begin + limit.slice());
    auto& control = *image_.control();
    // Where nothing is staged, a writer that is held up holds up training, if that waits for its memory.
    const auto lifted = [&] { return control.failed() || (!image_.resident() && control.hurried()); };
    if (!limit.take(end - begin, control.event(), until_, lifted))
      fail(error_id::timeout_write, "the image could not be written in time with this limit of bandwidth",
           {.expected = "more than " + std::to_string(limit.bytes_per_second()) + " bytes per second"});
    return end;
  }
  void add(std::span<const std::byte> s) noexcept {
    if (!s.empty()) spans_[count_++] = s;
  }
  /// How far the image can be handed out, at least to `end`.
  [[nodiscard]] std::uint64_t wait_ready(std::uint64_t end) {
    if (image_.resident() && image_.digested()) {
      if (const auto there = image_.control()->watermark(); there >= end && !image_.failed()) return there;
      const span_note span(image_.journal(), span_kind::await);
      image_.wait_for(end, until_);
      return image_.control()->watermark();
    }
    if (const auto there = ready_.load(std::memory_order_acquire); there >= end) return there;
    const span_note span(image_.journal(), span_kind::await);
    for (;;) {
      const auto seen = event_.current();
      if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(failure_);
      if (const auto there = ready_.load(std::memory_order_acquire); there >= end) return there;
      if (until_.passed())
        fail(error_id::timeout_write, "the image could not be read in time for its writing");
      event_.wait(seen, until_);
    }
  }
  void run() noexcept {
    hash_all();
    image_.control()->costs().write_cpu.fetch_add(thread_cpu_now(), std::memory_order_relaxed);
  }
  void hash_all() noexcept {
    const auto what = ring_ ? span_kind::gather : span_kind::hash;
    try {
      block_hasher hasher(image_.layout(), image_.digests());
      for (std::uint64_t at = 0; at < total_;) {
        const auto end = std::min(total_, at + write_ring::slot_bytes);
        if (!wait_filled(end)) return;
        const span_note span(image_.journal(), what, end - at);
        if (ring_) {
          const auto to = ring_->slot(at / write_ring::slot_bytes).first(static_cast<std::size_t>(end - at));
          image_.gather(at, to);
          if (!image_.digested()) hasher.feed(to);
        } else {
          hasher.feed(
              image_.bytes().subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(end - at)));
        }
        ready_.store(end, std::memory_order_release);
        event_.notify();
        at = end;
      }
    } catch (...) {
      failure_ = std::current_exception();
      failed_.store(true, std::memory_order_release);
      event_.notify();
    }
  }
  /// Waits until image bytes below `end` are there, and the slot for the last of them is free. False if
  /// stopped.
  [[nodiscard]] bool wait_filled(std::uint64_t end) {
    while (!stop_.load(std::memory_order_acquire)) {
      if (ring_ && end > done_.load(std::memory_order_acquire) + write_ring::slots * write_ring::slot_bytes) {
        const auto seen = event_.current();
        if (stop_.load(std::memory_order_acquire) ||
            end <= done_.load(std::memory_order_acquire) + write_ring::slots * write_ring::slot_bytes)
          continue;
        if (until_.passed()) fail(error_id::timeout_write, "the image was not written in time");
        event_.wait(seen, until_);
        continue;
      }
      // In short waits, so that the writer's end is noticed.
      const auto pause = deadline::in(std::chrono::milliseconds(100)).earlier(until_);
      try {
        image_.wait_for(end, pause);
        return true;
      } catch (const timeout_error&) {
        if (until_.passed() || image_.control()->failed()) throw;
      }
    }
    return false;
  }

  const staged_image& image_;
  ring_pool& rings_;
  deadline until_;
  std::uint64_t total_;
  std::unique_ptr<write_ring> ring_;
  shared_event event_;
  std::atomic<std::uint64_t> ready_{0};
  std::atomic<std::uint64_t> done_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
  std::array<std::span<const std::byte>, 4> spans_;
  std::size_t count_ = 0;
  std::thread worker_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
