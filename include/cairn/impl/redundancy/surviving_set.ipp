// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/redundancy/kept_piece.hpp>
#include <cairn/redundancy/surviving_set.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <cstdint>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Which redundancy made a piece, as far as the sizes of the pieces of its set tell.
[[nodiscard]] inline std::string maker_of(const surveyed_save& all, const surveyed_piece& piece) {
  const auto members = static_cast<std::uint64_t>(piece.ranks.size());
  const auto image = *std::max_element(piece.bytes.begin(), piece.bytes.end());
  std::uint64_t bytes = 0;
  for (const auto& p : all.pieces)
    if (p.made_of == piece.made_of && p.ranks == piece.ranks) bytes = std::max(bytes, p.piece_bytes);
  if (members <= 3 && bytes == image) return "partner_copies{}";
  // With parity a piece has losses / (members - losses) of an image.
  const auto both = std::max<std::uint64_t>(1, image + bytes);
  const auto losses = std::max<std::uint64_t>(1, std::min(members - 1, (members * bytes + both / 2) / both));
  return "parity{" + std::to_string(members - losses) + ", " + std::to_string(losses) +
         "}, or another one with sets of " + std::to_string(members) + " ranks, of which " +
         std::to_string(losses) + " may be lost";
}

CAIRN_BODY set_that_is_left set_left(const surveyed_save& all, const any_redundancy& by, std::int32_t rank) {
  const auto of = std::find_if(all.pieces.begin(), all.pieces.end(), [&](const surveyed_piece& p) {
    return std::find(p.ranks.begin(), p.ranks.end(), rank) != p.ranks.end();
  });
  if (of == all.pieces.end())
    fail(error_id::peer_lost,
         "the image of rank " + std::to_string(rank) +
             " is lost, and no rank that is left keeps a piece of it",
         {.rank = rank});
  set_that_is_left found;
  for (std::size_t i = 0; i < of->ranks.size(); ++i)
    found.members.push_back({.rank = of->ranks[i], .bytes = of->bytes[i]});
  for (std::size_t i = 0; i < of->ranks.size(); ++i) {
    const auto member = of->ranks[i];
    if (member == rank) found.lost = static_cast<std::int32_t>(i);
    found.survivors.images.push_back(
        std::any_of(all.images.begin(), all.images.end(), [&](const auto& s) { return s.rank == member; }));
    const auto piece = std::find_if(all.pieces.begin(), all.pieces.end(), [&](const surveyed_piece& p) {
      return p.rank == member && p.made_of == of->made_of && p.ranks == of->ranks;
    });
    found.survivors.pieces.push_back(piece != all.pieces.end());
    if (piece != all.pieces.end() &&
        piece->made_by != fingerprint_of(by, found.members, static_cast<std::int32_t>(i)))
      fail(error_id::usage_bad_option,
           "the pieces of a save were made by another redundancy than the one that is given: give the one "
           "that the job had, which was " +
               maker_of(all, *piece) + ", as the sizes of the pieces tell",
           {.rank = member});
  }
  found.survivors.images[static_cast<std::size_t>(found.lost)] = false;
  return found;
}

CAIRN_BODY bool names_save(const held_name& name, const surveyed_save& save) {
  return name.run == save.run && name.attempt == save.attempt && name.step == save.step &&
         name.world_size == save.world_size && name.plan_digest == save.plan_digest;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
