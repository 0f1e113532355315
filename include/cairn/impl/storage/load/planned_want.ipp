// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/chunk_progression.hpp>
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/known_blocks.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/state_dict.hpp>
#include <cairn/model/state_entry.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/storage/load/byte_box.hpp>
#include <cairn/storage/load/load_engine.hpp>
#include <cairn/storage/load/load_work.hpp>
#include <cairn/storage/load/planned_want.hpp>
#include <cairn/storage/load/stored_checkpoint.hpp>
#include <cairn/storage/load/stored_record.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/safetensors/safetensors_layout.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/vector.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY planned_want place_want(const stored_checkpoint& checkpoint, const read_item& item) {
  const auto& stored = checkpoint.metadata().items[item.stored];
  const auto c = checkpoint.chunk_of(item);
  const auto& found = checkpoint.find(stored, c);
  planned_want w{c.rank, &found, found.bytes, {}, &stored, c.box};
  w.want.box = byte_box(found.bytes);
  if (stored.kind == item_kind::tensor && !item.box.empty()) {
    const auto box = byte_box::make(stored.type, c.box, item.box);
    if (!box)
      fail(error_id::plan_out_of_bounds,
           "a load plan wants a box that the stored chunk does not hold as whole bytes",
           {.item = stored.name, .expected = to_string(c.box), .got = to_string(item.box)});
    w.want.box = *box;
  } else if (stored.kind == item_kind::tensor) {
    w.want.box = byte_box(0);
  }
  return w;
}

CAIRN_BODY void add_for_others(const stored_checkpoint& checkpoint, const std::vector<std::int32_t>& ranks,
                               vector<planned_want>& wants) {
  for (const auto& item : checkpoint.metadata().items)
    for (const auto rank : ranks)
      item.chunks.of_rank(rank, [&](std::uint64_t, const stored_chunk& c) {
        const auto& found = checkpoint.find(item, c);
        if (found.bytes == 0) return;
        wants.push_back({c.rank, &found, found.bytes, {}, &item, c.box, true});
      });
}

CAIRN_BODY void resize_for(const state_dict& state, const read_item& item, std::uint64_t bytes) {
  if (item.entry >= state.entries().size())
    fail(error_id::plan_out_of_bounds, "a load plan names an entry that the state does not have");
  const auto& e = state.entries()[item.entry];
  if (e.memory.count(e.memory.object) == bytes) return;
  if (e.memory.resize == nullptr)
    fail(error_id::usage_size_changed,
         "the stored bytes have another size than the container, which cannot be resized",
         {.item = e.name,
          .expected = std::to_string(bytes),
          .got = std::to_string(e.memory.count(e.memory.object))});
  e.memory.resize(e.memory.object, bytes);
}

CAIRN_BODY void forget_resized(block_pass& pass, const state_dict& state, const read_item& item,
                               std::uint32_t planned, std::uint64_t bytes) {
  if (item.entry >= state.entries().size()) return;  // which resize_for() says
  const auto& e = state.entries()[item.entry];
  const auto now = e.memory.count(e.memory.object);
  if (now == bytes) return;
  if (pass.what == block_pass::action::remember)
    fail(error_id::usage_size_changed, "an item of bytes has another size than when it was saved",
         {.item = e.name});
  pass.changed.push_back(planned);
  pass.resized = pass.changed.size();
  if (now == 0 || e.memory.data == nullptr) return;
  const auto at = reinterpret_cast<std::uintptr_t>(e.memory.data(e.memory.object));
  pass.known->forget({{at, at + static_cast<std::uintptr_t>(now)}});
}

CAIRN_BODY load_file file_of(const stored_checkpoint& checkpoint, std::int32_t rank, std::uint32_t file) {
  return {checkpoint.file_key_of(rank, file), checkpoint.record_of(rank).content().files[file].bytes, rank,
          file};
}

CAIRN_BODY load_item item_of(const stored_checkpoint& checkpoint, std::int32_t rank,
                             const record_item& stored, std::size_t file) {
  load_item item;
  item.file = static_cast<std::uint32_t>(file);
  item.offset = stored.offset;
  item.bytes = stored.bytes;
  item.digests = checkpoint.record_of(rank).content().blocks.data() + stored.first_block;
  return item;
}

CAIRN_BODY load_work gather_work(const stored_checkpoint& checkpoint, vector<planned_want>& wants) {
  const auto place = [](const planned_want& w) {
    return std::tuple(w.rank, w.stored->file, w.stored->offset, w.stored);
  };
  detail::sort(wants, [&](const auto& a, const auto& b) { return place(a) < place(b); });
  load_work work;
  work.wants.reserve(wants.size());
  for (std::size_t i = 0; i < wants.size(); ++i) {
    const auto& w = wants[i];
    const bool same_file =
        i != 0 && wants[i - 1].rank == w.rank && wants[i - 1].stored->file == w.stored->file;
    if (!same_file) work.files.push_back(file_of(checkpoint, w.rank, w.stored->file));
    if (!same_file || wants[i - 1].stored != w.stored) {
      work.items.push_back(item_of(checkpoint, w.rank, *w.stored, work.files.size() - 1));
      work.items.back().name = w.item->name;
      work.items.back().kind = w.item->kind;
      work.items.back().type = w.item->type;
      work.items.back().per_rank = w.item->per_rank;
      work.items.back().box = w.stored_box;
      work.items.back().first_want = work.wants.size();
    }
    if (w.for_others) continue;
    ++work.items.back().wants;
    work.wants.push_back(w.want);
  }
  return work;
}

CAIRN_BODY load_work all_work(const stored_checkpoint& checkpoint) {
  load_work work;
  for (const auto& named : checkpoint.manifest().records) {
    const auto& r = checkpoint.record_of(named.rank).content();
    vector<const record_item*> order;
    for (const auto& i : r.items) order.push_back(&i);
    detail::sort(order, [](const auto* a, const auto* b) {
      return a->file != b->file ? a->file < b->file : a->offset < b->offset;
    });
    const auto first = work.files.size();
    for (std::uint32_t f = 0; f < r.files.size(); ++f)
      work.files.push_back(file_of(checkpoint, named.rank, f));
    for (const auto* i : order) work.items.push_back(item_of(checkpoint, named.rank, *i, first + i->file));
  }
  return work;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
