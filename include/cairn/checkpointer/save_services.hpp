// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/options.hpp>
#include <cairn/checkpointer/other_runs.hpp>
#include <cairn/checkpointer/restart_journal.hpp>
#include <cairn/checkpointer/retaining.hpp>
#include <cairn/concepts/any_observer.hpp>
#include <cairn/concepts/any_reader.hpp>
#include <cairn/concepts/any_writer.hpp>
#include <cairn/model/checkpoint_lease.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/observe/event_reporter.hpp>
#include <cairn/observe/save_history.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/vector.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What the threads of an executor share with the checkpointer, and may outlive it with: the storage, who is
/// told, and what happens at the end of each save. Any thread.
class save_services {
 public:
  save_services(any_writer writer, any_reader reader, any_observer observer, int rank,
                const checkpointer_options& options)
      : writer_(std::move(writer)),
        reader_(std::move(reader)),
        reporter_(std::move(observer), rank, options.quiet),
        history_(options.mean_time_between_failures),
        restarts_(detail::make_shared<restart_journal>(rank, options.read_only ? 0 : options.max_restarts)),
        rank_(rank),
        announces_(options.announce_run && !options.read_only) {}
  save_services(const save_services&) = delete;
  save_services& operator=(const save_services&) = delete;
  ~save_services() { end_holds(nullptr); }

  [[nodiscard]] any_writer& writer() noexcept { return writer_; }
  [[nodiscard]] any_reader& reader() noexcept { return reader_; }
  [[nodiscard]] event_reporter& report() noexcept { return reporter_; }
  [[nodiscard]] const save_history& history() const noexcept { return history_; }

