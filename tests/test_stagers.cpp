// SPDX-License-Identifier: Apache-2.0
// threaded
// cost: 20
// Stagers: conformance of each composition, the pool of buffers, failures, limits of memory.
#include <cairn/checkpointer/copy_check.hpp>
#include <cairn/concepts/any_stager.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/stage/buffered_stager.hpp>
#include <cairn/stage/copy_job.hpp>
#include <cairn/stage/copy_threads.hpp>
#include <cairn/stage/memory_limits.hpp>
#include <cairn/stage/no_staging.hpp>
#include <cairn/system/digest.hpp>
#include <cairn/system/digesting_copy.hpp>
#include <cairn/system/process_limits.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/shared_event.hpp>
#include <cairn/system/streaming_copy.hpp>

#include <doctest/doctest.h>
#include <support/stager_conformance.hpp>
#include <support/still_threads.hpp>
#include <support/thread_policy.hpp>

#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace {
using namespace cairn;
using namespace cairn_test;

struct unstaged {
  static constexpr bool digests = false;
  [[nodiscard]] no_staging make() const { return {}; }
};
struct heap {
  static constexpr bool digests = true;
  int threads;
  [[nodiscard]] heap_stager make() const { return heap_stager({}, host_copy({.threads = threads})); }
};
using least_buffered = buffered_stager<least_memory, least_engine>;
struct least {
  static constexpr bool digests = false;
  std::shared_ptr<std::atomic<int>> live;
  [[nodiscard]] least_buffered make() const {
    return least_buffered({.depth = 1}, least_engine(1), least_memory(live));
  }
};

TEST_CASE("no_staging is a stager") {
  stager_conformance(unstaged{});
}
TEST_CASE("heap_stager with one thread is a stager") {
  stager_conformance(heap{1});
}
TEST_CASE("heap_stager with two threads is a stager") {
  stager_conformance(heap{2});
}
TEST_CASE("heap_stager with four threads is a stager") {
  stager_conformance(heap{4});
}
TEST_CASE("buffered_stager of archetypes is a stager, and leaves nothing behind") {
  const auto live = std::make_shared<std::atomic<int>>(0);
  stager_conformance(least{live});
  CHECK(*live == 0);
}

struct of_any_type {
  static constexpr bool digests = true;
  [[nodiscard]] any_stager make() const { return any_stager(heap{2}.make()); }
};
TEST_CASE("any_stager over heap_stager is a stager") {
  stager_conformance(of_any_type{});
}

/// What offers the optional capabilities, and no more.
struct offering_stager : no_staging {
  std::shared_ptr<int> prepared = std::make_shared<int>(0);
  std::shared_ptr<device_access> devices;
  using no_staging::prepare;
  void prepare(const source_table&) { ++*prepared; }
  std::shared_ptr<device_access> device_memory() const { return devices; }
};
static_assert(PreparesSources<offering_stager> && BringsDeviceAccess<offering_stager>);
static_assert(Stager<no_staging> && !PreparesSources<no_staging> && !BringsDeviceAccess<no_staging>);

TEST_CASE("any_stager offers what its stager offers, nothing where that has nothing, and gives it back") {
  struct no_devices : device_access {
    std::unique_ptr<device_load> begin_load(std::uint64_t) override { return nullptr; }
    std::unique_ptr<device_read> begin_read() override { return nullptr; }
  };
  offering_stager own;
  own.devices = std::make_shared<no_devices>();
  any_stager offering(own);
  offering.prepare(source_table());
  CHECK(*own.prepared == 1);
  CHECK(offering.device_memory() == own.devices);
  REQUIRE(offering.get_if<offering_stager>() != nullptr);
  CHECK(offering.get_if<offering_stager>()->prepared == own.prepared);
  CHECK(offering.get_if<no_staging>() == nullptr);

  any_stager plain(no_staging{});
  plain.prepare(source_table());
  CHECK(plain.device_memory() == nullptr);
  CHECK(plain.get_if<offering_stager>() == nullptr);
}

TEST_CASE("buffered_stager offers what its engine offers, each by itself") {
  const auto live = std::make_shared<std::atomic<int>>(0);
  using preparing = buffered_stager<least_memory, least_preparing_engine>;
  using ordered = buffered_stager<least_memory, least_ordered_engine>;
  using devices = buffered_stager<least_memory, least_device_engine>;
  static_assert(PreparesSources<preparing> && !PreparesSources<ordered> && !PreparesSources<devices>);
  static_assert(StreamOrderedStager<ordered, least_stream> && !StreamOrderedStager<preparing, least_stream> &&
                !StreamOrderedStager<ordered, int>);
  static_assert(BringsDeviceAccess<devices> && !BringsDeviceAccess<preparing>);
  static_assert(NodeMemory<heap_memory> && !SharesImages<heap_stager>);

  std::size_t prepared = 0;
  preparing first({}, least_preparing_engine(prepared), least_memory(live));
  first.prepare(source_table(std::vector<item_source>(3)));
  CHECK(prepared == 3);
  int waits = 0;
  ordered second({}, least_ordered_engine(1), least_memory(live));
  second.before_update(least_stream{&waits}, 2, soon());
  CHECK(waits == 2);
  struct no_devices : device_access {
    std::unique_ptr<device_load> begin_load(std::uint64_t) override { return nullptr; }
    std::unique_ptr<device_read> begin_read() override { return nullptr; }
  };
  const auto access = std::make_shared<no_devices>();
  const devices third({}, least_device_engine(access), least_memory(live));
  const std::shared_ptr<device_access> told = third.device_memory();
  CHECK(told == access);
}

