// SPDX-License-Identifier: Apache-2.0
// Staging from devices, on a double of the runtime whose copies come late and whose calls fail.
// threaded
// cost: 30
#include <cairn/cairn.hpp>
#include <cairn/cuda/basic_copy_engine.hpp>
#include <cairn/cuda/basic_device_view.hpp>
#include <cairn/cuda/basic_pinned.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/stage/buffered_stager.hpp>
#include <cairn/system/digest.hpp>

#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <support/device_double.hpp>
#include <support/device_semantics.hpp>
#include <support/nccl_double.hpp>
#include <support/nccl_semantics.hpp>
#include <support/rounds.hpp>
#include <support/stager_conformance.hpp>
#include <support/still_threads.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace cairn_test;
using cairn::error_id;
using cairn::memory_space;
using gpu = device_double;
using engine = cairn::cuda::basic_copy_engine<gpu>;
using engine_options = cairn::cuda::basic_copy_engine_options<gpu>;
using pinned = cairn::cuda::basic_pinned<cairn::heap_memory, gpu>;
using stager_type = cairn::buffered_stager<pinned, engine>;
static_assert(cairn::Memory<pinned>);
static_assert(cairn::CopyEngine<engine, pinned>);
static_assert(!engine::accepts<cairn::heap_memory>);

struct environment {
  static constexpr bool digests = false;
  std::uint64_t batch_bytes;
  [[nodiscard]] stager_type make() const {
    engine_options options;
    options.batch_bytes = batch_bytes;
    return stager_type(cairn::buffered_stager_options{}, engine(options));
  }
};

/// A case whose tensors lie on devices, and the streams that train there.
struct on_devices {
  explicit on_devices(stager_case from, bool two_devices = false) : c(std::move(from)) {
    memories.resize(c.sources.size());
    for (std::size_t i = 0; i < c.sources.size(); ++i) {
      auto& view = c.sources[i].view;
      if (view.data == nullptr || c.sources[i].cast != nullptr) continue;  // these stay on the host
      const int device = two_devices ? static_cast<int>(i % 2) : 0;
      const auto offset = view.data - c.memories[i].bytes.data();
      memories[i] = std::make_unique<gpu::memory>(device, c.memories[i].bytes.size());
      std::memcpy(memories[i]->bytes().data(), c.memories[i].bytes.data(), c.memories[i].bytes.size());
      view.data = memories[i]->bytes().data() + offset;
      view.space = memory_space::device;
      view.device = device;
      streams.resize(2);
    }
    for (int d = 0; d < 2; ++d) {
      const cairn::cuda::device_in_use<gpu> use(d);
      streams.resize(2);
      REQUIRE(gpu::make_stream(streams[static_cast<std::size_t>(d)]) == gpu::success);
    }
  }
  ~on_devices() {
    gpu::hold_copies(false);
    gpu::synchronize();
    for (auto s : streams) (void)gpu::destroy_stream(s);
  }
  [[nodiscard]] stager_type make_stager(std::uint64_t batch_bytes = 1 << 20) const {
    engine_options options;
    options.compute = {{0, streams[0]}, {1, streams[1]}};
    options.batch_bytes = batch_bytes;
    return stager_type(cairn::buffered_stager_options{}, engine(options));
  }
  /// Kernels on the compute streams overwrite the memory of these items, as training does.
  void change(bool early) {
    for (std::size_t i = 0; i < memories.size(); ++i) {
      if (c.memories[i].early != early) continue;
      if (memories[i] == nullptr) {
        std::fill(c.memories[i].bytes.begin(), c.memories[i].bytes.end(), std::byte{0xa5});
        continue;
      }
      const auto bytes = memories[i]->bytes();
      gpu::launch(streams[static_cast<std::size_t>(c.sources[i].view.device)],
                  [bytes] { std::fill(bytes.begin(), bytes.end(), std::byte{0xa5}); });
    }
  }
  /// The last step before a save: kernels write what the image is to have.
  void train() {
    for (std::size_t i = 0; i < memories.size(); ++i) {
      if (memories[i] == nullptr) continue;
      const auto bytes = memories[i]->bytes();
      const std::vector<std::byte> trained(bytes.begin(), bytes.end());
      std::fill(bytes.begin(), bytes.end(), std::byte{0});
      gpu::launch(streams[static_cast<std::size_t>(c.sources[i].view.device)],
                  [bytes, trained] { std::copy(trained.begin(), trained.end(), bytes.begin()); });
    }
  }
  stager_case c;
  std::vector<std::unique_ptr<gpu::memory>> memories;
  std::vector<gpu::stream_type> streams;
};

}  // namespace

struct double_hooks {
  static void launch(gpu::stream_type s, std::function<void()> work) { gpu::launch(s, std::move(work)); }
  static void upload(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    std::memcpy(to, from, bytes);
  }
  static void begin_capture(gpu::stream_type s) { gpu::begin_capture(s); }
  static bool end_capture(gpu::stream_type s) { return gpu::end_capture(s); }
  static void synchronize() { gpu::synchronize(); }
};

TEST_CASE("the double means what CUDA means") {
  gpu::reset(2);
  device_semantics<gpu, double_hooks>();
}

TEST_CASE("the double of NCCL means what NCCL means") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    gpu::reset(static_cast<std::uint32_t>(ranks));
    nccl_double::reset_nccl(static_cast<std::uint32_t>(ranks));
    nccl_semantics<nccl_double>(ranks);
    CHECK(nccl_double::transfers_made() == (ranks == 1 ? 0 : 4));
    CHECK_FALSE(nccl_double::misused());
  }
  CHECK(nccl_double::open_communicators() == 0);
  CHECK(gpu::device_allocations() == 0);
  CHECK(gpu::pinned_ranges() == 0);
  CHECK(gpu::live_events() == 0);
}

TEST_CASE("memory of the host, by an engine for devices: a Stager keeps the contract") {
  gpu::reset(1);
  stager_conformance(environment{1 << 20});
  CHECK(gpu::pinned_ranges() == 0);
  CHECK(gpu::live_events() == 0);
}

TEST_CASE("tensors on devices: the image is what they were at save(), however late the copies come") {
  for (std::uint32_t seed = 1; seed <= rounds(8); ++seed) {
    CAPTURE(seed);
    gpu::reset(seed);
    const bool two = seed % 2 == 0;
    on_devices d(seed % 3 == 0 ? large_and_small(seed) : random_case(seed), two);
    auto stager = d.make_stager();
    // Work that was put into the compute stream before save() is part of the save, also when it runs late.
    gpu::hold_kernels(true);
    d.train();
    gpu::hold_copies(seed % 4 == 1);
    auto image = stager.stage(d.c.layout, d.c.sources, {true, true}, soon());
    // Early items may change at once, in the order of the stream.
    d.change(true);
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    gpu::hold_kernels(false);
    // The streams wait, not the host: nothing has been copied as yet where copies are held.
    stager.before_update(d.streams[0], 0, soon());
    stager.before_update(d.streams[1], 1, soon());
    if (seed % 4 == 1 && !d.c.layout->items.empty()) CHECK_FALSE(image.control()->copied());
    for (std::size_t i = 0; i < d.memories.size(); ++i)
      if (d.memories[i] == nullptr && !d.c.memories[i].early) gpu::hold_copies(false);
    const bool some_on_host =
        !std::all_of(d.memories.begin(), d.memories.end(), [](const auto& m) { return m != nullptr; });
    if (some_on_host) image.wait_released(soon());
    d.change(false);
    gpu::hold_copies(false);
    CHECK(first_difference(read_image(image), d.c.image) == -1);
    image.wait_released(soon());
  }
  CHECK(gpu::pinned_ranges() == 0);
}

