// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// A piece of an object that is being written.
struct write_part {
  std::uint64_t offset;              ///< in the object, in bytes
  std::span<const std::byte> bytes;  ///< stays valid and unchanged until write() returns
};

/// A piece of an object that is wanted.
struct read_range {
  std::string_view key;              ///< valid until read() returns
  std::uint64_t offset;              ///< in the object, in bytes
  std::span<std::byte> destination;  ///< filled completely, or read() throws
};

/// A row of a listing.
struct listed_object {
  std::string key;
  std::uint64_t bytes = 0;
};

/// What free_space() tells.
struct space_left {
  std::uint64_t bytes = 0;
  std::uint64_t objects = 0;  ///< inodes; the largest number where there is no limit
};

/// One object while it is being written; what ByteStore::create gives.
///
/// - `write(parts)`: several at once, in any order; each byte of [0, size) is written exactly once over all
///   calls. Writes are fastest when offset, length and memory are multiples of the store's part_alignment()
///   and at least min_part() long; the last part of the object may end anywhere. Anything else works too,
///   slower. Returns when the memory may be reused. Throws storage_error; the object is then broken and only
///   destroyed.
/// - `finish()`: the object is durable under its key, under which nothing stood before, or finish throws:
///   usage_incomplete_object if not every byte was written once, storage_exists if the key was taken.
/// - After finish() or an error every further call throws usage_closed.
/// - Destroyed without finish(): the object is aborted, nothing stands under its key.
///
/// One thread at a time calls an object writer; different ones may be used at once.
template <class W>
concept ObjectWriter = std::movable<W> && requires(W& w, std::span<const write_part> parts) {
  { w.write(parts) } -> std::same_as<void>;
  { w.finish() } -> std::same_as<void>;
};

/// A store that puts a small object in its own way; for others it is published.
///
/// - `put_new(key, bytes)`: a small object under a key that nobody used before; durable when it returns, never seen in
///   part. Throws storage_exists if the key exists.
template <class S>
concept PutsNew = requires(S& s, std::string_view key, std::span<const std::byte> bytes) {
  { s.put_new(key, bytes) } -> std::same_as<void>;
};

/// A store that reads a whole object in one go; of others its size is asked, then it is read.
///
/// - `read_all(key, cap)`: the whole object, or nothing if there is none; throws corrupt_size_mismatch if longer than
///   `cap` bytes.
template <class S>
concept ReadsWhole = requires(S& s, std::string_view key, std::uint64_t n) {
  { s.read_all(key, n) } -> std::same_as<std::optional<std::vector<std::byte>>>;
};

/// A store that writes some parts faster than others; for others all are alike.
///
/// - `part_alignment()`, `min_part()`: what ObjectWriter::write likes, in bytes; at least 1, constant.
template <class S>
concept PrefersParts = requires(S& s) {
  { s.part_alignment() } -> std::convertible_to<std::size_t>;
  { s.min_part() } -> std::convertible_to<std::size_t>;
};

/// A store in which something of a writer that died stays; in others nothing does.
///
/// - `leftovers(prefix)`: unfinished objects of writers that died, as keys for `discard(key)`; those of live writers
///   are not listed where the store can know (file_store does on one host).
/// - `discard(key)`: removes one. Throws storage_exists if its writer is known to live.
template <class S>
concept KeepsLeftovers = requires(S& s, std::string_view key) {
  { s.leftovers(key) } -> std::same_as<std::vector<std::string>>;
  { s.discard(key) } -> std::same_as<void>;
};

/// A store that knows its room; others are taken to have enough.
///
/// - `free_space()`: what is left in bytes and objects, or nothing where the store cannot say.
template <class S>
concept TellsSpace = requires(S& s) {
  { s.free_space() } -> std::same_as<std::optional<space_left>>;
};

namespace detail {
/// Where a store has a function of one of the five concepts above, it is meant as such: one of another type is a
/// mistake, which must not be passed over in silence.
template <class S>
concept MeansWhatItNames =
    (PutsNew<S> ||
     !requires(S& s, std::string_view key, std::span<const std::byte> bytes) { s.put_new(key, bytes); }) &&
    (ReadsWhole<S> || !requires(S& s, std::string_view key, std::uint64_t n) { s.read_all(key, n); }) &&
    (PrefersParts<S> || !(
                            requires(S& s) { s.part_alignment(); } || requires(S& s) { s.min_part(); })) &&
    (KeepsLeftovers<S> || !(
                              requires(S& s, std::string_view key) { s.leftovers(key); } ||
                              requires(S& s, std::string_view key) { s.discard(key); })) &&
    (TellsSpace<S> || !requires(S& s) { s.free_space(); });
}  // namespace detail

