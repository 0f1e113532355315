// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/options.hpp>
#include <cairn/checkpointer/tier_parts.hpp>
#include <cairn/concepts/image_tier.hpp>
#include <cairn/concepts/redundant_saves.hpp>
#include <cairn/system/owned.hpp>

#include <memory>
#include <optional>

namespace cairn {
inline namespace v1 {
namespace detail {

/// `spread`: the same tier, where there is redundancy; else both are null. @throws usage_error (usage_bad_option)
template <class>
[[nodiscard]] owned<tier_parts> make_tier_parts(std::shared_ptr<image_tier> tier,
                                                const std::optional<persist>& persisting,
                                                std::shared_ptr<spread_tier> spread,
                                                owned<redundant_saves> redundancy);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/checkpointer/make_tier_parts.ipp>
#endif
