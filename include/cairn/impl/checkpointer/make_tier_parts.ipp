// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/checkpointer/held_saves.hpp>
#include <cairn/checkpointer/make_tier_parts.hpp>
#include <cairn/checkpointer/tier_parts.hpp>
#include <cairn/checkpointer/tier_recovery.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/owned.hpp>

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

template <class>
class composed_tier_parts final : public tier_parts {
 public:
  composed_tier_parts(std::shared_ptr<image_tier> tier, const std::optional<persist>& persisting,
                      std::shared_ptr<spread_tier> spread, owned<redundant_saves> redundancy)
      : tier_(std::move(tier)),
        persisting_(persisting),
        spread_(std::move(spread)),
        redundancy_(std::move(redundancy)) {}

  [[nodiscard]] std::string describe() const override { return tier_->describe(); }
  [[nodiscard]] owned<tier_loads> loads(std::shared_ptr<save_services> services,
                                        collectives& group) override {
    return make_owned<tier_recovery<>>(
        tier_, spread_, redundancy_ != nullptr ? redundancy_->rebuilder(spread_->files()) : nullptr,
        std::move(services), group);
  }
  [[nodiscard]] owned<tier_saves> saves(std::shared_ptr<save_services> services) override {
    if (persisting_ && !persisting_->strict) services->count_by_tier();
    return make_owned<held_saves<>>(tier_, persisting_, std::move(services), std::move(spread_),
                                    std::move(redundancy_));
  }

 private:
  const std::shared_ptr<image_tier> tier_;
  const std::optional<persist> persisting_;
  std::shared_ptr<spread_tier> spread_;
  owned<redundant_saves> redundancy_;
};

template <class Named>
owned<tier_parts> make_tier_parts(std::shared_ptr<image_tier> tier, const std::optional<persist>& persisting,
                                  std::shared_ptr<spread_tier> spread, owned<redundant_saves> redundancy) {
  if (persisting && persisting->every == 0)
    fail(error_id::usage_bad_option,
         "persist{.every = 0} would write nothing; 1 writes every save to the store");
  if (persisting && !(persisting->seconds >= 0 && persisting->seconds < 1e9))
    fail(error_id::usage_bad_option, "persist{.seconds} is a number of seconds, 0 or more",
         {.got = std::to_string(persisting->seconds)});
  if (persisting && persisting->writers_at_once < 0)
    fail(error_id::usage_bad_option, "persist{.writers_at_once} is a number of ranks; 0: all of them",
         {.got = std::to_string(persisting->writers_at_once)});
  return make_owned<composed_tier_parts<Named>>(std::move(tier), persisting, std::move(spread),
                                                std::move(redundancy));
}

#if defined(CAIRN_COMPILED)
template owned<tier_parts> make_tier_parts<void>(std::shared_ptr<image_tier> tier,
                                                 const std::optional<persist>& persisting,
                                                 std::shared_ptr<spread_tier> spread,
                                                 owned<redundant_saves> redundancy);
#endif

}  // namespace detail
}  // namespace v1
}  // namespace cairn
