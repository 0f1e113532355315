// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Bytes to write into an object, from an offset on.
struct write_range {
  std::uint64_t offset;              ///< in the object, in bytes
  std::span<const std::byte> bytes;  ///< stays valid and unchanged until write() returns
};

/// Bytes to read from an object, from an offset on.
struct read_range {
  std::string_view key;              ///< valid until read() returns
  std::uint64_t offset;              ///< in the object, in bytes
  std::span<std::byte> destination;  ///< filled completely, or read() throws
};

/// An object as ByteStore::list() reports it.
struct listed_object {
  /// The key of the object, for read(), size() and remove().
  std::string key;
  std::uint64_t bytes = 0;
};

/// The free space of a store, as free_space() returns it.
struct space_left {
  std::uint64_t bytes = 0;
  std::uint64_t objects = 0;  ///< for files: inodes; UINT64_MAX where there is no limit
};

/// One object while it is being written; ByteStore::create() returns it.
///
/// - `write(ranges)`: writes several ranges, in any order; each byte of [0, size) is written exactly once
///   over all calls. Writes are fastest when offset, length and memory are multiples of the store's
///   io_alignment() and at least min_write_bytes() long; the last range of the object may end anywhere.
///   Other ranges work too, but slower. Returns when the memory may be reused. Throws storage_error;
///   afterwards the writer can only be destroyed.
/// - `finish()`: makes the object durable under its key, where no object existed before. Throws
///   usage_incomplete_object if not every byte was written once, storage_exists if the key was taken.
/// - After finish() or an error every further call throws usage_closed.
/// - The destructor aborts an object that was not finished: nothing exists under its key then.
///
/// One thread at a time calls an object writer; different ones may be used at once.
template <class W>
concept ObjectWriter = std::movable<W> && requires(W& w, std::span<const write_range> parts) {
  { w.write(parts) } -> std::same_as<void>;
  { w.finish() } -> std::same_as<void>;
};

/// A store with a fast way to put a small object. For other stores cairn calls publish_new().
///
/// - `put_new(key, bytes)`: puts a small object under a key that nobody used before. It is durable when
///   the call returns, and nobody ever sees a half of it. Throws storage_exists if the key exists.
template <class S>
concept PutsNew = requires(S& s, std::string_view key, std::span<const std::byte> bytes) {
  { s.put_new(key, bytes) } -> std::same_as<void>;
};

/// A store that reads a whole object in one call. For other stores cairn calls size(), then read().
///
/// - `read_all(key, cap)`: returns the whole object, or nothing if there is none. Throws
///   corrupt_size_mismatch if it is longer than `cap` bytes.
template <class S>
concept ReadsWhole = requires(S& s, std::string_view key, std::uint64_t n) {
  { s.read_all(key, n) } -> std::same_as<std::optional<std::vector<std::byte>>>;
};

/// A store that writes ranges of some sizes and alignments faster than others.
///
/// - `io_alignment()`: the alignment of offsets, lengths and memory for which reads and writes are
///   fastest, in bytes.
/// - `min_write_bytes()`: the length from which on writes are fast.
///
/// Both are at least 1 and constant.
template <class S>
concept PrefersWriteSizes = requires(S& s) {
  { s.io_alignment() } -> std::convertible_to<std::size_t>;
  { s.min_write_bytes() } -> std::convertible_to<std::size_t>;
};

/// A store in which a writer that died leaves an unfinished object behind.
///
/// - `leftovers(prefix)`: returns the unfinished objects of writers that died, as keys for
///   `discard(key)`. Objects of live writers are left out where the store can know that they live
///   (file_store can, on one host).
/// - `discard(key)`: removes one of them. Throws storage_exists if its writer is known to live.
template <class S>
concept KeepsLeftovers = requires(S& s, std::string_view key) {
  { s.leftovers(key) } -> std::same_as<std::vector<std::string>>;
  { s.discard(key) } -> std::same_as<void>;
};

