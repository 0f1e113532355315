// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_layout.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// Checks that each item's memory has the size of its place in the image. @throws usage_error
/// (usage_size_changed). Cost O(items).
inline void check_sources(const image_layout& layout, detail::list_view<const item_source> sources) {
  for (const auto& place : layout.items) {
    if (place.item >= sources.size())
      fail(
          error_id::usage_size_changed, "there are fewer sources than items in the image",
          {.expected = std::to_string(place.item + std::uint64_t{1}), .got = std::to_string(sources.size())});
    const auto& source = sources[place.item];
    const auto elements = static_cast<std::uint64_t>(source.view.shape.volume());
    bool fits = source.view.bytes() == place.bytes;
    if (source.cast != nullptr) {
      // Casts are between whole bytes; see detail::copy_item for the limit.
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

/// For engines and stagers that read with the CPU. @throws usage_error (usage_bad_option).
inline void check_host_readable(const item_source& source) {
  if (source.view.space == memory_space::device)
    fail(error_id::usage_bad_option,
         "a tensor lies in device memory, which this stager cannot read; use one that copies from devices");
}

namespace detail {

/// Walks through image bytes [begin, end) in order: calls one of `header(span, at)`, `item(placement, first,
/// last)` (range within the stored item) and `zeros(at, bytes)` for each piece; `at` are positions in the
/// image.
template <class Header, class Item, class Zeros>
void for_each_piece(const image_layout& layout, std::uint64_t begin, std::uint64_t end, Header&& header,
                    Item&& item, Zeros&& zeros) {
  const auto& segments = layout.segments;
  const auto& items = layout.items;
  // Headers and items that end at or before `begin` are passed over.
  auto segment = std::partition_point(segments.begin(), segments.end(),
                                      [&](const auto& s) { return s.begin + s.header.size() <= begin; });
  auto place = std::partition_point(items.begin(), items.end(),
                                    [&](const auto& p) { return p.begin + p.bytes <= begin; });
  std::uint64_t at = begin;
  while (at < end) {
    while (place != items.end() && place->begin + place->bytes <= at) ++place;
    while (segment != segments.end() && segment->begin + segment->header.size() <= at) ++segment;
    std::uint64_t stop = end;
    if (segment != segments.end() && segment->begin <= at) {
      stop = std::min(end, segment->begin + segment->header.size());
      header(std::span<const std::byte>(segment->header).subspan(at - segment->begin, stop - at), at);
    } else if (place != items.end() && place->begin <= at) {
      stop = std::min(end, place->begin + place->bytes);
      item(*place, at - place->begin, stop - place->begin);
    } else {
      if (segment != segments.end()) stop = std::min(stop, segment->begin);
      if (place != items.end()) stop = std::min(stop, place->begin);
      zeros(at, stop - at);
    }
    at = stop;
  }
}

/// Copies bytes [begin, end) of a stored item of `bytes` bytes from its source, cast and packed, by `copy(to,
/// from, bytes)` where no cast is needed. Any range, also one that cuts elements.
template <class Copy>
void copy_item(const item_source& source, std::uint64_t bytes, std::uint64_t begin, std::uint64_t end,
               std::byte* out, Copy&& copy) {
  if (begin == end) return;
  const tensor_view& view = source.view;
  if (source.cast == nullptr) {
    for_each_run(view, begin, end, [&](const std::byte* first, std::uint64_t length, std::uint64_t at) {
      copy(out + (at - begin), first, length);
    });
    return;
  }
  const std::uint64_t from_size = bits_of(view.type) / 8;
  const std::uint64_t to_size = bytes / static_cast<std::uint64_t>(view.shape.volume());
  const auto cast_range = [&](std::uint64_t first_element, std::uint64_t last_element, std::byte* to) {
    for_each_run(view, first_element * from_size, last_element * from_size,
                 [&](const std::byte* first, std::uint64_t length, std::uint64_t at) {
                   source.cast(first, to + (at / from_size - first_element) * to_size, length / from_size);
                 });
  };
  // Elements that the range cuts go through a small buffer.
  std::array<std::byte, 16> element{};
  const auto cut = [&](std::uint64_t index, std::uint64_t from, std::uint64_t to, std::byte* into) {
    cast_range(index, index + 1, element.data());
    std::memcpy(into, element.data() + from, to - from);
  };
  const std::uint64_t first = begin / to_size;
  const std::uint64_t last = end / to_size;
  if (first == last) return cut(first, begin % to_size, end % to_size, out);
  std::uint64_t whole = first;
  std::byte* to = out;
  if (begin % to_size != 0) {
    cut(first, begin % to_size, to_size, to);
    to += to_size - begin % to_size;
    ++whole;
  }
  cast_range(whole, last, to);
  if (end % to_size != 0) cut(last, 0, end % to_size, to + (last - whole) * to_size);
}

inline void plain_copy(std::byte* to, const std::byte* from, std::uint64_t bytes) noexcept {
  std::memcpy(to, from, bytes);
}

/// Copies image bytes [begin, begin + out.size()) from headers and sources.
inline void gather_image(const image_layout& layout, list_view<const item_source> sources,
                         std::uint64_t begin, std::span<std::byte> out) {
  for_each_piece(
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
