// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/extents.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/wire.hpp>

#include <cstdint>
#include <string_view>

namespace cairn {
inline namespace v1 {

CAIRN_BODY item_key key_of(std::string_view file_key, const cairn::chunk& box) {
  wire_writer out;
  out.reserve(2 * (1 + extents::max_rank * sizeof(std::int64_t)));
  encode(out, box.offsets), encode(out, box.sizes);
  return {digest(file_key), digest(out.view())};
}

}  // namespace v1
}  // namespace cairn
