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

/// How one image is to be staged.
struct stage_options {
  bool overlapped =
      false;  ///< return when the early items are copied; the rest is copied while the caller goes on
  bool digest = true;  ///< compute block digests while copying; else the writer does
};

/// How memory stops being shared with training.
///
/// - `stage(layout, sources, options, deadline)`: a staged_image whose bytes are those of the sources (one
///   for each item of the plan, at the index item_placement::item) in the layout. The parameter is a
///   source_table, which saves share as long as no memory moves, or a `std::vector<item_source>`, which is
///   made anew for each. Items that are `early` are copied when it returns; without `overlapped`, all are,
///   unless the stager leaves the bytes in training memory (no_staging). Afterwards, in the background and in
///   image order, the rest; the image's control tells how far, and `released` when all is copied. Casts are
///   applied. Waits for a free buffer of its pool until the deadline (timeout_staging). Throws storage_error
///   (storage_out_of_memory, storage_limit) where memory cannot be had; nothing is copied then. A failure
///   after it has returned is in the image.
/// - `prepare(layout, deadline)`: allocates and pre-faults the buffers that images of this layout need, so
///   that stage() does not. May be called from a background thread, not together with stage().
/// - `depth()`: images that can be alive at once, at least 1.
///
/// One thread at a time calls stage and prepare; images are used and dropped by any thread, also after the
/// stager is gone.
template <class S>
concept Stager =
    std::movable<S> && requires(S& s, const S& k, std::shared_ptr<const image_layout> layout,
                                const source_table& sources, stage_options options, deadline until) {
      { s.stage(layout, sources, options, until) } -> std::same_as<staged_image>;
      { s.prepare(*layout, until) } -> std::same_as<void>;
      { k.depth() } -> std::convertible_to<int>;
    };

/// What a Stager may offer besides, where its first image from some memory waits for more than its buffer.
///
/// - `prepare(sources)`: what the first image from these sources would wait for is done. Called as
///   prepare(layout, deadline) is, and before it.
template <class S>
concept PreparesSources = Stager<S> && requires(S& s, const source_table& sources) {
  { s.prepare(sources) } -> std::same_as<void>;
};

/// What a Stager that copies from devices may offer besides, so that loads and checked{} reach their memory
/// without a policy of their own.
///
/// - `device_memory()`: see device_access. Stays valid when the stager is gone.
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
/// - `before_update(stream, device, deadline)`: what the stream of this device is given from now on begins
///   after the copies of the last image from this device have ended. The host waits until the copies are in
///   the device's streams, not for their end. The thread that calls stage. Throws storage_error
///   (storage_device), timeout_error (timeout_staging).
template <class S, class Stream>
concept StreamOrderedStager = Stager<S> && requires(S& s, Stream stream, int device, deadline until) {
  { s.before_update(stream, device, until) } -> std::same_as<void>;
};

}  // namespace v1
}  // namespace cairn
