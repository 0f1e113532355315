// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/composition.hpp>
#include <cairn/checkpointer/default_types.hpp>
#include <cairn/checkpointer/engine_parts.hpp>
#include <cairn/checkpointer/options.hpp>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

class any_checkpointer;

namespace detail {
/// Stands for the storage where the arguments do not fit, so that one sentence is all that a compiler says.
struct refused_arguments {};
template <class S>
struct storage_over {
  using type = refused_arguments;
};
template <ByteStore S>
struct storage_over<S> {
  using type = safetensors_storage<S>;
};
template <class S>
  requires plays<S, role::storage>
struct storage_over<S> {
  using type = std::conditional_t<Storage<S>, S, refused_arguments>;
};
/// The storage of a checkpointer: First itself if it is a Storage, else the default storage over it. Asserts
/// that all arguments fit, before the checkpointer is made of them.
template <class First, class... Policies>
struct composition {
  static constexpr auto choose() {
    static_assert(check_store<First>());
    using chosen = typename storage_over<First>::type;
    if constexpr (!std::is_same_v<chosen, refused_arguments>) {
      static_assert(check_arguments<Policies...>());
      return std::type_identity<std::conditional_t<arguments_fit<Policies...>, chosen, refused_arguments>>{};
    } else {
      return std::type_identity<refused_arguments>{};
    }
  }
  using storage = typename decltype(choose())::type;
};
template <class First, class... Policies>
using storage_for = typename composition<First, Policies...>::storage;

template <class... A>
using save_planner_for = pick_t<role::planner, pick_t<role::save_planner, default_planner, A...>, A...>;
/// The load planner; for one object that plays both roles, the save planner's type (and object).
template <class... A>
using load_planner_for = pick_t<role::planner, pick_t<role::load_planner, default_planner, A...>, A...>;
template <class... A>
using stager_for = pick_t<role::stager, heap_stager, A...>;
template <class... A>
using executor_for = pick_t<role::executor, thread_executor, A...>;
template <class... A>
using communicator_for = pick_t<role::communicator, single_process, A...>;
template <class... A>
using observer_for = pick_t<role::observer, no_observer, A...>;
template <class... A>
inline constexpr bool overlapped_in = (plays<A, role::overlap> || ...);
}  // namespace detail

/// Saves and restores a state_dict: the one class that composes the policies.
///
/// `checkpointer ckpt{file_store{"checkpoints"}, policies...};` The first argument is a ByteStore or a
/// Storage; every further one is a policy that declares its role, in any order: a planner, stager, executor,
/// communicator, observer, overlapped{}, keep_last(n), read_sharing::off, checked{}, read_only{},
/// cuda::device_loads{},
/// checkpointer_options{...}. What is left out has a default. `checkpointer_for<file_store,
/// mpi_communicator>` names the type.
///
/// Collective: the constructor, prepare, save, load, resume, list, remove, quarantine, any_rank are called by
/// all ranks in the same order, by one thread at a time; only they use the communicator. before_update() and
/// handles: any thread. close() waits for this rank's saves.
///
/// Movable, not copyable. After fork() the child's copy refuses every call and its destructor does nothing. A
/// state_dict may be changed or destroyed once save() has returned; the memory must stay valid and unchanged
/// until the save is `released`.
template <class StorageType, class SavePlannerType, class LoadPlannerType, class StagerType,
          class ExecutorType, class CommunicatorType, class ObserverType, bool Overlapped>
class checkpointer {
 public:
  /// @throws timeout_error or peer_error if not all ranks arrive, storage_error if the store cannot be used.
  template <class First, class... Policies>
    requires(!std::same_as<std::remove_cvref_t<First>, checkpointer>)
  explicit checkpointer(First first, Policies... policies)
      : engine_(detail::make_engine(
            parts_of(storage_over(std::move(first)), std::tuple<Policies&...>(policies...)))) {}
  checkpointer(checkpointer&&) noexcept = default;
  checkpointer& operator=(checkpointer&&) noexcept = default;
  /// Waits, at most for the timeout, until memory is released and saves have ended; failures go to stderr and
  /// to the observer. Never throws. While an exception unwinds, an overlapped save that was not confirmed is
  /// given up; otherwise it goes on, and a line on stderr says that its memory was not compared, as close()
  /// does.
  ~checkpointer() = default;

