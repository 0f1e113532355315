// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/tensor_view.hpp>
#include <cairn/stage/image_sources.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/list_view.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace cairn {
inline namespace v1 {

CAIRN_BODY void check_sources(const image_layout& layout, detail::list_view<const item_source> sources) {
  for (const auto& place : layout.items) {
    if (place.item >= sources.size())
      fail(
          error_id::usage_size_changed, "there are fewer sources than items in the image",
          {.expected = std::to_string(place.item + std::uint64_t{1}), .got = std::to_string(sources.size())});
    const auto& source = sources[place.item];
    const auto elements = static_cast<std::uint64_t>(source.view.shape.volume());
    bool fits = source.view.bytes() == place.bytes;
    if (source.cast != nullptr) {
      // Casts are between elements of whole bytes, at most 16: detail::copy_item has room for one.
      const bool castable = bits_of(source.view.type) % 8 == 0;
      fits = elements == 0 ? place.bytes == 0
                           : castable && place.bytes % elements == 0 && place.bytes / elements <= 16;
    }
    if (!fits || (place.bytes != 0 && source.view.data == nullptr))
      fail(error_id::usage_size_changed,
           "the memory of item number " + std::to_string(place.item) +
               " of the plan does not fit its place in the image",
           {.expected = std::to_string(place.bytes), .got = std::to_string(source.view.bytes())});
  }
}

CAIRN_BODY void check_host_readable(const item_source& source) {
  if (source.view.space == memory_space::device)
    fail(error_id::usage_bad_option,
         "a tensor lies in device memory, which this stager cannot read; use one that copies from devices");
}

namespace detail {

CAIRN_BODY void gather_image(const image_layout& layout, list_view<const item_source> sources,
                             std::uint64_t begin, std::span<std::byte> out) {
  for_each_image_range(
      layout, begin, begin + out.size(),
      [&](std::span<const std::byte> bytes, std::uint64_t at) {
        std::memcpy(out.data() + (at - begin), bytes.data(), bytes.size());
      },
      [&](const item_placement& place, std::uint64_t first, std::uint64_t last) {
        copy_item(sources[place.item], place.bytes, first, last, out.data() + (place.begin + first - begin),
                  plain_copy);
      },
      [&](std::uint64_t at, std::uint64_t bytes) { std::memset(out.data() + (at - begin), 0, bytes); });
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
