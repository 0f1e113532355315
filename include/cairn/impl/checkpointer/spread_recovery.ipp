// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/rebuild_exchange.hpp>
#include <cairn/checkpointer/spread_recovery.hpp>
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <exception>
#include <iterator>
#include <map>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY spread_recovery::spread_recovery(std::shared_ptr<spread_tier> tier,
                                            std::shared_ptr<image_rebuilder> rebuilder,
                                            std::shared_ptr<save_services> services, collectives& group)
    : tier_(std::move(tier)),
      rebuilder_(std::move(rebuilder)),
      services_(std::move(services)),
      group_(group) {}

[[nodiscard]] inline held_step held_step_of(const surveyed_save& s) {
  held_step which{s.step, s.run, s.attempt, s.world_size};
  if (s.has_runs) which.runs = s.runs;
  return which;
}
[[nodiscard]] inline bool is_of_step(const surveyed_save& s, const held_step& which) {
  return s.run == which.run && s.attempt == which.attempt && s.step == which.step &&
         s.world_size == which.world_size;
}
[[nodiscard]] inline std::string list_of_ranks(const std::vector<std::int32_t>& ranks) {
  constexpr std::size_t most = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < most; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return ranks.size() > most ? text + " and " + std::to_string(ranks.size() - most) + " more" : text;
}

CAIRN_BODY void spread_recovery::tell(const std::vector<std::string>& notes) {
  for (const auto& note : notes) services_->report().warned(note);
}

CAIRN_BODY void spread_recovery::survey(std::string& reasons, deadline until) {
  // Each rank tells where it is; the first of a place what is there.
  auto own = collective_input::from([&] {
    const auto first = tier_->first_rank();
    std::vector<surveyed_save> saves;
    if (first == group_.rank()) {
      std::vector<std::string> damaged;
      saves = tier_->survey(damaged);
      if (rebuilder_ != nullptr) rebuilder_->survey(tier_->directory(), saves, damaged);
      tell(damaged);
      for (const auto& text : damaged) reasons += (reasons.empty() ? "" : "; ") + text;
    }
    return surveyed_places::encode(group_.rank(), first, saves);
  });
  const auto join = [](std::vector<std::byte> left, std::vector<std::byte> right) {
    left.insert(left.end(), right.begin(), right.end());
    return left;
  };
  places_.decode(group_.tree_reduce_broadcast(std::move(own), join, until), group_.size());
  if (group_.rank() != 0) return;
  // Its rank 0 had the plan before it held its image.
  for (const auto& save : places_.saves())
    if (!save.has_plan && can_be_whole(save)) {
      const auto text = "all images of the save of step " + std::to_string(save.step) +
                        " are there or can be rebuilt, but no local tier has its plan any more";
      tell({text});
      reasons += (reasons.empty() ? "" : "; ") + text;
    }
}

