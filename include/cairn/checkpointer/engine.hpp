// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/agreement.hpp>
#include <cairn/checkpointer/background.hpp>
#include <cairn/checkpointer/copy_check.hpp>
#include <cairn/checkpointer/group_loading.hpp>
#include <cairn/checkpointer/group_planning.hpp>
#include <cairn/checkpointer/options.hpp>
#include <cairn/checkpointer/overlap_gate.hpp>
#include <cairn/checkpointer/predecessors.hpp>
#include <cairn/checkpointer/small_tensors.hpp>
#include <cairn/checkpointer/store_probe.hpp>
#include <cairn/concepts/executor.hpp>
#include <cairn/concepts/stager.hpp>

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Stands where one object plays two roles.
struct nothing {};

/// What a checkpointer owns, at one address for its whole life. Its functions are the checkpointer's; see
/// there.
template <class StorageType, class SavePlannerType, class LoadPlannerType, bool OnePlanner, class StagerType,
          class ExecutorType, class CommunicatorType, class ObserverType, bool Overlapped>
class engine {
  using writer_type = decltype(std::declval<StorageType&>().writer());
  using reader_type = decltype(std::declval<StorageType&>().reader());
  using background_type = background<writer_type, reader_type, ObserverType>;
  using load_planner_member = std::conditional_t<OnePlanner, nothing, LoadPlannerType>;

 public:
  engine(StorageType storage, SavePlannerType planner, load_planner_member load_planner, StagerType stager,
         ExecutorType executor, CommunicatorType communicator, ObserverType observer,
         const checkpointer_options& options, std::size_t keep, bool checked,
         std::shared_ptr<device_access> devices)
      : options_(options),
        checked_(checked),
        storage_(std::move(storage)),
        planner_(std::move(planner)),
        load_planner_(std::move(load_planner)),
        group_(std::move(communicator)),
        cache_(options.cached_plans, options.cached_plan_bytes),
        load_cache_(options.cached_plans, options.cached_plan_bytes),
        devices_(std::move(devices)),
        stager_(std::move(stager)),
        executor_(std::move(executor)) {
    if constexpr (requires { stager_.device_memory(); })
      if (devices_ == nullptr) devices_ = stager_.device_memory();
    background_ = std::make_shared<background_type>(storage_.writer(), storage_.reader(), std::move(observer),
                                                    group_.rank(), options, keep);
    const auto bytes = read_once(
        group_, [] { return make_run(); }, peers());
    wire_reader in(bytes);
    run_.high = in.get<std::uint64_t>();
    run_.low = in.get<std::uint64_t>();
    std::array<std::byte, 16> word;
    std::memcpy(word.data(), bytes.data(), word.size());
    group_.set_run(word);
  }

  [[nodiscard]] int rank() const { return group_.rank(); }
  [[nodiscard]] int world_size() const { return group_.size(); }
  [[nodiscard]] CommunicatorType& communicator() noexcept { return group_.communicator(); }
  void check_open() const {
    if (closed_) fail(error_id::usage_closed, "the checkpointer is closed; make a new one");
  }

  void prepare(const state_dict& state) {
    finish_preparation();
    probe_store();
    bool cached = false;
    const auto planned = plan(state, cached);
    planned->sources->follow(planner_, state, planned->plan);
    const auto layout = layout_of(*planned, state);
    overlap_.learn(state, *planned->plan, layout);
    if constexpr (requires { executor_.prepare(); }) executor_.prepare();
    preparation_ = std::thread([this, layout] {
      try {
        stager_.prepare(*layout, deadline::in(options_.patience));
      } catch (...) {
        background_->tell().warned("buffers could not be prepared, the first save tries again",
                                   std::current_exception());
      }
    });
  }

