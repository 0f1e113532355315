// SPDX-License-Identifier: Apache-2.0
// threaded
#include <doctest/doctest.h>

#include <cairn/comm/collectives.hpp>
#include <cairn/comm/single_process.hpp>
#include <cairn/concepts/any_peer_link.hpp>
#include <cairn/concepts/link_maker.hpp>
#include <cairn/links/thread_link.hpp>
#include <support/peer_link_archetype.hpp>
#include <support/peer_link_conformance.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

using namespace cairn_test;
using cairn::deadline;
using cairn::error_id;

namespace {

struct thread_env {
  cairn::thread_link_group group{3};
  std::vector<cairn::thread_link> links;
  thread_env() {
    for (int rank = 0; rank < 3; ++rank) links.push_back(group.link(rank));
  }
  cairn::thread_link& at(int rank) { return links[static_cast<std::size_t>(rank)]; }
  void lose(int rank) const { group.lose(rank); }
};
struct erased_env {
  cairn::thread_link_group group{3};
  std::vector<cairn::any_peer_link> links;
  erased_env() {
    for (int rank = 0; rank < 3; ++rank) links.emplace_back(group.link(rank));
  }
  cairn::any_peer_link& at(int rank) { return links[static_cast<std::size_t>(rank)]; }
  void lose(int rank) const { group.lose(rank); }
};

// --- The concept refuses what it must ------------------------------------------------------------------------------

using part_list = std::span<const std::span<const std::byte>>;
struct good {
  int rank() const { return 0; }
  int size() const { return 1; }
  void offer(const cairn::offer_key&, part_list) {}
  void withdraw(const cairn::offer_key&, deadline) noexcept {}
  std::uint64_t await_offer(int, const cairn::offer_key&, deadline) { return 0; }
  std::uint64_t fetch(int, const cairn::offer_key&, std::span<const cairn::fetch_range>, deadline) {
    return 0;
  }
  bool is_gone(int) const noexcept { return false; }
};
struct withdrawal_that_throws : good {
  void withdraw(const cairn::offer_key&, deadline) {}
};
struct fetch_without_deadline : good {
  std::uint64_t fetch(int, const cairn::offer_key&, std::span<const cairn::fetch_range>) { return 0; }
};
struct changes_what_is_offered : good {
  void offer(const cairn::offer_key&, std::span<const std::span<std::byte>>) {}
};
struct knows_nobody : private good {
  using good::await_offer, good::fetch, good::offer, good::rank, good::size, good::withdraw;
};
static_assert(cairn::PeerLink<good>);
static_assert(!cairn::PeerLink<withdrawal_that_throws>);
static_assert(!cairn::PeerLink<fetch_without_deadline>);
static_assert(!cairn::PeerLink<changes_what_is_offered>);
static_assert(!cairn::PeerLink<knows_nobody>);
static_assert(!cairn::PeerLink<int>);
static_assert(!std::copy_constructible<cairn::thread_link> && !std::copy_constructible<cairn::any_peer_link>);

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(peer_link_conformance, thread_env, erased_env);

TEST_CASE("a link of any type") {
  cairn::any_peer_link link(peer_link_archetype::make());
  CHECK(link.rank() == 0);
  CHECK(link.size() == 1);
  CHECK_FALSE(link.is_gone(0));
  CHECK(ends([&] { link.fetch(0, {"a", 1}, {}, ample_time()); }).id == error_id::peer_not_offered);
  link = cairn::any_peer_link(cairn::thread_link_group(2).link(1));
  CHECK(link.size() == 2);
}

TEST_CASE("a maker of links of any type") {
  cairn::collectives job{cairn::single_process{}};
  cairn::any_link_maker maker(link_maker_archetype::make());
  CHECK(maker.connect(job, ample_time()).size() == 1);
  maker = cairn::any_link_maker(cairn::thread_link_group(1));
  CHECK(maker.connect(job, ample_time()).rank() == 0);
}

TEST_CASE("who may be in a group of links") {
  CHECK(ends([] { cairn::thread_link_group(0); }).id == error_id::usage_bad_option);
  const cairn::thread_link_group group(2);
  CHECK(group.size() == 2);
  auto first = group.link(0);
  CHECK(ends([&] { static_cast<void>(group.link(0)); }).id == error_id::usage_bad_option);
  CHECK(ends([&] { static_cast<void>(group.link(2)); }).id == error_id::usage_bad_option);
  CHECK(ends([&] { group.lose(2); }).id == error_id::usage_bad_option);
  CHECK(ends([&] { group.disturb(0, -1, {}); }).id == error_id::usage_bad_option);
  SUBCASE("a rank that left is gone, until it is there again") {
    const auto bytes = numbered_bytes(10, 1);
    {
      auto second = group.link(1);
      offer_one(second, {"a", 1}, bytes);
      CHECK_FALSE(first.is_gone(1));
    }
    CHECK(first.is_gone(1));
    CHECK(ends([&] { first.fetch(1, {"a", 1}, {}, ample_time()); }).id == error_id::peer_lost);
    auto second = group.link(1);
    CHECK_FALSE(first.is_gone(1));
    CHECK(ends([&] { first.fetch(1, {"a", 1}, {}, ample_time()); }).id == error_id::peer_not_offered);
    offer_one(second, {"a", 1}, bytes);
    CHECK(fetch_one(first, 1, {"a", 1}, 0, 10) == bytes);
  }
  SUBCASE("a rank that was lost can do nothing") {
    auto second = group.link(1);
    group.lose(1);
    CHECK(ends([&] { offer_one(second, {"a", 1}, {}); }).id == error_id::peer_lost);
    const auto own = ends([&] { second.fetch(0, {"a", 1}, {}, ample_time()); });
    CHECK(own.id == error_id::peer_lost);
    CHECK(own.rank == 1);
  }
}

TEST_CASE("faults of a group of links") {
  const cairn::thread_link_group group(2);
  auto first = group.link(0), second = group.link(1);
  const auto image = numbered_bytes(100'000, 1);
  const cairn::offer_key key{"image", 1};
  offer_one(second, key, image);
  using kind = cairn::link_fault::kind;

  SUBCASE("a connection that breaks") {
    group.disturb(0, 1, {.what = kind::cut, .after = 5000});
    const auto broken = ends([&] { fetch_one(first, 1, key, 0, image.size()); });
    CHECK(broken.id == error_id::peer_lost);
    CHECK(broken.rank == 1);
    CHECK(fetch_one(first, 1, key, 0, image.size()) == image);
  }
  SUBCASE("a half-open connection") {
    group.disturb(0, 1, {.what = kind::half_open, .after = 5000});
    CHECK(fetch_one(first, 1, key, 0, 5000).size() == 5000);
    const auto soon = [] { return deadline::in(std::chrono::milliseconds(20)); };
    CHECK(ends([&] { fetch_one(first, 1, key, 0, 1, soon()); }).id == error_id::timeout_peer);
    CHECK(ends([&] { first.await_offer(1, key, soon()); }).id == error_id::timeout_peer);
    // The other way is as it was, and so is this one when it is healed, for whoever waits.
    offer_one(first, key, image);
    CHECK(fetch_one(second, 0, key, 0, image.size()) == image);
    std::atomic<bool> begins{false};
    std::vector<std::byte> got;
    std::thread waiting([&] {
      begins = true;
      got = fetch_one(first, 1, key, 0, image.size());
    });
    while (!begins.load()) std::this_thread::yield();
    group.disturb(0, 1, {});
    waiting.join();
    CHECK(got == image);
  }
  SUBCASE("a slow connection is still right, and a withdrawal does not wait for it") {
    group.disturb(0, 1, {.what = kind::slow, .bytes_per_second = 100'000'000});
    CHECK(fetch_one(first, 1, key, 0, image.size()) == image);
    group.disturb(0, 1, {.what = kind::slow, .after = 1, .bytes_per_second = 1});
    std::vector<std::byte> some(5000);  // of which the slow part takes an hour
    const cairn::fetch_range ranges[] = {{0, some}};
    ended_call cut;
    std::atomic<bool> begins{false};
    std::thread reader([&] {
      begins = true;
      cut = ends([&] { first.fetch(1, key, ranges, ample_time()); });
    });
    while (!begins.load()) std::this_thread::yield();
    second.withdraw(key, no_time());
    group.disturb(0, 1, {});
    reader.join();
    CHECK(cut.id == error_id::peer_not_offered);
  }
}