TEST_CASE(
    "strided views of any rank, order and element size, packed on the device or copied without its help") {
  for (std::uint32_t seed = 1; seed <= rounds(12); ++seed) {
    CAPTURE(seed);
    gpu::reset(seed);
    gpu::out_of_device_memory(seed % 4 == 1);
    gpu::no_stream_writes(seed % 3 == 1);
    on_devices d(make_strided_case(seed), seed % 2 == 0);
    engine_options options;
    options.compute = {{0, d.streams[0]}, {1, d.streams[1]}};
    options.gather_bytes = seed % 5 == 0 ? 4096 : seed % 5 == 1 ? 70'000 : 16 << 20;
    options.stream_writes = seed % 6 != 0;
    stager_type stager({}, engine(options));
    d.train();
    auto image = stager.stage(d.c.layout, d.c.sources, {true, true}, soon());
    d.change(true);
    stager.before_update(d.streams[0], 0, soon());
    stager.before_update(d.streams[1], 1, soon());
    d.change(false);
    CHECK(first_difference(read_image(image), d.c.image) == -1);
    image.wait_released(soon());
    CHECK((gpu::kernels_launched() == 0) == (seed % 4 == 1));
    CHECK((gpu::device_allocations() == 0) == (seed % 4 == 1));
  }
  CHECK(gpu::device_allocations() == 0);
}

