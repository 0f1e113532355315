// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "storage_archetype.hpp"

#include <cairn/concepts/image_tier.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/stage/buffered_stager.hpp>
#include <cairn/system/error.hpp>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test {

/// The smallest model of Tier: it keeps nothing, and records in a list what it was asked for.
class tier_archetype final : public cairn::image_tier {
 public:
  using cairn_role = cairn::role::tier;
  using stager_type = cairn::heap_stager;
  using calls = std::shared_ptr<std::vector<std::string>>;

  static tier_archetype make(calls asked) { return tier_archetype(std::move(asked)); }
  tier_archetype(tier_archetype&&) noexcept = default;
  void operator&() const = delete;

  std::string describe() const override { return "a tier that keeps nothing"; }
  cairn::any_stager stager() override { return cairn::any_stager(cairn::heap_stager{}); }
  void open(const cairn::tier_user& user) override { asked_->push_back("open " + std::to_string(user.rank)); }
  std::uint64_t missing(const cairn::image_layout&) override { return 1; }
  void check_room(std::uint64_t bytes) override { asked_->push_back("room " + std::to_string(bytes)); }
  void keep_plan(std::uint64_t, const cairn::metadata&) override { asked_->push_back("plan"); }
  cairn::any_writer writer() override { return cairn::any_writer(writer_archetype{}); }
  std::vector<cairn::held_step> held(std::vector<std::string>&) override { return {}; }
  cairn::any_reader reader(const cairn::held_step&) override {
    cairn::fail(cairn::error_id::corrupt_missing_file, "this tier keeps nothing");
  }
  std::optional<cairn::held_image> image(const cairn::held_step&) override { return std::nullopt; }
  void when_held(cairn::detail::callback<void(const cairn::held_step&)>) override {}
  void withdraw(const cairn::held_step&) override { asked_->push_back("withdraw"); }
  void go_on_from(const cairn::tier_base& base) override {
    asked_->push_back("from " + std::to_string(base.step.value_or(-1)));
  }
  void end() noexcept override { asked_->push_back("end"); }

 private:
  /// Waits for the image; what it wrote is held.
  struct writer_archetype : move_only {
    cairn::image_layout layout(const cairn::save_plan&, std::span<const std::uint64_t>, int) const {
      return {};
    }
    std::uint64_t fingerprint() const { return 0; }
    cairn::record write(const cairn::save_context&, const cairn::staged_image& image, cairn::deadline until) {
      image.wait_released(until);
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
  explicit tier_archetype(calls asked) : asked_(std::move(asked)) {}
  calls asked_;
};
static_assert(cairn::Tier<tier_archetype>);

}  // namespace cairn_test
