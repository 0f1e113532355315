// SPDX-License-Identifier: Apache-2.0
#pragma once
// The least that satisfies Redundancy. It withholds what models usually have: default construction, assignment,
// options that are plain numbers, calls on anything but a const lvalue.
#include <cairn/concepts/redundancy.hpp>
#include <cairn/system/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn_test {

/// Every member keeps the image of the one behind it.
class redundancy_archetype {
  struct number {
    operator int() const { return 1; }
  };
  struct name {
    operator const std::string&() const {
      static const std::string empty;
      return empty;
    }
  };

 public:
  const number every{};
  const name failure_group{};

  /// The only way to make one.
  static redundancy_archetype make() { return redundancy_archetype(1); }
  redundancy_archetype(const redundancy_archetype&) = default;
  redundancy_archetype& operator=(const redundancy_archetype&) = delete;
  void operator&() const = delete;

  int tolerated() const& { return 1; }
  std::int32_t set_count(std::int32_t) const& { return 1; }
  std::uint64_t overhead(const cairn::redundancy_set& set, std::int32_t member) const& {
    return set[behind(set, member)].bytes;
  }
  std::vector<cairn::redundancy_strip> encoding(const cairn::redundancy_set& set,
                                                std::int32_t member) const& {
    return whole({.member = static_cast<std::int32_t>(behind(set, member))}, overhead(set, member));
  }
  std::vector<cairn::redundancy_strip> rebuilding(const cairn::redundancy_set& set, std::int32_t member,
                                                  const cairn::set_survivors& survivors) const& {
    const auto keeper = member == 0 ? set.size() - 1 : static_cast<std::size_t>(member) - 1;
    const auto& own = set[static_cast<std::size_t>(member)];
    if (own.bytes != 0 && !survivors.pieces[keeper])
      cairn::fail(cairn::error_id::peer_lost, "the image of rank " + std::to_string(own.rank) +
                                                  " is lost, and that of its keeper, rank " +
                                                  std::to_string(set[keeper].rank));
    return whole({.member = static_cast<std::int32_t>(keeper), .piece = true}, own.bytes);
  }
  void combine(std::span<const std::uint8_t>, std::span<const std::byte* const> sources,
               std::span<std::byte> out) const& {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = sources[0][i];
  }

 private:
  explicit redundancy_archetype(int) {}
  static std::size_t behind(const cairn::redundancy_set& set, std::int32_t member) {
    return (static_cast<std::size_t>(member) + 1) % set.size();
  }
  static std::vector<cairn::redundancy_strip> whole(cairn::member_range from, std::uint64_t bytes) {
    if (bytes == 0) return {};
    return {{.begin = 0, .bytes = bytes, .sources = {from}, .factors = {1}}};
  }
};
static_assert(cairn::Redundancy<redundancy_archetype>);

// Near misses: each differs from a Redundancy in one point.
struct no_redundancy_that_tolerates_much : redundancy_archetype {
  std::int64_t tolerated() const;
};
struct no_redundancy_that_hides_its_overhead : redundancy_archetype {
  void overhead(const cairn::redundancy_set&, std::int32_t) const;
};
struct no_redundancy_that_asks_for_all_images : redundancy_archetype {
  std::vector<cairn::redundancy_strip> rebuilding(const cairn::redundancy_set&, std::int32_t) const;
};
struct no_redundancy_that_changes : redundancy_archetype {
  void combine(std::span<const std::uint8_t>, std::span<const std::byte* const>, std::span<std::byte>);
};
struct no_redundancy_without_an_interval : redundancy_archetype {
  std::string every;
};
struct no_redundancy_that_stays : redundancy_archetype {
  no_redundancy_that_stays(const no_redundancy_that_stays&) = delete;
};
static_assert(!cairn::Redundancy<no_redundancy_that_tolerates_much>);
static_assert(!cairn::Redundancy<no_redundancy_that_hides_its_overhead>);
static_assert(!cairn::Redundancy<no_redundancy_that_asks_for_all_images>);
static_assert(!cairn::Redundancy<no_redundancy_that_changes>);
static_assert(!cairn::Redundancy<no_redundancy_without_an_interval>);
static_assert(!cairn::Redundancy<no_redundancy_that_stays>);

}  // namespace cairn_test
