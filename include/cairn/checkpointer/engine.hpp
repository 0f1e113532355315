// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/agreement.hpp>
#include <cairn/checkpointer/copy_check.hpp>
#include <cairn/checkpointer/last_look.hpp>
#include <cairn/checkpointer/loader.hpp>
#include <cairn/checkpointer/options.hpp>
#include <cairn/checkpointer/save_plans.hpp>
#include <cairn/checkpointer/save_services.hpp>
#include <cairn/checkpointer/saves_under_way.hpp>
#include <cairn/checkpointer/store_probe.hpp>
#include <cairn/checkpointer/update_barrier.hpp>
#include <cairn/concepts/any_observer.hpp>
#include <cairn/concepts/any_planner.hpp>
#include <cairn/concepts/any_stager.hpp>
#include <cairn/concepts/executor.hpp>
#include <cairn/system/process_limits.hpp>

#include <sys/random.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What a checkpointer owns, at one address for its whole life. Its functions are the checkpointer's; see
/// there.
template <class StorageType, class ExecutorType, class CommunicatorType, bool Overlapped>
class engine {
  using writer_type = decltype(std::declval<StorageType&>().writer());
  using reader_type = decltype(std::declval<StorageType&>().reader());
  using services_type = save_services<writer_type, reader_type>;

 public:
  engine(StorageType storage, any_planners planners, any_stager stager, ExecutorType executor,
         CommunicatorType communicator, any_observer observer, const checkpointer_options& options,
         const std::optional<keep_last>& keep, bool checked, std::shared_ptr<device_access> devices)
      : options_(options),
        checked_(checked),
        storage_(std::move(storage)),
        plans_(std::move(planners.save), options),
        load_planner_(std::move(planners.load)),
        group_(std::move(communicator)),
        services_(std::make_shared<services_type>(storage_.writer(), storage_.reader(), std::move(observer),
                                                  group_.rank(), options, keep)),
        devices_(devices != nullptr ? std::move(devices) : stager.device_memory()),
        loader_(services_, group_, options_, devices_),
        stager_(std::move(stager)),
        executor_(std::move(executor)) {
    const auto bytes = read_once(
        group_, [] { return make_run(); }, peers());
    wire_reader in(bytes);
    run_.high = in.get<std::uint64_t>();
    run_.low = in.get<std::uint64_t>();
    std::array<std::byte, 16> word;
    std::memcpy(word.data(), bytes.data(), word.size());
    group_.set_run(word);
    if constexpr (EndsWithProcess<ExecutorType>) peers_ = group_.communicator().watch_peers();
  }

  [[nodiscard]] int rank() const { return group_.rank(); }
  [[nodiscard]] int world_size() const { return group_.size(); }
  [[nodiscard]] CommunicatorType& communicator() noexcept {
    return group_.communicator().template get<CommunicatorType>();
  }
  void check_open() const {
    if (closed_) fail(error_id::usage_closed, "the checkpointer is closed; make a new one");
  }

  void prepare(const state_dict& state) {
    check_writable();
    finish_preparation();
    probe_store();
    bool cached = false;
    const auto planned = plans_.plan(state, group_, *services_->writer(), peers(), cached);
    const auto layout = plans_.lay_out(*planned, state, group_, *services_->writer());
    overlap_.set_layout(state, *planned->plan, layout);
    try {
      if constexpr (PreparesEarly<ExecutorType>) executor_.prepare();
      prepare_buffers(layout, planned->sources->sources());
    } catch (...) {
      tell_unprepared();
    }
  }

