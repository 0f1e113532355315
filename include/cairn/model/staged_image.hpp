// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_layout.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/shared_event.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

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
  image_costs costs_;
};

/// A range of memory that another process can map through a file descriptor; see shared_segment.
struct shared_place {
  std::shared_ptr<const void> segment;  ///< keeps the descriptor open
  int file = -1;                        ///< descriptor of the segment; -1: there is none
  std::uint64_t id = 0;                 ///< of the segment: different for all that live
  std::uint64_t bytes = 0;              ///< of the segment
  std::uint64_t offset = 0;             ///< in the segment
};
/// The place of an image, its digests and its control for another process.
struct shared_image {
  shared_place image;                ///< the bytes of the image, from `offset` on
  std::uint64_t digests_offset = 0;  ///< in the image's segment
  shared_place control;              ///< of the image_control
};

/// The files that a writer is writing, for errors about deadlines. Any thread.
class files_under_way {
 public:
  /// One file is being written as long as this lives.
  class note {
   public:
    note(files_under_way& owner, std::string key);
    ~note();
    note(const note&) = delete;
    note& operator=(const note&) = delete;

   private:
    files_under_way* owner_;
    std::list<std::string>::iterator at_;
  };
  /// The file that was begun first; empty: none.
  [[nodiscard]] std::string first() const;

 private:
  mutable std::mutex mutex_;
  std::list<std::string> keys_;
};

/// The memory behind an image, which a stager provides. It is destroyed with the last copy of the image
/// and then gives the buffers back to the pool.
class image_backing {
 public:
  virtual ~image_backing() = default;
  /// Images without memory of their own: copies image bytes [begin, begin + out.size()) from training memory,
  /// headers included. Any thread.
  virtual void gather(std::uint64_t begin, std::span<std::byte> out) const { (void)begin, (void)out; }
  /// Copies image bytes [begin, end), which are no early items, from training memory now, out of turn; false
  /// where that is not possible: then the watermark tells. Any thread. @throws timeout_error
  [[nodiscard]] virtual bool copy_part(std::uint64_t begin, std::uint64_t end, deadline until) {
    return (void)begin, (void)end, (void)until, false;
  }
  /// See staged_image::when_begun.
  [[nodiscard]] virtual bool when_begun(std::function<void()> call) { return (void)call, false; }
  /// Why the image failed.
  [[nodiscard]] virtual std::exception_ptr failure() const noexcept = 0;
  /// Where another process finds the image; nothing where it is not in shared memory.
  [[nodiscard]] virtual std::optional<shared_image> shared() const { return std::nullopt; }
};

/// The bytes of one rank's save, in the layout of its files: a lease on a stager's buffers, or a view of
/// training memory. Copies share it; the last copy gives the buffers back. Any number of threads may read.
class staged_image {
 public:
  staged_image() = default;
  /// `memory` is empty where the bytes stay in training memory (then gather() reads them). `digests` has
  /// layout->blocks numbers. `digested`: the stager fills the digests before it advances the watermark; else
  /// the writer does.
  staged_image(std::shared_ptr<const image_layout> layout, std::shared_ptr<image_control> control,
               std::span<const std::byte> memory, std::span<std::uint64_t> digests, bool digested,
               std::shared_ptr<image_backing> backing);

  [[nodiscard]] const image_layout& layout() const noexcept { return *layout_; }
  /// Layout(), for those who keep it longer than the image.
  [[nodiscard]] const std::shared_ptr<const image_layout>& shared_layout() const noexcept { return layout_; }
  /// True if the image will never be complete; failure() says why.
  [[nodiscard]] bool failed() const noexcept { return control_->failed(); }
  /// The state that stager, writer and handles share; it outlives the image where they keep it.
  [[nodiscard]] const std::shared_ptr<image_control>& control() const noexcept { return control_; }
  /// The journal in which writers record their spans; null unless an observer asks for them.
  [[nodiscard]] save_journal* journal() const noexcept { return journal_.get(); }
  /// Sets the journal of this copy of the image; copies that are made later have it, too.
  void trace_to(std::shared_ptr<save_journal> journal) noexcept { journal_ = std::move(journal); }
  /// The list of files that writers are writing.
  [[nodiscard]] const std::shared_ptr<files_under_way>& files() const noexcept { return files_; }
  /// True if bytes() may be used; false if only gather() may.
  [[nodiscard]] bool resident() const noexcept { return !memory_.empty() || layout_->bytes == 0; }
  /// All bytes of the image, aligned to image_alignment; only those below the watermark may be read.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return memory_; }
  /// Digests of blocks, see item_placement::first_block.
  [[nodiscard]] std::span<std::uint64_t> digests() const noexcept { return digests_; }
  /// True if the stager fills digests() before it advances the watermark; else the writer fills them.
  [[nodiscard]] bool digested() const noexcept { return digested_; }

  /// Waits until bytes [0, end) are complete. @throws what failed in the stager, or timeout_error.
  void wait_for(std::uint64_t end, deadline until) const;
  /// Copies from training memory; only where not resident. @pre the watermark covers it.
  void gather(std::uint64_t begin, std::span<std::byte> out) const { backing_->gather(begin, out); }
  /// Waits until these bytes, which are not of early items, are copied or the image has failed. Copies
  /// them out of turn where the stager can. Only where resident. @throws timeout_error
  void copy_part(std::uint64_t begin, std::uint64_t end, deadline until) const;
  /// Has a thread of the stager's call `call`, which must not throw, once: when it begins to copy what is not
  /// copied yet, or the image fails. So training wakes one thread for an image, which wakes the next. False
  /// where that thread has begun already, or there is none: then nothing is called. At most once for an image.
  [[nodiscard]] bool when_begun(std::function<void()> call) const {
    return backing_ != nullptr && backing_->when_begun(std::move(call));
  }
  /// Waits until training may change its memory. @throws as wait_for.
  void wait_released(deadline until) const;
  /// Why the image failed, or null.
  [[nodiscard]] std::exception_ptr failure() const noexcept;
  /// Where another process finds the image; nothing where it cannot.
  [[nodiscard]] std::optional<shared_image> shared() const {
    return backing_ != nullptr ? backing_->shared() : std::nullopt;
  }
  /// For executors, before they give the image to its writer: sets the limit for writing; null: no limit.
  void limit_writing(std::shared_ptr<rate_limiter> limit) noexcept { write_limit_ = std::move(limit); }
  /// For writers: the limit from which they acquire before they write; null where there is none.
  [[nodiscard]] rate_limiter* write_limit() const noexcept { return write_limit_.get(); }
  /// For images that stay in training memory, before they are given to a writer: called when that has read
  /// all, with the digests complete; what it answers fails the image.
  void when_read(std::function<std::exception_ptr(const staged_image&)> check);
  /// For writers: says that they have read all bytes for the last time. Releases bytes that stayed in
  /// training memory.
  void read_completely() const noexcept;

 private:
  [[noreturn]] void rethrow() const;
  std::shared_ptr<const image_layout> layout_;
  std::shared_ptr<image_control> control_;
  std::shared_ptr<image_backing> backing_;
  std::shared_ptr<files_under_way> files_;
  std::shared_ptr<save_journal> journal_;
  std::shared_ptr<rate_limiter> write_limit_;
  struct reading {
    std::function<std::exception_ptr(const staged_image&)> check;
    std::atomic<bool> over{false};
    std::exception_ptr failure;  // written before the control fails
  };
  std::shared_ptr<reading> reading_;
  std::span<const std::byte> memory_;
  std::span<std::uint64_t> digests_;
  bool digested_ = false;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/model/staged_image.ipp>
#endif
