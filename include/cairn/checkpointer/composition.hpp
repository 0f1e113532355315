// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/default_types.hpp>
#include <cairn/concepts/byte_store.hpp>
#include <cairn/concepts/communicator.hpp>
#include <cairn/concepts/executor.hpp>
#include <cairn/concepts/image_tier.hpp>
#include <cairn/concepts/link_maker.hpp>
#include <cairn/concepts/observer.hpp>
#include <cairn/concepts/planner.hpp>
#include <cairn/concepts/redundancy.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/concepts/stager.hpp>
#include <cairn/concepts/storage.hpp>

#include <concepts>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// The argument type that plays Role, or Default.
template <class Role, class Default, class... Arguments>
struct pick {
  using type = Default;
};
template <class Role, class Default, class First, class... Rest>
struct pick<Role, Default, First, Rest...> {
  using type = std::conditional_t<plays<First, Role>, std::type_identity<std::remove_cvref_t<First>>,
                                  pick<Role, Default, Rest...>>::type;
};
template <class Role, class Default, class... Arguments>
using pick_t = typename pick<Role, Default, Arguments...>::type;

template <class Role, class... Arguments>
inline constexpr int count_of = (0 + ... + static_cast<int>(plays<Arguments, Role>));

/// The argument that plays Role, moved out of the tuple of references, or a default.
template <class Role, class Default, class... Arguments>
Default take(std::tuple<Arguments&...> arguments) {
  using wanted = pick_t<Role, void, Arguments...>;
  if constexpr (std::is_void_v<wanted>)
    return Default{};
  else
    return std::move(std::get<wanted&>(arguments));
}

/// What check_arguments asserts, without a sentence.
template <class... Arguments>
inline constexpr bool arguments_fit =
    (plays_a_role<Arguments> && ...) &&
    count_of<role::save_planner, Arguments...> + count_of<role::planner, Arguments...> <= 1 &&
    count_of<role::load_planner, Arguments...> + count_of<role::planner, Arguments...> <= 1 &&
    count_of<role::store, Arguments...> + count_of<role::storage, Arguments...> == 0 &&
    count_of<role::stager, Arguments...> + count_of<role::tier, Arguments...> <= 1 &&
    count_of<role::persist, Arguments...> <= count_of<role::tier, Arguments...> &&
    count_of<role::redundancy, Arguments...> <= count_of<role::tier, Arguments...> &&
    count_of<role::link, Arguments...> == count_of<role::redundancy, Arguments...> &&
    (... && (count_of<typename role_of<std::remove_cvref_t<Arguments>>::type, Arguments...> <= 1));