stager_case one_tensor(std::uint64_t bytes, std::uint32_t seed = 1) {
  return case_maker(seed).segment(4096).tensor(dtype::u8, {bytes}).make();
}

/// Holds its fills until the test ends them.
struct scripted_engine {
  template <class M>
  static constexpr bool accepts = true;
  static constexpr bool digests = false;
  std::shared_ptr<std::vector<std::shared_ptr<image_fill>>> fills =
      std::make_shared<std::vector<std::shared_ptr<image_fill>>>();
  std::shared_ptr<bool> refuse = std::make_shared<bool>(false);
  void check(const item_source&) const {}
  void copy(std::shared_ptr<image_fill> fill, deadline) {
    if (*refuse) fail(error_id::storage_limit, "refused by the test");
    fills->push_back(std::move(fill));
  }
};

TEST_CASE("a buffer is free again when the last copy of its image is dropped and its engine is done") {
  const auto live = std::make_shared<std::atomic<int>>(0);
  scripted_engine engine;
  const auto fills = engine.fills;
  const auto c = one_tensor(100);
  {
    buffered_stager<least_memory, scripted_engine> stager({.depth = 2}, engine, least_memory(live));
    CHECK(stager.depth() == 2);
    auto first = stager.stage(c.layout, c.sources, {true, false}, soon());
    auto second = stager.stage(c.layout, c.sources, {true, false}, soon());
    CHECK(first.bytes().data() != second.bytes().data());
    const auto* const buffer = first.bytes().data();
    const auto none_free = [&] {
      try {
        (void)stager.stage(c.layout, c.sources, {true, false}, deadline::in(std::chrono::milliseconds(1)));
        return false;
      } catch (const timeout_error& e) {
        return e.id() == error_id::timeout_staging;
      }
    };
    CHECK(none_free());
    auto copy = first;
    first = {};
    CHECK(none_free());
    // A handle keeps the control: that does not hold the buffer.
    const auto control = copy.control();
    copy = {};
    CHECK(none_free());
    control->release();
    (*fills)[0].reset();
    auto third = stager.stage(c.layout, c.sources, {true, false}, soon());
    CHECK(third.bytes().data() == buffer);
    CHECK(*live == 2);
    // The stager goes first; the images keep their buffers.
    fills->clear();
    second = {};
    CHECK(third.control() != control);
  }
  CHECK(*live == 0);
}

TEST_CASE("stage waits for a buffer that is in use") {
  heap_stager stager;
  const auto c = one_tensor(3'000'000);
  std::optional<staged_image> first = stager.stage(c.layout, c.sources, {}, soon());
  staged_image second;
  std::thread waiting([&] { second = stager.stage(c.layout, c.sources, {}, soon()); });
  CHECK(first_difference(read_image(*first), c.image) == -1);
  first.reset();
  waiting.join();
  CHECK(first_difference(read_image(second), c.image) == -1);
}

TEST_CASE("buffers are kept, and replaced when they are too small") {
  const auto live = std::make_shared<std::atomic<int>>(0);
  least_buffered stager({.depth = 1}, least_engine(1), least_memory(live));
  const auto small = one_tensor(1000);
  const auto large = one_tensor(2'000'000);
  const auto a_little_larger = one_tensor(2'010'000);
  const auto address = [&](const stager_case& c) {
    const auto image = stager.stage(c.layout, c.sources, {}, soon());
    CHECK(first_difference(read_image(image), c.image) == -1);
    return image.bytes().data();
  };
  CHECK(address(small) == address(small));
  CHECK(*live == 1);
  const auto* const grown = address(large);
  CHECK(*live == 1);
  CHECK(address(small) == grown);
  CHECK(address(a_little_larger) == grown);
  CHECK(*live == 1);
}

