// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// One rank of a redundancy_set.
struct set_member {
  std::int32_t rank = 0;    ///< in the job
  std::uint64_t bytes = 0;  ///< of its image
  friend bool operator==(const set_member&, const set_member&) = default;
};
/// Ranks that keep pieces for one another, with the images of one save. The same, in the same order, for all of them:
/// a member is named by its index.
using redundancy_set = std::vector<set_member>;

/// Bytes that a member of a set has.
struct member_range {
  std::int32_t member = 0;  ///< whose
  bool piece = false;       ///< of the piece that it keeps for the others; else of its image
  std::uint64_t begin = 0;  ///< the first of them
  friend bool operator==(const member_range&, const member_range&) = default;
};

/// A range of a piece or of an image, and what it is computed from: the sum of as many bytes of each source, each byte
/// multiplied by the factor of its source, in the field of 256 elements with the polynomial 0x11d. What the sources
/// do not have is no source: an image that is shorter than others counts as continued by zeros.
struct redundancy_strip {
  std::uint64_t begin = 0;            ///< in what is computed
  std::uint64_t bytes = 0;            ///< more than 0
  std::vector<member_range> sources;  ///< at least one
  std::vector<std::uint8_t> factors;  ///< one for each source, none of them 0
};

/// What is left of a set: one entry for each member.
struct set_survivors {
  std::vector<bool> images;  ///< its image is there
  std::vector<bool> pieces;  ///< the piece that it keeps is there
};

/// How ranks keep enough of one another's images that those which are lost with a host can be computed again: which
/// bytes each keeps, of what they are made, and what a lost image is made of. It reads and sends nothing, and knows
/// nothing of time: cairn brings the bytes, compares digests before any of them counts, and tries other sources where
/// one is missing or wrong.
///
/// - `every`: an int. Of every so many saves that are held, one gets its pieces; at least 1. Newest wins: a save whose
///   pieces are not complete when the next one is due goes without.
/// - `failure_group`: a std::string, the name of what is lost as a whole together with this rank, such as a rack. Empty:
///   the host. No set has two members of one group.
/// - `tolerated()`: how many members of any set may be lost with their images and their pieces, and every image is
///   still there or can be rebuilt. At least 1; a set has more members than that.
/// - `set_count(members)`: into how many sets so many ranks are divided, if their groups allow it. At least 1, and such
///   that sets of sizes that differ by at most one have more than tolerated() members; 1 where there are too few ranks.
/// - `overhead(set, member)`: the bytes of the piece that this member keeps.
/// - `encoding(set, member)`: of what that piece is made: strips in the order of their begins, which cover it without
///   gaps. Their sources are images of other members, each within its length.
/// - `rebuilding(set, member, survivors)`: of what the image of this member is made: strips in the order of their
///   begins, which cover it, with sources that survive. @pre `survivors` does not have that image. Throws peer_error
///   (peer_lost) naming the ranks whose loss is too much.
/// - `combine(factors, sources, out)`: computes a strip, or a range of one: `out` becomes the sum of factors[i] times
///   sources[i], each of which has out.size() bytes. They do not overlap `out`; no alignment is required. Cost: reading
///   all sources and writing `out` once, where it is called for up to 1 MiB at a time.
///
/// All are const, give the same on all ranks for the same arguments, and may be called by several threads at once. All
/// but combine() cost about members * tolerated() steps, and may throw std::bad_alloc. Each throws usage_error
/// (usage_bad_option) for options that no set can have.
template <class R>
concept Redundancy = std::copy_constructible<R> &&
                     requires(const R& r, const redundancy_set& set, std::int32_t member,
                              const set_survivors& survivors, std::span<const std::uint8_t> factors,
                              std::span<const std::byte* const> sources, std::span<std::byte> out) {
                       { r.every } -> std::convertible_to<int>;
                       { r.failure_group } -> std::convertible_to<const std::string&>;
                       { r.tolerated() } -> std::same_as<int>;
                       { r.set_count(member) } -> std::same_as<std::int32_t>;
                       { r.overhead(set, member) } -> std::same_as<std::uint64_t>;
                       { r.encoding(set, member) } -> std::same_as<std::vector<redundancy_strip>>;
                       {
                         r.rebuilding(set, member, survivors)
                       } -> std::same_as<std::vector<redundancy_strip>>;
                       { r.combine(factors, sources, out) } -> std::same_as<void>;
                     };

}  // namespace v1
}  // namespace cairn
