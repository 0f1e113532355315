// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_layout.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/storage/commit/record_collection.hpp>
#include <cairn/storage/load/load_work.hpp>
#include <cairn/storage/load/stored_checkpoint.hpp>
#include <cairn/storage/load/stored_record.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/storage/safetensors/shared_file_plan.hpp>
#include <cairn/system/algorithm.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Checks that every bit of a header is what the writer makes of its entries. @throws corrupt_error
inline void check_encoding(safetensors_header header, std::span<const std::byte> bytes,
                           const load_file& file) {
  if (detail::any_of(header.entries, [](const auto& e) { return e.sharded; }))
    detail::erase_if(header.metadata, [](const auto& pair) {  // the encoder adds these
      return (pair.first == "DCP_VERSION" && pair.second == "1.0") ||
             (pair.first == "format" && pair.second == "pt");
    });
  auto again = encode_safetensors_header(header, image_alignment);
  widen_safetensors_header(again, bytes.size());  // files that ranks share have more spaces
  const auto differs = std::mismatch(again.begin(), again.end(), bytes.begin(), bytes.end());
  if (differs.first != again.end() || differs.second != bytes.end())
    fail(error_id::corrupt_bad_value, "the header of a data file is not as it was written",
         {.file = file.key, .offset = differs.first - again.begin()});
}

/// Whether the manifest gives a tensor the dtype and the global shape that an entry gives it.
[[nodiscard]] inline bool is_as_in_manifest(const safetensors_entry& e, const metadata& m) {
  std::string_view name = e.key;
  const auto digits = name.find_last_not_of("0123456789") + 1;
  const bool per_rank = digits < name.size() && name.substr(0, digits).ends_with("@rank");
  if (per_rank) name = name.substr(0, digits - 5);
  const auto* item = m.items.find(name);
  if (item == nullptr || item->per_rank != per_rank || item->type != e.type) return false;
  // The manifest does not say how long bytes are: their tensor is whole.
  const auto& whole = item->kind == item_kind::bytes ? e.shape : item->global;
  return (e.sharded ? e.global_shape : e.shape) == whole;
}

/// Checks that the header of a data file says what the manifest and the record say of its items, and holds nothing else:
/// not one bit of it may differ from what the writer made of them. @throws corrupt_error
/// @pre the record of the file's rank is there
inline void check_header(std::span<const std::byte> bytes, const stored_checkpoint& checkpoint,
                         const load_file& file) {
  const auto& r = checkpoint.record_of(file.rank);
  auto header = decode_safetensors_header(bytes, file.bytes, file.key);
  for (const auto& e : header.entries) {
    if (!is_as_in_manifest(e, checkpoint.metadata()))
      fail(error_id::corrupt_bad_value, "the header of a data file and the manifest disagree about an item",
           {.item = e.key, .file = file.key});
    const chunk box{e.sharded ? e.saved_offsets : extents::filled(e.shape.rank(), 0), e.shape};
    const auto* item = r.find(key_of(e.key, box));
    if (item == nullptr && e.type == dtype::u8 && e.shape.rank() == 1)
      item = r.find(key_of(e.key, whole({})));
    if (item == nullptr || item->file != file.index || item->offset != bytes.size() + e.begin ||
        item->bytes != e.end - e.begin)
      fail(error_id::corrupt_bad_value, "the header of a data file and the record disagree about an item",
           {.item = e.key, .file = file.key, .offset = static_cast<std::int64_t>(bytes.size() + e.begin)});
  }
  const auto& items = r.content().items;
  const auto count =
      std::count_if(items.begin(), items.end(), [&](const auto& i) { return i.file == file.index; });
  if (static_cast<std::size_t>(count) != header.entries.size())
    fail(error_id::corrupt_bad_value, "the header of a data file has another number of items than the record",
         {.file = file.key, .expected = std::to_string(count), .got = std::to_string(header.entries.size())});
  check_encoding(std::move(header), bytes, file);
}

/// The same of a file that several ranks share. @pre the records of all of them are there
inline void check_shared_header(std::span<const std::byte> bytes, const stored_checkpoint& checkpoint,
                                const load_file& file) {
  auto header = decode_safetensors_header(bytes, file.bytes, file.key);
  const auto& place = checkpoint.manifest().placement;
  const auto first = place.first_of(file.rank);
  const auto end = first + sharers_of(place, file.rank, checkpoint.manifest().content.world_size);
  std::vector<const record_item*> items;
  std::uint64_t record_bytes = 0;
  for (auto rank = first; rank < end; ++rank) {
    const auto& r = checkpoint.record_of(rank).content();
    record_bytes += record_header_bytes + record_counts_bytes + 8 * r.files.size() +
                    record_item_bytes * r.items.size() + 8 * r.blocks.size();
    for (const auto& i : r.items)
      if (i.file == file.index) items.push_back(&i);
  }
  detail::sort(items, [](const auto* a, const auto* b) {
    return a->offset != b->offset ? a->offset < b->offset : a->bytes < b->bytes;
  });
  const auto bad = [&](const safetensors_entry& e) {
    fail(error_id::corrupt_bad_value,
         "the header of a data file and the manifest or the records disagree about an item",
         {.item = e.key, .file = file.key, .offset = static_cast<std::int64_t>(bytes.size() + e.begin)});
  };
  // Each entry is filled by items of its key without a hole; empty ones may stand anywhere.
  detail::erase_if(items, [](const auto* i) { return i->bytes == 0; });
  std::size_t next = 0;
  for (const auto& e : header.entries) {
    if (file.index == 0 && e.key == shared_records_name(first)) {
      const extents all{static_cast<std::int64_t>(record_bytes)};
      if (&e != &header.entries.back() || e.type != dtype::u8 || e.shape != all ||
          (e.sharded && e.global_shape != all))
        bad(e);
      continue;
    }
    if (!is_as_in_manifest(e, checkpoint.metadata())) bad(e);
    const chunk box{e.sharded ? e.saved_offsets : extents::filled(e.shape.rank(), 0), e.shape};
    auto at = bytes.size() + e.begin;
    const auto end_of_entry = bytes.size() + e.end;
    for (std::int64_t row = 0; next < items.size() && at < end_of_entry; ++next) {
      const auto& item = *items[next];
      if (item.offset != at || item.bytes > end_of_entry - at) bad(e);
      auto part = box;
      if (item.bytes != e.end - e.begin) {  // some rows of several ranks'
        const auto all = e.shape.rank() == 0 ? 0 : e.shape[0];
        const auto row_bits = all == 0 ? 0 : (e.end - e.begin) * 8 / static_cast<std::uint64_t>(all);
        if (row_bits == 0 || item.bytes * 8 % row_bits != 0) bad(e);
        const auto rows = static_cast<std::int64_t>(item.bytes * 8 / row_bits);
        part.offsets.set(0, box.offsets[0] + row);
        part.sizes.set(0, rows);
        row += rows;
      }
      const bool is_bytes = e.type == dtype::u8 && e.shape.rank() == 1;
      if (!(item.key == key_of(e.key, part)) && !(is_bytes && item.key == key_of(e.key, whole({})))) bad(e);
      at += item.bytes;
    }
    if (at != end_of_entry) bad(e);
  }
  if (next != items.size())
    fail(error_id::corrupt_bad_value, "the header of a data file lacks items that the records name",
         {.file = file.key});
  check_encoding(std::move(header), bytes, file);
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
