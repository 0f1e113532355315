// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/fetched_checkpoint.hpp>
#include <cairn/checkpointer/group_loading.hpp>
#include <cairn/checkpointer/group_parts.hpp>
#include <cairn/checkpointer/item_reading.hpp>
#include <cairn/checkpointer/kept_items.hpp>
#include <cairn/checkpointer/load_options.hpp>
#include <cairn/checkpointer/load_outcome.hpp>
#include <cairn/checkpointer/rank_load.hpp>
#include <cairn/checkpointer/restart_journal.hpp>
#include <cairn/checkpointer/saved_memory.hpp>
#include <cairn/checkpointer/steps_to_resume.hpp>
#include <cairn/checkpointer/tier_parts.hpp>
#include <cairn/concepts/any_planner.hpp>
#include <cairn/concepts/any_reader.hpp>
#include <cairn/concepts/device_access.hpp>
#include <cairn/concepts/image_tier.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/plan/load/load_planning.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Loads checkpoints, by all ranks together: one that is named, or the newest that loads on all of them. The
/// thread of training. `group` and `options` outlive it.
class loader {
 public:
  loader(std::shared_ptr<save_services> services, collectives& group, const checkpointer_options& options,
         std::shared_ptr<device_access> devices, owned<tier_loads> tier, sharing_begin sharing)
      : services_(std::move(services)),
        group_(group),
        options_(options),
        tier_(std::move(tier)),
        part_(group, options, std::move(devices), sharing) {}

  /// Collective: throws on all ranks what one of them throws.
  load_report load(any_load_planner& planner, const state_dict& state, std::int64_t step,
                   load_request request) {
    services_->reader().expect_reads();
    load_report report;
    auto opened = fetch(step, false);
    const auto verdict = attempt(planner, state, opened, std::move(request), report, false);
    if (verdict.failure != nullptr) rethrow_unless_removed(opened, verdict.failure);
    has_loaded(step, report, std::move(opened.lease));
    return report;
  }

  /// See checkpointer_base::refresh(); `step`: nothing for the newest. Collective: throws on all ranks what one of
  /// them throws.
  refresh_report refresh(any_load_planner& planner, const state_dict& state, const run_id& run,
                         std::optional<std::int64_t> step, load_request request) {
    request.rank = group_.rank();
    request.world_size = group_.size();
    if (saved_.begun()) remember_saved(planner, state, run, std::exchange(saved_, {}));
    const auto until = deadline::in(options_.timeout);
    for (;;) {
      const auto opened = step ? fetch(*step, false) : fetch_newest(group_, *services_, options_, until);
      refresh_report report;
      report.step = opened.step;
      const auto failure = refresh_from(planner, state, opened, request, report);
      if (failure == nullptr) {
        has_loaded(opened.step, report, {});  // who follows a run needs no step for longer than it reads it
        return report;
      }
      if (step) rethrow_unless_removed(opened, failure);
      // Removed since it was listed: there may be newer ones instead.
      if (!may_be_gone(failure)) std::rethrow_exception(failure);
      const auto steps = list_before(group_, *services_, options_, until);
      if (!steps || has_step(*steps, opened.step)) std::rethrow_exception(failure);
    }
  }
  /// See checkpointer_base::torn_items().
  [[nodiscard]] const std::vector<std::string>& torn_items() const noexcept { return part_.torn_items(); }
  /// A save of the memory of this state is about to begin, and training goes on: nothing else is known of it.
  void before_save(const state_dict& state) noexcept {
    part_.forget_memory();
    saved_.begin(state);
  }
  /// That save has begun.
  void has_begun(const save_handle& save) noexcept { saved_.set(save); }

