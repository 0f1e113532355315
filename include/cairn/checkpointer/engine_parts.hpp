// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/engine.hpp>
#include <cairn/checkpointer/group_parts.hpp>
#include <cairn/checkpointer/options.hpp>
#include <cairn/checkpointer/retaining.hpp>
#include <cairn/checkpointer/tier_parts.hpp>
#include <cairn/concepts/any_communicator.hpp>
#include <cairn/concepts/any_executor.hpp>
#include <cairn/concepts/any_observer.hpp>
#include <cairn/concepts/any_planner.hpp>
#include <cairn/concepts/any_stager.hpp>
#include <cairn/concepts/any_storage.hpp>
#include <cairn/concepts/device_access.hpp>
#include <cairn/system/owned.hpp>

#include <memory>

namespace cairn {
inline namespace v1 {
namespace detail {

class apart_layouts;
class copy_checks;
class unconfirmed_check;
// See their pages.
template <class>
[[nodiscard]] owned<copy_checks> make_copy_checks();
template <class>
[[nodiscard]] owned<apart_layouts> make_apart_layouts();
template <class>
[[nodiscard]] owned<unconfirmed_check> make_unconfirmed_check();

/// What a checkpointer is made of.
struct engine_parts {
  any_storage storage;
  any_planners planners;
  any_stager stager;
  any_executor executor;
  any_communicator communicator;
  any_observer observer;
  checkpointer_options options;
  retention_policy keep;                ///< empty: everything stays
  retaining_maker retaining = nullptr;  ///< null: there is no policy
  bool overlapped = false;
  owned<unconfirmed_check> (*unconfirmed)() = nullptr;  ///< of overlapped{}; null: not asked for
  owned<copy_checks> (*checks)() = nullptr;             ///< of checked{}; null: not asked for
  owned<apart_layouts> (*apart)() = nullptr;  ///< of options with link_unchanged; null: not asked for
  std::shared_ptr<device_access> devices;     ///< null: the stager's, where it brings any
  group_parts group = {};
  owned<tier_parts> tier = nullptr;  ///< of the tier whose images the stager fills; null: none
};

/// Collective. @throws usage_error (usage_bad_option); what the constructor of a checkpointer throws.
[[nodiscard]] engine_owner make_engine(engine_parts parts);
/// The same where no argument plays a role besides the storage.
[[nodiscard]] engine_owner make_default_engine(any_storage storage);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/engine_parts.ipp>
#endif