  save_handle save(const state_dict& state, std::int64_t step) {
    check_writable();
    attempt save;
    if (services_->report().wants_spans()) save.journal = std::make_shared<save_journal>();
    ++save_count_;  // first: where a rank alone runs out of memory, the next attempt is the same on all
    if (step < 0)
      fail(error_id::usage_bad_option, "a checkpoint's number is negative", {.got = std::to_string(step)});
    save.progress = std::make_shared<save_progress>(step);
    save.progress->set_place(rank(), place_of(step));
    save.context = {
        run_, step, attempt_of(run_, step, save_count_), 0, rank(), world_size(), options_.timeout, peers_};
    overlap_.give_up(deadline::in(options_.timeout));
    if (options_.when_busy == busy_policy::skip && any_rank(saves_.any())) {
      save.progress->set_skipped();
      return save_handle(save.progress);
    }
    save.writer = services_->writer();
    plan(save, state);
    staged_image image;
    try {
      image = stage(save);
    } catch (const usage_error& e) {
      save.abort();
      if (e.id() != error_id::usage_memory_changed) throw;
      return failed(save);
    } catch (...) {
      save.abort();
      return failed(save);
    }
    begin(save, image);
    const auto control = image.control();
    try {
      executor_.submit(save_job{any_writer(save.writer), save.context, std::move(image), save.planned->stored,
                                save.progress});
    } catch (...) {
      control->fail();
      save.abort();
      return failed(save);
    }
    if constexpr (!Overlapped) {
      // Where nothing is staged, the writer gives the memory back; a failure is on the handle.
      save.progress->wait_released(deadline::in(options_.timeout));
      if (!save.progress->wait_handed_over(deadline::in(options_.handover_timeout))) tell_late(save.progress);
    }
    save.progress->note([&](save_report& r) {
      r.blocked_seconds = seconds_since(save.begin);
      if constexpr (!Overlapped) r.released_seconds = r.blocked_seconds;
    });
    return enqueued(save.progress);
  }

  void before_update() {
    tell_late(overlap_.wait(deadline::in(options_.timeout), options_.handover_timeout));
  }
  void before_update(std::string_view name) {
    tell_late(overlap_.wait(name, deadline::in(options_.timeout), options_.handover_timeout));
  }
  /// `order(stager, deadline)`: has a device's stream wait for the copies, see StreamOrderedStager.
  template <class Order>
  void before_update(int device, Order&& order) {
    const auto until = deadline::in(options_.timeout);
    order(stager_, until);
    overlap_.confirm(device, until);
  }

  load_report load(const state_dict& state, std::int64_t step, load_request request) {
    settle();
    return loader_.load(load_planner_, state, step, std::move(request));
  }

  std::optional<std::int64_t> resume(const state_dict& state, const std::vector<std::int64_t>* among) {
    settle();
    probe_store();  // first: to a rank that sees another store, every good checkpoint looks damaged
    const auto step = loader_.resume(load_planner_, state, run_, among);
    if (!options_.read_only) prepare(state);
    return step;
  }

  [[nodiscard]] std::vector<std::int64_t> list() {
    return decode_steps(read_once(
        group_, [&] { return encode_steps(services_->reader().list()); }, peers()));
  }
  void remove(std::int64_t step) {
    check_writable();
    if (saves_.any_of(step)) settle();  // it may end only then
    static_cast<void>(read_once(
        group_,
        [&] {
          saves_.wait_for_step(step);  // else it would be ended, and fail
          services_->writer()->remove(step);
          return std::vector<std::byte>();
        },
        peers()));
  }

  [[nodiscard]] checkpoint_lease lease(std::int64_t step) {
    checkpoint_lease own;
    const auto held = read_once(
        group_,
        [&] {
          if (!options_.read_only)
            own = services_->lease(step, deadline::in(options_.peer_timeout / 2), false);
          return std::vector<std::byte>{std::byte{own.held()}};
        },
        peers());
    if (group_.rank() == 0) return own;
    return {step, held.at(0) != std::byte{0} ? std::make_shared<char>() : nullptr};
  }

  [[nodiscard]] bool any_rank(bool here) { return detail::any_rank(group_, here, peers()); }
  [[nodiscard]] std::optional<std::chrono::duration<double>> time_to_save() const {
    return services_->history().until_committed(saves_.all());
  }

  [[nodiscard]] bool quarantine_for_all(std::int64_t step) {
    if (options_.read_only) return false;
    const auto done = [&] {
      return std::vector<std::byte>{std::byte{services_->writer()->quarantine(step)}};
    };
    return read_once(group_, done, peers()).at(0) != std::byte{0};
  }