/// A store that knows how much space is free. cairn assumes that other stores have enough.
///
/// - `free_space()`: returns the free bytes and objects, or nothing where the store cannot say.
template <class S>
concept ReportsSpace = requires(S& s) {
  { s.free_space() } -> std::same_as<std::optional<space_left>>;
};

namespace detail {
/// A function with the name of one of the five concepts above must have the signature of that concept:
/// another signature is a mistake, which must not go unnoticed.
template <class S>
concept CapabilitiesWellFormed =
    (PutsNew<S> ||
     !requires(S& s, std::string_view key, std::span<const std::byte> bytes) { s.put_new(key, bytes); }) &&
    (ReadsWhole<S> || !requires(S& s, std::string_view key, std::uint64_t n) { s.read_all(key, n); }) &&
    (PrefersWriteSizes<S> ||
     !(
         requires(S& s) { s.io_alignment(); } || requires(S& s) { s.min_write_bytes(); })) &&
    (KeepsLeftovers<S> || !(
                              requires(S& s, std::string_view key) { s.leftovers(key); } ||
                              requires(S& s, std::string_view key) { s.discard(key); })) &&
    (ReportsSpace<S> || !requires(S& s) { s.free_space(); });
}  // namespace detail

/// Durable objects under keys, such as a directory or a bucket. A key is a relative path of
/// `[A-Za-z0-9._-]` and '/' without empty, "." or ".." components, of at most 512 bytes; a store refuses
/// other keys (storage_bad_key). A store needs these seven functions; the named concepts on this page and
/// in store_capabilities.hpp are optional.
///
/// - `create(key, size_hint)`: begins a new object of about `size_hint` bytes (0: unknown) and returns
///   its ObjectWriter. Missing directories are made. Throws storage_error at once if space or permission
///   is known to be missing, storage_exists if the key exists.
/// - `publish_new(key, bytes)`: puts a small object if none exists under the key. It is durable when the
///   call returns, and nobody ever sees a half of it. Of any number of concurrent writers, exactly one
///   gets true, and its bytes are the object; false if an object existed before. Everything that this
///   store finished before, in this process, is durable before the key becomes visible.
/// - `read(ranges)`: reads all ranges, in parallel where that is faster, and returns when all are filled.
///   The caller has sorted and coalesced them. Ranges whose offset and memory are multiples of
///   io_alignment() may be faster. Throws storage_error (storage_not_found, storage_io) or corrupt_error
///   (corrupt_truncated: the object ends before the range).
/// - `size(key)`: returns the bytes of the object, or nothing if there is none.
/// - `list(prefix)`: returns all objects whose key begins with prefix, sorted by key, without those that
///   are being written.
/// - `remove(key)`: removes the object durably; no error if there is none.
/// - `describe()`: returns a name for messages, such as "directory /data/checkpoints".
///
/// Several threads may call all functions at once.
template <class S>
concept ByteStore = std::movable<S> &&
                    requires(S& s, std::string_view key, std::uint64_t n, std::span<const std::byte> bytes,
                             std::span<const read_range> ranges) {
                      { s.create(key, n) } -> ObjectWriter;
                      { s.publish_new(key, bytes) } -> std::same_as<bool>;
                      { s.read(ranges) } -> std::same_as<void>;
                      { s.size(key) } -> std::same_as<std::optional<std::uint64_t>>;
                      { s.list(key) } -> std::same_as<std::vector<listed_object>>;
                      { s.remove(key) } -> std::same_as<void>;
                      { s.describe() } -> std::convertible_to<std::string>;
                    } &&
                    detail::CapabilitiesWellFormed<S>;

