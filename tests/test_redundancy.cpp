// SPDX-License-Identifier: Apache-2.0
// optimised
// uses: cairn::parity
// cost: 5
// What ranks keep of one another's images: conformance of each Redundancy, how ranks are divided into sets, and blocks of
// images that are verified.
#include <cairn/redundancy/failure_groups.hpp>
#include <cairn/redundancy/partner_copies.hpp>
#if CAIRN_USES_PARITY + 0
#include <cairn/redundancy/parity.hpp>
#endif
#include <cairn/redundancy/strip_reader.hpp>
#include <cairn/system/digest.hpp>

#include <doctest/doctest.h>
#include <support/redundancy_archetype.hpp>
#include <support/redundancy_conformance.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace {
using namespace cairn;
using namespace cairn_test;

TEST_CASE("the least redundancy is a redundancy") {
  redundancy_conformance(redundancy_archetype::make(), 3);
}
TEST_CASE("partner copies") {
  redundancy_conformance(partner_copies{}, 3);
  const partner_copies pairs;
  CHECK(pairs.set_count(2) == 1);
  CHECK(pairs.set_count(3) == 1);
  CHECK(pairs.set_count(8) == 4);
  CHECK(pairs.set_count(9) == 4);  // one of them has three members
  CHECK(pairs.overhead({{.rank = 0, .bytes = 10}, {.rank = 1, .bytes = 20}}, 0) == 20);
  CHECK_THROWS_AS(static_cast<void>(pairs.encoding({{.rank = 0, .bytes = 10}}, 0)), usage_error);
}

#if CAIRN_USES_PARITY + 0
TEST_CASE("parity, of every number of images and losses that sets have") {
  redundancy_conformance(parity{8, 1}, 9);
  redundancy_conformance(parity{4, 2}, 6);
  redundancy_conformance(parity{1, 1}, 2);
  redundancy_conformance(parity{3, 3}, 6);
  redundancy_conformance(parity{16, 4}, 20);
}

TEST_CASE("parity of every choice of members that may be lost") {
  std::mt19937_64 random(3);
  const any_redundancy by(parity{.data = 3, .losses = 3});
  for (std::size_t members = 4; members <= 6; ++members) {
    auto set = make_kept_set(std::vector<std::uint64_t>(members, 12'345), random);
    encode_pieces(set, by);
    for (unsigned choice = 1; choice < 1u << members; ++choice) {
      std::vector<std::int32_t> lost;
      for (std::size_t i = 0; i < members; ++i)
        if ((choice >> i & 1) != 0) lost.push_back(static_cast<std::int32_t>(i));
      for (const auto member : lost) {
        redundancy_bytes made;
        if (lost.size() > 3) {
          CHECK_THROWS_AS(rebuild_from(set, by, member, without(set, lost), made), peer_error);
        } else {
          rebuild_from(set, by, member, without(set, lost), made);
          REQUIRE(made == set.images[static_cast<std::size_t>(member)]);
        }
      }
    }
  }
}

TEST_CASE("parity costs what it says") {
  const redundancy_set nine(9, {.rank = 0, .bytes = 8 << 20});
  for (std::int32_t member = 0; member < 9; ++member) CHECK(parity{8, 1}.overhead(nine, member) == 1 << 20);
  const redundancy_set ten(10, {.rank = 0, .bytes = 8 << 20});
  CHECK(parity{8, 2}.overhead(ten, 3) == 2 << 20);
  CHECK(parity{8, 1}.set_count(9) == 1);
  CHECK(parity{8, 1}.set_count(10) == 2);
  CHECK(parity{8, 1}.set_count(90) == 10);
  CHECK(parity{1, 3}.set_count(5) == 1);  // two sets would not have more than three members
  for (const auto& wrong : {parity{0, 1}, parity{1, 0}, parity{127, 2}, parity{-1, 2}})
    CHECK_THROWS_AS(static_cast<void>(wrong.tolerated()), usage_error);
}
#endif

// --- Sets

using sets = std::vector<std::vector<std::int32_t>>;

/// What form_sets promises of what it gives.
void check_sets(const sets& made, const std::vector<std::string>& groups, std::int32_t wanted,
                int tolerated) {
  std::vector<int> seen(groups.size());
  std::size_t least = groups.size();
  std::size_t most = 0;
  for (const auto& set : made) {
    std::set<std::string> of;
    for (const auto rank : set) {
      ++seen[static_cast<std::size_t>(rank)];
      REQUIRE(of.insert(groups[static_cast<std::size_t>(rank)]).second);
    }
    REQUIRE(std::is_sorted(set.begin(), set.end()));
    least = std::min(least, set.size());
    most = std::max(most, set.size());
  }
  REQUIRE(std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; }));
  REQUIRE(std::is_sorted(made.begin(), made.end()));
  REQUIRE(most - least <= 1);
  REQUIRE(least > static_cast<std::size_t>(tolerated));
  REQUIRE(made.size() >= static_cast<std::size_t>(wanted));
}

