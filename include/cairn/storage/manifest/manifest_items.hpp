// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_codec.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/storage/manifest/corrupt.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_check.hpp>
#include <cairn/storage/manifest/manifest_reader.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <atomic>
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
namespace detail {

/// A table of u32 offsets, then what they point at, one part behind another up to the end of a section.
class offset_table {
 public:
  offset_table(std::span<const std::byte> bytes, std::size_t begin, std::uint64_t count) noexcept
      : bytes_(bytes), begin_(begin), count_(static_cast<std::size_t>(count)) {}
  /// Where the table is wrong, or nothing. O(count).
  [[nodiscard]] std::optional<std::size_t> problem() const noexcept {
    std::uint64_t end = begin_ + std::uint64_t{4} * count_;
    for (std::size_t i = 0; i < count_; ++i) {
      const auto at = column_at<std::uint32_t>(bytes_.data() + begin_, i);
      if (i == 0 ? at != end : at <= end) return begin_ + 4 * i;
      if (at >= bytes_.size()) return begin_ + 4 * i;
      end = at;
    }
    return count_ == 0 && end != bytes_.size() ? std::optional{begin_} : std::nullopt;
  }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::size_t begin_of(std::size_t i) const noexcept {
    return column_at<std::uint32_t>(bytes_.data() + begin_, i);
  }
  [[nodiscard]] std::span<const std::byte> part(std::size_t i) const noexcept {
    const auto from = begin_of(i);
    const auto to = i + 1 < count_ ? begin_of(i + 1) : bytes_.size();
    return bytes_.subspan(from, to - from);
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t begin_;
  std::size_t count_;
};

/// The items of a manifest of version 2, where they lie: finding a name decodes one block of names, making an
/// item its definition besides.
class manifest_items final : public stored_item_source {
 public:
  /// Checks the tables and the order of blocks; O(items / names_in_block + definitions). `owned` may hold the
  /// bytes that the sections lie in. @throws corrupt_error
  manifest_items(const section_reader& names, const section_reader& definitions, std::size_t items,
                 std::int32_t world_size, std::string_view file, std::vector<std::byte> owned = {})
      : owned_(std::move(owned)),
        file_(file),
        names_begin_(names.begin()),
        definitions_begin_(definitions.begin()),
        names_(table(names, 0, (items + names_in_block - 1) / names_in_block)),
        definitions_(table(definitions, sizeof(std::uint32_t), count_of(definitions))),
        items_(items),
        world_size_(world_size),
        max_shared_(max_shared_progressions + definitions.bytes().size()) {
    for (std::size_t b = 1; b < names_.size(); ++b)
      if (!(first_name(b - 1) < first_name(b))) bad(names_begin_ + names_.begin_of(b), not_sorted, {});
  }

  [[nodiscard]] std::size_t size() const noexcept override { return items_; }
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const override {
    std::size_t low = 0;
    std::size_t high = names_.size();
    while (low < high) {
      const auto middle = (low + high) / 2;
      if (first_name(middle) <= name)
        low = middle + 1;
      else
        high = middle;
    }
    if (low == 0) return std::nullopt;
    std::optional<std::size_t> found;
    for_each_in(low - 1, [&](std::size_t i, std::string_view n, std::uint64_t) {
      if (n == name) found = i;
    });
    return found;
  }
  [[nodiscard]] stored_item make(std::size_t index) const override {
    stored_item item;
    std::uint64_t definition = 0;
    for_each_in(index / names_in_block, [&](std::size_t i, std::string_view n, std::uint64_t d) {
      if (i == index) item.name = n, definition = d;
    });
    define(item, definition);
    if (shared_.fetch_add(item.chunks.progressions()) > max_shared_)
      bad(definitions_begin_, "the items of a manifest share too many progressions", item.name);
    return item;
  }
  void for_each_name(const stored_name_visitor& visit) const override {
    for (std::size_t b = 0; b < names_.size(); ++b)
      for_each_in(b, [&](std::size_t i, std::string_view n, std::uint64_t) { visit(i, n); });
  }
  /// The codecs that definitions name, each once, ascending. O(definitions). @throws corrupt_error
  [[nodiscard]] std::vector<std::uint16_t> codecs() const {
    std::vector<std::uint16_t> found;
    for (std::size_t i = 0; i < definitions_.size(); ++i)
      guarded(definitions_begin_ + definitions_.begin_of(i), [&] {
        compact_reader in(definitions_.part(i));
        static_cast<void>(in.take(4));
        found.push_back(static_cast<std::uint16_t>(in.number(UINT16_MAX)));
      });
    detail::sort(found);
    detail::erase_repeated(found);
    return found;
  }
  /// Definitions are written where they are first used; none is there for nobody. @throws corrupt_error
  void check_definitions() const {
    std::uint64_t used = 0;
    for (std::size_t b = 0; b < names_.size(); ++b)
      for_each_in(b, [&](std::size_t, std::string_view n, std::uint64_t d) {
        if (d > used) bad(names_begin_ + names_.begin_of(b), "a definition is used before its turn", n);
        used = std::max(used, d + 1);
      });
    if (used != definitions_.size()) bad(definitions_begin_, "a definition is used by no item", {});
  }