/// A ByteStore that lists keys faster than keys with sizes, or need not read every directory.
///
/// - `keys(prefix, components)`: returns the keys of list(prefix) that have at most so many components
///   between slashes, in the same order. Directories that hold only longer keys are not read.
template <class S>
concept ListsKeys = ByteStore<S> && requires(S& s, std::string_view prefix, std::size_t parts) {
  { s.keys(prefix, parts) } -> std::same_as<std::vector<std::string>>;
};
namespace detail {
inline constexpr std::size_t any_parts = SIZE_MAX;
/// The keys of list() that have at most so many components, at the least cost.
template <ByteStore S>
[[nodiscard]] std::vector<std::string> list_keys(S& store, std::string_view prefix,
                                                 std::size_t parts = any_parts) {
  if constexpr (ListsKeys<S>) {
    return store.keys(prefix, parts);
  } else {
    std::vector<std::string> keys;
    for (auto& o : store.list(prefix)) {
      std::size_t slashes = 0;
      for (const char c : o.key) slashes += c == '/' ? 1 : 0;
      if (slashes < parts) keys.push_back(std::move(o.key));
    }
    return keys;
  }
}
}  // namespace detail

/// A ByteStore that lists the keys behind one at the cost of these alone, such as object storage.
///
/// - `keys_after(prefix, after, components)`: returns the keys of list(prefix) that are greater than `after` and have at
///   most so many components between slashes, in the same order. Directories that hold only longer keys are not read.
template <class S>
concept ListsKeysAfter =
    ByteStore<S> && requires(S& s, std::string_view prefix, std::string_view after, std::size_t parts) {
      { s.keys_after(prefix, after, parts) } -> std::same_as<std::vector<std::string>>;
    };

/// A ByteStore that removes many objects in fewer steps than one by one.
///
/// - `remove_all(keys)`: as remove() of each, in any order; those that are not there are passed over. Throws what
///   remove() throws for one of them; others may be removed then, or not.
template <class S>
concept RemovesMany = ByteStore<S> && requires(S& s, std::span<const std::string> keys) {
  { s.remove_all(keys) } -> std::same_as<void>;
};

/// A ByteStore that compares and removes in one step, so that a caller never removes an object that
/// somebody else put under the key in between.
///
/// - `remove_if(key, bytes)`: removes the object durably if it consists of exactly these bytes. Returns
///   true if it did, or if there was no object; false if there is another object, which is not touched. A
///   request that is repeated or takes effect late still removes only the object that was compared.
///   Throws storage_error.
template <class S>
concept ConditionalRemove =
    ByteStore<S> && requires(S& s, std::string_view key, std::span<const std::byte> bytes) {
      { s.remove_if(key, bytes) } -> std::same_as<bool>;
    };
namespace detail {
/// read_all() of ReadsWhole; for other stores, size() and read().
template <ByteStore S>
[[nodiscard]] std::optional<std::vector<std::byte>> read_whole(S& store, std::string_view key,
                                                               std::uint64_t cap) {
  if constexpr (ReadsWhole<S>) {
    return store.read_all(key, cap);
  } else {
    const auto size = store.size(key);
    if (!size) return std::nullopt;
    if (*size > cap)
      fail(error_id::corrupt_size_mismatch, "the object is longer than it can be",
           {.file = std::string(key),
            .expected = "at most " + std::to_string(cap) + " bytes",
            .got = std::to_string(*size) + " bytes"});
    std::vector<std::byte> bytes(static_cast<std::size_t>(*size));
    const read_range whole{key, 0, bytes};
    try {
      store.read(std::span(&whole, 1));
    } catch (const storage_error& e) {
      if (e.id() != error_id::storage_not_found) throw;
      return std::nullopt;  // removed since it was asked for
    }
    return bytes;
  }
}
/// remove_if() of ConditionalRemove; for other stores, read, compare and remove().
template <ByteStore S>
[[nodiscard]] bool remove_if(S& store, std::string_view key, std::span<const std::byte> bytes) {
  if constexpr (ConditionalRemove<S>) {
    return store.remove_if(key, bytes);
  } else {
    const auto size = store.size(key);
    if (!size) return true;
    if (*size != bytes.size()) return false;
    const auto there = read_whole(store, key, bytes.size());
    if (there && (there->size() != bytes.size() ||
                  (!bytes.empty() && std::memcmp(there->data(), bytes.data(), bytes.size()) != 0)))
      return false;
    store.remove(key);
    return true;
  }
}
}  // namespace detail

