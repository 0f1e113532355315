// SPDX-License-Identifier: Apache-2.0
// Loads into memory of devices, against a double of the runtime whose copies come late and whose calls fail.
// threaded
// cost: 30
#include <cairn/checkpointer.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/cuda/basic_device_loads.hpp>
#include <cairn/plan/default_planner.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/memory_store.hpp>

#include <doctest/doctest.h>
#include <support/device_double.hpp>
#include <support/loads_of_devices.hpp>
#include <support/on_all_ranks.hpp>
#include <support/rounds.hpp>
#include <support/saved_world.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace cairn_test;
using namespace cairn_test::loads_of_devices;

TEST_CASE("one rank loads onto its devices what four ranks saved, bit by bit, however late the copies are") {
  for (std::uint32_t seed = 1; seed <= rounds(6); ++seed) {
    CAPTURE(seed);
    gpu::reset(seed);
    loads_options options;
    options.pinned_bytes = std::uint64_t{1 + seed % 3 * 5} << 20;
    {
      on_devices d(seed);
      // Work that training launched before ends first.
      gpu::hold_kernels(true);
      d.each([](placed& p, int) { p.launch_fill(std::byte{0x5a}); });
      std::jthread device([seed] {
        while (seed % 2 == 0 && gpu::copies_waiting() == 0) std::this_thread::yield();
        gpu::hold_kernels(false);
      });
      auto reader = make_reader(saved(), options);
      const auto report = reader.load(d.state, 7);
      CHECK(report.bytes_read > report.bytes);
      d.check_loaded(std::byte{0x5a});
    }
    CHECK(gpu::max_pinned_bytes() > 0);
    CHECK(gpu::max_pinned_bytes() <= std::max<std::uint64_t>(options.pinned_bytes, std::uint64_t{4} << 20));
    check_nothing_left();
  }
}

