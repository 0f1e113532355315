// SPDX-License-Identifier: Apache-2.0
// links: cairn::interprocess
// uses: cairn::parity
// cost: 5
// A job whose ranks hold saves in a local tier and make pieces for one another: what one of them held is lost, is rebuilt
// from what the others have, and resume() reads it.
#include <cairn/cairn.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/links/thread_link.hpp>
#include <cairn/redundancy/kept_piece.hpp>
#include <cairn/redundancy/lost_images.hpp>
#include <cairn/redundancy/partner_copies.hpp>
#include <cairn/redundancy/redundancy_engine.hpp>
#include <cairn/tiers/local_tier.hpp>
#if CAIRN_USES_PARITY + 0
#include <cairn/redundancy/parity.hpp>
#endif

#include <doctest/doctest.h>
#include <support/scratch_directory.hpp>

#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {
using namespace cairn;
using cairn_test::scratch_directory;
namespace fs = std::filesystem;

constexpr int ranks = 3;
constexpr int lost = 1;

/// A local tier that somebody else asks for its images, too.
class shared_tier final : public image_tier {
 public:
  using cairn_role = role::tier;
  using stager_type = local_tier::stager_type;

  explicit shared_tier(std::shared_ptr<local_tier> tier) : tier_(std::move(tier)) {}
  std::string describe() const override { return tier_->describe(); }
  any_stager stager() override { return tier_->stager(); }
  void open(const tier_user& user) override { tier_->open(user); }
  std::uint64_t missing(const image_layout& layout) override { return tier_->missing(layout); }
  void check_room(std::uint64_t bytes) override { tier_->check_room(bytes); }
  void keep_plan(std::uint64_t digest, const metadata& stored) override { tier_->keep_plan(digest, stored); }
  any_writer writer() override { return tier_->writer(); }
  std::vector<held_step> held(std::vector<std::string>& damaged) override { return tier_->held(damaged); }
  any_reader reader(const held_step& which) override { return tier_->reader(which); }
  std::optional<held_image> image(const held_step& which) override { return tier_->image(which); }
  void when_held(detail::callback<void(const held_step&)> call) override {
    tier_->when_held(std::move(call));
  }
  void withdraw(const held_step& which) override { tier_->withdraw(which); }
  void go_on_from(const tier_base& base) override { tier_->go_on_from(base); }
  void end() noexcept override { tier_->end(); }

 private:
  std::shared_ptr<local_tier> tier_;
};

/// Large, odd and small tensors, which the ranks divide among them.
struct model {
  std::vector<std::vector<float>> tensors;
  state_dict state;
  model() {
    for (std::size_t i = 0; i < 40; ++i)
      tensors.emplace_back(i == 0 ? 700'001 : i % 4 == 0 ? 60'001 + i : 3 + i * 17);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      state.tensor("t" + std::to_string(i), tensors[i], {static_cast<std::int64_t>(tensors[i].size())});
  }
  model(const model&) = delete;
  model& operator=(const model&) = delete;
  void train(std::int64_t step) {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      for (std::size_t k = 0; k < tensors[i].size(); ++k)
        tensors[i][k] = static_cast<float>((k * 31 + i * 7 + static_cast<std::size_t>(step) * 13) % 10'007);
  }
};

/// body(rank) on a thread for each rank; the first failure is thrown.
template <class Body>
void on_all_ranks(const Body& body) {
  std::exception_ptr failure;
  std::mutex mutex;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!failure) failure = std::current_exception();
        }
      });
  }
  if (failure) std::rethrow_exception(failure);
}

