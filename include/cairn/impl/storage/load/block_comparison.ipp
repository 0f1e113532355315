// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/known_blocks.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/storage/load/block_comparison.hpp>
#include <cairn/storage/load/byte_box.hpp>
#include <cairn/storage/load/load_delivery.hpp>
#include <cairn/storage/load/load_work.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/parallel.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The bytes of the stored item before the end of a block.
[[nodiscard]] inline std::uint64_t end_of_block(const load_item& item, std::uint64_t block) noexcept {
  return std::min((block + 1) * digest_block_bytes, item.bytes);
}

CAIRN_BODY block_comparison::block_comparison(const load_work& work, const load_plan& plan, block_pass& pass,
                                              deadline until)
    : work_(work), pass_(pass), changes_(work.wants.size(), true) {
  parts_.reserve(work.wants.size());
  for (const auto& item : work.items)
    for (std::size_t k = 0; k < item.wants; ++k)
      parts_.push_back(part_of(item, work.wants[item.first_want + k], plan));
  if (pass.what == block_pass::action::compare) compare(until);
  for (std::size_t k = 0; k < parts_.size(); ++k)
    if (changes_[k]) pass.changed.push_back(work.wants[k].planned);
}

CAIRN_BODY filled_memory block_comparison::part_of(const load_item& item, const load_want& want,
                                                   const load_plan& plan) const {
  filled_memory part;
  const auto& target = want.target;
  digest_stream what;
  what.put(item.name).put(item.kind).put(item.type).put(item.per_rank).put(item.bytes);
  what.put(reinterpret_cast<std::uintptr_t>(want.cast)).put(target.type).put(target.space).put(target.device);
  what.put(reinterpret_cast<std::uintptr_t>(target.data)).put(target.shape.rank());
  for (int d = 0; d < target.shape.rank(); ++d)
    what.put(target.shape[d]).put(target.strides[static_cast<std::size_t>(d)]);
  digest_stream where;
  const auto& wanted = plan.items[want.planned].box;
  for (const auto* box : {&item.box, &wanted}) {
    where.put(box->sizes.rank());
    for (int d = 0; d < box->sizes.rank(); ++d) where.put(box->offsets[d]).put(box->sizes[d]);
  }
  part.part = {what.value(), where.value()};
  part.memory = range_of(target);
  part.first_block = want.box.position(0) / digest_block_bytes;
  const auto last = want.box.position(want.box.bytes() - 1) / digest_block_bytes;
  part.digests.assign(item.digests + part.first_block, item.digests + last + 1);
  return part;
}

CAIRN_BODY void block_comparison::compare(deadline until) {
  std::vector<const filled_memory*> before(parts_.size(), nullptr);
  for (std::size_t k = 0; k < parts_.size() && !pass_.hash_memory; ++k)
    before[k] = pass_.known->find(pass_.state, parts_[k].part);
  for (std::uint32_t i = 0; i < work_.items.size(); ++i) {
    const auto& item = work_.items[i];
    auto first = UINT64_MAX;
    std::uint64_t last = 0;
    for (std::size_t k = 0; k < item.wants; ++k) {
      const auto& part = parts_[item.first_want + k];
      first = std::min(first, part.first_block);
      last = std::max(last, part.first_block + part.digests.size());
    }
    for (auto b = first; b < last; ++b) {
      bool wanted = false;
      bool equal = true;
      for (std::size_t k = item.first_want; k < item.first_want + item.wants; ++k) {
        const auto& box = work_.wants[k].box;
        if (box.before(b * digest_block_bytes) == box.before(end_of_block(item, b))) continue;
        wanted = true;
        equal = equal && before[k] != nullptr &&
                before[k]->digests[static_cast<std::size_t>(b - parts_[k].first_block)] == item.digests[b];
      }
      if (!wanted) continue;
      ++pass_.blocks;
      if (!equal) blocks_.push_back({i, b});
    }
  }
  if (pass_.hash_memory) {
    std::vector<char> held(blocks_.size(), 0);
    std::vector<std::vector<std::byte>> rooms(static_cast<std::size_t>(load_threads()));
    parallel_for(blocks_.size(), rooms.size(), [&](std::size_t i, std::size_t thread) {
      if (until.passed()) fail(error_id::timeout_load, "the memory of the state was not hashed in time");
      held[i] = is_in_memory(work_, blocks_[i], rooms[thread]) ? 1 : 0;
    });
    std::size_t left = 0;
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      if (held[i] == 0) blocks_[left++] = blocks_[i];
    blocks_.resize(left);
  }
  pass_.equal = pass_.blocks - blocks_.size();
  changes_.assign(changes_.size(), false);
  for (const auto& at : blocks_) for_each_want(at, [&](std::size_t k) { changes_[k] = true; });
}

/// Calls each(k) for those that want something of a block.
template <class Each>
void block_comparison::for_each_want(block_place at, Each&& each) const {
  const auto& item = work_.items[at.item];
  for (std::size_t k = item.first_want; k < item.first_want + item.wants; ++k) {
    const auto& box = work_.wants[k].box;
    if (box.before(at.block * digest_block_bytes) != box.before(end_of_block(item, at.block))) each(k);
  }
}

CAIRN_BODY void block_comparison::add(const std::vector<block_place>& blocks) {
  for (const auto& at : blocks)
    for_each_want(at, [&](std::size_t k) {
      if (changes_[k]) return;
      changes_[k] = true;
      pass_.changed.push_back(work_.wants[k].planned);
    });
}

CAIRN_BODY bool block_comparison::is_in_memory(const load_work& work, block_place at,
                                               std::vector<std::byte>& room) {
  const auto& item = work.items[at.item];
  const auto bytes = end_of_block(item, at.block) - at.block * digest_block_bytes;
  for (std::size_t k = item.first_want; k < item.first_want + item.wants; ++k) {
    const auto& want = work.wants[k];
    const auto from = want.box.before(at.block * digest_block_bytes);
    const auto to = want.box.before(end_of_block(item, at.block));
    if (from == to) continue;
    // Only of a whole block is there a digest to compare with.
    if (to - from != bytes || want.cast != nullptr || want.on_device()) return false;
    std::span<const std::byte> held;
    for_each_target(want, from, to, [&](const std::byte* data, std::uint64_t packed, std::uint64_t length) {
      if (length == bytes) {
        held = {data, static_cast<std::size_t>(bytes)};
        return;
      }
      room.resize(static_cast<std::size_t>(digest_block_bytes));
      std::memcpy(room.data() + (packed - from), data, static_cast<std::size_t>(length));
      held = {room.data(), static_cast<std::size_t>(bytes)};
    });
    if (digest(held) != item.digests[at.block]) return false;
  }
  return true;
}

CAIRN_BODY void block_comparison::begin() {
  if (pass_.ready) pass_.ready();
  if (pass_.what == block_pass::action::remember) return;
  vector<memory_range> written;
  for (std::size_t k = 0; k < parts_.size(); ++k)
    if (changes_[k]) written.push_back(parts_[k].memory);
  pass_.known->forget(std::move(written));
}

CAIRN_BODY void block_comparison::finish() {
  // Memory that was saved through a cast may have more than what was stored.
  if (pass_.what == block_pass::action::remember) {
    std::size_t left = 0;
    for (std::size_t k = 0; k < parts_.size(); ++k) {
      if (work_.wants[k].cast != nullptr) continue;
      if (left != k) parts_[left] = std::move(parts_[k]);
      ++left;
    }
    parts_.resize(left);
  }
  pass_.known->put(pass_.state, std::move(parts_));
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