TEST_CASE("sets of ranks never have two members of one group") {
  std::mt19937_64 random(7);
  std::size_t possible = 0;
  std::size_t impossible = 0;
  for (std::uint64_t round = 0; round < rounds(2000); ++round) {
    CAPTURE(round);
    const auto ranks = static_cast<std::int32_t>(1 + random() % 60);
    const auto names = 1 + random() % static_cast<std::uint64_t>(ranks);
    std::vector<std::string> groups;
    std::map<std::string, int> count;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      // Some as launchers place ranks, some at random.
      const auto g = round % 2 == 0
                         ? random() % names
                         : static_cast<std::uint64_t>(rank) * names / static_cast<std::uint64_t>(ranks);
      groups.push_back("host-" + std::to_string(g));
      ++count[groups.back()];
    }
    const int tolerated = static_cast<int>(1 + random() % 3);
    const auto wanted =
        std::max(1, ranks / static_cast<std::int32_t>(tolerated + 1 + static_cast<int>(random() % 8)));
    int largest = 0;
    for (const auto& [name, ranks_of] : count) largest = std::max(largest, ranks_of);
    // By counting alone: each rank of the largest group is in a set of its own.
    const bool can = std::max(largest, wanted) * (tolerated + 1) <= ranks;
    try {
      const auto made = form_sets(groups, wanted, tolerated);
      check_sets(made, groups, wanted, tolerated);
      REQUIRE(made == form_sets(groups, wanted, tolerated));
      REQUIRE(can);
      ++possible;
    } catch (const usage_error& e) {
      REQUIRE_FALSE(can);
      CHECK(e.id() == error_id::usage_bad_option);
      CHECK(count[groups[static_cast<std::size_t>(e.fields().rank)]] == largest);
      CHECK(e.message().find("'" + groups[static_cast<std::size_t>(e.fields().rank)] + "' has " +
                             std::to_string(largest)) != std::string::npos);
      ++impossible;
    }
  }
  CHECK(possible > 100);
  CHECK(impossible > 100);
}

TEST_CASE("sets of some jobs") {
  using groups = std::vector<std::string>;
  CHECK(form_sets(groups{"a", "b", "c", "d"}, 2, 1) == sets{{0, 2}, {1, 3}});
  // Eight ranks on four hosts: a pair is never on one host.
  check_sets(form_sets(groups{"a", "a", "b", "b", "c", "c", "d", "d"}, 4, 1),
             {"a", "a", "b", "b", "c", "c", "d", "d"}, 4, 1);
  CHECK(form_sets(groups{"a", "b", "c"}, 1, 1) == sets{{0, 1, 2}});
  CHECK(form_sets(groups{}, 1, 1).empty());
  // All on one host, which a job with a partner copy cannot be.
  CHECK_THROWS_WITH_AS(static_cast<void>(form_sets(groups{"one", "one"}, 1, 1)),
                       doctest::Contains("group 'one' has 2 of the 2 ranks"), usage_error);
  CHECK_FALSE(host_failure_group().empty());
}

