// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_redundancy.hpp>
#include <cairn/concepts/link_maker.hpp>
#include <cairn/concepts/redundant_saves.hpp>
#include <cairn/system/owned.hpp>

#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {
/// The same, whatever makes the pieces.
[[nodiscard]] owned<redundant_saves> make_redundant_saves_by(any_redundancy by, any_link_maker links);
}  // namespace detail

/// What cairn::checkpointer makes of an argument of the role redundancy and one of the role link. The page of each such type
/// includes this one.
template <Redundancy R>
[[nodiscard]] detail::owned<detail::redundant_saves> make_redundant_saves(R by, any_link_maker links) {
  return detail::make_redundant_saves_by(any_redundancy(std::move(by)), std::move(links));
}

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/redundancy/make_redundant_saves.ipp>
#endif
