// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/state_entry.hpp>
#include <cairn/model/tensor_view.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace cairn {
inline namespace v1 {

CAIRN_BODY tensor_view state_entry::view(std::size_t box) const {
  void* address = address_now();
  if (memory.count != nullptr && memory.count(memory.object) != static_cast<std::uint64_t>(elements))
    fail(error_id::usage_size_changed,
         "a container has another size than when its tensor was added; make a new state_dict after resizing",
         {.item = name,
          .expected = std::to_string(elements),
          .got = std::to_string(memory.count(memory.object))});
  if (strided) {
    tensor_view v = shape_of_memory;
    v.data = static_cast<std::byte*>(address);
    return v;
  }
  std::int64_t before = 0;
  for (std::size_t i = 0; i < box; ++i) before += boxes[i].volume();
  tensor_view v =
      contiguous_view(static_cast<std::byte*>(address) + bytes_of(type, before), type, boxes[box].sizes);
  v.space = shape_of_memory.space;
  v.device = shape_of_memory.device;
  return v;
}

CAIRN_BODY std::span<std::byte> state_entry::bytes() const {
  return {static_cast<std::byte*>(address_now()), static_cast<std::size_t>(memory.count(memory.object))};
}

}  // namespace v1
}  // namespace cairn
