// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/image_rebuilder.hpp>

#include <memory>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What the directory of one place gives to those that rebuild images of a save.
[[nodiscard]] std::unique_ptr<rebuild_sources> sources_in(std::string directory, const surveyed_save& all);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/redundancy/place_sources.ipp>
#endif
