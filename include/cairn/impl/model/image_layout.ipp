// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/image_layout.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/system/digest.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY std::vector<linked_file> frozen_files(const image_layout& layout) {
  std::vector<linked_file> found;
  for (std::uint32_t k = 0; k < layout.segments.size(); ++k) {
    const auto& segment = layout.segments[k];
    if (!segment.frozen) continue;
    linked_file file{segment.bytes, 0, 0, digest(segment.header)};
    digest_stream contents;
    contents.put(k);
    for (const auto& i : layout.items) {
      if (i.segment != k) continue;
      contents.put(i.key.name).put(i.key.box).put(i.begin - segment.begin).put(i.bytes);
      ++file.items;
    }
    file.contents = contents.value();
    found.push_back(file);
  }
  return found;
}

CAIRN_BODY image_layout with_linked_files(const image_layout& layout) {
  image_layout rest;
  rest.linked = frozen_files(layout);
  const auto segments = layout.segments.size() - rest.linked.size();
  rest.segments.assign(layout.segments.begin(),
                       layout.segments.begin() + static_cast<std::ptrdiff_t>(segments));
  for (const auto& i : layout.items) {
    if (i.segment >= segments) break;
    rest.items.push_back(i);
    rest.blocks = i.first_block + block_count(i.bytes);
  }
  rest.bytes = rest.linked.empty() ? layout.bytes : layout.segments[segments].begin;
  return rest;
}

}  // namespace v1
}  // namespace cairn
