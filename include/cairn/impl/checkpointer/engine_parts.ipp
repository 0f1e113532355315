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

/// What a checkpointer owns, at one address for its whole life.
class composed_engine final : public engine {
 public:
  explicit composed_engine(engine_parts parts)
      : options_(parts.options),
        place_(parts.storage.describe()),
        load_planner_(std::move(parts.planners.load)),
        group_(parts.group.make(std::move(parts.communicator))),
        services_(detail::make_shared<save_services>(parts.storage.writer(), parts.storage.reader(),
                                                     std::move(parts.observer), group_.rank(), options_)),
        devices_(parts.devices != nullptr ? std::move(parts.devices) : parts.stager.device_memory()),
        tier_(std::move(parts.tier)),
        loader_(services_, group_, options_, devices_,
                tier_ != nullptr ? tier_->loads(services_, group_) : owned<tier_loads>(),
                parts.group.sharing),
        saves_(options_, parts.overlapped, parts.checks != nullptr, group_.rank(), services_, devices_),
        save_path_(options_, parts.overlapped,
                   parts.checks != nullptr ? parts.checks() : owned<copy_checks>(),
                   options_.link_unchanged && parts.apart != nullptr ? parts.apart() : owned<apart_layouts>(),
                   group_, services_, saves_, place_, std::move(parts.planners.save), std::move(parts.stager),
                   std::move(parts.executor), devices_,
                   tier_ != nullptr ? tier_->saves(services_) : owned<tier_saves>()) {
    if (parts.retaining != nullptr && group_.rank() == 0 && !parts.keep.empty())
      services_->retain_by(parts.retaining(services_, parts.keep));
    const auto bytes = read_once(
        group_, [] { return make_run(); }, peer_deadline());
    wire_reader in(bytes);
    run_.high = in.get<std::uint64_t>();
    run_.low = in.get<std::uint64_t>();
    std::array<std::byte, 16> word;
    std::memcpy(word.data(), bytes.data(), word.size());
    group_.set_run(word);
    save_path_.set_run(run_, save_path_.ends_with_process() ? group_.communicator().watch_peers() : nullptr);
    redundancy_ = save_path_.open_tier(place_);
  }

  [[nodiscard]] int rank() const override { return group_.rank(); }
  [[nodiscard]] int world_size() const override { return group_.size(); }
  [[nodiscard]] std::string describe() const override {
    return place_ + (tier_ != nullptr ? "; saves are held by " + tier_->describe() : "") + redundancy_ +
           "; saves " + (save_path_.overlapped() ? "overlapped with training" : "wait for the copy") +
           "; digests " + (save_path_.digests_in_copy() ? "in the pass that copies" : "by the writer") +
           (!options_.checksum_in_writer                                   ? " (chosen)"
            : *options_.checksum_in_writer != save_path_.digests_in_copy() ? " (as asked for)"
                                                                           : " (checked{} needs them there)");
  }
  [[nodiscard]] any_communicator& communicator() noexcept override { return group_.communicator(); }
  [[nodiscard]] bool closed() const noexcept override { return closed_; }

  void prepare(const state_dict& state) override {
    check_writable();
    save_path_.finish_preparation();
    probe_store();
    save_path_.prepare(state);
  }
  save_handle save(const state_dict& state, std::int64_t step) override {
    check_writable();
    loader_.before_save(state);
    auto begun = save_path_.save(state, step);
    loader_.has_begun(begun);
    return begun;
  }
  void before_update() override { saves_.before_update(); }
  void before_update(std::string_view name) override { saves_.before_update(name); }
  void before_update(int device, function_ref<void(any_stager&, deadline)> order) override {
    const auto until = deadline::in(options_.timeout);
    order(save_path_.stager(), until);
    saves_.ordered_by_device(device, until);
  }

  load_report load(const state_dict& state, std::int64_t step, load_request request) override {
    saves_.check_unconfirmed();
    save_path_.before_load();
    auto report = loader_.load(load_planner_, state, step, std::move(request));
    save_path_.go_on_from(loader_.take_base(), false);
    return report;
  }
  refresh_report refresh(const state_dict& state, std::optional<std::int64_t> step,
                         load_request request) override {
    saves_.check_unconfirmed();
    save_path_.before_load();
    auto report = loader_.refresh(load_planner_, state, run_, step, std::move(request));
    save_path_.go_on_from(loader_.take_base(), false);
    return report;
  }
  [[nodiscard]] std::vector<std::string> torn_items() override { return loader_.torn_items(); }
  [[nodiscard]] std::optional<std::int64_t> next_step(following& f) override {
    // How long rank 0 waits, first: the others may have been given another time.
    const auto limit = read_once(
        group_,
        [&] {
          wire_writer out;
          out.put(std::int64_t{f.options.timeout.count()});
          return out.take();
        },
        after_peers(f.options.timeout));
    const std::chrono::nanoseconds timeout(wire_reader(limit).get<std::int64_t>());
    const auto wait = [&] {
      const auto step = wait_for_step(f, services_->reader(), services_->writer(), run_);
      wire_writer out;
      out.put(f.why).put(step.value_or(0));
      return out.take();
    };
    const auto bytes = read_once(group_, wait, after_peers(timeout));
    wire_reader in(bytes);
    f.why = in.get_enum(follow_end::trainer_gone);
    const auto step = in.get<std::int64_t>();
    if (f.why != follow_end::none) return std::nullopt;
    f.last = step;
    return step;
  }
  std::optional<std::int64_t> resume(const state_dict& state,
                                     const std::vector<std::int64_t>* among) override {
    saves_.check_unconfirmed();
    save_path_.before_load();
    probe_store();  // first: to a rank that sees another store, every good checkpoint looks damaged
    const auto step = loader_.resume(load_planner_, state, run_, among);
    save_path_.resumed(loader_.store_has_resumed());
    save_path_.go_on_from(loader_.take_base(), true);
    if (!options_.read_only) prepare(state);
    return step;
  }

