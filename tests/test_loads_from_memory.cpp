// SPDX-License-Identifier: Apache-2.0
// Loads of a checkpoint that the page cache has, in part or not at all: the same bytes and errors, each file opened once.
// threaded
#include <cairn/checkpointer.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/observe/trace_file.hpp>
#include <cairn/storage/compressed/compressed_storage.hpp>
#include <cairn/storage/load/reads_in_flight.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/basic_file_store.hpp>
#include <cairn/stores/memory_store.hpp>
#include <cairn/system/parallel.hpp>

#include "support/cached_file_system.hpp"
#include "support/codec_archetype.hpp"
#include "support/on_all_ranks.hpp"
#include "support/scratch_directory.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace {

using cairn_test::cached_file_system;

constexpr std::size_t rows = 300;
constexpr std::size_t columns = 2500;  // 3 MB of floats, in blocks that end within rows
constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

cairn::checkpointer_options quiet() {
  cairn::checkpointer_options o;
  o.quiet = true;
  return o;
}

/// Tensors that lie a float behind a multiple of a page, and as the store likes it.
struct tensors {
  std::vector<float> memory = std::vector<float>(4096 + 2 * rows * columns + 2048);
  float* skewed = aligned() + 1;
  float* other = skewed + rows * columns;

  float* aligned() {
    const auto past = reinterpret_cast<std::uintptr_t>(memory.data()) % 4096;
    return memory.data() + (4096 - past) % 4096 / sizeof(float);
  }
  void fill(float first) { std::iota(skewed, skewed + 2 * rows * columns, first); }
  [[nodiscard]] bool same(const tensors& o) const {
    return std::equal(skewed, skewed + 2 * rows * columns, o.skewed);
  }
  [[nodiscard]] cairn::state_dict whole() const {
    cairn::state_dict state;
    state.tensor("skewed", skewed, {rows, columns});
    state.tensor("other", other, {rows, columns});
    return state;
  }
  /// Some columns alone: every block is read, a part of it is wanted.
  [[nodiscard]] cairn::state_dict half() const {
    cairn::state_dict state;
    state.tensor("skewed", skewed, cairn::shard{{rows, columns}, {0, 0}, {rows, columns / 2}});
    return state;
  }
};

struct fixture {
  cairn_test::scratch_directory directory;
  cached_file_system fs;
  cairn::basic_file_store<cached_file_system> store{directory.path(), {}, fs};
  tensors saved, loaded;

  fixture() {
    saved.fill(1);
    cairn::checkpointer c{store, quiet()};
    c.save(saved.whole(), 1).wait();
    c.close();
  }
  template <class... Policies>
  cairn::load_report load(Policies... policies) {
    cairn::checkpointer c{store, quiet(), cairn::read_only{}, std::move(policies)...};
    loaded.fill(-1);
    const auto report = c.load(loaded.whole(), 1);
    c.close();
    return report;
  }
  [[nodiscard]] std::string data_file() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path()))
      if (entry.path().extension() == ".safetensors") return entry.path().string();
    return {};
  }
  /// Changes a byte in the middle of the data.
  void damage() const {
    const auto path = data_file();
    const auto file =
        std::unique_ptr<std::FILE, int (*)(std::FILE*)>(std::fopen(path.c_str(), "r+b"), std::fclose);
    REQUIRE(file != nullptr);
    REQUIRE(std::fseek(file.get(), 3'500'000, SEEK_SET) == 0);
    const int before = std::fgetc(file.get());
    REQUIRE(std::fseek(file.get(), 3'500'000, SEEK_SET) == 0);
    REQUIRE(std::fputc(before ^ 1, file.get()) >= 0);
  }
};

/// Keeps how many bytes of the last load were cached.
struct last_load {
  using cairn_role = cairn::role::observer;
  void observe(const cairn::observation& what) noexcept {
    if (what.kind == cairn::observation::event::loaded && what.load != nullptr)
      *cached = what.load->stages.bytes_cached;
  }
  std::shared_ptr<std::uint64_t> cached = std::make_shared<std::uint64_t>(0);
};

}  // namespace

