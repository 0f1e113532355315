// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/agreement.hpp>
#include <cairn/checkpointer/engine_parts.hpp>
#include <cairn/checkpointer/following.hpp>
#include <cairn/checkpointer/loader.hpp>
#include <cairn/checkpointer/save_path.hpp>
#include <cairn/checkpointer/save_services.hpp>
#include <cairn/checkpointer/store_probe.hpp>
#include <cairn/checkpointer/unfinished_saves.hpp>
#include <cairn/comm/collectives.hpp>
#include <cairn/model/peer_watch.hpp>
#include <cairn/model/save_context.hpp>
#include <cairn/system/algorithm.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/shared.hpp>
#include <cairn/system/wire.hpp>

#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Ranks whose worker processes may live on.
struct outlived_peers final : peer_watch {
  explicit outlived_peers(std::shared_ptr<const peer_watch> by) : watch(std::move(by)) {}
  [[nodiscard]] bool is_gone(int rank) const noexcept override { return watch->is_gone(rank); }
  [[nodiscard]] bool leaves_workers() const noexcept override { return true; }
  std::shared_ptr<const peer_watch> watch;
};

/// What a checkpointer owns, at one address for its whole life.
struct engine::inside {
  explicit inside(engine_parts parts)
      : options(parts.options),
        place(parts.storage.describe()),
        load_planner(std::move(parts.planners.load)),
        group(parts.group.make(std::move(parts.communicator))),
        services(detail::make_shared<save_services>(parts.storage.writer(), parts.storage.reader(),
                                                    std::move(parts.observer), group.rank(), options)),
        devices(parts.devices != nullptr ? std::move(parts.devices) : parts.stager.device_memory()),
        tier(std::move(parts.tier)),
        loads(services, group, options, devices,
              tier != nullptr ? tier->loads(services, group) : owned<tier_loads>(), parts.group.sharing),
        saves(options, parts.overlapped,
              parts.unconfirmed != nullptr && parts.checks == nullptr ? parts.unconfirmed()
                                                                      : owned<unconfirmed_check>(),
              group.rank(), services, devices),
        path(options, parts.overlapped, parts.checks != nullptr ? parts.checks() : owned<copy_checks>(),
             options.link_unchanged && parts.apart != nullptr ? parts.apart() : owned<apart_layouts>(), group,
             services, saves, place, std::move(parts.planners.save), std::move(parts.stager),
             std::move(parts.executor), devices,
             tier != nullptr ? tier->saves(services) : owned<tier_saves>()) {
    if (parts.retaining != nullptr && group.rank() == 0 && !parts.keep.empty())
      services->retain_by(parts.retaining(services, parts.keep));
    const auto bytes = read_once(
        group, [] { return make_run(); }, peer_deadline());
    wire_reader in(bytes);
    run.high = in.get<std::uint64_t>();
    run.low = in.get<std::uint64_t>();
    std::array<std::byte, 16> word;
    std::memcpy(word.data(), bytes.data(), word.size());
    group.set_run(word);
    services->set_run(run);
    path.set_run(run, watch_peers());
    redundancy = path.open_tier(place);
  }

  /// Who tells which ranks are gone; null: nobody.
  std::shared_ptr<const peer_watch> watch_peers() {
    auto watch = group.communicator().watch_peers();
    if (watch == nullptr || path.ends_with_process()) return watch;
    return detail::make_shared<const outlived_peers>(std::move(watch));
  }
  void check_writable() const {
    if (options.read_only)
      fail(error_id::usage_bad_option, "this checkpointer is read_only: it saves and removes nothing");
  }
  static std::vector<std::byte> make_run() {
    std::vector<std::byte> bytes(16);
    if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
      fail(error_id::storage_io, "the system gives no random numbers");
    return bytes;
  }
  [[nodiscard]] deadline peer_deadline() const noexcept { return deadline::in(options.peer_timeout); }
  /// peer_deadline(), where a peer may wait for so long itself.
  [[nodiscard]] deadline after_peers(std::chrono::nanoseconds timeout) const noexcept {
    return timeout > std::chrono::nanoseconds::max() - options.peer_timeout
               ? deadline::never()
               : deadline::in(timeout + options.peer_timeout);
  }
  void probe_store() {
    if (probed || options.read_only) return;
    probe_shared_store(group, services->writer(), run, place, options.peer_timeout, services->report(),
                       !told);
    services->note_root();
    probed = told = true;
  }
  /// Before a run resumes: the store, or this rank's mount of it, may have gone since it was tested.
  void probe_store_again() {
    static_cast<void>(read_once(
        group,
        [&] {
          services->require_root();
          return std::vector<std::byte>();
        },
        peer_deadline()));
    probed = false;
    probe_store();
  }

  const checkpointer_options options;
  const std::string place;  // of the storage, for messages
  std::string redundancy;   // the same of what other hosts keep
  any_load_planner load_planner;
  collectives group;
  run_id run;
  bool closed = false;
  bool probed = false;  // since the last resume()
  bool told = false;    // what the probe found
  std::shared_ptr<save_services> services;
  std::shared_ptr<device_access> devices;
  owned<tier_parts> tier;  // null: none
  loader loads;
  unfinished_saves saves;
  save_path path;  // last: its destructor waits for jobs, which use all of the above
};