  /// Ends what earlier runs have left, and loads the newest checkpoint (of the steps `among`, where given)
  /// that loads on all ranks, of the store or of the tier; then sets aside those that are damaged. Nothing where there is none. Collective.
  /// @throws storage_error (storage_nothing_loads); what would keep another checkpoint from loading, too; corrupt_error
  /// (corrupt_unsupported_feature, corrupt_unsupported_version) for one that is whole and that this program cannot read.
  std::optional<std::int64_t> resume(any_load_planner& planner, const state_dict& state, const run_id& run,
                                     const std::vector<std::int64_t>* among) {
    services_->reader().expect_reads();
    auto* const tier = among == nullptr ? tier_.get() : nullptr;
    if (tier != nullptr) tier->survey(peers());
    const auto is_needless = [&](const save_attempt& save) {
      return tier != nullptr && tier->holds_newer(save);
    };
    auto there = decode_steps_to_resume(read_once(
        group_,
        [&] { return encode(clean_and_list(*services_, run, options_, among == nullptr, is_needless)); },
        peers()));
    auto& steps = there.committed;
    const auto& crash_looping = there.crash_looping;
    if (tier != nullptr && there.waited) tier->survey(peers());
    std::string reasons;             // what the tier cannot read, first
    std::vector<std::int64_t> held;  // by the tier, ascending; a step again for each save of it
    if (tier != nullptr) held = tier->find(steps, reasons, peers());
    std::size_t refused = 0;  // of the tier
    int tries_of_step = 0;
    constexpr int max_tries_of_step = 8;
    const auto with_held = [&](std::vector<std::int64_t> all) {
      for (const auto step : held) {
        auto at = all.end();
        while (at != all.begin() && at[-1] > step) --at;
        if (at == all.begin() || at[-1] != step) all.insert(at, step);
      }
      return all;
    };
    auto avoided = avoid(with_held(steps), crash_looping);
    const auto max_skipped = static_cast<std::size_t>(options_.max_fallback);
    const auto until = deadline::in(options_.timeout);
    std::vector<std::int64_t> passed, damaged;
    bool found = !reasons.empty();
    while (passed.size() <= max_skipped) {
      const auto step = newest_to_try(with_held(steps), among, passed, avoided);
      if (!avoided.empty() && (!step || passed.size() + avoided.size() > max_skipped)) {
        avoided.clear();  // nothing else loads
        continue;
      }
      if (!step) break;
      found = true;
      load_report report;
      const bool from_tier = has_step(held, *step);
      checkpoint_lease lease;
      auto verdict = attempt_to_resume(planner, state, *step, report, from_tier, lease);
      if (verdict.outcome == load_outcome::loaded) {
        // Only now: where nothing loads, whoever starts next is to find the same, and not an empty store.
        for (const auto bad : damaged)
          if (!quarantine(bad))
            services_->report().warned("the manifest of step " + std::to_string(bad) +
                                       ", which is damaged, could not be moved aside");
        if (from_tier) report.sources = tier_->sources(*step);
        if (tier_ != nullptr) tier_->loaded(*step, from_tier, peers());
        report.from_tier = from_tier;
        store_has_resumed_ = !from_tier || (has_step(steps, *step) && tier_->is_in_store(*step, peers()));
        newest_stored_.reset();
        for (const auto stored : steps)  // the newer ones did not load
          if (stored < *step || (stored == *step && store_has_resumed_)) newest_stored_ = stored;
        if (store_has_resumed_) services_->found_in_store(*step);
        services_->set_base_step(*step, std::move(lease));
        services_->report().loaded(*step, report);
        warn_of_kept_items(services_->report(), report, *step);
        if (among == nullptr)
          services_->resumed(run, *step);
        else
          services_->loaded(*step);
        return *step;
      }
      lease.release();
      if (verdict.outcome == load_outcome::refused) std::rethrow_exception(verdict.failure);
      // Going on from an older one costs the steps since, and lets retention remove what is whole.
      const auto stop_at_it = [&](const char* why) {
        services_->report().warned("step " + std::to_string(*step) + why);
        std::rethrow_exception(verdict.failure);
      };
      if (verdict.outcome == load_outcome::unsupported && !from_tier)
        stop_at_it(
            " is not damaged, but this program cannot read it: it stays as it is, and no older one is taken "
            "instead; give the program what the error names and start again, or load(state, step) an older "
            "one by name");
      // Records of the tier say their version before their digest is compared: it may be a flipped bit.
      if (verdict.outcome == load_outcome::unsupported) verdict.outcome = load_outcome::damaged;
      if (from_tier && stays_held(verdict.failure))
        stop_at_it(
            " stays in the local tiers, as nothing is wrong with it: give the ranks what "
            "they lacked and start again, or start without local_tier{} to go on from "
            "the store, which costs the steps since");
      auto why = failure_text(verdict.failure);
      reasons += (reasons.empty() ? "step " : "; step ") + std::to_string(*step) + ": " + why;
      if (from_tier && verdict.outcome == load_outcome::damaged && tries_of_step++ < max_tries_of_step &&
          tier_->find_other_sources(*step, deadline::in(options_.timeout))) {
        services_->report().fell_back(*step, "as it was read first, and is tried with other sources: " + why);
        continue;
      }
      tries_of_step = 0;
      if (from_tier) {  // the store may have it
        auto tried = held.end();
        while (*--tried != *step) {
        }
        held.erase(tried);
        tier_->refused(*step);
        ++refused;
        services_->report().fell_back(*step, "as the local tier holds it: " + why);
        continue;
      }
      if (may_be_gone(verdict.failure)) {
        // Removed since it was listed: there may be newer ones instead.
        if (auto listed = list_before(group_, *services_, options_, until)) {
          steps = std::move(*listed);
          if (!has_step(steps, *step)) continue;
        }
      }
      passed.push_back(*step);
      if (group_.rank() == 0 && verdict.outcome == load_outcome::damaged && !options_.read_only) {
        damaged.push_back(*step);
        why +=
            " (if another one loads, its manifest is moved aside; its files stay, also beside a new save of "
            "this step, until remove() of it)";
      }
      services_->report().fell_back(*step, why);
    }
    if (found && passed.size() + refused == 0)
      fail(
          error_id::storage_nothing_loads,
          "the store has no checkpoint, and what the local tiers hold does not load; nothing was overwritten "
          "or given up; make good what the reasons name and start again, or remove the directories of the "
          "local tiers on all hosts to begin anew: " +
              reasons);
    if (found)
      fail(error_id::storage_nothing_loads,
           "checkpoints exist and none of the newest " + std::to_string(passed.size() + refused) +
               " loads; nothing was overwritten; repair the store, load(state, step) another one, or choose "
               "another directory to begin anew: " +
               reasons);
    store_has_resumed_ = true;
    newest_stored_.reset();
    if (among == nullptr && tier_ != nullptr) tier_->loaded(std::nullopt, false, peers());
    return std::nullopt;
  }

