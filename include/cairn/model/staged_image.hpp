// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_layout.hpp>
#include <cairn/system/callback.hpp>
#include <cairn/system/deadline.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <utility>

namespace cairn {
inline namespace v1 {

class image_backing;
class image_control;
class save_progress;
struct save_notes;
struct shared_image;

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
  [[nodiscard]] bool failed() const noexcept;
  /// The state that stager, writer and handles share; it outlives the image where they keep it.
  [[nodiscard]] const std::shared_ptr<image_control>& control() const noexcept { return control_; }
  /// What the save carries beside its bytes: the notes of its save_progress, or the image's own.
  [[nodiscard]] save_notes& notes() const noexcept { return *notes_; }
  /// Makes this copy of the image, and copies of it, carry the notes of a save, which they keep alive.
  void carry_notes_of(const std::shared_ptr<save_progress>& save) noexcept;
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
  void gather(std::uint64_t begin, std::span<std::byte> out) const;
  /// Waits until these bytes, which are not of early items, are copied or the image has failed. Copies
  /// them out of turn where the stager can. Only where resident. @throws timeout_error
  void copy_part(std::uint64_t begin, std::uint64_t end, deadline until) const;
  /// Has a thread of the stager's call `call`, which must not throw, once: when it begins to copy what is not
  /// copied yet, or copying fails; not earlier because the save was given up. So training wakes one thread
  /// for an image, which wakes the others. False where that thread has begun already, is busy with an earlier
  /// image, or there is none: then nothing is called. One thread at a time.
  [[nodiscard]] bool when_begun(detail::callback<void()> call) const;
  /// Waits until training may change its memory. @throws as wait_for.
  void wait_released(deadline until) const;
  /// Why the image failed, or null.
  [[nodiscard]] std::exception_ptr failure() const noexcept;
  /// Where another process finds the image; nothing where it cannot.
  [[nodiscard]] std::optional<shared_image> shared() const;
  /// For images that stay in training memory, before they are given to a writer: called when that has read
  /// all, with the digests complete; what it answers fails the image.
  void when_read(detail::callback<std::exception_ptr(const staged_image&)> check);
  /// For writers: says that they have read all bytes for the last time. Releases bytes that stayed in
  /// training memory.
  void read_completely() const noexcept;

 private:
  [[noreturn]] void rethrow() const;
  std::shared_ptr<const image_layout> layout_;
  std::shared_ptr<image_control> control_;
  std::shared_ptr<image_backing> backing_;
  std::shared_ptr<save_notes> notes_;
  struct reading;
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