  /// Of the run whose saves these are; before the first of them.
  void set_run(const run_id& run) noexcept { run_ = run; }
  /// Shows who follows it that this run lives, until it ends: on rank 0, when it resumes or has committed. Where that
  /// cannot be shown, others go by its commits.
  void show_life() noexcept {
    if (rank_ != 0 || !announces_) return;
    const std::lock_guard lock(life_mutex_);
    if (life_shown_) return;
    try {
      life_ = writer_.show_run(run_);
      life_shown_ = true;
    } catch (...) {  // nothing else relies on it, and the next commit tries again
    }
  }
  /// For rank 0, when a run resumes and when it ends.
  [[nodiscard]] std::vector<std::int64_t> crash_looping(
      std::optional<std::vector<std::int64_t>> noted) noexcept {
    return restarts_->crash_looping(writer_, std::move(noted), reporter_);
  }
  void resumed(const run_id& run, std::int64_t step) noexcept {
    restarts_->resumed(writer_, run, step, reporter_);
  }
  /// As resumed(), by load() or refresh().
  void loaded(std::int64_t step) noexcept { restarts_->loaded(writer_, step, reporter_); }
  /// No save is under way, and none will be. `in_order`: the last one has not failed.
  void closed(bool in_order) noexcept { end_holds(in_order && restarts_->has_own() ? restarts_ : nullptr); }
  /// For rank 0: what is known of the store's root; see KnowsRoot.
  [[nodiscard]] known_root root() const {
    const std::lock_guard lock(mutex_);
    return root_;
  }
  /// For rank 0, before what is in the store is believed, or anything is made there.
  /// @throws what the writer does where it is another store than before
  void require_root() { writer_.require_root(root()); }
  /// The store's root is there: from now on it is to be the same.
  void note_root() noexcept {
    try {
      if (rank_ != 0 || !root().identity.empty()) return;
      auto identity = writer_.root_identity();
      const std::lock_guard lock(mutex_);
      root_.identity = std::move(identity);
    } catch (...) {  // a later call learns it
    }
  }
  /// The store has this checkpoint, which was loaded from there, or committed.
  void found_in_store(std::int64_t step) noexcept {
    note_root();
    const std::lock_guard lock(mutex_);
    root_.step = step;
  }
  /// The run goes on from this checkpoint, which it has loaded; the coordinator's word counts. `lease`: of rank 0, which
  /// keeps it until the run has committed a save that begins from now on, so that it stays whoever else tidies up.
  void set_base_step(std::int64_t step, checkpoint_lease lease) noexcept {
    {
      const std::lock_guard lock(mutex_);
      begun_since_base_.clear();
    }
    if (lease.held() || !stands_on(step)) hold_base(std::move(lease));
    if (retaining_ != nullptr) retaining_->set_base_step(step);
  }
  /// Removes a checkpoint, for the coordinator: the lease of this run on it does not keep it from that, and stays where
  /// the checkpoint does. `until`: for taking that lease again.
  /// @throws what the writer does
  void remove(std::int64_t step, deadline until) {
    const bool stood = give_base_back(step);
    try {
      writer_.remove(step);
    } catch (...) {
      if (stood) take_base_again(step, until);
      throw;
    }
    const std::lock_guard lock(mutex_);
    if (root_.step == step) root_.step = -1;
  }
  /// A lease of the coordinator's on a checkpoint that is there. Not held() where the store takes none or the
  /// process may not write, which is told once; anything else, too, if `reading`: loads go on without, and fetch the manifest
  /// next.
  /// @throws storage_error (storage_not_committed), timeout_error
  [[nodiscard]] checkpoint_lease lease(std::int64_t step, deadline until, bool reading) {
    try {
      auto lease = writer_.lease(step, until, reading ? lease_check::by_caller : lease_check::at_once);
      if (!lease.held() && !reading) warn_unleased("the store has no leases");
      return lease;
    } catch (const storage_error& e) {
      if (e.id() == error_id::storage_not_committed || (!reading && e.id() != error_id::storage_permission))
        throw;
      warn_unleased(e.what());
    } catch (const timeout_error& e) {
      if (!reading) throw;
      warn_unleased(e.what());
    }
    return {step, nullptr};
  }
  /// Once, on rank 0, before the first save: chooses what goes. Null: nothing does.
  void retain_by(owned<retaining> chosen) noexcept { retaining_ = std::move(chosen); }
  /// For rank 0: these were committed when this run began.
  void found_at_start(const std::vector<std::int64_t>& steps) { other_runs_.know(steps); }
  /// A save is under way; ended() is called when it ends.
  void begun(save_attempt save) noexcept {
    try {
      const std::lock_guard lock(mutex_);
      begun_since_base_.push_back(save);
    } catch (...) {  // its commit does not end the lease on the base then
    }
    if (retaining_ != nullptr) retaining_->begun(save);
  }
  /// Gives up what is being verified; waits for its end, at most so long.
  void stop_scrubbing(deadline until) noexcept {
    if (retaining_ != nullptr) retaining_->stop_scrubbing(until);
  }
  /// Saves that a tier holds have not failed, whatever the store says. Before the first save.
  void count_by_tier() noexcept { by_tier_ = true; }
  /// Called once for each save, when it ends. `in_tier`: a tier holds it, or is about to. `aside`: seconds that it was
  /// only held before it went to the store.
  void ended(save_attempt save, save_report& report, const std::exception_ptr& failure, save_journal* journal,
             bool in_tier, double aside = 0) noexcept {
    const bool since_base = ended_since_base(save);
    if (failure == nullptr && !report.persisted) return held(save, report, journal);
    if (failure == nullptr) {
      held_reported_ = false;
      found_in_store(save.step);
      history_.committed(report, aside);
      if (since_base) hold_base({});
      restarts_->committed(writer_, report.step, reporter_);
      show_life();
    }
    if (is_of_store(failure)) restart_journal::tell(reporter_, restarts_->excused(writer_));
    step_listing listing(reader_);
    if (failure == nullptr) look_for_other_runs(report.step, listing);
    if (retaining_ != nullptr) retaining_->ended(save, failure == nullptr, listing, journal);
    vector<save_span> spans;
    try {
      if (journal != nullptr) spans = journal->spans();
    } catch (...) {
      // Out of memory for a trace: the save is worth more.
    }
    if (failure == nullptr || !by_tier_ || !in_tier) note(failure);
    if (failure == nullptr)
      reporter_.saved(report, spans);
    else
      reporter_.failed(report, failure, spans);
  }
  [[nodiscard]] int failures_in_a_row() const noexcept {
    const std::lock_guard lock(mutex_);
    return failures_;
  }
  [[nodiscard]] std::string last_failure() const {
    const std::lock_guard lock(mutex_);
    return last_failure_ == nullptr ? std::string() : failure_text(last_failure_);
  }

