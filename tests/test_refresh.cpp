// SPDX-License-Identifier: Apache-2.0
// uses: cairn::zstd
// cost: 5
//
// What refresh() reads, and what memory holds afterwards: on one rank and several, in any sharding, and when it fails.
#include <cairn/any_checkpointer.hpp>
#include <cairn/checkpointer.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/load_options.hpp>
#include <cairn/storage/compressed/compressed_storage.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/stores/file_store.hpp>
#if CAIRN_USES_ZSTD + 0
#include <cairn/storage/compressed/zstd_codec.hpp>
#endif

#include <doctest/doctest.h>
#include <support/codec_archetype.hpp>
#include <support/faulty_store.hpp>
#include <support/on_all_ranks.hpp>
#include <support/planner_conformance.hpp>
#include <support/scratch_directory.hpp>
#include <support/still_threads.hpp>

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {
using namespace cairn_test;
using cairn::error_id;
namespace fs = std::filesystem;

constexpr std::size_t block_floats = cairn::digest_block_bytes / sizeof(float);

struct least_refresh_option {
  static constexpr bool compares = true;
  void add_to(cairn::load_request&) const {}
};
static_assert(cairn::RefreshOption<least_refresh_option> && cairn::RefreshOption<cairn::verify_memory_t> &&
              !cairn::RefreshOption<cairn::only>);
static_assert(cairn::ComparesBlocks<cairn::safetensors_reader>);

/// Files, with a count of the bytes that are read of them. Copies share it.
class counted_store : public faulty_store<cairn::file_store> {
  using base = faulty_store<cairn::file_store>;

 public:
  using cairn_role = cairn::role::store;
  explicit counted_store(const std::string& path)
      : counted_store(path, std::make_shared<store_faults>(),
                      std::make_shared<std::atomic<std::uint64_t>>(0)) {}
  void read(std::span<const cairn::read_range> ranges) {
    for (const auto& r : ranges) *bytes_ += r.destination.size();
    base::read(ranges);
  }
  std::optional<std::vector<std::byte>> read_all(std::string_view key, std::uint64_t cap) {
    auto all = base::read_all(key, cap);
    if (all) *bytes_ += all->size();
    return all;
  }
  /// Bytes that were read since the last call.
  [[nodiscard]] std::uint64_t take() const { return bytes_->exchange(0); }
  [[nodiscard]] store_faults& faults() const { return *faults_; }

 private:
  counted_store(const std::string& path, std::shared_ptr<store_faults> faults,
                std::shared_ptr<std::atomic<std::uint64_t>> bytes)
      : base(cairn::file_store{path}, faults), faults_(std::move(faults)), bytes_(std::move(bytes)) {}
  std::shared_ptr<store_faults> faults_;
  std::shared_ptr<std::atomic<std::uint64_t>> bytes_;
};

cairn::checkpointer_options quiet() {
  return {.timeout = std::chrono::seconds(120), .peer_timeout = std::chrono::seconds(120), .quiet = true};
}
std::vector<float> floats(std::size_t count, float seed = 0) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), seed);
  return values;
}
/// A run that trains beside: named tensors of one dimension.
struct trainer {
  scratch_directory directory;
  std::vector<std::pair<std::string, std::vector<float>>> tensors;
  void save(std::int64_t step) {
    cairn::state_dict state;
    for (auto& [name, values] : tensors)
      state.tensor(name, values.data(), {static_cast<std::int64_t>(values.size())});
    cairn::checkpointer ckpt{cairn::file_store{directory.path()}, quiet()};
    ckpt.save(state, step).wait();
    ckpt.close();
  }
  [[nodiscard]] std::string file_of(std::int64_t step) const {
    for (const auto& f : fs::directory_iterator(directory.path() + "/" + cairn::step_directory(step)))
      if (f.path().extension() == ".safetensors") return f.path().string();
    return {};
  }
};
/// Turns a bit of a file.
void damage(const std::string& file, std::uint64_t at) {
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(static_cast<std::streamoff>(at));
  const auto c = static_cast<char>(f.get() ^ 1);
  f.seekp(static_cast<std::streamoff>(at));
  f.put(c);
}

/// A communicator that notes how long a receive() may take at most, and gives it two minutes.
class noting_communicator {
 public:
  using cairn_role = cairn::role::communicator;
  explicit noting_communicator(cairn::thread_communicator inner) : inner_(std::move(inner)) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  void send(int to, std::span<const std::byte> bytes, cairn::deadline until) {
    inner_.send(to, bytes, until);
  }
  [[nodiscard]] std::vector<std::byte> receive(int from, cairn::deadline until) {
    *longest_ = std::max(*longest_, until.left());
    return inner_.receive(from, cairn::deadline::in(std::chrono::minutes(2)));
  }
  /// The longest so far; for the thread that receives, and after its end.
  [[nodiscard]] const std::shared_ptr<std::chrono::nanoseconds>& longest() const noexcept { return longest_; }

 private:
  cairn::thread_communicator inner_;
  std::shared_ptr<std::chrono::nanoseconds> longest_ = std::make_shared<std::chrono::nanoseconds>(0);
};

TEST_CASE("a refresh reads the blocks that changed, and little else") {
  trainer run;
  run.tensors = {{"w", floats(36 * block_floats)}, {"v", floats(4 * block_floats - 7)}};
  run.save(1);
  counted_store store(run.directory.path());
  cairn::checkpointer ckpt{store, quiet()};
  std::vector<float> w(run.tensors[0].second.size()), v(run.tensors[1].second.size());
  cairn::state_dict state;
  state.tensor("w", w, {static_cast<std::int64_t>(w.size())});
  state.tensor("v", v, {static_cast<std::int64_t>(v.size())});
  ckpt.load(state, 1);

  run.tensors[0].second[7 * block_floats + 3] = -1;  // one number: one block
  run.tensors[1].second.back() = -2;
  run.save(2);
  static_cast<void>(store.take());
  auto report = ckpt.refresh(state);
  CHECK(report.step == 2);
  CHECK(report.blocks == 40);
  CHECK(report.blocks_equal == 38);
  CHECK(w == run.tensors[0].second);
  CHECK(v == run.tensors[1].second);
  const auto read = store.take();
  MESSAGE("read " << read << " bytes for 2 of 40 blocks");
  CHECK(read <= 2 * cairn::digest_block_bytes * 105 / 100);  // 5 % of the blocks changed
  CHECK(report.bytes_read <= read);

  report = ckpt.refresh(state);  // nothing is new
  CHECK(report.blocks_equal == 40);
  CHECK(store.take() < cairn::digest_block_bytes / 20);
  report = ckpt.refresh(state, 1);  // back
  CHECK(report.blocks_equal == 38);
  CHECK(w[7 * block_floats + 3] == floats(1, static_cast<float>(7 * block_floats + 3))[0]);
  CHECK(v.back() != -2);
}

