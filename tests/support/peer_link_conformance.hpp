// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <doctest/doctest.h>

#include <cairn/concepts/peer_link.hpp>
#include <cairn/system/error.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// The conformance suite of PeerLink. An Env gives the links of three ranks of one job, all in this process:
///
///     struct env {
///       auto& at(int rank);     // the link of a rank, 0 to 2
///       void lose(int rank);    // ends this rank, as if its process had died; its link is not used any more
///     };
///
/// and is run with `TEST_CASE_TEMPLATE_INVOKE(peer_link_conformance, env);`.
namespace cairn_test {

/// Longer than anything takes on a busy machine.
inline cairn::deadline ample_time() {
  return cairn::deadline::in(std::chrono::minutes(4));
}
inline cairn::deadline no_time() {
  return cairn::deadline::in(std::chrono::nanoseconds(0));
}

/// Bytes of which no 8 are like others, nor those of another number.
inline std::vector<std::byte> numbered_bytes(std::size_t size, std::uint64_t number) {
  std::vector<std::byte> bytes(size);
  for (std::size_t at = 0; at < size; at += 8) {
    const auto word = (number << 40 | at) * 0x9e3779b97f4a7c15U;
    std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(8, size - at));
  }
  return bytes;
}

template <class Link>
void offer_one(Link& link, const cairn::offer_key& key, std::span<const std::byte> bytes) {
  const std::span<const std::byte> parts[] = {bytes};
  link.offer(key, parts);
}

/// `bytes` of an offer, from `offset` on.
template <class Link>
std::vector<std::byte> fetch_one(Link& link, int peer, const cairn::offer_key& key, std::uint64_t offset,
                                 std::size_t bytes, cairn::deadline until = ample_time()) {
  std::vector<std::byte> got(bytes);
  const cairn::fetch_range ranges[] = {{offset, got}};
  link.fetch(peer, key, ranges, until);
  return got;
}

/// The error that a call ends with; none where it returns.
struct ended_call {
  std::optional<cairn::error_id> id;
  int rank = -1;
  std::string text = "no exception";
};
template <class Call>
ended_call ends(Call&& call) {
  try {
    call();
  } catch (const cairn::error& e) {
    return {e.id(), e.fields().rank, e.what()};
  }
  return {};
}

}  // namespace cairn_test

