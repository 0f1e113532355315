// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/collectives.hpp>
#include <cairn/redundancy/failure_groups.hpp>
#include <cairn/redundancy/held_votes.hpp>
#include <cairn/redundancy/image_rebuilds.hpp>
#include <cairn/redundancy/make_redundant_saves.hpp>
#include <cairn/redundancy/redundancy_engine.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// Makes pieces, and tells the tier what all ranks hold, by threads of this process.
class redundancy_by_links final : public redundant_saves {
 public:
  redundancy_by_links(any_redundancy by, any_link_maker links)
      : by_(std::move(by)), maker_(std::move(links)) {}
  ~redundancy_by_links() override {
    if (votes_ != nullptr) votes_->stop();
  }

  [[nodiscard]] std::shared_ptr<image_rebuilder> rebuilder(std::shared_ptr<tier_files> files) override {
    return std::make_shared<redundancy_rebuilder>(by_, std::move(files));
  }
  [[nodiscard]] std::string describe() const override {
    if (engine_ == nullptr) return "redundant";
    return "of " + std::to_string(engine_->set().size()) + " ranks that keep pieces for one another any " +
           std::to_string(by_.tolerated()) + " may be lost";
  }
  [[nodiscard]] std::string failure_group() const override {
    return by_.failure_group.empty() ? host_failure_group() : by_.failure_group;
  }
  void open(collectives& job, std::span<const std::string> groups, std::span<const std::int32_t> places,
            std::shared_ptr<spread_tier> tier, std::chrono::nanoseconds timeout, deadline until) override {
    // First: what cannot be is the same on all ranks, and the links need none of them.
    static_cast<void>(
        form_sets(groups, by_.set_count(static_cast<std::int32_t>(groups.size())), by_.tolerated()));
    tier_ = std::move(tier);
    link_.emplace(maker_.connect(job, until));
    const redundancy_options options{.timeout = timeout,
                                     .block_timeout = std::min<std::chrono::nanoseconds>(timeout, block),
                                     .files = tier_->files()};
    votes_ = std::make_unique<held_votes>(*link_, tier_, places[static_cast<std::size_t>(job.rank())],
                                          options.timeout, options.block_timeout);
    engine_ = std::make_unique<redundancy_engine>(*link_, by_, groups, tier_->directory(), options);
  }
  [[nodiscard]] std::uint64_t missing(std::span<const std::uint64_t> image_bytes) const override {
    return engine_ == nullptr ? 0 : engine_->missing(image_bytes);
  }
  void when_ended(callback<void(std::uint64_t, const redundancy_report&)> call) override {
    engine_->when_ended(
        [tier = tier_, told = std::move(call)](std::uint64_t save_count, const redundancy_report& report) {
          if (report.state == redundancy_state::redundant) tier->redundant();
          told(save_count, report);
        });
  }
  void when_apart(callback<void(std::uint64_t, const std::string&)> call) override {
    votes_->when_apart(std::move(call));
  }
  bool hold(const held_step& which) override {
    const std::lock_guard lock(mutex_);
    if (engine_ == nullptr) return false;
    votes_->hold(which);
    return engine_->hold(which, [this, which]() -> std::optional<held_image> {
      if (!votes_->have_plan(which)) return std::nullopt;
      return tier_->image(which);
    });
  }
  void end(bool remove) noexcept override {
    const std::lock_guard lock(mutex_);
    if (votes_ != nullptr) votes_->stop();
    if (remove && engine_ != nullptr) engine_->remove_pieces();
    engine_.reset();
    votes_.reset();
    link_.reset();
  }

 private:
  static constexpr std::chrono::seconds block{5};

  const any_redundancy by_;
  any_link_maker maker_;
  std::shared_ptr<spread_tier> tier_;
  std::mutex mutex_;  // of hold() and end()
  std::optional<any_peer_link> link_;
  std::unique_ptr<held_votes> votes_;
  std::unique_ptr<redundancy_engine> engine_;  // uses the above
};

CAIRN_BODY owned<redundant_saves> make_redundant_saves_by(any_redundancy by, any_link_maker links) {
  return make_owned<redundancy_by_links>(std::move(by), std::move(links));
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
