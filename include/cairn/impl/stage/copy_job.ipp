// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/copy_engine.hpp>
#include <cairn/concepts/stager.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/stage/block_copy.hpp>
#include <cairn/stage/copy_job.hpp>
#include <cairn/stage/image_sources.hpp>
#include <cairn/system/clocks.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/shared_event.hpp>
#include <cairn/system/streaming_copy.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY vector<image_range> cut_into_ranges(const image_layout& layout, bool early_first) {
  vector<image_range> ranges;
  ranges.reserve(layout.bytes / digest_block_bytes + layout.segments.size() + 16);
  image_range open;
  const auto close = [&] {
    if (open.end > open.begin) ranges.push_back(open);
    open = {open.end, open.end, false};
  };
  const auto add = [&](std::uint64_t bytes, bool early) {
    if (open.end > open.begin && (open.early != early || open.end - open.begin + bytes > digest_block_bytes))
      close();
    open.early = early;
    open.end += bytes;
    if (open.end - open.begin >= digest_block_bytes) close();
  };
  for (const auto& place : layout.items) {
    if (place.bytes == 0) continue;
    if (place.begin > open.end)
      add(place.begin - open.end, open.end > open.begin && open.early);  // header, padding
    const bool early = early_first && place.early;
    for (std::uint64_t at = 0; at < place.bytes; at += digest_block_bytes)
      add(std::min(digest_block_bytes, place.bytes - at), early);
  }
  if (layout.bytes > open.end) add(layout.bytes - open.end, open.end > open.begin && open.early);
  close();
  return ranges;
}

CAIRN_BODY image_ranges::image_ranges(const image_layout& layout, bool early_first)
    : all(cut_into_ranges(layout, early_first)) {
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].early) early.push_back(i);
}

CAIRN_BODY copy_job::copy_job(std::shared_ptr<image_fill> fill, std::shared_ptr<const image_ranges> ranges,
                              int max_helpers, std::shared_ptr<rate_limiter> limit,
                              std::shared_ptr<part_copying> parts)
    : helpers_left(max_helpers),
      fill_(std::move(fill)),
      limit_(fill_->options().overlapped ? std::move(limit) : nullptr),
      cut_(std::move(ranges)),
      ranges_(cut_->all),
      early_(cut_->early),
      states_(new range_state[ranges_.size()]),
      left_(ranges_.size()),
      early_left_(early_.size()) {
  if (fill_->options().overlapped)
    parts_ = parts != nullptr ? std::move(parts) : detail::make_shared<part_copying>();
  if (ranges_.empty()) complete();
}

CAIRN_BODY copy_job::copy_job(std::shared_ptr<image_fill> fill, int max_helpers)
    : copy_job(fill, detail::make_shared<const image_ranges>(fill->layout(), fill->options().overlapped),
               max_helpers) {}

CAIRN_BODY void copy_job::work(hash_state& hash, bool early_only, std::int64_t* cpu) noexcept {
  for (std::size_t i = 0; (i = next_early_.fetch_add(1, std::memory_order_relaxed)) < early_.size();) {
    run(early_[i], hash, cpu);
    if (early_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) event_.notify();
  }
  if (early_only) return;
  for (std::size_t i = 0; (i = next_.fetch_add(1, std::memory_order_relaxed)) < ranges_.size();)
    if (!ranges_[i].early && !states_[i].claimed.load(std::memory_order_relaxed)) {
      if (limit_ != nullptr) keep_pace(i);
      if (claim(i)) run(i, hash, cpu);
    }
  account(cpu);
}

CAIRN_BODY bool copy_job::claimable() const noexcept {
  return next_early_.load(std::memory_order_relaxed) < early_.size() ||
         next_.load(std::memory_order_relaxed) < ranges_.size();
}

CAIRN_BODY void copy_job::wait(bool early_only, deadline until) {
  for (;;) {
    const auto seen = event_.current();
    if (ended_.load(std::memory_order_acquire) && failed_.load(std::memory_order_acquire))
      std::rethrow_exception(failure_);
    // In this order: a range that fails sets failed_ before it is counted.
    if (early_only && early_left_.load(std::memory_order_acquire) == 0 &&
        !failed_.load(std::memory_order_acquire))
      return;
    if (ended_.load(std::memory_order_acquire)) return;
    // Once it has failed, only ranges that are being copied are waited for.
    const bool gives_up = failed_.load(std::memory_order_acquire);
    if (!gives_up && until.passed()) {
      give_up(make_failure(error_id::timeout_staging, "the memory of training was not copied in time"));
      continue;
    }
    event_.wait(seen, gives_up ? deadline::never() : until);
  }
}

CAIRN_BODY void copy_job::give_up(std::exception_ptr why) noexcept {
  fail(std::move(why));
  lift_rate_limit();
  while (next_early_.fetch_add(1, std::memory_order_relaxed) < early_.size()) finish(false);
  for (std::size_t i = 0; (i = next_.fetch_add(1, std::memory_order_relaxed)) < ranges_.size();)
    if (!ranges_[i].early && claim(i)) finish(false);
}

