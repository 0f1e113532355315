// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>
#include <cairn/model/change_watch.hpp>
#include <cairn/system/deadline.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace cairn {
inline namespace v1 {

// Optional abilities of a ByteStore and its object writers that concern writers in other processes and
// layered stores. Those that concern single requests are in <cairn/concepts/byte_store.hpp>. any_store
// queries all of them once, when it is made.

/// A ByteStore that knows which writers live, in other processes too.
///
/// - `live_writers(prefix)`: returns the keys of unfinished objects whose writers live; leftovers()
///   leaves them out.
/// - `writer_lives(key)`: whether the writer of a finished object still exists.
///
/// Both throw storage_error. A run that resumes waits for the writers that live_writers() returns, and a
/// lease lasts as long as its writer lives.
template <class S>
concept TracksWriters = requires(S& s, std::string_view key) {
  { s.live_writers(key) } -> std::same_as<std::vector<std::string>>;
  { s.writer_lives(key) } -> std::same_as<bool>;
};

/// A TracksWriters that knows only at run time whether it can track writers, such as a layer over an
/// any_store.
///
/// - `tracks_writers()`: whether it can; constant. Where it is false, cairn does not call the functions
///   of TracksWriters.
template <class S>
concept MayTrackWriters = TracksWriters<S> && requires(S& s) {
  { s.tracks_writers() } -> std::same_as<bool>;
};

/// A TracksWriters without locks, such as object storage: others see a writer only after it has announced
/// itself.
///
/// - `announces_writers()`: true where that is so; constant. Its object writers are
///   AnnouncingObjectWriters then.
template <class S>
concept AnnouncesWriters = requires(S& s) {
  { s.announces_writers() } -> std::same_as<bool>;
};

/// An unfinished object, as unfinished() of ListsUnfinished reports it.
struct listed_unfinished {
  std::string key;     ///< as leftovers() and live_writers() return it
  bool lives = false;  ///< its writer is known to live
};

/// A KeepsLeftovers that answers in one step what leftovers() and live_writers() answer for several prefixes.
///
/// - `unfinished(prefixes)`: returns what leftovers() and, where the store models TracksWriters, live_writers() return for
///   each of these prefixes, sorted by key. Throws storage_error.
template <class S>
concept ListsUnfinished = KeepsLeftovers<S> && requires(S& s, std::span<const std::string_view> prefixes) {
  { s.unfinished(prefixes) } -> std::same_as<std::vector<listed_unfinished>>;
};

/// An ObjectWriter that shows others an object before it is finished.
///
/// - `announce()`: makes the unfinished object visible to live_writers() and leftovers() of other processes.
///   Throws storage_error.
template <class W>
concept AnnouncingObjectWriter = ObjectWriter<W> && requires(W& w) { w.announce(); };

/// A ByteStore whose object writers are AnnouncingObjectWriters, and which announces in fewer steps what nobody will finish.
///
/// - `show(key)`: as create(key, 0), and announce() of what that returns, but without the look whether there is an object
///   under the key. finish() is never called.
template <class S>
concept ShowsWriters = ByteStore<S> && requires(S& s, std::string_view key) {
  { s.show(key) } -> AnnouncingObjectWriter;
};

/// An AnnouncingObjectWriter whose announcement others may remove where they take its process for dead.
///
/// - `announced()`: whether others have seen the object all the time since announce(). Any thread.
template <class W>
concept KeepsAnnouncement = AnnouncingObjectWriter<W> && requires(const W& w) {
  { w.announced() } noexcept -> std::same_as<bool>;
};

/// An ObjectWriter that counts as alive as long as an open file is locked (F_OFD_SETLK, see fcntl(2)).
///
/// - `lock_descriptor()`: returns the descriptor of that file, or -1 where this writer has none. The
///   writer owns it. A process that holds a duplicate keeps the writer alive in the eyes of others.
template <class W>
concept LockedObjectWriter = ObjectWriter<W> && requires(const W& w) {
  { w.lock_descriptor() } -> std::convertible_to<int>;
};

/// An ObjectWriter or SharedObjectWriter that uses other threads.
///
/// - `helper_cpu()`: the processor time that these threads have used for it so far, in nanoseconds.
template <class W>
concept CountsHelperCpu = requires(const W& w) {
  { w.helper_cpu() } -> std::convertible_to<std::int64_t>;
};

/// A SharedStore that knows only at run time whether it can share objects, such as a layer over an any_store.
///
/// - `shares()`: whether it can; constant. Where it is false, cairn does not call share() and join().
template <class S>
concept MayShare = SharedStore<S> && requires(S& s) {
  { s.shares() } -> std::same_as<bool>;
};

/// A ByteStore that gives the bytes of a finished object to a second key without sending them again: by a link, or by
/// a copy that the store makes itself.
///
/// - `link(from, to)`: from then on `to` is an object of its own with the bytes of `from`, durable when the call returns
///   and seen whole or not at all; it stays when `from` is removed. Throws storage_not_found if there is no `from`,
///   storage_exists if there is a `to`, which is not touched; a failed call leaves nothing under `to`. It may take as
///   long as the store needs to copy the object.
template <class S>
concept LinksObjects = ByteStore<S> && requires(S& s, std::string_view from, std::string_view to) {
  { s.link(from, to) } -> std::same_as<void>;
};

/// A LinksObjects whose link() ends in time.
///
/// - `link(from, to, deadline)`: as link(from, to), but what it waits for beyond the deadline makes it throw
///   timeout_error (timeout_write).
template <class S>
concept LinksUntil = LinksObjects<S> && requires(S& s, std::string_view key, deadline when) {
  { s.link(key, key, when) } -> std::same_as<void>;
};

/// A LinksObjects that knows only at run time whether it can link objects, such as a layer over an any_store.
///
/// - `links()`: whether it can; constant. Where it is false, cairn does not call link().
template <class S>
concept MayLink = LinksObjects<S> && requires(S& s) {
  { s.links() } -> std::same_as<bool>;
};

/// A ByteStore that tells of new objects without being asked for them again and again.
///
/// - `watch(prefix)`: watches the objects whose keys begin with the prefix, from now on; what it returns does not outlive
///   the store. Null where it cannot watch them now.
template <class S>
concept WatchesChanges = ByteStore<S> && requires(S& s, std::string_view prefix) {
  { s.watch(prefix) } -> std::same_as<std::unique_ptr<change_watch>>;
};

/// What a store knows of an object besides its bytes, as identify() of IdentifiesObjects reports it.
struct object_identity {
  std::uint64_t bytes = 0;   ///< as size() returns them
  std::string version = {};  ///< differs once the object was replaced or written again; empty: not known
  /// Somebody can write to the object now, as far as the store knows: it may change, and its version stay.
  bool open_for_writing = false;
};

/// A ByteStore whose objects others may replace, and which can tell that they did.
///
/// - `identify(key)`: returns the identity of the object, or nothing if there is none. Of two with one version, during
///   neither of which it was open for writing, no byte of the object changed between the calls; else it may have. They
///   are compared on one host alone. Throws storage_error.
template <class S>
concept IdentifiesObjects = ByteStore<S> && requires(S& s, std::string_view key) {
  { s.identify(key) } -> std::same_as<std::optional<object_identity>>;
};

/// A ByteStore whose root can go away, or have another one in its place, while it is used: a directory, whose disk
/// may be unmounted.
///
/// - `root_identity()`: a text that differs where another root has the same name now, such as the number of the
///   directory; nothing where there is none now. It may differ for the same root, too, once that was mounted anew. They
///   are compared on one host alone. Throws storage_error.
template <class S>
concept IdentifiesRoot = ByteStore<S> && requires(S& s) {
  { s.root_identity() } -> std::same_as<std::optional<std::string>>;
};

/// A ByteStore over another one, which changes the bytes of some objects, for example by compression.
///
/// - `inner()`: returns a reference to the other store, which lives as long as this one. Leases are held
///   in the inner store, so that all its users see them.
template <class S>
concept LayeredStore = ByteStore<S> && requires(S& s) {
  requires std::is_lvalue_reference_v<decltype(s.inner())>;
  requires ByteStore<std::remove_reference_t<decltype(s.inner())>>;
};

/// A ByteStore that returns the plain bytes of items that are stored compressed.
///
/// - `decodes(codec)`: whether it knows the codec with this number; true for 0, which is no codec. A
///   store without this function decodes nothing.
template <class S>
concept DecodingStore = ByteStore<S> && requires(S& s, std::uint16_t codec) {
  { s.decodes(codec) } -> std::same_as<bool>;
};

}  // namespace v1
}  // namespace cairn