CAIRN_BODY std::vector<std::int32_t> spread_recovery::lost_of(const surveyed_save& save) {
  std::vector<std::int32_t> lost;
  auto image = save.images.begin();
  for (std::int32_t rank = 0; rank < save.world_size; ++rank)
    if (image != save.images.end() && image->rank == rank)
      ++image;
    else
      lost.push_back(rank);
  return lost;
}
/// A rank that no place has anything of may have had no time for the save: it was never whole.
CAIRN_BODY bool spread_recovery::can_be_whole(const surveyed_save& save) const {
  return detail::all_of(lost_of(save), [&](std::int32_t rank) {
    return rebuilder_ != nullptr && rebuilder_->obstacle(save, rank).empty();
  });
}
CAIRN_BODY std::vector<held_step> spread_recovery::found() const {
  std::vector<held_step> steps;
  for (const auto& save : places_.saves())
    if (save.has_plan && can_be_whole(save)) steps.push_back(held_step_of(save));
  order_by_runs(steps, [](const held_step& h) -> const held_step& { return h; });
  return steps;
}
CAIRN_BODY std::vector<spread_recovery::incomplete_save> spread_recovery::incomplete() const {
  std::vector<incomplete_save> found;
  for (const auto& save : places_.saves()) {
    const auto lost = lost_of(save);
    // A piece is made of images that were held.
    const auto has_piece_of = [&](std::int32_t rank) {
      return detail::any_of(save.pieces, [&](const auto& p) { return contains(p.ranks, rank); });
    };
    const auto had_no_time = [&](std::int32_t rank) {
      return !has_piece_of(rank) && detail::any_of(places_.saves(), [&](const surveyed_save& s) {
        return s.run == save.run && s.world_size == save.world_size &&
               detail::any_of(s.images, [&](const auto& image) { return image.rank == rank; });
      });
    };
    if (can_be_whole(save) || detail::any_of(lost, had_no_time)) continue;
    incomplete_save left;
    left.which = held_step_of(save);
    left.why = "no local tier has the " + std::string(lost.size() == 1 ? "image of " : "images of ") +
               list_of_ranks(lost);
    std::string obstacle;
    for (const auto rank : lost) {
      if (rebuilder_ == nullptr) continue;
      if (obstacle.empty()) obstacle = rebuilder_->obstacle(save, rank);
      if (left.other.empty()) left.other = rebuilder_->other_redundancy(save, rank);
    }
    if (!obstacle.empty()) left.why += ": " + obstacle;
    // Ranks that train together are at most one save apart.
    left.is_first = !detail::all_of(lost, has_piece_of) && save.runs.empty() &&
                    save_count_of(save.run, save.step, save.attempt) <= 2;
    found.push_back(std::move(left));
  }
  return found;
}
CAIRN_BODY const surveyed_save* spread_recovery::find(const held_step& which) const {
  for (const auto& save : places_.saves())
    if (is_of_step(save, which)) return &save;
  return nullptr;
}
CAIRN_BODY const surveyed_save& spread_recovery::of(const held_step& which) const {
  const auto* const save = find(which);
  if (save == nullptr)
    fail(error_id::corrupt_missing_file, "no host holds anything of this save any more",
         {.expected = "step " + std::to_string(which.step)});
  return *save;
}
/// Places that have none get the plan of a save. Returns the ranks whose place does not take it: such a one takes no image
/// either.
CAIRN_BODY std::vector<std::int32_t> spread_recovery::bring_plan(const surveyed_save& save, deadline until) {
  const auto has = [&](const surveyed_places::place& p) {
    return std::any_of(p.saves.begin(), p.saves.end(), [&](const surveyed_save& s) {
      return s.plan_digest == save.plan_digest && s.has_plan;
    });
  };
  place_failure_ = nullptr;
  if (detail::all_of(places_.places(), has)) return {};
  const auto from = std::find_if(places_.places().begin(), places_.places().end(), has);
  if (from == places_.places().end())
    fail(error_id::corrupt_missing_file, "no host has the plan of a save any more",
         {.expected = "step " + std::to_string(save.step)});
  const auto plan = group_.broadcast(from->first,
                                     group_.rank() == from->first
                                         ? collective_input::from([&] { return tier_->plan_of(save); })
                                         : collective_input(),
                                     until);
  auto own = collective_input::from([&] {
    try {
      if (!has(places_.of_rank(group_.rank())) && looks_after_place()) tier_->take_plan(save, plan);
    } catch (const storage_error&) {
      place_failure_ = std::current_exception();
      tell_refusal();
    }
    return std::vector<std::byte>{std::byte{place_failure_ != nullptr}};
  });
  const auto failed = group_.all_gather(std::move(own), until);
  std::vector<std::int32_t> refused;
  for (std::size_t rank = 0; rank < failed.size(); ++rank)
    if (failed[rank].at(0) != std::byte{0}) refused.push_back(static_cast<std::int32_t>(rank));
  return refused;
}
CAIRN_BODY void spread_recovery::tell_refusal() {
  services_->report().warned("this rank's place takes no image that was lost; another one is tried",
                             place_failure_);
}

/// Who rebuilds which image: the rank of its number, or the next one whose place takes images. Throws on all ranks what
/// kept one of them from taking any, where none is left.
CAIRN_BODY std::vector<rebuild_exchange::task> spread_recovery::share_out(
    const std::vector<std::int32_t>& lost, const std::vector<std::int32_t>& refused, deadline until) {
  std::vector<rebuild_exchange::task> tasks;
  for (const auto rank : lost)
    for (int tried = 0; tried < group_.size(); ++tried) {
      const auto by = (rank + tried) % group_.size();
      if (detail::any_of(refused, [&](auto r) { return places_.are_together(r, by); })) continue;
      tasks.push_back({.lost = rank, .by = by});
      break;
    }
  if (tasks.size() < lost.size()) group_.barrier(until, place_failure_);
  return tasks;
}

CAIRN_BODY void spread_recovery::make_complete(const held_step& which, deadline until) {
  const auto save = of(which);
  const auto lost = lost_of(save);
  if (lost.empty()) return;
  if (rebuilder_ == nullptr)
    fail(error_id::peer_lost, "the images of " + list_of_ranks(lost) + " are lost with their hosts",
         {.rank = lost.front()});
  auto refused = bring_plan(save, until);  // ranks whose place takes no image
  for (auto left = lost; !left.empty();) {
    const auto tasks = share_out(left, refused, until);
    rebuild_exchange exchange(places_, save, tasks, *rebuilder_, tier_->directory(), group_);
    exchange.run(until);
    tell(exchange.notes());
    place_failure_ = exchange.failure();
    if (place_failure_ != nullptr) tell_refusal();
    tier_->images_were_added();
    std::string reasons;
    survey(reasons, until);
    const auto* const now = find(which);
    left = now != nullptr ? lost_of(*now) : lost;
    if (!left.empty() && exchange.failed().empty())
      fail(error_id::corrupt_missing_file, "an image that was rebuilt is not there",
           {.expected = "step " + std::to_string(which.step)});
    refused.insert(refused.end(), exchange.failed().begin(), exchange.failed().end());
  }
  if (!(rebuilt_of_ == which)) rebuilt_.clear();
  rebuilt_of_ = which;
  rebuilt_.insert(rebuilt_.end(), lost.begin(), lost.end());
}