TEST_CASE("ten thousand small tensors cost a few launches and a few copies, not ten thousand") {
  gpu::reset(6);
  case_maker make(6);
  make.segment(8192);
  for (int i = 0; i < 10'000; ++i) make.tensor(cairn::dtype::bf16, {256});
  on_devices d(make.make());
  auto stager = d.make_stager(16 << 20);
  const auto image = stager.stage(d.c.layout, d.c.sources, {false, true}, soon());
  CHECK(first_difference(image.bytes(), d.c.image) == -1);
  CHECK(gpu::kernels_launched() == 1);
  CHECK(gpu::copies_made() == 1);
}

// cudaMalloc() puts allocations next to each other, and cudaMemcpy() refuses what goes on from one into the next.
TEST_CASE(
    "tensors that touch in memory and in the image, and lie in two allocations, are not copied in one") {
  constexpr std::uint64_t bytes = 512 << 10;  // too large to be gathered
  for (const bool no_kernel : {false, true}) {
    for (const bool strided : {false, true}) {
      CAPTURE(no_kernel);
      CAPTURE(strided);
      gpu::reset(9);
      gpu::out_of_device_memory(no_kernel);
      gpu::memory both(0, 2 * bytes);
      both.split(bytes);
      cairn::memory_store store;
      cairn::checkpointer ckpt{store, stager_type({}, engine(engine_options{})),
                               cairn::checkpointer_options{.quiet = true}};
      cairn::state_dict state;
      for (std::uint64_t i = 0; i < 2; ++i) {
        auto* const data = both.bytes().data() + i * bytes;
        std::memset(data, static_cast<int>(i + 1), bytes);
        auto view = cairn::contiguous_view(data, cairn::dtype::u8, {static_cast<std::int64_t>(bytes)});
        if (strided && i == 1) view.shape = {1, static_cast<std::int64_t>(bytes)}, view.strides = {7, 1};
        view.space = memory_space::device, view.device = 0;
        state.tensor("tensor" + std::to_string(i), view);
      }
      ckpt.save(state, 1).wait();
      std::memset(both.bytes().data(), 0, 2 * bytes);
      ckpt.load(state, 1);
      gpu::synchronize();
      for (std::uint64_t i = 0; i < 2; ++i) {
        const auto part = both.bytes().subspan(i * bytes, bytes);
        CHECK(std::all_of(part.begin(), part.end(), [&](auto b) { return b == std::byte(i + 1); }));
      }
    }
  }
}

namespace {
struct refusing_executor {
  using cairn_role = cairn::role::executor;
  template <class>
  static constexpr bool accepts = true;
  void submit(cairn::save_job) { throw std::runtime_error("no thread"); }
  bool drain(cairn::deadline) { return true; }
};
}  // namespace

TEST_CASE("memory that is still copied is not told as released where the executor refuses the save") {
  gpu::reset(10);
  gpu::memory weights(0, 1 << 20);
  cairn::checkpointer ckpt{cairn::memory_store{}, stager_type({}, engine(engine_options{})),
                           refusing_executor{}, cairn::overlapped{},
                           cairn::checkpointer_options{.quiet = true}};
  cairn::state_dict state;
  auto view = cairn::contiguous_view(weights.bytes().data(), cairn::dtype::u8, {1 << 20});
  view.space = memory_space::device, view.device = 0;
  state.tensor("weights", view);
  gpu::hold_copies(true);
  const auto save = ckpt.save(state, 1);
  CHECK(save.failed());
  CHECK_FALSE(save.released());
  gpu::hold_copies(false);
  ckpt.before_update();
  CHECK(save.released());
}

TEST_CASE("a large image is in the streams in at most 64 steps, before any of it is copied") {
  gpu::reset(17);
  constexpr std::uint64_t bytes = 80 << 20;
  gpu::memory weights(0, bytes);
  std::memset(weights.bytes().data(), 7, bytes);
  cairn::item_source source;
  source.view = cairn::contiguous_view(weights.bytes().data(), cairn::dtype::u8, {bytes});
  source.view.space = memory_space::device, source.view.device = 0;
  auto layout = std::make_shared<cairn::image_layout>();
  layout->bytes = bytes;
  layout->blocks = cairn::block_count(bytes);
  layout->segments.emplace_back().bytes = bytes;
  layout->items.emplace_back().bytes = bytes;
  gpu::stream_type stream{};
  REQUIRE(gpu::make_stream(stream) == gpu::success);
  {
    engine_options options;
    options.compute = {{0, stream}};
    options.batch_bytes = 1 << 20;
    stager_type stager({}, engine(options));
    gpu::hold_copies(true);
    const auto image = stager.stage(layout, {source}, {true, false}, soon());
    stager.before_update(stream, 0, soon());
    CHECK_FALSE(image.control()->copied());
    CHECK(gpu::words_told() > 0);
    CHECK(gpu::copies_made() >= 32);
    CHECK(gpu::copies_made() <= 64);
    gpu::hold_copies(false);
    image.wait_released(soon());
    CHECK(std::memcmp(image.bytes().data(), weights.bytes().data(), bytes) == 0);
  }
  gpu::synchronize();
  (void)gpu::destroy_stream(stream);
}

TEST_CASE(
    "a stream that is captured into a graph: refused before anything is put there; other captures are not "
    "disturbed") {
  gpu::reset(12);
  on_devices d(large_and_small(11));
  auto stager = d.make_stager();
  stager.prepare(*d.c.layout, soon());
  gpu::begin_capture(d.streams[0]);
  CHECK(refused_while_capturing([&] { (void)stager.stage(d.c.layout, d.c.sources, {true, true}, soon()); }));
  CHECK(gpu::end_capture(d.streams[0]));
  CHECK(gpu::copies_made() == 0);

  gpu::hold_copies(true);
  auto image = stager.stage(d.c.layout, d.c.sources, {true, true}, soon());
  gpu::begin_capture(d.streams[0]);
  CHECK(refused_while_capturing([&] { stager.before_update(d.streams[0], 0, soon()); }));
  // The rest of the copies is enqueued, polled and ended while the next step is captured.
  gpu::hold_copies(false);
  CHECK(image.control()->wait_copied(soon()));
  CHECK(gpu::end_capture(d.streams[0]));
  CHECK(first_difference(read_image(image), d.c.image) == -1);

  // Buffers may be pinned meanwhile, too.
  gpu::stream_type other{};
  REQUIRE(gpu::make_stream(other) == gpu::success);
  gpu::begin_capture(other);
  pinned memory;
  CHECK(memory.allocate(4096).is_pinned());
  CHECK(gpu::end_capture(other));
  (void)gpu::destroy_stream(other);
}

TEST_CASE("a save during a capture: save() throws, the state is unharmed, and the next save is committed") {
  gpu::reset(13);
  constexpr std::int64_t count = 100'000;
  gpu::memory weights(0, count * sizeof(float));
  std::fill(weights.bytes().begin(), weights.bytes().end(), std::byte{7});
  auto view = cairn::contiguous_view(weights.bytes().data(), cairn::dtype::f32, {count});
  view.space = memory_space::device, view.device = 0;
  gpu::stream_type stream{};
  REQUIRE(gpu::make_stream(stream) == gpu::success);
  engine_options options;
  options.compute = {{0, stream}};
  const cairn::memory_store store;
  cairn::checkpointer checkpoints{store, stager_type({}, engine(options)), cairn::overlapped{},
                                  cairn::checkpointer_options{.quiet = true}};
  cairn::state_dict state;
  state.tensor("weights", view);
  gpu::begin_capture(stream);
  cairn::error_id id{};
  try {
    (void)checkpoints.save(state, 1);
  } catch (const cairn::usage_error& e) {
    id = e.id();
  }
  CHECK(id == error_id::usage_stream_capturing);
  CHECK(gpu::end_capture(stream));
  const auto handle = checkpoints.save(state, 2);
  checkpoints.before_update(stream);
  handle.wait();
  CHECK(checkpoints.list() == std::vector<std::int64_t>{2});
  checkpoints.close();
  gpu::synchronize();
  (void)gpu::destroy_stream(stream);
}

namespace {

/// Stops the copies of the devices as soon as checked{} has looked at the state.
class stopping_devices final : public cairn::device_access {
 public:
  using cairn_role = cairn::role::devices;
  explicit stopping_devices(std::vector<cairn::cuda::compute_stream<gpu>> compute)
      : inner_({.compute = std::move(compute)}) {}
  [[nodiscard]] std::unique_ptr<cairn::device_load> begin_load(std::uint64_t budget) override {
    return inner_.begin_load(budget);
  }
  [[nodiscard]] std::unique_ptr<cairn::device_read> begin_read() override {
    return std::make_unique<look>(inner_.begin_read());
  }

 private:
  struct look final : cairn::device_read {
    explicit look(std::unique_ptr<cairn::device_read> reads) : inner(std::move(reads)) {}
    ~look() override { gpu::hold_copies(true); }
    void read(const cairn::tensor_view& from, std::uint64_t first, std::uint64_t last, std::byte* to,
              std::string_view item, cairn::deadline until) override {
      inner->read(from, first, last, to, item, until);
    }
    std::unique_ptr<cairn::device_read> inner;
  };
  cairn::cuda::basic_device_loads<gpu> inner_;
};

}  // namespace

TEST_CASE("checked{} finds memory of a device that a kernel changes before its copy, and names it") {
  gpu::reset(14);
  constexpr std::int64_t count = 800'000;
  gpu::memory weights(0, count * sizeof(float));
  auto held = std::make_unique<gpu::memory>(1, 300 * 200 * sizeof(float));
  auto& matrix = *held;
  std::fill(weights.bytes().begin(), weights.bytes().end(), std::byte{7});
  std::fill(matrix.bytes().begin(), matrix.bytes().end(), std::byte{9});
  auto flat = cairn::contiguous_view(weights.bytes().data(), cairn::dtype::f32, {count});
  flat.space = memory_space::device, flat.device = 0;
  auto turned = cairn::contiguous_view(matrix.bytes().data(), cairn::dtype::f32, {200, 300});
  turned.strides = {1, 200};
  turned.space = memory_space::device, turned.device = 1;
  std::vector<gpu::stream_type> streams(2);
  for (int d = 0; d < 2; ++d) {
    const cairn::cuda::device_in_use<gpu> use(d);
    REQUIRE(gpu::make_stream(streams[static_cast<std::size_t>(d)]) == gpu::success);
  }
  engine_options options;
  options.compute = {{0, streams[0]}, {1, streams[1]}};
  const cairn::memory_store store;
  {
    cairn::checkpointer checkpoints{
        store,
        stager_type({}, engine(options)),
        stopping_devices(options.compute),
        cairn::overlapped{},
        cairn::checked{},
        cairn::checkpointer_options{.max_consecutive_failures = 0, .quiet = true}};
    cairn::state_dict state;
    state.tensor("flat", flat);
    state.tensor("turned", turned);
    std::exception_ptr why;
    const auto save_and_change = [&](std::int64_t step, std::size_t device, std::byte* at) {
      const auto handle = checkpoints.save(state, step);
      // A kernel on the stream that trains, which was not made to wait.
      std::atomic<bool> changed{at == nullptr};
      if (at != nullptr)
        gpu::launch(streams[device], [at, &changed] {
          *at ^= std::byte{1};
          changed = true;
        });
      while (!changed) std::this_thread::yield();
      gpu::hold_copies(false);
      checkpoints.before_update(streams[device], static_cast<int>(device));
      try {
        handle.wait();
        why = nullptr;
      } catch (const cairn::error&) {
        why = std::current_exception();
      }
    };
    const auto named = [&](std::string_view item, std::int64_t offset) {
      try {
        if (why) std::rethrow_exception(why);
      } catch (const cairn::usage_error& e) {
        return e.id() == error_id::usage_memory_changed && e.fields().item == item &&
               e.fields().offset == offset;
      } catch (const cairn::error&) {
      }
      return false;
    };
    save_and_change(1, 0, weights.bytes().data() + (2 << 20) + 12);
    CHECK(named("flat", 2 << 20));
    save_and_change(2, 1, matrix.bytes().data() + 4000);
    CHECK(named("turned", 0));
    save_and_change(3, 0, nullptr);
    CHECK(why == nullptr);
    // Memory that was freed, and that the state still names.
    held.reset();
    try {
      checkpoints.save(state, 4).wait();
      FAIL("what was freed was saved");
    } catch (const cairn::storage_error& e) {
      why = std::current_exception();
      CHECK(e.id() == error_id::storage_device);
      CHECK(e.fields().item == "turned");
    }
    CHECK(checkpoints.list() == std::vector<std::int64_t>{3});
    CHECK_THROWS_AS(checkpoints.close(), cairn::storage_error);
  }
  gpu::synchronize();
  for (auto s : streams) (void)gpu::destroy_stream(s);
}

TEST_CASE("an error of a device names the call, the device and the item that was copied") {
  gpu::reset(15);
  constexpr std::int64_t count = 300'000;
  gpu::memory weights(1, count * sizeof(float));
  auto view = cairn::contiguous_view(weights.bytes().data(), cairn::dtype::f32, {count});
  view.space = memory_space::device, view.device = 1;
  std::vector<std::exception_ptr> told;
  {
    cairn::checkpointer checkpoints{
        cairn::memory_store{}, stager_type(), cairn::overlapped{},
        cairn::checkpointer_options{.max_consecutive_failures = 0, .quiet = true}};
    cairn::state_dict state;
    state.tensor("weights", view);
    checkpoints.save(state, 0).wait();
    checkpoints.before_update();
    std::set<std::string> calls;
    // Twice each: a thread that could not restore its device makes fewer calls the next time.
    for (std::uint64_t i = 0; i < 80; ++i) {
      gpu::fail(1 + i / 2, gpu::invalid_value);
      const auto handle = checkpoints.save(state, static_cast<std::int64_t>(i + 1));
      try {
        handle.wait();
      } catch (const cairn::storage_error& e) {
        told.push_back(std::current_exception());
        const std::string said(e.message());
        CAPTURE(said);
        CHECK(e.id() == error_id::storage_device);
        CHECK(said.find("failed on device 1") != std::string::npos);
        CHECK(e.fields().got == "cudaErrorInvalidValue (1)");
        calls.insert(said.substr(0, said.find(' ')));
        if (said.starts_with("cudaMemcpy") || said.starts_with("cudaEventQuery"))
          CHECK(e.fields().item == "weights");
      }
      gpu::fail(0, 0);
      checkpoints.before_update();
    }
    for (const char* call : {"cudaMemcpyAsync", "cudaEventRecord", "cudaStreamWaitEvent"})
      CHECK_MESSAGE(calls.contains(call), std::string(call));
    checkpoints.save(state, 1000).wait();  // else close() would throw the error of the last one
    checkpoints.close();
  }
}

TEST_CASE(
    "a checkpointer over devices: the streams wait for the copies, and what is committed is what was saved") {
  gpu::reset(3);
  constexpr std::int64_t count = 300'000;
  gpu::memory weights(0, count * sizeof(float));
  gpu::memory moments(1, count * sizeof(float));
  const auto on = [&](gpu::memory& m, int device) {
    auto view = cairn::contiguous_view(m.bytes().data(), cairn::dtype::f32, {count});
    view.space = memory_space::device, view.device = device;
    return view;
  };
  const auto fill = [](gpu::memory& m, float value) {
    auto* first = reinterpret_cast<float*>(m.bytes().data());
    std::fill(first, first + count, value);
  };
  std::vector<gpu::stream_type> streams(2);
  for (int d = 0; d < 2; ++d) {
    const cairn::cuda::device_in_use<gpu> use(d);
    REQUIRE(gpu::make_stream(streams[static_cast<std::size_t>(d)]) == gpu::success);
  }
  engine_options options;
  options.compute = {{0, streams[0]}, {1, streams[1]}};
  const cairn::memory_store store;
  {
    cairn::checkpointer checkpoints{store, stager_type({}, engine(options)), cairn::overlapped{},
                                    cairn::checkpointer_options{.quiet = true}};
    cairn::state_dict state;
    state.tensor("weights", on(weights, 0));
    state.tensor("moments", on(moments, 1));
    double rate = 0;
    state.value("rate", rate);
    checkpoints.prepare(state);
    cairn::save_handle last = checkpoints.save(state, 1000);
    for (int step = 1; step <= 5; ++step) {
      checkpoints.before_update(streams[0], 0);
      checkpoints.before_update(streams[1], 1);
      gpu::launch(streams[0], [&fill, &weights, step] { fill(weights, static_cast<float>(step)); });
      gpu::launch(streams[1], [&fill, &moments, step] { fill(moments, static_cast<float>(-step)); });
      rate = 0.5 * step;
      last = checkpoints.save(state, 1000 + step);
    }
    checkpoints.before_update(streams[0], 0);
    checkpoints.before_update(streams[1], 1);
    last.wait();
    checkpoints.close();
  }
  cairn::checkpointer reader{store, cairn::checkpointer_options{.quiet = true}};
  for (int step = 1; step <= 5; ++step) {
    CAPTURE(step);
    std::vector<float> w(count);
    std::vector<float> m(count);
    double rate = 0;
    cairn::state_dict state;
    state.tensor("weights", w, {count});
    state.tensor("moments", m, {count});
    state.value("rate", rate);
    reader.load(state, 1000 + step);
    CHECK(std::all_of(w.begin(), w.end(), [&](float x) { return x == static_cast<float>(step); }));
    CHECK(std::all_of(m.begin(), m.end(), [&](float x) { return x == static_cast<float>(-step); }));
    CHECK(rate == 0.5 * step);
  }
  reader.close();
  gpu::synchronize();
  for (auto s : streams) (void)gpu::destroy_stream(s);
  CHECK(gpu::pinned_ranges() == 0);
  CHECK(gpu::live_events() == 0);
}

TEST_CASE("a save is confirmed when the streams of all its devices wait, and the host where it must") {
  gpu::reset(3);
  constexpr std::int64_t count = 300'000;
  gpu::memory weights(0, count * sizeof(float));
  gpu::memory moments(1, count * sizeof(float));
  std::vector<float> table(count, 0.5f);
  const auto on = [&](gpu::memory& m, int device) {
    auto view = cairn::contiguous_view(m.bytes().data(), cairn::dtype::f32, {count});
    view.space = memory_space::device, view.device = device;
    return view;
  };
  std::vector<gpu::stream_type> streams(2);
  for (int d = 0; d < 2; ++d) {
    const cairn::cuda::device_in_use<gpu> use(d);
    REQUIRE(gpu::make_stream(streams[static_cast<std::size_t>(d)]) == gpu::success);
  }
  engine_options options;
  options.compute = {{0, streams[0]}, {1, streams[1]}};
  const cairn::memory_store store;
  {
    cairn::checkpointer checkpoints{
        store, stager_type({}, engine(options)), cairn::overlapped{},
        cairn::checkpointer_options{.max_consecutive_failures = 0, .quiet = true}};
    cairn::state_dict state;
    state.tensor("moments", on(moments, 1));
    state.tensor("weights", on(weights, 0));
    const auto left_out = [](const cairn::save_handle& save) -> std::string {
      try {
        if (save.failed()) std::rethrow_exception(save.failure());
      } catch (const cairn::usage_error& e) {
        return e.id() == error_id::usage_before_update_missing ? e.fields().item : "another error";
      }
      return "none";
    };
    auto first = checkpoints.save(state, 1);
    checkpoints.before_update(streams[0], 0);
    checkpoints.before_update(streams[0], 0);
    auto second = checkpoints.save(state, 2);
    CHECK(left_out(first) == "moments");
    checkpoints.before_update(streams[1], 1);
    checkpoints.before_update(streams[0], 0);
    state.tensor("table", table, {count});
    auto third = checkpoints.save(state, 3);
    for (int d = 0; d < 2; ++d) checkpoints.before_update(streams[static_cast<std::size_t>(d)], d);
    auto fourth = checkpoints.save(state, 4);
    CHECK(left_out(third) == "table");
    for (int d = 0; d < 2; ++d) checkpoints.before_update(streams[static_cast<std::size_t>(d)], d);
    checkpoints.before_update("table");
    auto fifth = checkpoints.save(state, 5);
    checkpoints.before_update();
    checkpoints.close();
    for (const auto& save : {second, fourth, fifth}) CHECK(left_out(save) == "none");
    CHECK(fifth.committed());
  }
  CHECK(cairn::checkpointer{store, cairn::checkpointer_options{.quiet = true}}.list() ==
        std::vector<std::int64_t>{2, 4, 5});
  gpu::synchronize();
  for (auto s : streams) (void)gpu::destroy_stream(s);
}

TEST_CASE("memory of a device that changed without before_update fails the last save") {
  gpu::reset(3);
  constexpr std::int64_t count = 300'000;
  gpu::memory weights(0, count * sizeof(float));
  auto view = cairn::contiguous_view(weights.bytes().data(), cairn::dtype::f32, {count});
  view.space = memory_space::device, view.device = 0;
  gpu::stream_type stream{};
  {
    const cairn::cuda::device_in_use<gpu> use(0);
    REQUIRE(gpu::make_stream(stream) == gpu::success);
  }
  engine_options options;
  options.compute = {{0, stream}};
  const cairn::memory_store store;
  for (const bool changed : {false, true}) {
    CAPTURE(changed);
    cairn::checkpointer checkpoints{store, stager_type({}, engine(options)), cairn::overlapped{},
                                    cairn::checkpointer_options{.quiet = true}};
    cairn::state_dict state;
    state.tensor("weights", view);
    const auto last = checkpoints.save(state, changed ? 2 : 1);
    while (last.bytes_written() < last.report().bytes) std::this_thread::yield();  // all is copied
    auto* const at = weights.bytes().data() + (1 << 20) + 12;
    if (changed) gpu::launch(stream, [at] { *at ^= std::byte{1}; });
    if (!changed) {
      checkpoints.close();
      CHECK(last.committed());
      continue;
    }
    CHECK_THROWS_AS(checkpoints.close(), cairn::usage_error);
    try {
      std::rethrow_exception(last.failure());
    } catch (const cairn::usage_error& e) {
      CHECK(e.id() == error_id::usage_before_update_missing);
      CHECK(e.fields().item == "weights");
      CHECK(e.fields().offset == 1 << 20);
    }
  }
  CHECK(cairn::checkpointer{store, cairn::checkpointer_options{.quiet = true}}.list() ==
        std::vector<std::int64_t>{1});
  gpu::synchronize();
  (void)gpu::destroy_stream(stream);
}

TEST_CASE(
    "without overlap everything is copied when stage() returns, and the next save uses the buffer again") {
  gpu::reset(5);
  on_devices d(random_case(5), true);
  auto stager = d.make_stager();
  stager.prepare(*d.c.layout, soon());
  CHECK(gpu::pinned_ranges() == 1);
  for (int i = 0; i < 3; ++i) {
    const auto image = stager.stage(d.c.layout, d.c.sources, {false, true}, soon());
    CHECK(image.control()->watermark() == d.c.layout->bytes);
    CHECK(image.control()->copied());
    CHECK(first_difference(image.bytes(), d.c.image) == -1);
    CHECK_FALSE(image.digested());
    CHECK(gpu::pinned_ranges() == 3);  // and where each device tells how far it is
  }
}

TEST_CASE("the k-th call fails, once or for ever: a typed error, nothing is read afterwards, nothing stays") {
  std::size_t failed_at_once = 0;
  std::size_t failed_later = 0;
  for (const int status : {gpu::invalid_value, gpu::illegal_address})
    for (const bool overlapped : {false, true}) {
      for (std::uint64_t k = 1;; k += 1 + k / rounds(6, 100)) {
        CAPTURE(status);
        CAPTURE(overlapped);
        CAPTURE(k);
        gpu::reset(static_cast<std::uint32_t>(k));
        bool through = false;
        // Dropped by this thread: ThreadSanitizer does not see how exceptions are counted.
        std::vector<std::exception_ptr> told;
        {
          auto d = std::make_unique<on_devices>(large_and_small(11), true);
          auto stager = d->make_stager(1 << 20);
          gpu::fail(k, status);
          cairn::error_id id{};
          bool failed = false;
          try {
            const auto image = stager.stage(d->c.layout, d->c.sources, {overlapped, true}, soon());
            try {
              image.wait_released(soon());
              CHECK(first_difference(read_image(image), d->c.image) == -1);
            } catch (const cairn::storage_error& e) {
              told.push_back(std::current_exception());
              failed = true, id = e.id();
              CHECK(image.failed());
              CHECK(gpu::copies_waiting() == 0);
              ++failed_later;
            }
          } catch (const cairn::storage_error& e) {
            told.push_back(std::current_exception());
            failed = true, id = e.id();
            CHECK(gpu::copies_waiting() == 0);
            ++failed_at_once;
            CHECK(std::string(e.what()).find("cudaError") != std::string::npos);
          }
          if (failed) CHECK((id == error_id::storage_device || id == error_id::storage_limit));
          through = gpu::calls() < k;
          // The memory of training may be freed, and a device without a sticky error works again.
          if (status == gpu::invalid_value) {
            gpu::fail(0, 0);
            const auto image = stager.stage(d->c.layout, d->c.sources, {false, true}, soon());
            CHECK(first_difference(image.bytes(), d->c.image) == -1);
          }
          gpu::fail(0, 0);
          d.reset();
        }
        CHECK(gpu::pinned_ranges() == 0);
        CHECK(gpu::live_events() == 0);
        if (through) break;
        REQUIRE(k < 100'000);
      }
    }
  CHECK(failed_at_once > 0);
  CHECK(failed_later > 0);
}

TEST_CASE("an image is not released while its stream has yet to write the word that tells so") {
  gpu::reset(18);
  constexpr std::uint64_t bytes = 1 << 16;
  gpu::memory weights(0, bytes);
  std::memset(weights.bytes().data(), 7, bytes);
  cairn::item_source source;
  source.view = cairn::contiguous_view(weights.bytes().data(), cairn::dtype::u8, {bytes});
  source.view.space = memory_space::device, source.view.device = 0;
  auto layout = std::make_shared<cairn::image_layout>();
  layout->bytes = bytes;
  layout->blocks = cairn::block_count(bytes);
  layout->segments.emplace_back().bytes = bytes;
  layout->items.emplace_back().bytes = bytes;
  {
    engine_options options;
    options.gather_below = 0;
    stager_type stager({}, engine(options));
    stager.prepare(*layout, soon());
    gpu::hold_copies_after(1);  // the copy itself
    const auto image = stager.stage(layout, {source}, {true, false}, soon());
    // An engine that went by the event alone would end now, and free the word's memory under the stream.
    CHECK_THROWS_AS(image.wait_released(cairn::deadline::in(std::chrono::milliseconds(200))),
                    cairn::timeout_error);
    gpu::hold_copies(false);
    image.wait_released(soon());
    CHECK(gpu::copies_waiting() == 0);
  }
  gpu::synchronize();
}

TEST_CASE("a device that does not copy in time: the deadline, and the buffer is not given away meanwhile") {
  bool late = false;
  // A thread that is stopped for long may look at the clock when the device has copied after all: then try
  // again.
  for (std::uint32_t attempt = 0; attempt < 50 && !late; ++attempt) {
    gpu::reset(7 + attempt);
    std::exception_ptr told;  // outlives the stager, see above
    on_devices d(large_and_small(11));
    auto stager = d.make_stager();
    stager.prepare(*d.c.layout, soon());
    gpu::hold_copies(true);
    const auto until = cairn::deadline::in(std::chrono::milliseconds(1));
    std::atomic<bool> over{false};
    std::thread device_again([&] {
      // After the deadline of a call that has begun.
      while (gpu::copies_waiting() == 0 && !over) std::this_thread::yield();
      if (!over) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      gpu::hold_copies(false);
    });
    try {
      const auto image = stager.stage(d.c.layout, d.c.sources, {false, true}, until);
      CHECK(first_difference(image.bytes(), d.c.image) == -1);
    } catch (const cairn::timeout_error& e) {
      told = std::current_exception();
      CHECK(e.id() == error_id::timeout_staging);
      late = true;
    }
    over = true;
    device_again.join();
    CHECK(gpu::copies_waiting() == 0);
    const auto image = stager.stage(d.c.layout, d.c.sources, {false, true}, soon());
    CHECK(first_difference(image.bytes(), d.c.image) == -1);
  }
  CHECK(late);
}

namespace {

/// A tensor on device 0, a stream that trains there, and the options of an engine that gives up soon.
struct one_tensor {
  static constexpr std::uint64_t bytes = 1 << 16;
  one_tensor() {
    std::memset(weights.bytes().data(), 7, bytes);
    source.view = cairn::contiguous_view(weights.bytes().data(), cairn::dtype::u8, {bytes});
    source.view.space = memory_space::device, source.view.device = 0;
    layout->bytes = bytes;
    layout->blocks = cairn::block_count(bytes);
    layout->segments.emplace_back().bytes = bytes;
    layout->items.emplace_back().bytes = bytes;
    REQUIRE(gpu::make_stream(stream) == gpu::success);
    options.compute = {{0, stream}};
    options.drain_limit = std::chrono::milliseconds(100);
  }
  /// Work in the stream never ends.
  void hang() {
    gpu::hold_kernels(true);
    gpu::launch(stream, [] {});
  }
  /// The work ends after all; what was left behind frees everything.
  ~one_tensor() {
    gpu::hold_kernels(false);
    const auto until = soon();
    while ((gpu::pinned_ranges() != 0 || gpu::live_events() != 0) && !until.passed())
      std::this_thread::yield();
    CHECK(gpu::pinned_ranges() == 0);
    CHECK(gpu::live_events() == 0);
    await_still_threads();
    gpu::synchronize();
    (void)gpu::destroy_stream(stream);
  }
  gpu::memory weights{0, bytes};
  cairn::item_source source;
  std::shared_ptr<cairn::image_layout> layout = std::make_shared<cairn::image_layout>();
  gpu::stream_type stream{};
  engine_options options;
};

}  // namespace

TEST_CASE("a stream without progress: the stager can be destroyed, and the buffer outlives the copies") {
  gpu::reset(20);
  one_tensor t;
  std::exception_ptr told;
  std::optional<cairn::staged_image> image;
  {
    stager_type stager({}, engine(t.options));
    t.hang();
    image.emplace(stager.stage(t.layout, {t.source}, {true, false}, soon()));
    stager.before_update(t.stream, 0, soon());
  }
  cairn::error_id id{};
  try {
    image->wait_released(soon());
  } catch (const cairn::timeout_error& e) {
    told = std::current_exception();
    id = e.id();
  }
  CHECK(id == error_id::timeout_staging);
  image.reset();
  CHECK(gpu::copies_waiting() != 0);
  CHECK(gpu::pinned_ranges() != 0);  // the copy may still come
}

TEST_CASE(
    "a program ends although a stream of its device makes no progress, with and without before_update") {
  for (const bool ordered : {false, true}) {
    CAPTURE(ordered);
    gpu::reset(21);
    one_tensor t;
    const cairn::memory_store store;
    cairn::state_dict state;
    state.tensor("weights", t.source.view);
    std::exception_ptr told;
    std::optional<cairn::save_handle> save;
    bool thrown = false;
    // On a machine that pauses for long, an earlier wait may end by this timeout: then try again.
    for (int attempt = 0; attempt < 50 && !thrown; ++attempt) try {
        cairn::checkpointer checkpoints{
            store, stager_type({}, engine(t.options)), cairn::overlapped{},
            cairn::checkpointer_options{.timeout = std::chrono::seconds(1), .quiet = true}};
        const auto good = checkpoints.save(state, 2 * attempt);
        checkpoints.before_update(t.stream, 0);
        good.wait();
        t.hang();
        save = checkpoints.save(state, 2 * attempt + 1);
        if (ordered) checkpoints.before_update(t.stream, 0);
        throw std::runtime_error("the watchdog");
      } catch (const cairn::timeout_error&) {
        gpu::hold_kernels(false);
      } catch (const std::runtime_error&) {
        thrown = true;
      }
    REQUIRE(thrown);
    REQUIRE(save);
    told = save->failure();
    cairn::error_id id{};
    try {
      if (told) std::rethrow_exception(told);
    } catch (const cairn::error& e) {
      id = e.id();
    }
    CHECK(id == error_id::timeout_staging);
    CHECK(gpu::copies_waiting() != 0);
  }
}

TEST_CASE(
    "a device that has no memory for an event goes on copying: the buffer is not given back meanwhile") {
  gpu::reset(24);
  one_tensor t;
  std::exception_ptr told;
  cairn::error_id id{};
  {
    stager_type stager({}, engine(t.options));
    gpu::hold_copies(true);
    const auto image = stager.stage(t.layout, {t.source}, {true, false}, soon());
    stager.before_update(t.stream, 0, soon());
    gpu::fail_all(gpu::out_of_memory);
    // It is asked again and again.
    for (const auto until = soon(); gpu::calls() < 50 && !until.passed();) std::this_thread::yield();
    CHECK(gpu::calls() >= 50);
    CHECK_FALSE(image.failed());
    gpu::fail(0, 0);
    gpu::hold_copies(false);
    try {
      image.wait_released(soon());
    } catch (const cairn::storage_error& e) {
      told = std::current_exception();
      id = e.id();
    }
    CHECK(gpu::copies_waiting() == 0);
  }
  CHECK(id == error_id::storage_device);
}

TEST_CASE(
    "prepare() does what takes long: the thread that saves makes no such call, not for its first save") {
  gpu::reset(25);
  on_devices d(make_strided_case(3), true);
  cairn::checkpointer checkpoints{cairn::memory_store{}, d.make_stager(), cairn::overlapped{},
                                  cairn::checkpointer_options{.quiet = true}};
  cairn::state_dict state;
  for (std::size_t i = 0; i < d.c.sources.size(); ++i)
    if (const auto& view = d.c.sources[i].view; view.space == memory_space::device)
      state.tensor("t" + std::to_string(i), view);
  REQUIRE_FALSE(state.entries().empty());
  checkpoints.prepare(state);
  const int before = gpu::slow_calls();
  const auto handle = checkpoints.save(state, 1);
  for (int device = 0; device < 2; ++device)
    checkpoints.before_update(d.streams[static_cast<std::size_t>(device)], device);
  CHECK(gpu::slow_calls() == before);
  CHECK(gpu::kernels_launched() > 0);
  handle.wait();
  checkpoints.close();
}

TEST_CASE("memory that cannot be pinned: an error that says what to do, or unpinned if that was chosen") {
  gpu::reset(8);
  pinned strict;
  gpu::refuse_pins(true);
  try {
    (void)strict.allocate(4096);
    FAIL("it was pinned");
  } catch (const cairn::storage_error& e) {
    CHECK(e.id() == error_id::storage_limit);
    // The driver does not count what it pins against RLIMIT_MEMLOCK.
    CHECK(std::string(e.what()).find("memory limit of the container") != std::string::npos);
    CHECK(std::string(e.what()).find("MEMLOCK") == std::string::npos);
    CHECK(std::string(e.what()).find("cudaErrorMemoryAllocation") != std::string::npos);
  }
  gpu::refuse_pins(false);
  CHECK(strict.allocate(4096).is_pinned());

  pinned lenient(cairn::cuda::pinned_options{cairn::cuda::unpinned::accept});
  gpu::refuse_pins(true);
  {
    const auto block = lenient.allocate(4096);
    CHECK_FALSE(block.is_pinned());
    CHECK(block.bytes().size() >= 4096);
  }
  CHECK(gpu::pinned_ranges() == 0);
}

TEST_CASE("buffers are pinned with the device in use that the stager was made with, on whatever thread") {
  gpu::reset(9);
  const auto device_afterwards = [](pinned& memory) {
    int device = -1;
    std::thread([&] {
      const auto block = memory.allocate(4096);
      CHECK(block.is_pinned());
      CHECK(gpu::current_device(device) == gpu::success);
    }).join();
    return device;
  };
  REQUIRE(gpu::use_device(1) == gpu::success);
  pinned memory;
  CHECK(device_afterwards(memory) == 1);  // restoring device 0 would have made a context there
  CHECK(gpu::contexts() == std::set<int>{1});
  // A stager that was made before the program chose its device pins there all the same.
  REQUIRE(gpu::use_device(0) == gpu::success);
  pinned early;
  gpu::reset(9);
  REQUIRE(gpu::use_device(1) == gpu::success);
  CHECK(device_afterwards(early) == 1);
  CHECK(gpu::pinned_on() == std::set<int>{1});
  CHECK(gpu::contexts() == std::set<int>{1});
  REQUIRE(gpu::use_device(0) == gpu::success);
  CHECK(device_afterwards(memory) == 0);  // as the thread had it: there is a context
}

TEST_CASE("a rank has a context on its own device and on no other, whatever thread saves, looks and loads") {
  constexpr std::int64_t count = 400'000;
  for (const bool chosen : {true, false}) {
    CAPTURE(chosen);
    gpu::reset(19);
    gpu::memory weights(1, count * sizeof(float));
    gpu::memory columns(1, 300 * 200 * sizeof(float));
    // As after torch.cuda.set_device(1), or as where each call names its device.
    if (chosen) REQUIRE(gpu::use_device(1) == gpu::success);
    auto flat = cairn::contiguous_view(weights.bytes().data(), cairn::dtype::f32, {count});
    auto turned = cairn::contiguous_view(columns.bytes().data(), cairn::dtype::f32, {200, 300});
    turned.strides = {1, 200};
    for (auto* view : {&flat, &turned}) view->space = memory_space::device, view->device = 1;
    {
      cairn::checkpointer checkpoints{cairn::memory_store{}, stager_type(), cairn::overlapped{},
                                      cairn::checked{}, cairn::checkpointer_options{.quiet = true}};
      cairn::state_dict state;
      state.tensor("flat", flat);
      state.tensor("turned", turned);
      checkpoints.prepare(state);
      for (int step = 1; step <= 3; ++step) {
        const auto handle = checkpoints.save(state, step);
        checkpoints.before_update();
        handle.wait();
      }
      checkpoints.load(state, 2);
      CHECK(checkpoints.resume(state) == 3);
      checkpoints.close();
    }
    CHECK(gpu::contexts() == std::set<int>{1});
    CHECK(gpu::pinned_on() == std::set<int>{1});
    CHECK(gpu::pinned_ranges() == 0);
    CHECK(gpu::live_events() == 0);
  }
  gpu::reset(19);
}

namespace {

/// Heap memory that notes, when it is freed, what is still pinned.
struct asking_memory : cairn::heap_memory {
  struct block_type : cairn::heap_memory::block_type {
    explicit block_type(cairn::heap_memory::block_type block)
        : cairn::heap_memory::block_type(std::move(block)) {}
    block_type(block_type&&) = default;
    block_type& operator=(block_type&&) = default;
    ~block_type() {
      if (!bytes().empty()) pinned_when_freed.push_back(gpu::pinned_ranges());
    }
  };
  [[nodiscard]] block_type allocate(std::uint64_t bytes) {
    return block_type(cairn::heap_memory::allocate(bytes));
  }
  [[nodiscard]] std::shared_ptr<cairn::image_control> make_control(block_type& block) {
    return cairn::heap_memory::make_control(block);
  }
  static inline std::vector<std::size_t> pinned_when_freed;
};
static_assert(cairn::Memory<asking_memory>);

}  // namespace

TEST_CASE("a buffer is unpinned before it is freed, wherever it was moved to") {
  gpu::reset(16);
  using memory_type = cairn::cuda::basic_pinned<asking_memory, gpu>;
  memory_type memory;
  std::vector<memory_type::block_type> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(memory.allocate(4096));
  CHECK(gpu::pinned_ranges() == 3);
  std::swap(blocks[0], blocks[2]);
  blocks[0] = memory.allocate(8192);
  CHECK(gpu::pinned_ranges() == 3);
  blocks.clear();
  CHECK(gpu::pinned_ranges() == 0);
  // Each block was unpinned before it was freed: of three pins, two were left, then one, then none.
  CHECK(asking_memory::pinned_when_freed == std::vector<std::size_t>{3, 2, 1, 0});
}

namespace {

/// The flags that the kernel keeps of the mapping in which an address lies; see proc(5), smaps.
std::string mapping_flags(const std::byte* address) {
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx ", &begin, &end) == 2)
      here = begin <= reinterpret_cast<std::uintptr_t>(address) &&
             reinterpret_cast<std::uintptr_t>(address) < end;
    else if (here && line.starts_with("VmFlags:"))
      return line + " ";
  }
  return {};
}

/// Heap memory whose blocks outlive their pins.
struct kept_memory : cairn::heap_memory {
  struct block_type {
    std::shared_ptr<cairn::heap_memory::block_type> inner;
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return inner->bytes(); }
  };
  [[nodiscard]] block_type allocate(std::uint64_t bytes) {
    last = std::make_shared<cairn::heap_memory::block_type>(cairn::heap_memory::allocate(bytes));
    return {last};
  }
  [[nodiscard]] std::shared_ptr<cairn::image_control> make_control(block_type& block) {
    return cairn::heap_memory::make_control(*block.inner);
  }
  static inline std::shared_ptr<cairn::heap_memory::block_type> last;
};
static_assert(cairn::Memory<kept_memory>);

}  // namespace