 private:
  /// Whether the store, and not how the run ends, explains a failure: a lost peer, a device that failed, memory that ran
  /// out and an exception in training may be what a checkpoint brought about.
  [[nodiscard]] static bool is_of_store(const std::exception_ptr& failure) noexcept {
    if (failure == nullptr) return false;
    try {
      std::rethrow_exception(failure);
    } catch (const storage_error& e) {
      return e.id() != error_id::storage_aborted && e.id() != error_id::storage_device &&
             e.id() != error_id::storage_out_of_memory;
    } catch (const timeout_error& e) {
      return e.id() == error_id::timeout_write;  // the others wait for training, or for other ranks
    } catch (...) {
      return false;
    }
  }
  [[nodiscard]] bool stands_on(std::int64_t step) const noexcept {
    const std::lock_guard lock(mutex_);
    return base_lease_.held() && base_lease_.step() == step;
  }
  /// Whether this save, which has ended, began since the run stands where it does.
  [[nodiscard]] bool ended_since_base(save_attempt save) noexcept {
    const std::lock_guard lock(mutex_);
    return detail::erase_if(begun_since_base_, [&](const auto& s) { return s == save; }) != 0;
  }
  /// Ends what shows in the store that this run lives and what it stands on; and its note among `notes`, if any. A thread
  /// does it, and is left behind where it does not come to an end in time: the store may answer nothing, and a program
  /// is to end.
  void end_holds(std::shared_ptr<restart_journal> notes) noexcept {
    struct holds {
      holds(any_writer of, std::shared_ptr<restart_journal> noted)
          : writer(std::move(of)), notes(std::move(noted)) {}
      any_writer writer;  // last to go: it keeps the store
      std::shared_ptr<restart_journal> notes;
      checkpoint_lease base = {};
      std::shared_ptr<void> life = {};
      std::exception_ptr failure = nullptr;
      void end() noexcept {
        if (notes != nullptr) failure = notes->excused(writer);
        base.release();
        life.reset();
      }
    };
    try {
      const auto all = detail::make_shared<holds>(writer_, std::move(notes));
      {
        const std::lock_guard lock(mutex_);
        all->base = std::exchange(base_lease_, {});
      }
      {
        const std::lock_guard lock(life_mutex_);
        all->life = std::move(life_);
        life_shown_ = true;  // not again
      }
      if (all->base.step() < 0 && all->life == nullptr && all->notes == nullptr) return;
      background_thread thread;
      if (!thread.start("cairn end", [all] { all->end(); }))
        all->end();
      else if (!thread.join(deadline::in(longest_end)))
        return;
      restart_journal::tell(reporter_, all->failure);
    } catch (...) {  // no memory: they end here
    }
  }
  /// Whether there was a lease. What is left names the step still, until the run stands elsewhere.
  [[nodiscard]] bool give_base_back(std::int64_t step) noexcept {
    checkpoint_lease ended;
    const std::lock_guard lock(mutex_);
    if (base_lease_.step() != step || !base_lease_.held()) return false;
    ended = std::move(base_lease_);
    return true;
  }
  /// Nothing where the checkpoint is gone, or where the run has committed a save since.
  void take_base_again(std::int64_t step, deadline until) noexcept {
    try {
      auto again = lease(step, until, false);
      const std::lock_guard lock(mutex_);
      if (base_lease_.step() == step && !base_lease_.held()) base_lease_ = std::move(again);
    } catch (...) {  // the store tells nothing of it now, and the run goes on without
    }
  }
  void hold_base(checkpoint_lease next) noexcept {
    checkpoint_lease ended;  // outside of the lock: it may take a request
    const std::lock_guard lock(mutex_);
    ended = std::move(base_lease_);
    base_lease_ = std::move(next);
  }
  /// A save that goes to no store is held by this rank.
  void held(save_attempt save, const save_report& report, save_journal* journal) noexcept {
    vector<save_span> spans;
    try {
      if (journal != nullptr) spans = journal->spans();
    } catch (...) {  // as above
    }
    if (retaining_ != nullptr) retaining_->held(save);
    if (by_tier_) note(nullptr);
    reporter_.held(report, !held_reported_.exchange(true), spans);
  }
  void note(const std::exception_ptr& failure) noexcept {
    const std::lock_guard lock(mutex_);
    failures_ = failure == nullptr ? 0 : failures_ + 1;
    last_failure_ = failure;
  }
  void look_for_other_runs(std::int64_t committed, step_listing& listing) noexcept {
    if (rank_ != 0) return;
    try {
      other_runs_.look(reader_, listing, committed, reporter_);
    } catch (...) {  // nobody relies on it
    }
  }
  void warn_unleased(const std::string& why) noexcept {
    if (!unleased_reported_.exchange(true))
      reporter_.warned([&] {
        return "checkpoints are read without a lease, another process may remove one meanwhile: " + why;
      });
  }
  static constexpr std::chrono::seconds longest_end{5};

  any_writer writer_;
  any_reader reader_;
  event_reporter reporter_;
  save_history history_;
  const std::shared_ptr<restart_journal> restarts_;
  int rank_;
  bool announces_;
  run_id run_;
  other_runs other_runs_;
  std::atomic<bool> unleased_reported_{false};
  std::atomic<bool> held_reported_{false};
  mutable std::mutex mutex_;
  known_root root_;
  checkpoint_lease base_lease_;            ///< of rank 0
  vector<save_attempt> begun_since_base_;  ///< that are under way
  std::mutex life_mutex_;
  bool life_shown_ = false;
  std::shared_ptr<void> life_;  ///< of rank 0: shows that the run lives
  bool by_tier_ = false;
  int failures_ = 0;
  std::exception_ptr last_failure_;
  owned<retaining> retaining_;  ///< null: another rank's, or there is no policy
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
