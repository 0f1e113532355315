// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/execute/job_message.hpp>
#include <cairn/model/annotations.hpp>
#include <cairn/model/chunk_codec.hpp>
#include <cairn/model/chunk_set.hpp>
#include <cairn/model/dtype.hpp>
#include <cairn/model/extents.hpp>
#include <cairn/model/image_backing.hpp>
#include <cairn/model/image_layout.hpp>
#include <cairn/model/item.hpp>
#include <cairn/model/metadata.hpp>
#include <cairn/model/plan.hpp>
#include <cairn/model/record.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/model/save_report.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/model/stored_items.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/finite.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/vector.hpp>
#include <cairn/system/wire.hpp>

#include <chrono>
#include <cstdint>
#include <utility>

namespace cairn {
inline namespace v1 {

CAIRN_BODY void encode(wire_writer& out, const save_context& c) {
  out.put(c.run.high).put(c.run.low).put(c.step).put(c.attempt).put(c.plan_digest).put(c.rank);
  out.put(c.world_size).put(static_cast<std::int64_t>(c.timeout.count())).put(c.writers_at_once);
  compact_writer said;
  encode(said, c.annotations != nullptr ? *c.annotations : annotations());
  out.put(static_cast<std::uint64_t>(said.size())).raw(said.view());
  out.put(static_cast<std::uint64_t>(c.link_from.size()));
  for (const auto& from : c.link_from) out.put(from.step).put(from.attempt);
  out.put(c.root.identity).put(c.root.step);
}

CAIRN_BODY save_context decode_save_context(wire_reader& in) {
  save_context c;
  c.run.high = in.get<std::uint64_t>(), c.run.low = in.get<std::uint64_t>();
  c.step = in.get<std::int64_t>(), c.attempt = in.get<std::uint64_t>();
  c.plan_digest = in.get<std::uint64_t>(), c.rank = in.get<std::int32_t>();
  c.world_size = in.get<std::int32_t>(), c.timeout = std::chrono::nanoseconds(in.get<std::int64_t>());
  c.writers_at_once = in.get<std::int32_t>();
  if (c.step < 0 || c.world_size < 1 || c.rank < 0 || c.rank >= c.world_size || c.timeout.count() <= 0 ||
      c.writers_at_once < 0)
    in.fail_here("a save's rank, step or timeout is impossible");
  compact_reader said(in.take(in.get_count(1)));
  if (auto list = decode_annotations(said); !list.empty())
    c.annotations = detail::make_shared<const annotations>(std::move(list));
  said.finish();
  c.link_from.resize(in.get_count(16));
  for (auto& from : c.link_from) {
    from.step = in.get<std::int64_t>(), from.attempt = in.get<std::uint64_t>();
    if (from.step < 0) in.fail_here("a save links files of an impossible step");
  }
  c.root.identity = in.get_string();
  c.root.step = in.get<std::int64_t>();
  return c;
}

CAIRN_BODY void encode(wire_writer& out, const image_layout& layout) {
  out.put(layout.bytes).put(layout.blocks);
  out.put(static_cast<std::uint64_t>(layout.segments.size()));
  for (const auto& s : layout.segments)
    out.put(s.begin).put(s.bytes).put(static_cast<std::uint64_t>(s.header.size())).raw(s.header);
  out.put(static_cast<std::uint64_t>(layout.linked.size()));
  for (const auto& f : layout.linked) out.put(f.bytes).put(f.items).put(f.contents).put(f.header);
  out.put(static_cast<std::uint64_t>(layout.items.size()));
  for (const auto& i : layout.items) {
    out.put(i.item).put(i.segment).put(i.begin).put(i.bytes).put(i.first_block);
    out.put(i.key.name).put(i.key.box).put(static_cast<std::uint8_t>(i.early));
  }
}

CAIRN_BODY image_layout decode_image_layout(wire_reader& in) {
  image_layout layout;
  layout.bytes = in.get<std::uint64_t>(), layout.blocks = in.get<std::uint64_t>();
  if (layout.bytes > (std::uint64_t{1} << 62) || layout.blocks > layout.bytes)
    in.fail_here("an image has an impossible size");
  layout.segments.resize(in.get_count(24));
  std::uint64_t end = 0;
  for (auto& s : layout.segments) {
    s.begin = in.get<std::uint64_t>(), s.bytes = in.get<std::uint64_t>();
    const auto header = in.take(in.get_count(1));
    s.header.assign(header.begin(), header.end());
    if (s.begin < end || s.begin > layout.bytes || s.bytes > layout.bytes - s.begin ||
        s.header.size() > s.bytes)
      in.fail_here("a segment is outside of its image");
    end = s.begin + s.bytes;
  }
  layout.linked.resize(in.get_count(32));
  for (auto& f : layout.linked) {
    f.bytes = in.get<std::uint64_t>(), f.items = in.get<std::uint64_t>();
    f.contents = in.get<std::uint64_t>(), f.header = in.get<std::uint64_t>();
  }
  layout.items.resize(in.get_count(49));
  end = 0;
  for (auto& i : layout.items) {
    i.item = in.get<std::uint32_t>(), i.segment = in.get<std::uint32_t>();
    i.begin = in.get<std::uint64_t>(), i.bytes = in.get<std::uint64_t>();
    i.first_block = in.get<std::uint64_t>();
    i.key = {in.get<std::uint64_t>(), in.get<std::uint64_t>()};
    i.early = in.get<std::uint8_t>() != 0;
    if (i.segment >= layout.segments.size() || i.begin < end || i.begin > layout.bytes ||
        i.bytes > layout.bytes - i.begin || i.first_block > layout.blocks ||
        block_count(i.bytes) > layout.blocks - i.first_block)
      in.fail_here("an item is outside of its image");
    end = i.begin + i.bytes;
  }
  return layout;
}

CAIRN_BODY void encode(wire_writer& out, const metadata& m) {
  out.put(m.world_size).put(m.state_version).put(static_cast<std::uint64_t>(m.items.size()));
  for (const auto& i : m.items) {
    out.put(i.name).put(i.kind).put(i.type).put(static_cast<std::uint8_t>(i.per_rank));
    encode(out, i.global);
    compact_writer chunks;
    encode(chunks, i.chunks);
    out.put(static_cast<std::uint64_t>(chunks.size())).raw(chunks.view());
  }
}

CAIRN_BODY metadata decode_metadata(wire_reader& in) {
  metadata m;
  m.world_size = in.get<std::int32_t>();
  m.state_version = in.get<std::int64_t>();
  if (m.state_version < 0) in.fail_here("the version of a state is negative");
  m.items.resize(in.get_count(16));
  for (auto& i : m.items) {
    i.name = in.get_string(max_item_name);
    i.kind = in.get_enum(item_kind::bytes), i.type = in.get_enum(last_dtype);
    i.per_rank = in.get<std::uint8_t>() != 0;
    i.global = decode_extents(in);
    compact_reader chunks(in.take(in.get_count(1)));
    i.chunks = decode_chunk_set(chunks, i.global, m.world_size);
    chunks.finish();
  }
  return m;
}

CAIRN_BODY void encode(wire_writer& out, const process_share& share, const detail::vector<save_span>& spans) {
  out.put(share.bytes).put(share.seconds).put(share.cpu_seconds);
  encode(out, spans);
}

CAIRN_BODY process_share decode_share(wire_reader& in, std::int64_t process,
                                      detail::vector<save_span>& spans) {
  process_share share;
  share.process = process, share.bytes = in.get<std::uint64_t>();
  share.seconds = in.get<double>(), share.cpu_seconds = in.get<double>();
  if (!(share.seconds >= 0) || !(share.cpu_seconds >= 0) || !detail::is_finite(share.seconds) ||
      !detail::is_finite(share.cpu_seconds))
    in.fail_here("a worker's times are impossible");
  spans = decode_spans(in, process);
  return share;
}

CAIRN_BODY void encode(wire_writer& out, const shared_place& place) {
  out.put(place.id).put(place.bytes).put(place.offset);
}

CAIRN_BODY shared_place decode_shared_place(wire_reader& in, std::uint64_t needed) {
  shared_place place;
  place.id = in.get<std::uint64_t>(), place.bytes = in.get<std::uint64_t>();
  place.offset = in.get<std::uint64_t>();
  if (place.offset > place.bytes || needed > place.bytes - place.offset)
    in.fail_here("a place is outside of its shared memory");
  return place;
}

}  // namespace v1
}  // namespace cairn