  /// Plans for this state, checks that all ranks see one store, and sizes and pre-faults the buffers in the
  /// background; a save() before that is ready waits. Called by resume(). Optional: a save() without it pays
  /// for this itself.
  void prepare(const state_dict& state) { engine_.open().prepare(state); }

  /// Saves the state as the checkpoint of `step`, the count of completed updates. Returns when training may
  /// change its memory, and the process that writes, where that is another one, has the save; with
  /// overlapped{} at once, see before_update(). The handle says when it is written and committed; you may
  /// drop it.
  /// @throws usage_error and plan_error of this call, with the state unharmed; every later error is on the
  /// handle, and thrown by wait() and close(). After `max_consecutive_failures` failed saves usage_error
  /// (usage_too_many_failures), when its own save is under way.
  save_handle save(const state_dict& state, std::int64_t step) { return engine_.open().save(state, step); }

  /// For overlapped saves: call it before memory is changed, in each step. Returns when the last save has
  /// copied the memory of training, and the process that writes, where that is another one, has the save (see
  /// handover_timeout); nothing to do, it costs nanoseconds. @throws timeout_error (timeout_staging).
  void before_update() { engine_.here().before_update(); }

  /// The same for those who update one item after another: returns when the last save has copied the items of
  /// these names, and waits for nothing else. A name of the state, or the beginning of names and a `*`:
  /// `before_update("layer3.*")`. The save is confirmed when before_update() has returned, or this one for
  /// each item that was not copied before save() returned; what is left out then must not change until the
  /// next before_update(). With no_staging it waits for all items. No allocation, O(log n); any thread.
  /// @throws usage_error (usage_unknown_name) for a name that the state of the last save or prepare() does
  /// not have; timeout_error.
  template <std::convertible_to<std::string_view>... Names>
    requires(sizeof...(Names) > 0)
  void before_update(const Names&... names) {
    auto& engine = engine_.here();
    (engine.before_update(std::string_view(names)), ...);
  }

  /// The same for memory of devices, with a stager that copies it by streams (cuda::pinned_stager): what
  /// `stream` of `device` is given from now on begins after the last save has copied the memory of this
  /// device. The stream waits, the host does not. Call it for each stream that updates what was saved:
  /// the save is confirmed when it was called for each device whose memory is copied late, and
  /// before_update() where memory of the host is. The thread that saves. @throws storage_error
  /// (storage_device), timeout_error.
  template <class Stream>
    requires StreamOrderedStager<StagerType, Stream>
  void before_update(Stream stream, int device = 0) {
    engine_.here().before_update(device, [&](any_stager& stager, deadline until) {
      stager.template get_if<StagerType>()->before_update(stream, device, until);
    });
  }

  /// Restores the state from the checkpoint of `step`, on any number of ranks, in place. Options:
  /// cairn::only{patterns}, cairn::partial.
  /// @throws on all ranks alike; after a throw the contents of the state are unspecified. Nothing is moved or
  /// removed.
  template <class... Options>
  load_report load(const state_dict& state, std::int64_t step, Options... options) {
    load_request request;
    (add(request, std::move(options)), ...);
    return engine_.open().load(state, step, std::move(request));
  }

  /// The same with run-time options; `patterns` empty: everything.
  load_report load_matching(const state_dict& state, std::int64_t step, std::vector<std::string> patterns,
                            bool strict) {
    load_request request;
    request.only = std::move(patterns);
    request.strict = strict;
    return engine_.open().load(state, step, std::move(request));
  }

  /// Restores the newest checkpoint that loads on all ranks and prepares saves; its step, or nothing if the
  /// store holds no committed checkpoint. Damaged ones are passed over, at most max_fallback, and their
  /// manifests moved aside; what interrupted runs left is removed. A save of an earlier run that a process
  /// still writes is waited for, at most for earlier_run_timeout, and then ended so that it cannot commit any
  /// more; the observer and a line on stderr say what became of it.
  /// @throws storage_error (storage_nothing_loads), with the reason of each, if there are some and none
  /// loads; plan_error if the state does not fit the newest.
  std::optional<std::int64_t> resume(const state_dict& state) {
    return engine_.open().resume(state, nullptr);
  }
  /// The same with the checkpoints of these steps alone, as if there were no others; see resume_together.
  std::optional<std::int64_t> resume(const state_dict& state, const std::vector<std::int64_t>& among) {
    return engine_.open().resume(state, &among);
  }

