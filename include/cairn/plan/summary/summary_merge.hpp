// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/compiler.hpp>

namespace cairn {
inline namespace v1 {
class plan_summary;

/// The summary of both, of which `a` is that of the lower ranks: what they say of one item is put together,
/// and progressions that go on across the border become one. Whichever way ranks are merged, the result holds
/// the same boxes and ranks, conflicts among them. O(items + progressions that are copied).
[[nodiscard]] plan_summary merge_summaries(plan_summary a, plan_summary b);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/plan/summary/summary_merge.ipp>
#endif