  void close() {
    settle();
    finish_preparation();
    closed_ = true;
    saves_.wait([](save_progress& late) {
      late.fail_late(error_id::timeout_close,
                     "a save had not ended when close() gave up waiting; it goes on until the process ends");
    });
    services_->stop_scrubbing(deadline::in(longest_end));
    end_in_order();
    if (const auto why = saves_.last_failure(); why != nullptr) std::rethrow_exception(why);
  }

  void shut_down(bool unwinding) noexcept {
    // A program that ends because its device hangs is to end.
    const auto until =
        deadline::in(unwinding ? std::min(options_.timeout, copies_at_an_end) : options_.timeout);
    try {
      if (unwinding)
        overlap_.give_up(until, true);
      else
        settle_unseen();
    } catch (...) {
      services_->report().warned("while a checkpointer was destroyed", std::current_exception());
    }
    give_up_uncopied(until);
    try {
      finish_preparation();
      saves_.wait([&](const save_progress&) {
        services_->report().warned("a save had not ended when its checkpointer was destroyed", nullptr);
      });
      if (!unwinding) end_in_order();
    } catch (...) {
      services_->report().warned("while a checkpointer was destroyed", std::current_exception());
    }
    services_->stop_scrubbing(deadline::in(longest_end));
  }

 private:
  static constexpr std::chrono::nanoseconds copies_at_an_end = std::chrono::minutes(1);

  /// Fails the saves whose memory is not copied by then: what waits for their images ends.
  void give_up_uncopied(deadline until) noexcept {
    for (const auto& save : saves_.all()) {
      if (save->finished()) continue;
      try {
        save->wait_released(until);
      } catch (...) {
        save->give_up(std::current_exception());
      }
    }
    try {
      overlap_.give_up(until);  // where the last one was copied only just now
    } catch (...) {
      services_->report().warned("while a checkpointer was destroyed", std::current_exception());
    }
  }

  /// A save on its way to the executor.
  struct attempt {
    /// In a handler: what is handled ends it on all ranks.
    void abort() noexcept { writer->abort(context, std::current_exception()); }

    const deadline::clock::time_point begin = deadline::clock::now();
    const std::int64_t cpu_begin = thread_cpu_now();
    std::shared_ptr<save_journal> journal;
    std::shared_ptr<save_progress> progress;
    std::shared_ptr<writer_type> writer;
    save_context context;
    std::shared_ptr<const cached_plan> planned;
    std::shared_ptr<const image_layout> layout;
    source_table sources;
    std::int64_t copy_begin = 0;
    save_report cost;
  };

