// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/surveyed_places.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::vector<std::byte> surveyed_places::encode(std::int32_t rank, std::int32_t first,
                                                          std::span<const surveyed_save> saves) {
  wire_writer out;
  out.put(rank).put(first);
  put_survey(out, saves);
  return out.take();
}

CAIRN_BODY void surveyed_places::decode(std::span<const std::byte> told, std::int32_t ranks) {
  first_of_.assign(static_cast<std::size_t>(ranks), 0);
  places_.clear();
  all_.clear();
  try {
    wire_reader in(told);
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      const auto named = in.get<std::int32_t>();
      const auto first = in.get<std::int32_t>();
      if (named != rank || first < 0 || first >= ranks) in.fail_here("a rank is in no place");
      first_of_[static_cast<std::size_t>(rank)] = first;
      auto at = std::lower_bound(places_.begin(), places_.end(), first,
                                 [](const place& p, std::int32_t f) { return p.first < f; });
      if (at == places_.end() || at->first != first)
        at = places_.insert(at, {.first = first, .ranks = {}, .saves = {}});
      at->ranks.push_back(rank);
      auto saves = get_survey(in);
      if (first == rank) at->saves = std::move(saves);
    }
    in.finish();
  } catch (const wire_error& e) {
    fail(error_id::peer_bad_message,
         std::string("the messages of the ranks about what their tiers hold are damaged: ") + e.what());
  }
  for (const auto& p : places_) add_survey(all_, p.saves);
}

CAIRN_BODY const surveyed_places::place& surveyed_places::of_rank(std::int32_t rank) const {
  const auto first = first_of_[static_cast<std::size_t>(rank)];
  return *std::lower_bound(places_.begin(), places_.end(), first,
                           [](const place& p, std::int32_t f) { return p.first < f; });
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
