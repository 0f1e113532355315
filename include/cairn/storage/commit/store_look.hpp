// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_store.hpp>
#include <cairn/concepts/store_capabilities.hpp>
#include <cairn/system/function_ref.hpp>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Makes looks at a store that do not depend on each other, at the same time where each costs a round trip. Throws what
/// one of them throws.
void look_together(const any_store& store, std::initializer_list<function_ref<void()>> looks);

/// What a store holds besides the contents of checkpoints, as one look shows it to all that ask when a run begins. It stands
/// for no look after something that was done since: a mark, a removal, a lease.
struct store_look {
  std::vector<listed_unfinished> unfinished;  ///< of all that cairn makes
  std::vector<std::string>
      steps;  ///< keys of steps, listed afterwards: what was finished meanwhile is among them
  std::vector<std::string> shared_marks;             ///< see shared_mark
  std::optional<std::vector<std::string>> restarts;  ///< see restart_notes; nothing: they could not be listed
};
[[nodiscard]] store_look look_at(const any_store& store);
/// The same of steps alone, or of what begins so.
[[nodiscard]] store_look look_at_steps(const any_store& store, std::string_view prefix = "step-");

/// Discards an unfinished object; the number of objects that it discarded: 0 if its writer lives after all,
/// or its file is another user's and this one may not remove it.
std::uint64_t discard_if_dead(const any_store& store, const std::string& unfinished);
/// The unfinished objects whose keys begin with a prefix and whose writers died are discarded; returns their number.
std::uint64_t discard_dead(const any_store& store, const std::vector<listed_unfinished>& unfinished,
                           std::string_view prefix);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/commit/store_look.ipp>
#endif
