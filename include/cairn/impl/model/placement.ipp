// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/extents.hpp>
#include <cairn/model/placement.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace cairn {
inline namespace v1 {

CAIRN_BODY std::vector<chunk> boxes_of_range(const extents& shape, std::int64_t begin, std::int64_t length) {
  std::vector<chunk> boxes;
  const std::int64_t end = begin + length;
  for (std::int64_t at = begin; at < end;) {
    // The outermost dimension along which a whole slab starts here and fits.
    std::int64_t slab = 1;
    int d = shape.rank() - 1;
    for (std::int64_t next = slab; d > 0; --d, slab = next) {
      next = slab * shape[d];
      if (at % next != 0 || end - at < next) break;
    }
    chunk box{extents::filled(shape.rank(), 0), shape};
    std::int64_t rest = at;
    for (int k = shape.rank() - 1; k >= 0; --k) {
      const std::int64_t index = rest % shape[k];
      rest /= shape[k];
      if (k > d) continue;
      box.offsets.set(k, index);
      box.sizes.set(k, 1);
    }
    if (shape.rank() > 0) box.sizes.set(d, std::min((end - at) / slab, shape[d] - box.offsets[d]));
    at += box.volume();
    boxes.push_back(box);
  }
  return boxes;
}

}  // namespace v1
}  // namespace cairn