TEST_CASE(
    "private memory is not copied for children while it is pinned: the device would keep the old pages") {
  gpu::reset(22);
  const auto copied = [] {
    const auto flags = mapping_flags(kept_memory::last->bytes().data());
    REQUIRE(flags.find(" rd ") != std::string::npos);
    return flags.find(" dc ") == std::string::npos;
  };
  for (const std::uint64_t bytes : {std::uint64_t{4096}, std::uint64_t{3} << 20}) {
    cairn::cuda::basic_pinned<kept_memory, gpu> memory;
    std::optional block(memory.allocate(bytes));
    REQUIRE(block->is_pinned());
    CHECK_FALSE(copied());
    block.reset();
    CHECK(copied());
  }
  kept_memory::last.reset();
}

namespace {

/// Heap memory that notes of which node it was asked for.
struct noting_memory : cairn::heap_memory {
  [[nodiscard]] block_type allocate(std::uint64_t bytes, int node = -1) {
    asked.push_back(node);
    return cairn::heap_memory::allocate(bytes, node);
  }
  static inline std::vector<int> asked;
};

/// The NUMA policy of a page and its nodes; nothing where the kernel does not tell.
std::optional<std::pair<int, unsigned long>> policy_of(const std::byte* page) {
  int mode = -1;
  std::array<unsigned long, 16> nodes{};
  constexpr unsigned long by_address = 2;  // MPOL_F_ADDR
  if (::syscall(SYS_get_mempolicy, &mode, nodes.data(), nodes.size() * 64, page, by_address) != 0)
    return std::nullopt;
  return std::pair(mode, nodes[0]);
}

}  // namespace

