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

namespace {

using namespace cairn_test;
using cairn::error_id;
using cairn::memory_space;
using gpu = device_double;
using device_loads = cairn::cuda::basic_device_loads<gpu>;
using loads_options = cairn::cuda::basic_device_loads_options<gpu>;
using storage = cairn::safetensors_storage<cairn::memory_store>;

/// The value of element k of a tensor, in every job.
float value_of(int tensor, std::int64_t k) {
  return static_cast<float>((k * 2654435761 + tensor * 40503) % 8388593);
}

constexpr std::int64_t rows = 120;
constexpr std::int64_t columns = 400;
constexpr std::int64_t large = 700'000;  // elements of the replicated tensor: three blocks
constexpr int ranks = 4;
constexpr int small_tensors = 40;
constexpr std::int64_t small_size = 37;

/// For states that hold f64 of what is stored as f32.
struct narrow_planner : cairn::basic_planner<narrow_planner> {
  [[nodiscard]] cairn::dtype stored_dtype(const cairn::state_entry& e) const {
    return e.type == cairn::dtype::f64 && e.kind == cairn::item_kind::tensor ? cairn::dtype::f32 : e.type;
  }
};

/// The part of a job that one of four ranks holds, in memory of the host.
struct saved_rank {
  explicit saved_rank(int r) {
    constexpr auto part = rows * columns / ranks;
    for (std::int64_t k = 0; k < part; ++k) by_rows.push_back(value_of(1, r * part + k));
    constexpr auto width = columns / ranks;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t k = 0; k < width; ++k) by_columns.push_back(value_of(2, i * columns + r * width + k));
    const std::int64_t begin = r * part - (r != 0 ? 77 : 0);
    const std::int64_t end = r + 1 == ranks ? rows * columns : (r + 1) * part - 77;
    for (auto k = begin; k < end; ++k) flat.push_back(value_of(3, k));
    for (std::int64_t k = 0; k < large; ++k) replicated.push_back(value_of(4, k));
    for (int t = 0; t < small_tensors; ++t)
      for (std::int64_t k = 0; k < small_size; ++k) small.push_back(value_of(100 + t, k));
    state.tensor("rows", by_rows, cairn::shard{{rows, columns}, {r * rows / ranks, 0}});
    state.tensor("columns", by_columns.data(), cairn::shard{{rows, columns}, {0, r * width}, {rows, width}});
    state.tensor("flat", flat, cairn::flat_shard{{rows, columns}, begin});
    state.tensor("replicated", replicated, {large});
    for (int t = 0; t < small_tensors; ++t)
      state.tensor("small." + std::to_string(t), small.data() + t * small_size, {small_size});
    state.value("rate", rate);
  }
  std::vector<float> by_rows, by_columns, flat, replicated, small;
  double rate = 0.25;
  cairn::state_dict state;
};

/// A checkpoint that four ranks wrote.
cairn::memory_store four_ranks_saved() {
  cairn::memory_store store;
  storage over(store);
  auto writer = over.writer();
  std::vector<std::unique_ptr<saved_rank>> all;
  std::vector<const cairn::state_dict*> states;
  for (int r = 0; r < ranks; ++r) {
    all.push_back(std::make_unique<saved_rank>(r));
    states.push_back(&all.back()->state);
  }
  world_save(writer, states, 7).run();
  return store;
}
const cairn::memory_store& saved() {
  static const cairn::memory_store store = four_ranks_saved();
  return store;
}

