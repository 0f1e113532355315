// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/redundancy/kept_piece.hpp>
#include <cairn/storage/manifest/record_format.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

// Little-endian: "cairnhea" and "cairnkpt", then the version.
inline constexpr std::uint64_t head_magic = 0x6165686e72696163;
inline constexpr std::uint64_t kept_magic = 0x74706b6e72696163;
inline constexpr std::uint32_t kept_version = 1;

/// Reads what begins with a magic number and a version, and ends with the digest of all before it.
template <class Body>
void read_digested(std::span<const std::byte> bytes, std::uint64_t magic, const char* what,
                   const std::string& file, const Body& body) {
  try {
    wire_reader in(bytes);
    if (in.get<std::uint64_t>() != magic)
      fail(error_id::corrupt_bad_magic, std::string(what) + " does not begin as one", {.file = file});
    if (const auto version = in.get<std::uint32_t>(); version != kept_version)
      fail(error_id::corrupt_unsupported_version, std::string(what) + " has another version",
           {.file = file, .expected = std::to_string(kept_version), .got = std::to_string(version)});
    if (in.left() < sizeof(std::uint64_t)) in.fail_here("the input ends early");
    const auto own = bytes.first(bytes.size() - sizeof(std::uint64_t));
    if (wire_reader(bytes.last(sizeof(std::uint64_t))).get<std::uint64_t>() != digest(own))
      fail(error_id::corrupt_digest, std::string(what) + " is damaged", {.file = file});
    body(in);
    static_cast<void>(in.get<std::uint64_t>());
    in.finish();
  } catch (const wire_error& e) {
    fail(error_id::corrupt_truncated, std::string(what) + " is damaged: " + e.what(), {.file = file});
  }
}

CAIRN_BODY held_name name_of(const held_image& image) {
  try {
    wire_reader in(image.description);
    static_cast<void>(in.take(sizeof(std::uint64_t) + sizeof(std::uint32_t)));
    if (const auto name = parse_held_name(in.get_string())) return *name;
  } catch (const wire_error&) {
  }
  fail(error_id::corrupt_bad_value, "the record of an image that a tier holds does not say which one it is");
}
CAIRN_BODY image_head head_of(const held_image& image) {
  image_head head{.name = name_of(image), .record = image.description, .blocks = {}};
  const std::string file = to_string(head.name);
  const auto held = decode_held(image.description, head.name, file);
  const auto r = decode_record(held.record, file);
  for (const auto& item : r.items) {
    const auto begin = held.begins.at(item.file) + item.offset;
    if (begin < head.blocks.bytes() || begin > image.bytes.size() || item.bytes > image.bytes.size() - begin)
      fail(error_id::corrupt_bad_value, "the record of an image that a tier holds does not fit it",
           {.file = file});
    add_blocks(head.blocks, image.bytes.subspan(head.blocks.bytes(), begin - head.blocks.bytes()));
    for (std::uint64_t at = 0; at < item.bytes; at += digest_block_bytes)
      head.blocks.add(std::min(digest_block_bytes, item.bytes - at),
                      r.blocks[item.first_block + at / digest_block_bytes]);
  }
  add_blocks(head.blocks, image.bytes.subspan(head.blocks.bytes()));
  return head;
}
CAIRN_BODY std::vector<std::byte> encode_head(const image_head& head) {
  wire_writer out;
  out.put(head_magic).put(kept_version).put(to_string(head.name));
  out.put(static_cast<std::uint64_t>(head.record.size())).raw(head.record);
  encode(out, head.blocks);
  return out.put(digest(out.view())).take();
}
CAIRN_BODY image_head decode_head(std::span<const std::byte> bytes, const std::string& file) {
  image_head head;
  read_digested(bytes, head_magic, "what a rank says of its image", file, [&](wire_reader& in) {
    const auto name = parse_held_name(in.get_string());
    if (!name) in.fail_here("an image has an impossible name");
    head.name = *name;
    const auto record = in.take(in.get_count(1));
    head.record.assign(record.begin(), record.end());
    head.blocks = decode_block_table(in);
  });
  static_cast<void>(decode_held(head.record, head.name, file));
  return head;
}

CAIRN_BODY redundancy_set kept_piece::set() const {
  redundancy_set made;
  for (const auto& head : heads) made.push_back({.rank = head.name.rank, .bytes = head.blocks.bytes()});
  return made;
}
CAIRN_BODY std::uint64_t fingerprint_of(const any_redundancy& by, const redundancy_set& set,
                                        std::int32_t member) {
  digest_stream all;
  for (const auto& strip : by.encoding(set, member)) {
    all.put(strip.begin).put(strip.bytes).put(static_cast<std::uint64_t>(strip.sources.size()));
    for (std::size_t i = 0; i < strip.sources.size(); ++i)
      all.put(strip.sources[i].member).put(strip.sources[i].begin).put(strip.factors[i]);
  }
  return all.value();
}
CAIRN_BODY std::vector<std::byte> encode_kept(const held_name& name, const kept_piece& content) {
  wire_writer out;
  out.put(kept_magic).put(kept_version).put(kept_record_name(name)).put(content.made_by).put(content.member);
  out.put(static_cast<std::uint64_t>(content.heads.size()));
  for (const auto& head : content.heads) {
    const auto bytes = encode_head(head);
    out.put(static_cast<std::uint64_t>(bytes.size())).raw(bytes);
  }
  encode(out, content.blocks);
  return out.put(digest(out.view())).take();
}
CAIRN_BODY kept_piece decode_kept(std::span<const std::byte> bytes, const held_name& name,
                                  const std::string& file) {
  kept_piece content;
  read_digested(bytes, kept_magic, "the record of a piece", file, [&](wire_reader& in) {
    if (in.get_string() != kept_record_name(name))
      fail(error_id::corrupt_identity, "the record of a piece lies under another name than its own",
           {.file = file});
    content.made_by = in.get<std::uint64_t>();
    content.member = in.get<std::int32_t>();
    const auto count = in.get_count(sizeof(std::uint64_t));
    for (std::size_t i = 0; i < count; ++i) {
      content.heads.push_back(decode_head(in.take(in.get_count(1)), file));
      const auto& of = content.heads.back().name;
      if (!(of.run == name.run) || of.attempt != name.attempt || of.step != name.step ||
          of.plan_digest != name.plan_digest || of.world_size != name.world_size)
        fail(error_id::corrupt_identity, "the record of a piece names images of another save",
             {.file = file});
    }
    if (content.member < 0 || static_cast<std::size_t>(content.member) >= count ||
        content.heads[static_cast<std::size_t>(content.member)].name.rank != name.rank)
      in.fail_here("a piece is not of the rank that keeps it");
    content.blocks = decode_block_table(in);
  });
  return content;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
