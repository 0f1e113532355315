// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/group_loading.hpp>
#include <cairn/checkpointer/save_services.hpp>
#include <cairn/checkpointer/spread_recovery.hpp>
#include <cairn/checkpointer/tier_parts.hpp>
#include <cairn/concepts/image_rebuilder.hpp>
#include <cairn/concepts/image_tier.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What a job may resume from its tier, and what its saves go on from then. The thread of training. `group` outlives
/// it.
///
/// A tier may have stayed behind on a host while the job went on elsewhere. Each save that is held names the runs that
/// its own run knows of: where another run has made the newest checkpoint of the store, the job has been there since.
template <class = void>
class tier_recovery final : public tier_loads {
 public:
  /// `spread`: the same tier, where it is in several places; `rebuilder`: makes what is lost there again. Else both are null.
  tier_recovery(std::shared_ptr<image_tier> tier, std::shared_ptr<spread_tier> spread,
                std::shared_ptr<image_rebuilder> rebuilder, std::shared_ptr<save_services> services,
                collectives& group)
      : tier_(std::move(tier)), services_(std::move(services)), group_(group) {
    if (spread != nullptr)
      spread_ = make_owned<spread_recovery>(std::move(spread), std::move(rebuilder), services_, group_);
  }
  /// Whether readers read together; see spread_recovery.
  [[nodiscard]] bool is_spread() const noexcept override { return spread_ != nullptr; }

  void survey(deadline until) override {
    reasons_here_.clear();
    if (spread_ != nullptr) spread_->survey(reasons_here_, until);
  }
  [[nodiscard]] bool holds_newer(const save_attempt& save) override {
    // By chance one of 2^32 attempts of another run passes for one of this run.
    constexpr std::uint64_t most_saves = std::uint64_t{1} << 32;
    try {
      std::vector<std::string> damaged;  // find() tells
      return detail::any_of(spread_ != nullptr ? spread_->found() : tier_->held(damaged), [&](const auto& h) {
        return h.step >= save.step && save_count_of(h.run, save.step, save.attempt) < most_saves;
      });
    } catch (const error&) {
      return false;
    }
  }

  /// What the tier holds of all its ranks and the job may resume, ascending by step; the same on all of ours.
  /// `stored`: the steps of the store, ascending. `reasons`: gets what cannot be read.
  [[nodiscard]] std::vector<std::int64_t> find(const std::vector<std::int64_t>& stored, std::string& reasons,
                                               deadline until) override {
    const auto bytes = read_once(
        group_, [&] { return look(stored); }, until);
    wire_reader in(bytes);
    reasons = in.get_string();
    found_.resize(in.get_count(36));
    std::vector<std::int64_t> steps;
    for (auto& h : found_) {
      h = get_held(in);
      steps.push_back(h.step);
    }
    return steps;
  }
  /// A reader of a save that find() told.
  [[nodiscard]] any_reader reader(std::int64_t step) override {
    const auto& which = newest_of(step);
    return spread_ != nullptr ? spread_->reader(which) : tier_->reader(which);
  }
  /// The manifest of such a save, on all ranks; rebuilds images of it that are lost. Collective.
  [[nodiscard]] std::vector<std::byte> manifest(std::int64_t step, deadline until,
                                                deadline rebuilt_until) override {
    const auto& which = newest_of(step);
    if (spread_ == nullptr)
      return read_once(
          group_, [&] { return tier_->reader(which).fetch(step); }, until);
    spread_->make_complete(which, rebuilt_until);
    return spread_->manifest(which, until);
  }
  /// Such a save was not loaded, as something is damaged: whether there is another source of the same save now. Collective.
  [[nodiscard]] bool find_other_sources(std::int64_t step, deadline until) override {
    return spread_ != nullptr && spread_->find_other_sources(newest_of(step), until);
  }
  /// This save does not load.
  void refused(std::int64_t step) override {
    const auto& which = newest_of(step);
    given_up_.push_back(which);
    found_.erase(found_.begin() + (&which - found_.data()));
  }