  save_handle save(const state_dict& state, std::int64_t step) {
    const auto begin = deadline::clock::now();
    const auto cpu_begin = thread_cpu_now();
    std::shared_ptr<save_journal> journal;
    if constexpr (wants_spans<ObserverType>) journal = std::make_shared<save_journal>();
    ++save_count_;  // first: where a rank alone runs out of memory, the next attempt is the same on all
    if (step < 0)
      fail(error_id::usage_bad_option, "a checkpoint's number is negative", {.got = std::to_string(step)});
    auto progress = std::make_shared<save_progress>(step);
    progress->set_place(rank(), place_of(step));
    const save_context identity{
        run_, step, attempt_of(run_, step, save_count_), 0, rank(), world_size(), options_.patience};
    overlap_.give_up(deadline::in(options_.patience));
    if (options_.when_busy == busy_policy::skip && any_rank(busy())) {
      progress->set_skipped();
      return save_handle(progress);
    }

    save_report cost;
    cost.step = step;
    cost.overlapped = Overlapped;
    std::shared_ptr<const cached_plan> planned;
    {
      const span_note span(journal.get(), span_kind::plan);
      planned = plan(state, cost.plan_cached);
    }
    cost.plan_seconds = seconds_since(begin);
    if (cost.plan_cached) cost.plan_saved_seconds = planned->seconds;
    save_context context = identity;
    context.plan_digest = planned->digest;
    auto writer = background_->writer();
    source_table sources;
    std::shared_ptr<const image_layout> layout;
    try {
      planned->sources->follow(planner_, state, planned->plan);
      sources = planned->sources->sources();
      layout = layout_of(*planned, state);
      overlap_.learn(state, *planned->plan, layout);
      outstanding_.reserve(outstanding_.size() + 1);
      progress->on_end(
          [background = background_, journal](save_report& report, const std::exception_ptr& why) {
            background->ended(report, why, journal.get());
          });
    } catch (...) {
      writer->abort(
          context,
          std::current_exception());  // the others may have planned from their caches, and learn it so
      throw;
    }
    staged_image image;
    std::int64_t copy_begin = 0;
    std::shared_ptr<const copy_check> check;
    try {
      const auto wait_begin = deadline::clock::now();
      {
        const span_note span(journal.get(), span_kind::wait);
        finish_preparation();
        if (options_.when_busy == busy_policy::block) wait_for_earlier();
      }
      cost.wait_seconds = seconds_since(wait_begin);
      if (checked_)
        check = std::make_shared<const copy_check>(planned, layout, sources, rank(), devices_.get(),
                                                   deadline::in(options_.patience));
      const auto stage_begin = deadline::clock::now();
      copy_begin = steady_now();
      const span_note span(journal.get(), span_kind::stage);
      image = stager_.stage(layout, sources,
                            {.overlapped = Overlapped, .digest = checked_ || !options_.checksum_in_writer},
                            deadline::in(options_.patience));
      cost.stage_seconds = seconds_since(stage_begin);
      if (check != nullptr) compare_with(check, image, progress);
    } catch (const usage_error& e) {
      writer->abort(context, std::current_exception());
      if (e.id() != error_id::usage_memory_changed) throw;
      progress->set_failed(std::current_exception());
      return enqueued(progress);
    } catch (...) {
      writer->abort(context, std::current_exception());
      progress->set_failed(std::current_exception());
      return enqueued(progress);
    }
    const auto control = image.control();
    if constexpr (Overlapped) control->require_confirmation();
    progress->set_image(control, image.files());
    cost.bytes = 0;
    for (const auto& s : layout->segments) cost.bytes += s.bytes;
    cost.items = layout->items.size();
    cost.blocked_seconds = seconds_since(begin);
    cost.copying = {::getpid(), image.resident() ? layout->bytes : 0, 0,
                    1e-9 * static_cast<double>(thread_cpu_now() - cpu_begin)};
    progress->set_copying(copy_begin, image.digested() ? span_kind::copy_and_hash : span_kind::copy, journal);
    image.trace_to(journal);
    progress->note([&](save_report& r) { r = cost; });
    remember(progress, image);
    if constexpr (wants_began<ObserverType>) background_->tell().began(save_handle(progress));
    try {
      executor_.submit(save_job<writer_type>{writer, context, std::move(image), planned->stored, progress});
    } catch (...) {
      control->fail();
      writer->abort(context, std::current_exception());
      progress->set_failed(std::current_exception());
      return enqueued(progress);
    }
    if constexpr (!Overlapped) {
      // Where nothing is staged, the writer gives the memory back; a failure is on the handle.
      progress->wait_released(deadline::in(options_.patience));
      if (!progress->wait_handed_over(deadline::in(options_.handover_patience))) tell_late(progress);
    }
    progress->note([&](save_report& r) {
      r.blocked_seconds = seconds_since(begin);
      if constexpr (!Overlapped) r.released_seconds = r.blocked_seconds;
    });
    return enqueued(progress);
  }

