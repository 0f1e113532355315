// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/codec.hpp>
#include <cairn/concepts/store_reads.hpp>
#include <cairn/storage/compressed/compressed_file.hpp>
#include <cairn/storage/compressed/compressed_object.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/shared.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A ByteStore over another one that stores safetensors files as compressed files, and other objects
/// unchanged. Reads and sizes are those of the safetensors file under its key, whether it is compressed
/// or not; listings show the stored objects. Data files are written from front to back, with their exact
/// size as the size hint. Copies share the store.
template <Codec C>
class compressed_store {
 public:
  compressed_store(any_store store, C codec, frame_options frames)
      : parts_(detail::make_shared<parts>(std::move(store), std::move(codec), frames)) {}

  /// Writes a data file, encoded, or another object.
  class object_writer {
   public:
    using inner_type = any_store::object_writer;
    using encoding_type = compressed_object<C>;
    object_writer(std::shared_ptr<const void> keeps, std::optional<encoding_type> encoding,
                  std::optional<inner_type> plain)
        : keeps_(std::move(keeps)), encoding_(std::move(encoding)), plain_(std::move(plain)) {}
    void write(std::span<const write_range> written) {
      encoding_ ? encoding_->write(written) : plain_->write(written);
    }
    void until(deadline when) { encoding_ ? encoding_->until(when) : plain_->until(when); }
    void finish() { encoding_ ? encoding_->finish() : plain_->finish(); }
    void announce() { encoding_ ? encoding_->announce() : plain_->announce(); }
    [[nodiscard]] bool announced() const noexcept {
      return encoding_ ? encoding_->announced() : plain_->announced();
    }
    [[nodiscard]] int lock_descriptor() const {
      return encoding_ ? encoding_->lock_descriptor() : plain_->lock_descriptor();
    }
    [[nodiscard]] std::int64_t helper_cpu() const { return encoding_ ? encoding_->helper_cpu() : 0; }

   private:
    std::shared_ptr<const void> keeps_;  ///< the codec
    std::optional<encoding_type> encoding_;
    std::optional<inner_type> plain_;
  };

  [[nodiscard]] object_writer create(std::string_view key, std::uint64_t size_hint) {
    auto& inner = store();
    if (!is_data(key) || size_hint == 0)
      return object_writer(parts_, std::nullopt, inner.create(key, size_hint));
    const auto compressed = compressed_key(key);
    forget(key);
    return object_writer(parts_,
                         typename object_writer::encoding_type(
                             inner.create(compressed, size_hint), parts_->codec, parts_->frames, compressed,
                             size_hint, inner.io_alignment(), inner.min_write_bytes()),
                         std::nullopt);
  }

  /// 1: frames begin anywhere in a file, so that no alignment of a destination is better than another.
  [[nodiscard]] std::size_t io_alignment() const { return 1; }
  [[nodiscard]] std::size_t min_write_bytes() const { return 1; }

  void read(std::span<const read_range> ranges) { read_from(store(), ranges); }

  /// See ReadSession: with one of the store below.
  class read_session {
   public:
    using store_type = compressed_store;
    explicit read_session(compressed_store store)
        : store_(std::move(store)), inner_(store_.store().begin_reads()) {}
    void read(std::span<const read_range> ranges) {
      try {
        store_.read_from(inner_, ranges);
      } catch (const corrupt_error&) {
        // What memory has wrong, or came so, may be right where it is stored.
        store_.read(ranges);
      }
    }
    /// Reads the index of a file that was not opened yet. @throws storage_error
    [[nodiscard]] bool is_cached(std::string_view key, std::uint64_t offset, std::uint64_t bytes) {
      try {
        return store_.is_cached(inner_, key, offset, bytes);
      } catch (const corrupt_error&) {
        return false;  // read() tells, if memory alone is wrong or what is stored
      }
    }
    [[nodiscard]] read_figures figures() const { return inner_.figures(); }

   private:
    compressed_store store_;
    any_store::read_session inner_;
  };
  [[nodiscard]] read_session begin_reads() { return read_session(*this); }

  [[nodiscard]] std::optional<std::uint64_t> size(std::string_view key) {
    if (is_data(key)) {
      // What was opened before may have been removed since, or have come.
      const auto known = find_open(key);
      if (known && store().size(compressed_key(key)).has_value() != (*known != nullptr)) forget(key);
      if (const auto file = open(key, store())) return file->bytes;
    }
    return store().size(key);
  }
  void remove(std::string_view key) {
    if (is_data(key)) {
      forget(key);
      store().remove(compressed_key(key));
    }
    store().remove(key);
  }