/// A ByteStore over directories, where one writer can make a directory for thousands that share it.
/// `directory`: the parents of keys, without a slash at the end.
///
/// - `make_directory(directory)`: makes the directory durably; no error if it exists.
/// - `adopt_directory(directory)`: true if the directory exists. From then on this store, in this
///   process, relies on its maker to have made it and the directories above it durable. False if it does
///   not exist.
/// - `make_name_durable(key)`: makes the object that is visible under this key durable, also where its writer
///   has not done so yet.
///
/// All throw storage_error.
template <class S>
concept DirectoryStore = ByteStore<S> && requires(S& s, std::string_view directory) {
  { s.make_directory(directory) } -> std::same_as<void>;
  { s.adopt_directory(directory) } -> std::same_as<bool>;
  { s.make_name_durable(directory) } -> std::same_as<void>;
};

/// A DirectoryStore with a note that an object is durable, so that not each of thousands of readers makes
/// its name durable again.
///
/// - `note_durable(key)`: notes for others that the object is durable, without changing its directory, if
///   the store can do that. Called only after publish_new() of the object has returned. Does not throw.
/// - `is_noted_durable(key)`: true if some process noted it: the object is durable then. False also where
///   the note was not made or is not visible yet; the caller then calls make_name_durable(). Throws
///   storage_error.
template <class S>
concept DurabilityHints = DirectoryStore<S> && requires(S& s, std::string_view key) {
  { s.note_durable(key) } noexcept -> std::same_as<void>;
  { s.is_noted_durable(key) } -> std::same_as<bool>;
};

/// An ObjectWriter that can write without copying the bytes.
///
/// - `write_stable(ranges)`: as write(), but the caller keeps the memory valid and unchanged until
///   finish() has returned or thrown, or the writer was destroyed. May return before anything was sent.
template <class W>
concept ZeroCopyObjectWriter = ObjectWriter<W> && requires(W& w, std::span<const write_range> parts) {
  { w.write_stable(parts) } -> std::same_as<void>;
};

/// An ObjectWriter that may have to wait for other objects of the store.
///
/// - `until(deadline)`: from then on, write() and finish() that wait beyond the deadline throw
///   timeout_error (timeout_write), and the writer can only be destroyed. Called before the first
///   write(); without it there is no limit.
template <class W>
concept DeadlineObjectWriter = ObjectWriter<W> && requires(W& w, deadline when) {
  { w.until(when) } -> std::same_as<void>;
};

/// A ByteStore in which each request costs a round trip.
///
/// - `reads_at_once()`: how many read() calls of some MiB each must run at once to use its bandwidth.
template <class S>
concept DistantStore = ByteStore<S> && requires(S& s) {
  { s.reads_at_once() } -> std::convertible_to<std::size_t>;
};

/// A DistantStore that knows how long its requests had better be.
///
/// - `read_bytes(total)`: how many bytes one of the read() calls had better ask for where `total` bytes are read by
///   reads_at_once() of them. May be another number each time, as the store learns; at least 1.
template <class S>
concept SizesReads = DistantStore<S> && requires(S& s, std::uint64_t total) {
  { s.read_bytes(total) } -> std::same_as<std::uint64_t>;
};

