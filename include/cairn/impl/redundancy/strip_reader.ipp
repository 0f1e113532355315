// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/redundancy/strip_reader.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <cstring>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY const std::byte* strip_reader::verified(const member_range& from, std::uint64_t bytes,
                                                   bad_source& bad) {
  auto& w = windows_[{from.member, from.piece}];
  if (from.begin < w.begin || from.begin + bytes > w.end) {
    const auto& of = tables_[static_cast<std::size_t>(from.member)];
    const auto& table = from.piece ? of.piece : of.image;
    bad = {.member = from.member, .piece = from.piece, .gone = true, .begin = from.begin};
    if (bytes > table.bytes() || from.begin > table.bytes() - bytes) return nullptr;
    auto block = table.block_at(from.begin);
    const auto last = table.block_at(from.begin + bytes - 1);
    const auto begin = table.begin(block);
    const auto end = table.end(last);
    // What is wanted lies at a multiple of 64 bytes: sums of aligned memory are computed faster.
    spare_.resize(static_cast<std::size_t>(end - begin) + 64);
    const auto wanted = reinterpret_cast<std::uintptr_t>(spare_.data()) + (from.begin - begin);
    const auto first = static_cast<std::size_t>((64 - wanted % 64) % 64);
    const std::span<std::byte> all(spare_.data() + first, static_cast<std::size_t>(end - begin));
    std::size_t there = 0;  // verified before
    if (begin >= w.begin && begin < w.end) {
      there = static_cast<std::size_t>(std::min(w.end, end) - begin);
      std::memcpy(all.data(), w.room.data() + w.first + (begin - w.begin), there);
      while (block <= last && table.end(block) <= begin + there) ++block;
    }
    w.begin = w.end = 0;
    if (!read_({.member = from.member, .piece = from.piece, .begin = begin + there}, all.subspan(there)))
      return nullptr;
    for (; block <= last; ++block)
      if (!table.fits(block, all.subspan(static_cast<std::size_t>(table.begin(block) - begin),
                                         static_cast<std::size_t>(table.end(block) - table.begin(block))))) {
        bad.gone = false;
        bad.begin = table.begin(block);
        return nullptr;
      }
    w.room.swap(spare_);
    w.first = first;
    w.begin = begin;
    w.end = end;
  }
  return w.room.data() + w.first + (from.begin - w.begin);
}

CAIRN_BODY std::optional<bad_source> strip_reader::compute(std::span<const redundancy_strip> strips,
                                                           std::uint64_t begin, std::span<std::byte> out) {
  auto strip =
      std::upper_bound(strips.begin(), strips.end(), begin,
                       [](std::uint64_t at, const redundancy_strip& s) { return at < s.begin + s.bytes; });
  std::vector<const std::byte*> sources;
  bad_source bad;
  while (!out.empty()) {
    if (strip == strips.end() || begin < strip->begin)
      fail(error_id::corrupt_bad_value, "the strips of a Redundancy do not cover what they are to make");
    const auto skipped = begin - strip->begin;
    const auto bytes = std::min<std::uint64_t>(out.size(), strip->bytes - skipped);
    sources.clear();
    for (auto from : strip->sources) {
      from.begin += skipped;
      const auto* const there = verified(from, bytes, bad);
      if (there == nullptr) return bad;
      sources.push_back(there);
    }
    by_.combine(strip->factors, sources, out.first(static_cast<std::size_t>(bytes)));
    out = out.subspan(static_cast<std::size_t>(bytes));
    begin += bytes;
    ++strip;
  }
  return std::nullopt;
}

CAIRN_BODY rebuild_report rebuild_image(const any_redundancy& by, const redundancy_set& set,
                                        std::int32_t member, set_survivors survivors,
                                        std::span<const member_tables> tables, read_member read,
                                        std::span<std::byte> out) {
  const auto own = static_cast<std::size_t>(member);
  const auto& table = tables[own].image;
  survivors.images[own] = false;
  rebuild_report report;
  strip_reader reader(by, tables, read);
  auto strips = by.rebuilding(set, member, survivors);
  const auto drop = [&](set_survivors& from, const bad_source& bad) {
    (bad.piece ? from.pieces : from.images)[static_cast<std::size_t>(bad.member)] = false;
  };
  for (std::size_t block = 0; block < table.blocks();) {
    // As many whole blocks as are short enough to be made at once.
    std::size_t behind = block + 1;
    while (behind < table.blocks() && table.end(behind) - table.begin(block) <= digest_block_bytes) ++behind;
    const auto begin = table.begin(block);
    const auto part =
        out.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(table.end(behind - 1) - begin));
    auto left = survivors;
    auto bad = reader.compute(strips, begin, part);
    while (bad) {
      report.bad.push_back(*bad);
      drop(left, *bad);
      if (bad->gone) {
        drop(survivors, *bad);
        strips = by.rebuilding(set, member, survivors);
      }
      bad = reader.compute(by.rebuilding(set, member, left), begin, part);
    }
    for (; block < behind; ++block)
      if (!table.fits(block, out.subspan(static_cast<std::size_t>(table.begin(block)),
                                         static_cast<std::size_t>(table.end(block) - table.begin(block)))))
        fail(error_id::corrupt_digest,
             "a block of an image was rebuilt from pieces that are what they were, and is not what it was: "
             "the pieces were "
             "made of something else; load an earlier step",
             {.rank = set[own].rank, .offset = static_cast<std::int64_t>(table.begin(block))});
  }
  return report;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