  /// See MayLink: the compressed file, where the object is one.
  [[nodiscard]] bool links() const { return store().links(); }
  void link(std::string_view from, std::string_view to, deadline until = deadline::never()) {
    if (is_data(from) && is_data(to)) {
      forget(to);
      if (store().size(compressed_key(from)))
        return store().link(compressed_key(from), compressed_key(to), until);
    }
    store().link(from, to, until);
  }

  // Manifests, records and marks are not compressed: what the store can do with them, this one can.
  void put_new(std::string_view key, std::span<const std::byte> bytes) { store().put_new(key, bytes); }
  [[nodiscard]] bool publish_new(std::string_view key, std::span<const std::byte> bytes) {
    return store().publish_new(key, bytes);
  }
  [[nodiscard]] std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap) {
    return store().read_all(key, cap);
  }
  [[nodiscard]] std::vector<listed_object> list(std::string_view prefix) { return store().list(prefix); }
  [[nodiscard]] std::vector<std::string> keys(std::string_view prefix, std::size_t max_parts) {
    return store().keys(prefix, max_parts);
  }
  [[nodiscard]] bool remove_if(std::string_view key, std::span<const std::byte> bytes) {
    return store().remove_if(key, bytes);
  }
  void open_connections() noexcept { store().open_connections(); }
  // See MayTrackWriters and AnnouncesWriters. Keys of unfinished data are those of the compressed files.
  [[nodiscard]] bool tracks_writers() { return store().tracks_writers(); }
  [[nodiscard]] bool announces_writers() { return store().announces_writers(); }
  [[nodiscard]] std::vector<std::string> live_writers(std::string_view prefix) {
    return store().live_writers(prefix);
  }
  [[nodiscard]] bool writer_lives(std::string_view key) {
    return (is_data(key) && store().writer_lives(compressed_key(key))) || store().writer_lives(key);
  }
  [[nodiscard]] object_writer show(std::string_view key) {
    return object_writer(parts_, std::nullopt, store().show(key));
  }
  [[nodiscard]] std::vector<std::string> leftovers(std::string_view prefix) {
    return store().leftovers(prefix);
  }
  void discard(std::string_view key) { store().discard(key); }
  [[nodiscard]] std::vector<listed_unfinished> unfinished(std::span<const std::string_view> prefixes) {
    return store().unfinished(prefixes);
  }
  [[nodiscard]] std::optional<space_left> free_space() { return store().free_space(); }
  /// The store below, see LayeredStore.
  [[nodiscard]] any_store& inner() noexcept { return parts_->store; }
  [[nodiscard]] std::string describe() const { return store().describe(); }
  [[nodiscard]] store_test_report self_test() { return store().self_test(); }
  [[nodiscard]] std::size_t reads_at_once() const { return store().reads_at_once(); }
  [[nodiscard]] std::uint64_t read_bytes(std::uint64_t total) const { return store().read_bytes(total); }

  // What a store over directories offers besides.
  void make_directory(std::string_view directory) { store().make_directory(directory); }
  [[nodiscard]] bool adopt_directory(std::string_view directory) {
    return store().adopt_directory(directory);
  }
  void make_name_durable(std::string_view key) { store().make_name_durable(key); }
  void note_durable(std::string_view key) noexcept { store().note_durable(key); }
  [[nodiscard]] bool is_noted_durable(std::string_view key) { return store().is_noted_durable(key); }
  [[nodiscard]] std::unique_ptr<change_watch> watch(std::string_view prefix) { return store().watch(prefix); }

  /// See DecodingStore.
  [[nodiscard]] static constexpr bool decodes(std::uint16_t codec) noexcept {
    return codec == 0 || codec == C::id;
  }

  [[nodiscard]] const C& codec() const noexcept { return parts_->codec; }
  [[nodiscard]] const frame_options& frames() const noexcept { return parts_->frames; }

 private:
  using opened = std::shared_ptr<const compressed_file>;
  struct parts {
    parts(any_store s, C c, frame_options f) : store(std::move(s)), codec(std::move(c)), frames(f) {}
    any_store store;
    C codec;
    frame_options frames;
    std::mutex mutex;
    std::map<std::string, opened, std::less<>>
        files;  ///< by key of the safetensors file; null: not compressed
  };
  /// A range of an item, and the frames that hold it.
  struct wanted {
    opened file;
    const compressed_file::item* item;
    std::uint64_t begin;  ///< in the item
    std::span<std::byte> to;
    std::uint64_t offset;  ///< of the frames, in the compressed file
    std::uint64_t bytes;
    std::span<std::byte> place;
  };
  static constexpr std::size_t max_open = 4096;

  /// A key whose object may be a compressed file.
  [[nodiscard]] static bool is_data(std::string_view key) noexcept { return key.ends_with(".safetensors"); }

  [[nodiscard]] const any_store& store() const noexcept { return parts_->store; }

  /// `from`: the store below, or reads of it.
  template <class From>
  void read_from(From& from, std::span<const read_range> ranges) {
    std::vector<read_range> plain;
    std::vector<wanted> encoded;
    std::uint64_t bytes = 0;
    for (const auto& range : ranges) {
      const auto file = is_data(range.key) ? open(range.key, from) : nullptr;
      if (file == nullptr)
        plain.push_back(range);
      else
        find_frames(file, range, encoded, bytes);
    }
    const auto buffer = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
    std::uint64_t at = 0;
    for (auto& one : encoded) {
      one.place = {buffer.get() + at, static_cast<std::size_t>(one.bytes)};
      at += one.bytes;
      if (!plain.empty() && plain.back().key == one.file->key &&
          plain.back().offset + plain.back().destination.size() == one.offset &&
          plain.back().destination.data() + plain.back().destination.size() == one.place.data())
        plain.back().destination = {plain.back().destination.data(),
                                    plain.back().destination.size() + one.place.size()};
      else if (one.bytes != 0)
        plain.push_back({one.file->key, one.offset, one.place});
    }
    if (!plain.empty()) from.read(plain);
    for (const auto& one : encoded)
      decode_range(parts_->codec, one.item->index, one.place, one.begin, one.to, 1, one.file->key,
                   one.item->frames);
  }
  template <class From>
  [[nodiscard]] bool is_cached(From& from, std::string_view key, std::uint64_t offset, std::uint64_t bytes) {
    const auto file = is_data(key) ? open(key, from) : nullptr;
    if (file == nullptr) return from.is_cached(key, offset, bytes);
    if (offset < file->header.size() || offset > file->bytes || bytes > file->bytes - offset) return false;
    bool all = true;
    for_each_part(
        *file, offset, bytes, [&](const compressed_file::item& item, std::uint64_t begin, std::size_t count) {
          const auto frames = item.index.covering(begin, count);
          all = all && from.is_cached(file->key, item.frames + frames.encoded_begin, frames.encoded_bytes);
        });
    return all;
  }
  /// Gives what bytes [at, at + bytes) have of each item: each(item, begin in it, how many).
  /// @pre they lie in the file, behind its header
  template <class Each>
  static void for_each_part(const compressed_file& file, std::uint64_t at, std::uint64_t bytes, Each&& each) {
    auto item = std::upper_bound(file.items.begin(), file.items.end(), at,
                                 [](std::uint64_t offset, const auto& i) { return offset < i.begin; });
    for (item = item == file.items.begin() ? item : item - 1; bytes != 0; ++item) {
      const auto begin = at - item->begin;
      const auto count = std::min<std::uint64_t>(item->index.decoded_bytes() - begin, bytes);
      if (count == 0) continue;  // an empty item between others
      each(*item, begin, static_cast<std::size_t>(count));
      at += count;
      bytes -= count;
    }
  }
  static void find_frames(const opened& file, const read_range& range, std::vector<wanted>& found,
                          std::uint64_t& bytes) {
    if (range.offset > file->bytes || range.destination.size() > file->bytes - range.offset)
      corrupt(error_id::corrupt_truncated, "an object ends before what should be read of it", file->key,
              range.offset, std::to_string(range.destination.size()) + " bytes more", {});
    auto to = range.destination;
    auto at = range.offset;
    if (at < file->header.size()) {
      const auto count = std::min<std::uint64_t>(file->header.size() - at, to.size());
      if (count != 0) std::memcpy(to.data(), file->header.data() + at, static_cast<std::size_t>(count));
      at += count;
      to = to.subspan(static_cast<std::size_t>(count));
    }
    for_each_part(*file, at, to.size(),
                  [&](const compressed_file::item& item, std::uint64_t begin, std::size_t count) {
                    const auto frames = item.index.covering(begin, count);
                    found.push_back({file,
                                     &item,
                                     begin,
                                     to.first(count),
                                     item.frames + frames.encoded_begin,
                                     frames.encoded_bytes,
                                     {}});
                    bytes += frames.encoded_bytes;
                    to = to.subspan(count);
                  });
  }

  void forget(std::string_view key) {
    const std::lock_guard lock(parts_->mutex);
    if (const auto known = parts_->files.find(key); known != parts_->files.end()) parts_->files.erase(known);
  }
  /// What was opened before; nothing where that was not tried.
  [[nodiscard]] std::optional<opened> find_open(std::string_view key) {
    const std::lock_guard lock(parts_->mutex);
    const auto known = parts_->files.find(key);
    return known != parts_->files.end() ? std::optional(known->second) : std::nullopt;
  }
  /// The compressed file of a data file's key; null where there is none.
  template <class From>
  [[nodiscard]] opened open(std::string_view key, From& from) {
    if (auto known = find_open(key)) return std::move(*known);
    auto made = open_anew(compressed_key(key), from);
    const std::lock_guard lock(parts_->mutex);
    if (parts_->files.size() >= max_open) parts_->files.clear();
    parts_->files.insert_or_assign(std::string(key), made);
    return made;
  }
  template <class From>
  [[nodiscard]] opened open_anew(std::string key, From& from) {
    const auto size = store().size(key);
    if (!size) return nullptr;
    // Most often the first bytes and the last ones are all that is needed.
    std::vector<std::byte> first(static_cast<std::size_t>(std::min<std::uint64_t>(*size, 8192)));
    std::vector<std::byte> last(static_cast<std::size_t>(std::min<std::uint64_t>(*size, 65536)));
    if (*size < compressed_trailer_bytes)
      corrupt(error_id::corrupt_truncated, "a compressed data file is shorter than its end", key, *size);
    const read_range both[] = {{key, 0, first}, {key, *size - last.size(), last}};
    from.read(both);
    const auto trailer = decode_compressed_trailer(
        std::span<const std::byte>(last).last(compressed_trailer_bytes), *size, C::id, key);
    if (trailer.header_bytes < 8 || trailer.header_bytes > max_safetensors_json + 8)
      corrupt(error_id::corrupt_bad_value, "the header of a compressed data file has an impossible size", key,
              *size - compressed_trailer_bytes, {}, std::to_string(trailer.header_bytes));
    const auto got = std::min<std::uint64_t>(first.size(), trailer.header_bytes);
    first.resize(static_cast<std::size_t>(trailer.header_bytes));
    if (got < trailer.header_bytes) {
      const read_range more{key, got, std::span(first).subspan(static_cast<std::size_t>(got))};
      from.read({&more, 1});
    }
    const auto table_bytes = 16 * static_cast<std::size_t>(trailer.items);
    extend(from, key, *size, last, compressed_trailer_bytes + table_bytes);
    const auto table =
        std::span<const std::byte>(last).last(compressed_trailer_bytes + table_bytes).first(table_bytes);
    const auto wanted_bytes =
        compressed_index_bytes(table, trailer, *size, key) + table_bytes + compressed_trailer_bytes;
    extend(from, key, *size, last, wanted_bytes);
    const auto tail = std::span<const std::byte>(last).last(static_cast<std::size_t>(wanted_bytes));
    return detail::make_shared<const compressed_file>(
        decode_compressed_file(std::move(key), *size, C::id, trailer, std::move(first), tail));
  }
  /// `last`, the end of the object, becomes at least so long.
  template <class From>
  void extend(From& from, std::string_view key, std::uint64_t size, std::vector<std::byte>& last,
              std::uint64_t wanted_bytes) {
    if (last.size() >= wanted_bytes) return;
    std::vector<std::byte> longer(static_cast<std::size_t>(wanted_bytes));
    const auto missing = longer.size() - last.size();
    const read_range more{key, size - longer.size(), std::span(longer).first(missing)};
    from.read({&more, 1});
    std::copy(last.begin(), last.end(), longer.begin() + static_cast<std::ptrdiff_t>(missing));
    last = std::move(longer);
  }

  std::shared_ptr<parts> parts_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
