// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/cuda/gather.hpp>
#include <cairn/stage/heap_memory.hpp>
#include <cairn/system/deadline.hpp>

#include <doctest/doctest.h>
#include <support/random_bytes.hpp>
#include <support/stager_conformance.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <thread>
#include <vector>

namespace cairn_test {

/// Whether a call is refused because its stream is captured into a graph.
template <class Call>
[[nodiscard]] bool refused_while_capturing(Call&& call) {
  try {
    call();
  } catch (const cairn::usage_error& e) {
    return e.id() == cairn::error_id::usage_stream_capturing;
  }
  return false;
}

/// What cairn relies on of a device's runtime: the double passes it in every run of the tests, and CUDA's own
/// where there is a GPU, so that the double is no invention. `Hooks` gives what the runtime has no calls for:
/// `launch(stream, work)` (runs when the stream comes to it), `upload(to, from, bytes)`,
/// `begin_capture(stream)`, `end_capture(stream)` (whether the capture was good), `synchronize()`.
template <cairn::cuda::GatheringRuntime R, class Hooks>
void device_semantics() {
  using stream_type = typename R::stream_type;
  using event_type = typename R::event_type;
  const auto good = [](int status) { REQUIRE(status == R::success); };
  constexpr std::uint64_t bytes = 1 << 20;
  struct buffers {
    explicit buffers(std::uint64_t size) : host(cairn::heap_memory{}.allocate(size)), content(size) {
      REQUIRE(R::allocate(device, size) == R::success);
      REQUIRE(R::pin(host.bytes().data(), host.bytes().size()) == R::success);
      fill_random(content, 7);
      Hooks::upload(device, content.data(), size);
    }
    ~buffers() {
      Hooks::synchronize();
      CHECK(R::unpin(host.bytes().data()) == R::success);
      CHECK(R::deallocate(device) == R::success);
    }
    std::byte* device = nullptr;
    cairn::heap_memory::block_type host;
    std::vector<std::byte> content;
    [[nodiscard]] std::byte* at_host() const { return host.bytes().data(); }
    [[nodiscard]] bool arrived() const { return std::memcmp(at_host(), content.data(), content.size()) == 0; }
  };
  // Holds a stream until it is released, or until this object is destroyed.
  struct holder {
    explicit holder(stream_type s) {
      Hooks::launch(s, [flag = go] {
        while (!flag->load()) std::this_thread::yield();
      });
    }
    ~holder() { let_go(); }
    void let_go() const { go->store(true); }
    std::shared_ptr<std::atomic<bool>> go = std::make_shared<std::atomic<bool>>(false);
  };
  const auto reached = [&](event_type e) {
    const auto until = soon();
    for (int status = R::query(e); !until.passed(); status = R::query(e)) {
      if (status == R::success) return true;
      if (status != R::not_ready) return false;
      std::this_thread::yield();
    }
    return false;
  };
  stream_type a{};
  stream_type b{};
  event_type e{};
  event_type f{};
  good(R::make_stream(a));
  good(R::make_stream(b));
  good(R::make_event(e));
  good(R::make_event(f));

  SUBCASE("devices are counted, and one that is used has a context") {
    int count = 0;
    bool yes = false;
    good(R::device_count(count));
    CHECK(count >= 1);
    good(R::has_context(0, yes));
    CHECK(yes);
    CHECK_FALSE(R::is_lost(R::success));
    CHECK_FALSE(R::is_lost(R::not_ready));
    good(R::load_kernels());
  }
  SUBCASE("what was never recorded is reached, and nobody waits for it") {
    CHECK(R::query(e) == R::success);
    good(R::wait(a, e));
    good(R::record(f, a));
    CHECK(reached(f));
  }
  SUBCASE("an event is reached when all that was in its stream is done; calls return before") {
    const buffers m(bytes);
    std::memset(m.at_host(), 0, bytes);
    const holder held(a);
    good(R::copy_to_host(m.at_host(), m.device, bytes, a));
    good(R::record(e, a));
    CHECK(R::query(e) == R::not_ready);
    CHECK(m.at_host()[0] == std::byte{0});
    held.let_go();
    CHECK(reached(e));
    CHECK(m.arrived());
  }
  SUBCASE("a stream waits for the record that the event had when it was told to") {
    const buffers m(bytes);
    std::atomic<bool> first{false};
    std::atomic<bool> in_order{false};
    const holder held(a);
    Hooks::launch(a, [&] { first.store(true); });
    good(R::record(e, a));
    good(R::wait(b, e));
    // Recorded again where nothing is enqueued: b still waits for the first record.
    stream_type c{};
    good(R::make_stream(c));
    good(R::record(e, c));
    CHECK(reached(e));
    Hooks::launch(b, [&] { in_order.store(first.load()); });
    good(R::record(f, b));
    CHECK(R::query(f) == R::not_ready);
    held.let_go();
    CHECK(reached(f));
    CHECK(in_order.load());
    good(R::destroy_stream(c));
  }
  SUBCASE("a word has its value only after what the stream copied before is there") {
    const buffers m(bytes);
    auto word_block = cairn::heap_memory{}.allocate(4096);
    good(R::pin(word_block.bytes().data(), word_block.bytes().size()));
    auto* word = new (word_block.bytes().data()) std::atomic<std::uint32_t>(0);
    std::byte* there = nullptr;
    good(R::device_address(word_block.bytes().data(), there));
    for (std::uint32_t i = 1; i <= 100; ++i) {
      std::memset(m.at_host(), 0, bytes);
      good(R::copy_to_host(m.at_host(), m.device, bytes, a));
      const int status = R::write_word(there, i, a);
      if (status == R::unsupported) break;
      good(status);
      const auto until = soon();
      while (word->load(std::memory_order_acquire) != i && !until.passed()) std::this_thread::yield();
      CHECK(m.arrived());
    }
    Hooks::synchronize();
    good(R::unpin(word_block.bytes().data()));
  }
  SUBCASE("rows and parts") {
    const buffers m(bytes);
    std::memset(m.at_host(), 0, bytes);
    good(R::copy_rows_to_host(m.at_host(), m.device + 3, 1000, 77, 1000, a));
    const std::vector<cairn::cuda::range_copy> parts{{m.at_host() + 100'000, m.device + 5, 1},
                                                     {m.at_host() + 100'003, m.device + 70'001, 60'000},
                                                     {m.at_host() + 300'000, m.device, 400'000}};
    good(R::copy_ranges_to_host(parts, a));
    good(R::record(e, a));
    CHECK(reached(e));
    bool right = true;
    for (std::size_t row = 0; row < 1000; ++row)
      right = right && std::memcmp(m.at_host() + row * 77, m.content.data() + 3 + row * 1000, 77) == 0;
    for (const auto& p : parts)
      right = right && std::memcmp(p.to, m.content.data() + (p.from - m.device), p.bytes) == 0;
    CHECK(right);
  }
  SUBCASE("to the device: bytes, rows, parts") {
    const buffers m(bytes);
    std::memcpy(m.at_host(), m.content.data(), bytes);
    std::byte* made = nullptr;
    good(R::allocate(made, bytes));
    std::vector<std::byte> wanted(bytes, std::byte{0x5a});
    Hooks::upload(made, wanted.data(), bytes);
    good(R::copy_to_device(made + 1, m.at_host() + 7, 1000, a));
    std::memcpy(wanted.data() + 1, m.content.data() + 7, 1000);
    good(R::copy_rows_to_device(made + 5000, 100, m.at_host() + 3, 1000, 77, 900, a));
    for (std::size_t row = 0; row < 900; ++row)
      std::memcpy(wanted.data() + 5000 + row * 100, m.content.data() + 3 + row * 1000, 77);
    const std::vector<cairn::cuda::range_copy> parts{{made + 200'001, m.at_host() + 5, 1},
                                                     {made + 300'000, m.at_host() + 70'001, 60'000}};
    good(R::copy_ranges_to_device(parts, a));
    for (const auto& p : parts)
      std::memcpy(wanted.data() + (p.to - made), m.content.data() + (p.from - m.at_host()), p.bytes);
    good(R::copy_to_host(m.at_host(), made, bytes, a));
    good(R::record(e, a));
    CHECK(reached(e));
    CHECK(first_difference({m.at_host(), bytes}, wanted) == -1);
    good(R::deallocate(made));
  }
  SUBCASE("gathering: any parts, boxes of up to 8 dimensions, zeros") {
    const buffers m(bytes);
    std::byte* staging = nullptr;
    good(R::allocate(staging, bytes));
    std::mt19937 random(11);
    const auto any = [&](std::uint32_t below) { return static_cast<std::uint32_t>(random() % below); };
    std::vector<cairn::cuda::gather_range> parts;
    std::vector<cairn::cuda::gather_box> boxes;
    std::vector<std::byte> wanted(bytes);
    const std::vector<std::byte> before(bytes, std::byte{0x5a});
    Hooks::upload(staging, before.data(), bytes);
    wanted = before;
    std::uint32_t to = 0;
    for (int i = 0; i < 2500; ++i) {
      cairn::cuda::gather_range p;
      const cairn::cuda::gather_box* box = nullptr;
      to += any(40);
      p.to = to;
      p.bytes = 1 + any(any(30) == 0 ? cairn::cuda::gather_tile_bytes : 300);
      if (p.to + p.bytes > bytes) break;
      if (any(8) == 0) {
        std::memset(wanted.data() + p.to, 0, p.bytes);
      } else if (any(3) != 0) {
        p.from = m.device + any(bytes / 2);
        std::memcpy(wanted.data() + p.to, m.content.data() + (p.from - m.device), p.bytes);
      } else {
        // 8 dimensions of at most 3 rows each and strides of at most 6,000 bytes stay within a quarter.
        cairn::cuda::gather_box made;
        made.run = std::uint64_t{1} << any(5);
        made.rank = 1 + any(8);
        std::uint64_t volume = made.run;
        for (std::uint32_t d = 0; d < made.rank; ++d) {
          made.sizes[d] = 1 + any(3);
          made.strides[d] =
              (static_cast<std::int64_t>(any(12'000)) - 6'000) / 16 * static_cast<std::int64_t>(1 + any(16));
          made.strides[d] = std::clamp<std::int64_t>(made.strides[d], -6'000, 6'000);
          volume *= made.sizes[d];
        }
        p.from = m.device + bytes / 2 + any(16);
        p.bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(p.bytes, volume));
        p.first = any(static_cast<std::uint32_t>(volume - p.bytes) + 1);
        boxes.push_back(made);
        box = &boxes.back();
        p.box = static_cast<std::uint32_t>(boxes.size() - 1);
        for (std::uint32_t k = 0; k < p.bytes; ++k)
          wanted[p.to + k] = m.content[static_cast<std::size_t>(
              cairn::cuda::gather_source(made, p.from, p.first + k) - m.device)];
      }
      p.width = cairn::cuda::detail::width_of(p, box);
      to += p.bytes;
      parts.push_back(p);
    }
    REQUIRE(parts.size() > 1000);
    good(R::gather(parts, boxes, staging, a));
    good(R::copy_to_host(m.at_host(), staging, bytes, a));
    good(R::record(e, a));
    CHECK(reached(e));
    CHECK(first_difference({m.at_host(), bytes}, wanted) == -1);
    good(R::deallocate(staging));
  }
  SUBCASE("captures: told, refused, and not disturbed by threads that know of them") {
    bool yes = true;
    std::byte* meanwhile = nullptr;
    good(R::capturing(a, yes));
    CHECK_FALSE(yes);
    Hooks::begin_capture(a);
    {
      const cairn::cuda::relaxed_capture_mode<R> guard;
      good(R::capturing(a, yes));
      CHECK(yes);
      CHECK_THROWS_AS(cairn::cuda::refuse_capture<R>(a, 0, "save()"), cairn::usage_error);
      good(R::capturing(b, yes));
      CHECK_FALSE(yes);
      good(R::record(e, b));
      CHECK(reached(e));
      auto block = cairn::heap_memory{}.allocate(4096);
      good(R::pin(block.bytes().data(), block.bytes().size()));
      good(R::unpin(block.bytes().data()));
      good(R::allocate(meanwhile, 4096));
    }
    CHECK(Hooks::end_capture(a));
    good(R::deallocate(meanwhile));
    good(R::capturing(a, yes));
    CHECK_FALSE(yes);
    // A thread that does not relax its mode ends the capture.
    Hooks::begin_capture(a);
    CHECK(R::query(e) != R::success);
    CHECK_FALSE(Hooks::end_capture(a));
    CHECK(R::query(e) == R::success);
  }
  SUBCASE("what is wrong is refused, and the next call works") {
    const buffers m(4096);
    int device = -2;
    CHECK(R::use_device(99) != R::success);
    good(R::current_device(device));
    CHECK(device == 0);
    CHECK(R::pin(m.at_host(), 4096) != R::success);
    good(R::device_of(m.device, device));
    CHECK(device == 0);
    good(R::device_of(m.content.data(), device));
    CHECK(device == -1);
    CHECK(R::name_of(R::query(e)) != nullptr);
  }
  Hooks::synchronize();
  good(R::destroy_event(e));
  good(R::destroy_event(f));
  good(R::destroy_stream(a));
  good(R::destroy_stream(b));
}

}  // namespace cairn_test
