// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/any_redundancy.hpp>
#include <cairn/concepts/image_rebuilder.hpp>
#include <cairn/concepts/image_tier.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Rebuilds by what a Redundancy says, from pieces that a redundancy_engine has kept.
class redundancy_rebuilder final : public image_rebuilder {
 public:
  /// `files`: see spread_tier::files.
  explicit redundancy_rebuilder(any_redundancy by, std::shared_ptr<tier_files> files = nullptr);
  void survey(const std::string& directory, std::vector<surveyed_save>& saves,
              std::vector<std::string>& damaged) override;
  void remove_pieces(const std::string& directory, const surveyed_save& which) override;
  [[nodiscard]] std::string obstacle(const surveyed_save& all, std::int32_t lost) override;
  [[nodiscard]] std::string other_redundancy(const surveyed_save& all, std::int32_t lost) override;
  [[nodiscard]] std::unique_ptr<rebuild_sources> sources(const std::string& directory,
                                                         const surveyed_save& all) override;
  [[nodiscard]] std::unique_ptr<image_rebuild> begin(const std::string& directory, const surveyed_save& all,
                                                     std::int32_t lost) override;

 private:
  any_redundancy by_;
  std::shared_ptr<tier_files> files_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/redundancy/image_rebuilds.ipp>
#endif