/// A tensor in the memory of a device, with the strides it has there.
struct placed {
  placed(int device, const cairn::extents& shape, std::int64_t row_stride, std::int64_t element_stride)
      : memory(device, bytes_for(shape, row_stride, element_stride)),
        view(cairn::contiguous_view(memory.bytes().data(), cairn::dtype::f32, shape)) {
    if (shape.rank() == 2) view.strides = {row_stride, element_stride};
    view.space = memory_space::device;
    view.device = device;
    fill(std::byte{0xee});
  }
  static std::uint64_t bytes_for(const cairn::extents& shape, std::int64_t row_stride,
                                 std::int64_t element_stride) {
    const auto last = shape.rank() == 2 ? (shape[0] - 1) * row_stride + (shape[1] - 1) * element_stride
                                        : shape.volume() - 1;
    return static_cast<std::uint64_t>(last + 1) * sizeof(float);
  }
  void fill(std::byte with) {
    const auto bytes = memory.bytes();
    std::fill(bytes.begin(), bytes.end(), with);
  }
  /// Kernels of training that were launched before a load and run late write to the memory, too.
  void launch_fill(std::byte with) {
    const cairn::cuda::device_in_use<gpu> use(view.device);
    const auto bytes = memory.bytes();
    gpu::launch(nullptr, [bytes, with] { std::fill(bytes.begin(), bytes.end(), with); });
  }
  /// The first element that is not that of the tensor, or -1; what lies between rows must be as it was.
  std::int64_t first_wrong(int tensor, std::byte between) {
    std::vector<std::byte> wanted(memory.bytes().size(), between);
    for (std::int64_t k = 0; k < view.shape.volume(); ++k) {
      const auto value = value_of(tensor, k);
      const auto at = view.shape.rank() == 2
                          ? k / view.shape[1] * view.strides[0] + k % view.shape[1] * view.strides[1]
                          : k;
      std::memcpy(wanted.data() + static_cast<std::size_t>(at) * sizeof value, &value, sizeof value);
    }
    const auto bytes = memory.bytes();
    if (std::memcmp(bytes.data(), wanted.data(), wanted.size()) == 0) return -1;  // quick under a sanitizer
    const auto [a, b] = std::mismatch(bytes.begin(), bytes.end(), wanted.begin());
    return a == bytes.end() ? -1 : a - bytes.begin();
  }
  gpu::memory memory;
  cairn::tensor_view view;
};

/// The same job on one rank with two devices.
struct on_devices {
  explicit on_devices(std::uint32_t seed)
      : by_rows(0, {rows, columns}, columns, 1),
        by_columns(static_cast<int>(seed % 2), {rows, columns}, columns + 24, 1),
        flat(1, {rows, columns}, 1, rows),  // transposed
        replicated(static_cast<int>(seed / 2 % 2), {large}, 1, 1),
        host(seed % 3 == 0) {
    for (int t = 0; t < small_tensors; ++t)
      small.push_back(std::make_unique<placed>(t % 2, cairn::extents{small_size}, 1, 1));
    state.tensor("rows", by_rows.view);
    state.tensor("columns", by_columns.view);
    state.tensor("flat", flat.view);
    if (host)
      state.tensor("replicated", on_host, {large});
    else
      state.tensor("replicated", replicated.view);
    for (int t = 0; t < small_tensors; ++t)
      state.tensor("small." + std::to_string(t), small[static_cast<std::size_t>(t)]->view);
    state.value("rate", rate);
  }
  ~on_devices() {
    gpu::hold_copies(false);
    gpu::hold_kernels(false);
    gpu::synchronize();
  }
  template <class Visit>
  void each(Visit&& visit) {
    visit(by_rows, 1), visit(by_columns, 2), visit(flat, 3);
    if (!host) visit(replicated, 4);
    for (int t = 0; t < small_tensors; ++t) visit(*small[static_cast<std::size_t>(t)], 100 + t);
  }
  void check_loaded(std::byte between = std::byte{0xee}) {
    each([&](placed& p, int tensor) {
      CAPTURE(tensor);
      CHECK(p.first_wrong(tensor, between) == -1);
    });
    for (std::size_t k = 0; host && k < on_host.size(); ++k)
      if (on_host[k] != value_of(4, static_cast<std::int64_t>(k))) FAIL_CHECK("replicated at " << k);
    CHECK(rate == 0.25);
  }
  placed by_rows, by_columns, flat, replicated;
  bool host;
  std::vector<float> on_host = std::vector<float>(static_cast<std::size_t>(large));
  std::vector<std::unique_ptr<placed>> small;
  double rate = 0;
  cairn::state_dict state;
};

auto make_reader(cairn::memory_store store, loads_options options = {},
                 std::uint64_t memory = std::uint64_t{256} << 20,
                 std::chrono::nanoseconds timeout = std::chrono::minutes(1)) {
  return cairn::checkpointer{
      std::move(store), device_loads(std::move(options)),
      cairn::checkpointer_options{.timeout = timeout, .load_memory = memory, .quiet = true}};
}

void check_nothing_left() {
  CHECK(gpu::copies_waiting() == 0);
  CHECK(gpu::pinned_ranges() == 0);
  CHECK(gpu::live_events() == 0);
}

}  // namespace

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