TEST_CASE("a refresh loads what it does not know") {
  trainer run;
  run.tensors = {{"w", floats(2 * block_floats)}, {"v", floats(10)}};
  run.save(1);
  cairn::checkpointer ckpt{counted_store(run.directory.path()), quiet()};
  std::vector<float> w(2 * block_floats), v(10);
  const auto state_over = [&] {
    cairn::state_dict s;
    s.tensor("w", w, {static_cast<std::int64_t>(w.size())});
    s.tensor("v", v, {10});
    return s;
  };
  const auto equal = [&](const cairn::state_dict& s) {
    const auto report = ckpt.refresh(s);
    CHECK(w == run.tensors[0].second);
    CHECK(v == run.tensors[1].second);
    return report.blocks_equal;
  };
  auto state = state_over();
  CHECK(equal(state) == 0);  // nothing was loaded before
  CHECK(equal(state) == 3);
  w.assign(w.size(), 0);
  {
    const auto other = state_over();  // what lay there before is not taken for it
    CHECK(equal(other) == 0);
    const auto copy = other;
    CHECK(equal(copy) == 3);
  }
  CHECK(equal(state) == 0);  // another state has written there
  auto moved = w;
  std::fill(moved.begin(), moved.end(), 0.0f);
  w.swap(moved);
  CHECK(equal(state) == 1);  // the container has other memory
  {
    std::vector<float> first(10);  // a load of some of the memory under another name
    cairn::state_dict part;
    part.tensor("v", w.data(), {10});
    ckpt.load(part, 1, cairn::only{"v"}, cairn::partial);
  }
  CHECK(equal(state) == 1);  // w is read whole, v is as it was
  // Items that a refresh leaves out stay as they were, and are known.
  run.tensors[0].second[0] = 5;
  run.tensors[1].second[0] = 6;
  run.save(2);
  auto report = ckpt.refresh(state, cairn::only{"w"});
  CHECK(report.blocks == 2);
  CHECK(v[0] == 0);
  CHECK(equal(state) == 2);
  CHECK(v[0] == 6);
}

TEST_CASE("memory is trusted, or hashed where that is asked for") {
  trainer run;
  run.tensors = {{"w", floats(3 * block_floats)}};
  run.save(1);
  cairn::checkpointer ckpt{cairn::file_store{run.directory.path()}, quiet()};
  std::vector<float> w(3 * block_floats);
  cairn::state_dict state;
  state.tensor("w", w, {3, static_cast<std::int64_t>(block_floats)});
  CHECK_THROWS_AS(ckpt.refresh(state), cairn::plan_error);  // another shape: memory stays as it is
  CHECK(ckpt.torn_items().empty());
  cairn::state_dict right;
  right.tensor("w", w, {static_cast<std::int64_t>(w.size())});
  ckpt.load(right, 1);
  w[block_floats] = -1;
  CHECK(ckpt.refresh(right).blocks_equal == 3);
  CHECK(w[block_floats] == -1);
  CHECK(ckpt.refresh(right, cairn::verify_memory).blocks_equal == 2);
  CHECK(w == run.tensors[0].second);
  // Also memory of which nothing is known, with strides, and of which a part of a block is not here.
  std::vector<float> wide(2 * w.size());
  cairn::tensor_view columns{reinterpret_cast<std::byte*>(wide.data()),
                             cairn::dtype::f32,
                             cairn::extents{static_cast<std::int64_t>(w.size())},
                             {2}};
  for (std::size_t i = 0; i < w.size(); ++i) wide[2 * i] = w[i];
  wide[2 * block_floats] = -1;
  cairn::state_dict strided;
  strided.tensor("w", columns);
  CHECK(ckpt.refresh(strided, cairn::verify_memory).blocks_equal == 2);
  CHECK(wide[2 * block_floats] == w[block_floats]);
  std::vector<float> half(w.begin(), w.begin() + 3 * block_floats / 2);
  cairn::state_dict part;
  part.tensor("w", half, cairn::shard{{static_cast<std::int64_t>(w.size())}, {0}});
  const auto report = ckpt.refresh(part, cairn::verify_memory);
  CHECK(report.blocks == 2);
  CHECK(report.blocks_equal == 1);
}

TEST_CASE("what was saved is known, too") {
  scratch_directory directory;
  auto w = floats(3 * block_floats);
  cairn::state_dict state;
  state.tensor("w", w, {static_cast<std::int64_t>(w.size())});
  cairn::checkpointer ckpt{cairn::file_store{directory.path()}, quiet()};
  ckpt.save(state, 1).wait();
  {
    auto other = w;
    other[0] = -1;
    cairn::state_dict theirs;
    theirs.tensor("w", other, {static_cast<std::int64_t>(w.size())});
    cairn::checkpointer trains{cairn::file_store{directory.path()}, quiet()};
    trains.save(theirs, 2).wait();
  }
  auto report = ckpt.refresh(state);
  CHECK(report.blocks_equal == 2);
  CHECK(w[0] == -1);
  // A save that is not there any more tells nothing.
  ckpt.save(state, 3).wait();
  ckpt.remove(3);
  report = ckpt.refresh(state);
  CHECK(report.step == 2);  // the run went back
  CHECK(report.blocks_equal == 0);
}

