// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/redundancy/kept_piece.hpp>
#include <cairn/redundancy/surviving_set.hpp>
#include <cairn/system/error.hpp>

#include <algorithm>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

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
           "that the job had",
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
