// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace cairn {
inline namespace v1 {

// What a ByteStore and its object writers may offer besides, about writers in other processes and stores that lie
// over others. The capabilities that concern single requests are in <cairn/concepts/byte_store.hpp>. any_store asks
// for all of them once, when it is made.

/// A ByteStore that can tell whether writers live, in other processes too.
///
/// - `live_writers(prefix)`: the keys of unfinished objects whose writers live; leftovers() leaves them out.
/// - `writer_lives(key)`: whether the writer of a finished object still exists.
///
/// Both throw storage_error. A run that resumes waits for the writers that it sees, and readers hold leases by them.
template <class S>
concept TellsWriters = requires(S& s, std::string_view key) {
  { s.live_writers(key) } -> std::same_as<std::vector<std::string>>;
  { s.writer_lives(key) } -> std::same_as<bool>;
};

/// A TellsWriters that knows only at run time whether it can, as one that lies over an any_store.
///
/// - `tells_writers()`: whether it can; constant. Where it says no, the functions of TellsWriters are not called.
template <class S>
concept MayTellWriters = TellsWriters<S> && requires(S& s) {
  { s.tells_writers() } -> std::same_as<bool>;
};

/// A TellsWriters without locks, as object storage: others see a writer only once it has announced itself.
///
/// - `announces_writers()`: true where that is so; constant. Its object writers are AnnouncingObjectWriters then.
template <class S>
concept AnnouncesWriters = requires(S& s) {
  { s.announces_writers() } -> std::same_as<bool>;
};

/// An ObjectWriter that shows others an object before it is finished.
///
/// - `announce()`: from its return on, live_writers() and leftovers() of other processes know the unfinished object.
///   Throws storage_error.
template <class W>
concept AnnouncingObjectWriter = ObjectWriter<W> && requires(W& w) { w.announce(); };

/// An ObjectWriter that lives as long as an open file is locked.
///
/// - `lock_descriptor()`: of that file; -1 where this writer has none. A process that gets a copy of the descriptor
///   keeps the writer alive for others, too. The writer owns the descriptor.
template <class W>
concept LockedObjectWriter = ObjectWriter<W> && requires(const W& w) {
  { w.lock_descriptor() } -> std::convertible_to<int>;
};

/// An ObjectWriter or SharedObjectWriter whose writing takes time of other threads.
///
/// - `helper_cpu()`: how much processor time they took for it so far, in nanoseconds.
template <class W>
concept CountsHelperCpu = requires(const W& w) {
  { w.helper_cpu() } -> std::convertible_to<std::int64_t>;
};

/// A SharedStore that knows only at run time whether it can, as one that lies over an any_store.
///
/// - `shares()`: whether it can; constant. Where it says no, share() and join() are not called.
template <class S>
concept MayShare = SharedStore<S> && requires(S& s) {
  { s.shares() } -> std::same_as<bool>;
};

/// A ByteStore that lies over another one and changes what stands under some of its keys, as one that compresses.
///
/// - `inner()`: the other one, by reference, which lives as long as this one. Leases are held there, so that all who use the inner
///   store see them, whatever lies over it.
template <class S>
concept LayeredStore = ByteStore<S> && requires(S& s) {
  requires std::is_lvalue_reference_v<decltype(s.inner())>;
  requires ByteStore<std::remove_reference_t<decltype(s.inner())>>;
};

/// A ByteStore that gives the plain bytes of items that are stored compressed.
///
/// - `decodes(codec)`: whether it knows the codec of this number; true for 0, which is none. Any other store decodes
///   nothing.
template <class S>
concept DecodingStore = ByteStore<S> && requires(S& s, std::uint16_t codec) {
  { s.decodes(codec) } -> std::same_as<bool>;
};

}  // namespace v1
}  // namespace cairn
