// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/save_context.hpp>
#include <cairn/model/surveyed_save.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
CAIRN_BODY void add_survey(std::vector<surveyed_save>& all, std::span<const surveyed_save> more) {
  const auto place = [](const surveyed_save& s) {
    return std::tuple(s.step, s.run.high, s.run.low, save_count_of(s.run, s.step, s.attempt), s.attempt,
                      s.plan_digest, s.world_size);
  };
  const auto add = [](auto& list, const auto& from) {
    const auto before = [](const auto& a, const auto& b) { return a.rank < b.rank; };
    for (const auto& each : from) {
      const auto at = std::lower_bound(list.begin(), list.end(), each, before);
      if (at == list.end() || at->rank != each.rank) list.insert(at, each);
    }
  };
  for (const auto& s : more) {
    const auto at = std::lower_bound(all.begin(), all.end(), s,
                                     [&](const auto& a, const auto& b) { return place(a) < place(b); });
    if (at == all.end() || !at->is_same_save(s)) {
      all.insert(at, s);
      continue;
    }
    at->has_plan |= s.has_plan;
    if (s.has_runs && !at->has_runs) at->has_runs = true, at->runs = s.runs;
    add(at->images, s.images);
    add(at->pieces, s.pieces);
  }
}

namespace detail {

CAIRN_BODY void put_survey(wire_writer& out, std::span<const surveyed_save> saves) {
  const auto count = [&](const auto& list) { out.put(static_cast<std::uint64_t>(list.size())); };
  count(saves);
  for (const auto& s : saves) {
    out.put(s.run.high).put(s.run.low).put(s.attempt).put(s.step).put(s.world_size).put(s.plan_digest);
    out.put(static_cast<std::uint8_t>(s.has_plan)).put(static_cast<std::uint8_t>(s.has_runs));
    count(s.runs);
    for (const auto& r : s.runs) out.put(r.high).put(r.low);
    count(s.images);
    for (const auto& i : s.images) out.put(i.rank).put(i.files).put(i.record_digest).put(i.data_bytes);
    count(s.pieces);
    for (const auto& p : s.pieces) {
      out.put(p.rank).put(p.member).put(p.made_by).put(p.made_of).put(p.piece_bytes);
      count(p.ranks);
      for (std::size_t i = 0; i < p.ranks.size(); ++i) out.put(p.ranks[i]).put(p.bytes[i]);
    }
  }
}

CAIRN_BODY std::vector<surveyed_save> get_survey(wire_reader& in) {
  std::vector<surveyed_save> saves(in.get_count(46));
  for (auto& s : saves) {
    s.run.high = in.get<std::uint64_t>(), s.run.low = in.get<std::uint64_t>();
    s.attempt = in.get<std::uint64_t>(), s.step = in.get<std::int64_t>();
    s.world_size = in.get<std::int32_t>(), s.plan_digest = in.get<std::uint64_t>();
    s.has_plan = in.get<std::uint8_t>() != 0, s.has_runs = in.get<std::uint8_t>() != 0;
    if (s.world_size < 1) in.fail_here("a save has no rank");
    s.runs.resize(in.get_count(16));
    for (auto& r : s.runs) r.high = in.get<std::uint64_t>(), r.low = in.get<std::uint64_t>();
    const auto check = [&](std::int32_t rank) {
      if (rank < 0 || rank >= s.world_size) in.fail_here("a save names a rank that it has not");
      return rank;
    };
    s.images.resize(in.get_count(24));
    for (auto& i : s.images) {
      i.rank = check(in.get<std::int32_t>()), i.files = in.get<std::uint32_t>();
      i.record_digest = in.get<std::uint64_t>(), i.data_bytes = in.get<std::uint64_t>();
    }
    s.pieces.resize(in.get_count(40));
    for (auto& p : s.pieces) {
      p.rank = check(in.get<std::int32_t>()), p.member = in.get<std::int32_t>();
      p.made_by = in.get<std::uint64_t>(), p.made_of = in.get<std::uint64_t>();
      p.piece_bytes = in.get<std::uint64_t>();
      const auto members = in.get_count(12);
      if (p.member < 0 || static_cast<std::size_t>(p.member) >= members)
        in.fail_here("a piece is of nobody in its set");
      for (std::size_t i = 0; i < members; ++i) {
        p.ranks.push_back(check(in.get<std::int32_t>()));
        p.bytes.push_back(in.get<std::uint64_t>());
      }
    }
  }
  return saves;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
