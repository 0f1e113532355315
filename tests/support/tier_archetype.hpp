// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "storage_archetype.hpp"

#include <cairn/concepts/image_tier.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/stage/buffered_stager.hpp>
#include <cairn/system/error.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test {

/// What each tier has: it keeps nothing, and records in a list what it was asked for.
template <class Base>
class tier_that_keeps_nothing : public Base {
 public:
  using cairn_role = cairn::role::tier;
  using stager_type = cairn::heap_stager;
  using calls = std::shared_ptr<std::vector<std::string>>;

  tier_that_keeps_nothing(tier_that_keeps_nothing&&) noexcept = default;
  void operator&() const = delete;

  std::string describe() const override { return "a tier that keeps nothing"; }
  cairn::any_stager stager() override { return cairn::any_stager(cairn::heap_stager{}); }
  void open(const cairn::tier_user& user) override { asked_->push_back("open " + std::to_string(user.rank)); }
  std::uint64_t missing(const cairn::image_layout&) override { return 1; }
  void check_room(std::uint64_t bytes) override { asked_->push_back("room " + std::to_string(bytes)); }
  void keep_plan(std::uint64_t, const cairn::metadata&) override { asked_->push_back("plan"); }
  cairn::any_writer writer() override {
    writer_archetype made;
    made.told = told_;
    return cairn::any_writer(std::move(made));
  }
  std::vector<cairn::held_step> held(std::vector<std::string>&) override { return {}; }
  cairn::any_reader reader(const cairn::held_step&) override {
    cairn::fail(cairn::error_id::corrupt_missing_file, "this tier keeps nothing");
  }
  std::optional<cairn::held_image> image(const cairn::held_step&) override { return std::nullopt; }
  void when_held(cairn::detail::callback<void(const cairn::held_step&)> call) override {
    *told_ = std::move(call);
  }
  void withdraw(const cairn::held_step&) override { asked_->push_back("withdraw"); }
  void go_on_from(const cairn::tier_base& base) override {
    asked_->push_back("from " + std::to_string(base.step.value_or(-1)));
  }
  void end() noexcept override { asked_->push_back("end"); }

 protected:
  explicit tier_that_keeps_nothing(calls asked) : asked_(std::move(asked)) {}
  calls asked_;

 private:
  using callback = cairn::detail::callback<void(const cairn::held_step&)>;
  /// Waits for the image; what it wrote is held.
  struct writer_archetype : move_only {
    std::shared_ptr<callback> told;
    cairn::image_layout layout(const cairn::save_plan&, std::span<const std::uint64_t>, int) const {
      return {};
    }
    std::uint64_t fingerprint() const { return 0; }
    cairn::record write(const cairn::save_context& c, const cairn::staged_image& image,
                        cairn::deadline until) {
      image.wait_released(until);
      if (*told) (*told)({.step = c.step, .run = c.run, .attempt = c.attempt, .world_size = c.world_size});
      return {};
    }
    void commit(const cairn::save_context&, const cairn::metadata&, cairn::deadline) {}
    void await_commit(const cairn::save_context&, cairn::deadline) {}
    void abort(const cairn::save_context&, std::exception_ptr) noexcept {}
    void remove(std::int64_t) {}
    bool quarantine(std::int64_t) { return false; }
    std::uint64_t clean(cairn::run_id) { return 0; }
    void check_space(cairn::space_needed) {}
  };
  std::shared_ptr<callback> told_ = std::make_shared<callback>();
};

/// The smallest model of Tier.
class tier_archetype final : public tier_that_keeps_nothing<cairn::image_tier> {
 public:
  static tier_archetype make(calls asked) { return tier_archetype(std::move(asked)); }

 private:
  using tier_that_keeps_nothing::tier_that_keeps_nothing;
};
static_assert(cairn::Tier<tier_archetype>);

/// The smallest tier that redundancy takes: this rank sees a place of its own.
class spread_tier_archetype final : public tier_that_keeps_nothing<cairn::spread_tier> {
 public:
  static spread_tier_archetype make(calls asked, std::string place) {
    return {std::move(asked), std::move(place)};
  }

  void spread() override { asked_->push_back("spread"); }
  std::string directory() const override { return place_; }
  std::int32_t first_rank() const override { return 0; }
  std::optional<cairn::pinned_save> pin(const cairn::held_step&) override { return std::nullopt; }
  void held_by_all(const cairn::held_step&) noexcept override { asked_->push_back("held by all"); }
  void redundant() noexcept override { asked_->push_back("redundant"); }
  bool holds_any() override { return false; }

  std::vector<cairn::surveyed_save> survey(std::vector<std::string>&) override {
    asked_->push_back("survey");
    return {};
  }
  std::vector<std::byte> manifest_of(const cairn::surveyed_save&) override { nothing(); }
  cairn::any_reader spread_reader(const cairn::surveyed_save&,
                                  std::shared_ptr<const cairn::file_holders>) override {
    nothing();
  }
  std::vector<std::string> give_up_damaged(const cairn::surveyed_save&) override { return {}; }
  std::vector<std::byte> plan_of(const cairn::surveyed_save&) override { nothing(); }
  void take_plan(const cairn::surveyed_save&, std::span<const std::byte>) override {}
  void images_were_added() override {}

 private:
  spread_tier_archetype(calls asked, std::string place)
      : tier_that_keeps_nothing(std::move(asked)), place_(std::move(place)) {}
  [[noreturn]] static void nothing() {
    cairn::fail(cairn::error_id::corrupt_missing_file, "this tier keeps nothing");
  }
  std::string place_;
};
static_assert(cairn::Tier<spread_tier_archetype>);
// Near misses.
struct no_tier_without_a_stager : tier_that_keeps_nothing<cairn::image_tier> {
  using stager_type = void;
};
struct no_tier_that_is_not_derived {
  using stager_type = cairn::heap_stager;
};
static_assert(!cairn::Tier<no_tier_without_a_stager> && !cairn::Tier<no_tier_that_is_not_derived>);

}  // namespace cairn_test
