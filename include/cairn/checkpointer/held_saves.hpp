// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/default_types.hpp>
#include <cairn/checkpointer/group_loading.hpp>
#include <cairn/checkpointer/options.hpp>
#include <cairn/checkpointer/persist_schedule.hpp>
#include <cairn/checkpointer/save_services.hpp>
#include <cairn/checkpointer/saves_with_pieces.hpp>
#include <cairn/checkpointer/tier_parts.hpp>
#include <cairn/comm/collectives.hpp>
#include <cairn/concepts/any_executor.hpp>
#include <cairn/concepts/image_tier.hpp>
#include <cairn/concepts/redundant_saves.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/plan/plan_cache.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The saves of a checkpointer with a tier: has each one held, by a thread of its own, and chooses those that go on
/// to the store. The thread of training. What it is given by reference outlives it.
///
/// A template, as tier_recovery: g++ compiles the only class that it sees behind an interface, also where nothing names it.
template <class = void>
class held_saves final : public tier_saves {
 public:
  /// `spread`: the same tier, where there is redundancy; else both are null.
  held_saves(std::shared_ptr<image_tier> tier, std::optional<persist> persisting,
             std::shared_ptr<save_services> services, std::shared_ptr<spread_tier> spread,
             owned<redundant_saves> redundancy)
      : tier_(std::move(tier)),
        spread_(std::move(spread)),
        persisting_(persisting),
        schedule_(persisting.value_or(persist{})),
        services_(std::move(services)),
        writer_(tier_->writer()),
        pieces_(redundancy != nullptr
                    ? detail::make_shared<saves_with_pieces>(std::move(redundancy), services_)
                    : nullptr),
        holder_(make_default_executor()) {
    if (pieces_ == nullptr) return;
    spread_->spread();
    spread_->when_held([pieces = std::weak_ptr(pieces_)](const held_step& which) {
      if (const auto there = pieces.lock()) there->held(which);
    });
  }

  /// Whether saves wait for no store.
  [[nodiscard]] bool decoupled() const noexcept override { return persisting_.has_value(); }
  [[nodiscard]] std::int32_t writers_at_once() const noexcept override {
    return persisting_ ? persisting_->writers_at_once : 0;
  }

  /// Opens the tier on all ranks. Collective: throws on all of them what one of them throws.
  void open(collectives& group, const run_id& run, const std::string& job,
            std::chrono::nanoseconds peer_timeout) override {
    const auto until = deadline::in(peer_timeout);
    const tier_user user{run, group.rank(), group.size(), job};
    static_cast<void>(read_once(
        group,
        [&] {
          tier_->open(user);
          return std::vector<std::byte>();
        },
        until));
    on_each_rank(group, until, [&] {
      if (group.rank() != 0) tier_->open(user);
    });
    if (pieces_ != nullptr) places_ = pieces_->open(group, spread_, peer_timeout);
  }
  [[nodiscard]] std::string describe_redundancy() const override {
    return pieces_ == nullptr ? std::string() : "; " + pieces_->describe();
  }
  /// Asks for the memory of all ranks before the first of them allocates any. Collective.
  void check_room(collectives& group, const image_layout& layout, deadline until) override {
    if (pieces_ != nullptr) return check_room_of_places(group, layout, until);
    const auto sum = [](std::vector<std::byte> left, std::vector<std::byte> right) {
      return wire_writer()
          .put(wire_reader(left).get<std::uint64_t>() + wire_reader(right).get<std::uint64_t>())
          .take();
    };
    auto all = wire_writer().put(tier_->missing(layout)).take();
    if (group.size() > 1) all = group.tree_reduce_broadcast(std::move(all), sum, until);
    const auto bytes = wire_reader(all).get<std::uint64_t>();
    if (bytes == 0) return;
    static_cast<void>(read_once(
        group,
        [&] {
          tier_->check_room(bytes);
          return std::vector<std::byte>();
        },
        until));
  }