/// One of several writers of one host that fill an object together; SharedStore returns it. One thread at
/// a time uses a writer; different writers may be used at once.
///
/// - `write(ranges)`: see ObjectWriter; over all writers, each byte is written once.
/// - `put(offset, bytes)`: writes a few bytes, which may be written again, and which others may read at once.
/// - `read(offset, destination)`: reads what others have put, zeros elsewhere. False if the object ends
///   before.
/// - `sync()`: makes durable what this writer wrote, whoever finishes the object.
/// - `finish(bytes)`: called by the writer that began the object, after the sync() of all others:
///   truncates the object to so many bytes and makes it durable under its key, or throws. The other
///   writers are only destroyed.
///
/// All throw storage_error; afterwards the writer can only be destroyed. The object is aborted where the
/// writer that began it is destroyed without finish().
template <class W>
concept SharedObjectWriter =
    std::movable<W> && requires(W& w, std::span<const write_range> parts, std::uint64_t n,
                                std::span<const std::byte> bytes, std::span<std::byte> destination) {
      { w.write(parts) } -> std::same_as<void>;
      { w.put(n, bytes) } -> std::same_as<void>;
      { w.read(n, destination) } -> std::same_as<bool>;
      { w.sync() } -> std::same_as<void>;
      { w.finish(n) } -> std::same_as<void>;
    };

/// A ByteStore in which several writers of one host can fill an object together.
///
/// - `share(key, tag)`: begins an object that others join by the same `tag`.
/// - `join(key, tag)`: returns another writer of it, or nothing where nobody on this host has begun it,
///   or it was finished.
///
/// Both throw storage_error.
template <class S>
concept SharedStore = ByteStore<S> && requires(S& s, std::string_view key, std::uint64_t tag) {
  { s.share(key, tag) } -> SharedObjectWriter;
  { s.join(key, tag) } -> std::same_as<std::optional<decltype(s.share(key, tag))>>;
};

/// One property of a store that commits rely on, and the outcome of testing it.
struct store_check {
  enum class verdict : std::uint8_t {
    right,       ///< the store has the property
    weaker,      ///< checkpoints are safe, but something is lost: `follows` says what
    single_job,  ///< safe for one job alone: two could lose checkpoints
    unusable,    ///< no save would succeed
  };
  std::string what;  ///< "a rename replaces nothing"
  /// What the test found.
  verdict outcome = verdict::right;
  std::string seen;     ///< what the store answered
  std::string follows;  ///< the consequence; empty where there is none
};

/// The result of a store's test of itself.
struct store_test_report {
  std::string kind;  ///< of the file system or service, "ext4"; empty where the store does not know
  std::string from;  ///< the mounted device or server, with the mount options; empty where it is not known
  /// The user said that one job alone writes there: what is unsafe between two of them is accepted.
  bool single_writer = false;
  /// Every property that was tested.
  std::vector<store_check> points;

  /// True if one of the tests ended in this verdict.
  [[nodiscard]] bool has(store_check::verdict v) const noexcept {
    for (const auto& p : points)
      if (p.outcome == v) return true;
    return false;
  }
};

/// A ByteStore that tests what commits rely on.
///
/// - `self_test()`: writes a few small objects, checks the results, and removes them, in some milliseconds;
///   others may use the store meanwhile. Throws storage_error where not even one object can be written:
///   storage_permission, storage_not_found, ....
template <class S>
concept SelfTestingStore = ByteStore<S> && requires(S& s) {
  { s.self_test() } -> std::same_as<store_test_report>;
};

/// True for keys that every store accepts.
[[nodiscard]] constexpr bool valid_key(std::string_view key) noexcept {
  if (key.empty() || key.size() > 512) return false;
  std::size_t part = 0;
  std::size_t dots = 0;
  for (std::size_t i = 0; i <= key.size(); ++i) {
    if (i == key.size() || key[i] == '/') {
      if (part == 0 || (part == dots && part <= 2)) return false;
      part = dots = 0;
      continue;
    }
    const char c = key[i];
    const bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '.' || c == '_' || c == '-';
    if (!fine) return false;
    ++part;
    dots += c == '.';
  }
  return true;
}
}  // namespace v1
}  // namespace cairn
