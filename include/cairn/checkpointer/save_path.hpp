// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/agreement.hpp>
#include <cairn/checkpointer/apart_layouts.hpp>
#include <cairn/checkpointer/copy_checks.hpp>
#include <cairn/checkpointer/failed_saves.hpp>
#include <cairn/checkpointer/frozen_saves.hpp>
#include <cairn/checkpointer/options.hpp>
#include <cairn/checkpointer/other_writers.hpp>
#include <cairn/checkpointer/save_plans.hpp>
#include <cairn/checkpointer/save_services.hpp>
#include <cairn/checkpointer/tier_parts.hpp>
#include <cairn/checkpointer/unfinished_saves.hpp>
#include <cairn/concepts/any_executor.hpp>
#include <cairn/concepts/any_stager.hpp>
#include <cairn/model/annotations.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/save_journal.hpp>
#include <cairn/model/save_notes.hpp>
#include <cairn/model/save_progress.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/system/background_thread.hpp>
#include <cairn/system/clocks.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/process_limits.hpp>
#include <cairn/system/shared.hpp>

#include <unistd.h>

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

/// The way of a save: planned, staged, handed to the executor. The thread of training. Its destructor waits
/// for the jobs of the executor. What it is given by reference outlives it.
class save_path {
 public:
  /// `checks`: of checked{}, `apart`: of link_unchanged; null: not asked for. `place`: of the storage, for
  /// messages. `held`: null where there is no tier.
  save_path(const checkpointer_options& options, bool overlapped, owned<copy_checks> checks,
            owned<apart_layouts> apart, collectives& group, std::shared_ptr<save_services> services,
            unfinished_saves& saves, std::string place, any_save_planner planner, any_stager stager,
            any_executor executor, std::shared_ptr<device_access> devices, owned<tier_saves> held)
      : options_(options),
        overlapped_(overlapped),
        digests_in_copy_(checks != nullptr || held != nullptr ||
                         !options.checksum_in_writer.value_or(!overlapped && !executor.runs_in_caller())),
        group_(group),
        services_(std::move(services)),
        saves_(saves),
        place_of_step_(name_places(services_, std::move(place))),
        plans_(std::move(planner), options),
        devices_(std::move(devices)),
        stager_(std::move(stager)),
        checks_(std::move(checks)),
        apart_(std::move(apart)),
        held_(std::move(held)),
        failed_(services_->writer()),
        executor_(std::move(executor)) {}
  ~save_path() { finish_preparation(); }
  save_path(const save_path&) = delete;
  save_path& operator=(const save_path&) = delete;

  [[nodiscard]] any_stager& stager() noexcept { return stager_; }
  /// What identifies the saves to come. `peers`: see save_context.
  void set_run(const run_id& run, std::shared_ptr<const peer_watch> peers) {
    run_ = run;
    peers_ = std::move(peers);
  }
  [[nodiscard]] bool ends_with_process() const noexcept { return executor_.ends_with_process(); }
  [[nodiscard]] bool overlapped() const noexcept { return overlapped_; }
  /// Whether stagers are asked for digests; else the writer computes them.
  [[nodiscard]] bool digests_in_copy() const noexcept { return digests_in_copy_; }

  void prepare(const state_dict& state) {
    bool cached = false;
    const auto planned = plans_.plan(state, group_, services_->writer(), peer_deadline(), cached);
    const auto layout = plans_.lay_out(*planned, state, group_, services_->writer());
    saves_.learn(state, *planned->plan, layout);
    if (held_ != nullptr) held_->check_room(group_, *layout, peer_deadline());
    try {
      executor_.prepare();
      prepare_buffers(layout, planned->sources->sources());
    } catch (...) {
      warn_unprepared();
    }
  }
  /// Waits until what prepare() began has ended.
  void finish_preparation() { preparation_.join(); }