  void plan(attempt& save, const state_dict& state) {
    try {
      const span_note span(save.journal.get(), span_kind::plan);
      const auto others_write = [&] {
        if constexpr (TellsWhoWrote<writer_type>)
          return save.writer->other_rank_that_wrote(save.context);
        else
          return -1;
      };
      save.planned = plans_.plan(state, group_, *save.writer, peers(), save.cost.plan_cached, others_write);
    } catch (...) {
      if (plans_.parted()) save.abort();  // who does not plan would wait for this rank's part
      throw;
    }
    save.cost.plan_seconds = seconds_since(save.begin);
    if (save.cost.plan_cached) save.cost.plan_saved_seconds = save.planned->seconds;
    save.context.plan_digest = save.planned->digest;
    try {
      save.layout = plans_.lay_out(*save.planned, state, group_, *save.writer);
      save.sources = save.planned->sources->sources();
      overlap_.set_layout(state, *save.planned->plan, save.layout);
      saves_.make_room();
      save.progress->on_end([background = services_, journal = save.journal](save_report& report,
                                                                             const std::exception_ptr& why) {
        background->ended(report, why, journal.get());
      });
    } catch (...) {
      // The others may have planned from their caches, and learn it so.
      save.abort();
      throw;
    }
  }
  staged_image stage(attempt& save) {
    const auto wait_begin = deadline::clock::now();
    {
      const span_note span(save.journal.get(), span_kind::wait);
      finish_preparation();
      if (options_.when_busy == busy_policy::block) wait_for_earlier();
    }
    save.cost.wait_seconds = seconds_since(wait_begin);
    std::shared_ptr<const copy_check> check;
    if (checked_)
      check = std::make_shared<const copy_check>(save.planned, save.layout, save.sources, rank(),
                                                 devices_.get(), deadline::in(options_.timeout));
    else if (Overlapped)
      last_look_.begin(save.planned, save.layout, save.sources);
    const auto stage_begin = deadline::clock::now();
    save.copy_begin = steady_now();
    const span_note span(save.journal.get(), span_kind::stage);
    auto image = stager_.stage(save.layout, save.sources,
                               {.overlapped = Overlapped, .digest = checked_ || !options_.checksum_in_writer},
                               deadline::in(options_.timeout));
    save.cost.stage_seconds = seconds_since(stage_begin);
    if (check != nullptr) compare_with(check, image, save.progress);
    return image;
  }
  /// From here on the save is under way.
  void begin(attempt& save, staged_image& image) {
    const auto control = image.control();
    if constexpr (Overlapped) control->require_confirmation();
    save.progress->set_image(control, image.files());
    auto& cost = save.cost;
    cost.step = save.context.step;
    cost.overlapped = Overlapped;
    for (const auto& s : save.layout->segments) cost.bytes += s.bytes;
    cost.items = save.layout->items.size();
    cost.blocked_seconds = seconds_since(save.begin);
    cost.copying = {::getpid(), image.resident() ? save.layout->bytes : 0, 0,
                    1e-9 * static_cast<double>(thread_cpu_now() - save.cpu_begin)};
    save.progress->set_copying(save.copy_begin, image.digested() ? span_kind::copy_and_hash : span_kind::copy,
                               save.journal);
    image.trace_to(save.journal);
    save.progress->note([&](save_report& r) { r = cost; });
    services_->begun(save.context.step);
    saves_.add(save.progress, deadline::in(longest_save()));
    if constexpr (Overlapped) overlap_.arm(save.progress, image, save.sources);
    if (services_->report().wants_began()) services_->report().began(save_handle(save.progress));
  }

  /// before_update() for calls that tell nothing of what training did since the last overlapped save: where
  /// nobody confirmed it, and its memory is not what was copied, the save fails.
  void settle() {
    if constexpr (Overlapped) {
      const auto until = deadline::in(options_.timeout);
      const auto look = [&](const staged_image& image, const auto& waited_for) -> std::exception_ptr {
        try {
          return last_look_(image, waited_for, rank(), devices_.get(), until);
        } catch (...) {
          services_->report().warned(
              "nobody could look whether memory was changed while an overlapped save copied it, which no "
              "before_update() followed",
              std::current_exception());
          return nullptr;
        }
      };
      if (!checked_) overlap_.examine(look, until);
    }
    before_update();
  }
  /// A run whose last save failed, or hangs, has not ended in order; and its store may answer nothing.
  void end_in_order() noexcept {
    if (!saves_.any() && saves_.last_failure() == nullptr) services_->closed();
  }
  /// settle() where the memory may be gone.
  void settle_unseen() {
    if (const auto save = overlap_.unvouched(); save != nullptr && !checked_)
      services_->report().warned(
          "the checkpointer was destroyed after an overlapped save (step " +
          std::to_string(save->report().step) +
          ") that neither before_update() nor close() followed: the save goes on, and nobody knows whether "
          "its memory was changed while it was copied; call close() first, which looks");
    before_update();
  }

  void check_writable() const {
    if (options_.read_only)
      fail(error_id::usage_bad_option, "this checkpointer is read_only: it saves and removes nothing");
  }
  static std::vector<std::byte> make_run() {
    std::vector<std::byte> bytes(16);
    if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
      fail(error_id::storage_io, "the system gives no random numbers");
    return bytes;
  }
  [[nodiscard]] std::chrono::nanoseconds longest_save() const noexcept {
    save_context c;
    c.timeout = options_.timeout;
    return c.longest();
  }
  [[nodiscard]] deadline peers() const noexcept { return deadline::in(options_.peer_timeout); }

