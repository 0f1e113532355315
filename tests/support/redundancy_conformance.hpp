// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_redundancy.hpp>
#include <cairn/redundancy/strip_reader.hpp>
#include <cairn/system/error.hpp>

#include <doctest/doctest.h>
#include <support/random_bytes.hpp>
#include <support/rounds.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

// What every Redundancy must do.
namespace cairn_test {

using redundancy_bytes = std::vector<std::byte>;

/// The product of two bytes in the field that redundancy_strip names, by the definition of it.
inline std::uint8_t field_product(std::uint8_t a, std::uint8_t b) {
  unsigned sum = 0;
  unsigned shifted = a;
  for (int bit = 0; bit < 8; ++bit) {
    if (((b >> bit) & 1) != 0) sum ^= shifted;
    shifted = (shifted << 1) ^ ((shifted & 0x80) != 0 ? 0x11du : 0u);
  }
  return static_cast<std::uint8_t>(sum);
}

/// All products of one factor.
inline const std::array<std::uint8_t, 256>& products_of(std::uint8_t factor) {
  static const auto all = [] {
    std::array<std::array<std::uint8_t, 256>, 256> made{};
    for (unsigned a = 0; a < 256; ++a)
      for (unsigned b = 0; b < 256; ++b)
        made[a][b] = field_product(static_cast<std::uint8_t>(a), static_cast<std::uint8_t>(b));
    return made;
  }();
  return all[factor];
}

/// A set with all that its members have, in memory.
struct kept_set {
  cairn::redundancy_set members;
  std::vector<redundancy_bytes> images;
  std::vector<redundancy_bytes> pieces;
  std::vector<cairn::detail::member_tables> tables;

  [[nodiscard]] const redundancy_bytes& of(const cairn::member_range& from) const {
    return (from.piece ? pieces : images)[static_cast<std::size_t>(from.member)];
  }
  [[nodiscard]] cairn::set_survivors all() const {
    return {std::vector<bool>(members.size(), true), std::vector<bool>(members.size(), true)};
  }
};

inline kept_set make_kept_set(const std::vector<std::uint64_t>& bytes, std::mt19937_64& random) {
  kept_set made;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    made.members.push_back({.rank = static_cast<std::int32_t>(100 + 7 * i), .bytes = bytes[i]});
    redundancy_bytes image(static_cast<std::size_t>(bytes[i]));
    fill_random(image, random());
    made.images.push_back(std::move(image));
  }
  return made;
}
/// Strips that ascend, cover so many bytes, and whose sources are there.
inline void check_strips(const kept_set& set, const std::vector<cairn::redundancy_strip>& strips,
                         std::uint64_t bytes) {
  std::uint64_t at = 0;
  for (const auto& strip : strips) {
    REQUIRE(strip.begin == at);
    REQUIRE(strip.bytes > 0);
    REQUIRE_FALSE(strip.sources.empty());
    REQUIRE(strip.sources.size() == strip.factors.size());
    REQUIRE(std::find(strip.factors.begin(), strip.factors.end(), 0) == strip.factors.end());
    for (const auto& from : strip.sources) {
      const auto length = from.piece ? set.pieces[static_cast<std::size_t>(from.member)].size()
                                     : set.images[static_cast<std::size_t>(from.member)].size();
      REQUIRE(from.begin + strip.bytes <= length);
    }
    at += strip.bytes;
  }
  REQUIRE(at == bytes);
}
/// What strips give, by the definition of a strip.
inline redundancy_bytes computed_slowly(const kept_set& set,
                                        const std::vector<cairn::redundancy_strip>& strips,
                                        std::uint64_t bytes) {
  redundancy_bytes made(static_cast<std::size_t>(bytes));
  for (const auto& strip : strips)
    for (std::size_t s = 0; s < strip.sources.size(); ++s) {
      const auto& product = products_of(strip.factors[s]);
      const auto* from = set.of(strip.sources[s]).data() + strip.sources[s].begin;
      auto* to = made.data() + strip.begin;
      for (std::uint64_t i = 0; i < strip.bytes; ++i)
        to[i] ^= static_cast<std::byte>(product[static_cast<std::uint8_t>(from[i])]);
    }
  return made;
}
/// Gives each member the piece that it keeps.
inline void encode_pieces(kept_set& set, const cairn::any_redundancy& by) {
  for (std::int32_t member = 0; static_cast<std::size_t>(member) < set.members.size(); ++member) {
    const auto strips = by.encoding(set.members, member);
    const auto bytes = by.overhead(set.members, member);
    check_strips(set, strips, bytes);
    for (const auto& strip : strips)
      for (const auto& from : strip.sources) {
        REQUIRE_FALSE(from.piece);
        REQUIRE(from.member != member);
      }
    set.pieces.push_back(computed_slowly(set, strips, bytes));
  }
  for (std::size_t i = 0; i < set.members.size(); ++i)
    set.tables.push_back({cairn::detail::blocks_of(set.images[i]), cairn::detail::blocks_of(set.pieces[i])});
}
inline cairn::detail::rebuild_report rebuild_from(const kept_set& set, const cairn::any_redundancy& by,
                                                  std::int32_t member, const cairn::set_survivors& survivors,
                                                  redundancy_bytes& out) {
  out.assign(set.images[static_cast<std::size_t>(member)].size(), std::byte{0xee});
  const auto read = [&](const cairn::member_range& from, std::span<std::byte> to) {
    const auto index = static_cast<std::size_t>(from.member);
    if (!(from.piece ? survivors.pieces : survivors.images)[index]) {
      FAIL("what does not survive was read");
    }
    std::copy_n(set.of(from).begin() + static_cast<std::ptrdiff_t>(from.begin), to.size(), to.begin());
    return true;
  };
  return cairn::detail::rebuild_image(by, set.members, member, survivors, set.tables, read, out);
}
/// Members that are lost, at random.
inline std::vector<std::int32_t> some_members(std::size_t of, std::size_t count, std::mt19937_64& random) {
  std::vector<std::int32_t> all(of);
  for (std::size_t i = 0; i < of; ++i) all[i] = static_cast<std::int32_t>(i);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(count);
  return all;
}
inline cairn::set_survivors without(const kept_set& set, const std::vector<std::int32_t>& lost) {
  auto left = set.all();
  for (const auto member : lost)
    left.images[static_cast<std::size_t>(member)] = left.pieces[static_cast<std::size_t>(member)] = false;
  return left;
}