void check_lost_and_rebuilt(const any_redundancy& by) {
  scratch_directory memory("/dev/shm");
  scratch_directory disk;
  const fs::path store = fs::path(disk.path()) / "store";
  const fs::path tier = fs::path(memory.path()) / "tier";
  const fs::path left_tier = fs::path(memory.path()) / "left";
  const fs::path left_store = fs::path(disk.path()) / "left";
  const std::vector<std::string> groups{"a", "b", "c"};
  const thread_link_group links(ranks);
  const auto pieces = [&](int rank) { return memory.path() + "/host-" + std::to_string(rank); };
  for (int rank = 0; rank < ranks; ++rank) fs::create_directory(pieces(rank));
  {
    const thread_group group(ranks);
    std::barrier together(ranks);
    on_all_ranks([&](int rank) {
      bool waits = true;
      const auto meet = [&] { together.arrive_and_wait(); };
      try {
        const auto own = std::make_shared<local_tier>(tier.string());
        std::mutex mutex;
        std::optional<held_step> newest;
        own->when_held([&](const held_step& which) {
          const std::lock_guard lock(mutex);
          newest = which;
        });
        model m;
        checkpointer ckpt{file_store{store.string()}, shared_tier{own}, persist{.every = 1000},
                          group.communicator(rank), checkpointer_options{.quiet = true}};
        static_cast<void>(ckpt.resume(m.state));
        for (std::int64_t step = 1; step <= 3; ++step) {
          m.train(step);
          ckpt.save(m.state, step).wait_held();
        }
        meet();
        {
          auto link = any_peer_link(links.link(rank));
          redundancy_engine engine(link, by, groups, pieces(rank));
          held_step which;
          {
            const std::lock_guard lock(mutex);
            which = newest.value();
          }
          auto image = own->image(which);
          if (!image) fail(error_id::storage_not_found, "the image is not there");
          const auto name = detail::name_of(*image);
          engine.hold(std::move(*image));
          const auto report = engine.wait(save_count_of(name.run, name.step, name.attempt),
                                          deadline::in(std::chrono::minutes(5)));
          if (!report || report->state != redundancy_state::redundant)
            fail(error_id::peer_failed, report ? report->why : "there is no report");
          meet();
        }
        // As the job is now, hosts are lost.
        if (rank == 0) {
          fs::copy(tier, left_tier, fs::copy_options::recursive);
          fs::copy(store, left_store, fs::copy_options::recursive);
        }
        waits = false;
        meet();
        ckpt.close();
      } catch (...) {
        if (waits) together.arrive_and_drop();
        throw;
      }
    });
  }
  fs::remove_all(store);
  fs::rename(left_store, store);
  fs::remove_all(tier);
  fs::rename(left_tier, tier);
  for (const auto& each : detail::names_in_tier(tier.string())) {
    const auto held = detail::parse_held_name(each);
    if ((held && held->rank == lost) || detail::rank_of_slot_name(each) == lost) fs::remove(tier / each);
  }

  std::vector<std::string> left{tier.string()};
  for (int rank = 0; rank < ranks; ++rank)
    if (rank != lost) left.push_back(pieces(rank));
  std::vector<std::string> notes;
  const auto steps = find_surviving_steps(left, by, notes);
  REQUIRE_FALSE(steps.empty());
  const auto& step = steps.back();
  CHECK(step.which.step == 3);
  CHECK(step.lost == std::vector<std::int32_t>{lost});
  REQUIRE(step.missing.empty());
  rebuild_lost_images(left, by, step, tier.string(), notes);
  CHECK(notes.empty());

  const thread_group group(ranks);
  std::vector<int> right(ranks);
  on_all_ranks([&](int rank) {
    model m;
    model wanted;
    wanted.train(3);
    checkpointer ckpt{file_store{store.string()}, local_tier{tier.string()}, group.communicator(rank),
                      checkpointer_options{.quiet = true}};
    const auto resumed = ckpt.resume(m.state);
    right[static_cast<std::size_t>(rank)] = resumed == 3 && m.tensors == wanted.tensors;
  });
  for (const int each : right) CHECK(each);
}

TEST_CASE("an image that is rebuilt from a partner's copy is resumed") {
  check_lost_and_rebuilt(any_redundancy(partner_copies{}));
}
#if CAIRN_USES_PARITY + 0
TEST_CASE("an image that is rebuilt from parity is resumed") {
  check_lost_and_rebuilt(any_redundancy(parity{.data = 2, .losses = 1}));
}
#endif

}  // namespace