  /// What a save that is late is told to wait for once this rank's files are written.
  [[nodiscard]] std::string place_of(std::int64_t step) {
    if constexpr (requires(writer_type& w) { std::string(w.place_of(step)); })
      return services_->writer()->place_of(step);
    else
      return storage_.describe();
  }
  /// Sees to it that what was copied is compared with what was there at save(), before it can be committed.
  /// @throws what the comparison finds where all is copied already.
  static void compare_with(const std::shared_ptr<const copy_check>& check, staged_image& image,
                           const std::shared_ptr<save_progress>& progress) {
    if (!image.resident()) {
      image.when_read([check](const staged_image& read) { return check->compare(read); });
    } else if (Overlapped && !image.control()->copied()) {
      progress->before_confirmation([check, image] { return check->compare(image); });
    } else if (auto why = check->compare(image)) {
      image = staged_image();
      std::rethrow_exception(why);
    }
  }
  /// In a handler.
  save_handle failed(const attempt& save) {
    save.progress->set_failed(std::current_exception());
    return enqueued(save.progress);
  }
  save_handle enqueued(const std::shared_ptr<save_progress>& progress) {
    saves_.set_last(progress);
    if (const int failures = services_->failures_in_a_row();
        options_.max_consecutive_failures > 0 && failures >= options_.max_consecutive_failures)
      fail(error_id::usage_too_many_failures,
           "save() throws after " + std::to_string(options_.max_consecutive_failures) +
               " saves in a row that failed (max_consecutive_failures; " + std::to_string(failures) +
               " have by now), and has begun this save all the same: who catches this trains on without a "
               "checkpoint until one succeeds. The last failure: " +
               services_->last_failure());
    return save_handle(progress);
  }
  /// Of a save that the process which carries it out did not have in time; null: there is none.
  void tell_late(const std::shared_ptr<save_progress>& save) {
    if (save == nullptr || options_.handover_timeout.count() == 0) return;
    services_->report().warned(
        "training goes on before the worker has the save of step " + std::to_string(save->report().step) +
        ": the store answers late; a trainer that ended now would take the save along");
  }
  void wait_for_earlier() {
    saves_.wait([](save_progress& late) {
      late.fail_late(error_id::timeout_commit,
                     "an earlier save had not ended in time, so this one was not begun");
    });
  }
  void prepare_buffers(const std::shared_ptr<const image_layout>& layout, const source_table& sources) {
    try {
      preparation_ = std::thread([this, layout, sources] {
        try {
          stager_.prepare(sources);
          stager_.prepare(*layout, deadline::in(options_.timeout));
        } catch (...) {
          tell_unprepared();
        }
      });
    } catch (const std::system_error&) {
      fail_for_threads("to prepare buffers");
    }
  }
  /// In a handler.
  void tell_unprepared() noexcept {
    services_->report().warned("saves could not be prepared, the first one tries again",
                               std::current_exception());
  }
  void finish_preparation() {
    if (preparation_.joinable()) preparation_.join();
  }

  void probe_store() {
    if (!probed_ && !options_.read_only)
      probe_shared_store(
          group_, *services_->writer(), run_, [&] { return std::string(storage_.describe()); },
          options_.peer_timeout, [&](const std::string& line) { services_->report().warned(line); });
    probed_ = true;
  }

  /// Of a verify in the background, once it is to end: for a read that is under way.
  static constexpr std::chrono::seconds longest_end{10};

  checkpointer_options options_;
  bool checked_;
  StorageType storage_;
  save_plans plans_;
  any_load_planner load_planner_;
  collectives group_;
  run_id run_;
  std::shared_ptr<const peer_watch> peers_;  // null where a rank's save may outlive its process
  std::uint64_t save_count_ = 0;
  bool closed_ = false;
  bool probed_ = false;
  std::shared_ptr<services_type> services_;
  saves_under_way saves_;
  update_barrier overlap_;
  last_look last_look_;  // of the save that the gate holds
  std::thread preparation_;
  std::shared_ptr<device_access> devices_;
  loader<services_type> loader_;
  any_stager stager_;
  ExecutorType executor_;  // last: its destructor waits for jobs, which use all of the above
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