  void before_update() {
    tell_late(overlap_.pass(deadline::in(options_.patience), options_.handover_patience));
  }
  void before_update(std::string_view name) {
    tell_late(overlap_.pass(name, deadline::in(options_.patience), options_.handover_patience));
  }
  template <class Stream>
  void before_update(Stream stream, int device) {
    const auto until = deadline::in(options_.patience);
    stager_.before_update(stream, device, until);
    overlap_.vouch(until);
  }

  load_report load(const state_dict& state, std::int64_t step, load_request request) {
    before_update();
    request.rank = rank();
    request.world_size = world_size();
    const auto manifest = read_once(
        group_, [&] { return background_->reader().fetch(step); }, peers());
    load_report report;
    const auto verdict = load_everywhere(state, step, manifest, request, report);
    if (verdict.failure != nullptr) std::rethrow_exception(verdict.failure);
    background_->tell().loaded(step, report.bytes, report.seconds);
    return report;
  }

  std::optional<std::int64_t> resume(const state_dict& state, const std::vector<std::int64_t>* among) {
    before_update();
    probe_store();  // first: to a rank that sees another store, every good checkpoint looks damaged
    auto steps = decode_steps(read_once(
        group_, [&] { return clean_and_list(); }, peers()));
    if (among != nullptr) keep_only(steps, *among);
    load_request request;
    request.rank = rank();
    request.world_size = world_size();
    std::string reasons;
    int tried = 0;
    for (auto step = steps.rbegin(); step != steps.rend() && tried <= options_.max_fallback;
         ++step, ++tried) {
      load_report report;
      load_verdict verdict;
      try {
        const auto manifest = read_once(
            group_, [&] { return background_->reader().fetch(*step); }, peers());
        verdict = load_everywhere(state, *step, manifest, request, report);
      } catch (const peer_error&) {
        throw;
      } catch (const timeout_error&) {
        throw;
      } catch (...) {
        verdict = {outcome_of(std::current_exception()), std::current_exception()};
      }
      if (verdict.outcome == load_outcome::loaded) {
        background_->tell().loaded(*step, report.bytes, report.seconds);
        for (const auto& name : report.missing)
          background_->tell().warned("item " + name + " is not in the checkpoint of step " +
                                     std::to_string(*step) + " and keeps its value");
        prepare(state);
        return *step;
      }
      if (verdict.outcome == load_outcome::refused) std::rethrow_exception(verdict.failure);
      auto why = failure_text(verdict.failure);
      reasons += (reasons.empty() ? "step " : "; step ") + std::to_string(*step) + ": " + why;
      if (rank() == 0 && verdict.outcome == load_outcome::damaged && !set_aside(*step))
        why += " (its manifest could not be moved aside)";
      background_->tell().fell_back(*step, why);
    }
    if (!steps.empty())
      fail(error_id::storage_nothing_loads,
           "checkpoints exist and none of the newest " + std::to_string(tried) +
               " loads; nothing was overwritten; repair the store, load(state, step) another one, or choose "
               "another directory to begin anew: " +
               reasons);
    prepare(state);
    return std::nullopt;
  }

  [[nodiscard]] std::vector<std::int64_t> list() {
    return decode_steps(read_once(
        group_, [&] { return encode_steps(background_->reader().list()); }, peers()));
  }
  void remove(std::int64_t step) {
    static_cast<void>(read_once(
        group_,
        [&] {
          background_->writer()->remove(step);
          return std::vector<std::byte>();
        },
        peers()));
  }

  [[nodiscard]] bool any_rank(bool here) { return detail::any_rank(group_, here, peers()); }
  [[nodiscard]] std::optional<std::chrono::duration<double>> time_to_save() const {
    return background_->history().until_committed(outstanding_);
  }