/// The suite. `max_members`: the most that a set of it has.
template <cairn::Redundancy R>
void redundancy_conformance(const R& model, std::size_t max_members) {
  const cairn::any_redundancy by(model);
  std::mt19937_64 random(18);
  const auto tolerated = static_cast<std::size_t>(by.tolerated());
  REQUIRE(tolerated >= 1);
  REQUIRE(max_members > tolerated);
  REQUIRE(by.every >= 1);

  for (std::int32_t members = 1; members < 300; ++members) {
    const auto sets = by.set_count(members);
    REQUIRE(sets >= 1);
    if (members > by.tolerated()) REQUIRE(members / sets > by.tolerated());
  }

  const auto any_size = [&] { return tolerated + 1 + random() % (max_members - tolerated); };
  for (std::uint64_t round = 0; round < rounds(120); ++round) {
    CAPTURE(round);
    // Lengths: equal, about equal, anything, and some of nothing.
    const auto kind = round % 4;
    const std::uint64_t usual = 1 + random() % 30'000;
    std::vector<std::uint64_t> bytes;
    for (std::size_t i = any_size(); i > 0; --i)
      bytes.push_back(kind == 0   ? usual
                      : kind == 1 ? usual + random() % 200
                      : kind == 2 ? random() % 30'000
                                  : (random() % 3 == 0 ? 0 : usual));
    auto set = make_kept_set(bytes, random);
    encode_pieces(set, by);
    const auto lost = some_members(bytes.size(), random() % (tolerated + 1), random);
    const auto survivors = without(set, lost);
    for (const auto member : lost) {
      const auto strips = by.rebuilding(set.members, member, survivors);
      check_strips(set, strips, bytes[static_cast<std::size_t>(member)]);
      for (const auto& strip : strips)
        for (const auto& from : strip.sources)
          REQUIRE((from.piece ? survivors.pieces : survivors.images)[static_cast<std::size_t>(from.member)]);
      redundancy_bytes made;
      CHECK(rebuild_from(set, by, member, survivors, made).bad.empty());
      REQUIRE(made == set.images[static_cast<std::size_t>(member)]);
    }
  }

  // One more is refused, by a sentence that says who is missing.
  for (std::uint64_t round = 0; round < rounds(20); ++round) {
    CAPTURE(round);
    std::vector<std::uint64_t> bytes(any_size(), 5'000 + random() % 4'000);
    auto set = make_kept_set(bytes, random);
    encode_pieces(set, by);
    const auto lost = some_members(bytes.size(), tolerated + 1, random);
    int refused = 0;
    for (const auto member : lost) {
      redundancy_bytes made;
      try {
        rebuild_from(set, by, member, without(set, lost), made);
        CHECK(made == set.images[static_cast<std::size_t>(member)]);
      } catch (const cairn::peer_error& e) {
        ++refused;
        CHECK(e.id() == cairn::error_id::peer_lost);
        for (const auto missing : lost)
          CHECK(e.message().find(std::to_string(set.members[static_cast<std::size_t>(missing)].rank)) !=
                std::string::npos);
      }
    }
    CHECK(refused > 0);
  }

  // A bit that has flipped in anything that is read is found: another source is taken, or none of it counts.
  std::size_t others = 0;
  for (std::uint64_t round = 0; round < rounds(60); ++round) {
    CAPTURE(round);
    std::vector<std::uint64_t> bytes(any_size());
    for (auto& b : bytes) b = 2000 + random() % 9'000;
    auto set = make_kept_set(bytes, random);
    encode_pieces(set, by);
    const auto lost = some_members(bytes.size(), 1 + random() % tolerated, random);
    const auto survivors = without(set, lost);
    const auto strips = by.rebuilding(set.members, lost[0], survivors);
    const auto& strip = strips[random() % strips.size()];
    const auto& from = strip.sources[random() % strip.sources.size()];
    auto& hit = (from.piece ? set.pieces : set.images)[static_cast<std::size_t>(from.member)];
    hit[static_cast<std::size_t>(from.begin + random() % strip.bytes)] ^=
        static_cast<std::byte>(1u << random() % 8);
    redundancy_bytes made;
    try {
      const auto report = rebuild_from(set, by, lost[0], survivors, made);
      REQUIRE(made == set.images[static_cast<std::size_t>(lost[0])]);
      REQUIRE_FALSE(report.bad.empty());
      CHECK(report.bad[0].member == from.member);
      CHECK(report.bad[0].piece == from.piece);
      CHECK_FALSE(report.bad[0].gone);
      ++others;
    } catch (const cairn::peer_error& e) {
      CHECK(e.id() == cairn::error_id::peer_lost);
      CHECK(lost.size() == tolerated);
    }
  }
  if (tolerated > 1) CHECK(others > 0);

  // Any alignment and length, and nothing beside it is written.
  for (std::uint64_t round = 0; round < rounds(60); ++round) {
    CAPTURE(round);
    auto set = make_kept_set(std::vector<std::uint64_t>(any_size(), 5'000), random);
    encode_pieces(set, by);
    const auto strips = by.encoding(set.members, 0);
    const auto& strip = strips[random() % strips.size()];
    const auto skipped = random() % strip.bytes;
    const auto length = static_cast<std::size_t>(random() % (strip.bytes - skipped + 1));
    std::vector<redundancy_bytes> shifted;
    std::vector<const std::byte*> sources;
    for (const auto& from : strip.sources) {
      const auto shift = random() % 65;
      shifted.emplace_back(length + shift);
      std::copy_n(set.of(from).begin() + static_cast<std::ptrdiff_t>(from.begin + skipped), length,
                  shifted.back().begin() + static_cast<std::ptrdiff_t>(shift));
      sources.push_back(shifted.back().data() + shift);
    }
    const auto before = static_cast<std::size_t>(random() % 65);
    redundancy_bytes out(before + length + 64, std::byte{0xa5});
    by.combine(strip.factors, sources, std::span(out).subspan(before, length));
    const auto right = set.pieces[0].begin() + static_cast<std::ptrdiff_t>(strip.begin + skipped);
    REQUIRE(std::equal(right, right + static_cast<std::ptrdiff_t>(length),
                       out.begin() + static_cast<std::ptrdiff_t>(before)));
    REQUIRE(std::all_of(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(before),
                        [](std::byte b) { return b == std::byte{0xa5}; }));
    REQUIRE(std::all_of(out.end() - 64, out.end(), [](std::byte b) { return b == std::byte{0xa5}; }));
  }
}

}  // namespace cairn_test