  /// Opens the tier, where there is one. Collective. Returns what is told of its redundancy.
  [[nodiscard]] std::string open_tier(const std::string& job) {
    if (held_ == nullptr) return {};
    held_->open(group_, run_, job, options_.peer_timeout);
    return held_->describe_redundancy();
  }
  /// At the end of a job: the last save goes to the store, where it was only held.
  void persist_last() {
    const auto job = held_ == nullptr ? owned<save_job>() : held_->take_newest();
    if (job == nullptr) return;
    auto report = job->progress->report();
    report.persisted = true;
    const auto begun = job->progress->begun();
    const auto progress = detail::make_shared<save_progress>(report.step, begun);
    progress->set_place(group_.rank(), place_of_step_);
    progress->set_image(job->image.control());
    job->image.carry_notes_of(progress);
    progress->note([&](save_report& r) { r = report; });
    progress->on_end([shared = services_, aside = seconds_since(begun),
                      save = save_attempt{report.step, job->context.attempt}](save_report& r,
                                                                              const std::exception_ptr& why) {
      shared->ended(save, r, why, nullptr, true, aside);
    });
    saves_.make_room();
    services_->begun({report.step, job->context.attempt});
    saves_.add_last(progress);
    const auto context = job->context;
    job->progress = progress;
    try {
      executor_.submit(std::move(*job));
    } catch (...) {
      abort(context);
      progress->set_failed(std::current_exception());
    }
  }
  /// See held_saves.
  void go_on_from(std::optional<tier_base> base, bool resumed) {
    if (held_ == nullptr) return;
    base = held_->base_for_all(group_, std::move(base), peer_deadline());
    if (base) base->saves = save_count_;
    held_->go_on_from(std::move(base), resumed);
  }
  /// Whether the store has the step that the job resumed, and the newest that it has.
  void resumed(bool in_store, std::optional<std::int64_t> stored) noexcept {
    if (held_ != nullptr) held_->resumed(in_store, stored);
  }
  /// The job has ended in order, and the store has its last save.
  void end_tier() noexcept {
    if (held_ != nullptr) held_->end();
  }
  /// Before a load changes memory.
  void before_load() noexcept { frozen_->forget(); }
  void before_remove(std::int64_t step) noexcept { frozen_->removed(step); }

  /// Joins what the next save() says about its checkpoint.
  void annotate(const annotations& said) { said_.merge(said); }

  save_handle save(const state_dict& state, std::int64_t step) {
    attempt save;
    auto said = std::exchange(said_, {});  // whatever becomes of this save: it is not about the next one
    ++save_count_;  // first: where a rank alone runs out of memory, the next attempt is the same on all
    if (step < 0)
      fail(error_id::usage_bad_option, "a checkpoint's number is negative", {.got = std::to_string(step)});
    save.progress = detail::make_shared<save_progress>(step);
    if (services_->report().wants_spans())
      save.progress->notes().journal = detail::make_shared<save_journal>();
    save.progress->set_place(group_.rank(), place_of_step_);
    save.context = {
        run_,  step, attempt_of(run_, step, save_count_), 0, group_.rank(), group_.size(), options_.timeout,
        peers_};
    if (group_.rank() == 0) save.context.root = services_->root();
    if (!said.empty()) save.context.annotations = detail::make_shared<const annotations>(std::move(said));
    saves_.give_up_unconfirmed();
    if (options_.when_busy == busy_policy::skip && any_rank(group_, busy(), peer_deadline())) {
      save.progress->set_skipped();
      return save_handle(save.progress);
    }
    save.persisted =
        held_ == nullptr || held_->goes_on(group_, save_count_, options_.peer_timeout, options_.timeout);
    plan(save, state);
    if (held_ != nullptr) save.context.writers_at_once = held_->writers_at_once(), held_->make_room();
    staged_image image;
    try {
      image = stage(save, state);
    } catch (const usage_error& e) {
      abort(save.context);
      if (e.id() != error_id::usage_memory_changed) throw;
      return failed(save);
    } catch (...) {
      abort(save.context);
      return failed(save);
    }
    const auto control = image.control();
    const bool resident = image.resident();
    bool begun = false;
    try {
      begin(save, image);
      begun = true;
      save_job job{services_->writer(), save.context, std::move(image), save.planned->stored, save.progress};
      if (held_ != nullptr) held_->hold(job, save.planned->digest, !save.persisted);
      if (held_ == nullptr) frozen_->begun(save.context);
      if (save.persisted) executor_.submit(std::move(job));
    } catch (...) {
      // A stager that still copies ends its image itself, which before_update() waits for where the save has begun.
      if (resident && !begun) (void)control->wait_copied(deadline::in(options_.timeout));
      // With a tier the image is held nevertheless.
      if (held_ == nullptr && !resident) control->fail();
      abort(save.context);
      return failed(save);
    }
    if (!overlapped_) {
      // Where nothing is staged, the writer gives the memory back; a failure is on the handle.
      try {
        save.progress->wait_released(deadline::in(options_.timeout));
      } catch (...) {  // what is read of the memory from here on is not what it was
        save.progress->give_up(std::current_exception());
      }
      if (!save.progress->wait_handed_over(deadline::in(options_.handover_timeout)))
        saves_.warn_late(save.progress);
    }
    save.progress->note([&](save_report& r) {
      r.blocked_seconds = seconds_since(save.begin);
      if (!overlapped_) r.released_seconds = r.blocked_seconds;
    });
    return enqueued(save.progress);
  }