 private:
  static constexpr const char* not_sorted = "the names in a manifest are not sorted, or one is there twice";

  [[noreturn]] void bad(std::uint64_t at, std::string_view what, std::string_view item) const {
    fail(error_id::corrupt_bad_value, what,
         {.item = std::string(item), .file = file_, .offset = static_cast<std::int64_t>(at)});
  }
  static std::uint64_t count_of(const section_reader& definitions) {
    const auto bytes = definitions.bytes();
    if (bytes.size() < sizeof(std::uint32_t)) definitions.bad("a section of a manifest is too short");
    return column_at<std::uint32_t>(bytes.data(), 0);
  }
  static offset_table table(const section_reader& in, std::size_t begin, std::uint64_t count) {
    if (count > (in.bytes().size() - begin) / (sizeof(std::uint32_t) + 1))
      in.bad("a section of a manifest is too short for its table");
    const offset_table made(in.bytes(), begin, count);
    if (made.problem()) in.bad("the table of a section of a manifest is wrong");
    return made;
  }
  template <class Body>
  void guarded(std::uint64_t begin, Body&& body) const {
    try {
      body();
    } catch (const wire_error& e) {
      bad(begin + e.offset, std::string("a manifest cannot be read: ") + e.what(), {});
    }
  }
  [[nodiscard]] std::string_view first_name(std::size_t block) const {
    std::string_view name;
    guarded(names_begin_ + names_.begin_of(block), [&] {
      compact_reader in(names_.part(block));
      name = in.text(static_cast<std::size_t>(in.number(max_item_name)));
    });
    return name;
  }
  /// visit(index, name, definition) for the items of a block.
  template <class Visit>
  void for_each_in(std::size_t block, Visit&& visit) const {
    guarded(names_begin_ + names_.begin_of(block), [&] {
      compact_reader in(names_.part(block));
      const auto first = block * names_in_block;
      const auto last = std::min(first + names_in_block, items_);
      std::string name;
      for (auto i = first; i < last; ++i) {
        const auto kept = i == first ? 0 : static_cast<std::size_t>(in.number(name.size()));
        const auto rest = in.text(static_cast<std::size_t>(in.number(max_item_name - kept)));
        // What is kept is all that the two names begin with, and the new one is greater.
        if (i != first && (rest.empty() || (kept < name.size() && !(as_byte(name[kept]) < as_byte(rest[0])))))
          in.fail_here(not_sorted);
        name.resize(kept);
        name.append(rest);
        const auto definition = in.number();
        if (definition >= definitions_.size())
          in.fail_here("an item refers to a definition that does not exist");
        visit(i, std::string_view(name), definition);
      }
      in.finish();
      if (block + 1 < names_.size() && !(name < first_name(block + 1))) in.fail_here(not_sorted);
    });
  }
  static unsigned char as_byte(char c) noexcept { return static_cast<unsigned char>(c); }