TEST_CASE("what one state was saved as is not taken for the memory of another") {
  scratch_directory directory;
  cairn::checkpointer ckpt{cairn::file_store{directory.path()}, quiet()};
  const auto saved = floats(2 * block_floats);
  const auto size = static_cast<std::int64_t>(saved.size());
  auto w = saved;
  cairn::state_dict state;
  state.tensor("w", w, {size});
  {
    std::vector<float> here(w.size());
    cairn::state_dict other;  // of the same structure
    other.tensor("w", here, {size});
    ckpt.save(state, 1).wait();
    CHECK(ckpt.refresh(other, 1).blocks_equal == 0);
    CHECK(here == saved);
  }
  {
    std::vector<float> moved(w.size());
    ckpt.save(state, 2).wait();
    w.swap(moved);  // the container has other memory
    CHECK(ckpt.refresh(state, 2).blocks_equal == 0);
    CHECK(w == saved);
  }
  {
    std::vector<float> here(w.size());
    auto bound = w;
    cairn::state_dict views;
    views.tensor("w", bound.data(), {size});
    ckpt.save(views, 3).wait();
    views.rebind("w", here.data());
    CHECK(ckpt.refresh(views, 3).blocks_equal == 0);
    CHECK(here == saved);
  }
  ckpt.save(state, 4).wait();
  int asked = 0;
  state.version(7);
  state.migrate([&](cairn::migration&) { ++asked; });
  ckpt.refresh(state, 4);
  CHECK(asked == 1);  // by the refresh alone
  CHECK(w == saved);
}

TEST_CASE("a save that made no checkpoint tells nothing, though an earlier one of its step did") {
  scratch_directory directory;
  counted_store store(directory.path());
  auto options = quiet();
  options.when_busy = cairn::busy_policy::skip;
  cairn::checkpointer ckpt{store, options};
  const auto first = floats(2 * block_floats);
  auto w = first;
  cairn::state_dict state;
  state.tensor("w", w, {static_cast<std::int64_t>(w.size())});
  ckpt.save(state, 10).wait();
  w[0] = -1;
  CHECK(failure_of([&] { ckpt.save(state, 10).wait(); }).id() == error_id::storage_already_committed);
  CHECK(ckpt.refresh(state, 10).blocks_equal == 0);
  CHECK(w == first);

  std::promise<void> go;
  const auto gone = go.get_future().share();
  store.faults().add({.kind = store_call::create,
                      .key_contains = "step-00000011",
                      .action = [gone](std::string_view) { gone.wait_for(std::chrono::seconds(60)); }});
  const auto under_way = ckpt.save(state, 11);
  w[0] = -2;
  const auto skipped = ckpt.save(state, 10);
  go.set_value();
  under_way.wait();
  CHECK(skipped.skipped());
  CHECK(ckpt.refresh(state, 10).blocks_equal == 0);
  CHECK(w == first);
}

TEST_CASE("any sharding of files and memory: a refresh leaves what a load leaves") {
  std::mt19937 random(7);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(high - low + 1));
  };
  constexpr std::int64_t rows = 37;
  constexpr std::int64_t columns = 30'011;  // blocks begin within rows
  auto whole = floats(static_cast<std::size_t>(rows * columns));
  scratch_directory directory;
  struct reader {
    cairn::chunk box;
    std::vector<float> memory;
    cairn::state_dict state;
    std::optional<cairn::checkpointer_for<cairn::file_store, cairn::checkpointer_options>> ckpt;
  };
  std::vector<std::unique_ptr<reader>> readers;
  for (int r = 0; r < 4; ++r) {
    auto made = std::make_unique<reader>();
    const auto top = pick(0, rows / 2), left = pick(0, columns / 2);
    made->box = {{top, left}, {pick(1, rows - top), r == 0 ? columns - left : pick(1, columns - left)}};
    made->memory.resize(static_cast<std::size_t>(made->box.sizes.volume()));
    made->state.tensor("w", made->memory.data(),
                       cairn::shard{{rows, columns}, made->box.offsets, made->box.sizes});
    made->ckpt.emplace(cairn::file_store{directory.path()}, quiet());
    readers.push_back(std::move(made));
  }
  std::uint64_t left_out = 0;
  int ranks = 1;
  for (std::int64_t step = 1; step <= 12; ++step) {
    for (auto n = pick(0, 2); n > 0; --n) whole[static_cast<std::size_t>(pick(0, rows * columns - 1))] += 1;
    if (step % 3 == 1) ranks = static_cast<int>(pick(1, 3));  // files in other pieces than before
    const cairn::thread_group group(ranks);
    cairn_test::on_all_ranks(ranks, [&](int rank) {
      const auto first = rows * rank / ranks, last = rows * (rank + 1) / ranks;
      cairn::state_dict state;
      state.tensor("w", whole.data() + first * columns,
                   cairn::shard{{rows, columns}, {first, 0}, {last - first, columns}});
      cairn::checkpointer ckpt{cairn::file_store{directory.path()}, group.communicator(rank), quiet()};
      ckpt.save(state, step).wait();
      ckpt.close();
    });
    for (auto& r : readers) {
      left_out += r->ckpt->refresh(r->state).blocks_equal;
      std::size_t at = 0;
      bool right = true;
      for (std::int64_t i = 0; i < r->box.sizes[0]; ++i)
        for (std::int64_t j = 0; j < r->box.sizes[1]; ++j)
          right =
              right &&
              r->memory[at++] ==
                  whole[static_cast<std::size_t>((r->box.offsets[0] + i) * columns + r->box.offsets[1] + j)];
      CHECK(right);
    }
  }
  CHECK(left_out > 0);
}