TEST_CASE("a load brings the same bytes whatever the page cache has of them") {
  fixture f;
  for (const int part : {0, 1, 2}) {
    if (part == 1)
      for (std::uint64_t i = 0; i < 7; i += 2) f.fs.cache->add(i * mebibyte, mebibyte);
    f.fs.cache->all = part == 2;
    f.fs.cache->direct_reads = f.fs.cache->cached_reads = 0;
    const auto report = f.load();
    CHECK(f.loaded.same(f.saved));
    CHECK(report.stages.bytes_cached + report.stages.bytes_direct <
          report.bytes_read * 11 / 10);  // whole pages
    CHECK(report.stages.bytes_cached + report.stages.bytes_direct > report.bytes * 9 / 10);
    CHECK((report.stages.bytes_cached == 0) == (part == 0));
    CHECK((report.stages.bytes_direct == 0) == (part == 2));
    CHECK(report.stages.read_seconds > 0);
    CHECK((report.stages.verify_seconds > 0) == (part != 2));  // what is cached is verified while it is read
    CHECK(report.stages.deliver_seconds >= 0);
    CHECK(report.stages.read_cpu_seconds > 0);
    CHECK((report.stages.verify_cpu_seconds > 0) == (part != 2));
    CHECK(report.stages.deliver_cpu_seconds >= 0);
    CHECK(report.stages.populate_cpu_seconds > 0);
    CHECK(report.stages.reads_in_flight >= 1);
    CHECK(report.stages.reads_in_flight <= 16);
    CHECK(report.stages.latency_seconds == 0);  // too little is read for it to matter
    CHECK((f.fs.cache->cached_reads == 0) == (part == 0));
    CHECK((f.fs.cache->direct_reads == 0) == (part == 2));
  }
}

TEST_CASE("an observer and a trace tell where the bytes of a load came from") {
  fixture f;
  f.fs.cache->all = true;
  const last_load told;
  const auto report = f.load(told);
  CHECK(*told.cached == report.stages.bytes_cached);
  CHECK(*told.cached > 0);
  const auto path = f.directory.path() + "/trace.json";
  {
    const cairn::trace_file trace{path};
    (void)f.load(trace);
  }
  std::ifstream in(path);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  CHECK(text.find(R"("bytes from the page cache":)" + std::to_string(*told.cached)) != std::string::npos);
  for (const auto* name : {"verify s", "read cpu s", "verify cpu s", "deliver cpu s", "populate cpu s",
                           "latency s", "reads in flight"})
    CHECK(text.find('"' + std::string(name) + "\":") != std::string::npos);
}

TEST_CASE("ranks that share reads report their own reads") {
  fixture f;
  f.fs.cache->all = true;
  const cairn::thread_group group{2};
  std::array<tensors, 2> copies;
  std::array<cairn::load_report, 2> reports;
  cairn_test::on_all_ranks(2, [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    cairn::checkpointer c{f.store, quiet(), cairn::read_only{}, group.communicator(r)};
    reports[i] = c.load(copies[i].whole(), 1);
    c.close();
  });
  for (const auto& copy : copies) CHECK(copy.same(f.saved));
  std::uint64_t cached = 0;
  for (const auto& report : reports) {
    CHECK(report.stages.bytes_direct == 0);
    CHECK(report.stages.bytes_cached <= report.bytes_read);
    cached += report.stages.bytes_cached;
  }
  CHECK(cached > reports[0].bytes * 9 / 10);
  CHECK(cached < reports[0].bytes * 11 / 10);
}

TEST_CASE("a part of a tensor comes from the page cache, too") {
  fixture f;
  f.fs.cache->all = true;
  f.fs.cache->direct_reads = 0;
  cairn::checkpointer c{f.store, quiet(), cairn::read_only{}};
  f.loaded.fill(-1);
  (void)c.load(f.loaded.half(), 1, cairn::partial);
  CHECK(f.fs.cache->direct_reads == 0);
  for (std::size_t r = 0; r < rows; ++r)
    CHECK(std::equal(f.loaded.skewed + r * columns / 2, f.loaded.skewed + (r + 1) * columns / 2,
                     f.saved.skewed + r * columns));
}