// One sentence for each misuse; the concept's own diagnosis, which names the missing expression, follows it.
template <class... Arguments>
constexpr bool check_arguments() {
  static_assert((plays_a_role<Arguments> && ...),
                "cairn::checkpointer: an argument plays no role; declare one in its class (using cairn_role "
                "= cairn::role::stager;) or "
                "specialise cairn::role_of. See docs/concepts.md#roles");
  static_assert(count_of<role::save_planner, Arguments...> + count_of<role::planner, Arguments...> <= 1,
                "cairn::checkpointer: two arguments play the role save planner; pass one");
  static_assert(count_of<role::load_planner, Arguments...> + count_of<role::planner, Arguments...> <= 1,
                "cairn::checkpointer: two arguments play the role load planner; pass one");
  static_assert(count_of<role::stager, Arguments...> <= 1,
                "cairn::checkpointer: two arguments play the role stager; pass one");
  static_assert(count_of<role::executor, Arguments...> <= 1,
                "cairn::checkpointer: two arguments play the role executor; pass one");
  static_assert(count_of<role::communicator, Arguments...> <= 1,
                "cairn::checkpointer: two arguments play the role communicator; pass one");
  static_assert(count_of<role::observer, Arguments...> <= 1,
                "cairn::checkpointer: two arguments play the role observer; pass one");
  static_assert(count_of<role::options, Arguments...> <= 1,
                "cairn::checkpointer: options are given twice; pass one");
  static_assert(count_of<role::overlap, Arguments...> <= 1,
                "cairn::checkpointer: overlapped is given twice; pass one");
  static_assert(count_of<role::retention, Arguments...> <= 1,
                "cairn::checkpointer: which checkpoints stay is said twice; join policies with |, "
                "such as cairn::keep_last(3) | cairn::keep_every(1000)");
  static_assert(count_of<role::read_sharing, Arguments...> <= 1,
                "cairn::checkpointer: read_sharing is given twice; pass one");
  static_assert(count_of<role::access, Arguments...> <= 1,
                "cairn::checkpointer: read_only is given twice; pass one");
  static_assert(count_of<role::devices, Arguments...> <= 1,
                "cairn::checkpointer: two arguments play the role devices; pass one");
  static_assert(count_of<role::tier, Arguments...> <= 1,
                "cairn::checkpointer: two arguments play the role tier; pass one");
  static_assert(count_of<role::persist, Arguments...> <= 1,
                "cairn::checkpointer: persist is given twice; pass one");
  static_assert(
      count_of<role::tier, Arguments...> == 0 || count_of<role::stager, Arguments...> == 0,
      "cairn::checkpointer: a tier brings its own stager, whose images it holds: leave the stager out, or, "
      "where it copies from devices, of which no tier holds images yet, the tier");
  static_assert(
      count_of<role::persist, Arguments...> == 0 || count_of<role::tier, Arguments...> != 0,
      "cairn::checkpointer: persist says which of the saves that a tier holds go to the store; pass "
      "a tier, such as cairn::local_tier, or leave persist out");
  static_assert(count_of<role::redundancy, Arguments...> <= 1,
                "cairn::checkpointer: two arguments play the role redundancy; pass partner_copies or parity");
  static_assert(count_of<role::redundancy, Arguments...> == 0 || count_of<role::tier, Arguments...> != 0,
                "cairn::checkpointer: partner copies and parity are made of what a tier holds; pass a tier, "
                "such as cairn::local_tier, or leave them out");
  static_assert(count_of<role::redundancy, Arguments...> == 0 || count_of<role::link, Arguments...> != 0,
                "cairn::checkpointer: partner copies and parity travel over links of their own; pass "
                "cairn::tls_links{} (cairn/links/tls_link.hpp, docs/tiers.md)");
  static_assert(count_of<role::link, Arguments...> <= 1,
                "cairn::checkpointer: two arguments play the role link; pass one");
  static_assert(count_of<role::link, Arguments...> == 0 || count_of<role::redundancy, Arguments...> != 0,
                "cairn::checkpointer: links are for partner_copies or parity; pass one of them, or leave the "
                "links out");
  static_assert(count_of<role::check, Arguments...> <= 1,
                "cairn::checkpointer: checked is given twice; pass one");
  static_assert(count_of<role::store, Arguments...> + count_of<role::storage, Arguments...> == 0,
                "cairn::checkpointer: the store or storage is the first argument, and there is one");
  return true;
}
/// The name of a place, where a store is wanted.
template <class S>
inline constexpr bool names_a_store =
    std::is_convertible_v<S, std::string_view> || std::is_convertible_v<S, std::string>;
template <class S>
inline constexpr bool plays_another_role =
    !std::is_class_v<S> || (plays_a_role<S> && !plays<S, role::store> && !plays<S, role::storage>);
template <class S>
constexpr bool check_store() {
  if constexpr (names_a_store<S>) {
    static_assert(!names_a_store<S>,
                  "cairn::checkpointer: the first argument is a name, not a store; write "
                  "cairn::file_store{name}. See docs/stores.md");
  } else if constexpr (plays_another_role<S>) {
    static_assert(!plays_another_role<S>,
                  "cairn::checkpointer: the store goes first, then the policies: "
                  "cairn::checkpointer{cairn::file_store{...}, policies...}");
  } else {
    static_assert(ByteStore<S> || Storage<S>,
                  "cairn::checkpointer: the first argument is neither a ByteStore nor a Storage (see the "
                  "lines below for the missing member; docs/concepts.md#bytestore)");
    if constexpr (!Storage<S>) static_assert(ByteStore<S>);
  }
  return true;
}
/// What is taken where no argument plays a role; their pages check what they model.
template <class P>
inline constexpr bool is_default = std::same_as<P, default_planner> || std::same_as<P, heap_stager> ||
                                   std::same_as<P, thread_executor> || std::same_as<P, single_process>;