TEST_CASE("a refresh that fails says what is torn, and the next one loads that whole") {
  trainer run;
  run.tensors = {{"a", floats(2 * block_floats)}, {"w", floats(3 * block_floats)}};
  run.save(1);
  cairn::checkpointer ckpt{cairn::file_store{run.directory.path()}, quiet()};
  std::vector<float> a(2 * block_floats), w(3 * block_floats);
  std::string text;
  cairn::state_dict state;
  state.tensor("a", a, {static_cast<std::int64_t>(a.size())});
  state.tensor("w", w, {static_cast<std::int64_t>(w.size())});
  ckpt.load(state, 1);

  // Before memory changes: a file is gone.
  run.tensors[1].second[0] = -1;
  run.save(2);
  const auto file = run.file_of(2);
  fs::rename(file, file + ".away");
  CHECK(failure_of([&] { ckpt.refresh(state); }).id() == error_id::corrupt_missing_file);
  CHECK(ckpt.torn_items().empty());
  CHECK(w == floats(3 * block_floats));
  fs::rename(file + ".away", file);

  // On the way: a block of w is not what was written.
  damage(file, fs::file_size(file) - 3 * cairn::digest_block_bytes + 100);
  const auto failure = failure_of([&] { ckpt.refresh(state); });
  CHECK(failure.id() == error_id::corrupt_digest);
  CHECK(failure.fields().item == "w");
  CHECK(ckpt.torn_items() == std::vector<std::string>{"w"});
  CHECK(a == run.tensors[0].second);
  // One that ends before memory changes leaves it so.
  CHECK(failure_of([&] { ckpt.refresh(state, 9); }).id() == error_id::storage_not_committed);
  CHECK(ckpt.torn_items().size() == 1);

  run.tensors[0].second[0] = -3;
  run.save(3);
  const auto report = ckpt.refresh(state);
  CHECK(report.blocks == 5);
  CHECK(report.blocks_equal == 1);  // of a; w was torn
  CHECK(ckpt.torn_items().empty());
  CHECK(a == run.tensors[0].second);
  CHECK(w == run.tensors[1].second);
}

TEST_CASE("a refresh that cannot begin leaves the rest of a padded tensor, too") {
  trainer run;
  run.tensors = {{"w", floats(block_floats)}};
  run.save(1);
  cairn::checkpointer ckpt{cairn::file_store{run.directory.path()}, quiet()};
  std::vector<float> w(2 * block_floats, 5.0F);
  cairn::state_dict state;
  state.tensor("w", w, {static_cast<std::int64_t>(w.size())});
  ckpt.load(state, 1, cairn::pad{"w", 0, cairn::keep_rest});
  run.tensors[0].second[0] = -1;
  run.save(2);
  const auto file = run.file_of(2);
  fs::rename(file, file + ".away");
  const auto before = w;
  CHECK(failure_of([&] {
          ckpt.refresh(state, 2, cairn::pad{"w", 0, 9.0});
        }).id() == error_id::corrupt_missing_file);
  CHECK(ckpt.torn_items().empty());
  CHECK(w == before);
  fs::rename(file + ".away", file);
  static_cast<void>(ckpt.refresh(state, 2, cairn::pad{"w", 0, 9.0}));
  CHECK(w[0] == -1);
  CHECK(w.back() == 9);
}

TEST_CASE("bytes that get another size are read, and torn where the refresh fails") {
  scratch_directory directory;
  std::string text = "first";
  auto w = floats(10);
  cairn::state_dict saved;
  saved.bytes("text", text);
  saved.tensor("w", w, {10});
  cairn::checkpointer trains{cairn::file_store{directory.path()}, quiet()};
  trains.save(saved, 1).wait();
  std::string here = "first";
  std::vector<float> there(10);
  cairn::state_dict state;
  state.bytes("text", here);
  state.tensor("w", there, {10});
  counted_store store(directory.path());
  cairn::checkpointer ckpt{store, quiet()};
  ckpt.load(state, 1);
  text = "the second one";
  trains.save(saved, 2).wait();
  store.faults().add(
      {.kind = store_call::read, .key_contains = ".safetensors", .action = [](std::string_view) {
         cairn::fail(error_id::storage_io, "an injected fault");
       }});
  CHECK(failure_of([&] { ckpt.refresh(state); }).id() == error_id::storage_io);
  CHECK(ckpt.torn_items() == std::vector<std::string>{"text"});
  const auto report = ckpt.refresh(state);
  CHECK(here == text);
  CHECK(report.blocks_equal == 1);
  text = "first";
  trains.save(saved, 3).wait();
  ckpt.refresh(state);
  CHECK(here == text);
}

TEST_CASE("a checkpoint that is removed while it is refreshed gives way to the newest") {
  trainer run;
  run.tensors = {{"w", floats(2 * block_floats)}};
  run.save(1);
  counted_store store(run.directory.path());
  cairn::checkpointer ckpt{store, cairn::read_only{}, quiet()};  // it holds no lease
  std::vector<float> w(2 * block_floats);
  cairn::state_dict state;
  state.tensor("w", w, {static_cast<std::int64_t>(w.size())});
  ckpt.load(state, 1);
  run.tensors[0].second[0] = -1;
  run.save(2);
  store.faults().add(
      {.kind = store_call::size, .key_contains = ".safetensors", .action = [&](std::string_view) {
         run.tensors[0].second[1] = -2;
         run.save(3);
         cairn::checkpointer other{cairn::file_store{run.directory.path()}, quiet()};
         other.remove(2);
       }});
  const auto report = ckpt.refresh(state);
  CHECK(report.step == 3);
  CHECK(report.blocks_equal == 1);
  CHECK(w == run.tensors[0].second);
}

TEST_CASE("a lease keeps the checkpoint that is refreshed from removal") {
  trainer run;
  run.tensors = {{"w", floats(10)}};
  run.save(1);
  std::vector<float> w(10);
  cairn::state_dict state;
  state.tensor("w", w, {10});
  bool refused = false;
  counted_store store(run.directory.path());
  store.faults().add(
      {.kind = store_call::size, .key_contains = ".safetensors", .action = [&](std::string_view) {
         cairn::checkpointer other{cairn::file_store{run.directory.path()}, quiet()};
         refused = failure_of([&] { other.remove(1); }).id() == error_id::storage_leased;
       }});
  cairn::checkpointer ckpt{store, quiet()};
  CHECK(ckpt.refresh(state).step == 1);
  CHECK(refused);
}