TEST_CASE("a load into memory that nobody has touched brings the same bytes") {
  for (const bool cached : {false, true}) {
    fixture f;
    f.fs.cache->all = cached;
    constexpr std::size_t bytes = 2 * rows * columns * sizeof(float) + 4096;
    void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(mapped != MAP_FAILED);
    auto* to = static_cast<float*>(mapped) + 3;
    cairn::state_dict state;
    state.tensor("skewed", to, {rows, columns});
    state.tensor("other", to + rows * columns, {rows, columns});
    cairn::checkpointer c{f.store, quiet(), cairn::read_only{}};
    (void)c.load(state, 1);
    c.close();
    CHECK(std::equal(to, to + 2 * rows * columns, f.saved.skewed));
    CHECK(to[-1] == 0);
    CHECK(to[2 * rows * columns] == 0);
    ::munmap(mapped, bytes);
  }
}

TEST_CASE("a load opens each data file once for each way") {
  for (const bool cached : {false, true}) {
    fixture f;
    f.fs.cache->all = cached;
    cairn::checkpointer c{f.store, quiet(), cairn::read_only{}};
    const auto state = f.loaded.whole();
    f.fs.cache->opened_for_data = 0;
    (void)c.load(state, 1);
    CHECK(f.fs.cache->opened_for_data >= 1);
    CHECK(f.fs.cache->opened_for_data <= 2);
    CHECK(f.fs.cache->open_files.empty());
  }
}

TEST_CASE("a damaged block is found, whichever way it comes, and a verification asks the device") {
  for (const bool cached : {false, true}) {
    fixture f;
    f.fs.cache->all = cached;
    f.damage();
    try {
      (void)f.load();
      FAIL("a damaged block was loaded");
    } catch (const cairn::corrupt_error& e) {
      CHECK(e.id() == cairn::error_id::corrupt_digest);
      CHECK(e.fields().file.ends_with(".safetensors"));
    }
    f.fs.cache->cached_reads = 0;
    cairn::safetensors_storage storage{f.store};
    auto reader = storage.reader();
    auto opened = reader.open(1, reader.fetch(1));
    CHECK_THROWS_AS((void)reader.verify(opened, cairn::deadline::never()), cairn::corrupt_error);
    CHECK(f.fs.cache->cached_reads == 0);
  }
}

TEST_CASE(
    "bytes that are wrong in the page cache are read from the device before a checkpoint is called damaged") {
  fixture f;
  f.fs.cache->all = true;
  f.fs.cache->flips = true;
  f.fs.cache->direct_reads = 0;
  const auto report = f.load();
  CHECK(f.loaded.same(f.saved));
  CHECK(f.fs.cache->direct_reads > 0);
  CHECK(report.bytes_read >= 2 * report.stages.bytes_cached);
  CHECK(report.stages.bytes_direct == 0);
  f.damage();
  CHECK_THROWS_AS((void)f.load(), cairn::corrupt_error);
}

TEST_CASE("a truncated file is reported, whichever way it is read") {
  for (const bool cached : {false, true}) {
    fixture f;
    f.fs.cache->all = cached;
    std::filesystem::resize_file(f.data_file(), 2'000'000);
    CHECK_THROWS_AS((void)f.load(), cairn::corrupt_error);
  }
}

