// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/extents.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/storage/load/byte_box.hpp>
#include <cairn/storage/load/load_work.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cairn {
inline namespace v1 {

class stored_checkpoint;
struct block_pass;

namespace detail {

/// A planned read with the place of its bytes.
struct planned_want {
  std::int32_t rank = 0;
  const record_item* stored = nullptr;
  std::uint64_t bytes = 0;  ///< of the stored item
  load_want want;           ///< its target is not known yet
  const stored_item* item = nullptr;
  chunk stored_box;
  bool for_others = false;  ///< nothing of it goes anywhere here
};

[[nodiscard]] planned_want place_want(const stored_checkpoint& checkpoint, const read_item& item);

/// Adds the stored items of these ranks as wanted by others. @pre their records are there
void add_for_others(const stored_checkpoint& checkpoint, const std::vector<std::int32_t>& ranks,
                    vector<planned_want>& wants);

/// Gives the destination of a bytes item the stored size. @throws usage_error where it has a fixed, other
/// size.
void resize_for(const state_dict& state, const read_item& item, std::uint64_t bytes);

/// Says that a bytes item, the plan's of this number, gets another size, if it does: what its memory held is lost then.
void forget_resized(block_pass& pass, const state_dict& state, const read_item& item, std::uint32_t planned,
                    std::uint64_t bytes);

[[nodiscard]] load_file file_of(const stored_checkpoint& checkpoint, std::int32_t rank, std::uint32_t file);
[[nodiscard]] load_item item_of(const stored_checkpoint& checkpoint, std::int32_t rank,
                                const record_item& stored, std::size_t file);

/// Sorts planned reads by file and offset, and joins those of the same stored item.
[[nodiscard]] load_work gather_work(const stored_checkpoint& checkpoint, vector<planned_want>& wants);

/// Every block of every file. @pre all records are there.
[[nodiscard]] load_work all_work(const stored_checkpoint& checkpoint);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/load/planned_want.ipp>
#endif