 private:
  /// A save on its way to the executor.
  struct attempt {
    const deadline::clock::time_point begin = deadline::clock::now();
    const std::int64_t cpu_begin = thread_cpu_now();
    std::shared_ptr<save_progress> progress;
    save_context context;
    std::shared_ptr<const cached_plan> planned;
    std::shared_ptr<const image_layout> layout;
    std::shared_ptr<const image_layout> whole;  // with what is linked, where the layout is without
    source_table sources;
    std::int64_t copy_begin = 0;
    std::int64_t cpu_before_copy = 0;
    save_report cost;
    bool persisted = true;

    [[nodiscard]] save_journal* journal() const noexcept { return progress->notes().journal.get(); }
  };

  /// Whether an earlier save keeps the next one from beginning. With persist{} no save waits for the store.
  [[nodiscard]] bool busy() const {
    return held_ != nullptr && held_->decoupled() ? saves_.all().any_to_hold() : saves_.all().any();
  }
  /// In a handler: what is handled ends the save on all ranks.
  void abort(const save_context& context) noexcept {
    if (executor_.runs_in_caller())  // a save waits for the store there whatever it does
      services_->writer().abort(context, std::current_exception());
    else
      failed_.end(context, std::current_exception());
  }
  void plan(attempt& save, const state_dict& state) {
    try {
      const span_note span(save.journal(), span_kind::plan);
      other_writers others(services_->writer(), save.context);
      const auto others_write = [&] { return others.look(); };
      save.planned = plans_.plan(state, group_, services_->writer(), peer_deadline(), save.cost.plan_cached,
                                 others_write);
    } catch (...) {
      if (plans_.planned_alone()) abort(save.context);  // who does not plan would wait for this rank's part
      throw;
    }
    save.cost.plan_seconds = seconds_since(save.begin);
    if (save.cost.plan_cached) save.cost.plan_saved_seconds = save.planned->seconds;
    save.context.plan_digest = save.planned->digest;
    try {
      save.whole = plans_.lay_out(*save.planned, state, group_, services_->writer());
      save.sources = save.planned->sources->sources();
      if (apart_ != nullptr && held_ == nullptr) {
        bool changed = false;
        save.whole = apart_->choose(plans_, *save.planned, save.whole, save.sources, group_.rank(),
                                    services_->writer(), changed);
        if (changed) frozen_->forget();
      }
      saves_.make_room();
      save.progress->on_end([shared = services_, &progress = *save.progress, frozen = frozen_,
                             begun = save.begin, waits = executor_.runs_in_caller(),
                             attempt = save_attempt{save.context.step, save.context.attempt}](
                                save_report& report, const std::exception_ptr& why) {
        if (waits) report.blocked_seconds = seconds_since(begun);
        if (frozen->ended(attempt.attempt, why))
          shared->report().warned(
              "two saves in a row that linked the files of frozen items have failed: this checkpointer "
              "links nothing any more, and every save writes them",
              why);
        shared->ended(attempt, report, why, progress.notes().journal.get(), progress.in_tier());
      });
    } catch (...) {
      frozen_->forget();  // link_unchanged may have seen a change, which it tells once
      // The others may have planned from their caches, and learn it so.
      abort(save.context);
      throw;
    }
  }
  staged_image stage(attempt& save, const state_dict& state) {
    const auto wait_begin = deadline::clock::now();
    {
      const span_note span(save.journal(), span_kind::wait);
      finish_preparation();
      if (options_.when_busy == busy_policy::block && (held_ == nullptr || !held_->decoupled()))
        saves_.wait_for_earlier();
    }
    save.cost.wait_seconds = seconds_since(wait_begin);
    save.layout = save.whole;
    if (held_ == nullptr) {  // the image of a tier is whole
      if (checks_ != nullptr && !checks_->comparable(*save.whole)) frozen_->forget();
      // After the wait: the end of an earlier save may have had the files removed that this one would link.
      save.layout = frozen_->choose(save.whole, *save.planned->plan, save.sources, save.context);
    }
    saves_.learn(state, *save.planned->plan, save.layout);
    if (checks_ != nullptr)
      checks_->begin(save.planned, save.layout, save.sources, group_.rank(), devices_.get(),
                     deadline::in(options_.timeout));
    if (checks_ != nullptr && held_ == nullptr) check_frozen(save);
    saves_.before_copying(save.planned, save.layout, save.sources);
    const auto stage_begin = deadline::clock::now();
    save.copy_begin = steady_now();
    save.cpu_before_copy = thread_cpu_now() - save.cpu_begin;
    const span_note span(save.journal(), span_kind::stage);
    auto image =
        stager_.stage(save.layout, save.sources, {.overlapped = overlapped_, .digest = digests_in_copy_},
                      deadline::in(options_.timeout));
    save.cost.stage_seconds = seconds_since(stage_begin);
    try {
      if (checks_ != nullptr) checks_->compare_with(image, save.progress, overlapped_);
    } catch (...) {  // nobody else waits for what is still copied
      if (image.control() != nullptr && image.resident())
        (void)image.control()->wait_copied(deadline::in(options_.timeout));
      throw;
    }
    return image;
  }
  /// @throws usage_error (usage_memory_changed) where a frozen item is not what it was
  void check_frozen(const attempt& save) {
    auto why = checks_->look_at_frozen(save.planned, save.whole, save.sources, group_.rank(), devices_.get(),
                                       !save.layout->linked.empty(), deadline::in(options_.timeout));
    if (why == nullptr) return;
    frozen_->forget();
    std::rethrow_exception(why);
  }
  /// From here on the save is under way.
  void begin(attempt& save, staged_image& image) {
    const auto control = image.control();
    if (overlapped_) control->require_confirmation();
    save.progress->set_image(control);
    image.carry_notes_of(save.progress);
    auto& cost = save.cost;
    cost.step = save.context.step;
    cost.overlapped = overlapped_;
    cost.persisted = save.persisted;
    for (const auto& s : save.layout->segments) cost.bytes += s.bytes;
    for (const auto& f : save.layout->linked) cost.linked_bytes += f.bytes;
    cost.items = save.whole->items.size();
    cost.blocked_seconds = seconds_since(save.begin);
    // While copy threads are at work, this one is not to ask for its processor time: where one of them waits for the same
    // processor, Linux would give it to that one for some ms then, in the middle of save(). After a ms in stage() it has
    // waited for a buffer: that is no processor time.
    const auto staged = steady_now() - save.copy_begin;
    const auto cpu =
        overlapped_ && staged < 1'000'000 ? save.cpu_before_copy + staged : thread_cpu_now() - save.cpu_begin;
    cost.copying = {::getpid(), image.resident() ? save.layout->bytes : 0, 0,
                    1e-9 * static_cast<double>(cpu)};
    save.progress->set_copying(save.copy_begin,
                               image.digested() ? span_kind::copy_and_hash : span_kind::copy);
    save.progress->note([&](save_report& r) { r = cost; });
    services_->begun({save.context.step, save.context.attempt});
    saves_.begin(save.progress, image, save.sources);
    if (services_->report().wants_began()) services_->report().began(save_handle(save.progress));
  }
  /// In a handler.
  save_handle failed(const attempt& save) {
    save.progress->set_failed(std::current_exception());
    return enqueued(save.progress, false);
  }
  save_handle enqueued(const std::shared_ptr<save_progress>& progress, bool begun = true) {
    saves_.set_last(progress);
    try {
      throw_earlier_failures(begun);
    } catch (...) {
      // Who does not catch it never comes to before_update(), which the save that has begun needs.
      if (begun && overlapped_) saves_.before_update();
      throw;
    }
    return save_handle(progress);
  }
  void throw_earlier_failures(bool begun) {
    if (const int failures = services_->failures_in_a_row();
        options_.max_consecutive_failures > 0 && failures >= options_.max_consecutive_failures)
      fail(error_id::usage_too_many_failures,
           "save() throws after " + std::to_string(options_.max_consecutive_failures) +
               " saves in a row that failed (max_consecutive_failures; " + std::to_string(failures) +
               " have by now), and " +
               (begun ? "has begun this save all the same" : "could not begin this one") +
               ": who catches this trains on without a checkpoint until one succeeds. The last failure: " +
               services_->last_failure());
    if (held_ != nullptr) held_->throw_failure_of_store();
  }
  void prepare_buffers(const std::shared_ptr<const image_layout>& layout, const source_table& sources) {
    const auto prepare = [this, layout, sources] {
      try {
        stager_.prepare(sources);
        stager_.prepare(*layout, deadline::in(options_.timeout));
      } catch (...) {
        warn_unprepared();
      }
    };
    preparation_.join();
    if (!preparation_.start("cairn prepare", prepare)) fail_for_threads("to prepare buffers");
  }
  /// In a handler.
  void warn_unprepared() noexcept {
    services_->report().warned("saves could not be prepared, the first one tries again",
                               std::current_exception());
  }
  /// What a save that is late is told to wait for once this rank's files are written: asked only then. A
  /// handle that is kept for longer than that keeps no storage.
  static std::shared_ptr<const save_progress::place_namer> name_places(
      const std::shared_ptr<save_services>& services, std::string place) {
    return detail::make_shared<const save_progress::place_namer>(
        [services = std::weak_ptr(services), place = std::move(place)](std::int64_t step) {
          try {
            const auto storage = services.lock();
            auto name = storage != nullptr ? storage->writer().location_of(step) : std::string();
            if (!name.empty()) return name;
          } catch (...) {  // the error of the save tells more
          }
          return place;
        });
  }
  [[nodiscard]] deadline peer_deadline() const noexcept { return deadline::in(options_.peer_timeout); }

  const checkpointer_options& options_;
  const bool overlapped_;
  const bool digests_in_copy_;
  collectives& group_;
  std::shared_ptr<save_services> services_;
  unfinished_saves& saves_;
  const std::shared_ptr<const save_progress::place_namer> place_of_step_;
  save_plans plans_;
  const std::shared_ptr<frozen_saves> frozen_ = detail::make_shared<frozen_saves>();
  run_id run_;
  std::shared_ptr<const peer_watch> peers_;
  std::uint64_t save_count_ = 0;
  annotations said_;  ///< about the checkpoint of the next save
  background_thread preparation_;
  std::shared_ptr<device_access> devices_;
  any_stager stager_;
  owned<copy_checks> checks_;   // of checked{}; null: not asked for
  owned<apart_layouts> apart_;  // of link_unchanged; the same
  owned<tier_saves> held_;      // null: no tier
  failed_saves failed_;
  any_executor executor_;  // last: its destructor waits for jobs, which use all of the above
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