TEST_CASE("a compressed checkpoint comes from the page cache, too, and damage there is asked of the device") {
  cairn_test::scratch_directory directory;
  cached_file_system fs;
  using store_type = cairn::basic_file_store<cached_file_system>;
  using storage_type = cairn::compressed_storage<store_type, cairn_test::codec_archetype>;
  const auto storage = [&] {
    return storage_type(store_type{directory.path(), {}, fs}, cairn_test::codec_archetype::make());
  };
  tensors saved, loaded;
  saved.fill(1);
  {
    cairn::checkpointer c{storage(), quiet()};
    c.save(saved.whole(), 1).wait();
    c.close();
  }
  const auto load = [&] {
    cairn::checkpointer c{storage(), quiet(), cairn::read_only{}};
    loaded.fill(-1);
    const auto report = c.load(loaded.whole(), 1);
    c.close();
    CHECK(loaded.same(saved));
    return report;
  };
  CHECK(load().stages.bytes_cached == 0);
  fs.cache->all = true;
  const auto cached = load();
  CHECK(cached.stages.bytes_cached > cached.bytes * 9 / 10);
  CHECK(cached.stages.bytes_direct == 0);
  CHECK(fs.cache->open_files.empty());
  // Other bytes than were written, where the digest of a block tells, and where the index of a file does.
  fs.cache->flips = true;
  (void)load();
}

TEST_CASE("a load of many requests finds its latency, keeps within its bounds, and brings the same bytes") {
  // Four requests of 2 MiB for each thread that begins, and for one more.
  const auto count =
      static_cast<std::size_t>(cairn::detail::load_threads() + 2) * 8 * mebibyte / sizeof(std::uint32_t);
  std::vector<std::uint32_t> saved(count), loaded(count);
  std::iota(saved.begin(), saved.end(), 7U);
  cairn::checkpointer c{cairn::memory_store{}, quiet()};
  cairn::state_dict from, to;
  from.tensor("t", saved.data(), {static_cast<std::int64_t>(count)});
  to.tensor("t", loaded.data(), {static_cast<std::int64_t>(count)});
  c.save(from, 1).wait();
  const auto report = c.load(to, 1);
  c.close();
  CHECK(saved == loaded);
  CHECK(report.stages.latency_seconds > 0);
  CHECK(report.stages.reads_in_flight >= 1);
  CHECK(report.stages.reads_in_flight <= 64);
  CHECK(report.bytes_read <= report.bytes + mebibyte);
}

TEST_CASE("reads are doubled as long as a large one takes less than twice as long as a small one alone") {
  using rule = cairn::detail::reads_in_flight;
  constexpr std::int64_t ms = 1'000'000;
  // The time of each large read with so many under way, where the latency is 10 ms and the bandwidth takes 20 more.
  const auto took = [&](std::size_t in_flight) {
    return 10 * ms + (in_flight > 20 ? static_cast<std::int64_t>(in_flight - 20) * ms : 0);
  };
  const auto settle = [&](rule& r, auto&& each) {
    std::int64_t sum = 0;
    std::uint64_t reads = 0;
    std::vector<std::size_t> counts{r.count()};
    for (int i = 0; i < 1000; ++i) {
      sum += each(r.count());
      r.large_took(sum, ++reads);
      if (r.count() != counts.back()) counts.push_back(r.count());
    }
    return counts;
  };
  {
    rule r(8, 64);
    CHECK(r.is_open());
    for (const auto small : {30 * ms, 10 * ms, 11 * ms}) r.small_took(small);
    CHECK(r.latency() == 10 * ms);
    CHECK(settle(r, took) == std::vector<std::size_t>{8, 16, 32});
    CHECK(!r.is_open());
  }
  {
    rule r(8, 24);  // no more than there is memory for
    r.small_took(10 * ms);
    CHECK(settle(r, [&](std::size_t) { return 10 * ms; }) == std::vector<std::size_t>{8, 16, 24});
    CHECK(!r.is_open());
  }
  {
    rule r(8, 64);  // a local device: what is large waits for its bandwidth
    r.small_took(ms / 10);
    CHECK(settle(r, [&](std::size_t n) { return static_cast<std::int64_t>(n) * ms / 2; }).size() == 1);
    CHECK(!r.is_open());
  }
  {
    rule r(8, 64);  // nothing is known of the latency: what is in memory was not asked for
    CHECK(settle(r, took).size() == 1);
  }
  CHECK(!rule(8, 8).is_open());
  CHECK(!rule(8, 3).is_open());
}