  /// The steps of all committed checkpoints, ascending.
  [[nodiscard]] std::vector<std::int64_t> list() { return engine_.open().list(); }
  /// Keeps the checkpoint of this step from being removed, by keep_last or remove() of any process, until
  /// what it gives is destroyed on rank 0. load() and resume() take one themselves while they read. Not
  /// held() where the store takes none (memory_store, one that may not be written, a file system without
  /// locks), nor with read_only{}; a warning says so once. Costs an empty file with a lock; in a bucket
  /// five requests, and one every few seconds. @throws storage_error (storage_not_committed), timeout_error
  [[nodiscard]] checkpoint_lease lease(std::int64_t step) { return engine_.open().lease(step); }
  /// Removes a checkpoint: afterwards it does not exist. No error if there is none.
  /// @throws storage_error (storage_leased) naming who reads it; nothing was removed then.
  void remove(std::int64_t step) { engine_.open().remove(step); }
  /// The checkpoint of this step does not exist any more, but nothing is lost: its manifest becomes
  /// manifest.damaged.<n>. False if the store is read-only. No error if there is none.
  bool quarantine(std::int64_t step) { return engine_.open().quarantine(step); }

  /// What a save() that begins now would need until it is committed, by what earlier saves of this
  /// checkpointer needed: the longest of the last eight, after the rest of those under way. Nothing before
  /// the first commit. Of this rank: ranks that act on it agree with any_rank(). No message; the same thread
  /// as save().
  [[nodiscard]] std::optional<std::chrono::duration<double>> time_to_save() {
    return engine_.open().time_to_save();
  }
  /// True on all ranks if `here` is true on one: one small message up a tree and down again, nothing with one
  /// rank. Collective: for decisions that all ranks must take at the same step, such as to save and stop.
  [[nodiscard]] bool any_rank(bool here) { return engine_.open().any_rank(here); }

  /// Waits for all saves of this rank and throws what failed in the last one. An overlapped save that was not
  /// confirmed (by before_update() or wait()) is compared with the memory of the state, which must still be there,
  /// and fails with usage_before_update_missing where that changed: one pass over it. Afterwards calls are
  /// refused (usage_closed), but for rank(), world_size(), before_update() and destruction.
  void close() { engine_.open().close(); }

  [[nodiscard]] int rank() const { return engine_.any().rank(); }
  [[nodiscard]] int world_size() const { return engine_.any().world_size(); }
  /// The communicator, for tests and for those who count its messages; not to be used while a call is under
  /// way.
  [[nodiscard]] CommunicatorType& communicator() {
    return engine_.open().communicator().template get<CommunicatorType>();
  }

 private:
  static_assert(detail::check_save_planner<SavePlannerType>());
  static_assert(detail::check_load_planner<LoadPlannerType>());
  static_assert(detail::check_stager<StagerType>());
  static_assert(detail::check_communicator<CommunicatorType>());
  static_assert(detail::check_observer<ObserverType>());
  static_assert(detail::check_executor<ExecutorType, typename detail::writer_of<StorageType>::type,
                                       StagerType, Overlapped>());

