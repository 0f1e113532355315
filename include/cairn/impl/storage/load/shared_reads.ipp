// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/device_access.hpp>
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/rank_set.hpp>
#include <cairn/storage/load/byte_box.hpp>
#include <cairn/storage/load/load_delivery.hpp>
#include <cairn/storage/load/load_engine.hpp>
#include <cairn/storage/load/load_work.hpp>
#include <cairn/storage/load/shared_reads.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/list_view.hpp>
#include <cairn/system/parallel.hpp>
#include <cairn/system/sorted_map.hpp>
#include <cairn/system/streaming_copy.hpp>
#include <cairn/system/vector.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY shared_blocks::shared_blocks(const any_store& store, const load_work& work, shared_wants& wants,
                                        std::int32_t rank, std::uint64_t budget, deadline until,
                                        device_load* devices, const file_holders* holders)
    : store_(store),
      reads_(store_.begin_reads()),
      work_(work),
      wants_(wants),
      rank_(rank),
      budget_(budget),
      until_(until),
      devices_(devices),
      holders_(holders) {}

CAIRN_BODY const rank_set* shared_blocks::holders_of(const load_item& item) const {
  if (holders_ == nullptr) return nullptr;
  return wants_.sets().of(holders_->of.at(static_cast<std::size_t>(work_.files[item.file].rank)));
}
CAIRN_BODY void shared_blocks::leave_to_others(const rank_set& holders, std::vector<part>& parts) const {
  for (auto& p : parts) {
    auto ranks = p.ranks->ranks;
    detail::erase_if(ranks, [&](auto r) { return holders.has(r); });
    p.ranks = wants_.sets().of(std::move(ranks));
    p.mine = p.ranks->has(rank_);
  }
  detail::erase_if(parts, [](const part& p) { return p.ranks->ranks.empty(); });
}

CAIRN_BODY std::vector<shared_read> shared_blocks::find_shared_reads() {
  std::vector<shared_read> reads;
  std::vector<wanted_box> found;
  std::vector<const rank_set*> sets;
  vector<block_place> read_here;  // wanted here, and held here
  parts_.resize(work_.items.size());
  for (std::uint32_t i = 0; i < work_.items.size(); ++i) {
    const auto& item = work_.items[i];
    auto& parts = parts_[i];
    const auto* const holders = holders_of(item);
    const bool held = holders != nullptr && holders->has(rank_);
    if (!item.per_rank)
      wants_.overlapping(item.name, item.box, found);
    else if (holders != nullptr)
      wants_.overlapping(per_rank_key(item.name, work_.files[item.file].rank), item.box, found);
    else
      found.clear();
    for (const auto& f : found) add_part(item, f, parts);
    check_wants(item, parts);
    if (holders != nullptr) leave_to_others(*holders, parts);
    std::uint64_t first = UINT64_MAX;
    std::uint64_t last = 0;
    for (std::size_t k = 0; k < item.wants; ++k) {
      const auto& box = work_.wants[item.first_want + k].box;
      first = std::min(first, box.position(0) / digest_block_bytes);
      last = std::max(last, box.position(box.bytes() - 1) / digest_block_bytes + 1);
    }
    if (held) first = 0, last = (item.bytes + digest_block_bytes - 1) / digest_block_bytes;
    for (auto b = first; b < last; ++b) {
      const block_place at{i, b};
      const bool wanted = wanted_here(item, at);
      if (!wanted && !held) continue;
      if (held && wanted) read_here.push_back(at);
      sets.clear();
      for (const auto& p : parts)
        if (part_bytes(p, at) != 0 && !detail::contains(sets, p.ranks)) sets.push_back(p.ranks);
      const auto* set = sets.empty() ? nullptr : wants_.sets().unite(sets);
      if (holders != nullptr && set == nullptr) continue;
      if (set == nullptr || (holders == nullptr && set->ranks.size() < 2)) {
        alone_.push_back(at);
        continue;
      }
      shared_read u;
      u.holders = holders;
      u.ranks = set;
      u.bytes = end_of(at) - begin_of(at);
      u.index = static_cast<std::uint32_t>(places_.size());
      places_.push_back(at);
      reads.push_back(u);
    }
  }
  assign_readers(reads);
  if (!read_here.empty()) {  // what it reads for others it has by that
    std::vector<std::vector<bool>> for_others(work_.items.size());
    for (const auto& u : reads) {
      const auto at = places_[u.index];
      auto& blocks = for_others[at.item];
      if (u.reader != rank_) continue;
      if (blocks.size() <= at.block) blocks.resize(static_cast<std::size_t>(at.block) + 1);
      blocks[static_cast<std::size_t>(at.block)] = true;
    }
    for (const auto& at : read_here)
      if (const auto& blocks = for_others[at.item];
          at.block >= blocks.size() || !blocks[static_cast<std::size_t>(at.block)])
        alone_.push_back(at);
  }
  count_costs(reads);
  return reads;
}