  /// Whether the save of this count goes to the store, the same on all ranks. Before anything of it that may fail
  /// on one rank alone: counts are the same on all, whatever failed. `timeout`: of the save before it, which the store is
  /// late with from then on; what the ranks tell each other then takes up to `peer_timeout`.
  [[nodiscard]] bool goes_on(collectives& group, std::uint64_t save_count,
                             std::chrono::nanoseconds peer_timeout,
                             std::chrono::nanoseconds timeout) override {
    if (!persisting_) return true;
    if (!schedule_.asks(save_count)) return false;
    if (persisting_->strict && schedule_.due(save_count) && storing_ != nullptr && late_ == lateness::none &&
        !storing_->wait_finished(deadline::in(timeout)))
      late_ = lateness::to_throw;
    note_end_in_store();
    const bool busy_here = storing_ != nullptr;
    const bool late_here = busy_here && deadline::clock::now() - storing_->begun() >= timeout;
    constexpr auto nobody = std::numeric_limits<std::int32_t>::max();
    const auto later = [](std::vector<std::byte> left, std::vector<std::byte> right) {
      wire_reader a(left);
      wire_reader b(right);
      const auto busy = std::max(a.get<std::uint8_t>(), b.get<std::uint8_t>());
      const auto seconds = std::max(a.get<double>(), b.get<double>());
      const auto late = std::min(a.get<std::int32_t>(), b.get<std::int32_t>());
      const auto committed = std::max(a.get<std::uint8_t>(), b.get<std::uint8_t>());
      return wire_writer().put(busy).put(seconds).put(late).put(committed).take();
    };
    auto all = wire_writer()
                   .put(static_cast<std::uint8_t>(busy_here))
                   .put(seconds_since(went_at_))
                   .put(late_here ? group.rank() : nobody)
                   .put(static_cast<std::uint8_t>(committed_))
                   .take();
    if (group.size() > 1)
      all = group.tree_reduce_broadcast(std::move(all), later, deadline::in(peer_timeout));
    wire_reader in(all);
    const bool busy = in.get<std::uint8_t>() != 0;
    const auto seconds = in.get<double>();
    const auto late = in.get<std::int32_t>();
    const bool committed = in.get<std::uint8_t>() != 0;
    if (!schedule_.goes(save_count, busy, seconds, committed)) {
      if (late != nobody && ++kept_ == told_next_) {
        told_next_ *= 8;
        if (late == group.rank()) warn_of_late_store();
      }
      return false;
    }
    kept_ = 0, told_next_ = 1;
    went_at_ = deadline::clock::now();
    return true;
  }
  /// Where the store counts: throws, once, what kept the last save from it, or that it is late.
  void throw_failure_of_store() override {
    if (!persisting_ || !persisting_->strict) return;
    note_end_in_store();
    if (to_throw_ != nullptr) std::rethrow_exception(std::exchange(to_throw_, nullptr));
    if (late_ != lateness::to_throw) return;
    late_ = lateness::thrown;
    storing_->fail_late(error_id::timeout_commit,
                        "the store did not have an earlier save in time: this one is held by the local tier "
                        "alone, as the next ones are until the earlier one has ended");
  }
  /// The next save is to be staged, and may want the image of the last one.
  void make_room() noexcept override {
    if (newest_ != nullptr) store_has_all_ = false;  // until the next one is on its way
    newest_.reset();
  }
  /// What rank 0 tells of what was loaded, on all ranks, where each has a part of the tier. Collective.
  [[nodiscard]] std::optional<tier_base> base_for_all(collectives& group, std::optional<tier_base> base,
                                                      deadline until) const override {
    if (pieces_ == nullptr || group.size() == 1) return base;
    const auto bytes = read_once(
        group,
        [&] {
          wire_writer out;
          out.put(static_cast<std::uint8_t>(base.has_value()));
          if (!base) return out.take();
          out.put(static_cast<std::uint8_t>(base->step.has_value())).put(base->step.value_or(0));
          out.put(static_cast<std::uint64_t>(base->runs.size()));
          for (const auto& run : base->runs) out.put(run.high).put(run.low);
          return out.take();
        },
        until);
    wire_reader in(bytes);
    if (in.get<std::uint8_t>() == 0) return std::nullopt;
    tier_base told;
    const bool has_step = in.get<std::uint8_t>() != 0;
    told.step = in.get<std::int64_t>();
    if (!has_step) told.step.reset();
    told.runs.resize(in.get_count(2 * sizeof(std::uint64_t)));
    for (auto& run : told.runs) run.high = in.get<std::uint64_t>(), run.low = in.get<std::uint64_t>();
    return told;
  }
  /// What the job has loaded, on rank 0: the saves to come go on from it. `resumed`: it is at its beginning.
  void go_on_from(std::optional<tier_base> base, bool resumed) noexcept override {
    if (!base) return;
    base_ = std::move(base);
    if (resumed) try {
        tell_base(true);
      } catch (...) {  // the first save tries again, and tells
      }
  }
  /// Whether the store has the step that the job resumed, and the newest that it has.
  void resumed(bool in_store, std::optional<std::int64_t> stored) noexcept override {
    store_has_all_ = in_store;
    stored_ = stored;
    committed_ = false;
    if (!in_store) schedule_.store_lacks_step();  // a job that is restarted often would write nothing to it
  }
  /// Has the image held as soon as it is released. `alone`: the save goes to no store, and ends then.
  void hold(save_job job, std::uint64_t plan_digest, bool alone) override {
    const auto whole = job.progress;
    store_has_all_ = true;  // when close() has succeeded
    tell_if_stored(storing_);
    if (alone) {
      newest_ = make_owned<save_job>(job);
    } else {
      note_end_in_store();
      storing_ = whole;
    }
    job.progress = detail::make_shared<save_progress>(job.context.step);
    job.progress->set_image(job.image.control());
    job.image.carry_notes_of(job.progress);
    job.progress->on_end([whole, alone, services = services_, pieces = pieces_, context = job.context](
                             save_report&, const std::exception_ptr& why) {
      whole->set_held(why);
      if (why != nullptr && pieces != nullptr) pieces->not_held(context);
      if (alone && why == nullptr) return whole->set_held_alone();
      if (alone) return whole->set_failed(why);
      if (why != nullptr && !whole->finished())
        services->report().warned("the local tier does not hold the save of step " +
                                  std::to_string(whole->report().step) +
                                  ", which goes to the store alone: " + failure_text(why));
    });
    whole->begin_holding();
    if (pieces_ != nullptr) pieces_->expect(job.context, whole);
    try {
      tell_base(alone);
      if (job.metadata != nullptr) tier_->keep_plan(plan_digest, *job.metadata);
      job.writer = writer_;
      const auto progress = job.progress;
      try {
        holder_.submit(std::move(job));
      } catch (...) {
        progress->set_failed(std::current_exception());
      }
    } catch (...) {
      if (job.progress != nullptr) job.progress->set_failed(std::current_exception());
    }
  }
  /// The last save, where it was only held: its image is kept for the store. Null where there is none.
  [[nodiscard]] owned<save_job> take_newest() override { return std::move(newest_); }
  /// The job has ended in order, and the store has its last save. Where it made none, and what the tier holds may
  /// not be in the store, the tier stays as it is.
  void end() noexcept override {
    newest_.reset();
    // The store may have had a save before it was held.
    static_cast<void>(holder_.drain(deadline::in(holding_timeout)));
    const bool stays = !store_has_all_ && holds_some();
    if (pieces_ != nullptr) pieces_->end(!stays);
    if (stays) {
      services_->report().warned(
          "the local tier keeps what it holds, as this job saved nothing after it and the store may not have "
          "it; "
          "the next start finds it, or remove the directory of the tier");
      return;
    }
    tier_->end();
  }

