// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/cast.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/tensor_view.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/wire.hpp>

#include <cstdint>

namespace cairn {
inline namespace v1 {

CAIRN_BODY void encode(wire_writer& out, const extents& e) {
  out.put(static_cast<std::uint8_t>(e.rank()));
  for (auto v : e) out.put(v);
}

CAIRN_BODY extents decode_extents(wire_reader& in) {
  const auto rank = in.get<std::uint8_t>();
  if (rank > extents::max_rank) in.fail_here("a shape has more than eight dimensions");
  extents e = extents::filled(rank, 0);
  for (int d = 0; d < rank; ++d) {
    e.set(d, in.get<std::int64_t>());
    if (e[d] < 0) in.fail_here("a size or offset is negative");
  }
  return e;
}

CAIRN_BODY void encode(wire_writer& out, const item_flags& f) {
  out.put(static_cast<std::uint8_t>(f.copy_now | f.per_rank << 1 | f.optional << 2 | f.frozen << 3));
}

CAIRN_BODY item_flags decode_flags(wire_reader& in) {
  const auto bits = in.get<std::uint8_t>();
  if (bits > 15) in.fail_here("unknown flags");
  return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0};
}

CAIRN_BODY void encode(wire_writer& out, const save_plan& plan) {
  out.put(static_cast<std::uint64_t>(plan.items.size()));
  for (const auto& i : plan.items) {
    out.put(i.name).put(i.kind).put(i.type);
    encode(out, i.global), encode(out, i.box.offsets), encode(out, i.box.sizes), encode(out, i.flags);
    out.put(i.entry).put(i.bytes);
  }
}

CAIRN_BODY save_plan decode_save_plan(wire_reader& in) {
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

CAIRN_BODY std::uint64_t digest_of(const save_plan& plan) {
  wire_writer out;
  for (const auto& i : plan.items) {
    out.put(i.name).put(i.kind).put(i.type);
    encode(out, i.global), encode(out, i.box.offsets), encode(out, i.box.sizes), encode(out, i.flags);
  }
  return digest(out.view());
}

}  // namespace v1
}  // namespace cairn
