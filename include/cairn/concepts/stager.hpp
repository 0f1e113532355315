// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/device_access.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/source_table.hpp>
#include <cairn/model/staged_image.hpp>

#include <concepts>
#include <memory>

namespace cairn {
inline namespace v1 {

/// How stage() fills one image.
struct stage_options {
  /// Return when the early items are copied; the rest is copied while the caller goes on.
  bool overlapped = false;
  bool digest = true;  ///< compute block digests while copying; else the writer does
};

/// Copies the state out of training's memory.
///
/// - `stage(layout, sources, options, deadline)`: returns a staged_image with the bytes of the sources
///   (one for each item of the plan, at the index item_placement::item) in the layout, with casts
///   applied. The parameter is a source_table, which saves share as long as no memory moves, or a
///   `std::vector<item_source>`, which is made anew for each save. When it returns, `early` items are
///   copied, and without `overlapped` all items, unless the stager leaves the bytes in training memory
///   (no_staging). The rest is copied in the background, in image order; the image's control tells the
///   progress, and is `released` when everything is copied. Waits for a free buffer of its pool until the
///   deadline (timeout_staging). Throws storage_error (storage_out_of_memory, storage_limit) where it
///   cannot allocate; it copies nothing then. The image holds a failure that comes after it has returned.
/// - `prepare(layout, deadline)`: allocates and pre-faults the buffers that images of this layout need, so
///   that stage() need not. A background thread may call it, but not while stage() runs. It does not wait for images
///   that are alive: who would release them may wait for it.
/// - `depth()`: the number of images that can exist at once, at least 1.
///
/// One thread at a time calls stage and prepare. Any thread uses and destroys images, also after the
/// stager is destroyed.
template <class S>
concept Stager =
    std::movable<S> && requires(S& s, const S& k, std::shared_ptr<const image_layout> layout,
                                const source_table& sources, stage_options options, deadline until) {
      { s.stage(layout, sources, options, until) } -> std::same_as<staged_image>;
      { s.prepare(*layout, until) } -> std::same_as<void>;
      { k.depth() } -> std::convertible_to<int>;
    };

/// A Stager that has to do more than allocate before its first image from some memory.
///
/// - `prepare(sources)`: does what the first image from these sources would otherwise wait for. Called like
///   prepare(layout, deadline), and before it.
template <class S>
concept PreparesSources = Stager<S> && requires(S& s, const source_table& sources) {
  { s.prepare(sources) } -> std::same_as<void>;
};

/// A Stager that copies from devices and also gives loads and checked{} access to their memory.
///
/// - `device_memory()`: see device_access. Stays valid after the stager is destroyed.
template <class S>
concept BringsDeviceAccess = Stager<S> && requires(const S& s) {
  { s.device_memory() } -> std::convertible_to<std::shared_ptr<device_access>>;
};

/// What a Stager may say besides, as `static constexpr bool shareable = true`: another process can read its
/// images. An executor that NeedsSharedImages takes no other one.
template <class S>
concept SharesImages = requires { requires S::shareable; };

/// A Stager that copies from devices by streams.
///
/// - `before_update(stream, device, deadline)`: work that is enqueued on this stream of the device from
///   now on begins after the copies of the last image from this device have ended. The host waits only
///   until the copies are enqueued on the device's streams. Called by the thread that calls stage. Throws
///   storage_error (storage_device), timeout_error (timeout_staging).
template <class S, class Stream>
concept StreamOrderedStager = Stager<S> && requires(S& s, Stream stream, int device, deadline until) {
  { s.before_update(stream, device, until) } -> std::same_as<void>;
};

}  // namespace v1
}  // namespace cairn