/// Durable objects under keys: a directory, a bucket. Keys are relative paths of `[A-Za-z0-9._-]` and '/', no
/// empty, "." or ".." part, at most 512 bytes: a store refuses others (storage_bad_key). Seven functions are all that a
/// store needs; what it may offer besides are the named concepts on this page and in store_capabilities.hpp.
///
/// - `create(key, size_hint)`: begins a new object of about `size_hint` bytes (0: unknown); an ObjectWriter.
///   Parents appear by themselves. Throws storage_error at once if space or permission is known to be missing,
///   storage_exists if the key exists.
/// - `publish_new(key, bytes)`: a small object, durable when it returns, never seen in part, atomic between any number
///   of writers: true for exactly one of them, whose bytes stand; false if something stood there before. Everything
///   finished before by this store, in this process, is durable before the key is seen.
/// - `read(ranges)`: all of them, in parallel where that is faster; returns when all are filled. The caller has sorted
///   and coalesced them; ranges whose offset and memory are multiples of part_alignment() may be quicker. Throws
///   storage_error (storage_not_found, storage_io) or corrupt_error (corrupt_truncated: the object ends before the
///   range).
/// - `size(key)`: bytes, or nothing if there is none.
/// - `list(prefix)`: all objects whose key begins with prefix, sorted by key. Objects that are being written are not
///   listed.
/// - `remove(key)`: durable; no error if there is none.
/// - `describe()`: for messages, such as "directory /data/checkpoints".
///
/// All functions may be called by several threads at once.
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
                    detail::MeansWhatItNames<S>;

/// What a ByteStore may offer besides, where each size that list() tells costs a call, and each directory.
///
/// - `keys(prefix, parts)`: the keys of list(prefix) that have at most so many parts between slashes, in the
///   same order. Directories that hold only longer keys are not read.
template <class S>
concept ListsKeys = ByteStore<S> && requires(S& s, std::string_view prefix, std::size_t parts) {
  { s.keys(prefix, parts) } -> std::same_as<std::vector<std::string>>;
};
namespace detail {
inline constexpr std::size_t any_parts = SIZE_MAX;
/// The keys that list() gives and that have at most so many parts, at the least cost.
template <ByteStore S>
[[nodiscard]] std::vector<std::string> list_keys(S& store, std::string_view prefix,
                                                 std::size_t parts = any_parts) {
  if constexpr (ListsKeys<S>) {
    return store.keys(prefix, parts);
  } else {
    std::vector<std::string> keys;
    for (auto& o : store.list(prefix))
      if (parts > static_cast<std::size_t>(std::count(o.key.begin(), o.key.end(), '/')))
        keys.push_back(std::move(o.key));
    return keys;
  }
}
}  // namespace detail

/// What a ByteStore may offer besides, so that one who removes an object does not take one that another put
/// under its key in between.
///
/// - `remove_if(key, bytes)`: removes, durably, an object that is exactly these bytes: true, also where
///   nothing stands under the key. False if something else stands there, which is not touched. Where a
///   request is repeated or comes late it still removes only the object that was looked at. Throws
///   storage_error.
template <class S>
concept ConditionalRemove =
    ByteStore<S> && requires(S& s, std::string_view key, std::span<const std::byte> bytes) {
      { s.remove_if(key, bytes) } -> std::same_as<bool>;
    };
namespace detail {
/// As read_all() of ReadsWhole; by size() and read() where the store has none.
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
/// As remove_if() of ConditionalRemove; by a look before where the store has none.
template <ByteStore S>
[[nodiscard]] bool remove_if(S& store, std::string_view key, std::span<const std::byte> bytes) {
  if constexpr (ConditionalRemove<S>) {
    return store.remove_if(key, bytes);
  } else {
    const auto size = store.size(key);
    if (!size) return true;
    if (*size != bytes.size()) return false;
    const auto there = read_whole(store, key, bytes.size());
    if (there && !std::equal(there->begin(), there->end(), bytes.begin(), bytes.end())) return false;
    store.remove(key);
    return true;
  }
}
}  // namespace detail

/// What a ByteStore over directories may offer besides, so that thousands of writers do not each make one
/// that all share, and make it durable. `directory`: the parents of keys, without a slash at the end.
///
/// - `make_directory(directory)`: it is there, durably; no error if it was.
/// - `adopt_directory(directory)`: true if it is there; that its own entry and those of the directories above
///   it are durable is from then on, for this store in this process, left to who made it. False if not.
///
/// - `make_name_durable(key)`: what is seen under this key is durable, also if who put it there has not come
///   to that yet.
///
/// All throw storage_error.
template <class S>
concept DirectoryStore = ByteStore<S> && requires(S& s, std::string_view directory) {
  { s.make_directory(directory) } -> std::same_as<void>;
  { s.adopt_directory(directory) } -> std::same_as<bool>;
  { s.make_name_durable(directory) } -> std::same_as<void>;
};

/// What a DirectoryStore may offer besides, so that of thousands who see one object not each makes its name
/// durable.
///
/// - `note_durable(key)`: by who knows that what stands under the key is durable, since its publish_new() has
///   returned. Notes it where others see it, without a change of the directory, if that can be done; does not
///   throw.
/// - `is_noted_durable(key)`: true only if that was noted, by whatever process: what stands under the key is
///   then durable. False also where the note was not made or is not seen yet: make_name_durable() then.
///   Throws storage_error.
template <class S>
concept DurabilityHints = DirectoryStore<S> && requires(S& s, std::string_view key) {
  { s.note_durable(key) } noexcept -> std::same_as<void>;
  { s.is_noted_durable(key) } -> std::same_as<bool>;
};