  /// Whether the last resume() took, or could have taken, what it did from the store; also where there was nothing.
  [[nodiscard]] bool store_has_resumed() const noexcept { return store_has_resumed_; }
  /// The newest checkpoint that the store had then, of those that may load.
  [[nodiscard]] std::optional<std::int64_t> newest_stored() const noexcept { return newest_stored_; }
  /// What a checkpoint of the store holds. Collective.
  stored_items items(std::int64_t step) {
    const auto manifest = read_once(
        group_, [&] { return services_->reader().fetch(step); }, peers());
    auto reader = services_->reader();
    auto opened = reader.open(step, manifest);
    return opened.metadata().items;
  }
  /// What was said about a checkpoint of the store. Collective.
  cairn::annotations annotations(std::int64_t step) {
    const auto manifest = read_once(
        group_, [&] { return services_->reader().fetch(step); }, peers());
    auto reader = services_->reader();
    auto opened = reader.open(step, manifest);
    return opened.metadata().annotations;
  }

  /// Reads one item of a checkpoint of the store into memory that `allocate` gives. Collective: throws on all ranks
  /// what one of them throws.
  void read_item(const std::string& name, std::int64_t step, dtype type, load_request request,
                 function_ref<void*(std::size_t)> allocate) {
    request.rank = group_.rank();
    request.world_size = group_.size();
    request.strict = false;
    const auto opened = fetch(step, false);
    std::exception_ptr failure;
    try {
      read_one_item(services_->reader(), name, step, opened.manifest, type, request, options_, allocate);
    } catch (...) {
      failure = std::current_exception();
    }
    load_report none;
    const auto verdict = agree_on_load(group_, failure, none, false, deadline::in(options_.timeout));
    if (verdict.failure != nullptr) rethrow_unless_removed(opened, verdict.failure);
  }

