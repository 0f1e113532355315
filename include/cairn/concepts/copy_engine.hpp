// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/memory.hpp>
#include <cairn/concepts/stager.hpp>
#include <cairn/model/image_backing.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/callback.hpp>
#include <cairn/system/deadline.hpp>

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {

/// One image while it is being filled, which a stager hands to its engine. Keeps the buffer and the table of
/// sources alive; the engine holds it as long as it uses them.
class image_fill : public image_backing {
 public:
  /// `memory` has layout->bytes bytes, `digests` layout->blocks numbers; one source for each item of the
  /// plan, which fits its place (see check_sources).
  image_fill(std::shared_ptr<const image_layout> layout, source_table sources, stage_options options,
             std::span<std::byte> memory, std::span<std::uint64_t> digests,
             std::shared_ptr<image_control> control);

  [[nodiscard]] const image_layout& layout() const noexcept { return *layout_; }
  /// Layout(), for engines that keep what they work out for it.
  [[nodiscard]] const std::shared_ptr<const image_layout>& shared_layout() const noexcept { return layout_; }
  /// Where the bytes of an item lie in training memory. Valid as long as the fill.
  [[nodiscard]] const item_source& source(const item_placement& place) const noexcept {
    return sources_[place.item];
  }
  /// The name of the item, for errors; may be empty.
  [[nodiscard]] std::string_view name(const item_placement& place) const noexcept {
    return sources_.name(place.item);
  }
  /// All bytes of the image, for the engine to fill; those below the watermark no longer change.
  [[nodiscard]] std::span<std::byte> memory() const noexcept { return memory_; }
  [[nodiscard]] std::span<std::uint64_t> digests() const noexcept { return digests_; }
  /// The image's state: the engine raises its watermark and says when everything is copied.
  [[nodiscard]] image_control& control() const noexcept { return *control_; }
  /// Whether the save is overlapped, and whether the engine computes digests.
  [[nodiscard]] stage_options options() const noexcept { return options_; }

  /// For engines that can copy a range of the image out of turn; called before copy() returns.
  /// `copy(begin, end, until)` copies these bytes of the image and returns true, or false if it cannot.
  /// Any thread calls it, as long as the image exists.
  void when_wanted(std::function<bool(std::uint64_t, std::uint64_t, deadline)> copy) {
    wanted_ = std::move(copy);
  }
  [[nodiscard]] bool copy_part(std::uint64_t begin, std::uint64_t end, deadline until) override {
    return wanted_ != nullptr && wanted_(begin, end, until);
  }
  /// For engines whose own threads copy what copy() has not: tells_begin() before anything is copied, and begun()
  /// by the first of these threads that takes the image up; also where all is copied without one. So executors
  /// are woken by that thread, and not by training; see staged_image::when_begun. Any thread; idempotent.
  void tells_begin() noexcept { begin_.store(begin_state::awaited, std::memory_order_release); }
  /// See tells_begin().
  void begun() noexcept;
  /// See staged_image::when_begun.
  [[nodiscard]] bool when_begun(detail::callback<void()> call) override;
  /// Says that the image will never be complete. An engine calls it at most once, after its last use of
  /// the sources.
  void fail(std::exception_ptr why) noexcept;
  [[nodiscard]] std::exception_ptr failure() const noexcept override {
    return failure_set_.load(std::memory_order_acquire) ? failure_ : nullptr;
  }

 private:
  std::shared_ptr<const image_layout> layout_;
  source_table sources_;
  std::shared_ptr<image_control> control_;
  std::span<std::byte> memory_;
  std::span<std::uint64_t> digests_;
  std::exception_ptr failure_;
  std::atomic<bool> failure_set_{false};
  std::function<bool(std::uint64_t, std::uint64_t, deadline)> wanted_;
  enum class begin_state : std::uint8_t { not_reported, awaited, called_for, begun };
  std::atomic<begin_state> begin_{begin_state::not_reported};
  detail::callback<void()> on_begun_;  // written before `called_for`
  stage_options options_;
};

/// Fills images from the memory of training.
///
/// - `accepts<Memory>`: a bool constant, whether it can fill blocks of this memory.
/// - `digests`: a bool constant, whether it computes block digests in the same pass (if stage_options::digest
///   is set); otherwise the writer computes them.
/// - `check(source)`: throws usage_error where it cannot read the view's memory_space. Called once for
///   each source_table, not for each save of it.
/// - `copy(fill, until)`: copies every byte of the image into fill->memory(): headers, items (with casts
///   applied), zeros between segments. Where the fill is overlapped, `early` items come first and are
///   complete when copy returns; without `overlapped`, all items are. The rest follows in the background,
///   roughly in image order: the engine raises the control's watermark as the front of the image is
///   complete (digests first), and releases the control when it needs no source any more. A failure after
///   the return ends in fill->fail(). Throws a failure before the return (timeout_staging at the
///   deadline); the engine uses no source afterwards, and the fill has failed.
///
/// One thread at a time calls copy and prepare; several fills may be in progress. The destructor waits for
/// them; an engine whose copies may never end documents how long it waits, and fails the fills that are left.
template <class E, class M>
concept CopyEngine =
    std::movable<E> && Memory<M> && E::template accepts<M> &&
    requires(E& engine, const item_source& source, std::shared_ptr<image_fill> fill, deadline until) {
      { E::digests } -> std::same_as<const bool&>;
      { engine.check(source) } -> std::same_as<void>;
      { engine.copy(std::move(fill), until) } -> std::same_as<void>;
    };

/// A CopyEngine that has to do something before its first image; a buffered_stager over it is a
/// PreparesSources.
///
/// - `prepare(sources)`: does what the first image from these sources would otherwise wait for.
template <class E>
concept PreparingCopyEngine = std::movable<E> && requires(E& engine, const source_table& sources) {
  { engine.prepare(sources) } -> std::same_as<void>;
};

/// A CopyEngine that copies from devices by streams; a buffered_stager over it is a StreamOrderedStager.
///
/// - `before_update(stream, device, deadline)`: see StreamOrderedStager.
template <class E, class Stream>
concept StreamOrderedCopyEngine =
    std::movable<E> && requires(E& engine, Stream stream, int device, deadline until) {
      { engine.before_update(stream, device, until) } -> std::same_as<void>;
    };

/// What a CopyEngine that copies from devices may offer besides: a buffered_stager over it is a
/// BringsDeviceAccess.
///
/// - `device_memory()`: see device_access. Stays valid when the engine is gone.
template <class E>
concept DeviceCopyEngine = std::movable<E> && requires(const E& engine) {
  { engine.device_memory() } -> std::convertible_to<std::shared_ptr<device_access>>;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/concepts/copy_engine.ipp>
#endif