 private:
  static constexpr std::chrono::seconds holding_timeout{30};
  /// Each place is asked for what its ranks need, for images and for pieces, by the lowest of them.
  void check_room_of_places(collectives& group, const image_layout& layout, deadline until) {
    const auto of_all = [&](auto&& own) {
      std::vector<std::byte> bytes;
      std::exception_ptr failure;
      try {
        bytes = wire_writer().put(std::uint64_t{own()}).take();
      } catch (...) {
        failure = std::current_exception();
      }
      const auto all =
          failure != nullptr ? group.all_gather(failure, until) : group.all_gather(std::move(bytes), until);
      std::vector<std::uint64_t> numbers;
      for (const auto& each : all) numbers.push_back(wire_reader(each).get<std::uint64_t>());
      return numbers;
    };
    const auto images = of_all([&] { return layout.bytes; });
    const auto needs = of_all([&] { return tier_->missing(layout) + pieces_->missing(images); });
    on_each_rank(group, until, [&] {
      std::uint64_t bytes = 0;
      for (std::size_t rank = 0; rank < needs.size(); ++rank)
        if (places_.at(rank) == group.rank()) bytes += needs[rank];
      if (bytes != 0) tier_->check_room(bytes);
    });
  }
  /// Where the save that went to the store last has ended.
  void note_end_in_store() noexcept {
    if (storing_ == nullptr || !storing_->finished()) return;
    const auto done = std::exchange(storing_, nullptr);
    committed_ |= done->committed();
    tell_if_stored(done);
    if (done->committed())
      stored_ = done->report().step;
    else if (persisting_ && persisting_->strict && late_ != lateness::thrown)
      to_throw_ = done->failure();
    late_ = lateness::none;
  }
  void warn_of_late_store() noexcept {
    services_->report().warned([&] {
      char age[32];
      std::snprintf(age, sizeof age, "%.0f s", seconds_since(storing_->begun()));
      return "the store does not have step " + std::to_string(storing_->report().step) +
             ", whose save began " + age + " ago, and " + std::to_string(kept_) +
             (kept_ == 1 ? " save that was due since is" : " saves that were due since are") +
             " in the local tier alone: a lost host costs all steps " +
             (stored_ ? "after " + std::to_string(*stored_) : std::string("of this run")) +
             ", but for those that are redundant, until a line tells of a commit. "
             "See whether the store answers";
    });
  }
  /// `alone`: the save that goes on from there, if there is one yet, goes to no store.
  void tell_base(bool alone) {
    if (!base_) return;
    // Nothing that was saved before becomes held after it.
    static_cast<void>(holder_.drain(deadline::in(holding_timeout)));
    tier_->go_on_from(*base_);
    told_base_ = std::exchange(base_, std::nullopt);
    stored_before_ = alone ? storing_ : nullptr;
  }
  /// Where the store has a save that goes on from there, and the tier does not hold it.
  void tell_if_stored(const std::shared_ptr<save_progress>& storing) noexcept {
    if (!told_base_ || storing == nullptr || storing == stored_before_ || !storing->committed() ||
        storing->held())
      return;
    try {
      told_base_->is_stored = true;
      tier_->go_on_from(*told_base_);
      told_base_.reset();
    } catch (...) {  // the next one that it has tries again
    }
  }
  [[nodiscard]] bool holds_some() const noexcept {
    try {
      if (spread_ != nullptr) return spread_->holds_any();
      std::vector<std::string> damaged;
      return !tier_->held(damaged).empty() || !damaged.empty();
    } catch (...) {
      return true;
    }
  }