  [[nodiscard]] bool is_in_store(std::int64_t step, deadline until) override {
    const auto look = [&] {
      bool is = false;
      try {
        is = tier_->is_stored_as(newest_of(step), services_->reader().fetch(step));
      } catch (const error&) {  // then the store is to get it
      }
      return std::vector<std::byte>{std::byte{is}};
    };
    return read_once(group_, look, until).at(0) != std::byte{0};
  }

  /// The job goes on from this step of the store, or, `from`, of the tier; nothing: it begins. Collective where the tier
  /// is in several places.
  void loaded(std::optional<std::int64_t> step, bool from_tier, deadline until) noexcept override {
    const auto* const from = from_tier ? &newest_of(*step) : nullptr;
    if (spread_ == nullptr) return note_loaded(step, from);
    note_loaded(step, from);
    try {
      tell_places(until);
      spread_->give_up_old_pieces(from);
    } catch (...) {
      services_->report().warned("other hosts may still hold saves that are not loaded",
                                 std::current_exception());
    }
  }
  /// What the saves to come go on from, once after each load; nothing but on rank 0.
  [[nodiscard]] std::optional<tier_base> take_base() noexcept override {
    return std::exchange(base_, std::nullopt);
  }
  /// Where the save that was loaded came from, in words; nothing where that is this host.
  [[nodiscard]] std::string sources(std::int64_t step) const override {
    return spread_ != nullptr ? spread_->sources(newest_of(step)) : std::string();
  }

 private:
  /// Of what find() told. @pre there is one
  [[nodiscard]] const held_step& newest_of(std::int64_t step) const noexcept {
    auto i = found_.size() - 1;
    while (found_[i].step != step) --i;
    return found_[i];
  }
  void note_loaded(std::optional<std::int64_t> step, const held_step* from) noexcept {
    if (group_.rank() != 0) return;
    try {
      if (spread_ == nullptr) {
        // Earlier saves of the same step: who chooses an image cannot tell which of them is newer.
        for (const auto& h : held_)
          if (from != nullptr && h.step == from->step && !(h.run == from->run && h.attempt == from->attempt))
            given_up_.push_back(h);
        const auto given_up = std::exchange(given_up_, {});
        for (const auto& each : given_up) tier_->withdraw(each);
      }
    } catch (...) {
      services_->report().warned("the local tier still has saves that are not loaded",
                                 std::current_exception());
    }
    tier_base base{.step = step, .runs = {}};
    know_held();
    if (from != nullptr) led_by(from->run);
    try {
      auto& reader = services_->reader();
      const auto stored = reader.list();
      if (step && from == nullptr) committed(reader.run_of(*step));
      if (!stored.empty() && (from != nullptr || stored.back() != step))
        committed(reader.run_of(stored.back()));
    } catch (...) {  // what is held may then be taken for older than a checkpoint that is as it was
      services_->report().warned(
          "the store does not tell who saved its newest checkpoint: where the job does not commit another "
          "one, "
          "its next start may pass over what the local tier holds",
          std::current_exception());
    }
    if (std::ssize(known_runs_) > max_runs)
      known_runs_.erase(known_runs_.begin() + max_runs / 2, known_runs_.end() - max_runs / 2);
    base.runs = known_runs_;
    base_ = std::move(base);
  }
  /// The saves to come are later than all that is held.
  void know_held() noexcept {
    try {
      std::vector<std::string> damaged;  // find() tells
      for (const auto& h : spread_ != nullptr ? held_ : tier_->held(damaged))
        if (!detail::contains(known_runs_, h.run)) known_runs_.push_back(h.run);
    } catch (...) {  // what another run left may be taken for newer than they, until it is given up
    }
  }
  /// Each place gives up what is not loaded.
  void tell_places(deadline until) {
    const auto make = [&] {
      wire_writer out;
      out.put(static_cast<std::uint64_t>(given_up_.size()));
      for (const auto& h : given_up_) put_held(out, h);
      return out.take();
    };
    const auto bytes = read_once(group_, make, until);
    given_up_.clear();
    if (!spread_->looks_after_place()) return;
    wire_reader in(bytes);
    std::vector<held_step> given_up(in.get_count(36));
    for (auto& h : given_up) h = get_held(in);
    for (const auto& each : given_up) tier_->withdraw(each);
  }
  static void put_held(wire_writer& out, const held_step& h) {
    out.put(h.step).put(h.run.high).put(h.run.low).put(h.attempt).put(h.world_size);
  }
  [[nodiscard]] static held_step get_held(wire_reader& in) {
    held_step h;
    h.step = in.get<std::int64_t>(), h.run.high = in.get<std::uint64_t>(),
    h.run.low = in.get<std::uint64_t>();
    h.attempt = in.get<std::uint64_t>(), h.world_size = in.get<std::int32_t>();
    return h;
  }
  static constexpr std::ptrdiff_t max_runs = 64;