  /// See tier_recovery.
  [[nodiscard]] std::optional<tier_base> take_base() noexcept {
    return tier_ != nullptr ? tier_->take_base() : std::nullopt;
  }

 private:
  [[nodiscard]] deadline peers() const noexcept { return deadline::in(options_.peer_timeout); }
  load_verdict attempt_to_resume(any_load_planner& planner, const state_dict& state, std::int64_t step,
                                 load_report& report, bool held, checkpoint_lease& lease) {
    try {
      auto opened = fetch(step, held);
      lease = std::move(opened.lease);
      return attempt(planner, state, opened, {}, report, held);
    } catch (const peer_error&) {
      throw;
    } catch (const timeout_error&) {
      throw;
    } catch (...) {
      return {outcome_of(std::current_exception()), std::current_exception()};
    }
  }
  /// `held`: the save that the tier holds, not the checkpoint of the store. Collective.
  fetched_checkpoint fetch(std::int64_t step, bool held) {
    if (!held) return fetch_step(group_, *services_, options_, step);
    return {step, tier_->manifest(step, peers(), deadline::in(options_.timeout)), {}};
  }
  /// Of the store. `failure`: what kept it from being loaded, the same on all ranks. Collective.
  [[noreturn]] void rethrow_unless_removed(const fetched_checkpoint& opened,
                                           const std::exception_ptr& failure) {
    refuse_removed(group_, *services_, options_, opened, failure);
    std::rethrow_exception(failure);
  }
  /// What load() and refresh() do when all ranks have succeeded. `lease`: see save_services::set_base_step.
  void has_loaded(std::int64_t step, const load_report& report, checkpoint_lease lease) {
    services_->found_in_store(step);
    services_->set_base_step(step, std::move(lease));
    services_->loaded(step);
    if (tier_ != nullptr) tier_->loaded(step, false, peers());
    services_->report().loaded(step, report);
    warn_of_kept_items(services_->report(), report, step);
  }
  /// What kept a rank from bringing memory to this checkpoint; null for nothing. Memory changes only when all ranks
  /// are ready. Collective.
  std::exception_ptr refresh_from(any_load_planner& planner, const state_dict& state,
                                  const fetched_checkpoint& opened, const load_request& request,
                                  refresh_report& report) {
    rank_load::refresh under_way;
    under_way.pass.what = block_pass::action::compare;
    under_way.pass.hash_memory = request.hash_memory;
    bool asked = false;
    bool ready = false;
    under_way.agree = [&](load_report& planned) {
      asked = true;
      const auto verdict =
          agree_on_load(group_, nullptr, planned, request.strict, deadline::in(options_.timeout));
      if (verdict.failure != nullptr) std::rethrow_exception(verdict.failure);
      refuse_unmatched(planned, state);
      ready = true;
    };
    std::exception_ptr failure;
    try {
      static_cast<load_report&>(report) = part_.load(planner, state, opened.step, opened.manifest, request,
                                                     services_->reader(), false, &under_way);
    } catch (...) {
      failure = std::current_exception();
    }
    load_report none;
    if (!asked || ready)
      failure = agree_on_load(group_, failure, none, false, deadline::in(options_.timeout)).failure;
    if (failure == nullptr) return nullptr;
    const auto& torn = ready ? under_way.changed : under_way.resized;
    part_.add_torn(torn);
    return failure;
  }
  /// Learns the digests of what this state's memory has been saved as, where that very save was committed; else
  /// nothing is known of it. Collective.
  void remember_saved(any_load_planner& planner, const state_dict& state, const run_id& run,
                      const saved_memory& saved) {
    if (!services_->reader().compares_blocks()) return;
    const auto answer = read_once(
        group_,
        [&]() -> std::vector<std::byte> {
          if (!saved.committed()) return {};
          try {
            auto& reader = services_->reader();
            wire_writer out;
            out.put(saved.step()).raw(reader.fetch(saved.step()));
            // After it: a run commits a step again only by a later save, so what was fetched is of this one.
            if (reader.run_of(saved.step()) == run) return out.take();
          } catch (const error&) {  // removed: everything is read
          }
          return {};
        },
        peers());
    if (answer.empty()) return;
    wire_reader in(answer);
    const auto step = in.get<std::int64_t>();
    const auto manifest = std::span(answer).subspan(sizeof step);
    rank_load::refresh nothing;
    nothing.pass.what = block_pass::action::remember;
    load_request request;
    request.rank = group_.rank();
    request.world_size = group_.size();
    request.strict = false;
    try {
      if (saved.is_of(state))
        part_.load(planner, state, step, manifest, request, services_->reader(), false, &nothing);
    } catch (...) {
      part_.forget_memory();
    }
  }
  /// `held`: see fetch().
  load_verdict attempt(any_load_planner& planner, const state_dict& state, const fetched_checkpoint& opened,
                       load_request request, load_report& report, bool held) {
    request.rank = group_.rank();
    request.world_size = group_.size();
    saved_.clear();
    std::exception_ptr failure;
    try {
      // What the tier of one host holds is read without messages: a rank that cannot leaves none of them waiting.
      report =
          part_.load(planner, state, opened.step, opened.manifest, request,
                     held ? tier_->reader(opened.step) : services_->reader(), held && tier_->is_spread());
    } catch (...) {
      failure = std::current_exception();
    }
    auto verdict = agree_on_load(group_, failure, report, request.strict, deadline::in(options_.timeout));
    if (verdict.outcome != load_outcome::loaded) return verdict;
    try {
      refuse_unmatched(report, state);
    } catch (...) {
      verdict = {load_outcome::refused, std::current_exception()};
    }
    return verdict;
  }
  /// Steps that are tried only when no other loads, as each run that resumed from them ended; tells of them.
  [[nodiscard]] std::vector<std::int64_t> avoid(const std::vector<std::int64_t>& steps,
                                                const std::vector<std::int64_t>& crash_looping) {
    auto chosen = choose_avoided(steps, crash_looping, static_cast<std::size_t>(options_.max_fallback) + 1);
    const auto runs = std::to_string(options_.max_restarts);
    for (const auto step : chosen.newer)
      services_->report().fell_back(
          step, "it loads, but " + runs +
                    " runs that resumed from it ended without a commit; it stays as it is, so that a save of "
                    "this step fails (max_restarts = 0 takes it again)");
    if (chosen.all_crash_looping && group_.rank() == 0)
      services_->report().warned(runs +
                                 " runs or more have resumed from each of the newest checkpoints and ended "
                                 "without a commit: the newest is taken all the same");
    return std::move(chosen.steps);
  }
  [[nodiscard]] bool quarantine(std::int64_t step) noexcept {
    try {
      return services_->writer().quarantine(step);
    } catch (...) {
      return false;
    }
  }

  std::shared_ptr<save_services> services_;
  collectives& group_;
  const checkpointer_options& options_;
  owned<tier_loads> tier_;  ///< null: none
  bool store_has_resumed_ = false;
  std::optional<std::int64_t> newest_stored_;
  rank_load part_;
  saved_memory saved_;  ///< since it was loaded
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