CAIRN_BODY std::vector<std::byte> spread_recovery::manifest(const held_step& which, deadline until) {
  const auto& save = of(which);
  const auto* const from = places_.place_with(save, [](const surveyed_save& s) { return s.has_plan; });
  if (from == nullptr)
    fail(error_id::corrupt_missing_file, "no host has the plan of a save any more",
         {.expected = "step " + std::to_string(save.step)});
  const auto make = [&] { return tier_->manifest_of(save); };
  if (group_.size() == 1) return make();
  return group_.broadcast(
      from->first, group_.rank() == from->first ? collective_input::from(make) : collective_input(), until);
}

CAIRN_BODY any_reader spread_recovery::reader(const held_step& which) {
  const auto& save = of(which);
  auto holders = std::make_shared<file_holders>();
  holders->of.resize(static_cast<std::size_t>(save.world_size));
  for (const auto& p : places_.places())
    for (const auto& s : p.saves)
      if (s.is_same_save(save))
        for (const auto& i : s.images) {
          // Of two images of one rank that are not the same, only those of the first place count.
          const auto known = std::lower_bound(save.images.begin(), save.images.end(), i.rank,
                                              [](const auto& a, std::int32_t rank) { return a.rank < rank; });
          if (known->record_digest != i.record_digest) continue;
          auto& of_rank = holders->of[static_cast<std::size_t>(i.rank)];
          of_rank.insert(of_rank.end(), p.ranks.begin(), p.ranks.end());
        }
  for (auto& each : holders->of) std::sort(each.begin(), each.end());
  return tier_->spread_reader(save, std::move(holders));
}

CAIRN_BODY bool spread_recovery::find_other_sources(const held_step& which, deadline until) {
  const auto* const save = find(which);
  std::exception_ptr failure;
  std::vector<std::string> notes;
  try {
    if (save != nullptr && looks_after_place()) notes = tier_->give_up_damaged(*save);
  } catch (...) {
    failure = std::current_exception();
  }
  tell(notes);
  const auto sum = [](std::vector<std::byte> left, std::vector<std::byte> right) {
    return wire_writer()
        .put(wire_reader(left).get<std::uint64_t>() + wire_reader(right).get<std::uint64_t>())
        .take();
  };
  auto own = failure != nullptr
                 ? collective_input(failure)
                 : collective_input(wire_writer().put(static_cast<std::uint64_t>(notes.size())).take());
  const auto given_up = group_.tree_reduce_broadcast(std::move(own), sum, until);
  if (wire_reader(given_up).get<std::uint64_t>() == 0) return false;  // it would fail again
  std::string reasons;
  survey(reasons, until);
  const auto* const now = find(which);
  return now != nullptr && contains(found(), held_step_of(*now));
}

CAIRN_BODY void spread_recovery::give_up_old_pieces(const held_step* from) {
  if (rebuilder_ == nullptr || places_.empty() || std::exchange(gave_up_pieces_, true)) return;
  if (!looks_after_place()) return;
  const auto there = found();
  const auto is_there = [&](const surveyed_save& s) { return contains(there, held_step_of(s)); };
  const auto has_all_pieces = [&](const surveyed_save& s) {
    std::int32_t next = 0;  // they ascend by rank
    for (const auto& piece : s.pieces) next += piece.rank == next;
    return next == s.world_size && is_there(s) && lost_of(s).empty();
  };
  const surveyed_save* redundant = nullptr;
  for (const auto& save :
       places_.saves()) {  // ascending; what is newer than the one that was loaded is given up
    if (from != nullptr && has_all_pieces(save)) redundant = &save;
    if (from != nullptr && is_of_step(save, *from)) break;
  }
  for (const auto& save : places_.saves()) {
    const bool stays = (from != nullptr && is_of_step(save, *from)) ||
                       (redundant != nullptr ? save.is_same_save(*redundant) : is_there(save));
    if (!stays && !save.pieces.empty()) rebuilder_->remove_pieces(tier_->directory(), save);
  }
}

CAIRN_BODY std::string spread_recovery::sources(const held_step& which) const {
  const auto* const save = find(which);
  if (save == nullptr) return {};
  std::size_t with = 0;
  for (const auto& p : places_.places())
    with += std::any_of(p.saves.begin(), p.saves.end(),
                        [&](const surveyed_save& s) { return s.is_same_save(*save) && !s.images.empty(); });
  std::string text = "from the tiers of " + std::to_string(with) + (with == 1 ? " host" : " hosts");
  if (rebuilt_of_ == which && !rebuilt_.empty()) {
    auto ranks = rebuilt_;
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    text += "; the images of " + list_of_ranks(ranks) +
            ", which were lost, were rebuilt from what the others kept";
  }
  return text;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