  /// On rank 0.
  [[nodiscard]] std::vector<std::byte> look(const std::vector<std::int64_t>& stored) {
    std::vector<std::string> damaged;
    if (spread_ != nullptr) held_ = spread_->found();
    if (spread_ == nullptr) try {
        held_ = tier_->held(damaged);
      } catch (const storage_error& e) {
        // What a limit of this process hides is not to be taken for nothing: saves that follow would give it up.
        if (e.id() != error_id::storage_io) throw;
        damaged.emplace_back(e.what());
      } catch (const error& e) {
        damaged.emplace_back(e.what());
      }
    auto all = std::exchange(reasons_here_, {});  // told where they were found
    for (const auto& text : damaged) {
      services_->report().warned(text);
      all += (all.empty() ? "" : "; ") + text;
    }
    const auto left = spread_ == nullptr ? tier_->left_by_redundancy() : std::vector<held_step>();
    std::optional<run_id> newest;
    if (!held_.empty() || !left.empty() || spread_ != nullptr) newest = newest_run(stored);
    const auto found = descending_from(newest, stored);
    if (spread_ != nullptr) look_at_incomplete(newest, stored, found, all);
    refuse_without_redundancy(left, newest, stored, found);
    wire_writer out;
    out.put(std::string_view(all));
    out.put(static_cast<std::uint64_t>(found.size()));
    for (const auto& h : found) put_held(out, h);
    return out.take();
  }
  /// Of what is held, what is not older than the newest checkpoint of the store; tells of the rest.
  [[nodiscard]] std::vector<held_step> descending_from(const std::optional<run_id>& newest,
                                                       const std::vector<std::int64_t>& stored) {
    std::vector<held_step> found;
    for (const auto& h : held_) {
      if (knows_of(h, newest)) {
        found.push_back(h);
        continue;
      }
      given_up_.push_back(h);
      if (h.step > stored.back())
        services_->report().warned(
            "step " + std::to_string(h.step) +
            " in the local tier is not resumed: the job went on elsewhere since, and another run committed "
            "step " +
            std::to_string(stored.back()) + " of the store");
    }
    const auto all = found;
    std::erase_if(found, [&](const held_step& h) {
      const bool left =
          is_left_behind(h, all, [](const held_step& other) -> const held_step& { return other; });
      if (left) given_up_.push_back(h);
      return left;
    });
    return found;
  }
  /// Who made the newest checkpoint of the store that can be read; nothing: nobody tells. @throws storage_error
  [[nodiscard]] std::optional<run_id> newest_run(const std::vector<std::int64_t>& stored) {
    for (auto step = stored.rbegin(); step != stored.rend(); ++step) try {
        return services_->reader().run_of(*step);
      } catch (const corrupt_error&) {
      } catch (const storage_error& e) {
        // A store that does not answer now may have a newer one than this host knows of.
        if (e.id() != error_id::storage_not_committed) throw;
      }
    return std::nullopt;
  }
  [[nodiscard]] static bool knows_of(const held_step& h, const std::optional<run_id>& newest) {
    return !newest || h.run == *newest || !h.runs || detail::contains(*h.runs, *newest);
  }
  /// What lies in the tiers, is newer than what can be had, and cannot be resumed: tells of it. `reasons`: gets what must not
  /// be given up by beginning anew. @throws usage_error for pieces that another redundancy made
  void look_at_incomplete(const std::optional<run_id>& run, const std::vector<std::int64_t>& stored,
                          const std::vector<held_step>& found, std::string& reasons) {
    const auto newest = newest_to_have(stored, found);
    std::optional<spread_recovery::incomplete_save> left;
    for (auto& each : spread_->incomplete())
      if (is_wanted(each.which, run, newest, found)) left = std::move(each);
    if (!left) return;
    const auto step = "step " + std::to_string(left->which.step);
    if (!left->other.empty())
      fail(error_id::usage_bad_option, step + " in the local tiers lacks images that were lost, and " +
                                           left->other + advice_without_pieces(stored));
    const auto text = step + " in the local tiers cannot be completed: " + left->why;
    if (newest || left->is_first) {
      services_->report().warned(text + "; it is given up when the job " +
                                 (newest ? "goes on from step " + std::to_string(*newest) : "begins anew"));
      return;
    }
    reasons += (reasons.empty() ? "" : "; ") + text + "; bring back a host that has them";
  }
  /// @throws usage_error for pieces that a redundancy made, where this job has none and what can be had is older
  static void refuse_without_redundancy(const std::vector<held_step>& left, const std::optional<run_id>& run,
                                        const std::vector<std::int64_t>& stored,
                                        const std::vector<held_step>& found) {
    const auto newest = newest_to_have(stored, found);
    for (auto h = left.rbegin(); h != left.rend(); ++h)
      if (is_wanted(*h, run, newest, found))
        fail(error_id::usage_bad_option,
             "step " + std::to_string(h->step) +
                 " in the local tier lacks images that were on other hosts, and this job has not got the "
                 "redundancy that made pieces of them: give it the partner_copies or parity that it had" +
                 advice_without_pieces(stored));
  }
  [[nodiscard]] static std::string advice_without_pieces(const std::vector<std::int64_t>& stored) {
    return ". Nothing was given up. Where its sets do not fit the ranks any more, cairn-scavenge saves the "
           "step to the store; to " +
           (stored.empty() ? std::string("begin anew")
                           : "go on from step " + std::to_string(stored.back()) + " of the store") +
           " instead, remove the directories of the local tiers on all hosts";
  }
  [[nodiscard]] static std::optional<std::int64_t> newest_to_have(const std::vector<std::int64_t>& stored,
                                                                  const std::vector<held_step>& found) {
    std::optional<std::int64_t> newest;
    if (!stored.empty()) newest = stored.back();
    if (!found.empty()) newest = std::max(newest.value_or(found.back().step), found.back().step);
    return newest;
  }
  /// Whether a save that is not `found` is newer than what is.
  [[nodiscard]] static bool is_wanted(const held_step& h, const std::optional<run_id>& run,
                                      const std::optional<std::int64_t>& newest,
                                      const std::vector<held_step>& found) {
    return (!newest || h.step > *newest) && knows_of(h, run) &&
           !detail::any_of(found, [&](const held_step& other) {
             return !(other.run == h.run) && other.runs && detail::contains(*other.runs, h.run);
           });
  }
  /// This run goes on from what `run` held, and from what led to that.
  void led_by(const run_id& run) {
    for (const auto& h : held_)
      if (h.run == run && h.runs)
        for (const auto& each : *h.runs)
          if (!detail::contains(known_runs_, each)) known_runs_.push_back(each);
    std::erase(known_runs_, run);
    known_runs_.push_back(run);
  }
  /// Of a checkpoint that the store has now.
  void committed(const std::optional<run_id>& run) {
    if (!run) return;
    led_by(*run);
    known_runs_.pop_back();
    known_runs_.insert(known_runs_.begin(), *run);
  }

  const std::shared_ptr<image_tier> tier_;
  const std::shared_ptr<save_services> services_;
  collectives& group_;
  owned<spread_recovery> spread_;  // null: the tier is in one place
  std::string reasons_here_;
  std::vector<held_step> found_;  // what find() told, without what was refused
  // Of rank 0.
  std::vector<held_step> held_;      // all, as they were found
  std::vector<held_step> given_up_;  // that are not loaded
  // See tier_base::runs. First those that had committed the newest checkpoint of the store when a run began, the last of
  // them first; at the end those that led here, the last of them last. The next start looks for one of the newest of
  // both, so what is too much goes from the middle.
  std::vector<run_id> known_runs_;
  std::optional<tier_base> base_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
