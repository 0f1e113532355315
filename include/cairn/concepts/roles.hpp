// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

#include <concepts>
#include <type_traits>

namespace cairn {
inline namespace v1 {

/// What an argument of cairn::checkpointer is for. A policy declares one of these:
/// `using cairn_role = cairn::role::stager;`, or, for a type that cannot be changed,
/// `template <> struct cairn::role_of<their_type> { using type = cairn::role::stager; };`
namespace role {
struct store {};    ///< ByteStore: the first argument; the default storage is made over it
struct storage {};  ///< writer() and reader() give a StorageWriter and a StorageReader; instead of a store
struct planner {};  ///< models SavePlanner and LoadPlanner
struct save_planner {};  ///< models SavePlanner
struct load_planner {};  ///< models LoadPlanner
struct stager {};        ///< models Stager
struct executor {};      ///< models Executor
struct communicator {};  ///< models Communicator
struct observer {};      ///< models Observer
struct devices {};       ///< derived from device_access: loads into memory of devices
struct tier {};          ///< models Tier: holds saves on this host
struct persist {};       ///< cairn::persist
struct redundancy {};    ///< models Redundancy: what ranks keep of one another's images
struct link {};          ///< models LinkMaker: how these pieces travel
struct overlap {};       ///< cairn::overlapped
struct retention {};     ///< cairn::keep_last
struct read_sharing {};  ///< cairn::read_sharing
struct check {};         ///< cairn::checked
struct access {};        ///< cairn::read_only
struct options {};       ///< cairn::checkpointer_options
}  // namespace role

/// The role that T plays; no member `type` if it plays none.
template <class T>
struct role_of {};
template <class T>
  requires requires { typename T::cairn_role; }
struct role_of<T> {
  using type = typename T::cairn_role;
};

/// Whether T declares this role, by its member cairn_role or by role_of.
template <class T, class Role>
inline constexpr bool plays =
    requires { requires std::same_as<typename role_of<std::remove_cvref_t<T>>::type, Role>; };
/// Whether T declares any role.
template <class T>
inline constexpr bool plays_a_role = requires { typename role_of<std::remove_cvref_t<T>>::type; };

}  // namespace v1
}  // namespace cairn
