// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_redundancy.hpp>
#include <cairn/concepts/image_rebuilder.hpp>
#include <cairn/tiers/tier_files.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Begins to rebuild the image of a rank in a directory, whose files `files` changes, by what a redundancy says.
/// @throws peer_error (peer_lost), usage_error (usage_bad_option), storage_error
[[nodiscard]] std::unique_ptr<image_rebuild> begin_rebuild(any_redundancy by, std::string directory,
                                                           const surveyed_save& all, std::int32_t lost,
                                                           std::shared_ptr<tier_files> files);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/redundancy/stepwise_rebuild.ipp>
#endif