CAIRN_BODY engine::engine(engine_parts parts) : in_(detail::make_owned<inside>(std::move(parts))) {}
CAIRN_BODY engine::~engine() = default;

CAIRN_BODY int engine::rank() const {
  return in_->group.rank();
}
CAIRN_BODY int engine::world_size() const {
  return in_->group.size();
}
CAIRN_BODY std::string engine::describe() const {
  return in_->place + (in_->tier != nullptr ? "; saves are held by " + in_->tier->describe() : "") +
         in_->redundancy + "; saves " +
         (in_->path.overlapped() ? "overlapped with training" : "wait for the copy") + "; digests " +
         (in_->path.digests_in_copy() ? "in the pass that copies" : "by the writer") +
         (!in_->options.checksum_in_writer                                  ? " (chosen)"
          : *in_->options.checksum_in_writer != in_->path.digests_in_copy() ? " (as asked for)"
          : in_->tier != nullptr                                            ? " (the tier needs them there)"
                                 : " (checked{} needs them there)");
}
CAIRN_BODY any_communicator& engine::communicator() noexcept {
  return in_->group.communicator();
}
CAIRN_BODY bool engine::closed() const noexcept {
  return in_->closed;
}

CAIRN_BODY void engine::prepare(const state_dict& state) {
  in_->check_writable();
  in_->path.finish_preparation();
  in_->probe_store();
  in_->path.prepare(state);
}
CAIRN_BODY save_handle engine::save(const state_dict& state, std::int64_t step) {
  in_->check_writable();
  in_->loads.before_save(state);
  auto begun = in_->path.save(state, step);
  in_->loads.has_begun(begun);
  return begun;
}
CAIRN_BODY void engine::before_update() {
  in_->saves.before_update();
}
CAIRN_BODY void engine::before_update(std::string_view name) {
  in_->saves.before_update(name);
}
CAIRN_BODY void engine::before_update(int device, function_ref<void(any_stager&, deadline)> order) {
  const auto until = deadline::in(in_->options.timeout);
  order(in_->path.stager(), until);
  in_->saves.ordered_by_device(device, until);
}

CAIRN_BODY load_report engine::load(const state_dict& state, std::int64_t step, load_request request) {
  in_->saves.check_unconfirmed();
  in_->path.before_load();
  auto report = in_->loads.load(in_->load_planner, state, step, std::move(request));
  in_->path.go_on_from(in_->loads.take_base(), false);
  return report;
}
CAIRN_BODY refresh_report engine::refresh(const state_dict& state, std::optional<std::int64_t> step,
                                          load_request request) {
  in_->saves.check_unconfirmed();
  in_->path.before_load();
  auto report = in_->loads.refresh(in_->load_planner, state, in_->run, step, std::move(request));
  in_->path.go_on_from(in_->loads.take_base(), false);
  return report;
}
CAIRN_BODY std::vector<std::string> engine::torn_items() {
  return in_->loads.torn_items();
}
CAIRN_BODY std::optional<std::int64_t> engine::next_step(following& f) {
  // How long rank 0 waits, first: the others may have been given another time.
  const auto limit = read_once(
      in_->group,
      [&] {
        wire_writer out;
        out.put(std::int64_t{f.options.timeout.count()});
        return out.take();
      },
      in_->after_peers(f.options.timeout));
  const std::chrono::nanoseconds timeout(wire_reader(limit).get<std::int64_t>());
  const auto wait = [&] {
    const auto step = wait_for_step(f, in_->services->reader(), in_->services->writer(), in_->run);
    wire_writer out;
    out.put(f.why).put(step.value_or(0));
    return out.take();
  };
  const auto bytes = read_once(in_->group, wait, in_->after_peers(timeout));
  wire_reader in(bytes);
  f.why = in.get_enum(follow_end::trainer_lost);
  const auto step = in.get<std::int64_t>();
  if (f.why != follow_end::none) return std::nullopt;
  f.last = step;
  return step;
}
CAIRN_BODY std::optional<std::int64_t> engine::resume(const state_dict& state,
                                                      const std::vector<std::int64_t>* among) {
  in_->saves.check_unconfirmed();
  in_->path.before_load();
  // First: to a rank that sees another store, every good checkpoint looks damaged.
  in_->probe_store_again();
  const auto step = in_->loads.resume(in_->load_planner, state, in_->run, among);
  in_->path.resumed(in_->loads.store_has_resumed(), in_->loads.newest_stored());
  in_->path.go_on_from(in_->loads.take_base(), true);
  if (!in_->options.read_only) prepare(state);
  return step;
}