TEST_CASE("what is stored as another dtype is refused, and memory stays") {
  scratch_directory directory;
  auto w = floats(10);
  std::vector<double> wide(10, 2.5);
  cairn::state_dict narrow, other;
  narrow.tensor("w", w, {10});
  other.tensor("w", wide, {10});
  cairn::checkpointer trains{cairn::file_store{directory.path()}, quiet()};
  trains.save(narrow, 1).wait();
  std::vector<float> here(10);
  cairn::state_dict state;
  state.tensor("w", here, {10});
  cairn::checkpointer ckpt{cairn::file_store{directory.path()}, quiet()};
  CHECK(failure_of([&] { ckpt.refresh(state, 5); }).id() == error_id::storage_not_committed);
  ckpt.load(state, 1);
  trains.save(other, 2).wait();
  CHECK(failure_of([&] { ckpt.refresh(state); }).id() == error_id::plan_dtype_mismatch);
  CHECK(here == w);
  CHECK(ckpt.torn_items().empty());
  CHECK(ckpt.refresh(state, cairn::convert{}).converted.size() == 1);
  CHECK(here == std::vector<float>(10, 2.5f));
  CHECK(ckpt.refresh(state, cairn::convert{}).blocks_equal == 1);
}

TEST_CASE("ranks refresh together: memory changes on all of them or on none") {
  scratch_directory directory;
  const auto run = [&](auto body) {
    const cairn::thread_group group(2);
    const auto wrong = cairn_test::said_on_ranks(2, [&](int rank) {
      cairn::checkpointer ckpt{cairn::file_store{directory.path()}, group.communicator(rank), quiet()};
      body(ckpt, rank);
      ckpt.close();
    });
    CHECK(wrong == std::vector<std::string>(2));
  };
  const auto save = [&](std::int64_t step, float seed) {
    run([&](auto& ckpt, int rank) {
      auto rows = floats(2 * block_floats, static_cast<float>(rank));
      rows[0] = seed;
      cairn::state_dict state;
      state.tensor("w", rows, cairn::shard{{4, static_cast<std::int64_t>(block_floats)}, {2 * rank, 0}});
      ckpt.save(state, step).wait();
    });
  };
  save(1, 10), save(2, 20), save(3, 30), save(4, 40);
  const auto file = [&](std::int64_t step, int rank) {
    for (const auto& f : fs::directory_iterator(directory.path() + "/" + cairn::step_directory(step)))
      if (f.path().extension() == ".safetensors" &&
          f.path().filename().string().starts_with("rank-0000" + std::to_string(rank)))
        return f.path().string();
    return std::string();
  };
  fs::remove(file(2, 1));         // rank 1 cannot begin
  damage(file(3, 1), 4096 + 50);  // rank 1 cannot go on
  run([&](auto& ckpt, int rank) {
    std::vector<float> rows(2 * block_floats);
    cairn::state_dict state;
    state.tensor("w", rows, cairn::shard{{4, static_cast<std::int64_t>(block_floats)}, {2 * rank, 0}});
    ckpt.load(state, 1);
    const auto thrown = [&](std::int64_t step) {
      try {
        ckpt.refresh(state, step);
      } catch (const cairn::corrupt_error& e) {
        return e.id();
      }
      return error_id::usage_closed;
    };
    if (thrown(2) != error_id::corrupt_missing_file) throw std::runtime_error("no missing file");
    if (rows[0] != 10 || !ckpt.torn_items().empty()) throw std::runtime_error("memory changed");
    if (thrown(3) != error_id::corrupt_digest) throw std::runtime_error("no damage");
    if (ckpt.torn_items() != std::vector<std::string>{"w"}) throw std::runtime_error("nothing torn");
    const auto report = ckpt.refresh(state);
    if (report.step != 4 || report.blocks != 2) throw std::runtime_error("another step");
    if (report.blocks_equal != (rank == 0 ? 1u : 0u)) throw std::runtime_error("torn blocks were not read");
    auto expected = floats(2 * block_floats, static_cast<float>(rank));
    expected[0] = 40;
    if (rows != expected || !ckpt.torn_items().empty()) throw std::runtime_error("other memory");
  });
}

TEST_CASE("of what several ranks want, each block that one of them lacks is read once") {
  constexpr int ranks = 3;
  trainer run;
  run.tensors = {{"w", floats(8 * block_floats)}, {"v", floats(2 * block_floats, 3)}};
  auto& w = run.tensors[0].second;
  const auto save = [&](std::int64_t step, std::vector<std::size_t> blocks) {
    for (const auto b : blocks) w[b * block_floats + 1] = -static_cast<float>(step);
    run.save(step);
    return run.tensors;
  };
  save(1, {});
  const std::vector<std::vector<std::pair<std::string, std::vector<float>>>> saved = {
      save(2, {2, 5}), save(3, {0}), save(4, {}), save(5, {7})};
  damage(run.file_of(4), 4096 + 3 * cairn::digest_block_bytes + 9);
  const cairn::thread_group group(ranks);
  std::vector<std::vector<std::uint64_t>> read(ranks);
  const auto wrong = cairn_test::said_on_ranks(ranks, [&](int rank) {
    counted_store store(run.directory.path());
    cairn::checkpointer ckpt{store, group.communicator(rank), quiet()};
    struct memory {
      std::vector<float> w = std::vector<float>(8 * block_floats), v = std::vector<float>(2 * block_floats);
      cairn::state_dict state;
      memory() {
        state.tensor("w", w, {8 * static_cast<std::int64_t>(block_floats)});
        state.tensor("v", v, {2 * static_cast<std::int64_t>(block_floats)});
      }
    };
    memory first, second;  // the second is memory that one rank knows nothing of
    auto& known = rank == 1 ? second : first;
    ckpt.load(first.state, 1);
    const auto refresh = [&](memory& m, std::int64_t step) {
      static_cast<void>(store.take());
      const auto report = ckpt.refresh(m.state, step);
      read[static_cast<std::size_t>(rank)].push_back(store.take());
      const auto& expected = saved[static_cast<std::size_t>(step - 2)];
      if (m.w != expected[0].second || m.v != expected[1].second) throw std::runtime_error("other memory");
      return report;
    };
    if (refresh(first, 2).blocks_equal != 8) throw std::runtime_error("not the blocks that changed");
    if (refresh(known, 3).blocks_equal != (rank == 1 ? 0u : 9u)) throw std::runtime_error("other blocks");
    // What one rank lacks is damaged: nobody's memory is known to be whole.
    memory other;
    try {
      ckpt.refresh(rank == 2 ? other.state : known.state, 4);
      throw std::runtime_error("no damage");
    } catch (const cairn::corrupt_error&) {
    }
    const auto torn = ckpt.torn_items();
    if (!std::binary_search(torn.begin(), torn.end(), "w")) throw std::runtime_error("nothing torn");
    refresh(rank == 2 ? other : known, 5);
    ckpt.close();
  });
  CHECK(wrong == std::vector<std::string>(ranks));
  const auto by_all = [&](std::size_t i) {
    std::uint64_t bytes = 0;
    for (const auto& of : read) bytes += of.at(i);
    return bytes;
  };
  constexpr auto block = cairn::digest_block_bytes;
  CHECK(by_all(0) <= 2 * block + block / 20);   // of one record and manifest, too
  CHECK(by_all(1) <= 10 * block + block / 20);  // by one rank, and by the others of it for that one
  for (const auto& of : read) CHECK(of.at(1) < 10 * block);
}