CAIRN_BODY bool copy_job::copy_part(std::uint64_t begin, std::uint64_t end, deadline until) {
  const auto first = static_cast<std::size_t>(
      std::partition_point(ranges_.begin(), ranges_.end(), [&](const auto& u) { return u.end <= begin; }) -
      ranges_.begin());
  part_wanted_.store(true, std::memory_order_seq_cst);
  if (parts_ != nullptr) {
    const std::lock_guard lock(parts_->mutex);
    for (auto i = first; i < ranges_.size() && ranges_[i].begin < end; ++i)
      if (!ranges_[i].early && claim(i)) run(i, parts_->hash, nullptr);
  }
  for (auto i = first; i < ranges_.size() && ranges_[i].begin < end;) {
    const auto seen = event_.current();
    if (states_[i].copied.load(std::memory_order_seq_cst)) {
      ++i;
      continue;
    }
    if (ended_.load(std::memory_order_acquire)) return false;
    if (until.passed())
      cairn::fail(error_id::timeout_staging, "the memory of training was not copied in time");
    event_.wait(seen, until);
  }
  return true;
}

CAIRN_BODY void copy_job::account(std::int64_t* cpu) noexcept {
  if (cpu == nullptr) return;
  const auto now = thread_cpu_now();
  fill_->control().costs().copy_cpu.fetch_add(now - *cpu, std::memory_order_relaxed);
  *cpu = now;
}

CAIRN_BODY void copy_job::keep_pace(std::size_t i) noexcept {
  auto& control = fill_->control();
  // Do not wait for a range that another thread copies out of turn: waiting would keep the buffer.
  const auto cancelled = [&] {
    return control.rate_limit_lifted() || states_[i].claimed.load(std::memory_order_acquire);
  };
  static_cast<void>(
      limit_->acquire(ranges_[i].end - ranges_[i].begin, control.event(), deadline::never(), cancelled));
}

CAIRN_BODY void copy_job::run(std::size_t index, hash_state& hash, std::int64_t* cpu) noexcept {
  if (failed_.load(std::memory_order_acquire)) return finish(false);
  try {
    copy(ranges_[index], hash);
  } catch (...) {
    fail(std::current_exception());
    return finish(false);
  }
  // Count the CPU time before anybody can see that everything is copied.
  if (!claimable()) account(cpu);
  states_[index].copied.store(true, std::memory_order_seq_cst);
  if (part_wanted_.load(std::memory_order_seq_cst)) event_.notify();
  advance();
  finish(true);
}

CAIRN_BODY void copy_job::copy(const image_range& range, hash_state& hash) {
  const auto& layout = fill_->layout();
  std::byte* image = fill_->memory().data();
  const bool digested = fill_->options().digest;
  for_each_image_range(
      layout, range.begin, range.end,
      [&](std::span<const std::byte> bytes, std::uint64_t at) {
        std::memcpy(image + at, bytes.data(), bytes.size());
      },
      [&](const item_placement& place, std::uint64_t first, std::uint64_t last) {
        auto* digest = digested ? &fill_->digests()[place.first_block + first / digest_block_bytes] : nullptr;
        copy_range(fill_->source(place), place.bytes, first, last, image + place.begin + first, digest, hash);
      },
      [&](std::uint64_t at, std::uint64_t bytes) { std::memset(image + at, 0, bytes); });
  streamed_copies_done();
}

CAIRN_BODY void copy_job::advance() noexcept {
  for (;;) {
    if (scanning_.exchange(true, std::memory_order_seq_cst)) return;
    std::size_t front = front_;
    while (front < ranges_.size() && states_[front].copied.load(std::memory_order_seq_cst)) ++front;
    const bool all = front == ranges_.size() && front_ != front;
    front_ = front;
    const std::uint64_t mark = front == 0 ? 0 : ranges_[front - 1].end;
    // Small steps are put together: each may wake a writer.
    if (all || mark >= published_ + 256 * 1024) {
      published_ = mark;
      fill_->control().advance(mark);
    }
    scanning_.store(false, std::memory_order_seq_cst);
    if (all) return complete();
    if (front == ranges_.size() || !states_[front].copied.load(std::memory_order_seq_cst)) return;
  }
}

CAIRN_BODY void copy_job::complete() noexcept {
  fill_->control().release();
  fill_->begun();
  ended_.store(true, std::memory_order_release);
  event_.notify();
}

CAIRN_BODY void copy_job::finish(bool copied) noexcept {
  if (!copied) incomplete_.store(true, std::memory_order_relaxed);
  if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1 || !incomplete_.load(std::memory_order_relaxed))
    return;
  fill_->fail(failure_);
  ended_.store(true, std::memory_order_release);
  event_.notify();
}

CAIRN_BODY void copy_job::fail(std::exception_ptr why) noexcept {
  if (failing_.exchange(true, std::memory_order_acq_rel)) return;
  failure_ = std::move(why);
  failed_.store(true, std::memory_order_release);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
