// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_reader.hpp>
#include <cairn/concepts/read_exchange.hpp>
#include <cairn/model/surveyed_save.hpp>
#include <cairn/tiers/tier_files.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

// What a surveyed_tier does in the directory of a place; see there.

[[nodiscard]] std::vector<surveyed_save> survey_images(const std::string& directory,
                                                       std::vector<std::string>& damaged);
[[nodiscard]] std::vector<std::byte> spread_manifest(const std::string& directory, const surveyed_save& all,
                                                     std::int64_t unix_time = 0);
[[nodiscard]] any_reader spread_reader(const std::string& directory, const surveyed_save& which,
                                       std::shared_ptr<const file_holders> holders);
std::vector<std::string> give_up_damaged_images(const std::string& directory, const surveyed_save& which,
                                                tier_files& files);
void take_plan(const std::string& directory, const surveyed_save& which, std::span<const std::byte> plan,
               tier_files& files);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/tiers/spread_images.ipp>
#endif
