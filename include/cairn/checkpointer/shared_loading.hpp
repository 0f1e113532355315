// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/function_ref.hpp>

#include <memory>

namespace cairn {
inline namespace v1 {
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

/// That, for a checkpointer of several ranks; one of a single rank has null in its place, and compiles nothing of it.
[[nodiscard]] std::shared_ptr<read_exchange> begin_sharing(collectives& group,
                                                           function_ref<const metadata&()> open,
                                                           const load_plan& plan, bool all, deadline until);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/shared_loading.ipp>
#endif