TEST_CASE("one rank decides whether there is time for another checkpoint") {
  trainer run;
  run.tensors = {{"w", floats(10)}};
  run.save(2);
  const cairn::thread_group group(2);
  std::vector<std::string> ends(2);
  const auto refresh = [&](int rank, auto communicator, cairn::checkpointer_options options) {
    counted_store store(run.directory.path());
    if (rank == 1)
      store.faults().add(
          {.kind = store_call::size, .key_contains = ".safetensors", .action = [&](std::string_view) {
             run.save(3);
             cairn::checkpointer{cairn::file_store{run.directory.path()}, quiet()}.remove(2);
             std::this_thread::sleep_for(options.timeout);  // here it is too late now
           }});
    std::vector<float> w(10);
    cairn::state_dict state;
    state.tensor("w", w, {10});
    auto& end = ends[static_cast<std::size_t>(rank)];
    try {
      cairn::checkpointer ckpt{store, std::move(communicator), cairn::read_only{}, options};
      end = "step " + std::to_string(ckpt.refresh(state).step);
      ckpt.close();
    } catch (const cairn::error& e) {
      end = cairn::error_name(e.id());
    }
  };
  {
    std::jthread first([&] { refresh(0, group.communicator(0), quiet()); });
    std::jthread second([&] {
      auto options = quiet();
      options.timeout = std::chrono::milliseconds(100);
      refresh(1, noting_communicator(group.communicator(1)), options);
    });
  }
  CHECK_FALSE(ends[0].empty());
  CHECK(ends[0] == ends[1]);
}

TEST_CASE("compressed checkpoints are refreshed block by block, too") {
  scratch_directory directory;
#if CAIRN_USES_ZSTD + 0
  const auto make = [&] {
    return cairn::compressed_storage(counted_store(directory.path()), cairn::zstd_codec{});
  };
#else
  const auto make = [&] {
    return cairn::compressed_storage(counted_store(directory.path()), codec_archetype::make());
  };
#endif
  auto w = floats(6 * block_floats);
  cairn::state_dict saved;
  saved.tensor("w", w, {static_cast<std::int64_t>(w.size())});
  cairn::checkpointer trains{make(), quiet()};
  trains.save(saved, 1).wait();
  std::vector<float> here(w.size());
  cairn::state_dict state;
  state.tensor("w", here, {static_cast<std::int64_t>(w.size())});
  cairn::checkpointer ckpt{make(), quiet()};
  ckpt.load(state, 1);
  w[0] = -1;
  trains.save(saved, 2).wait();
  CHECK(ckpt.refresh(state).blocks_equal == 5);
  CHECK(here == w);
}

static_assert(cairn::WatchesCheckpoints<cairn::safetensors_reader> &&
              cairn::WatchesChanges<cairn::file_store> && !cairn::WatchesChanges<counted_store>);

TEST_CASE("a follower gives the newest step, and each newer one while it waits") {
  for (const bool watched : {true, false}) {
    CAPTURE(watched);
    trainer run;
    run.tensors = {{"w", floats(10)}};
    counted_store store(run.directory.path());  // tells of no changes
    cairn::any_checkpointer ckpt;
    if (watched)
      ckpt = cairn::checkpointer{cairn::file_store{run.directory.path()}, quiet()};
    else
      ckpt = cairn::checkpointer{store, quiet()};
    int asked = 0;
    std::vector<std::vector<std::int64_t>> to_come = {{1}, {2}, {3, 4}};
    const auto save = [&] {  // what the trainer does while the follower waits
      if (++asked % 2 == 0 && !to_come.empty()) {
        for (const auto step : to_come.front()) run.save(step);
        to_come.erase(to_come.begin());
      }
      return false;
    };
    auto steps = ckpt.follow({.stop = save});
    CHECK(steps.next() == 1);
    CHECK(steps.next() == 2);
    CHECK(steps.next() == 4);
    CHECK(steps.why() == cairn::follow_end::none);
    ckpt.remove(4);
    CHECK(steps.next() == 3);  // the run went back
    auto later = ckpt.follow({.after = 3, .gone_after = std::chrono::nanoseconds(0)});
    CHECK_FALSE(later.next());
    CHECK(later.why() == cairn::follow_end::trainer_gone);
    run.save(5);
    CHECK(later.next() == 5);
    store.faults().fail_at(store_call::list, 0);  // a store that fails once is asked again
    CHECK(steps.next() == 5);
    to_come = {{6}};
    CHECK(steps.next() == 6);
    ckpt.close();
    CHECK(failure_of([&] { (void)steps.next(); }).id() == error_id::usage_closed);
  }
}