CAIRN_BODY stored_items engine::items(std::int64_t step) {
  return in_->loads.items(step);
}
CAIRN_BODY void engine::annotate(const cairn::annotations& said) {
  in_->check_writable();
  in_->path.annotate(said);
}
CAIRN_BODY cairn::annotations engine::annotations(std::int64_t step) {
  return in_->loads.annotations(step);
}
CAIRN_BODY std::vector<std::byte> engine::manifest(std::int64_t step) {
  return read_once(
      in_->group, [&] { return in_->services->reader().fetch(step); }, in_->peer_deadline());
}
CAIRN_BODY void engine::read_item(std::string_view name, std::int64_t step, dtype type, load_request request,
                                  function_ref<void*(std::size_t)> allocate) {
  in_->loads.read_item(std::string(name), step, type, std::move(request), allocate);
}
CAIRN_BODY std::vector<std::int64_t> engine::list() {
  return decode_steps(read_once(
      in_->group, [&] { return encode_steps(in_->services->reader().list()); }, in_->peer_deadline()));
}
CAIRN_BODY void engine::remove(std::int64_t step) {
  in_->check_writable();
  if (in_->saves.all().any_of(step))
    in_->saves.check_unconfirmed();  // first: it may end only when it is confirmed
  if (detail::any_rank(in_->group, in_->saves.all().any_of(step), in_->peer_deadline())) {
    const save_context c{.timeout = in_->options.timeout};
    // What follows ends saves that are under way: not that of rank 0, which it waits for, ...
    const auto committed = read_once(
        in_->group,
        [&] {
          in_->saves.all().wait_for_step(step);
          const auto steps = in_->services->reader().list_from(step);
          return std::vector<std::byte>(detail::contains(steps, step) ? 1 : 0);
        },
        in_->after_peers(c.longest()));
    // ... and it hides no commit from ranks that have not seen it yet.
    if (!committed.empty()) {
      in_->saves.all().wait_for_step(step);
      static_cast<void>(detail::any_rank(in_->group, false, in_->after_peers(c.longest())));
    }
  }
  in_->path.before_remove(step);
  static_cast<void>(read_once(
      in_->group,
      [&] {
        in_->services->remove(step, deadline::in(in_->options.peer_timeout / 2));
        return std::vector<std::byte>();
      },
      in_->peer_deadline()));
}
CAIRN_BODY void engine::pin(std::int64_t step, bool pinned) {
  in_->check_writable();
  static_cast<void>(read_once(
      in_->group,
      [&] {
        if (pinned)
          in_->services->writer().pin(step, deadline::in(in_->options.peer_timeout / 2));
        else
          in_->services->writer().unpin(step);
        return std::vector<std::byte>();
      },
      in_->peer_deadline()));
}
CAIRN_BODY std::vector<std::int64_t> engine::pinned() {
  return decode_steps(read_once(
      in_->group, [&] { return encode_steps(in_->services->writer().pinned()); }, in_->peer_deadline()));
}
CAIRN_BODY checkpoint_lease engine::lease(std::int64_t step) {
  checkpoint_lease own;
  const auto held = read_once(
      in_->group,
      [&] {
        own = in_->services->lease(step, deadline::in(in_->options.peer_timeout / 2), false);
        return std::vector<std::byte>{std::byte{own.held()}};
      },
      in_->peer_deadline());
  if (in_->group.rank() == 0) return own;
  return {step, held.at(0) != std::byte{0} ? detail::make_shared<char>() : nullptr};
}
CAIRN_BODY bool engine::quarantine(std::int64_t step) {
  if (in_->options.read_only) return false;
  const auto done = [&] {
    return std::vector<std::byte>{std::byte{in_->services->writer().quarantine(step)}};
  };
  return read_once(in_->group, done, in_->peer_deadline()).at(0) != std::byte{0};
}
CAIRN_BODY bool engine::any_rank(bool here) {
  return detail::any_rank(in_->group, here, in_->peer_deadline());
}
CAIRN_BODY std::optional<std::chrono::duration<double>> engine::time_to_save() const {
  return in_->services->history().until_committed(in_->saves.all().all());
}

CAIRN_BODY void engine::close() {
  in_->saves.check_unconfirmed();
  in_->path.finish_preparation();
  in_->closed = true;
  in_->path.persist_last();
  in_->saves.close();
  in_->path.end_tier();
}
CAIRN_BODY void engine::shut_down(bool unwinding) noexcept {
  in_->saves.shut_down(unwinding, [&] { in_->path.finish_preparation(); });
}

/// @throws usage_error (usage_bad_option)
CAIRN_BODY void check_options(const checkpointer_options& options, const retention_policy& keep) {
  keep.check();
  if (options.timeout.count() <= 0 || options.peer_timeout.count() <= 0 || options.max_fallback < 0 ||
      options.max_restarts < 0 || options.max_consecutive_failures < 0 || options.load_memory == 0 ||
      options.cached_plans == 0 || options.mean_time_between_failures.count() < 0 ||
      options.earlier_run_timeout.count() < 0)
    fail(error_id::usage_bad_option, "a checkpointer option is zero or negative where that means nothing");
}

CAIRN_BODY engine_owner make_engine(engine_parts parts) {
  check_options(parts.options, parts.keep);
  if (parts.tier != nullptr && parts.options.read_only)
    fail(error_id::usage_bad_option,
         "a read_only checkpointer holds nothing in a local tier: leave local_tier out; load() and resume() "
         "read the store");
  return engine_owner(detail::make_owned<engine>(std::move(parts)));
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
