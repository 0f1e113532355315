// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/default_types.hpp>
#include <cairn/checkpointer/group_loading.hpp>
#include <cairn/checkpointer/options.hpp>
#include <cairn/checkpointer/persist_schedule.hpp>
#include <cairn/checkpointer/save_services.hpp>
#include <cairn/comm/collectives.hpp>
#include <cairn/concepts/any_executor.hpp>
#include <cairn/concepts/image_tier.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/plan/plan_cache.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
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
class held_saves {
 public:
  held_saves(std::shared_ptr<image_tier> tier, std::optional<persist> persisting,
             std::shared_ptr<save_services> services)
      : tier_(std::move(tier)),
        persisting_(persisting),
        schedule_(persisting.value_or(persist{})),
        services_(std::move(services)),
        writer_(tier_->writer()),
        holder_(make_default_executor()) {}

  /// Whether saves wait for no store.
  [[nodiscard]] bool decoupled() const noexcept { return persisting_.has_value(); }

  /// Opens the tier on all ranks. Collective: throws on all of them what one of them throws.
  void open(collectives& group, const run_id& run, const std::string& job, deadline until) {
    const tier_user user{run, group.rank(), group.size(), job};
    static_cast<void>(read_once(
        group,
        [&] {
          tier_->open(user);
          return std::vector<std::byte>();
        },
        until));
    std::exception_ptr failure;
    try {
      if (group.rank() != 0) tier_->open(user);
    } catch (...) {
      failure = std::current_exception();
    }
    if (group.size() > 1)
      group.barrier(until, failure);
    else if (failure != nullptr)
      std::rethrow_exception(failure);
  }
  /// Asks for the memory of all ranks before the first of them allocates any. Collective.
  void check_room(collectives& group, const image_layout& layout, deadline until) {
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
  /// on one rank alone: counts are the same on all, whatever failed. `written_until`: the deadline of a save before
  /// it that must be written; what the ranks tell each other then takes up to `peer_timeout`.
  [[nodiscard]] bool goes_on(collectives& group, std::uint64_t save_count,
                             std::chrono::nanoseconds peer_timeout, deadline written_until) {
    if (!persisting_) return true;
    if (!schedule_.asks(save_count)) return false;
    if (persisting_->strict && storing_ != nullptr) static_cast<void>(storing_->wait_finished(written_until));
    const auto later = [](std::vector<std::byte> left, std::vector<std::byte> right) {
      wire_reader a(left);
      wire_reader b(right);
      const auto busy = std::max(a.get<std::uint8_t>(), b.get<std::uint8_t>());
      return wire_writer().put(busy).put(std::max(a.get<double>(), b.get<double>())).take();
    };
    auto all = wire_writer()
                   .put(static_cast<std::uint8_t>(storing_ != nullptr && !storing_->finished()))
                   .put(seconds_since(went_at_))
                   .take();
    if (group.size() > 1)
      all = group.tree_reduce_broadcast(std::move(all), later, deadline::in(peer_timeout));
    wire_reader in(all);
    const bool busy = in.get<std::uint8_t>() != 0;
    if (!schedule_.goes(save_count, busy, in.get<double>())) return false;
    went_at_ = deadline::clock::now();
    return true;
  }
  /// Where the store counts: throws, once, what kept the last save from it.
  void throw_failure_of_store() {
    if (!persisting_ || !persisting_->strict || storing_ == nullptr || !storing_->finished()) return;
    if (const auto done = std::exchange(storing_, nullptr); done->failure() != nullptr)
      std::rethrow_exception(done->failure());
  }
  /// The next save is to be staged, and may want the image of the last one.
  void make_room() noexcept {
    if (newest_) store_has_all_ = false;  // until the next one is on its way
    newest_.reset();
  }
  /// What the job has loaded, on rank 0: the saves to come go on from it. `resumed`: it is at its beginning.
  void go_on_from(std::optional<tier_base> base, bool resumed) noexcept {
    if (!base) return;
    base_ = std::move(base);
    if (resumed) try {
        tell_base();
      } catch (...) {  // the first save tries again, and tells
      }
  }
  /// Whether the store has the step that the job resumed.
  void resumed(bool in_store) noexcept { store_has_all_ = in_store; }
  /// Has the image held as soon as it is released. `alone`: the save goes to no store, and ends then.
  void hold(save_job job, std::uint64_t plan_digest, bool alone) {
    const auto whole = job.progress;
    store_has_all_ = true;  // when close() has succeeded
    if (alone)
      newest_.emplace(job);
    else
      storing_ = whole;
    job.progress = detail::make_shared<save_progress>(job.context.step);
    job.progress->set_image(job.image.control());
    job.image.carry_notes_of(job.progress);
    job.progress->on_end([whole, alone, services = services_](save_report&, const std::exception_ptr& why) {
      whole->set_held(why);
      if (alone && why == nullptr) return whole->set_held_alone();
      if (alone) return whole->set_failed(why);
      if (why != nullptr && !whole->finished())
        services->report().warned("the local tier does not hold the save of step " +
                                  std::to_string(whole->report().step) +
                                  ", which goes to the store alone: " + failure_text(why));
    });
    whole->begin_holding();
    try {
      tell_base();
      if (job.metadata != nullptr && job.metadata != planned_) {
        tier_->keep_plan(plan_digest, *job.metadata);
        planned_ = job.metadata;
      }
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
  /// The last save, where it was only held: its image is kept for the store. Nothing where there is none.
  [[nodiscard]] std::optional<save_job> take_newest() { return std::exchange(newest_, std::nullopt); }
  /// The job has ended in order, and the store has its last save. Where it made none, and what the tier holds may
  /// not be in the store, the tier stays as it is.
  void end() noexcept {
    newest_.reset();
    // The store may have had a save before it was held.
    static_cast<void>(holder_.drain(deadline::in(holding_timeout)));
    if (!store_has_all_ && holds_some()) {
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
  void tell_base() {
    if (!base_) return;
    // Nothing that was saved before becomes held after it.
    static_cast<void>(holder_.drain(deadline::in(holding_timeout)));
    tier_->go_on_from(*base_);
    base_.reset();
  }
  [[nodiscard]] bool holds_some() const noexcept {
    try {
      std::vector<std::string> damaged;
      return !tier_->held(damaged).empty() || !damaged.empty();
    } catch (...) {
      return true;
    }
  }

  const std::shared_ptr<image_tier> tier_;
  const std::optional<persist> persisting_;
  persist_schedule schedule_;
  deadline::clock::time_point went_at_ =
      deadline::clock::now();  // the last save to the store, or the beginning
  std::shared_ptr<save_services> services_;
  any_writer writer_;
  std::shared_ptr<const metadata> planned_;  // what the tier has of it
  std::optional<tier_base> base_;            // of the saves to come, where they have none yet
  bool store_has_all_ = false;  // that the tier holds, or will have it when close() has succeeded
  std::shared_ptr<save_progress> storing_;
  std::optional<save_job> newest_;
  any_executor holder_;  // last: its destructor waits for saves that are being held
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
