// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/storage/safetensors_header.hpp>
#include <cairn/storage/stored_checkpoint.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Checks that the header of a data file says what the record says of its items, and holds nothing else: not
/// one bit of it may differ from what the writer makes of its entries. @throws corrupt_error
inline void check_header(std::span<const std::byte> bytes, const stored_record& r, const load_file& file) {
  auto header = decode_safetensors_header(bytes, file.bytes, file.key);
  for (const auto& e : header.entries) {
    const chunk box{e.sharded ? e.saved_offsets : extents::filled(e.shape.rank(), 0), e.shape};
    const auto* item = r.find(key_of(e.key, box));
    if (item == nullptr && e.type == dtype::u8 && e.shape.rank() == 1)
      item = r.find(key_of(e.key, whole({})));
    if (item == nullptr || item->file != file.index || item->offset != bytes.size() + e.begin ||
        item->bytes != e.end - e.begin)
      fail(error_id::corrupt_bad_value,
           "the header of a data file says something else of an item than the record",
           {.item = e.key, .file = file.key, .offset = static_cast<std::int64_t>(bytes.size() + e.begin)});
  }
  const auto& items = r.content().items;
  const auto count =
      std::count_if(items.begin(), items.end(), [&](const auto& i) { return i.file == file.index; });
  if (static_cast<std::size_t>(count) != header.entries.size())
    fail(error_id::corrupt_bad_value, "the header of a data file has another number of items than the record",
         {.file = file.key, .expected = std::to_string(count), .got = std::to_string(header.entries.size())});
  if (std::any_of(header.entries.begin(), header.entries.end(), [](const auto& e) { return e.sharded; }))
    std::erase_if(header.metadata, [](const auto& pair) {  // the encoder adds these
      return (pair.first == "DCP_VERSION" && pair.second == "1.0") ||
             (pair.first == "format" && pair.second == "pt");
    });
  const auto again = encode_safetensors_header(header, image_alignment);
  const auto differs = std::mismatch(again.begin(), again.end(), bytes.begin(), bytes.end());
  if (differs.first != again.end() || differs.second != bytes.end())
    fail(error_id::corrupt_bad_value, "the header of a data file is not as it was written",
         {.file = file.key, .offset = differs.first - again.begin()});
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