TEST_CASE("ten thousand ranks are divided") {
  std::vector<std::string> groups;
  for (int rank = 0; rank < 10'000; ++rank) groups.push_back("node-" + std::to_string(rank / 8));
  check_sets(form_sets(groups, 10'000 / 9 + 1, 1), groups, 10'000 / 9 + 1, 1);
  check_sets(form_sets(groups, 5'000, 1), groups, 5'000, 1);
}

// --- Blocks

TEST_CASE("the table of an image") {
  redundancy_bytes image(3'500'000);
  cairn_test::fill_random(image, 11);
  const auto table = detail::blocks_of(image);
  CHECK(table.bytes() == image.size());
  CHECK(table.blocks() == 4);
  for (std::size_t block = 0; block < table.blocks(); ++block) {
    const auto begin = table.begin(block);
    const auto bytes = std::span<const std::byte>(image).subspan(
        static_cast<std::size_t>(begin), static_cast<std::size_t>(table.end(block) - begin));
    CHECK(table.fits(block, bytes));
    CHECK_FALSE(table.fits(block, bytes.first(bytes.size() - 1)));
    CHECK(table.block_at(begin) == block);
    CHECK(table.block_at(table.end(block) - 1) == block);
  }
  image[700] ^= std::byte{1};
  CHECK_FALSE(table.fits(0, std::span<const std::byte>(image).first(digest_block_bytes)));

  wire_writer out;
  detail::encode(out, table);
  wire_reader in(out.view());
  CHECK(detail::decode_block_table(in) == table);
  in.finish();
  for (std::size_t length = 0; length < out.size(); length += 7) {
    wire_reader cut(out.view().first(length));
    CHECK_THROWS_AS(static_cast<void>(detail::decode_block_table(cut)), wire_error);
  }
}

TEST_CASE("an image of some MiB is rebuilt, with blocks at other places in each image") {
  std::mt19937_64 random(13);
#if CAIRN_USES_PARITY + 0
  const any_redundancy by(parity{.data = 2, .losses = 2});
#else
  const any_redundancy by(partner_copies{});
#endif
  const auto members = static_cast<std::size_t>(by.tolerated()) + 2;
  std::vector<std::uint64_t> bytes;
  for (std::size_t i = 0; i < members; ++i) bytes.push_back((3 << 20) + random() % (2 << 20));
  auto set = make_kept_set(bytes, random);
  encode_pieces(set, by);
  // Blocks of any length, as small and large items have.
  for (std::size_t i = 0; i < members; ++i) {
    detail::block_table table;
    while (table.bytes() < bytes[i]) {
      const auto length = std::min<std::uint64_t>(
          bytes[i] - table.bytes(), 1 + random() % (random() % 2 == 0 ? 5000 : digest_block_bytes));
      table.add(length, digest(std::span(set.images[i])
                                   .subspan(static_cast<std::size_t>(table.bytes()),
                                            static_cast<std::size_t>(length))));
    }
    set.tables[i].image = table;
  }
  for (std::int32_t member = 0; static_cast<std::size_t>(member) < members; ++member) {
    const auto own = static_cast<std::size_t>(member);
    redundancy_bytes made(set.images[own].size());
    std::uint64_t read = 0;
    const auto count = [&](const member_range& from, std::span<std::byte> to) {
      read += to.size();
      std::copy_n(set.of(from).begin() + static_cast<std::ptrdiff_t>(from.begin), to.size(), to.begin());
      return true;
    };
    CHECK(detail::rebuild_image(by, set.members, member, without(set, {member}), set.tables, count, made)
              .bad.empty());
    CHECK(made == set.images[own]);
    // Each byte of a source once, and what is needed to verify the blocks at the ends of each part.
    std::uint64_t needed = 0;
    for (const auto& strip : by.rebuilding(set.members, member, without(set, {member})))
      needed += strip.bytes * strip.sources.size();
    CHECK(read <= needed + members * members * 2 * digest_block_bytes);
  }
}

TEST_CASE(
    "a source that is gone in the middle is replaced for the rest; pieces of something else are found out") {
  std::mt19937_64 random(17);
#if CAIRN_USES_PARITY + 0
  const any_redundancy by(parity{.data = 2, .losses = 2});
  auto set = make_kept_set(std::vector<std::uint64_t>(4, 5 << 20), random);
#else
  const any_redundancy by(partner_copies{});
  auto set = make_kept_set(std::vector<std::uint64_t>(2, 5 << 20), random);
#endif
  encode_pieces(set, by);
  const auto survivors = without(set, {0});
  const auto first = by.rebuilding(set.members, 0, survivors)[0].sources[0];
  redundancy_bytes made(set.images[0].size());
  int answered = 0;
  const auto dies = [&](const member_range& from, std::span<std::byte> to) {
    if (from.member == first.member && from.piece == first.piece && ++answered > 1) return false;
    std::copy_n(set.of(from).begin() + static_cast<std::ptrdiff_t>(from.begin), to.size(), to.begin());
    return true;
  };
  if (by.tolerated() > 1) {
    const auto report = detail::rebuild_image(by, set.members, 0, survivors, set.tables, dies, made);
    CHECK(made == set.images[0]);
    REQUIRE(report.bad.size() == 1);
    CHECK(report.bad[0].gone);
    CHECK(answered == 2);  // it is not asked again
  } else {
    CHECK_THROWS_AS(detail::rebuild_image(by, set.members, 0, survivors, set.tables, dies, made), peer_error);
  }

  // Pieces that are what they were when they were made, of another image.
  auto& piece = set.pieces[static_cast<std::size_t>(first.member)];
  if (first.piece) {
    piece[static_cast<std::size_t>(first.begin)] ^= std::byte{4};
    set.tables[static_cast<std::size_t>(first.member)].piece = detail::blocks_of(piece);
    CHECK_THROWS_AS(rebuild_from(set, by, 0, survivors, made), corrupt_error);
  }
}

}  // namespace
