// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/copy_engine.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/shared_event.hpp>
#include <cairn/system/vector.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A part of an image that one thread copies at a stretch: about digest_block_bytes, of one large item or of
/// many small things. Cut only between items and between digest blocks.
struct image_range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool early = false;
};

/// Cuts an image into ranges, in image order and without gaps. `early_first`: early items are in ranges of
/// their own.
[[nodiscard]] vector<image_range> cut_into_ranges(const image_layout& layout, bool early_first);

/// The ranges of a layout, and which of them are early. Immutable: saves of one layout share it.
struct image_ranges {
  image_ranges(const image_layout& layout, bool early_first);
  vector<image_range> all;
  std::vector<std::size_t> early;
};

/// What the threads share that copy parts of images out of turn, one at a time. The jobs of one stager have one.
struct part_copying {
  std::mutex mutex;
  hash_state hash;
};

/// The copying of one image by any number of threads. Threads claim ranges; each range is finished by the
/// thread that claimed it, copied or, once the job has failed, passed over; what the last one leaves decides
/// how the fill ends. No locks: a range costs a few atomic operations.
class copy_job {
 public:
  /// `limit`: of what is copied while training goes on; null: none. `parts`: for copy_part(); null: one of its own.
  copy_job(std::shared_ptr<image_fill> fill, std::shared_ptr<const image_ranges> ranges, int max_helpers,
           std::shared_ptr<rate_limiter> limit = nullptr, std::shared_ptr<part_copying> parts = nullptr);
  copy_job(std::shared_ptr<image_fill> fill, int max_helpers);

  /// Copies ranges until none is left to claim; early ones first. `early_only`: only those. `cpu`: CPU time of
  /// the calling thread so far, if the image's costs are to tell what it spends here.
  void work(hash_state& hash, bool early_only, std::int64_t* cpu = nullptr) noexcept;
  /// What is copied before save() returns.
  [[nodiscard]] std::size_t early_ranges() const noexcept { return early_.size(); }
  /// True if there may be something to claim.
  [[nodiscard]] bool claimable() const noexcept;

  /// Whether all is copied, or the job has failed.
  [[nodiscard]] bool has_ended() const noexcept { return ended_.load(std::memory_order_acquire); }

  /// A thread that training does not wait for takes the job up.
  void begun() noexcept { fill_->begun(); }

  /// Waits until early items (or all) are copied. At the deadline the job is given up. @throws what failed;
  /// no thread reads a source then.
  void wait(bool early_only, deadline until);
  /// The job fails for this reason, unless it has failed already. Ranges that nobody claimed are passed over
  /// by the caller.
  void give_up(std::exception_ptr why) noexcept;
  /// For those who wait for a part of the image, which is not early: copies what nobody has begun of it, in
  /// the calling thread and without a limit, and waits for the rest. False if the job failed; no thread reads
  /// a source then. Any thread. @throws timeout_error
  [[nodiscard]] bool copy_part(std::uint64_t begin, std::uint64_t end, deadline until);

  /// The limit holds for this job no more.
  void lift_rate_limit() noexcept { fill_->control().lift_rate_limit(); }

  int helpers_left;  ///< threads that may still join; guarded by the lock of the threads

 private:
  [[nodiscard]] bool claim(std::size_t i) noexcept {
    return !states_[i].claimed.exchange(true, std::memory_order_acq_rel);
  }
  void account(std::int64_t* cpu) noexcept;
  void keep_pace(std::size_t i) noexcept;
  void run(std::size_t index, hash_state& hash, std::int64_t* cpu) noexcept;
  void copy(const image_range& range, hash_state& hash);

  // Raises the watermark over all ranges that are copied without a gap. One thread at a time scans; one that
  // finds another scanning leaves its range to it, who looks again after it has stepped back.
  void advance() noexcept;
  void complete() noexcept;
  void finish(bool copied) noexcept;
  void fail(std::exception_ptr why) noexcept;

  std::shared_ptr<image_fill> fill_;
  std::shared_ptr<rate_limiter> limit_;
  std::shared_ptr<const image_ranges> cut_;
  const vector<image_range>& ranges_;
  const std::vector<std::size_t>& early_;
  struct range_state {
    std::atomic<bool> claimed{false};  // of ranges that are not early
    std::atomic<bool> copied{false};
  };
  std::unique_ptr<range_state[]> states_;
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
  std::shared_ptr<part_copying> parts_;  // null where nothing is copied out of turn
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stage/copy_job.ipp>
#endif