TEST_CASE("a wait ends: by its deadline, by the caller, and when the trainer has gone") {
  scratch_directory directory;
  cairn::file_store store{directory.path()};
  cairn::checkpointer ckpt{store, cairn::read_only{}, quiet()};
  constexpr std::chrono::nanoseconds none(0);
  const auto end_of = [&](cairn::follow_options options) {
    auto steps = ckpt.follow(std::move(options));
    CHECK_FALSE(steps.next());
    return steps.why();
  };
  CHECK(end_of({.timeout = none}) == cairn::follow_end::timed_out);
  CHECK(end_of({.stop = [] { return true; }}) == cairn::follow_end::stopped);
  CHECK(end_of({.gone_after = none}) == cairn::follow_end::trainer_gone);
  {
    auto writing = store.create("step-00000007/rank-00000.00c0ffee00c0ffee.0.safetensors", 0);
    CHECK(end_of({.gone_after = none, .timeout = none}) == cairn::follow_end::timed_out);
  }
  CHECK(end_of({.gone_after = none}) == cairn::follow_end::trainer_gone);
  CHECK(failure_of([&] { (void)ckpt.follow({.timeout = std::chrono::seconds(-1)}); }).id() ==
        error_id::usage_bad_option);
}

namespace {
/// What shows which runs live.
std::vector<fs::path> signs_in(const scratch_directory& directory) {
  std::vector<fs::path> found;
  for (const auto& f : fs::directory_iterator(directory.path()))
    if (f.path().filename().string().starts_with("lease-run.")) found.push_back(f.path());
  return found;
}
}  // namespace

TEST_CASE("a trainer shows that it lives, that it has ended, and that it has died") {
  scratch_directory directory;
  std::vector<float> w(10);
  cairn::state_dict state;
  state.tensor("w", w, {10});
  std::optional<cairn::any_checkpointer> trainer;
  const auto train = [&] {
    auto announced = quiet();
    announced.announce_run = true;
    trainer = cairn::checkpointer{cairn::file_store{directory.path()}, announced};
    return trainer->resume(state);
  };
  cairn::checkpointer ckpt{cairn::file_store{directory.path()}, cairn::read_only{}, quiet()};
  int asked = 0;
  std::vector<std::function<void()>>
      happens;  // each while the follower waits, which asks several times meanwhile
  auto steps = ckpt.follow({.gone_after = std::chrono::nanoseconds(0), .stop = [&] {
                              if (++asked % 4 == 0 && !happens.empty()) {
                                happens.front()();
                                happens.erase(happens.begin());
                              }
                              return false;
                            }});
  train();
  happens = {[&] { trainer->save(state, 1).wait(); }, [&] { trainer->save(state, 2).wait(); }};
  CHECK(steps.next() == 1);  // without a commit so far, it was known to live
  CHECK(steps.next() == 2);
  happens = {[&] {
    trainer->save(state, 3).wait();
    trainer->close();
  }};
  CHECK(steps.next() == 3);  // before the news that it has ended
  CHECK_FALSE(steps.next());
  CHECK(steps.why() == cairn::follow_end::trainer_ended);
  CHECK_FALSE(steps.next());  // told once; no other run has come
  CHECK(steps.why() == cairn::follow_end::trainer_gone);
  const auto signs = [&] { return signs_in(directory); };
  CHECK(signs().empty());

  CHECK(train() == 3);
  REQUIRE(signs().size() == 1);
  const auto sign = signs()[0];
  happens = {[&] {  // as the kernel leaves it behind a process that was killed
    trainer->close();
    std::ofstream file(sign);
  }};
  CHECK_FALSE(steps.next());
  CHECK(steps.why() == cairn::follow_end::trainer_lost);
  CHECK(train() == 3);  // the next run tidies up
  CHECK(signs().size() == 1);
  CHECK(signs()[0] != sign);
}

TEST_CASE("a trainer that was killed has died, though the next one resumes before who follows looks again") {
  scratch_directory directory;
  std::vector<float> w(10);
  cairn::state_dict state;
  state.tensor("w", w, {10});
  auto announced = quiet();
  announced.announce_run = true;
  const auto open = [&](const cairn::checkpointer_options& options) {
    return cairn::checkpointer{cairn::file_store{directory.path()}, options};
  };
  const auto signs = [&] { return signs_in(directory); };
  std::optional trainer(open(announced));
  trainer->save(state, 1).wait();
  REQUIRE(signs().size() == 1);
  const auto sign = signs()[0];
  auto ckpt = cairn::checkpointer{cairn::file_store{directory.path()}, cairn::read_only{}, quiet()};
  std::optional<decltype(open(announced))> next;
  int asked = 0;
  auto steps =
      ckpt.follow({.gone_after = std::chrono::nanoseconds(0), .stop = [&] {
                     if (++asked != 4) return false;
                     trainer.reset();
                     std::ofstream file(sign);  // as the kernel leaves it behind a process that was killed
                     file.close();
                     next.emplace(open(quiet()));  // it does not announce itself
                     CHECK(next->resume(state) == 1);
                     return false;
                   }});
  CHECK(steps.next() == 1);
  CHECK_FALSE(steps.next());
  CHECK(steps.why() == cairn::follow_end::trainer_lost);
  next.reset();
  auto last = open(announced);
  CHECK(last.resume(state) == 1);  // tidies up
  REQUIRE(signs().size() == 1);
  CHECK(signs()[0] != sign);
}

