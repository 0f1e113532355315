// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/checkpointer_base.hpp>
#include <cairn/checkpointer/composition.hpp>
#include <cairn/checkpointer/default_types.hpp>
#include <cairn/checkpointer/engine_parts.hpp>
#include <cairn/checkpointer/make_retaining.hpp>
#include <cairn/checkpointer/make_tier_parts.hpp>
#include <cairn/checkpointer/options.hpp>
#include <cairn/system/shared.hpp>

#include <concepts>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace cairn {
inline namespace v1 {

namespace detail {
/// Takes the place of the storage where the arguments do not fit, so that the compiler prints only one
/// sentence.
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
using tier_for = pick_t<role::tier, void, A...>;
template <class... A>
using stager_for = pick_t<role::stager, typename stager_of_tier<heap_stager, tier_for<A...>>::type, A...>;
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
/// Storage; the others are policies that declare their roles, in any order: a planner, stager, executor,
/// communicator, observer, overlapped{}, local_tier{...}, persist{...}, partner_copies{...} or parity{...} with tls_links{}, keep_last(n) and other
/// policies, read_sharing::off, checked{}, read_only{},
/// cuda::device_loads{}, checkpointer_options{...}. Every policy has a default.
/// `checkpointer_for<file_store, mpi_communicator>` names the type.
///
/// Its calls (prepare, save, before_update, load, resume, list, lease, remove, quarantine, close, ...)
/// are those of checkpointer_base: <cairn/checkpointer/checkpointer_base.hpp> has their contracts.
template <class StorageType, class SavePlannerType, class LoadPlannerType, class StagerType,
          class ExecutorType, class CommunicatorType, class ObserverType, bool Overlapped>
class checkpointer : public checkpointer_base {
 public:
  /// @throws timeout_error or peer_error if not all ranks arrive, storage_error if the store cannot be used.
  template <class First, class... Policies>
    requires(!std::same_as<std::remove_cvref_t<First>, checkpointer>)
  explicit checkpointer(First first, Policies... policies)
      : checkpointer_base(
            engine_of(storage_over<Policies...>(std::move(first)), std::tuple<Policies&...>(policies...))) {}

  using checkpointer_base::before_update;
  /// before_update() for device memory, with a stager that copies by streams (cuda::pinned_stager): work
  /// that is enqueued on `stream` of `device` from now on begins after the last save has copied the
  /// memory of this device. The stream waits, the host does not. Call it for each stream that updates
  /// saved memory. The save is confirmed after it was called for each device whose memory is copied late,
  /// and after before_update() where host memory is copied late. Only the thread that saves calls it.
  /// @throws storage_error (storage_device), timeout_error.
  template <class Stream>
    requires StreamOrderedStager<StagerType, Stream>
  void before_update(Stream stream, int device = 0) {
    engine_.here().before_update(device, [&](any_stager& stager, deadline until) {
      stager.template get_if<StagerType>()->before_update(stream, device, until);
    });
  }

  /// The communicator, for tests and for counting its messages. Not to be used while a call is under way.
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
  static detail::engine_owner engine_of(any_storage storage, std::tuple<P&...> arguments) {
    if constexpr (sizeof...(P) == 0 && !Overlapped && !detail::is_read_only<StorageType>)
      return detail::make_default_engine(std::move(storage));
    else
      return detail::make_engine(parts_of(std::move(storage), arguments));
  }
  template <class... P>
  static detail::engine_parts parts_of(any_storage storage, std::tuple<P&...> arguments) {
    static_assert(detail::check_tier<detail::tier_for<P...>>());
    using redundancy = detail::pick_t<role::redundancy, void, P...>;
    static_assert(detail::check_redundancy<redundancy, detail::pick_t<role::link, void, P...>,
                                           detail::tier_for<P...>>());
    const auto tier = take_tier(arguments);
    detail::engine_parts parts{.storage = std::move(storage),
                               .planners = take_planners(arguments),
                               .stager = take_stager(tier, arguments),
                               .executor = take_executor(arguments),
                               .communicator = take_communicator(arguments),
                               .observer = take_observer(arguments),
                               .options = detail::take<role::options, checkpointer_options, P...>(arguments),
                               .keep = {},
                               .overlapped = Overlapped,
                               .devices = take_devices(arguments)};
    if constexpr (alone<P...>)
      parts.group = detail::parts_of_one_rank();
    else
      parts.group = detail::parts_of_group();
    if constexpr (detail::count_of<role::tier, P...> == 1) {
      std::optional<persist> persisting;
      if constexpr (detail::count_of<role::persist, P...> == 1)
        persisting = detail::take<role::persist, persist, P...>(arguments);
      std::shared_ptr<spread_tier> spread;
      detail::owned<detail::redundant_saves> redundant;
      if constexpr (!std::is_void_v<redundancy>) {
        using links = detail::pick_t<role::link, void, P...>;
        spread = tier;
        redundant = make_redundant_saves(detail::take<role::redundancy, redundancy, P...>(arguments),
                                         any_link_maker(detail::take<role::link, links, P...>(arguments)));
      }
      parts.tier = detail::make_tier_parts<void>(tier, persisting, std::move(spread), std::move(redundant));
    }
    if constexpr (detail::count_of<role::options, P...> == 1) parts.apart = &detail::make_apart_layouts<void>;
    if constexpr (Overlapped) parts.unconfirmed = &detail::make_unconfirmed_check<void>;
    if constexpr (detail::count_of<role::check, P...> == 1)
      if (detail::take<role::check, cairn::checked, P...>(arguments).on)
        parts.checks = &detail::make_copy_checks<void>;
    if constexpr (detail::count_of<role::read_sharing, P...> == 1)
      parts.options.sharing = detail::take<role::read_sharing, read_sharing, P...>(arguments);
    if constexpr (detail::count_of<role::access, P...> == 1 || detail::is_read_only<StorageType>)
      parts.options.read_only = true;
    if constexpr (detail::count_of<role::retention, P...> == 1) {
      parts.keep = detail::take<role::retention, retention_policy, P...>(arguments);
      parts.retaining = &detail::make_retaining<void>;
    }
    return parts;
  }
  /// Whether there is one rank: what several ranks need is not compiled then.
  template <class... P>
  static constexpr bool alone = detail::count_of<role::communicator, P...> == 0;
  template <class... P>
  static constexpr auto storage_maker() {
    if constexpr (detail::count_of<role::retention, P...> == 0)
      return &detail::make_storage_of_one_rank;
    else
      return &detail::make_verified_storage_of_one_rank<>;
  }
  template <class... P, class First>
  static any_storage storage_over(First first) {
    if constexpr (std::same_as<First, StorageType>)
      return any_storage(std::move(first));
    else if constexpr (alone<P...> && detail::count_of<role::executor, P...> == 0)
      return detail::storage_of_one_rank_over(std::move(first), storage_maker<P...>());
    else
      return detail::default_storage_over(std::move(first));
  }
  template <class... P>
  static any_planners default_planners() {
    if constexpr (alone<P...>)
      return detail::make_planners_of_one_rank();
    else
      return detail::make_default_planners();
  }
  // A role that no argument plays gets its default, which is made where the type of the default is complete.
  template <class... P>
  static any_planners take_planners(std::tuple<P&...> arguments) {
    if constexpr (detail::count_of<role::planner, P...> == 1) {
      return both_roles_of(detail::take<role::planner, SavePlannerType, P...>(arguments));
    } else {
      auto planners = default_planners<P...>();
      if constexpr (detail::count_of<role::save_planner, P...> == 1)
        planners.save = any_save_planner(detail::take<role::save_planner, SavePlannerType, P...>(arguments));
      if constexpr (detail::count_of<role::load_planner, P...> == 1)
        planners.load = any_load_planner(detail::take<role::load_planner, LoadPlannerType, P...>(arguments));
      return planners;
    }
  }
  template <class T, class... P>
  static any_stager take_stager([[maybe_unused]] const T& tier, std::tuple<P&...> arguments) {
    if constexpr (detail::count_of<role::tier, P...> == 1)
      return tier->stager();
    else if constexpr (detail::count_of<role::stager, P...> == 1)
      return any_stager(detail::take<role::stager, StagerType, P...>(arguments));
    else
      return detail::make_default_stager();
  }
  template <class... P>
  static auto take_tier([[maybe_unused]] std::tuple<P&...> arguments) {
    if constexpr (detail::count_of<role::tier, P...> == 1)
      return detail::make_shared<detail::tier_for<P...>>(
          detail::take<role::tier, detail::tier_for<P...>, P...>(arguments));
    else
      return nullptr;
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
      return detail::make_shared<devices>(detail::take<role::devices, devices, P...>(arguments));
  }
};

/// The type that wrong arguments make, after their static_assert has failed.
template <class SavePlannerType, class LoadPlannerType, class StagerType, class ExecutorType,
          class CommunicatorType, class ObserverType, bool Overlapped>
class checkpointer<detail::refused_arguments, SavePlannerType, LoadPlannerType, StagerType, ExecutorType,
                   CommunicatorType, ObserverType, Overlapped> : public checkpointer_base {
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