CAIRN_BODY void shared_blocks::count_costs(std::vector<shared_read>& reads) const {
  for (auto& u : reads) {
    u.cost = 0;
    for_each_part(u, [&](const part& p, std::uint64_t bytes) {
      if (u.reader == rank_ ? p.ranks->ranks.size() > static_cast<std::size_t>(p.mine) : p.mine)
        u.cost += bytes;
    });
  }
}

CAIRN_BODY std::uint64_t shared_blocks::number_of(const shared_read& u) const {
  const auto at = places_[u.index];
  const auto& item = work_.items[at.item];
  digest_stream what;
  what.put(item.name).put(item.box.sizes.rank()).put(at.block);
  for (int d = 0; d < item.box.sizes.rank(); ++d) what.put(item.box.offsets[d]).put(item.box.sizes[d]);
  return what.value();
}

CAIRN_BODY std::vector<std::uint64_t> shared_blocks::lack(const std::vector<shared_read>& reads,
                                                          list_view<const block_place> lacking) {
  const auto lacks = [&](block_place at) {
    const auto found =
        std::lower_bound(lacking.begin(), lacking.end(), at, [](const block_place& a, const block_place& b) {
          return a.item != b.item ? a.item < b.item : a.block < b.block;
        });
    return found != lacking.end() && found->item == at.item && found->block == at.block;
  };
  detail::erase_if(alone_, [&](const block_place& at) { return !lacks(at); });
  std::vector<std::uint64_t> numbers;
  for (const auto& u : reads)
    if (lacks(places_[u.index])) numbers.push_back(number_of(u));
  return numbers;
}

CAIRN_BODY std::vector<block_place> shared_blocks::leave_lacked(std::vector<shared_read>& reads,
                                                                const std::vector<std::uint64_t>& lacked) {
  detail::erase_if(reads, [&](const shared_read& u) {
    return !std::binary_search(lacked.begin(), lacked.end(), number_of(u));
  });
  assign_readers(reads);  // reads for the same ranks are still in one order on all of them
  count_costs(reads);
  std::vector<block_place> left;
  for (const auto& u : reads) left.push_back(places_[u.index]);
  return left;
}

CAIRN_BODY std::vector<bool> shared_blocks::files_of(list_view<const shared_read> reads) const {
  std::vector<bool> files(work_.files.size());
  for (const auto& at : alone_) files[work_.items[at.item].file] = true;
  for (const auto& u : reads)
    if (u.reader == rank_) files[work_.items[places_[u.index].item].file] = true;
  return files;
}

CAIRN_BODY void shared_blocks::add_sets_of(const shared_read& u, std::vector<const rank_set*>& out) const {
  for_each_part(u, [&](const part& p, std::uint64_t) { out.push_back(p.ranks); });
}

