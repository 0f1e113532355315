// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/byte_store.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

namespace cairn {
inline namespace v1 {

/// Where the bytes came from that were read. What is in neither number came in another way, or the store does not
/// tell.
struct read_figures {
  std::uint64_t cached = 0;  ///< bytes from memory of this host, such as the page cache
  std::uint64_t direct = 0;  ///< bytes from the device, past the page cache
  /// Processor time of other threads than those that called, in nanoseconds.
  std::int64_t helper_cpu = 0;
  std::uint64_t requests = 0;  ///< to a service, where the store is one
  std::uint64_t hedges = 0;    ///< of these: second ones for bytes whose first request was slow
};

/// The reads of one load, so that what had to be opened for one of them is open for the next.
///
/// - `read(ranges)`: see ByteStore. What is in memory of this host may come from there.
/// - `is_cached(key, offset, bytes)`: whether all of these bytes are in memory of this host, where reading them waits
///   for no device and any place is as good a destination as another. A hint, which may be out of date at once; false
///   where that is not known. Costs a microsecond where the object is open. Does not throw for an object that is not
///   there.
/// - `figures()`: where the bytes came from that read() brought so far.
///
/// All functions may be called by several threads at once. An object that is removed or replaced meanwhile may be
/// read as it was.
template <class R>
concept ReadSession = std::movable<R> && requires(R& r, std::span<const read_range> ranges,
                                                  std::string_view key, std::uint64_t n) {
  { r.read(ranges) } -> std::same_as<void>;
  { r.is_cached(key, n, n) } -> std::same_as<bool>;
  { r.figures() } -> std::same_as<read_figures>;
};

/// A ByteStore that is reached over connections, which take time to open.
///
/// - `open_connections()`: a load or a resume begins: opens connections while it finds out what to read. Does not wait
///   for them; where one fails, nothing else does.
template <class S>
concept OpensConnections = ByteStore<S> && requires(S& s) {
  { s.open_connections() } noexcept -> std::same_as<void>;
};

/// A ReadSession that can copy what is in memory of this host and digest it in the same pass.
///
/// - `copy(key, offset, destination, digest)`: true once the bytes are at their destination and their digest() in
///   `*digest`, which may be null; counts as read() then. False where they cannot be had so: read() is the way then, and
///   the destination may hold any bytes. Does not throw for an object that is not there.
template <class R>
concept CopiesFromMemory =
    ReadSession<R> && requires(R& r, std::string_view key, std::uint64_t offset,
                               std::span<std::byte> destination, std::uint64_t* digest) {
      { r.copy(key, offset, destination, digest) } -> std::same_as<bool>;
    };

/// A ByteStore that opens objects in order to read them, and can keep them open.
///
/// - `begin_reads()`: a ReadSession, which keeps what it needs of the store alive until it is destroyed. Its
///   `store_type` is the type of the store: a class that derives from a store and reads in its own way does not inherit
///   sessions that would bypass it.
template <class S>
concept OffersReadSessions = ByteStore<S> && requires(S& s) {
  { s.begin_reads() } -> ReadSession;
  requires std::same_as<typename std::remove_cvref_t<decltype(s.begin_reads())>::store_type, S>;
};

}  // namespace v1
}  // namespace cairn
