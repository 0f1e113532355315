// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/function_ref.hpp>

#include <memory>

namespace cairn {
inline namespace v1 {
class any_communicator;
class collectives;
class deadline;
class read_exchange;
struct load_plan;
struct metadata;
namespace detail {

/// Begins a load by ranks that read for one another: `open` opens the checkpoint and makes `plan`, and all ranks learn what
/// each of them wants; `all`: also of what is one rank's alone. Collective: throws on all ranks what `open` throws on one.
using sharing_begin = std::shared_ptr<read_exchange> (*)(collectives& group,
                                                         function_ref<const metadata&()> open,
                                                         const load_plan& plan, bool all, deadline until);

/// What a checkpointer needs because it has several ranks. Programs of one rank compile nothing of it: only a composition
/// with a communicator names parts_of_group().
struct group_parts {
  collectives (*make)(any_communicator communicator) = nullptr;
  sharing_begin sharing = nullptr;  ///< null: there is one rank
};
[[nodiscard]] group_parts parts_of_group() noexcept;
/// The same for one rank, which sends nothing.
[[nodiscard]] group_parts parts_of_one_rank() noexcept;

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/group_parts.ipp>
#endif