TEST_CASE("the k-th call fails, once or for ever: a typed error, nothing is under way afterwards") {
  std::size_t failures = 0;
  for (const int status : {gpu::invalid_value, gpu::illegal_address})
    for (std::uint64_t k = 1;; k += 1 + k / rounds(2, 100)) {
      CAPTURE(status);
      CAPTURE(k);
      gpu::reset(static_cast<std::uint32_t>(k));
      bool through = false;
      std::exception_ptr told;  // dropped by this thread, see below
      {
        on_devices d(static_cast<std::uint32_t>(k));
        auto reader = make_reader(saved());
        gpu::fail(k, status);
        try {
          (void)reader.load(d.state, 7);
          through = gpu::calls() < k;
          d.check_loaded();
        } catch (const cairn::storage_error& e) {
          told = std::current_exception();
          ++failures;
          CHECK((e.id() == error_id::storage_device || e.id() == error_id::storage_limit));
          CHECK(std::string(e.what()).find("cudaError") != std::string::npos);
          CHECK(gpu::copies_waiting() == 0);
        }
        gpu::fail(0, 0);
        if (status == gpu::invalid_value) {
          (void)reader.load(d.state, 7);
          d.check_loaded();
        }
      }
      check_nothing_left();
      if (through) break;
      REQUIRE(k < 100'000);
    }
  CHECK(failures > 10);
}

TEST_CASE("a device that does not copy: the load ends by the deadline, and the ring outlives the copies") {
  constexpr auto timeout = std::chrono::milliseconds(100);
  bool late = false;
  // Where a thread is stopped for long, a load may be early or late for other reasons: then try again.
  for (std::uint32_t attempt = 0; attempt < 50 && !late; ++attempt) {
    gpu::reset(5 + attempt);
    std::exception_ptr told;
    {
      on_devices d(1);
      std::atomic<bool> over{false};
      gpu::hold_copies(true);
      std::jthread device_again([&] {
        while (!over && gpu::copies_waiting() == 0) std::this_thread::yield();
        // Its deadline began before. After the deadline the load waits for copies that it has enqueued.
        const auto until = cairn::deadline::in(2 * timeout);
        while (!over && !until.passed()) std::this_thread::yield();
        late = gpu::copies_waiting() != 0;
        gpu::hold_copies(false);
      });
      auto reader = make_reader(saved(), {}, std::uint64_t{256} << 20, timeout);
      bool loaded = false;
      try {
        (void)reader.load(d.state, 7);
        loaded = true;
      } catch (const cairn::timeout_error& e) {
        told = std::current_exception();
        CHECK(e.id() == error_id::timeout_load);
      } catch (...) {
        over = true;
        throw;
      }
      over = true;
      device_again.join();
      CHECK(gpu::copies_waiting() == 0);
      if (loaded) d.check_loaded();
      late = late && !loaded;
    }
    check_nothing_left();
  }
  CHECK(late);
}

TEST_CASE(
    "a load beside the capture of a graph: other captures are not disturbed, that of its own stream is "
    "refused") {
  gpu::reset(8);
  gpu::stream_type other{};
  std::vector<gpu::stream_type> streams(2);
  REQUIRE(gpu::make_stream(other) == gpu::success);
  loads_options options;
  for (int d = 0; d < 2; ++d) {
    const cairn::cuda::device_in_use<gpu> use(d);
    REQUIRE(gpu::make_stream(streams[static_cast<std::size_t>(d)]) == gpu::success);
    options.compute.push_back({d, streams[static_cast<std::size_t>(d)]});
  }
  {
    on_devices d(1);
    auto reader = make_reader(saved(), options);
    gpu::begin_capture(other);
    (void)reader.load(d.state, 7);
    CHECK(gpu::end_capture(other));
    d.check_loaded();
    gpu::begin_capture(streams[1]);
    cairn::error_id id{};
    try {
      (void)reader.load(d.state, 7);
    } catch (const cairn::usage_error& e) {
      id = e.id();
    }
    CHECK(id == error_id::usage_stream_capturing);
    CHECK(gpu::end_capture(streams[1]));
    (void)reader.load(d.state, 7);
    d.check_loaded();
  }
  gpu::synchronize();
  for (auto s : streams) (void)gpu::destroy_stream(s);
  (void)gpu::destroy_stream(other);
  check_nothing_left();
}

TEST_CASE(
    "the next load of a checkpointer uses the pinned buffers of the one before, also after one that failed") {
  gpu::reset(9);
  std::exception_ptr told;
  {
    on_devices d(1);
    auto reader = make_reader(saved());
    (void)reader.load(d.state, 7);
    CHECK(gpu::pinned_ranges() > 0);
    d.each([](placed& p, int) { p.fill(std::byte{0xee}); });
    gpu::fail(gpu::calls() / 2, gpu::invalid_value);
    try {
      (void)reader.load(d.state, 7);
    } catch (const cairn::storage_error&) {
      told = std::current_exception();
    }
    gpu::fail(0, 0);
    (void)reader.load(d.state, 7);
    d.check_loaded();
    CHECK(gpu::max_pinned_bytes() <= loads_options{}.pinned_bytes);
    // More readers may be at work at once than before; nothing that is pinned is pinned again.
    const auto made = gpu::pins_made();
    const auto kept = gpu::pinned_ranges();
    for (int i = 0; i < 3; ++i) (void)reader.load(d.state, 7);
    CHECK(gpu::pins_made() - made == gpu::pinned_ranges() - kept);
  }
  check_nothing_left();
}

TEST_CASE(
    "a look at a device copies ahead of what is asked for, of any strides, also where another tensor is "
    "next") {
  gpu::reset(10);
  constexpr std::int64_t wide = 3000;
  placed flat(0, {5 << 19}, 1, 1);         // 10 MiB: two windows
  placed turned(1, {wide, 800}, 1, wide);  // 9 MiB, by columns
  placed small(0, {1000}, 1, 1);
  const auto packed = [](placed& p, int tensor) {
    std::vector<std::byte> bytes(p.view.bytes());
    for (std::int64_t k = 0; k < p.view.shape.volume(); ++k) {
      const float value = value_of(tensor, k);
      const auto at = p.view.shape.rank() == 2
                          ? k / p.view.shape[1] * p.view.strides[0] + k % p.view.shape[1] * p.view.strides[1]
                          : k;
      std::memcpy(p.memory.bytes().data() + static_cast<std::size_t>(at) * sizeof value, &value,
                  sizeof value);
      std::memcpy(bytes.data() + static_cast<std::size_t>(k) * sizeof value, &value, sizeof value);
    }
    return bytes;
  };
  const auto wanted = std::vector{packed(flat, 1), packed(turned, 2), packed(small, 3)};
  placed* const all[] = {&flat, &turned, &small};
  const auto until = [] { return cairn::deadline::in(std::chrono::minutes(2)); };
  device_loads devices;
  for (int look = 0; look < 2; ++look) {
    const auto reads = devices.begin_read();
    for (const auto i : {std::size_t{0}, std::size_t{2}, std::size_t{1}, std::size_t{0}}) {
      CAPTURE(i);
      std::vector<std::byte> got(wanted[i].size());
      constexpr std::uint64_t block = 1 << 20;
      for (std::uint64_t at = 0; at < got.size(); at += block)
        reads->read(all[i]->view, at, std::min<std::uint64_t>(at + block, got.size()), got.data() + at,
                    "item", until());
      CHECK(got == wanted[i]);
    }
    if (look == 0) CHECK(gpu::pins_made() == 2);
  }
  CHECK(gpu::pins_made() == 2);  // kept for the next
  gpu::synchronize();
  {
    gpu::hold_copies_after(1);
    const auto reads = devices.begin_read();
    std::vector<std::byte> got(1 << 20);
    reads->read(flat.view, 0, got.size(), got.data(), "item", until());
    CHECK(std::memcmp(got.data(), wanted[0].data(), got.size()) == 0);
    CHECK(gpu::copies_waiting() == 1);  // the next window
    gpu::hold_copies(false);
  }
  CHECK(gpu::copies_waiting() == 0);
}

TEST_CASE("a damaged block does not reach the device") {
  gpu::reset(6);
  auto store = four_ranks_saved();
  std::string damaged;
  for (const auto& object : store.list("")) {
    if (!object.key.ends_with(".safetensors")) continue;
    auto bytes = store.read_all(object.key, 1 << 30).value();
    // One element of a row that some rank has: its bytes are nowhere else in the file.
    for (std::size_t at = 0; damaged.empty() && at + sizeof(float) <= bytes.size(); at += sizeof(float)) {
      const auto wanted = value_of(1, 5 * columns + 3);
      if (std::memcmp(bytes.data() + at, &wanted, sizeof wanted) != 0) continue;
      bytes[at] ^= std::byte{1};
      damaged = object.key;
      store.remove(object.key);
      auto writer = store.create(object.key, bytes.size());
      const cairn::write_range part{0, bytes};
      writer.write({&part, 1});
      writer.finish();
    }
  }
  REQUIRE_FALSE(damaged.empty());
  {
    on_devices d(1);
    auto reader = make_reader(store);
    const auto why = failure_of([&] { (void)reader.load(d.state, 7); });
    CHECK(why.id == error_id::corrupt_digest);
    CHECK(why.fields.file == damaged);
    CHECK_FALSE(why.fields.item.empty());
    float there = 0;
    std::memcpy(&there, d.by_rows.memory.bytes().data() + (5 * columns + 3) * sizeof(float), sizeof there);
    float untouched = 0;
    std::memset(&untouched, 0xee, sizeof untouched);
    if (why.fields.item == "rows") CHECK(std::memcmp(&there, &untouched, sizeof there) == 0);
  }
  check_nothing_left();
}

TEST_CASE("a load to devices names the item that it refuses") {
  gpu::reset(7);
  placed there(0, {large}, 1, 1);
  {
    cairn::checkpointer reader{saved(), cairn::checkpointer_options{.quiet = true}};
    cairn::state_dict state;
    state.tensor("replicated", there.view);
    const auto why = failure_of([&] { (void)reader.load(state, 7, cairn::only{"replicated"}); });
    CHECK(why.id == error_id::usage_bad_option);
    CHECK(why.fields.item == "replicated");
  }
  auto reader = make_reader(saved());
  const auto refused = [&](const cairn::tensor_view& view) {
    cairn::state_dict state;
    state.tensor("replicated", view);
    const auto why = failure_of([&] { (void)reader.load(state, 7, cairn::only{"replicated"}); });
    CHECK(why.fields.item == "replicated");
    return why.id == error_id::usage_unsupported_tensor;
  };
  auto elsewhere = there.view;
  elsewhere.device = 1;
  CHECK(refused(elsewhere));
  elsewhere.device = -1;
  CHECK(refused(elsewhere));
  auto freed = std::make_unique<placed>(1, cairn::extents{large}, 1, 1);
  const auto dangling = freed->view;
  freed.reset();
  CHECK(refused(dangling));
  loads_options options;
  options.pinned_bytes = 0;
  CHECK_THROWS_AS(device_loads{options}, cairn::usage_error);
  options = {};
  options.compute = {{1, nullptr}, {1, nullptr}};
  CHECK_THROWS_AS(device_loads{options}, cairn::usage_error);
}

TEST_CASE("ranks that share reads load to their devices, with casts, as each would alone") {
  for (std::uint32_t seed = 1; seed <= rounds(2); ++seed) {
    CAPTURE(seed);
    gpu::reset(seed);
    constexpr int world = 3;
    {
      const cairn::thread_group group{world};
      std::vector<std::unique_ptr<on_devices>> all;
      std::vector<std::unique_ptr<gpu::memory>> wide;
      for (int r = 0; r < world; ++r) {
        all.push_back(std::make_unique<on_devices>(seed + static_cast<std::uint32_t>(r)));
        wide.push_back(std::make_unique<gpu::memory>(r % 2, large * sizeof(double)));
        auto view = cairn::contiguous_view(wide.back()->bytes().data(), cairn::dtype::f64, {large});
        view.space = memory_space::device, view.device = r % 2;
        cairn::state_dict state;
        state.tensor("replicated", view);
        std::swap(all.back()->state, state);
      }
      std::vector<cairn::thread_communicator> communicators;
      for (int r = 0; r < world; ++r) communicators.push_back(group.communicator(r));
      std::atomic<std::uint64_t> bytes_read{0};
      const auto thrown = cairn_test::thrown_on_ranks(world, [&](int r) {
        const auto i = static_cast<std::size_t>(r);
        cairn::checkpointer reader{saved(), device_loads(), std::move(communicators[i]), narrow_planner(),
                                   cairn::checkpointer_options{.load_memory = 8 << 20, .quiet = true}};
        bytes_read += reader.load(all[i]->state, 7, cairn::partial).bytes_read;
      });
      for (const auto& each : thrown) CHECK_NOTHROW(each ? std::rethrow_exception(each) : void());
      for (auto& memory : wide) {
        std::vector<double> got(large);
        std::memcpy(got.data(), memory->bytes().data(), memory->bytes().size());
        bool same = true;
        for (std::int64_t k = 0; k < large; ++k)
          same = same && got[static_cast<std::size_t>(k)] == static_cast<double>(value_of(4, k));
        CHECK(same);
      }
      // Once for all loads, not once for each.
      CHECK(bytes_read < 2 * large * sizeof(float));
    }
    check_nothing_left();
  }
}
