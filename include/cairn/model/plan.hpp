// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/cast.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/tensor_view.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/wire.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// One box that this rank writes. A plan may hold several boxes of one tensor (pieces of a flat shard).
struct write_item {
  std::string name;  ///< in the checkpoint; planners may rename
  item_kind kind = item_kind::tensor;
  dtype type = dtype::u8;  ///< as stored; differs from the memory's where resolve() gives a cast
  extents global;          ///< shape of the whole tensor
  chunk box;               ///< what is written of it; `whole({})` for values and bytes
  item_flags flags;
  std::uint32_t entry = 0;  ///< index in state_dict::entries(): where the memory is found
  /// Stored size. Of a bytes item, its size when it was planned (the size at each save counts). A tensor of 0
  /// bytes in a local plan tells its definition only (an empty shard); `box` is then not used.
  std::uint64_t bytes = 0;
};

/// What one rank writes, in the order of its state_dict.
struct save_plan {
  std::vector<write_item> items;
};

/// Where the bytes of a write_item come from at one save: what SavePlanner::resolve gives.
struct item_source {
  tensor_view view;              ///< shape equals the item's box; for bytes items u8 [size]
  cast_function cast = nullptr;  ///< from view.type to the item's type where they differ
};

/// One box that this rank reads: a part of one stored chunk, and its place in this rank's state.
struct read_item {
  std::uint32_t stored = 0;  ///< index in metadata::items
  std::uint32_t chunk = 0;   ///< its number in stored_item::chunks
  std::uint32_t entry = 0;   ///< index in state_dict::entries()
  std::uint32_t part = 0;    ///< index in state_entry::boxes
  cairn::chunk box;          ///< what is wanted, in coordinates of the global tensor; inside of both
};

/// What does not fit between a state and a checkpoint; lists hold names in order.
struct load_report {
  std::vector<std::string> missing;     ///< wanted by the state, not in the checkpoint: kept their values
  std::vector<std::string> unexpected;  ///< in the checkpoint, not in the state
  std::vector<std::string> mismatched;  ///< "name: sentence": dtype, shape, kind, or uncovered boxes
  std::vector<std::string> unmatched;   ///< patterns of the request that no item has; sorted
  std::uint64_t bytes = 0;              ///< of the state that were filled
  std::uint64_t bytes_read = 0;         ///< fetched from the store
  double seconds = 0;
  bool plan_cached = false;       ///< this rank's plan was kept from an earlier load of the same checkpoint
  double plan_seconds = 0;        ///< of `seconds`: deciding what to read, or finding the plan again
  double plan_saved_seconds = 0;  ///< that planning would have cost: what it did when the plan was made
};

/// What one rank reads.
struct load_plan {
  std::vector<read_item> items;
  load_report report;
};

/// Where a read_item goes: what LoadPlanner::resolve gives.
struct item_target {
  tensor_view view;              ///< shape equals the read_item's box
  cast_function cast = nullptr;  ///< from the stored dtype to view.type where they differ
};

inline void encode(wire_writer& out, const extents& e) {
  out.put(static_cast<std::uint8_t>(e.rank()));
  for (auto v : e) out.put(v);
}
/// @throws wire_error if there are more than eight, or a negative one.
[[nodiscard]] inline extents decode_extents(wire_reader& in) {
  const auto rank = in.get<std::uint8_t>();
  if (rank > extents::max_rank) in.fail_here("a shape has more than eight dimensions");
  extents e = extents::filled(rank, 0);
  for (int d = 0; d < rank; ++d) {
    e.set(d, in.get<std::int64_t>());
    if (e[d] < 0) in.fail_here("a size or offset is negative");
  }
  return e;
}
inline void encode(wire_writer& out, const item_flags& f) {
  out.put(static_cast<std::uint8_t>(f.copy_now | f.per_rank << 1 | f.optional << 2));
}
/// What encode() of item_flags wrote; throws wire_error.
[[nodiscard]] inline item_flags decode_flags(wire_reader& in) {
  const auto bits = in.get<std::uint8_t>();
  if (bits > 7) in.fail_here("unknown flags");
  return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
}

/// Plans as messages, for planners that must see all of them.
inline void encode(wire_writer& out, const save_plan& plan) {
  out.put(static_cast<std::uint64_t>(plan.items.size()));
  for (const auto& i : plan.items) {
    out.put(i.name).put(i.kind).put(i.type);
    encode(out, i.global), encode(out, i.box.offsets), encode(out, i.box.sizes), encode(out, i.flags);
    out.put(i.entry).put(i.bytes);
  }
}
/// @throws wire_error on bytes that are no plan, with boxes outside of their tensors, or sizes that do not
/// agree.
[[nodiscard]] inline save_plan decode_save_plan(wire_reader& in) {
  save_plan plan;
  plan.items.resize(in.get_count(24));
  for (auto& i : plan.items) {
    i.name = in.get_string(max_item_name);
    i.kind = in.get_enum(item_kind::bytes);
    i.type = in.get_enum(last_dtype);
    i.global = decode_extents(in), i.box.offsets = decode_extents(in), i.box.sizes = decode_extents(in),
    i.flags = decode_flags(in);
    i.entry = in.get<std::uint32_t>(), i.bytes = in.get<std::uint64_t>();
    if (!checked_bytes(i.type, i.global) || !inside(i.box, i.global))
      in.fail_here("a box is outside of its tensor");
    if (i.kind != item_kind::bytes && i.bytes != 0 && checked_bytes(i.type, i.box.sizes) != i.bytes)
      in.fail_here("a size does not fit its box");
  }
  return plan;
}

/// Digest of what a plan says is written; not the sizes of bytes items, nor where the memory is.
[[nodiscard]] inline std::uint64_t digest_of(const save_plan& plan) {
  wire_writer out;
  for (const auto& i : plan.items) {
    out.put(i.name).put(i.kind).put(i.type);
    encode(out, i.global), encode(out, i.box.offsets), encode(out, i.box.sizes), encode(out, i.flags);
  }
  return digest(out.view());
}

}  // namespace v1
}  // namespace cairn