  const std::shared_ptr<image_tier> tier_;
  const std::shared_ptr<spread_tier> spread_;  // null: it is in one place
  const std::optional<persist> persisting_;
  persist_schedule schedule_;
  deadline::clock::time_point went_at_ =
      deadline::clock::now();  // the last save to the store, or the beginning
  std::shared_ptr<save_services> services_;
  any_writer writer_;
  std::optional<tier_base> base_;                 // of the saves to come, where they have none yet
  std::optional<tier_base> told_base_;            // until the store has one of them
  std::shared_ptr<save_progress> stored_before_;  // what went to the store before the first of them
  bool store_has_all_ = false;              // that the tier holds, or will have it when close() has succeeded
  std::shared_ptr<save_progress> storing_;  // the save that went to the store last; null: it has ended
  // Where the store counts: whether it was waited for in vain, and what kept one before it from the store.
  enum class lateness : std::uint8_t { none, to_throw, thrown } late_ = lateness::none;
  std::exception_ptr to_throw_;
  std::optional<std::int64_t> stored_;  // the newest step that the store is known to have
  bool committed_ = false;              // a save since the job resumed
  std::uint64_t kept_ = 0;              // saves that were due, and did not go as the store is late
  std::uint64_t told_next_ = 1;         // as many of them are told
  owned<save_job> newest_;
  std::vector<std::int32_t> places_;           // see saves_with_pieces::open
  std::shared_ptr<saves_with_pieces> pieces_;  // null: no redundancy
  any_executor holder_;                        // last: its destructor waits for saves that are being held
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