  void define(stored_item& item, std::uint64_t definition) const {
    const auto part = definitions_.part(static_cast<std::size_t>(definition));
    const auto begin = definitions_begin_ + definitions_.begin_of(static_cast<std::size_t>(definition));
    guarded(begin, [&] {
      compact_reader in(part);
      const auto kind = in.byte();
      const auto type = in.byte();
      const auto flags = in.byte();
      const auto dimensions = in.byte();
      if (kind > static_cast<std::uint8_t>(item_kind::bytes) ||
          type > static_cast<std::uint8_t>(last_dtype) || flags > 1 || dimensions > extents::max_rank)
        in.fail_here("an item has an unknown kind, dtype or flag, or too many dimensions");
      item.codec = static_cast<std::uint16_t>(in.number(UINT16_MAX));
      item.kind = static_cast<item_kind>(kind);
      item.type = static_cast<dtype>(type);
      item.per_rank = flags != 0;
      item.global = extents::filled(dimensions, 0);
      for (int d = 0; d < dimensions; ++d) item.global.set(d, in.signed_number());
      if (const auto* what = item_problem(item))
        bad(begin, std::string("an item of a manifest ") + what, item.name);
      item.chunks = decode_chunk_set(in, item.global, world_size_);
      in.finish();
      if (const auto* what = chunks_problem(item, world_size_))
        bad(begin, std::string("an item of a manifest ") + what, item.name);
    });
  }

  std::vector<std::byte> owned_;
  std::string file_;
  std::uint64_t names_begin_;
  std::uint64_t definitions_begin_;
  offset_table names_;
  offset_table definitions_;
  std::size_t items_;
  std::int32_t world_size_;
  std::uint64_t max_shared_;
  mutable std::atomic<std::uint64_t> shared_{0};  ///< progressions of the items that were made
};

// The records of version 2: columns of runs, then the digests.

inline void put_runs(compact_writer& out, list_view<const std::uint64_t> values) {
  for (std::size_t i = 0; i < values.size();) {
    auto end = i + 1;
    while (end < values.size() && values[end] == values[i]) ++end;
    out.number(static_cast<std::uint64_t>(end - i)).number(values[i]);
    i = end;
  }
}
inline void get_runs(compact_reader& in, list_view<std::uint64_t> values) {
  std::optional<std::uint64_t> before;
  for (std::size_t i = 0; i < values.size();) {
    const auto count = static_cast<std::size_t>(in.number(values.size() - i));
    const auto value = in.number();
    if (count == 0 || value == before) in.fail_here("a run is empty, or not all of its kind");
    std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(i), count, value);
    i += count;
    before = value;
  }
}

[[nodiscard]] inline std::vector<std::byte> encode_records(const std::vector<manifest_record>& records) {
  compact_writer out;
  std::vector<std::uint64_t> column(records.size());
  const auto put = [&](auto&& value) {
    for (std::size_t r = 0; r < records.size(); ++r)
      column[r] = static_cast<std::uint64_t>(value(records[r]));
    put_runs(out, column);
  };
  put([](const manifest_record& r) { return r.step; });
  put([](const manifest_record& r) { return r.attempt; });
  put([](const manifest_record& r) { return r.files; });
  put([](const manifest_record& r) { return r.data_bytes; });
  for (const auto& r : records) out.raw(std::as_bytes(std::span(&r.record_digest, 1)));
  return out.take();
}
[[nodiscard]] inline std::vector<manifest_record> decode_records(const section_reader& section,
                                                                 std::int32_t world_size) {
  if (world_size < 1) section.bad("the world size of a manifest is not positive");
  const auto world = static_cast<std::size_t>(world_size);
  if (world > section.bytes().size() / sizeof(std::uint64_t))
    section.bad("a section of a manifest is too short for its columns");
  std::vector<manifest_record> records(world);
  try {
    compact_reader in(section.bytes());
    std::vector<std::uint64_t> column(world);
    const auto get = [&](std::uint64_t max_value, auto&& take) {
      get_runs(in, column);
      for (std::size_t r = 0; r < world; ++r) {
        if (column[r] > max_value) in.fail_here("a number is higher than allowed");
        take(records[r], column[r]);
      }
    };
    get(INT64_MAX, [](auto& r, std::uint64_t v) { r.step = static_cast<std::int64_t>(v); });
    get(UINT64_MAX, [](auto& r, std::uint64_t v) { r.attempt = v; });
    get(UINT32_MAX, [](auto& r, std::uint64_t v) { r.files = static_cast<std::uint32_t>(v); });
    get(UINT64_MAX, [](auto& r, std::uint64_t v) { r.data_bytes = v; });
    const auto digests = in.take(world * sizeof(std::uint64_t));
    for (std::size_t r = 0; r < world; ++r) {
      records[r].rank = static_cast<std::int32_t>(r);
      records[r].record_digest = column_at<std::uint64_t>(digests.data(), r);
    }
    in.finish();
  } catch (const wire_error& e) {
    section.bad(std::string("the records of a manifest cannot be read: ") + e.what());
  }
  return records;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