CAIRN_BODY read_bundles shared_blocks::read_window(shared_window window, std::span<const std::byte> head) {
  struct own_read {
    block_place at;
    const shared_read* read;
    std::size_t first;  ///< of its positions
  };
  read_bundles bundles;
  detail::sorted_map<const rank_set*, std::uint64_t, by_ranks> sizes;
  std::vector<own_read> own;
  std::vector<std::uint64_t> positions;
  for (const auto& u : window) {
    if (u.reader != rank_) continue;
    own.push_back({places_[u.index], &u, positions.size()});
    for_each_part(u, [&](const part& p, std::uint64_t bytes) {
      auto& size = sizes.try_emplace(p.ranks, head.size()).first->second;
      positions.push_back(size);
      size += bytes;
    });
  }
  detail::sorted_map<const rank_set*, std::byte*, by_ranks> data;
  for (const auto& [set, size] : sizes) {
    if (set->ranks.size() == 1 && set->ranks[0] == rank_) continue;
    auto& bundle = bundles[set] = raw_bytes(static_cast<std::size_t>(size));
    std::copy(head.begin(), head.end(), bundle.data.get());
    data[set] = bundle.data.get();
  }
  const auto before = [](const block_place& a, const block_place& b) {
    return a.item != b.item ? a.item < b.item : a.block < b.block;
  };
  detail::sort(own, [&](const auto& a, const auto& b) { return before(a.at, b.at); });
  vector<block_place> blocks;
  for (const auto& o : own) blocks.push_back(o.at);
  load_engine engine(store_, work_, budget_, until_, devices_);
  engine.read_with(reads_);
  engine.use(memory_);
  bytes_read_ += engine.run(blocks, [&](block_place at, std::span<const std::byte> block) {
    const auto found = std::lower_bound(own.begin(), own.end(), at,
                                        [&](const auto& o, const auto& b) { return before(o.at, b); });
    auto position = positions.begin() + static_cast<std::ptrdiff_t>(found->first);
    for_each_part(*found->read, [&](const part& p, std::uint64_t) {
      if (const auto to = data.find(p.ranks); to != data.end())
        pack(p.box, begin_of(at), block, to->second + *position);
      ++position;
    });
  });
  add(stages_, engine.stages());
  return bundles;
}

CAIRN_BODY void shared_blocks::take_bundle(shared_window window, std::int32_t reader, const rank_set* set,
                                           std::span<const std::byte> bundle) {
  struct received_range {
    block_place at;
    const part* from;
    std::uint64_t position;
    std::uint64_t bytes;
  };
  std::vector<received_range> ranges;
  std::uint64_t position = 0;
  for (const auto& u : window)
    if (u.reader == reader)
      for_each_part(u, [&](const part& p, std::uint64_t bytes) {
        if (p.ranks != set) return;
        ranges.push_back({places_[u.index], &p, position, bytes});
        position += bytes;
      });
  if (position != bundle.size())
    fail(error_id::peer_bad_message, "the bytes that a rank read for others have another size than requested",
         {.rank = reader, .expected = std::to_string(position), .got = std::to_string(bundle.size())});
  const auto threads = position < (std::uint64_t{4} << 20) ? 1 : std::min<std::uint64_t>(load_threads(), 4);
  parallel_for(ranges.size(), static_cast<std::size_t>(threads), [&](std::size_t i, std::size_t) {
    const auto& p = ranges[i];
    const auto& item = work_.items[p.at.item];
    const auto bytes =
        bundle.subspan(static_cast<std::size_t>(p.position), static_cast<std::size_t>(p.bytes));
    if (item.digests != nullptr && p.bytes == end_of(p.at) - begin_of(p.at) &&
        digest(bytes) != item.digests[p.at.block])
      fail(error_id::peer_bad_message, "a block that a rank read for others arrived damaged",
           {.rank = reader, .item = std::string(item.name)});
    std::uint64_t for_devices = 0;
    for (std::size_t k = 0; k < item.wants; ++k) {
      const auto& w = work_.wants[item.first_want + k];
      if (!(w.box == p.from->box)) continue;
      if (w.on_device())
        for_devices += scratch_for(w, p.bytes) + 1;
      else
        deliver_packed(w, w.box.before(begin_of(p.at)), bytes, put_by_cpu(w));
    }
    if (for_devices != 0) put_on_devices(item, *p.from, begin_of(p.at), bytes, for_devices);
    streamed_copies_done();
  });
}