TEST_CASE("pages of buffers are asked for on the node of the device, where the memory can choose") {
  gpu::reset(26);
  for (const int device : {0, 1}) {
    REQUIRE(gpu::use_device(device) == gpu::success);
    cairn::cuda::basic_pinned<noting_memory, gpu> memory;
    CHECK(memory.allocate(4096).is_pinned());  // no such node is here: the pages are any
  }
  REQUIRE(gpu::use_device(0) == gpu::success);
  CHECK(noting_memory::asked == std::vector<int>{40, 41});

  const auto block = cairn::heap_memory().allocate(3 << 20, 0);
  std::memset(block.bytes().data(), 1, block.bytes().size());
  const auto policy = policy_of(block.bytes().data());
  if (policy && policy->first == 0)
    MESSAGE("left out: the kernel takes no wish for a node");
  else if (policy)
    CHECK((policy->first == 1 && policy->second == 1));  // MPOL_PREFERRED, node 0
}

TEST_CASE("a view asks on which device its memory lies, but for one without elements") {
  gpu::reset(23);
  gpu::memory weights(1, 4096);
  REQUIRE(gpu::use_device(1) == gpu::success);
  const auto view = cairn::cuda::basic_device_view<gpu>(weights.bytes().data(), cairn::dtype::f32, {1024});
  CHECK((view.space == memory_space::device && view.device == 1));
  const auto empty = cairn::cuda::basic_device_view<gpu>(nullptr, cairn::dtype::f32, {0, 8});
  CHECK((empty.space == memory_space::device && empty.device == 1));
  float host = 0;
  CHECK_THROWS_AS((void)cairn::cuda::basic_device_view<gpu>(&host, cairn::dtype::f32, {1}),
                  cairn::usage_error);
  CHECK(gpu::contexts() == std::set<int>{1});

  // The last rank of an uneven split has nothing of one tensor; it saves and resumes as the others do.
  cairn::checkpointer checkpoints{cairn::memory_store{}, stager_type(),
                                  cairn::checkpointer_options{.quiet = true}};
  cairn::state_dict state;
  state.tensor("weights", view);
  state.tensor("empty", empty, cairn::shard{{0, 8}, {0, 0}});
  checkpoints.save(state, 1).wait();
  std::fill(weights.bytes().begin(), weights.bytes().end(), std::byte{9});
  CHECK(checkpoints.resume(state) == 1);
  CHECK(weights.bytes()[7] == std::byte{0});
  checkpoints.close();
  gpu::reset(23);
}

TEST_CASE("an engine refuses options and tensors that it cannot handle") {
  gpu::reset(10);
  engine e;
  cairn::item_source source;
  source.view.space = memory_space::device;
  CHECK_THROWS_AS(e.check(source), cairn::usage_error);  // on which device?
  source.view.device = 1;
  e.check(source);
  source.cast = cairn::find_cast(cairn::dtype::f32, cairn::dtype::bf16);
  CHECK_THROWS_AS(e.check(source), cairn::usage_error);
  engine_options options;
  options.batch_bytes = 0;
  CHECK_THROWS_AS(engine{options}, cairn::usage_error);
  options = {};
  options.gather_bytes = 100;
  CHECK_THROWS_AS(engine{options}, cairn::usage_error);
  options = {};
  options.compute = {{0, nullptr}, {0, nullptr}};
  CHECK_THROWS_AS(engine{options}, cairn::usage_error);
}