/// What an ObjectWriter may offer besides, where writing takes longer than a copy of the bytes is worth.
///
/// - `write_stable(parts)`: as write(), but the memory stays valid and unchanged until finish() has returned
///   or thrown, or the writer was destroyed. May return before anything was sent.
template <class W>
concept ZeroCopyObjectWriter = ObjectWriter<W> && requires(W& w, std::span<const write_part> parts) {
  { w.write_stable(parts) } -> std::same_as<void>;
};

/// What an ObjectWriter may offer besides, where it waits for its turn behind other objects of the store.
///
/// - `until(deadline)`: write() and finish() that still wait then throw timeout_error (timeout_write), and
///   the object is broken. Called before the first write(); without it they wait as long as what they wait
///   for.
template <class W>
concept DeadlineObjectWriter = ObjectWriter<W> && requires(W& w, deadline when) {
  { w.until(when) } -> std::same_as<void>;
};

/// What a ByteStore may offer besides, where each request costs a round trip.
///
/// - `reads_at_once()`: how many read() calls, of some MiB each, it takes at a time to use it well.
template <class S>
concept DistantStore = ByteStore<S> && requires(S& s) {
  { s.reads_at_once() } -> std::convertible_to<std::size_t>;
};

/// One object while several writers of one host fill it; what SharedStore gives. Each writer is used by one
/// thread at a time, different ones at once.
///
/// - `write(parts)`: see ObjectWriter; over all writers, each byte is written once.
/// - `put(offset, bytes)`: a small piece, which may be written again, and which others may read at once.
/// - `read(offset, destination)`: true if all of it was there; what others have put, or zeros where they have
///   not.
/// - `sync()`: what this writer wrote is durable, whoever finishes the object.
/// - `finish(bytes)`: by the writer that began the object, when all others have come to their sync(): it is
///   cut to so many bytes, and durable under its key, or finish throws. The others are only destroyed.
///
/// All throw storage_error, after which a writer is only destroyed. Where the writer that began it is
/// destroyed without finish(), the object is aborted.
template <class W>
concept SharedObjectWriter =
    std::movable<W> && requires(W& w, std::span<const write_part> parts, std::uint64_t n,
                                std::span<const std::byte> bytes, std::span<std::byte> destination) {
      { w.write(parts) } -> std::same_as<void>;
      { w.put(n, bytes) } -> std::same_as<void>;
      { w.read(n, destination) } -> std::same_as<bool>;
      { w.sync() } -> std::same_as<void>;
      { w.finish(n) } -> std::same_as<void>;
    };

/// What a ByteStore may offer besides: objects that several writers of one host fill together.
///
/// - `share(key, tag)`: begins an object that those who know `tag` can join.
/// - `join(key, tag)`: a further writer of it, or nothing where nobody has begun it on this host, or it was
///   finished.
///
/// Both throw storage_error.
template <class S>
concept SharedStore = ByteStore<S> && requires(S& s, std::string_view key, std::uint64_t tag) {
  { s.share(key, tag) } -> SharedObjectWriter;
  { s.join(key, tag) } -> std::same_as<std::optional<decltype(s.share(key, tag))>>;
};

/// One thing that checkpoints rely on in a store, as it was tried there.
struct store_point {
  enum class verdict : std::uint8_t {
    right,       ///< as it must be
    weaker,      ///< checkpoints are safe, but something is lost: `follows` says what
    single_job,  ///< safe for one job alone: two could lose checkpoints
    unusable,    ///< no save would succeed
  };
  std::string what;  ///< "a rename replaces nothing"
  verdict outcome = verdict::right;
  std::string seen;     ///< what the store answered
  std::string follows;  ///< empty where nothing follows
};

/// What a store proved of itself.
struct store_proof {
  std::string kind;  ///< of the file system or service, "ext4"; empty where the store does not know
  std::string from;  ///< what is mounted there, with its options; empty where that is not known
  /// The user said that one job alone writes there: what is unsafe between two of them is accepted.
  bool single_writer = false;
  std::vector<store_point> points;

  [[nodiscard]] bool has(store_point::verdict v) const noexcept {
    for (const auto& p : points)
      if (p.outcome == v) return true;
    return false;
  }
};

/// What a ByteStore may offer besides: it tries what commits rely on, instead of believing it.
///
/// - `prove()`: writes a few small objects, looks at what comes of them, and removes them. Some milliseconds;
///   others may use the store meanwhile. Throws storage_error where not even one object can be written:
///   storage_permission, storage_not_found, ....
template <class S>
concept SelfTestingStore = ByteStore<S> && requires(S& s) {
  { s.prove() } -> std::same_as<store_proof>;
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
