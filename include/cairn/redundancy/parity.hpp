// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::parity
#pragma once
#include <cairn/concepts/redundancy.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/redundancy/make_redundant_saves.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

/// A Redundancy: `parity{8, 1}` makes sets of 9 ranks, any one of which may be lost. Each image is cut into 8 parts, and
/// each rank keeps the parity of 8 parts of 8 other ranks: an eighth of an image, with images of one length. In general
/// `losses` of `data + losses` ranks may be lost, for losses / data of an image. Where the number of ranks is no multiple
/// of that, sets are smaller and cost more: losses / (members - losses), and never less safe.
///
/// The code is a systematic Reed-Solomon code with a Cauchy matrix (J. Bloemer et al., An XOR-Based Erasure-Resilient
/// Coding Scheme, 1995), as gf_gen_cauchy1_matrix of ISA-L (https://github.com/intel/isa-l) gives it, with columns scaled
/// such that the first parity is the plain sum. combine() is ISA-L's: about 9 GB/s of images on one core.
struct parity {
  using cairn_role = role::redundancy;

  int data = 8;                    ///< images whose parts share a parity; at least 1
  int losses = 1;                  ///< members of a set that may be lost; at least 1. Together at most 128
  int every = 1;                   ///< see Redundancy
  std::string failure_group = {};  ///< see Redundancy

  // See Redundancy.
  [[nodiscard]] int tolerated() const;
  [[nodiscard]] std::int32_t set_count(std::int32_t members) const;
  [[nodiscard]] std::uint64_t overhead(const redundancy_set& set, std::int32_t member) const;
  [[nodiscard]] std::vector<redundancy_strip> encoding(const redundancy_set& set, std::int32_t member) const;
  [[nodiscard]] std::vector<redundancy_strip> rebuilding(const redundancy_set& set, std::int32_t member,
                                                         const set_survivors& survivors) const;
  void combine(std::span<const std::uint8_t> factors, std::span<const std::byte* const> sources,
               std::span<std::byte> out) const;
};
static_assert(Redundancy<parity>);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_PARITY)
#include <cairn/impl/redundancy/parity.ipp>
#endif