  template <class... P>
  static detail::engine_parts parts_of(any_storage storage, std::tuple<P&...> arguments) {
    detail::engine_parts parts{.storage = std::move(storage),
                               .planners = take_planners(arguments),
                               .stager = take_stager(arguments),
                               .executor = take_executor(arguments),
                               .communicator = take_communicator(arguments),
                               .observer = take_observer(arguments),
                               .options = detail::take<role::options, checkpointer_options, P...>(arguments),
                               .keep = {},
                               .overlapped = Overlapped,
                               .checked = false,
                               .devices = take_devices(arguments)};
    if constexpr (detail::count_of<role::check, P...> == 1)
      parts.checked = detail::take<role::check, cairn::checked, P...>(arguments).on;
    if constexpr (detail::count_of<role::read_sharing, P...> == 1)
      parts.options.sharing = detail::take<role::read_sharing, read_sharing, P...>(arguments);
    if constexpr (detail::count_of<role::access, P...> == 1) parts.options.read_only = true;
    if constexpr (detail::count_of<role::retention, P...> == 1)
      parts.keep = detail::take<role::retention, keep_last, P...>(arguments);
    return parts;
  }
  template <class First>
  static any_storage storage_over(First first) {
    if constexpr (std::same_as<First, StorageType>)
      return any_storage(std::move(first));
    else
      return detail::default_storage_over(std::move(first));
  }
  // What no argument plays is made where its page is known.
  template <class... P>
  static any_planners take_planners(std::tuple<P&...> arguments) {
    if constexpr (detail::count_of<role::planner, P...> == 1) {
      return both_roles_of(detail::take<role::planner, SavePlannerType, P...>(arguments));
    } else {
      auto planners = detail::make_default_planners();
      if constexpr (detail::count_of<role::save_planner, P...> == 1)
        planners.save = any_save_planner(detail::take<role::save_planner, SavePlannerType, P...>(arguments));
      if constexpr (detail::count_of<role::load_planner, P...> == 1)
        planners.load = any_load_planner(detail::take<role::load_planner, LoadPlannerType, P...>(arguments));
      return planners;
    }
  }
  template <class... P>
  static any_stager take_stager(std::tuple<P&...> arguments) {
    if constexpr (detail::count_of<role::stager, P...> == 1)
      return any_stager(detail::take<role::stager, StagerType, P...>(arguments));
    else
      return detail::make_default_stager();
  }
  template <class... P>
  static any_executor take_executor(std::tuple<P&...> arguments) {
    if constexpr (detail::count_of<role::executor, P...> == 1)
      return any_executor(detail::take<role::executor, ExecutorType, P...>(arguments));
    else
      return detail::make_default_executor();
  }
  template <class... P>
  static any_observer take_observer(std::tuple<P&...> arguments) {
    if constexpr (detail::count_of<role::observer, P...> == 1)
      return any_observer(detail::take<role::observer, ObserverType, P...>(arguments));
    else
      return detail::make_default_observer();
  }
  template <class... P>
  static any_communicator take_communicator(std::tuple<P&...> arguments) {
    if constexpr (detail::count_of<role::communicator, P...> == 1)
      return any_communicator(detail::take<role::communicator, CommunicatorType, P...>(arguments));
    else
      return detail::make_default_communicator();
  }
  template <class... P>
  static std::shared_ptr<device_access> take_devices(std::tuple<P&...> arguments) {
    using devices = detail::pick_t<role::devices, void, P...>;
    if constexpr (std::is_void_v<devices>)
      return nullptr;
    else
      return std::make_shared<devices>(detail::take<role::devices, devices, P...>(arguments));
  }
  static void add(load_request& request, only patterns) {
    for (auto& p : patterns.patterns) request.only.push_back(std::move(p));
  }
  static void add(load_request& request, partial_t) noexcept { request.strict = false; }

  friend class any_checkpointer;
  detail::engine_owner engine_;
};

/// What wrong arguments make, when their sentence is said.
template <class SavePlannerType, class LoadPlannerType, class StagerType, class ExecutorType,
          class CommunicatorType, class ObserverType, bool Overlapped>
class checkpointer<detail::refused_arguments, SavePlannerType, LoadPlannerType, StagerType, ExecutorType,
                   CommunicatorType, ObserverType, Overlapped> {
 public:
  template <class... Arguments>
  explicit checkpointer(Arguments&&...) {}
};

template <class First, class... Policies>
checkpointer(First, Policies...)
    -> checkpointer<detail::storage_for<First, Policies...>, detail::save_planner_for<Policies...>,
                    detail::load_planner_for<Policies...>, detail::stager_for<Policies...>,
                    detail::executor_for<Policies...>, detail::communicator_for<Policies...>,
                    detail::observer_for<Policies...>, detail::overlapped_in<Policies...>>;

/// The type of `checkpointer{First{...}, Policies{...}...}`, for a data member; the order of the policies
/// does not matter.
template <class First, class... Policies>
using checkpointer_for = decltype(checkpointer(std::declval<First>(), std::declval<Policies>()...));

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer.ipp>
#endif