TEST_CASE("copies that stream, and those that digest, are right at any place and of any length") {
  std::mt19937_64 random(7);
  std::vector<std::byte> from(120'000), to(from.size());
  for (auto& each : from) each = static_cast<std::byte>(random());
  for (int i = 0; i < 400; ++i) {
    const auto bytes = static_cast<std::size_t>(random() % (i % 4 == 0 ? 110'000 : 20'000));
    const auto source = static_cast<std::size_t>(random() % 5000),
               target = static_cast<std::size_t>(random() % 5000);
    std::fill(to.begin(), to.end(), std::byte{1});
    auto wanted = to;
    std::memcpy(wanted.data() + target, from.data() + source, bytes);
    detail::hash_state hash;
    if (i % 2 == 0)
      detail::streaming_copy(to.data() + target, from.data() + source, bytes);
    else
      detail::digesting_copy(to.data() + target, from.data() + source, bytes, hash);
    detail::streamed_copies_done();
    CHECK(to == wanted);
    if (i % 2 != 0) CHECK(hash.value() == digest(std::span<const std::byte>(from).subspan(source, bytes)));
  }
}

TEST_CASE("prepare allocates all buffers, and stage none") {
  const auto live = std::make_shared<std::atomic<int>>(0);
  least_buffered stager({.depth = 3}, least_engine(1), least_memory(live));
  const auto c = one_tensor(1000);
  stager.prepare(*c.layout, soon());
  CHECK(*live == 3);
  {
    const auto a = stager.stage(c.layout, c.sources, {}, soon());
    const auto b = stager.stage(c.layout, c.sources, {}, soon());
    CHECK(*live == 3);
    stager.prepare(*c.layout, deadline::in(std::chrono::milliseconds(1)));  // waits for none of them
    CHECK(*live == 3);
  }
  stager.prepare(*c.layout, soon());
  CHECK(*live == 3);
}

/// Refuses when told to.
struct failing_memory : least_memory {
  using least_memory::least_memory;
  std::shared_ptr<bool> refuse = std::make_shared<bool>(false);
  block_type allocate(std::uint64_t bytes) {
    if (*refuse) fail(error_id::storage_out_of_memory, "refused by the test");
    return least_memory::allocate(bytes);
  }
};

TEST_CASE("a buffer that cannot be had is a typed error, and the next save may succeed") {
  const auto live = std::make_shared<std::atomic<int>>(0);
  failing_memory memory(live);
  const auto refuse = memory.refuse;
  buffered_stager<failing_memory, least_engine> stager({.depth = 1}, least_engine(1), std::move(memory));
  const auto small = one_tensor(1000);
  const auto large = one_tensor(1'000'000);
  *refuse = true;
  CHECK_THROWS_AS((void)stager.stage(small.layout, small.sources, {}, soon()), storage_error);
  *refuse = false;
  (void)stager.stage(small.layout, small.sources, {}, soon());
  *refuse = true;
  CHECK_THROWS_AS((void)stager.stage(large.layout, large.sources, {}, soon()), storage_error);
  CHECK(*live == 0);
  *refuse = false;
  const auto image = stager.stage(large.layout, large.sources, {}, soon());
  CHECK(first_difference(read_image(image), large.image) == -1);
  CHECK(*live == 1);
}

TEST_CASE("an engine that fails: before it returns, stage throws; afterwards, the image says why") {
  const auto live = std::make_shared<std::atomic<int>>(0);
  scripted_engine engine;
  const auto fills = engine.fills;
  const auto refuse = engine.refuse;
  {
    buffered_stager<least_memory, scripted_engine> stager({.depth = 1}, engine, least_memory(live));
    const auto c = one_tensor(100);
    *refuse = true;
    CHECK_THROWS_AS((void)stager.stage(c.layout, c.sources, {}, soon()), storage_error);
    *refuse = false;
    {
      const auto image = stager.stage(c.layout, c.sources, {true, false}, soon());
      CHECK_THROWS_AS(image.wait_for(1, deadline::in(std::chrono::milliseconds(1))), timeout_error);
      (*fills)[0]->fail(make_failure(error_id::storage_io, "the device is gone"));
      fills->clear();
      CHECK(image.control()->copied());
      try {
        image.wait_for(1, soon());
        FAIL("nothing was thrown");
      } catch (const storage_error& e) {
        CHECK(e.id() == error_id::storage_io);
        CHECK(e.message() == "the device is gone");
      }
      CHECK_THROWS_AS(image.wait_released(soon()), storage_error);
    }
    const auto again = stager.stage(c.layout, c.sources, {true, false}, soon());
    fills->clear();
  }
  CHECK(*live == 0);
}

/// The fill of a case in memory of the test.
struct test_fill {
  std::vector<std::byte> memory;
  std::vector<std::uint64_t> digests;
  std::shared_ptr<image_control> control = std::make_shared<image_control>();
  std::shared_ptr<image_fill> fill;
  test_fill(const stager_case& c, bool overlapped)
      : memory(c.layout->bytes, std::byte{0xcc}), digests(c.layout->blocks) {
    fill = std::make_shared<image_fill>(c.layout, c.sources, stage_options{overlapped, true}, memory, digests,
                                        control);
  }
};

TEST_CASE("a copy that is not done at the deadline fails the image, and reads no source afterwards") {
  case_maker make(21);
  make.segment(4096);
  for (int i = 0; i < 2; ++i) make.tensor(dtype::u8, {1'200'000}).tensor(dtype::u8, {777}, true);
  const auto c = make.make();
  detail::hash_state hash;
  SUBCASE("before anything was copied") {
    test_fill t(c, false);
    detail::copy_job job(t.fill, 0);
    CHECK(job.claimable());
    CHECK_THROWS_AS(job.wait(false, deadline::in(std::chrono::nanoseconds(0))), timeout_error);
    CHECK_FALSE(job.claimable());
    CHECK(t.control->failed());
    CHECK(t.control->copied());
    CHECK(t.control->watermark() == 0);
    CHECK(t.fill->failure() != nullptr);
    job.work(hash, false);
    CHECK(std::count(t.memory.begin(), t.memory.end(), std::byte{0xcc}) ==
          static_cast<std::ptrdiff_t>(t.memory.size()));
  }
  SUBCASE("after the early items") {
    test_fill t(c, true);
    detail::copy_job job(t.fill, 0);
    job.work(hash, true);
    job.wait(true, deadline::in(std::chrono::nanoseconds(0)));
    CHECK_FALSE(t.control->copied());
    for (const auto& place : c.layout->items)
      if (place.early)
        CHECK(first_difference(std::span<const std::byte>(t.memory).subspan(place.begin, place.bytes),
                               std::span<const std::byte>(c.image).subspan(place.begin, place.bytes)) == -1);
    CHECK(t.memory[c.layout->items[0].begin] == std::byte{0xcc});
    CHECK_THROWS_AS(job.wait(false, deadline::in(std::chrono::nanoseconds(0))), timeout_error);
    CHECK(t.control->failed());
    CHECK(t.control->watermark() == 0);
  }
}

TEST_CASE("an image that must wait for another does not promise to tell when its copying begins") {
  case_maker make(23);
  make.segment(4096);
  for (int i = 0; i < 2; ++i) make.tensor(dtype::u8, {1'200'000}).tensor(dtype::u8, {777}, true);
  const auto c = make.make();
  test_fill first(c, true);
  test_fill second(c, true);
  int calls = 0;
  {
    detail::copy_threads threads(1, std::make_shared<rate_limiter>(1));  // which the destructor lifts
    threads.copy(first.fill, soon());
    threads.copy(second.fill, soon());
    CHECK_FALSE(first.control->copied());
    CHECK_FALSE(second.fill->when_begun([&] { ++calls; }));
  }
  CHECK(second.control->copied());
  CHECK(calls == 0);
}

TEST_CASE("the callback of an image is called once, when a thread begins to copy it or its copying ends") {
  case_maker make(22);
  make.segment(4096);
  for (int i = 0; i < 2; ++i) make.tensor(dtype::u8, {1'200'000}).tensor(dtype::u8, {777}, true);
  const auto c = make.make();
  int calls = 0;
  const auto call = [&] { ++calls; };
  detail::hash_state hash;
  SUBCASE("taken up") {
    test_fill t(c, true);
    t.fill->tells_begin();
    detail::copy_job job(t.fill, 0);
    job.work(hash, true);
    REQUIRE(t.fill->when_begun(call));
    CHECK(calls == 0);
    job.begun();
    CHECK(calls == 1);
    job.work(hash, false);
    CHECK(t.control->copied());
  }
  SUBCASE("two who wait") {
    test_fill t(c, true);
    t.fill->tells_begin();
    detail::copy_job job(t.fill, 0);
    job.work(hash, true);
    int others = 0;
    REQUIRE(t.fill->when_begun([&] { ++others; }));
    REQUIRE(t.fill->when_begun(call));
    CHECK((calls == 0 && others == 0));
    job.begun();
    job.begun();
    CHECK(others == 1);
    job.work(hash, false);
  }
  SUBCASE("copied by those who wait for it") {
    test_fill t(c, true);
    t.fill->tells_begin();
    detail::copy_job job(t.fill, 0);
    REQUIRE(t.fill->when_begun(call));
    job.work(hash, true);
    CHECK(calls == 0);
    CHECK(job.copy_part(0, c.layout->bytes, soon()));
  }
  SUBCASE("given up") {
    test_fill t(c, true);
    t.fill->tells_begin();
    detail::copy_job job(t.fill, 0);
    REQUIRE(t.fill->when_begun(call));
    job.give_up(std::make_exception_ptr(std::runtime_error("enough")));
    CHECK(t.control->failed());
  }
  SUBCASE("too late, and where nobody tells: nothing is kept") {
    test_fill t(c, true);
    CHECK_FALSE(t.fill->when_begun(call));
    t.fill->tells_begin();
    detail::copy_job job(t.fill, 0);
    job.begun();
    CHECK_FALSE(t.fill->when_begun(call));
    CHECK(std::exchange(calls, 1) == 0);
  }
  CHECK(calls == 1);
}

// What the cast below looks at; set before threads start.
const image_control* watched_control = nullptr;
const std::byte* watched_image = nullptr;
std::atomic<bool> overtaken{false};
void watching_cast(const std::byte* from, std::byte* to, std::size_t elements) noexcept {
  if (static_cast<std::uint64_t>(to - watched_image) < watched_control->watermark()) overtaken = true;
  std::memcpy(to, from, elements);
}

TEST_CASE("no byte below the watermark is written any more") {
  case_maker make(23);
  make.segment(4096);
  for (int i = 0; i < 5; ++i) make.tensor(dtype::u8, {1'500'000}).tensor(dtype::u8, {70'000});
  auto c = make.make();
  for (auto& source : c.sources) source.cast = watching_cast;
  for (const int threads : {1, 3}) {
    test_fill t(c, false);
    watched_control = t.control.get(), watched_image = t.memory.data();
    detail::copy_job job(t.fill, 0);
    std::vector<std::thread> helpers;
    for (int i = 0; i < threads; ++i)
      helpers.emplace_back([&] {
        detail::hash_state hash;
        job.work(hash, false);
      });
    for (auto& helper : helpers) helper.join();
    job.wait(false, soon());
    CHECK_FALSE(overtaken);
    CHECK(t.control->watermark() == c.layout->bytes);
    CHECK(first_difference(t.memory, c.image) == -1);
  }
}

TEST_CASE("units cut an image without gaps, between items and between blocks") {
  for (std::uint32_t seed = 31; seed < 34; ++seed) {
    const auto c = random_case(seed);
    for (const bool early_first : {false, true}) {
      const auto units = detail::cut_into_ranges(*c.layout, early_first);
      std::uint64_t at = 0;
      for (const auto& u : units) {
        CHECK(u.begin == at);
        CHECK(u.end > u.begin);
        at = u.end;
        for (const auto& place : c.layout->items) {
          const bool inside = u.begin > place.begin && u.begin < place.begin + place.bytes;
          if (inside) CHECK((u.begin - place.begin) % digest_block_bytes == 0);
          const bool meets = place.bytes != 0 && u.begin < place.begin + place.bytes && place.begin < u.end;
          if (meets) CHECK(u.early == (early_first && place.early));
        }
      }
      CHECK(at == c.layout->bytes);
    }
  }
  // Small items are put together: not a unit for each.
  CHECK(detail::cut_into_ranges(*many_small(7).layout, false).size() <= 4);
}

/// A clock that advances only when somebody waits on it.
struct own_time : rate_clock {
  time_point now() noexcept override { return at; }
  void wait(shared_event&, std::uint32_t, time_point until) noexcept override { at = std::max(at, until); }
  [[nodiscard]] double seconds() const { return std::chrono::duration<double>(at - begin).count(); }
  time_point begin = deadline::clock::now();
  time_point at = begin;
};

TEST_CASE("a pace is kept on average, lets a little pass at once, and is lifted at once") {
  const auto clock = std::make_shared<own_time>();
  rate_limiter limit(1'000'000, clock);
  shared_event word;
  const auto never = [] { return false; };
  const auto take = [&](std::uint64_t bytes) { return limit.acquire(bytes, word, deadline::never(), never); };
  for (int i = 0; i < 5; ++i) CHECK(take(500'000));
  CHECK(clock->seconds() == doctest::Approx(2.0));
  clock->at += std::chrono::hours(1);  // what was not used is lost, but for 20 ms
  const auto idle = clock->seconds();
  CHECK(take(20'000));
  CHECK(take(1'000'000));
  CHECK(clock->seconds() == doctest::Approx(idle));
  CHECK(take(1));
  CHECK(clock->seconds() == doctest::Approx(idle + 1.0));
  // What was lifted, or given up, is not counted.
  CHECK(limit.acquire(50'000'000, word, deadline::never(), [] { return true; }));
  int asked = 0;
  CHECK(limit.acquire(50'000'000, word, deadline::never(), [&] { return ++asked == 2; }));
  CHECK(take(1));
  CHECK(clock->seconds() == doctest::Approx(idle + 1.0));
  rate_limiter stopped(1, std::make_shared<rate_clock>());
  CHECK(stopped.acquire(1'000, word, deadline::never(), never));
  CHECK_FALSE(stopped.acquire(1'000, word, deadline::in(std::chrono::milliseconds(1)), never));
  CHECK(make_rate_limiter(0) == nullptr);
  CHECK(rate_limiter(1).slice() == 1 << 20);
  CHECK(rate_limiter(std::uint64_t{1} << 40).slice() == 8 << 20);
}

TEST_CASE("the copy is compared with the source: casts, strides, blocks, with digests and without") {
  auto c = random_case(41);
  auto planned = std::make_shared<cached_plan>();
  auto plan = std::make_shared<save_plan>();
  planned->plan = plan;
  for (std::size_t i = 0; i < c.sources.size(); ++i) {
    auto& item = plan->items.emplace_back();
    item.name = "item" + std::to_string(i);
    item.kind = item_kind::value;
  }
  const detail::copy_check check(planned, c.layout, c.sources, 3, nullptr, soon());
  heap_stager heap({}, host_copy({.threads = 1}));
  least_buffered least({.depth = 1}, least_engine(1), least_memory(std::make_shared<std::atomic<int>>(0)));
  const auto compared = [&](bool digest) {
    const auto one = check.compare(heap.stage(c.layout, c.sources, {false, digest}, soon()));
    const auto other = check.compare(least.stage(c.layout, c.sources, {}, soon()));
    CHECK((one == nullptr) == (other == nullptr));
    return one;
  };
  CHECK(compared(true) == nullptr);
  CHECK(compared(false) == nullptr);
  // The last byte of a plain item, all of one with a cast or strides: casts drop bits.
  for (const auto& place : c.layout->items) {
    auto& memory = c.memories[place.item].bytes;
    if (place.bytes == 0 || place.item % 3 == 2) continue;
    const auto& source = c.sources[place.item];
    const bool plain = source.cast == nullptr && source.view.contiguous();
    const auto last = plain ? (place.bytes - 1) / digest_block_bytes * digest_block_bytes : 0;
    const auto kept = memory;
    if (plain)
      memory.back() ^= std::byte{0x40};
    else
      for (auto& b : memory) b = ~b;
    const auto why = compared(place.item % 2 == 0);
    memory = kept;
    REQUIRE(why != nullptr);
    try {
      std::rethrow_exception(why);
    } catch (const usage_error& e) {
      CHECK(e.id() == error_id::usage_memory_changed);
      CHECK(e.fields().item == "item" + std::to_string(place.item));
      CHECK(e.fields().rank == 3);
      CHECK(e.fields().offset == static_cast<std::int64_t>(last));
    }
  }
}

// What the cast below saw of the thread that it ran in.
std::atomic<int> seen_nice{-100};
std::atomic<int> seen_policy{-1};
std::atomic<int> seen_cores{0};
void noting_cast(const std::byte* from, std::byte* to, std::size_t elements) noexcept {
  seen_nice = ::getpriority(PRIO_PROCESS, 0);
  seen_policy = ::sched_getscheduler(0);
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof set, &set);
  seen_cores = CPU_COUNT(&set);
  std::memcpy(to, from, elements);
}

TEST_CASE("copy threads run with the settings that they were given; what cannot be had is a usage error") {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  REQUIRE(::sched_getaffinity(0, sizeof mine, &mine) == 0);
  int core = 0, missing = CPU_SETSIZE - 1;
  while (!CPU_ISSET(static_cast<std::size_t>(core), &mine)) ++core;
  auto c = one_tensor(300'000);
  c.sources[0].cast = noting_cast;
  {
    heap_stager stager({}, host_copy({.threads = 1, .thread = {.nice = 3, .cores = {core}}}));
    const auto image = stager.stage(c.layout, c.sources, {.overlapped = true}, soon());
    CHECK(image.control()->wait_copied(soon()));
    CHECK(seen_nice == std::min(19, ::getpriority(PRIO_PROCESS, 0) + 3));
    CHECK(seen_policy == cairn_test::policy_beside_training());
    CHECK(seen_cores == 1);
  }
  const auto refused = [](const thread_settings& settings) {
    try {
      const host_copy engine({.thread = settings});
      return false;
    } catch (const usage_error& e) {
      return e.id() == error_id::usage_bad_option;
    }
  };
  CHECK(refused({.nice = 20}));
  CHECK(refused({.nice = -21}));
  CHECK(refused({.io_level = 8}));
  CHECK(refused({.cores = {-1}}));
  CHECK(refused({.cores = {CPU_SETSIZE}}));
  if (!CPU_ISSET(static_cast<std::size_t>(missing), &mine)) CHECK(refused({.cores = {missing}}));
  CHECK_FALSE(refused({.io = io_class::idle}));
}

/// Memory that knows how many bytes its blocks, and those of its copies, hold, and held at most.
struct metered_memory {
  struct meter {
    std::atomic<std::uint64_t> now{0};
    std::atomic<std::uint64_t> most{0};
  };
  struct block_type {
    block_type(std::uint64_t bytes, std::shared_ptr<meter> m) : block(bytes, live()), held(std::move(m)) {
      const auto sum = held->now += block.bytes().size();
      for (auto seen = held->most.load(); seen < sum && !held->most.compare_exchange_weak(seen, sum);) {
      }
    }
    block_type(block_type&&) noexcept = default;
    block_type& operator=(block_type&& other) noexcept {
      std::swap(block, other.block), std::swap(held, other.held);
      return *this;
    }
    ~block_type() {
      if (held != nullptr) held->now -= block.bytes().size();
    }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return block.bytes(); }
    static std::shared_ptr<std::atomic<int>> live() { return std::make_shared<std::atomic<int>>(0); }
    least_memory::block_type block;
    std::shared_ptr<meter> held;
  };
  static constexpr memory_space space = memory_space::host;
  static constexpr bool shareable = false;
  std::shared_ptr<meter> held = std::make_shared<meter>();
  block_type allocate(std::uint64_t bytes) { return {bytes, held}; }
  std::shared_ptr<image_control> make_control(block_type&) { return std::make_shared<image_control>(); }
};
using metered_stager = buffered_stager<metered_memory, least_engine>;

TEST_CASE("stagers that share a budget for one image: each gets all of it in turn, and waits for the other") {
  metered_memory memory;
  const memory_budget budget{1u << 17};
  metered_stager a({.depth = 2, .budget = budget}, least_engine(1), memory);
  metered_stager b({.depth = 2, .budget = budget}, least_engine(1), memory);
  const auto c = one_tensor(115'000);
  const auto d = one_tensor(120'000, 2);
  for (int round = 0; round < 3; ++round) {
    // Nothing is in use: what the one keeps is freed for the other.
    CHECK(first_difference(read_image(a.stage(c.layout, c.sources, {}, soon())), c.image) == -1);
    CHECK(first_difference(read_image(b.stage(d.layout, d.sources, {}, soon())), d.image) == -1);
  }
  // In use: the other waits, at most until its deadline, and is woken.
  std::optional<staged_image> first = a.stage(c.layout, c.sources, {}, soon());
  try {
    (void)b.stage(d.layout, d.sources, {}, deadline::in(std::chrono::milliseconds(1)));
    FAIL("two images found room for one");
  } catch (const timeout_error& e) {
    CHECK(e.id() == error_id::timeout_staging);
    CHECK(e.message().find("memory budget") != std::string::npos);
    CHECK(e.message().find("of 131072 bytes") != std::string::npos);
  }
  // The same pool has a second buffer, and the budget has no room for it.
  CHECK_THROWS_AS((void)a.stage(c.layout, c.sources, {}, deadline::in(std::chrono::milliseconds(1))),
                  timeout_error);
  staged_image second;
  std::thread waiting([&] { second = b.stage(d.layout, d.sources, {}, soon()); });
  CHECK(first_difference(read_image(*first), c.image) == -1);
  first.reset();
  waiting.join();
  CHECK(first_difference(read_image(second), d.image) == -1);
  // A buffer that is in use outlives its stager, with its share.
  { const metered_stager gone = std::move(b); }
  CHECK(budget.used() > 0);
  second = {};
  CHECK(budget.used() == 0);
  CHECK(memory.held->most <= budget.limit());
}

TEST_CASE(
    "an image that is larger than the budget is an error at once, with both numbers; the next one works") {
  const memory_budget budget{1u << 16};
  heap_stager stager({.budget = budget});
  const auto large = one_tensor(100'000);
  const auto small = one_tensor(1'000);
  const auto check = [&](auto call) {
    try {
      call();
      FAIL("100 kB found room in 64");
    } catch (const storage_error& e) {
      CHECK(e.id() == error_id::storage_limit);
      CHECK(e.fields().expected ==
            std::to_string(memory_budget::rounded(large.layout->bytes + 8)) + " bytes");
      CHECK(e.fields().got == "65536 bytes");
    }
  };
  check([&] { (void)stager.stage(large.layout, large.sources, {}, soon()); });
  check([&] { stager.prepare(*large.layout, soon()); });
  CHECK(first_difference(read_image(stager.stage(small.layout, small.sources, {}, soon())), small.image) ==
        -1);
  CHECK_THROWS_AS(memory_budget{0}, usage_error);
  CHECK_FALSE(memory_budget{}.limited());
}

TEST_CASE("prepare takes what the budget has left, and neither waits nor frees what others keep") {
  metered_memory memory;
  const memory_budget budget{1u << 18};
  metered_stager a({.depth = 3, .budget = budget}, least_engine(1), memory);
  metered_stager b({.depth = 3, .budget = budget}, least_engine(1), memory);
  const auto c = one_tensor(115'000);
  a.prepare(*c.layout, soon());
  const auto prepared = memory.held->now.load();
  CHECK(prepared >= 230'000);
  b.prepare(*c.layout, soon());
  CHECK(memory.held->now == prepared);
  CHECK(first_difference(read_image(b.stage(c.layout, c.sources, {}, soon())), c.image) == -1);
  CHECK(memory.held->most <= budget.limit());
}

TEST_CASE("many stagers at once stay within the budget, and each gets its turn") {
  metered_memory memory;
  const memory_budget budget{1u << 17};
  std::atomic<int> whole{0};
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        metered_stager stager({.depth = 1 + static_cast<int>(t % 2), .budget = budget}, least_engine(1),
                              memory);
        // From a third of the budget to all of it; sizes change, so that buffers are replaced.
        const auto small = one_tensor(40'000 + 20'000 * t, t + 1);
        const auto large = one_tensor(70'000 + 15'000 * t, t + 5);
        for (int i = 0; i < 10; ++i) {
          const auto& c = i % 3 == 0 ? large : small;
          const auto image = stager.stage(c.layout, c.sources, {}, soon());
          whole += first_difference(read_image(image), c.image) == -1 ? 1 : 0;
        }
      });
  }
  CHECK(whole == 40);
  CHECK(memory.held->most <= budget.limit());
  CHECK(memory.held->most > 60'000);
  CHECK(memory.held->now == 0);
  CHECK(budget.used() == 0);
}

TEST_CASE("options out of range are refused") {
  CHECK_THROWS_AS(heap_stager({.depth = 0}), usage_error);
  CHECK_THROWS_AS(host_copy({.threads = -1}), usage_error);
  CHECK_THROWS_AS(host_copy({.threads = 5000}), usage_error);
}

TEST_CASE("heap_memory gives blocks that are there, aligned and zero") {
  for (const bool huge_pages : {false, true})
    for (const std::uint64_t bytes :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{5'000'001}, std::uint64_t{70} << 20}) {
      heap_memory memory({.threads = 2, .huge_pages = huge_pages});
      auto block = memory.allocate(bytes);
      REQUIRE(block.bytes().size() >= bytes);
      CHECK(reinterpret_cast<std::uintptr_t>(block.bytes().data()) % image_alignment == 0);
      const auto* const data = block.bytes().data();
      const auto moved = std::move(block);
      CHECK(moved.bytes().data() == data);
      bool zero = true;
      for (std::size_t i = 0; i < moved.bytes().size(); i += 512) zero &= moved.bytes()[i] == std::byte{0};
      CHECK(zero);
    }
}

TEST_CASE("memory that the machine does not have is refused with needed and free") {
  heap_memory memory;
  try {
    (void)memory.allocate(std::uint64_t{1} << 50);
    FAIL("a petabyte was allocated");
  } catch (const storage_error& e) {
    CHECK((e.id() == error_id::storage_out_of_memory || e.id() == error_id::storage_limit));
    CHECK(e.fields().expected == std::to_string(std::uint64_t{1} << 50) + " bytes");
    CHECK_FALSE(e.fields().got.empty());
    CHECK(e.message().find("the limit is") != std::string::npos);
  }
  CHECK_THROWS_AS((void)memory.allocate(~std::uint64_t{0}), storage_error);
}

TEST_CASE("the limit of a process is named") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_DATA, &before) == 0);
  rlimit low = before;
  const auto used =
      detail::number_after(detail::kernel_file("/proc/self/status").value(), "VmData:").value() * 1024;
  low.rlim_cur = used + (std::uint64_t{256} << 20);
  REQUIRE(::setrlimit(RLIMIT_DATA, &low) == 0);
  std::string said;
  auto id = error_id::storage_io;
  try {
    (void)heap_memory().allocate(std::uint64_t{1} << 30);
  } catch (const storage_error& e) {
    said = e.message(), id = e.id();
  }
  ::setrlimit(RLIMIT_DATA, &before);
  CHECK(id == error_id::storage_limit);
  CHECK(said.find("RLIMIT_DATA") != std::string::npos);
}

/// A directory of small files, removed at the end.
class scratch_directory {
 public:
  scratch_directory() {
    char name[] = "/tmp/cairn-stage-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~scratch_directory() {
    for (auto it = made_.rbegin(); it != made_.rend(); ++it) std::remove(it->c_str());
    ::rmdir(path_.c_str());
  }
  void folder(const std::string& name) {
    ::mkdir((path_ + name).c_str(), 0700);
    made_.push_back(path_ + name);
  }
  void file(const std::string& name, const std::string& text) {
    std::FILE* f = std::fopen((path_ + name).c_str(), "w");
    REQUIRE(f != nullptr);
    std::fwrite(text.data(), 1, text.size(), f);
    std::fclose(f);
    made_.push_back(path_ + name);
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::vector<std::string> made_;
};

TEST_CASE("the tightest control group counts, without the cache that can be dropped") {
  scratch_directory root;
  detail::memory_room room;
  SUBCASE("version 2, a parent is tighter") {
    root.folder("/job"), root.folder("/job/step");
    root.file("/job/step/memory.max", "max\n");
    root.file("/job/step/memory.current", "500\n");
    root.file("/job/memory.max", "10000\n");
    root.file("/job/memory.current", "9000\n");
    root.file("/job/memory.stat",
              "anon 2000\nfile 5500\nshmem 1000\ninactive_anon 2500\nactive_anon 500\ninactive_file 3000\n"
              "active_file 1500\nslab_reclaimable 700\nslab_unreclaimable 800\nslab 1500\n");
    detail::take_cgroup_room(room, root.path(), "0::/job/step\n");
    CHECK(room.bytes == 6200);
    CHECK(room.limit == root.path() + "/job/memory.max");
    CHECK(room.id == error_id::storage_limit);
  }
  SUBCASE("version 2, in a container, where the path is not there") {
    root.file("/memory.max", "1000\n");
    root.file("/memory.current", "2000\n");
    detail::take_cgroup_room(room, root.path(), "0::/../elsewhere\n");
    CHECK(room.bytes == 0);
  }
  SUBCASE("version 1") {
    root.folder("/memory"), root.folder("/memory/a");
    root.file("/memory/a/memory.limit_in_bytes", "700\n");
    root.file("/memory/a/memory.usage_in_bytes", "300\n");
    root.file(
        "/memory/a/memory.stat",
        "inactive_file 1\nactive_file 2\ntotal_shmem 40\ntotal_inactive_file 50\ntotal_active_file 120\n");
    detail::take_cgroup_room(room, root.path(), "5:cpu:/a\n4:memory:/a\n0::/\n");
    CHECK(room.bytes == 570);
  }
  SUBCASE("more cache than is used: the two files are not read in one moment") {
    root.file("/memory.max", "1000\n");
    root.file("/memory.current", "900\n");
    root.file("/memory.stat", "inactive_file 600\nactive_file 500\n");
    detail::take_cgroup_room(room, root.path(), "0::/\n");
    CHECK(room.bytes == 1000);
  }
  SUBCASE("none, or nonsense") {
    root.file("/memory.max", "much\n");
    root.file("/memory.current", "\n");
    detail::take_cgroup_room(room, root.path(), "0::/\nnonsense\n\n::");
    CHECK(room.limit.empty());
  }
}

TEST_CASE("after fork, the child's copy of a stager refuses to stage and can be destroyed") {
  const auto c = one_tensor(3'000'000);
  std::optional<heap_stager> stager(std::in_place, buffered_stager_options{}, host_copy({.threads = 2}));
  stager->stage(c.layout, c.sources, {true, true}, soon()).wait_released(soon());
  cairn_test::await_still_threads();
  const auto child = ::fork();
  if (child == 0) {
    bool refused = false;
    try {
      (void)stager->stage(c.layout, c.sources, {true, true}, soon());
    } catch (const usage_error& e) {
      refused = e.id() == error_id::usage_wrong_process;
    } catch (...) {
    }
    stager.reset();
    ::_exit(refused ? 0 : 1);
  }
  REQUIRE(child > 0);
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

}  // namespace
