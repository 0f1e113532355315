// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/copy_engine.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/stage/block_copy.hpp>
#include <cairn/stage/image_pieces.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/shared_event.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A part of an image that one thread copies at a stretch: about digest_block_bytes, of one large item or of
/// many small things. Cut only between pieces and between digest blocks.
struct copy_unit {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool early = false;
};

/// Cuts an image into units, in image order and without gaps. `early_first`: early items are in units of
/// their own.
[[nodiscard]] inline std::vector<copy_unit> cut_into_units(const image_layout& layout, bool early_first) {
  std::vector<copy_unit> units;
  units.reserve(layout.bytes / digest_block_bytes + layout.segments.size() + 16);
  copy_unit open;
  const auto close = [&] {
    if (open.end > open.begin) units.push_back(open);
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
  return units;
}

/// The units of a layout, and which of them are early. Immutable: saves of one layout share it.
struct copy_units {
  copy_units(const image_layout& layout, bool early_first) : all(cut_into_units(layout, early_first)) {
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i].early) early.push_back(i);
  }
  std::vector<copy_unit> all;
  std::vector<std::size_t> early;
};

/// The copying of one image by any number of threads. Threads claim units; each unit is finished by the
/// thread that claimed it, copied or, once the job has failed, passed over; what the last one leaves decides
/// how the fill ends. No locks: a unit costs a few atomic operations.
class copy_job {
 public:
  /// `limit`: of what is copied while training goes on; null: none.
  copy_job(std::shared_ptr<image_fill> fill, std::shared_ptr<const copy_units> units, int max_helpers,
           std::shared_ptr<rate_limiter> limit = nullptr)
      : helpers_left(max_helpers),
        fill_(std::move(fill)),
        limit_(fill_->options().overlapped ? std::move(limit) : nullptr),
        cut_(std::move(units)),
        units_(cut_->all),
        early_(cut_->early),
        claimed_(new std::atomic<bool>[units_.size()]()),
        copied_(new std::atomic<bool>[units_.size()]()),
        left_(units_.size()),
        early_left_(early_.size()) {
    if (fill_->options().overlapped) part_hash_.emplace();
    if (units_.empty()) complete();
  }
  copy_job(std::shared_ptr<image_fill> fill, int max_helpers)
      : copy_job(fill, std::make_shared<const copy_units>(fill->layout(), fill->options().overlapped),
                 max_helpers) {}

  /// Copies units until none is left to claim; early ones first. `early_only`: only those. `cpu`: CPU time of
  /// the calling thread so far, if the image's costs are to tell what it spends here.
  void work(hash_state& hash, bool early_only, std::int64_t* cpu = nullptr) noexcept {
    for (std::size_t i = 0; (i = next_early_.fetch_add(1, std::memory_order_relaxed)) < early_.size();) {
      run(early_[i], hash, cpu);
      if (early_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) event_.notify();
    }
    if (early_only) return;
    for (std::size_t i = 0; (i = next_.fetch_add(1, std::memory_order_relaxed)) < units_.size();)
      if (!units_[i].early && !claimed_[i].load(std::memory_order_relaxed)) {
        if (limit_ != nullptr) keep_pace(i);
        if (claim(i)) run(i, hash, cpu);
      }
    account(cpu);
  }
  /// What is copied before save() returns.
  [[nodiscard]] std::size_t early_units() const noexcept { return early_.size(); }
  /// True if there may be something to claim.
  [[nodiscard]] bool claimable() const noexcept {
    return next_early_.load(std::memory_order_relaxed) < early_.size() ||
           next_.load(std::memory_order_relaxed) < units_.size();
  }