  [[nodiscard]] bool set_aside_for_all(std::int64_t step) {
    const auto done = [&] {
      return std::vector<std::byte>{std::byte{background_->writer()->set_aside(step)}};
    };
    return read_once(group_, done, peers()).at(0) != std::byte{0};
  }

  void close() {
    before_update();
    finish_preparation();
    closed_ = true;
    for (const auto& p : outstanding_)
      if (!p->wait_finished(given_up_at_))
        p->fail_late(error_id::timeout_close,
                     "a save had not ended when close() gave up waiting; it goes on until the process ends");
    if (last_ != nullptr && last_->failure() != nullptr) std::rethrow_exception(last_->failure());
  }

  void shut_down(bool unwinding) noexcept {
    try {
      if (unwinding)
        overlap_.give_up(deadline::in(options_.patience));
      else
        before_update();
      finish_preparation();
      for (const auto& p : outstanding_)
        if (!p->wait_finished(given_up_at_))
          background_->tell().warned("a save had not ended when its checkpointer was destroyed", nullptr);
    } catch (...) {
      background_->tell().warned("while a checkpointer was destroyed", std::current_exception());
    }
  }

 private:
  static std::vector<std::byte> make_run() {
    std::vector<std::byte> bytes(16);
    if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
      fail(error_id::storage_io, "the system gives no random numbers");
    return bytes;
  }
  [[nodiscard]] std::chrono::nanoseconds longest_save() const noexcept {
    save_context c;
    c.patience = options_.patience;
    return c.longest();
  }
  [[nodiscard]] deadline peers() const noexcept { return deadline::in(options_.peer_patience); }
  LoadPlannerType& load_planner() noexcept {
    if constexpr (OnePlanner)
      return planner_;
    else
      return load_planner_;
  }

  std::shared_ptr<const cached_plan> plan(const state_dict& state, bool& cached) {
    const auto key = key_of_plan(state);
    if (auto found = cache_.find(key)) {
      cached = true;
      return found;
    }
    const auto begin = deadline::clock::now();
    auto made = plan_together(planner_, group_, state, peers());
    made.seconds = seconds_since(begin);
    return cache_.put(key, std::move(made));
  }
  [[nodiscard]] plan_key key_of_plan(const state_dict& state) const {
    return {.structure = state.structure(),
            .planner = planner_.fingerprint(),
            .writer = background_->fingerprint(),
            .world_size = group_.size(),
            .rank = group_.rank()};
  }
  /// The layout for the sizes that its sources have now: kept with the plan, made anew on this rank alone
  /// when a bytes item has another size than before.
  std::shared_ptr<const image_layout> layout_of(const cached_plan& planned, const state_dict& state) {
    const auto& bytes_sizes = planned.sources->bytes_sizes();
    if (planned.layout != nullptr && planned.bytes_sizes == bytes_sizes) return planned.layout;
    cached_plan renewed = planned;
    auto layout = background_->writer()->layout(*planned.plan, planned.sources->stored_sizes(*planned.plan),
                                                group_.rank());
    bound_small_tensors(layout, *planned.plan, options_.small_tensor_bytes);
    renewed.layout = std::make_shared<const image_layout>(std::move(layout));
    renewed.bytes_sizes = bytes_sizes;
    return cache_.put(key_of_plan(state), std::move(renewed))->layout;
  }

