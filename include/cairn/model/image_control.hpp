// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>
#include <cairn/system/shared_event.hpp>

#include <atomic>
#include <cstdint>

namespace cairn {
inline namespace v1 {

/// The work that was done for an image so far, in shared memory with the control. Any thread; no locks. Only
/// for reports: no decision depends on it.
struct image_costs {
  std::atomic<std::int64_t> copied_at{0};  ///< when nobody read training memory any more; steady_now()
  /// Nanoseconds, of threads that the caller of save() did not wait in.
  std::atomic<std::int64_t> copy_cpu{0};
  std::atomic<std::int64_t> write_cpu{0};  ///< nanoseconds, of threads that helped the writer
  std::atomic<std::uint64_t> written{0};   ///< bytes of the image that were handed to the store
};

/// The state of an image, which may be in shared memory: how far it is filled, and whether training may
/// change its memory. Any thread may call all functions; no locks.
class image_control {
 public:
  /// Bytes [0, watermark()) of the image are complete and no longer change; so are their digests, if
  /// staged_image::digested().
  [[nodiscard]] std::uint64_t watermark() const noexcept {
    return watermark_.load(std::memory_order_acquire);
  }
  /// True after the last read of training memory.
  [[nodiscard]] bool copied() const noexcept { return copied_.load(std::memory_order_acquire); }
  /// True if training may change its memory and the image may be committed: it is copied and, for an
  /// overlapped save, confirmed.
  [[nodiscard]] bool released() const noexcept {
    return copied() && (!needs_confirmation_.load(std::memory_order_acquire) ||
                        confirmed_.load(std::memory_order_acquire));
  }
  /// True if the image will never be complete.
  [[nodiscard]] bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }

  /// For stagers: raises the watermark.
  void advance(std::uint64_t watermark) noexcept;
  /// For stagers, and for writers of bytes that stayed in training memory: says that everything is copied.
  void release() noexcept;
  /// For overlapped saves: makes released() depend on confirm(), by which training says that it kept the
  /// memory unchanged until everything was copied. Called before the image is given away.
  void require_confirmation() noexcept { needs_confirmation_.store(true, std::memory_order_release); }
  /// Says that training kept its memory unchanged until everything was copied; see require_confirmation().
  void confirm() noexcept;
  /// True after confirm().
  [[nodiscard]] bool confirmed() const noexcept { return confirmed_.load(std::memory_order_acquire); }
  /// Gives the image up; training may change its memory.
  void fail() noexcept;
  /// Counters for the report, which stagers and writers raise. Any thread.
  [[nodiscard]] image_costs& costs() noexcept { return costs_; }
  /// Lifts the bandwidth limit for copying this image. Called by those who wait for the memory of training.
  void lift_rate_limit() noexcept;
  /// True after lift_rate_limit(): whoever copies waits for no bandwidth any more.
  [[nodiscard]] bool rate_limit_lifted() const noexcept {
    return rate_limit_lifted_.load(std::memory_order_acquire);
  }
  /// Lifts the bandwidth limit for writing this image: training has ended, and only its last saves keep the
  /// processes of the job there, for which a batch system grants seconds.
  void lift_write_limit() noexcept;
  /// True after lift_write_limit().
  [[nodiscard]] bool write_limit_lifted() const noexcept {
    return write_limit_lifted_.load(std::memory_order_acquire);
  }
  /// Notified of every change.
  [[nodiscard]] shared_event& event() noexcept { return event_; }
  /// Waits for watermark() >= end. False if the image failed. @throws timeout_error (timeout_staging).
  [[nodiscard]] bool wait_for(std::uint64_t end, deadline until);
  /// Waits for copied(). False if the image failed. @throws timeout_error (timeout_staging).
  [[nodiscard]] bool wait_copied(deadline until);
  /// Waits for released(). False if the image failed. @throws timeout_error (timeout_staging).
  [[nodiscard]] bool wait_released(deadline until);

 private:
  template <class Condition>
  bool wait(Condition&& condition, deadline until, const char* sentence) {
    for (;;) {
      const auto seen = event_.current();
      if (failed()) return false;
      if (condition()) return true;
      if (until.passed()) fail_with(sentence);
      event_.wait(seen, until);
    }
  }
  [[noreturn]] static void fail_with(const char* sentence);

  std::atomic<std::uint64_t> watermark_{0};
  shared_event event_;
  std::atomic<bool> copied_{false};
  std::atomic<bool> needs_confirmation_{false};
  std::atomic<bool> confirmed_{false};
  std::atomic<bool> failed_{false};
  std::atomic<bool> rate_limit_lifted_{false};
  std::atomic<bool> write_limit_lifted_{false};
  image_costs costs_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/image_control.ipp>
#endif
