// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/record.hpp>
#include <cairn/storage/safetensors/safetensors_entry.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/storage/safetensors/safetensors_layout.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace cairn {
inline namespace v1 {

CAIRN_BODY std::string file_key(std::string_view name, bool is_per_rank, int rank) {
  return is_per_rank ? per_rank_key(name, rank) : std::string(name);
}

namespace detail {

[[nodiscard]] inline bool copied_early(const write_item& i, std::uint64_t bytes) noexcept {
  return i.kind != item_kind::tensor || i.flags.per_rank || i.flags.copy_now || bytes < always_copied_below;
}

}  // namespace detail

CAIRN_BODY image_layout safetensors_layout(const save_plan& plan, std::span<const std::uint64_t> item_bytes,
                                           int rank, bool frozen_apart) {
  const auto count = plan.items.size();
  if (item_bytes.size() != count || count > UINT32_MAX)
    fail(error_id::usage_bad_option, "a layout needs one size for each item of the plan",
         {.expected = std::to_string(count), .got = std::to_string(item_bytes.size())});

  // The sort key: file, alignment, early before late, order of the plan.
  struct place {
    std::uint64_t order;
    std::uint32_t item;
  };
  detail::vector<place> order;
  order.reserve(count);
  constexpr auto frozen_files_from = std::uint64_t{1} << 32;
  std::unordered_map<std::string_view, std::uint64_t> boxes_before;
  boxes_before.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto& item = plan.items[i];
    // Frozen ones come last, so that what is left without them is the beginning of the image.
    const auto file = boxes_before[item.name]++ + (frozen_apart && item.flags.frozen ? frozen_files_from : 0);
    const auto in_file =
        detail::alignment_class(item.type) * 2U + (detail::copied_early(item, item_bytes[i]) ? 0U : 1U);
    order.push_back({file * 16 + in_file, i});
  }
  detail::sort(order, [](const place& a, const place& b) { return a.order < b.order; });
  std::size_t files = 0;
  for (std::size_t i = 0; i < order.size(); ++i)
    if (i == 0 || order[i].order / 16 != order[i - 1].order / 16) ++files;

  image_layout image;
  image.segments.reserve(files);
  image.items.reserve(count);
  for (std::size_t next = 0; next < order.size();) {
    const auto file = order[next].order / 16;
    const auto first = image.items.size();
    safetensors_header header;
    if (files == 1) header.entries.reserve(count);
    std::uint64_t position = 0;
    for (; next < order.size() && order[next].order / 16 == file; ++next) {
      const auto i = order[next].item;
      const auto& item = plan.items[i];
      const auto bytes = item_bytes[i];
      auto key = file_key(item.name, item.flags.per_rank, rank);
      item_placement at;
      at.item = i;
      at.segment = static_cast<std::uint32_t>(image.segments.size());
      at.begin = position;  // the header's length is added below
      at.bytes = bytes;
      at.first_block = image.blocks;
      at.key = key_of(key, item.box);
      at.early = detail::copied_early(item, bytes);
      image.items.push_back(at);
      image.blocks += block_count(bytes);

      safetensors_entry entry;
      entry.key = std::move(key);
      entry.type = item.type;
      entry.begin = position;
      if (__builtin_add_overflow(position, bytes, &position) || position > INT64_MAX)
        fail(error_id::usage_overflow, "the items of one file exceed 2^63 bytes", {.item = item.name});
      entry.end = position;
      if (item.kind == item_kind::bytes) {
        entry.shape = extents{bytes};
      } else {
        entry.shape = item.box.sizes;
        entry.saved_offsets = item.box.offsets;
        entry.global_shape = item.global;
        entry.sharded =
            item.kind == item_kind::tensor && !item.flags.per_rank && !(item.box == whole(item.global));
      }
      header.entries.push_back(std::move(entry));
    }
    image_segment segment;
    segment.begin = image.bytes;
    segment.frozen = file >= frozen_files_from;
    segment.header = encode_safetensors_header(header, image_alignment);
    segment.bytes = segment.header.size() + position;
    for (auto i = first; i < image.items.size(); ++i)
      image.items[i].begin += segment.begin + segment.header.size();
    image.bytes = detail::align_up(segment.begin + segment.bytes, image_alignment);
    image.segments.push_back(std::move(segment));
  }
  return image;
}

CAIRN_BODY record record_of(const image_layout& image, std::span<const std::uint64_t> digests) {
  record r;
  r.files.reserve(image.segments.size());
  for (const auto& s : image.segments) r.files.push_back({s.bytes});
  r.items.reserve(image.items.size());
  for (const auto& i : image.items) {
    const auto blocks = digests.subspan(static_cast<std::size_t>(i.first_block),
                                        static_cast<std::size_t>(block_count(i.bytes)));
    r.items.push_back({i.key, i.segment, i.begin - image.segments[i.segment].begin, i.bytes,
                       digest_of_blocks(blocks), i.first_block});
  }
  r.blocks.assign(digests.begin(), digests.begin() + static_cast<std::ptrdiff_t>(image.blocks));
  return r;
}

}  // namespace v1
}  // namespace cairn
