// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_control.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/model/save_notes.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/storage/block_hasher.hpp>
#include <cairn/storage/write_source.hpp>
#include <cairn/system/clocks.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/large_buffer.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/process_limits.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/shared_event.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY detail::owned<write_ring> ring_pool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      auto ring = std::move(free_.back());
      free_.pop_back();
      return ring;
    }
  }
  return detail::make_owned<write_ring>();
}

CAIRN_BODY void ring_pool::give_back(detail::owned<write_ring> ring) noexcept {
  const std::lock_guard lock(mutex_);
  if (free_.capacity() > free_.size()) free_.push_back(std::move(ring));
}

CAIRN_BODY ring_pool::ring_pool() {
  free_.reserve(2);
}

CAIRN_BODY write_source::write_source(const staged_image& image, ring_pool& rings, deadline until)
    : image_(image), rings_(rings), until_(until), total_(image.layout().bytes) {
  if (!image_.resident()) ring_ = rings_.take();
  if (image_.resident() && image_.digested()) return;
  if (image_.resident() && total_ <= first_request) {
    own_ = detail::make_owned<block_hasher>(image_.layout(), image_.digests());
    return;
  }
  if (worker_.start("cairn hash", [this] { run(); })) return;
  if (!image_.resident()) fail_for_threads("to hash");
  own_ = detail::make_owned<block_hasher>(image_.layout(), image_.digests());
}

CAIRN_BODY write_source::~write_source() {
  stop_.store(true, std::memory_order_release);
  event_.notify();
  worker_.join();
  if (ring_) rings_.give_back(std::move(ring_));
}

CAIRN_BODY list_view<const std::span<const std::byte>> write_source::next(std::uint64_t begin,
                                                                          std::uint64_t end) {
  count_ = 0;
  if (auto* const limit = image_.notes().write_limit.get()) end = limited(*limit, begin, end);
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
  there = std::min({there, end, begin + max_span_bytes});
  if (there < end) there = std::max(wanted, there / unit * unit);
  add(image_.bytes().subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(there - begin)));
  return {spans_.data(), count_};
}

CAIRN_BODY void write_source::done(std::uint64_t end) noexcept {
  done_.store(end, std::memory_order_release);
  event_.notify();
}

CAIRN_BODY void write_source::finish() {
  if (!worker_.joinable() && !own_) return;
  (void)wait_ready(total_);
  if (worker_.joinable()) worker_.join();
}

CAIRN_BODY std::uint64_t write_source::limited(rate_limiter& limit, std::uint64_t begin, std::uint64_t end) {
  end = std::min(end, begin + limit.slice());
  auto& control = *image_.control();
  // Where nothing is staged, training may be waiting for this writer: then the limit is lifted.
  const auto cancelled = [&] {
    return control.failed() || control.write_limit_lifted() ||
           (!image_.resident() && control.rate_limit_lifted());
  };
  if (!limit.acquire(end - begin, control.event(), until_, cancelled))
    fail(error_id::timeout_write, "the image could not be written in time with this limit of bandwidth",
         {.expected = "more than " + std::to_string(limit.bytes_per_second()) + " bytes per second"});
  return end;
}

CAIRN_BODY void write_source::add(std::span<const std::byte> s) noexcept {
  if (!s.empty()) spans_[count_++] = s;
}

CAIRN_BODY std::uint64_t write_source::wait_ready(std::uint64_t end) {
  if (image_.resident() && image_.digested()) {
    if (const auto there = image_.control()->watermark(); there >= end && !image_.failed()) return there;
    const span_note span(image_.notes().journal.get(), span_kind::await);
    image_.wait_for(end, until_);
    return image_.control()->watermark();
  }
  if (const auto there = ready_.load(std::memory_order_acquire); there >= end) return there;
  if (own_) {
    hash_here(end);
    return end;
  }
  const span_note span(image_.notes().journal.get(), span_kind::await);
  for (;;) {
    const auto seen = event_.current();
    if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(failure_);
    if (const auto there = ready_.load(std::memory_order_acquire); there >= end) return there;
    if (until_.passed()) fail(error_id::timeout_write, "the image could not be read in time for its writing");
    event_.wait(seen, until_);
  }
}

CAIRN_BODY void write_source::hash_here(std::uint64_t end) {
  image_.wait_for(end, until_);
  const span_note span(image_.notes().journal.get(), span_kind::hash, end - own_->position());
  own_->feed(image_.bytes().subspan(static_cast<std::size_t>(own_->position()),
                                    static_cast<std::size_t>(end - own_->position())));
  ready_.store(end, std::memory_order_release);
}

CAIRN_BODY void write_source::run() noexcept {
  hash_all();
  image_.control()->costs().write_cpu.fetch_add(thread_cpu_now(), std::memory_order_relaxed);
}

CAIRN_BODY void write_source::hash_all() noexcept {
  const auto what = ring_ ? span_kind::gather : span_kind::hash;
  try {
    block_hasher hasher(image_.layout(), image_.digests());
    for (std::uint64_t at = 0; at < total_;) {
      const auto end = std::min(total_, at + write_ring::slot_bytes);
      if (!wait_filled(end)) return;
      const span_note span(image_.notes().journal.get(), what, end - at);
      if (ring_) {
        const auto to = ring_->slot(at / write_ring::slot_bytes).first(static_cast<std::size_t>(end - at));
        image_.gather(at, to);
        if (!image_.digested()) hasher.feed(to);
      } else {
        hasher.feed(image_.bytes().subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(end - at)));
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

CAIRN_BODY bool write_source::wait_filled(std::uint64_t end) {
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
    // Wait in short turns, to notice that the writer has ended.
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

}  // namespace detail
}  // namespace v1
}  // namespace cairn