  [[nodiscard]] stored_items items(std::int64_t step) override { return loader_.items(step); }
  void annotate(const cairn::annotations& said) override {
    check_writable();
    save_path_.annotate(said);
  }
  [[nodiscard]] cairn::annotations annotations(std::int64_t step) override {
    return loader_.annotations(step);
  }
  void read_item(std::string_view name, std::int64_t step, dtype type, load_request request,
                 function_ref<void*(std::size_t)> allocate) override {
    loader_.read_item(std::string(name), step, type, std::move(request), allocate);
  }
  [[nodiscard]] std::vector<std::int64_t> list() override {
    return decode_steps(read_once(
        group_, [&] { return encode_steps(services_->reader().list()); }, peer_deadline()));
  }
  void remove(std::int64_t step) override {
    check_writable();
    if (saves_.all().any_of(step)) saves_.check_unconfirmed();  // first: it may end only when it is confirmed
    static_cast<void>(read_once(
        group_,
        [&] {
          saves_.all().wait_for_step(step);  // remove() would end a save that is under way
          services_->give_base_back(step);
          services_->writer().remove(step);
          return std::vector<std::byte>();
        },
        peer_deadline()));
  }
  void pin(std::int64_t step, bool pinned) override {
    check_writable();
    static_cast<void>(read_once(
        group_,
        [&] {
          if (pinned)
            services_->writer().pin(step, deadline::in(options_.peer_timeout / 2));
          else
            services_->writer().unpin(step);
          return std::vector<std::byte>();
        },
        peer_deadline()));
  }
  [[nodiscard]] std::vector<std::int64_t> pinned() override {
    return decode_steps(read_once(
        group_, [&] { return encode_steps(services_->writer().pinned()); }, peer_deadline()));
  }
  [[nodiscard]] checkpoint_lease lease(std::int64_t step) override {
    checkpoint_lease own;
    const auto held = read_once(
        group_,
        [&] {
          if (!options_.read_only)
            own = services_->lease(step, deadline::in(options_.peer_timeout / 2), false);
          return std::vector<std::byte>{std::byte{own.held()}};
        },
        peer_deadline());
    if (group_.rank() == 0) return own;
    return {step, held.at(0) != std::byte{0} ? detail::make_shared<char>() : nullptr};
  }
  [[nodiscard]] bool quarantine(std::int64_t step) override {
    if (options_.read_only) return false;
    const auto done = [&] { return std::vector<std::byte>{std::byte{services_->writer().quarantine(step)}}; };
    return read_once(group_, done, peer_deadline()).at(0) != std::byte{0};
  }
  [[nodiscard]] bool any_rank(bool here) override { return detail::any_rank(group_, here, peer_deadline()); }
  [[nodiscard]] std::optional<std::chrono::duration<double>> time_to_save() const override {
    return services_->history().until_committed(saves_.all().all());
  }

  void close() override {
    saves_.check_unconfirmed();
    save_path_.finish_preparation();
    closed_ = true;
    save_path_.persist_last();
    saves_.close();
    save_path_.end_tier();
  }
  void shut_down(bool unwinding) noexcept override {
    saves_.shut_down(unwinding, [&] { save_path_.finish_preparation(); });
  }

 private:
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
  [[nodiscard]] deadline peer_deadline() const noexcept { return deadline::in(options_.peer_timeout); }
  /// peer_deadline(), where a peer may wait for so long itself.
  [[nodiscard]] deadline after_peers(std::chrono::nanoseconds timeout) const noexcept {
    return timeout > std::chrono::nanoseconds::max() - options_.peer_timeout
               ? deadline::never()
               : deadline::in(timeout + options_.peer_timeout);
  }
  void probe_store() {
    if (!probed_ && !options_.read_only)
      probe_shared_store(group_, services_->writer(), run_, place_, options_.peer_timeout,
                         services_->report());
    probed_ = true;
  }

  const checkpointer_options options_;
  const std::string place_;  // of the storage, for messages
  std::string redundancy_;   // the same of what other hosts keep
  any_load_planner load_planner_;
  collectives group_;
  run_id run_;
  bool closed_ = false;
  bool probed_ = false;
  std::shared_ptr<save_services> services_;
  std::shared_ptr<device_access> devices_;
  owned<tier_parts> tier_;  // null: none
  loader loader_;
  unfinished_saves saves_;
  save_path save_path_;  // last: its destructor waits for jobs, which use all of the above
};

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
  return engine_owner(detail::make_owned<composed_engine>(std::move(parts)));
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
