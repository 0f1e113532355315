// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/spread_recovery.hpp>
#include <cairn/concepts/read_exchange.hpp>
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
    wire_writer out;
    out.put(static_cast<std::int32_t>(group_.rank())).put(first);
    std::vector<surveyed_save> saves;
    if (first == group_.rank()) {
      std::vector<std::string> damaged;
      saves = tier_->survey(damaged);
      if (rebuilder_ != nullptr) rebuilder_->survey(tier_->directory(), saves, damaged);
      tell(damaged);
      for (const auto& text : damaged) reasons += (reasons.empty() ? "" : "; ") + text;
    }
    put_survey(out, saves);
    return out.take();
  });
  const auto join = [](std::vector<std::byte> left, std::vector<std::byte> right) {
    left.insert(left.end(), right.begin(), right.end());
    return left;
  };
  const auto bytes = group_.tree_reduce_broadcast(std::move(own), join, until);
  first_of_.assign(static_cast<std::size_t>(group_.size()), 0);
  places_.clear();
  all_.clear();
  try {
    wire_reader in(bytes);
    for (int rank = 0; rank < group_.size(); ++rank) {
      const auto named = in.get<std::int32_t>();
      const auto first = in.get<std::int32_t>();
      if (named != rank || first < 0 || first >= group_.size()) in.fail_here("a rank is in no place");
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
CAIRN_BODY std::vector<held_step> spread_recovery::found() const {
  std::vector<held_step> steps;
  for (const auto& save : all_) {
    const auto lost = lost_of(save);
    // A rank that no place has anything of may have had no time for the save: it was never whole.
    if (!save.has_plan || (!lost.empty() && rebuilder_ == nullptr)) continue;
    if (std::all_of(lost.begin(), lost.end(), [&](auto r) { return rebuilder_->obstacle(save, r).empty(); }))
      steps.push_back(held_step_of(save));
  }
  return steps;
}
CAIRN_BODY const surveyed_save* spread_recovery::find(const held_step& which) const {
  for (const auto& save : all_)
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
template <class Has>
const spread_recovery::place* spread_recovery::place_with(const surveyed_save& save, const Has& has) const {
  for (const auto& p : places_)
    for (const auto& s : p.saves)
      if (s.is_same_save(save) && has(s)) return &p;
  return nullptr;
}
CAIRN_BODY const spread_recovery::place& spread_recovery::own_place() const {
  const auto first = first_of_[static_cast<std::size_t>(group_.rank())];
  return *std::lower_bound(places_.begin(), places_.end(), first,
                           [](const place& p, std::int32_t f) { return p.first < f; });
}

/// Images that are rebuilt at once, each by one rank, in rounds: it asks the ranks that have what it needs, they answer,
/// and it goes on. A round begins with a word of each rank, so that what one throws all throw.
class spread_recovery::rebuild_rounds {
 public:
  rebuild_rounds(spread_recovery& of, const surveyed_save& save, const std::vector<std::int32_t>& lost)
      : of_(of), group_(of.group_), save_(save), mine_of_rank_(static_cast<std::size_t>(group_.size())) {
    using kind = rebuild_range::kind;
    for (const auto rank : lost) {
      const auto by = rank % group_.size();
      mine_of_rank_[static_cast<std::size_t>(by)].push_back(rank);
      auto& servers = servers_[by];
      for (const auto& p : save.pieces)
        if (contains(p.ranks, rank))
          for (const auto member : p.ranks)
            for (const auto what : {kind::image, kind::piece})
              if (const auto server = server_of({.rank = member, .what = what}, by);
                  !is_together(server, by) && !contains(servers, server))
                servers.push_back(server);
    }
  }
  void run(deadline until) {
    std::exception_ptr failure;
    const auto guarded = [&](auto&& body) {
      try {
        body();
      } catch (...) {
        if (failure == nullptr) failure = std::current_exception();
      }
    };
    const auto own = static_cast<std::size_t>(group_.rank());
    std::unique_ptr<rebuild_sources> sources;
    guarded([&] {
      sources = of_.rebuilder_->sources(of_.tier_->directory(), save_);
      try {
        for (const auto rank : mine_of_rank_[own])
          rebuilds_.push_back(of_.rebuilder_->begin(of_.tier_->directory(), save_, rank));
      } catch (const peer_error& e) {
        too_much_is_lost(e);
      }
    });
    for (;;) {
      wants_.assign(rebuilds_.size(), {});
      for (std::size_t i = 0; i < rebuilds_.size(); ++i)
        if (rebuilds_[i] != nullptr)
          guarded([&] {
            try {
              wants_[i] = rebuilds_[i]->next(window);
            } catch (const peer_error& e) {
              too_much_is_lost(e);
            }
            if (!wants_[i].empty()) return;
            auto notes = rebuilds_[i]->finish();
            rebuilds_[i].reset();
            notes_.insert(notes_.end(), std::make_move_iterator(notes.begin()),
                          std::make_move_iterator(notes.end()));
          });
      if (!go_on(failure, until)) break;
      exchange(*sources, guarded, until);
      for (std::size_t i = 0; i < rebuilds_.size(); ++i)
        if (rebuilds_[i] != nullptr && failure == nullptr)
          guarded([&] {
            try {
              rebuilds_[i]->take(parts_[i]);
            } catch (const peer_error& e) {
              too_much_is_lost(e);
            }
          });
    }
    of_.tell(notes_);
  }

 private:
  /// As a checkpoint that lacks a file: another one may load, while a peer that is gone ends the resume.
  [[noreturn]] static void too_much_is_lost(const peer_error& e) {
    fail(error_id::corrupt_missing_file, e.what(), {.rank = e.fields().rank});
  }
  /// Of what one rank gets in a round for one image, in bytes.
  static constexpr std::uint64_t window = std::uint64_t{32} << 20;

  /// Ranks that ask others in this round, by a bit each; nobody: all images are whole.
  [[nodiscard]] bool go_on(const std::exception_ptr& failure, deadline until) {
    const auto either = [](std::vector<std::byte> left, std::vector<std::byte> right) {
      for (std::size_t i = 0; i < left.size() && i < right.size(); ++i) left[i] |= right[i];
      return left;
    };
    if (failure != nullptr) {
      static_cast<void>(group_.tree_reduce_broadcast(collective_input(failure), either, until));
      std::rethrow_exception(failure);
    }
    std::vector<std::byte> bits((static_cast<std::size_t>(group_.size()) + 7) / 8);
    const auto own = static_cast<std::size_t>(group_.rank());
    for (const auto& r : rebuilds_)
      if (r != nullptr) bits[own / 8] |= std::byte{1} << static_cast<int>(own % 8);
    asking_ = group_.size() == 1 ? bits : group_.tree_reduce_broadcast(std::move(bits), either, until);
    return std::any_of(asking_.begin(), asking_.end(), [](std::byte b) { return b != std::byte{0}; });
  }
  /// Whether `rank` asks `other` in this round.
  [[nodiscard]] bool asks(int rank, int other) const {
    const auto at = static_cast<std::size_t>(rank);
    const auto servers = servers_.find(rank);
    return servers != servers_.end() && contains(servers->second, other) &&
           (asking_.at(at / 8) & (std::byte{1} << static_cast<int>(at % 8))) != std::byte{0};
  }
  [[nodiscard]] bool is_together(int a, int b) const {
    return of_.first_of_[static_cast<std::size_t>(a)] == of_.first_of_[static_cast<std::size_t>(b)];
  }
  /// Who has it. A rank of the place that it belongs to by its number, so that many share the work.
  [[nodiscard]] int server_of(const rebuild_range& r, int asking) const {
    const auto* const p = of_.place_with(save_, [&](const surveyed_save& s) {
      const auto is = [&](const auto& each) { return each.rank == r.rank; };
      return r.what == rebuild_range::kind::image ? std::any_of(s.images.begin(), s.images.end(), is)
                                                  : std::any_of(s.pieces.begin(), s.pieces.end(), is);
    });
    if (p == nullptr) return asking;  // it has not got it either
    return p->ranks[static_cast<std::size_t>(r.rank) % p->ranks.size()];
  }
  template <class Guarded>
  void exchange(rebuild_sources& sources, const Guarded& guarded, deadline until) {
    const auto own = group_.rank();
    const auto size = group_.size();
    // What this rank asks of each.
    std::vector<std::vector<std::pair<std::size_t, std::size_t>>> asked(static_cast<std::size_t>(size));
    parts_.assign(wants_.size(), {});
    for (std::size_t i = 0; i < wants_.size(); ++i) {
      parts_[i].resize(wants_[i].size());
      for (std::size_t k = 0; k < wants_[i].size(); ++k) {
        const auto server = server_of(wants_[i][k], own);
        if (is_together(server, own))
          guarded([&] { parts_[i][k] = sources.read(wants_[i][k]); });
        else
          asked[static_cast<std::size_t>(server)].emplace_back(i, k);
      }
    }
    if (size == 1) return;
    group_.begin_exchange();
    const auto send = [&](int to, wire_writer& text) {
      const auto bytes = text.take();
      raw_bytes message(bytes.size());
      std::copy(bytes.begin(), bytes.end(), message.data.get());
      guarded([&] { group_.send_message(to, message.message(), until); });
    };
    const auto head = group_.message_head();
    std::vector<std::vector<rebuild_range>> to_answer(static_cast<std::size_t>(size));
    // A rank that asks sends a list, which may be empty, to each that may have something; and each of these answers.
    for (int s = 1; s < size; ++s) {
      const auto to = (own + s) % size;
      if (asks(own, to)) {
        wire_writer text;
        text.raw(head).put(static_cast<std::uint64_t>(asked[static_cast<std::size_t>(to)].size()));
        for (const auto& [i, k] : asked[static_cast<std::size_t>(to)]) {
          const auto& r = wants_[i][k];
          text.put(r.rank).put(r.what).put(r.begin).put(r.bytes);
        }
        send(to, text);
      }
      const auto from = (own - s + size) % size;
      if (asks(from, own))
        guarded([&] {
          const auto message = group_.take_message(from, until);
          try {
            wire_reader in(message.view().subspan(head.size()));
            auto& list = to_answer[static_cast<std::size_t>(from)];
            list.resize(in.get_count(21));
            for (auto& r : list) {
              r.rank = in.get<std::int32_t>();
              r.what = in.get_enum(rebuild_range::kind::record);
              r.begin = in.get<std::uint64_t>(), r.bytes = in.get<std::uint64_t>();
            }
            in.finish();
          } catch (const wire_error&) {
            fail(error_id::peer_bad_message, "what a rank asks of an image arrived damaged", {.rank = from});
          }
        });
    }
    for (int s = 1; s < size; ++s) {
      const auto to = (own + s) % size;
      if (asks(to, own)) {
        wire_writer text;
        text.raw(head);
        for (const auto& r : to_answer[static_cast<std::size_t>(to)]) {
          std::vector<std::byte> bytes;
          guarded([&] { bytes = sources.read(r); });
          text.put(static_cast<std::uint64_t>(bytes.size())).raw(bytes);
        }
        send(to, text);
      }
      const auto from = (own - s + size) % size;
      if (asks(own, from))
        guarded([&] {
          const auto message = group_.take_message(from, until);
          try {
            wire_reader in(message.view().subspan(head.size()));
            for (const auto& [i, k] : asked[static_cast<std::size_t>(from)]) {
              const auto bytes = in.take(in.get_count(1));
              parts_[i][k].assign(bytes.begin(), bytes.end());
            }
            in.finish();
          } catch (const wire_error&) {
            fail(error_id::peer_bad_message, "the bytes that a rank sent of an image arrived damaged",
                 {.rank = from});
          }
        });
    }
  }

  spread_recovery& of_;
  collectives& group_;
  const surveyed_save& save_;
  std::vector<std::vector<std::int32_t>> mine_of_rank_;  // lost ranks, by who rebuilds them
  std::map<int, std::vector<int>> servers_;              // elsewhere, of each that rebuilds
  std::vector<std::unique_ptr<image_rebuild>> rebuilds_;
  std::vector<std::vector<rebuild_range>> wants_;
  std::vector<std::vector<std::vector<std::byte>>> parts_;
  std::vector<std::byte> asking_;
  std::vector<std::string> notes_;
};

/// Places that have none get the plan of a save.
CAIRN_BODY void spread_recovery::bring_plan(const surveyed_save& save, deadline until) {
  const auto has = [&](const place& p) {
    return std::any_of(p.saves.begin(), p.saves.end(), [&](const surveyed_save& s) {
      return s.plan_digest == save.plan_digest && s.has_plan;
    });
  };
  if (std::all_of(places_.begin(), places_.end(), has)) return;
  const auto from = std::find_if(places_.begin(), places_.end(), has);
  if (from == places_.end())
    fail(error_id::corrupt_missing_file, "no host has the plan of a save any more",
         {.expected = "step " + std::to_string(save.step)});
  const auto plan = group_.broadcast(from->first,
                                     group_.rank() == from->first
                                         ? collective_input::from([&] { return tier_->plan_of(save); })
                                         : collective_input(),
                                     until);
  on_each_rank(group_, until, [&] {
    if (!has(own_place()) && looks_after_place()) tier_->take_plan(save, plan);
  });
}

CAIRN_BODY void spread_recovery::make_complete(const held_step& which, deadline until) {
  const auto save = of(which);
  const auto lost = lost_of(save);
  if (lost.empty()) return;
  if (rebuilder_ == nullptr)
    fail(error_id::peer_lost, "the images of " + list_of_ranks(lost) + " are lost with their hosts",
         {.rank = lost.front()});
  bring_plan(save, until);
  rebuild_rounds(*this, save, lost).run(until);
  tier_->images_were_added();
  std::string reasons;
  survey(reasons, until);
  const auto* const now = find(which);
  if (now == nullptr || !lost_of(*now).empty())
    fail(error_id::corrupt_missing_file, "an image that was rebuilt is not there",
         {.expected = "step " + std::to_string(which.step)});
  if (!(rebuilt_of_ == which)) rebuilt_.clear();
  rebuilt_of_ = which;
  rebuilt_.insert(rebuilt_.end(), lost.begin(), lost.end());
}

CAIRN_BODY std::vector<std::byte> spread_recovery::manifest(const held_step& which, deadline until) {
  const auto& save = of(which);
  const auto* const from = place_with(save, [](const surveyed_save& s) { return s.has_plan; });
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
  for (const auto& p : places_)
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

CAIRN_BODY std::string spread_recovery::sources(const held_step& which) const {
  const auto* const save = find(which);
  if (save == nullptr) return {};
  std::size_t with = 0;
  for (const auto& p : places_)
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