template <class P>
constexpr bool check_save_planner() {
  if constexpr (!is_default<P>) {
    static_assert(
        SavePlanner<P>,
        "cairn::checkpointer: an argument declares the role planner but does not model SavePlanner (see the "
        "lines below for the "
        "missing member; docs/concepts.md#saveplanner). A planner that must see all plans: cairn::gathered");
  }
  return true;
}
template <class P>
constexpr bool check_load_planner() {
  if constexpr (!is_default<P>) {
    static_assert(LoadPlanner<P>,
                  "cairn::checkpointer: an argument declares the role planner but does not model LoadPlanner "
                  "(see the lines below for the "
                  "missing member; docs/concepts.md#loadplanner)");
  }
  return true;
}
template <class S>
constexpr bool check_stager() {
  if constexpr (!is_default<S>) {
    static_assert(Stager<S>,
                  "cairn::checkpointer: an argument declares the role stager but does not model Stager (see "
                  "the lines below for the missing "
                  "member; docs/concepts.md#stager)");
  }
  return true;
}
/// The stager that no argument plays: the tier's, where there is one.
template <class Other, class T>
struct stager_of_tier {
  using type = Other;
};
template <class Other, class T>
  requires Tier<T>
struct stager_of_tier<Other, T> {
  using type = typename T::stager_type;
};
template <class T>
constexpr bool check_tier() {
  if constexpr (!std::is_void_v<T>)
    static_assert(
        Tier<T>,
        "cairn::checkpointer: an argument declares the role tier but does not model Tier: derive it from "
        "cairn::image_tier, and name its stager_type. See docs/concepts.md#tier");
  return true;
}
template <class R, class L, class T>
constexpr bool check_redundancy() {
  if constexpr (!std::is_void_v<R>) {
    static_assert(
        Redundancy<R>,
        "cairn::checkpointer: an argument declares the role redundancy but does not model Redundancy "
        "(see the lines below for the missing member; docs/concepts.md#redundancy)");
    static_assert(LinkMaker<L>,
                  "cairn::checkpointer: an argument declares the role link but does not model LinkMaker: it "
                  "needs connect(collectives&, deadline), which returns a PeerLink. See "
                  "docs/concepts.md#peerlink");
    static_assert(std::derived_from<T, spread_tier>,
                  "cairn::checkpointer: partner copies and parity need a tier that is in several places: "
                  "cairn::local_tier, or one that is derived from cairn::spread_tier");
    static_assert(
        requires(R by, any_link_maker links) { make_redundant_saves(std::move(by), std::move(links)); },
        "cairn::checkpointer: a Redundancy of your own needs cairn/redundancy/make_redundant_saves.hpp; "
        "include it on the page of the class");
  }
  return true;
}
template <class C>
constexpr bool check_communicator() {
  if constexpr (!is_default<C>) {
    static_assert(Communicator<C>,
                  "cairn::checkpointer: an argument declares the role communicator but does not model "
                  "Communicator (see the lines below for "
                  "the missing member; docs/concepts.md#communicator)");
  }
  return true;
}
template <class O>
constexpr bool check_observer() {
  static_assert(Observer<O>,
                "cairn::checkpointer: an argument declares the role observer but does not model Observer: it "
                "needs observe(const "
                "cairn::observation&) noexcept. See docs/concepts.md#observer");
  return true;
}
template <class X, class Writer, class S, bool Overlapped>
constexpr bool check_executor() {
  if constexpr (!is_default<X>) {
    if constexpr (NeedsSharedImages<X> && Executor<X>) {
      constexpr bool accepted = X::template accepts<Writer>;
      static_assert(
          accepted,
          "cairn::checkpointer: process_executor makes the StorageWriter again in the worker process: "
          "it must be Portable, with description() and a static from_description(bytes), and so must "
          "the store in it (file_store is; memory_store lives in one process); or take "
          "thread_executor. See docs/concepts.md#portable");
      static_assert(!accepted || SharesImages<S>,
                    "cairn::checkpointer: process_executor needs a stager whose images another process can "
                    "read: take shared_stager");
    } else {
      static_assert(
          ExecutorFor<X, Writer>,
          "cairn::checkpointer: an argument declares the role executor but does not model Executor for "
          "this StorageWriter (see the "
          "lines below for the missing member; docs/concepts.md#executor)");
    }
    static_assert(!Overlapped || !RunsInCaller<X>,
                  "cairn::checkpointer: overlapped{} needs an executor that runs beside training; "
                  "inline_executor runs in the calling "
                  "thread: take thread_executor");
  }
  return true;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
