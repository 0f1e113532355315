// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cairn/checkpointer.hpp>
#include <cairn/checkpointer/spread_recovery.hpp>
#include <cairn/concepts/any_communicator.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test {

/// A tier of one host that holds nothing but says what it would: the images of its rank, of four saves, each with a piece
/// of a set of eight.
class told_tier final : public cairn::spread_tier {
 public:
  told_tier(int rank, int ranks) : rank_(rank), ranks_(ranks) {}
  std::string describe() const override { return "a tier"; }
  std::vector<cairn::surveyed_save> survey(std::vector<std::string>&) override {
    std::vector<cairn::surveyed_save> all;
    for (int g = 0; g < 4; ++g) {
      cairn::surveyed_save s;
      s.run = {7, 9};
      s.step = 100 + g;
      s.attempt = cairn::attempt_of(s.run, s.step, static_cast<std::uint64_t>(g + 1));
      s.world_size = ranks_;
      s.plan_digest = 42;
      s.has_plan = true;
      s.has_runs = rank_ == 0;
      s.images.push_back({rank_, 1, 77, 1 << 30});
      cairn::surveyed_piece p{rank_, rank_ % 8, 1, 2, {}, {}};
      for (int m = rank_ / 8 * 8; m < std::min(rank_ / 8 * 8 + 8, ranks_); ++m)
        p.ranks.push_back(m), p.bytes.push_back(1 << 30);
      s.pieces.push_back(std::move(p));
      all.push_back(std::move(s));
    }
    return all;
  }
  std::int32_t first_rank() const override { return rank_; }
  // Nobody asks for the rest here.
  [[noreturn]] static void unasked() { throw std::logic_error("nobody asks a tier for this here"); }
  cairn::any_stager stager() override { unasked(); }
  void open(const cairn::tier_user&) override {}
  std::uint64_t missing(const cairn::image_layout&) override { return 0; }
  void check_room(std::uint64_t) override {}
  void keep_plan(std::uint64_t, const cairn::metadata&) override {}
  cairn::any_writer writer() override { unasked(); }
  std::vector<cairn::held_step> held(std::vector<std::string>&) override { return {}; }
  cairn::any_reader reader(const cairn::held_step&) override { unasked(); }
  std::optional<cairn::held_image> image(const cairn::held_step&) override { return std::nullopt; }
  void when_held(cairn::detail::callback<void(const cairn::held_step&)>) override {}
  void withdraw(const cairn::held_step&) override {}
  void go_on_from(const cairn::tier_base&) override {}
  void end() noexcept override {}
  void spread() override {}
  std::string directory() const override { return "."; }
  std::optional<cairn::pinned_save> pin(const cairn::held_step&) override { return std::nullopt; }
  void held_by_all(const cairn::held_step&) noexcept override {}
  void redundant() noexcept override {}
  bool holds_any() override { return true; }
  std::vector<std::byte> manifest_of(const cairn::surveyed_save&) override { return {}; }
  cairn::any_reader spread_reader(const cairn::surveyed_save&,
                                  std::shared_ptr<const cairn::file_holders>) override {
    unasked();
  }
  std::vector<std::string> give_up_damaged(const cairn::surveyed_save&) override { return {}; }
  std::vector<std::byte> plan_of(const cairn::surveyed_save&) override { return {}; }
  void take_plan(const cairn::surveyed_save&, std::span<const std::byte>) override {}
  void images_were_added() override {}

 private:
  int rank_, ranks_;
};

/// How a rank of a job whose tiers are told_tiers comes to agree with the others on what they hold.
class told_recovery {
 public:
  template <class Storage>
  told_recovery(Storage& storage, int rank, int ranks, cairn::collectives& all)
      : recovery_(
            std::make_shared<told_tier>(rank, ranks), nullptr,
            std::make_shared<cairn::detail::save_services>(
                cairn::any_writer(storage.writer()), cairn::any_reader(storage.reader()),
                cairn::any_observer(cairn::no_observer{}), rank, cairn::checkpointer_options{.quiet = true}),
            all) {}
  /// The saves that all agree on.
  auto survey(cairn::deadline until) {
    std::string reasons;
    recovery_.survey(reasons, until);
    return recovery_.found();
  }

 private:
  cairn::detail::spread_recovery recovery_;
};

}  // namespace cairn_test
