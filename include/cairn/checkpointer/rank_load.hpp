// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/group_loading.hpp>
#include <cairn/checkpointer/group_parts.hpp>
#include <cairn/checkpointer/item_reading.hpp>
#include <cairn/checkpointer/load_options.hpp>
#include <cairn/concepts/any_planner.hpp>
#include <cairn/concepts/any_reader.hpp>
#include <cairn/concepts/device_access.hpp>
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/model/known_blocks.hpp>
#include <cairn/plan/load/load_changes.hpp>
#include <cairn/plan/load/load_plan_cache.hpp>
#include <cairn/plan/load/load_planning.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/callback.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// One rank's part of a load: it opens a checkpoint, migrates, plans and reads. It keeps the plans of earlier loads, and
/// what is known of the memory since. The thread of training. `group` and `options` outlive it.
class rank_load {
 public:
  /// One that loads only what differs, on this rank.
  struct refresh {
    block_pass pass;
    callback<void(load_report&)> agree;  ///< the ranks agree that all are ready; what it throws, all throw
    std::vector<std::string> changed;    ///< names of items that it changed, or was about to
    std::vector<std::string> resized;    ///< of these, bytes that it gave another size before
  };

  rank_load(collectives& group, const checkpointer_options& options, std::shared_ptr<device_access> devices,
            sharing_begin sharing)
      : group_(group),
        options_(options),
        devices_(std::move(devices)),
        sharing_(sharing),
        cache_(options.cached_plans, options.cached_plan_bytes) {}

  /// This rank's part of a load from a manifest that all ranks have: checks, plans, reads. Sends no message, but
  /// where the ranks share what several want: then all read together, and it ends alike on all ranks where one
  /// fails, but for what fails after the last exchange. `refreshing`: what no rank lacks is not read.
  load_report load(any_load_planner& planner, const state_dict& state, std::int64_t step,
                   std::span<const std::byte> manifest, load_request request, any_reader reader, bool spread,
                   refresh* refreshing = nullptr) {
    const auto begin = deadline::clock::now();
    const auto until = deadline::in(options_.timeout);
    std::optional<any_checkpoint> opened;
    load_plan plan;
    std::vector<callback<void()>> after;  // of a migration
    decltype(devices_->begin_load(options_.load_memory)) copies = nullptr;
    const auto fill_rests = [&] {
      for (auto rest : plan.fills) {
        const auto dimension = static_cast<int>(std::exchange(rest.chunk, 0u));
        const auto view = planner.resolve(state, opened->metadata(), rest).view;
        known_.forget({range_of(view)});
        request.changes->fill(state.entries()[rest.entry].name, dimension, view);
      }
    };
    // All that can fail on one rank before the ranks read together.
    const auto open = [&] {
      opened.emplace(reader.open(step, manifest));
      const bool migrated = migrate(state, opened->metadata(), step, request, after);
      plan = plan_part(planner, state, opened->metadata(), step, manifest, request, !migrated);
      if (migrated) plan.report.migrated_from = opened->metadata().state_version;
      if (group_.size() == 1) refuse_unmatched(plan.report, state);
      if (refreshing == nullptr) fill_rests();
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
      fill_rests();  // not before all ranks have found that they can begin: until then memory stays as it was
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
  /// Nothing is known any more of what the memory holds.
  void forget_memory() noexcept { known_.clear(); }
  /// See checkpointer_base::torn_items().
  [[nodiscard]] const std::vector<std::string>& torn_items() const noexcept { return torn_; }
  /// Items of which a failed refresh has changed a part, until a load brings them whole.
  void add_torn(const std::vector<std::string>& names) {
    torn_.insert(torn_.end(), names.begin(), names.end());
    detail::sort(torn_);
    detail::erase_repeated(torn_);
  }

 private:
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

  collectives& group_;
  const checkpointer_options& options_;
  std::shared_ptr<device_access> devices_;
  sharing_begin sharing_;  ///< null: there is one rank
  load_plan_cache cache_;
  known_blocks known_;
  std::vector<std::string> torn_;  ///< sorted
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