CAIRN_BODY void shared_blocks::read_alone() {
  load_engine engine(store_, work_, budget_, until_, devices_);
  engine.read_with(reads_);
  engine.use(memory_);
  bytes_read_ += engine.run(alone_);
  add(stages_, engine.stages());
}

CAIRN_BODY load_stages shared_blocks::stages() const {
  auto all = stages_;
  const auto from = reads_.figures();  // of the session, so of all engines together
  all.bytes_cached = from.cached, all.bytes_direct = from.direct;
  all.requests = from.requests, all.hedges = from.hedges;
  return all;
}

CAIRN_BODY void shared_blocks::put_on_devices(const load_item& item, const part& from, std::uint64_t begin,
                                              std::span<const std::byte> bytes, std::uint64_t scratch_bytes) {
  held_buffer held(*devices_, bytes.size() + scratch_bytes, until_);
  std::memcpy(held.data(), bytes.data(), bytes.size());
  auto* scratch = held.data() + bytes.size();
  for (std::size_t k = 0; k < item.wants; ++k) {
    const auto& w = work_.wants[item.first_want + k];
    if (!(w.box == from.box) || !w.on_device()) continue;
    put_by_device put_run(held, w, item.name, scratch);
    deliver_packed(w, w.box.before(begin), std::span<const std::byte>(held.data(), bytes.size()), put_run);
    put_run.flush();
    scratch += scratch_for(w, bytes.size());
  }
}

CAIRN_BODY void shared_blocks::add_part(const load_item& item, const wanted_box& wanted,
                                        std::vector<part>& parts) const {
  auto box = byte_box(item.bytes);
  if (item.kind == item_kind::tensor) {
    const auto common = intersect(wanted.box, item.box);
    const auto made = common ? byte_box::make(item.type, item.box, *common) : std::nullopt;
    if (!made)
      fail(error_id::plan_out_of_bounds,
           "a rank wants a box that the stored chunk does not hold as whole bytes",
           {.item = std::string(item.name), .expected = to_string(item.box), .got = to_string(wanted.box)});
    box = *made;
  }
  if (box.bytes() != 0) parts.push_back({box, wanted.ranks, wanted.ranks->has(rank_)});
}

CAIRN_BODY void shared_blocks::check_wants(const load_item& item, const std::vector<part>& parts) const {
  if (item.per_rank && holders_ == nullptr) return;
  for (std::size_t k = 0; k < item.wants; ++k) {
    const auto& w = work_.wants[item.first_want + k];
    if (!detail::any_of(parts, [&](const part& p) { return p.mine && p.box == w.box; }))
      fail(error_id::plan_disagreement, "a rank reads other bytes than it announced to the others",
           {.rank = rank_, .item = std::string(item.name)});
  }
}

CAIRN_BODY std::uint64_t shared_blocks::end_of(block_place at) const noexcept {
  return std::min((at.block + 1) * digest_block_bytes, work_.items[at.item].bytes);
}

CAIRN_BODY std::uint64_t shared_blocks::part_bytes(const part& p, block_place at) const noexcept {
  return p.box.before(end_of(at)) - p.box.before(begin_of(at));
}

CAIRN_BODY bool shared_blocks::wanted_here(const load_item& item, block_place at) const noexcept {
  for (std::size_t k = 0; k < item.wants; ++k) {
    const auto& box = work_.wants[item.first_want + k].box;
    if (box.before(end_of(at)) != box.before(begin_of(at))) return true;
  }
  return false;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
