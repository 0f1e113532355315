// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/group_loading.hpp>
#include <cairn/checkpointer/group_parts.hpp>
#include <cairn/checkpointer/item_reading.hpp>
#include <cairn/checkpointer/load_options.hpp>
#include <cairn/checkpointer/restart_journal.hpp>
#include <cairn/checkpointer/saved_memory.hpp>
#include <cairn/checkpointer/steps_to_resume.hpp>
#include <cairn/checkpointer/tier_parts.hpp>
#include <cairn/concepts/any_planner.hpp>
#include <cairn/concepts/any_reader.hpp>
#include <cairn/concepts/device_access.hpp>
#include <cairn/concepts/image_tier.hpp>
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/model/known_blocks.hpp>
#include <cairn/plan/load/load_changes.hpp>
#include <cairn/plan/load/load_plan_cache.hpp>
#include <cairn/plan/load/load_planning.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/callback.hpp>
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
        devices_(std::move(devices)),
        tier_(std::move(tier)),
        sharing_(sharing),
        cache_(options.cached_plans, options.cached_plan_bytes) {}

  /// Collective: throws on all ranks what one of them throws.
  load_report load(any_load_planner& planner, const state_dict& state, std::int64_t step,
                   load_request request) {
    services_->reader().expect_reads();
    load_report report;
    const auto verdict = attempt(planner, state, step, std::move(request), report, false);
    if (verdict.failure != nullptr) std::rethrow_exception(verdict.failure);
    has_loaded(step, report);
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
      const auto opened = step ? fetch(*step, false) : fetch_newest(until);
      refresh_report report;
      report.step = opened.step;
      const auto failure = refresh_from(planner, state, opened, request, report);
      if (failure == nullptr) {
        has_loaded(opened.step, report);
        return report;
      }
      // Removed since it was listed: there may be newer ones instead.
      if (step || !may_be_gone(failure)) std::rethrow_exception(failure);
      const auto steps = list_before(until);
      if (!steps || has_step(*steps, opened.step)) std::rethrow_exception(failure);
    }
  }
  /// See checkpointer_base::torn_items().
  [[nodiscard]] const std::vector<std::string>& torn_items() const noexcept { return torn_; }
  /// A save of the memory of this state is about to begin, and training goes on: nothing else is known of it.
  void before_save(const state_dict& state) noexcept {
    known_.clear();
    saved_.begin(state);
  }
  /// That save has begun.
  void has_begun(const save_handle& save) noexcept { saved_.set(save); }

  /// Ends what earlier runs have left, and loads the newest checkpoint (of the steps `among`, where given)
  /// that loads on all ranks, of the store or of the tier; sets aside those that are damaged. Nothing where there is none. Collective.
  /// @throws storage_error (storage_nothing_loads); what would keep another checkpoint from loading, too.
  std::optional<std::int64_t> resume(any_load_planner& planner, const state_dict& state, const run_id& run,
                                     const std::vector<std::int64_t>* among) {
    services_->reader().expect_reads();
    std::vector<std::int64_t> crash_looping;
    auto steps = decode_steps(read_once(
                                  group_,
                                  [&] {
                                    const auto there =
                                        clean_and_list(*services_, run, options_, among == nullptr);
                                    return encode_steps(there.committed, there.crash_looping);
                                  },
                                  peers()),
                              &crash_looping);
    std::string reasons;             // what the tier cannot read, first
    std::vector<std::int64_t> held;  // by the tier, ascending; a step again for each save of it
    if (among == nullptr && tier_ != nullptr) held = tier_->find(steps, reasons, peers());
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
    std::vector<std::int64_t> passed;
    bool found = !reasons.empty();
    while (passed.size() <= max_skipped) {
      const auto step = newest(with_held(steps), among, passed, avoided);
      if (!avoided.empty() && (!step || passed.size() + avoided.size() > max_skipped)) {
        avoided.clear();  // nothing else loads
        continue;
      }
      if (!step) break;
      found = true;
      load_report report;
      const bool from_tier = has_step(held, *step);
      checkpoint_lease lease;
      const auto verdict = attempt_to_resume(planner, state, *step, report, from_tier, lease);
      if (verdict.outcome == load_outcome::loaded) {
        if (from_tier) report.sources = tier_->sources(*step);
        if (tier_ != nullptr) tier_->loaded(*step, from_tier, peers());
        report.from_tier = from_tier;
        store_has_resumed_ = !from_tier || has_step(steps, *step);
        services_->set_base_step(*step, std::move(lease));
        services_->report().loaded(*step, report);
        report_kept_items(report, *step);
        if (among == nullptr) services_->resumed(run, *step);
        return *step;
      }
      lease.release();
      if (verdict.outcome == load_outcome::refused) std::rethrow_exception(verdict.failure);
      if (from_tier && stays_held(verdict.failure)) {
        services_->report().warned(
            "step " + std::to_string(*step) +
            " stays in the local tiers, as nothing is wrong with it: give the ranks what "
            "they lacked and start again, or start without local_tier{} to go on from "
            "the store, which costs the steps since");
        std::rethrow_exception(verdict.failure);
      }
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
        if (auto listed = list_before(until)) {
          steps = std::move(*listed);
          if (!has_step(steps, *step)) continue;
        }
      }
      passed.push_back(*step);
      if (group_.rank() == 0 && verdict.outcome == load_outcome::damaged && !options_.read_only)
        why += quarantine(*step) ? " (its manifest is moved aside; its files stay, also beside a new save of "
                                   "this step, until remove() of it)"
                                 : " (its manifest could not be moved aside)";
      services_->report().fell_back(*step, why);
    }
    if (found)
      fail(error_id::storage_nothing_loads,
           "checkpoints exist and none of the newest " + std::to_string(passed.size() + refused) +
               " loads; nothing was overwritten; repair the store, load(state, step) another one, or choose "
               "another directory to begin anew: " +
               reasons);
    store_has_resumed_ = true;
    if (among == nullptr && tier_ != nullptr) tier_->loaded(std::nullopt, false, peers());
    return std::nullopt;
  }

  /// Whether the last resume() took, or could have taken, what it did from the store; also where there was nothing.
  [[nodiscard]] bool store_has_resumed() const noexcept { return store_has_resumed_; }
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
    if (verdict.failure != nullptr) std::rethrow_exception(verdict.failure);
  }

  /// See tier_recovery.
  [[nodiscard]] std::optional<tier_base> take_base() noexcept {
    return tier_ != nullptr ? tier_->take_base() : std::nullopt;
  }

 private:
  [[nodiscard]] deadline peers() const noexcept { return deadline::in(options_.peer_timeout); }
  /// The newest step to try, of those `among`, where given, and neither passed over nor avoided.
  [[nodiscard]] static std::optional<std::int64_t> newest(const std::vector<std::int64_t>& steps,
                                                          const std::vector<std::int64_t>* among,
                                                          const std::vector<std::int64_t>& passed,
                                                          const std::vector<std::int64_t>& avoided) {
    for (auto s = steps.rbegin(); s != steps.rend(); ++s)
      if (!has_step(passed, *s) && !has_step(avoided, *s) && (among == nullptr || has_step(*among, *s)))
        return *s;
    return std::nullopt;
  }
  /// Whether a load may have failed because the checkpoint was removed; the same on all ranks.
  [[nodiscard]] static bool may_be_gone(const std::exception_ptr& failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const error& e) {
      return e.id() == error_id::storage_not_committed || e.id() == error_id::storage_not_found ||
             e.id() == error_id::corrupt_missing_file;
    } catch (...) {
      return false;
    }
  }
  /// Whether what the tier holds was not loaded for a limit of the host, which somebody can raise, as no place takes what
  /// is rebuilt, or as a rank was too slow: it is not given up for that. Where its own bytes cannot be read, that is a
  /// corrupt_error. The same on all ranks.
  [[nodiscard]] static bool stays_held(const std::exception_ptr& failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const storage_error& e) {
      return e.id() == error_id::storage_no_space || e.id() == error_id::storage_limit ||
             e.id() == error_id::storage_out_of_memory || e.id() == error_id::storage_permission ||
             e.id() == error_id::storage_io;
    } catch (const timeout_error&) {
      return true;
    } catch (...) {
      return false;
    }
  }
  /// What the store lists now; nothing where `until` has passed on rank 0, which decides for all: they began at
  /// different times. Collective.
  std::optional<std::vector<std::int64_t>> list_before(deadline until) {
    const auto listed = read_once(
        group_,
        [&] { return until.passed() ? std::vector<std::byte>() : encode_steps(services_->reader().list()); },
        peers());
    if (listed.empty()) return std::nullopt;
    return decode_steps(listed);
  }
  load_verdict attempt_to_resume(any_load_planner& planner, const state_dict& state, std::int64_t step,
                                 load_report& report, bool held, checkpoint_lease& lease) {
    try {
      return attempt(planner, state, step, {}, report, held, &lease);
    } catch (const peer_error&) {
      throw;
    } catch (const timeout_error&) {
      throw;
    } catch (...) {
      return {outcome_of(std::current_exception()), std::current_exception()};
    }
  }
  /// A checkpoint whose manifest all ranks have, and which stays until all of them have read it.
  struct fetched_checkpoint {
    std::int64_t step = 0;
    std::vector<std::byte> manifest;
    checkpoint_lease lease;  ///< of rank 0, for all of them
  };
  /// `held`: the save that the tier holds, not the checkpoint of the store. Collective.
  fetched_checkpoint fetch(std::int64_t step, bool held) {
    fetched_checkpoint c;
    c.step = step;
    if (held) {
      c.manifest = tier_->manifest(step, peers(), deadline::in(options_.timeout));
      return c;
    }
    c.manifest = read_once(
        group_,
        [&] {
          if (!options_.read_only)
            c.lease = services_->lease(step, deadline::in(options_.peer_timeout / 2), true);
          return services_->reader().fetch(step);
        },
        peers());
    return c;
  }
  /// fetch() of the newest checkpoint of the store.
  fetched_checkpoint fetch_newest(deadline until) {
    fetched_checkpoint c;
    c.manifest = read_once(
        group_,
        [&] {
          for (;;) {
            const auto steps = services_->reader().list();
            if (steps.empty())
              fail(error_id::storage_not_committed,
                   "there is no committed checkpoint yet; cairn::follow waits for the first one");
            try {
              if (!options_.read_only)
                c.lease = services_->lease(steps.back(), deadline::in(options_.peer_timeout / 2), true);
              wire_writer out;
              out.put(steps.back()).raw(services_->reader().fetch(steps.back()));
              return out.take();
            } catch (const storage_error& e) {  // removed since it was listed
              if (e.id() != error_id::storage_not_committed || until.passed()) throw;
            }
          }
        },
        peers());
    wire_reader in(c.manifest);
    c.step = in.get<std::int64_t>();
    c.manifest.erase(c.manifest.begin(), c.manifest.begin() + sizeof c.step);
    return c;
  }
  /// What load() and refresh() do when all ranks have succeeded.
  void has_loaded(std::int64_t step, const load_report& report) {
    services_->set_base_step(step);
    if (tier_ != nullptr) tier_->loaded(step, false, peers());
    services_->report().loaded(step, report);
    report_kept_items(report, step);
  }
  /// A refresh under way on this rank.
  struct block_refresh {
    block_pass pass;
    callback<void(load_report&)> agree;  ///< the ranks agree that all are ready; what it throws, all throw
    std::vector<std::string> changed;    ///< names of items that it changed, or was about to
    std::vector<std::string> resized;    ///< of these, bytes that it gave another size before
  };
  /// What kept a rank from bringing memory to this checkpoint; null for nothing. Memory changes only when all ranks
  /// are ready. Collective.
  std::exception_ptr refresh_from(any_load_planner& planner, const state_dict& state,
                                  const fetched_checkpoint& opened, const load_request& request,
                                  refresh_report& report) {
    block_refresh under_way;
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
      static_cast<load_report&>(report) = load_part(planner, state, opened.step, opened.manifest, request,
                                                    services_->reader(), false, &under_way);
    } catch (...) {
      failure = std::current_exception();
    }
    load_report none;
    if (!asked || ready)
      failure = agree_on_load(group_, failure, none, false, deadline::in(options_.timeout)).failure;
    if (failure == nullptr) return nullptr;
    const auto& torn = ready ? under_way.changed : under_way.resized;
    torn_.insert(torn_.end(), torn.begin(), torn.end());
    detail::sort(torn_);
    detail::erase_repeated(torn_);
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
    block_refresh nothing;
    nothing.pass.what = block_pass::action::remember;
    load_request request;
    request.rank = group_.rank();
    request.world_size = group_.size();
    request.strict = false;
    try {
      if (saved.is_of(state))
        load_part(planner, state, step, manifest, request, services_->reader(), false, &nothing);
    } catch (...) {
      known_.clear();
    }
  }
  /// See fetch(). `lease` takes over that of the checkpoint.
  load_verdict attempt(any_load_planner& planner, const state_dict& state, std::int64_t step,
                       load_request request, load_report& report, bool held,
                       checkpoint_lease* lease = nullptr) {
    request.rank = group_.rank();
    request.world_size = group_.size();
    saved_.clear();
    auto opened = fetch(step, held);
    if (lease != nullptr) *lease = std::move(opened.lease);
    std::exception_ptr failure;
    try {
      // What the tier of one host holds is read without messages: a rank that cannot leaves none of them waiting.
      report = load_part(planner, state, step, opened.manifest, request,
                         held ? tier_->reader(step) : services_->reader(), held && tier_->is_spread());
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
  /// What a load left as it was: the first of them by name, and how many.
  void report_kept_items(const load_report& report, std::int64_t step) {
    constexpr std::size_t max_named = 5;
    const auto first_of = [&](const std::vector<std::string>& names, auto&& text) {
      std::string all;
      for (std::size_t i = 0; i < names.size() && i < max_named; ++i)
        all.append(i == 0 ? ": " : ", ").append(text(names[i]));
      if (names.size() > max_named) all += " and " + std::to_string(names.size() - max_named) + " more";
      return all;
    };
    const auto count = [](std::size_t n, const char* one, const char* more) {
      return n == 1 ? one : std::to_string(n) + more;
    };
    if (const auto& names = report.missing; !names.empty())
      services_->report().warned(
          count(names.size(), "an item is not in the checkpoint of step ",
                " items are not in the checkpoint of step ") +
          std::to_string(step) + (names.size() == 1 ? " and keeps its value" : " and keep their values") +
          first_of(names, [&](const std::string& name) {
            near_names similar(name);
            for (const auto& other : report.unexpected) similar.offer(other);
            const auto others = similar.text();
            return name + (others.empty() ? "" : " (the checkpoint has " + others + ")");
          }));
    if (const auto& names = report.mismatched; !names.empty())
      services_->report().warned(
          count(names.size(), "an item of the checkpoint of step ", " items of the checkpoint of step ") +
          std::to_string(step) +
          (names.size() == 1 ? " does not fit and keeps its value" : " do not fit and keep their values") +
          first_of(names, [](const std::string& name) { return name; }));
  }
  /// This rank's part of a load from a manifest that all ranks have: checks, plans, reads. Sends no message, but
  /// where the ranks share what several want: then all read together, and it ends alike on all ranks where one
  /// fails, but for what fails after the last exchange. `refreshing`: what no rank lacks is not read.
  load_report load_part(any_load_planner& planner, const state_dict& state, std::int64_t step,
                        std::span<const std::byte> manifest, load_request request, any_reader reader,
                        bool spread, block_refresh* refreshing = nullptr) {
    const auto begin = deadline::clock::now();
    const auto until = deadline::in(options_.timeout);
    std::optional<any_checkpoint> opened;
    load_plan plan;
    std::vector<callback<void()>> after;  // of a migration
    decltype(devices_->begin_load(options_.load_memory)) copies = nullptr;
    // All that can fail on one rank before the ranks read together.
    const auto open = [&] {
      opened.emplace(reader.open(step, manifest));
      const bool migrated = migrate(state, opened->metadata(), step, request, after);
      plan = plan_part(planner, state, opened->metadata(), step, manifest, request, !migrated);
      if (migrated) plan.report.migrated_from = opened->metadata().state_version;
      if (group_.size() == 1) refuse_unmatched(plan.report, state);
      for (auto rest : plan.fills) {
        const auto dimension = static_cast<int>(std::exchange(rest.chunk, 0u));
        const auto view = planner.resolve(state, opened->metadata(), rest).view;
        known_.forget({range_of(view)});
        request.changes->fill(state.entries()[rest.entry].name, dimension, view);
      }
      if (devices_ != nullptr) copies = devices_->begin_load(options_.load_memory);
    };
    std::shared_ptr<read_exchange> exchange;
    const bool reads = refreshing == nullptr || refreshing->pass.what != block_pass::action::remember;
    if (reads && sharing_ != nullptr && reader.shares() && (spread || options_.sharing == read_sharing::on) &&
        group_.size() > 1) {
      const auto open_first = [&]() -> const metadata& {
        open();
        return opened->metadata();
      };
      exchange = sharing_(group_, open_first, plan, spread, until);
    } else {
      open();
    }
    const metadata& stored = opened->metadata();
    const auto* changes = request.changes.get();
    const target_resolver resolver = [&](const cairn::read_item& item) {
      auto target = planner.resolve(state, stored, item);
      if (changes != nullptr)
        convert_target(*changes, state.entries()[item.entry], stored.items[item.stored], item, target);
      return target;
    };
    load_stages stages;
    block_pass all;
    auto& pass = refreshing != nullptr ? refreshing->pass : all;
    pass.known = &known_;
    pass.state = state.bindings();
    const auto begin_refresh = [&] {
      if (refreshing->agree) refreshing->agree(plan.report);
    };
    read_options how{.memory_budget = options_.load_memory, .devices = copies.get(), .stages = &stages};
    if (reader.compares_blocks()) {
      how.blocks = &pass;
      if (refreshing != nullptr) pass.ready = begin_refresh;
    } else {
      known_.clear();
    }
    const auto name_changed = [&] {
      for (std::size_t i = 0; i < pass.changed.size(); ++i) {
        const auto& name = state.entries()[plan.items[pass.changed[i]].entry].name;
        refreshing->changed.push_back(name);
        if (i < pass.resized) refreshing->resized.push_back(name);
      }
    };
    try {
      if (refreshing != nullptr && how.blocks == nullptr) {
        for (std::uint32_t i = 0; i < plan.items.size(); ++i) pass.changed.push_back(i);
        begin_refresh();
      }
      plan.report.bytes_read = exchange != nullptr
                                   ? reader.read_shared(*opened, state, plan, resolver, how, *exchange, until)
                                   : reader.read(*opened, state, plan, resolver, how, until);
      if (copies != nullptr) copies->finish(until);
    } catch (...) {
      if (refreshing != nullptr) name_changed();
      if (copies != nullptr) known_.clear();  // some of what was delivered did not arrive
      throw;
    }
    if (refreshing != nullptr) name_changed();
    if (!torn_.empty() && pass.what != block_pass::action::remember)
      for (const auto& item : plan.items) std::erase(torn_, state.entries()[item.entry].name);
    plan.report.stages = stages;
    plan.report.blocks = pass.blocks;
    plan.report.blocks_equal = pass.equal;
    if (!after.empty()) known_.clear();  // what it computes is in no checkpoint
    for (const auto& call : after) call();
    for (const auto& item : plan.items) {
      const auto& entry = state.entries()[item.entry];
      plan.report.bytes +=
          entry.kind == item_kind::bytes ? entry.bytes().size() : bytes_of(entry.type, item.box.volume());
    }
    plan.report.seconds = seconds_since(begin);
    return std::move(plan.report);
  }
  /// Asks the state what is different in a checkpoint of an older version; false where it is of the same one.
  static bool migrate(const state_dict& state, const metadata& stored, std::int64_t step,
                      load_request& request, std::vector<callback<void()>>& after) {
    const auto from = stored.state_version;
    const auto to = state.version();
    if (to == 0 || from == to) return false;
    if (from > to || !state.migrates())
      fail(error_id::plan_state_version,
           "the checkpoint of step " + std::to_string(step) +
               (from > to
                    ? " is of a newer version of the state than this program knows: load it with the program "
                      "that wrote it, or a newer one"
                    : " is of an older version of the state: say what has changed since with "
                      "state.migrate(hook), or give a hook that does nothing"),
           {.rank = request.rank,
            .expected = "version " + std::to_string(to),
            .got = from == 0 ? "no version" : "version " + std::to_string(from)});
    migration asked(from, to, stored.items, request, after);
    state.migrates()(asked);
    return true;
  }
  /// What this rank reads: the plan of an earlier load of the same checkpoint into a state of the same
  /// structure, or a new one. Planners without a fingerprint plan anew each time.
  load_plan plan_part(any_load_planner& planner, const state_dict& state, const metadata& stored,
                      std::int64_t step, std::span<const std::byte> manifest, const load_request& request,
                      bool repeated) {
    const auto begin = deadline::clock::now();
    load_plan_key key{.step = step,
                      .structure = state.structure(),
                      .world_size = request.world_size,
                      .rank = request.rank,
                      .strict = request.strict,
                      .only = request.only};
    auto fingerprint = planner.fingerprint();
    if (request.changes != nullptr || !repeated)
      fingerprint.reset();  // the key does not hold it, and such loads are not repeated
    if (fingerprint) {
      key.planner = *fingerprint;
      if (const auto found = cache_.find(key, manifest)) {
        auto plan = found->plan;
        plan.report.plan_cached = true;
        plan.report.plan_saved_seconds = found->seconds;
        plan.report.plan_seconds = seconds_since(begin);
        return plan;
      }
    }
    auto plan = planner.plan(state, stored, request);
    const auto seconds = seconds_since(begin);
    if (fingerprint) cache_.put(key, manifest, {plan, seconds});
    plan.report.plan_seconds = seconds;
    return plan;
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
  std::shared_ptr<device_access> devices_;
  owned<tier_loads> tier_;  ///< null: none
  sharing_begin sharing_;   ///< null: there is one rank
  bool store_has_resumed_ = false;
  load_plan_cache cache_;
  known_blocks known_;
  saved_memory saved_;             ///< since it was loaded
  std::vector<std::string> torn_;  ///< sorted
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
