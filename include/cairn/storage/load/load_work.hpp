// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/device_access.hpp>
#include <cairn/model/cast.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/tensor_view.hpp>
#include <cairn/storage/load/byte_box.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Where a part of a stored item goes.
struct load_want {
  byte_box box{0};     ///< which bytes of the stored item
  tensor_view target;  ///< as many elements, in the same order
  cast_function cast = nullptr;
  std::uint64_t from = 1;        ///< bytes of an element in the file, where there is a cast
  std::uint64_t to = 1;          ///< and in memory
  std::uint64_t target_run = 0;  ///< contiguous bytes of the target, from multiples of itself on
  std::uint32_t planned = 0;     ///< index in the items of the plan
  [[nodiscard]] bool on_device() const noexcept { return target.space == memory_space::device; }
};
/// A stored item of which something is wanted, or all of it without a destination.
struct load_item {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;  ///< in the file
  std::uint64_t bytes = 0;
  const std::uint64_t* digests = nullptr;  ///< of its blocks; null: not known, not verified
  std::string_view name;
  std::size_t first_want = 0;
  std::size_t wants = 0;  ///< 0: verify it all
  // Where something is wanted:
  item_kind kind = item_kind::tensor;
  dtype type = dtype::u8;
  bool per_rank = false;
  chunk box;  ///< of the global tensor
};
/// A data file and what its rank's record says of it.
struct load_file {
  std::string key;
  std::uint64_t bytes = 0;
  std::int32_t rank = 0;
  std::uint32_t index = 0;  ///< among the rank's files
};
struct load_work {
  vector<load_file> files;
  vector<load_item> items;  ///< by file, then offset
  vector<load_want> wants;  ///< item after item
};

/// A wanted part with what is derived from its target; `devices`: what writes memory of devices, or null.
/// @throws usage_error where the target does not fit.
[[nodiscard]] inline load_want make_want(const byte_box& box, dtype stored, const tensor_view& target,
                                         cast_function cast, std::string_view name, device_load* devices) {
  load_want w{box, target, cast, 1, 1, 0, 0};
  if (cast != nullptr) {
    w.from = bits_of(stored) / 8;
    w.to = bits_of(target.type) / 8;
  }
  if (w.on_device()) {
    if (devices == nullptr)
      fail(error_id::usage_bad_option,
           "the destination lies in device memory, which the CPU does not write: give the checkpointer a "
           "stager that copies from devices (cuda::pinned_stager), or cuda::device_loads{}",
           {.item = std::string(name)});
    devices->check(target, name);
  }
  const bool casts_packed = cast != nullptr && (granule_of(stored) != 1 || granule_of(target.type) != 1);
  if (casts_packed || w.from == 0 || box.bytes() / w.from * w.to != target.bytes())
    fail(error_id::usage_size_changed,
         "the destination of an item has another size than what is loaded into it",
         {.item = std::string(name),
          .expected = std::to_string(box.bytes()) + " bytes",
          .got = std::to_string(target.bytes()) + " bytes"});
  std::int64_t run = 1;
  for (int d = target.shape.rank() - 1; d >= 0; --d) {
    if (target.shape[d] != 1 && target.strides[static_cast<std::size_t>(d)] != run) break;
    run *= target.shape[d];
  }
  w.target_run = bytes_of(target.type, run);
  if (w.target_run == 0 || run % granule_of(target.type) != 0)
    fail(error_id::usage_bad_shape, "a destination of a packed type must be contiguous",
         {.item = std::string(name)});
  return w;
}

/// A block of a stored item.
struct block_place {
  std::uint32_t item = 0;  ///< index in load_work::items
  std::uint64_t block = 0;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