  /// What a save that is late is told to wait for once this rank's files are written.
  [[nodiscard]] std::string place_of(std::int64_t step) {
    if constexpr (requires(writer_type& w) { std::string(w.place_of(step)); })
      return background_->writer()->place_of(step);
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
  /// Room in outstanding_ is there already.
  void remember(const std::shared_ptr<save_progress>& progress, const staged_image& image) {
    std::erase_if(outstanding_, [](const auto& p) { return p->finished(); });
    given_up_at_ = deadline::in(longest_save());
    outstanding_.push_back(progress);
    last_ = progress;
    if constexpr (Overlapped) overlap_.shut(progress, image);
  }
  save_handle enqueued(const std::shared_ptr<save_progress>& progress) {
    last_ = progress;
    if (const int failures = background_->failures_in_a_row();
        options_.max_consecutive_failures > 0 && failures >= options_.max_consecutive_failures)
      fail(error_id::usage_too_many_failures,
           std::to_string(failures) +
               " saves in a row have failed; training goes on without a checkpoint. The last one: " +
               background_->last_failure());
    return save_handle(progress);
  }
  /// Of a save that the process which carries it out did not have in time; null: there is none.
  void tell_late(const std::shared_ptr<save_progress>& save) {
    if (save == nullptr || options_.handover_patience.count() == 0) return;
    background_->tell().warned(
        "training goes on before the worker has the save of step " + std::to_string(save->report().step) +
        ": the store answers late; a trainer that ended now would take the save along");
  }
  void wait_for_earlier() {
    for (const auto& p : outstanding_)
      if (!p->wait_finished(given_up_at_))
        p->fail_late(error_id::timeout_commit,
                     "an earlier save had not ended in time, so this one was not begun");
  }
  [[nodiscard]] bool busy() const {
    return std::any_of(outstanding_.begin(), outstanding_.end(),
                       [](const auto& p) { return !p->finished(); });
  }
  void finish_preparation() {
    if (preparation_.joinable()) preparation_.join();
  }

  load_verdict load_everywhere(const state_dict& state, std::int64_t step,
                               std::span<const std::byte> manifest, const load_request& request,
                               load_report& report) {
    std::exception_ptr failure;
    try {
      report = load_part(state, step, manifest, request);
    } catch (...) {
      failure = std::current_exception();
    }
    return agree_on_load(group_, failure, report.unexpected, request.strict, deadline::in(options_.patience));
  }
  load_report load_part(const state_dict& state, std::int64_t step, std::span<const std::byte> manifest,
                        const load_request& request) {
    if constexpr (SharingReader<reader_type, CommunicatorType>)
      if (options_.sharing == read_sharing::on && group_.size() > 1)
        return load_shared(background_->reader(), load_planner(), load_cache_, group_, state, step, manifest,
                           request, options_, devices_.get());
    return load_alone(background_->reader(), load_planner(), load_cache_, state, step, manifest, request,
                      options_, devices_.get());
  }
  std::vector<std::byte> clean_and_list() {
    predecessors earlier;
    bool cleaned = false;
    try {
      earlier.outlast(*background_->writer(), run_,
                      std::min(options_.predecessor_patience, options_.peer_patience / 2),
                      background_->tell());
      if (const auto removed = background_->writer()->clean(run_); removed > 0)
        background_->tell().warned("removed " + std::to_string(removed) +
                                   " objects that interrupted saves had left");
      cleaned = true;
    } catch (const error& e) {
      background_->tell().warned(std::string("what interrupted saves left could not be removed: ") +
                                 e.what());
    }
    const auto steps = background_->reader().list();
    earlier.tell(cleaned, steps, background_->tell());
    return encode_steps(steps);
  }
  [[nodiscard]] bool set_aside(std::int64_t step) noexcept {
    try {
      return background_->writer()->set_aside(step);
    } catch (...) {
      return false;
    }
  }
  void probe_store() {
    if (!probed_)
      probe_shared_store(group_, *background_->writer(), run_, storage_.describe(), options_.peer_patience);
    probed_ = true;
  }

  checkpointer_options options_;
  bool checked_;
  StorageType storage_;
  SavePlannerType planner_;
  [[no_unique_address]] load_planner_member load_planner_;
  collectives<CommunicatorType> group_;
  plan_cache cache_;
  load_plan_cache load_cache_;
  run_id run_;
  std::uint64_t save_count_ = 0;
  bool closed_ = false;
  bool probed_ = false;
  std::shared_ptr<background_type> background_;
  std::vector<std::shared_ptr<save_progress>> outstanding_;
  deadline given_up_at_ = deadline::in(std::chrono::nanoseconds(0));  // when nobody waits for them any more
  std::shared_ptr<save_progress> last_;
  overlap_gate overlap_;
  std::thread preparation_;
  std::shared_ptr<device_access> devices_;
  StagerType stager_;
  ExecutorType executor_;  // last: its destructor waits for jobs, which use all of the above
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