TEST_CASE_TEMPLATE_DEFINE("PeerLink conformance", Env, peer_link_conformance) {
  using namespace cairn_test;
  using cairn::error_id;
  Env env;
  const cairn::offer_key key{"image", 7};

  SUBCASE("rank and size") {
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(static_cast<int>(env.at(rank).rank()) == rank);
      CHECK(static_cast<int>(env.at(rank).size()) == 3);
    }
  }
  SUBCASE("ranges of an offer of several parts, in any order") {
    const auto all = numbered_bytes(300'000, 1);
    const std::span<const std::byte> bytes(all);
    const std::span<const std::byte> parts[] = {
        bytes.first(5), {}, bytes.subspan(5, 100'000), bytes.subspan(100'005)};
    env.at(1).offer(key, parts);
    std::vector<std::byte> first(10), second(250'000), last(1), none;
    const cairn::fetch_range ranges[] = {{299'999, last}, {3, second}, {300'000, none}, {0, first}};
    for (const int rank : {0, 1, 2}) {
      CHECK(env.at(rank).fetch(1, key, ranges, ample_time()) == 300'000);
      CHECK(std::memcmp(first.data(), all.data(), first.size()) == 0);
      CHECK(std::memcmp(second.data(), all.data() + 3, second.size()) == 0);
      CHECK(last[0] == all.back());
      for (auto* each : {&first, &second, &last}) std::fill(each->begin(), each->end(), std::byte{0});
    }
    CHECK(env.at(0).fetch(1, key, {}, ample_time()) == 300'000);
  }
  SUBCASE("many small ranges") {
    const auto all = numbered_bytes(300'000, 1);
    offer_one(env.at(1), key, all);
    std::vector<std::vector<std::byte>> got;
    for (std::size_t i = 0; i < 3000; ++i) got.emplace_back(i % 50);
    std::vector<cairn::fetch_range> ranges;
    for (std::size_t i = 0; i < got.size(); ++i) ranges.push_back({i * 7919 % 299'000, got[i]});
    CHECK(env.at(0).fetch(1, key, ranges, ample_time()) == 300'000);
    std::size_t wrong = 0;
    for (const auto& range : ranges)
      wrong += !range.destination.empty() && std::memcmp(range.destination.data(), all.data() + range.offset,
                                                         range.destination.size()) != 0;
    CHECK(wrong == 0);
  }
  SUBCASE("an offer without bytes is one") {
    env.at(2).offer(key, {});
    CHECK(env.at(0).await_offer(2, key, ample_time()) == 0);
    CHECK(env.at(0).fetch(2, key, {}, ample_time()) == 0);
  }
  SUBCASE("names and generations are apart") {
    const auto a = numbered_bytes(100, 1), b = numbered_bytes(200, 2), c = numbered_bytes(300, 3);
    const std::string longest(cairn::max_offer_name, 'x');
    offer_one(env.at(1), {"image", 7}, a);
    offer_one(env.at(1), {"image", 8}, b);
    offer_one(env.at(1), {longest, 7}, c);
    CHECK(fetch_one(env.at(0), 1, {"image", 7}, 0, 100) == a);
    CHECK(fetch_one(env.at(0), 1, {"image", 8}, 0, 200) == b);
    CHECK(fetch_one(env.at(0), 1, {longest, 7}, 0, 300) == c);
    const auto missing = ends([&] { fetch_one(env.at(0), 1, {"image", 9}, 0, 1); });
    CHECK_MESSAGE(missing.id == error_id::peer_not_offered, missing.text);
    CHECK(missing.rank == 1);
    CHECK(ends([&] { env.at(0).fetch(1, {"imag", 7}, {}, ample_time()); }).id == error_id::peer_not_offered);
    CHECK(ends([&] { env.at(0).fetch(2, {"image", 7}, {}, ample_time()); }).id == error_id::peer_not_offered);
    // After all that, the link is as good as before.
    CHECK(fetch_one(env.at(0), 1, {"image", 7}, 0, 100) == a);
  }
  SUBCASE("what cannot be offered or asked") {
    const auto all = numbered_bytes(100, 1);
    offer_one(env.at(1), key, all);
    CHECK(ends([&] { offer_one(env.at(1), key, all); }).id == error_id::usage_duplicate_name);
    CHECK(ends([&] { env.at(1).offer({"", 1}, {}); }).id == error_id::usage_bad_name);
    CHECK(ends([&] {
            env.at(1).offer({std::string(cairn::max_offer_name + 1, 'x'), 1}, {});
          }).id == error_id::usage_bad_name);
    CHECK(ends([&] { env.at(0).fetch(1, {"", 1}, {}, ample_time()); }).id == error_id::usage_bad_name);
    for (const auto& [offset, bytes] : {std::pair<std::uint64_t, std::size_t>{100, 1},
                                        {99, 2},
                                        {101, 0},
                                        {~0ull, 1},
                                        {~0ull - 1, 100},
                                        {0, 101}}) {
      const auto outside = ends([&] { fetch_one(env.at(0), 1, key, offset, bytes); });
      CHECK_MESSAGE(outside.id == error_id::usage_bad_option, outside.text);
    }
    for (const int peer : {-1, 3}) {
      CHECK(ends([&] { env.at(0).fetch(peer, key, {}, ample_time()); }).id == error_id::usage_bad_option);
      CHECK(ends([&] { env.at(0).await_offer(peer, key, ample_time()); }).id == error_id::usage_bad_option);
      CHECK_FALSE(env.at(0).is_gone(peer));
    }
    CHECK(fetch_one(env.at(0), 1, key, 0, 100) == all);
  }
  SUBCASE("awaiting what is offered later") {
    const auto all = numbered_bytes(100, 1);
    std::atomic<std::uint64_t> bytes[2] = {0, 0};
    std::vector<std::thread> waiting;
    for (const int rank : {0, 2})
      waiting.emplace_back([&, rank] {
        const auto got = ends([&] { bytes[rank / 2] = env.at(rank).await_offer(1, key, ample_time()); });
        CHECK_MESSAGE(!got.id, got.text);
      });
    offer_one(env.at(1), {"image", 6}, numbered_bytes(5, 2));
    offer_one(env.at(1), key, all);
    for (auto& each : waiting) each.join();
    CHECK(bytes[0] == 100);
    CHECK(bytes[1] == 100);
    CHECK(env.at(0).await_offer(1, key, ample_time()) == 100);
    CHECK(fetch_one(env.at(0), 1, key, 0, 100) == all);
  }
  SUBCASE("a wait ends at its deadline and names the peer") {
    const auto late =
        ends([&] { env.at(0).await_offer(1, key, cairn::deadline::in(std::chrono::milliseconds(30))); });
    CHECK_MESSAGE(late.id == error_id::timeout_peer, late.text);
    CHECK(late.rank == 1);
    const auto all = numbered_bytes(10, 1);
    offer_one(env.at(1), key, all);
    CHECK(ends([&] { env.at(0).fetch(1, key, {}, no_time()); }).id == error_id::timeout_peer);
    CHECK(fetch_one(env.at(0), 1, key, 0, 10) == all);
  }
  SUBCASE("what is withdrawn is not read any more, and its key is free") {
    auto all = numbered_bytes(100'000, 1);
    offer_one(env.at(1), key, all);
    CHECK(fetch_one(env.at(0), 1, key, 0, all.size()) == all);
    env.at(1).withdraw(key, ample_time());
    env.at(1).withdraw(key, ample_time());
    env.at(1).withdraw({"never offered", 1}, ample_time());
    CHECK(ends([&] { env.at(0).fetch(1, key, {}, ample_time()); }).id == error_id::peer_not_offered);
    all = numbered_bytes(50'000, 2);
    offer_one(env.at(1), key, all);
    CHECK(fetch_one(env.at(0), 1, key, 0, all.size()) == all);
  }
  SUBCASE("a withdrawal in the middle of fetches") {
    // Each fetch gives all of the bytes as they were offered, or says that they were withdrawn; with no time for
    // those that have begun, which are cut off.
    const std::size_t size = 9'000'000;
    for (std::uint64_t round = 0; round < 6; ++round) {
      auto all = numbered_bytes(size, round);
      const auto good = all;
      offer_one(env.at(1), {"image", round}, all);
      std::atomic<int> begun{0}, whole{0}, told{0}, bad{0};
      std::vector<std::thread> readers;
      for (const int rank : {0, 2})
        readers.emplace_back([&, rank] {
          std::vector<std::byte> got(size);
          const cairn::fetch_range ranges[] = {{0, got}};
          for (;;) {
            ++begun;
            const auto end = ends([&] { env.at(rank).fetch(1, {"image", round}, ranges, ample_time()); });
            if (end.id) {
              ++(end.id == error_id::peer_not_offered ? told : bad);
              return;
            }
            ++(std::memcmp(got.data(), good.data(), size) == 0 ? whole : bad);
          }
        });
      while (begun.load() < 3) std::this_thread::yield();
      env.at(1).withdraw({"image", round}, round % 2 == 0 ? no_time() : ample_time());
      std::fill(all.begin(), all.end(), std::byte{0xee});
      for (auto& each : readers) each.join();
      CHECK(told == 2);
      CHECK(bad == 0);
    }
  }
  SUBCASE("many fetches at once, from all to all") {
    const std::size_t size = 400'000;
    std::vector<std::vector<std::byte>> images;
    for (int rank = 0; rank < 3; ++rank)
      images.push_back(numbered_bytes(size, static_cast<std::uint64_t>(rank)));
    for (int rank = 0; rank < 3; ++rank) offer_one(env.at(rank), key, images[static_cast<std::size_t>(rank)]);
    std::atomic<int> good{0};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank)
      for (int peer = 0; peer < 3; ++peer)
        for (const std::size_t offset : {std::size_t{0}, std::size_t{1234}, std::size_t{200'000}})
          threads.emplace_back([&, rank, peer, offset] {
            const auto& image = images[static_cast<std::size_t>(peer)];
            std::vector<std::byte> got(size - offset), some(100);
            const cairn::fetch_range ranges[] = {{offset, got}, {17, some}};
            const auto end = ends([&] { env.at(rank).fetch(peer, key, ranges, ample_time()); });
            CHECK_MESSAGE(!end.id, end.text);
            good += std::memcmp(got.data(), image.data() + offset, got.size()) == 0 &&
                    std::memcmp(some.data(), image.data() + 17, some.size()) == 0;
          });
    for (auto& each : threads) each.join();
    CHECK(good == 27);
  }
  SUBCASE("a rank that is lost") {
    const auto all = numbered_bytes(100, 1);
    offer_one(env.at(1), key, all);
    offer_one(env.at(2), key, all);
    CHECK(fetch_one(env.at(0), 1, key, 0, 100) == all);
    CHECK_FALSE(env.at(0).is_gone(1));
    std::atomic<bool> begins{false};
    ended_call waited;
    std::thread waiting([&] {
      begins = true;
      waited = ends([&] { env.at(0).await_offer(1, {"never", 1}, ample_time()); });
    });
    while (!begins.load()) std::this_thread::yield();
    env.lose(1);
    waiting.join();
    CHECK_MESSAGE(waited.id == error_id::peer_lost, waited.text);
    CHECK(waited.rank == 1);
    const auto after = ends([&] { env.at(0).fetch(1, key, {}, ample_time()); });
    CHECK_MESSAGE(after.id == error_id::peer_lost, after.text);
    CHECK(after.rank == 1);
    CHECK(env.at(0).is_gone(1));
    CHECK_FALSE(env.at(0).is_gone(2));
    CHECK(fetch_one(env.at(0), 2, key, 0, 100) == all);
  }
  SUBCASE("a link is moved") {
    const auto all = numbered_bytes(100, 1);
    offer_one(env.at(1), key, all);
    auto moved = std::move(env.at(1));
    CHECK(fetch_one(env.at(0), 1, key, 0, 100) == all);
    env.at(1) = std::move(moved);
    CHECK(fetch_one(env.at(0), 1, key, 0, 100) == all);
    CHECK(fetch_one(env.at(1), 1, key, 0, 100) == all);
  }
}