  /// Waits until early items (or all) are copied. At the deadline the job is given up. @throws what failed;
  /// no thread reads a source then.
  void wait(bool early_only, deadline until) {
    for (;;) {
      const auto seen = event_.current();
      if (ended_.load(std::memory_order_acquire) && failed_.load(std::memory_order_acquire))
        std::rethrow_exception(failure_);
      // In this order: an early unit that failed says so before it is counted.
      if (early_only && early_left_.load(std::memory_order_acquire) == 0 &&
          !failed_.load(std::memory_order_acquire))
        return;
      if (ended_.load(std::memory_order_acquire)) return;
      // Once it has failed, only units that are being copied are waited for.
      const bool gives_up = failed_.load(std::memory_order_acquire);
      if (!gives_up && until.passed()) {
        give_up(make_failure(error_id::timeout_staging, "the memory of training was not copied in time"));
        continue;
      }
      event_.wait(seen, gives_up ? deadline::never() : until);
    }
  }
  /// The job fails for this reason, unless it has failed already. Units that nobody claimed are passed over
  /// by the caller.
  void give_up(std::exception_ptr why) noexcept {
    fail(std::move(why));
    hurry();
    while (next_early_.fetch_add(1, std::memory_order_relaxed) < early_.size()) finish(false);
    for (std::size_t i = 0; (i = next_.fetch_add(1, std::memory_order_relaxed)) < units_.size();)
      if (!units_[i].early && claim(i)) finish(false);
  }
  /// For those who wait for a part of the image, which is not early: copies what nobody has begun of it, in
  /// the calling thread and without a limit, and waits for the rest. False if the job failed; no thread reads
  /// a source then. Any thread. @throws timeout_error
  [[nodiscard]] bool copy_part(std::uint64_t begin, std::uint64_t end, deadline until) {
    const auto first = static_cast<std::size_t>(
        std::partition_point(units_.begin(), units_.end(), [&](const auto& u) { return u.end <= begin; }) -
        units_.begin());
    part_wanted_.store(true, std::memory_order_seq_cst);
    if (part_hash_) {
      const std::lock_guard lock(part_mutex_);
      for (auto i = first; i < units_.size() && units_[i].begin < end; ++i)
        if (!units_[i].early && claim(i)) run(i, *part_hash_, nullptr);
    }
    for (auto i = first; i < units_.size() && units_[i].begin < end;) {
      const auto seen = event_.current();
      if (copied_[i].load(std::memory_order_seq_cst)) {
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

  /// The limit holds for this job no more.
  void hurry() noexcept { fill_->control().hurry(); }

  int helpers_left;  ///< threads that may still join; guarded by the lock of the threads

 private:
  [[nodiscard]] bool claim(std::size_t i) noexcept {
    return !claimed_[i].exchange(true, std::memory_order_acq_rel);
  }
  void account(std::int64_t* cpu) noexcept {
    if (cpu == nullptr) return;
    const auto now = thread_cpu_now();
    fill_->control().costs().copy_cpu.fetch_add(now - *cpu, std::memory_order_relaxed);
    *cpu = now;
  }
  void keep_pace(std::size_t i) noexcept {
    auto& control = fill_->control();
    // A unit that somebody copies out of turn is not waited for: that would keep the buffer.
    const auto lifted = [&] { return control.hurried() || claimed_[i].load(std::memory_order_acquire); };
    static_cast<void>(
        limit_->take(units_[i].end - units_[i].begin, control.event(), deadline::never(), lifted));
  }
  void run(std::size_t index, hash_state& hash, std::int64_t* cpu) noexcept {
    if (failed_.load(std::memory_order_acquire)) return finish(false);
    try {
      copy(units_[index], hash);
    } catch (...) {
      fail(std::current_exception());
      return finish(false);
    }
    // Before anybody can see that all is copied.
    if (!claimable()) account(cpu);
    copied_[index].store(true, std::memory_order_seq_cst);
    if (part_wanted_.load(std::memory_order_seq_cst)) event_.notify();
    advance();
    finish(true);
  }
  void copy(const copy_unit& unit, hash_state& hash) {
    const auto& layout = fill_->layout();
    std::byte* image = fill_->memory().data();
    const bool digested = fill_->options().digest;
    for_each_piece(
        layout, unit.begin, unit.end,
        [&](std::span<const std::byte> bytes, std::uint64_t at) {
          std::memcpy(image + at, bytes.data(), bytes.size());
        },
        [&](const item_placement& place, std::uint64_t first, std::uint64_t last) {
          auto* digest =
              digested ? &fill_->digests()[place.first_block + first / digest_block_bytes] : nullptr;
          copy_range(fill_->source(place), place.bytes, first, last, image + place.begin + first, digest,
                     hash);
        },
        [&](std::uint64_t at, std::uint64_t bytes) { std::memset(image + at, 0, bytes); });
    streamed_copies_done();
  }

  // Raises the watermark over all units that are copied without a gap. One thread at a time scans; one that
  // finds another scanning leaves its unit to it, who looks again after it has stepped back.
  void advance() noexcept {
    for (;;) {
      if (scanning_.exchange(true, std::memory_order_seq_cst)) return;
      std::size_t front = front_;
      while (front < units_.size() && copied_[front].load(std::memory_order_seq_cst)) ++front;
      const bool all = front == units_.size() && front_ != front;
      front_ = front;
      const std::uint64_t mark = front == 0 ? 0 : units_[front - 1].end;
      // Small steps are put together: each may wake a writer.
      if (all || mark >= published_ + 256 * 1024) {
        published_ = mark;
        fill_->control().advance(mark);
      }
      scanning_.store(false, std::memory_order_seq_cst);
      if (all) return complete();
      if (front == units_.size() || !copied_[front].load(std::memory_order_seq_cst)) return;
    }
  }
  void complete() noexcept {
    fill_->control().release();
    ended_.store(true, std::memory_order_release);
    event_.notify();
  }
  void finish(bool copied) noexcept {
    if (!copied) incomplete_.store(true, std::memory_order_relaxed);
    if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1 || !incomplete_.load(std::memory_order_relaxed))
      return;
    fill_->fail(failure_);
    ended_.store(true, std::memory_order_release);
    event_.notify();
  }
  void fail(std::exception_ptr why) noexcept {
    if (failing_.exchange(true, std::memory_order_acq_rel)) return;
    failure_ = std::move(why);
    failed_.store(true, std::memory_order_release);
  }

  std::shared_ptr<image_fill> fill_;
  std::shared_ptr<rate_limiter> limit_;
  std::shared_ptr<const copy_units> cut_;
  const std::vector<copy_unit>& units_;
  const std::vector<std::size_t>& early_;
  std::unique_ptr<std::atomic<bool>[]> claimed_;  // of units that are not early
  std::unique_ptr<std::atomic<bool>[]> copied_;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::size_t> next_early_{0};
  std::atomic<std::size_t> left_;
  std::atomic<std::size_t> early_left_;
  std::atomic<bool> scanning_{false};
  std::size_t front_ = 0;        // guarded by scanning_
  std::uint64_t published_ = 0;  // guarded by scanning_
  std::exception_ptr failure_;   // written once, before failed_
  std::atomic<bool> failing_{false};
  std::atomic<bool> failed_{false};
  std::atomic<bool> incomplete_{false};
  std::atomic<bool> ended_{false};
  shared_event event_;
  std::atomic<bool> part_wanted_{false};
  std::mutex part_mutex_;
  std::optional<hash_state> part_hash_;  // guarded by part_mutex_
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