TEST_CASE("who may only read the directory, or sees it read-only, sees that the trainer lives") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: another user and a mount need root");
    return;
  }
  scratch_directory directory;
  REQUIRE(::chmod(directory.path().c_str(), 0755) == 0);
  std::vector<float> w(10);
  cairn::state_dict state;
  state.tensor("w", w, {10});
  auto announced = quiet();
  announced.announce_run = true;
  cairn::checkpointer trainer{cairn::file_store{directory.path()}, announced};
  trainer.save(state, 1).wait();
  constexpr int cannot = 100;
  const auto end_seen_by = [&](auto become) {
    await_still_threads();
    const auto child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      try {
        if (!become()) ::_exit(cannot);
        cairn::checkpointer ckpt{cairn::file_store{directory.path()}, cairn::read_only{}, quiet()};
        auto steps = ckpt.follow({.gone_after = std::chrono::nanoseconds(0), .stop = [] { return true; }});
        if (steps.next() != 1 || steps.next()) ::_exit(cannot + 1);
        ::_exit(static_cast<int>(steps.why()));
      } catch (...) {
        ::_exit(cannot + 2);
      }
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    return WEXITSTATUS(status);
  };
  CHECK(end_seen_by([] {
          return ::setresgid(61'321, 61'321, 61'321) == 0 && ::setresuid(61'321, 61'321, 61'321) == 0;
        }) == static_cast<int>(cairn::follow_end::stopped));
  const auto mounted = end_seen_by([&] {
    const auto* path = directory.path().c_str();
    return ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount(path, path, nullptr, MS_BIND, nullptr) == 0 &&
           ::mount(nullptr, path, nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  });
  if (mounted == cannot)
    MESSAGE("skipped: no mount can be made here");
  else
    CHECK(mounted == static_cast<int>(cairn::follow_end::stopped));
}

TEST_CASE("who is always behind the trainer and never waits knows that it has ended, too") {
  scratch_directory directory;
  std::vector<float> w(10);
  cairn::state_dict state;
  state.tensor("w", w, {10});
  auto announced = quiet();
  announced.announce_run = true;
  cairn::checkpointer trainer{cairn::file_store{directory.path()}, announced};
  trainer.save(state, 1).wait();
  cairn::checkpointer ckpt{cairn::file_store{directory.path()}, cairn::read_only{}, quiet()};
  int asked = 0;
  auto steps = ckpt.follow({.gone_after = std::chrono::hours(1), .stop = [&] { return ++asked > 50; }});
  CHECK(steps.next() == 1);
  trainer.save(state, 2).wait();
  trainer.close();
  CHECK(steps.next() == 2);
  CHECK_FALSE(steps.next());
  CHECK(steps.why() == cairn::follow_end::trainer_ended);
}

TEST_CASE("files of this host are watched") {
  trainer run;
  run.tensors = {{"w", floats(10)}};
  cairn::file_store store{run.directory.path()};
  CHECK(cairn::any_store(store).watch("step-") != nullptr);
  const auto watch = store.watch("step-");
  REQUIRE(watch != nullptr);
  CHECK_FALSE(watch->wait(cairn::deadline::in(std::chrono::nanoseconds(0))));
  store.put_new("other", {});
  CHECK_FALSE(watch->wait(cairn::deadline::in(std::chrono::nanoseconds(0))));
  for (std::int64_t step = 1; step <= 12; ++step) {  // more than are watched at once
    store.make_directory("step-000000" + std::to_string(10 + step));
    CHECK(watch->wait(cairn::deadline::in(std::chrono::seconds(60))));
    store.put_new("step-000000" + std::to_string(10 + step) + "/manifest.cairn", {});
    CHECK(watch->wait(cairn::deadline::in(std::chrono::seconds(60))));
    while (watch->wait(cairn::deadline::in(std::chrono::nanoseconds(0)))) {
    }
  }
  CHECK(cairn::file_store{run.directory.path() + "/not/there"}.watch("step-") == nullptr);
  CHECK(cairn::any_store(counted_store(run.directory.path())).watch("step-") == nullptr);
}

TEST_CASE("one rank waits and tells the others") {
  trainer run;
  run.tensors = {{"w", floats(10)}};
  run.save(3);
  const cairn::thread_group group(3);
  std::vector<std::vector<std::int64_t>> got(3);
  std::vector<cairn::follow_end> why(3);
  cairn_test::on_all_ranks(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    cairn::checkpointer ckpt{cairn::file_store{run.directory.path()}, group.communicator(rank), quiet()};
    int asked = 0;
    auto steps = ckpt.follow({.stop = [&] {
      if (++asked == 1) run.save(9);
      return asked > 3;
    }});
    while (const auto step = steps.next()) got[r].push_back(*step);
    why[r] = steps.why();
    ckpt.close();
  });
  for (std::size_t r = 0; r < 3; ++r) {
    CHECK(got[r] == std::vector<std::int64_t>{3, 9});
    CHECK(why[r] == cairn::follow_end::stopped);
  }
}

TEST_CASE("the other ranks wait for as long as the one that looks") {
  using std::chrono::nanoseconds;
  trainer run;
  run.tensors = {{"w", floats(10)}};
  for (const bool never : {false, true}) {
    const cairn::thread_group group(2);
    std::shared_ptr<nanoseconds> waited;
    std::vector<cairn::follow_end> why(2);
    const auto follow = [&](int rank, auto communicator, nanoseconds timeout) {
      cairn::checkpointer ckpt{cairn::file_store{run.directory.path()}, std::move(communicator), quiet()};
      if (rank == 1) *waited = nanoseconds(0);
      auto steps = ckpt.follow({.timeout = timeout, .stop = [] { return true; }});
      if (!steps.next()) why[static_cast<std::size_t>(rank)] = steps.why();
      ckpt.close();
    };
    {
      std::jthread first(
          [&] { follow(0, group.communicator(0), never ? nanoseconds::max() : std::chrono::hours(24)); });
      std::jthread second([&] {
        noting_communicator communicator(group.communicator(1));
        waited = communicator.longest();
        follow(1, std::move(communicator), never ? nanoseconds::max() : nanoseconds(0));
      });
    }
    CHECK(why == std::vector<cairn::follow_end>(2, cairn::follow_end::stopped));
    CHECK(*waited > std::chrono::hours(23));
  }
}

TEST_CASE("a follower may look as often as it likes") {
  trainer run;
  run.tensors = {{"w", floats(10)}};
  cairn::checkpointer ckpt{counted_store(run.directory.path()), quiet()};
  std::int64_t saved = 0, seen = 0;
  auto steps = ckpt.follow({.max_pause = std::chrono::nanoseconds(1), .stop = [&] {
                              if (saved == seen) run.save(++saved);
                              return false;
                            }});
  while (seen < 3) {
    const auto step = steps.next();
    CHECK(step == ++seen);
  }
}

}  // namespace
