// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/tensor_view.hpp>
#include <cairn/system/list_view.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace cairn {
inline namespace v1 {

/// Checks that each item's memory has the size of its place in the image. @throws usage_error
/// (usage_size_changed). Cost O(items).
void check_sources(const image_layout& layout, detail::list_view<const item_source> sources);

/// For engines and stagers that read with the CPU. @throws usage_error (usage_bad_option).
void check_host_readable(const item_source& source);

namespace detail {

/// Walks through image bytes [begin, end) in order: calls one of `header(span, at)`, `item(placement, first,
/// last)` (range within the stored item) and `zeros(at, bytes)` for each piece; `at` are positions in the
/// image.
template <class Header, class Item, class Zeros>
void for_each_image_range(const image_layout& layout, std::uint64_t begin, std::uint64_t end, Header&& header,
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
void gather_image(const image_layout& layout, list_view<const item_source> sources, std::uint64_t begin,
                  std::span<std::byte> out);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/stage/image_sources.ipp>
#endif
