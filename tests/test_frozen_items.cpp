// SPDX-License-Identifier: Apache-2.0
// group: checkpoints
// threaded
// Items that never change are written once and linked by later saves: what is on disk, what loads, what goes wrong.
#include <doctest/doctest.h>
#include <cairn/cairn.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/manage/verify.hpp>
#include <cairn/storage/linked_files.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/stores/basic_file_store.hpp>

#include "support/faulty_store.hpp"
#include "support/loop_disk.hpp"
#include "support/on_all_ranks.hpp"
#include "support/rounds.hpp"
#include "support/scratch_directory.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace cairn_test;
using cairn::error_id;

cairn::checkpointer_options quiet() {
  return {.timeout = std::chrono::seconds(60), .peer_timeout = std::chrono::seconds(60), .quiet = true};
}

/// Frozen weights under an adapter that learns; each of two ranks has its own part of the weights.
struct adapted {
  explicit adapted(int rank = 0, int world = 1, std::int64_t n = 6'000) : base(static_cast<std::size_t>(n)) {
    for (std::size_t i = 0; i < base.size(); ++i)
      base[i] = static_cast<float>(rank) * 1e6F + static_cast<float>(i);
    state.tensor("base", base, cairn::shard{{n * world}, {n * rank}}, cairn::frozen);
    state.tensor("table", table, {100}, cairn::frozen);
    state.tensor("adapter", adapter, {1000});
    state.bytes("loader", loader);
  }
  void train(std::int64_t step) {
    std::fill(adapter.begin(), adapter.end(), static_cast<float>(step));
    loader = std::string(static_cast<std::size_t>(step), 'x');
  }
  void spoil() {
    std::fill(base.begin(), base.end(), -1.0F);
    std::fill(table.begin(), table.end(), -1.0);
    train(0);
  }
  [[nodiscard]] bool is(std::int64_t step, int rank = 0) {
    bool same = loader.size() == static_cast<std::size_t>(step) && table == std::vector<double>(100, 0.5);
    for (const auto a : adapter) same = same && a == static_cast<float>(step);
    for (std::size_t i = 0; i < base.size(); ++i)
      same = same && base[i] == static_cast<float>(rank) * 1e6F + static_cast<float>(i);
    return same;
  }
  std::vector<float> base;
  std::vector<double> table = std::vector<double>(100, 0.5);
  std::vector<float> adapter = std::vector<float>(1000);
  std::string loader;
  cairn::state_dict state;
};

/// The data files of a step, in order.
std::vector<std::string> data_files(const std::string& root, std::int64_t step) {
  std::vector<std::string> found;
  for (const auto& e : std::filesystem::directory_iterator(root + "/" + cairn::step_directory(step)))
    if (e.path().extension() == ".safetensors") found.push_back(e.path());
  std::sort(found.begin(), found.end());
  return found;
}
struct ::stat status(const std::string& path) {
  struct ::stat s {};
  REQUIRE(::stat(path.c_str(), &s) == 0);
  return s;
}
template <class Store>
bool loads(const Store& store, std::int64_t step, int rank = 0) {
  adapted t;
  t.spoil();
  cairn::checkpointer ckpt{store, quiet()};
  ckpt.load(t.state, step);
  cairn::safetensors_reader reader{cairn::any_store(store)};
  return t.is(step, rank) && cairn::verify_checkpoint(reader, step).good();
}
/// Why a save failed; of no kind where it did not.
error_id failure_of(const cairn::save_handle& save) {
  try {
    save.wait();
  } catch (const cairn::error& e) {
    return e.id();
  }
  return error_id{};
}

}  // namespace

TEST_CASE("frozen items are written once: later saves link their file, and each step stands alone") {
  const scratch_directory directory;
  const cairn::file_store store{directory.path()};
  adapted t;
  {
    cairn::checkpointer ckpt{store, quiet()};
    for (const std::int64_t step : {1, 2, 3}) {
      t.train(step);
      const auto save = ckpt.save(t.state, step);
      save.wait();
      const auto report = save.report();
      CHECK(report.items == 4);
      CHECK((report.linked_bytes > 24'000) == (step > 1));
      CHECK((report.bytes < 9'000) == (step > 1));
    }
  }
  const auto first = data_files(directory.path(), 1), second = data_files(directory.path(), 2);
  REQUIRE(first.size() == 2);
  REQUIRE(second.size() == 2);
  CHECK(status(first[1]).st_ino == status(second[1]).st_ino);
  CHECK(status(first[1]).st_nlink == 3);
  CHECK(status(first[0]).st_ino != status(second[0]).st_ino);
  for (const std::int64_t step : {1, 2, 3}) CHECK(loads(store, step));
  SUBCASE("also when the others are removed by hand") {
    std::filesystem::remove_all(directory.path() + "/" + cairn::step_directory(1));
    std::filesystem::remove_all(directory.path() + "/" + cairn::step_directory(3));
    CHECK(loads(store, 2));
    CHECK(status(second[1]).st_nlink == 1);
  }
  SUBCASE("and a run that resumes writes them anew, once") {
    t.spoil();
    cairn::checkpointer ckpt{store, quiet()};
    CHECK(ckpt.resume(t.state) == 3);
    CHECK(t.is(3));
    for (const std::int64_t step : {4, 5}) {
      t.train(step);
      const auto save = ckpt.save(t.state, step);
      save.wait();
      CHECK((save.report().linked_bytes == 0) == (step == 4));
    }
    CHECK(loads(store, 5));
  }
  SUBCASE("and retention removes what is old, whoever wrote the bytes") {
    {
      cairn::checkpointer ckpt{store, quiet(), cairn::keep_last(1)};
      CHECK(ckpt.resume(t.state) == 3);
      for (const std::int64_t step : {4, 5, 6}) {
        t.train(step);
        ckpt.save(t.state, step).wait();
      }
      CHECK(ckpt.list() == std::vector<std::int64_t>{3, 6});  // 3: from where the run went on
    }
    CHECK(loads(store, 6));
  }
}

TEST_CASE("a load, or a change of the state's structure, has frozen items written anew") {
  const cairn::memory_store store;
  adapted t;
  cairn::checkpointer ckpt{store, quiet()};
  const auto linked = [&](std::int64_t step, const cairn::state_dict& state) {
    t.train(step);
    const auto save = ckpt.save(state, step);
    save.wait();
    return save.report().linked_bytes;
  };
  CHECK(linked(1, t.state) == 0);
  const auto whole = linked(2, t.state);
  CHECK(whole > 0);
  ckpt.load(t.state, 1);
  CHECK(linked(3, t.state) == 0);
  CHECK(linked(4, t.state) == whole);
  cairn::state_dict melted;  // training goes on with all of it
  melted.tensor("base", t.base, {static_cast<std::int64_t>(t.base.size())});
  melted.tensor("table", t.table, {100}, cairn::frozen);
  melted.tensor("adapter", t.adapter, {1000});
  melted.bytes("loader", t.loader);
  CHECK(linked(5, melted) == 0);
  const auto table = linked(6, melted);
  CHECK((table > 0 && table < whole));
  CHECK(loads(store, 6));
}

TEST_CASE("frozen items are written anew where a save has another number of files before theirs") {
  cairn_test::scratch_directory scratch;
  adapted t;
  cairn::state_dict base;
  base.tensor("base", t.base, {static_cast<std::int64_t>(t.base.size())}, cairn::frozen);
  auto with_adapter = base;
  with_adapter.tensor("adapter", t.adapter, {1000});
  cairn::checkpointer ckpt{cairn::file_store{scratch.path() + "/run"}, quiet()};
  std::int64_t step = 0;
  for (const auto* state : {&base, &with_adapter, &base, &with_adapter, &base})
    CHECK_NOTHROW(ckpt.save(*state, ++step).wait());
  const auto again = ckpt.save(base, ++step);
  again.wait();
  CHECK(again.report().linked_bytes > 0);
  for (step = 1; step <= 6; ++step) {
    t.spoil();
    ckpt.load(base, step, cairn::partial);
    CHECK(t.base[5'000] == 5'000.0F);
  }
}

TEST_CASE("where the step is removed whose files a save would link, it writes them") {
  cairn_test::scratch_directory scratch;
  const auto root = scratch.path() + "/run";
  adapted t;
  cairn::checkpointer ckpt{cairn::file_store{root}, quiet()};
  for (const std::int64_t step : {10, 20, 30}) {
    t.train(step);
    const auto save = ckpt.save(t.state, step);
    save.wait();
    CHECK((save.report().linked_bytes > 0) == (step == 20));
    if (step == 10) ckpt.save(t.state, 11).wait(), ckpt.remove(10);  // not the newest
    if (step == 20) ckpt.remove(20);
  }
  t.spoil();
  CHECK(ckpt.resume(t.state) == 30);
  CHECK(t.is(30));
}

TEST_CASE("frozen items of another state, or at another address, are written anew") {
  const cairn::memory_store store;
  std::vector<float> one(2'000, 1.0F), two(2'000, 2.0F), three(2'000, 3.0F);
  cairn::state_dict a, b;
  a.tensor("weights", one.data(), {2'000}, cairn::frozen);
  b.tensor("weights", two, {2'000}, cairn::frozen);
  cairn::checkpointer ckpt{store, quiet()};
  const auto linked = [&](std::int64_t step, const cairn::state_dict& state) {
    const auto save = ckpt.save(state, step);
    save.wait();
    return save.report().linked_bytes > 0;
  };
  CHECK(!linked(1, a));
  CHECK(!linked(2, b));
  CHECK(linked(3, b));
  CHECK(!linked(4, a));
  a.rebind("weights", three.data());
  CHECK(!linked(5, a));
  CHECK(linked(6, a));
  cairn::state_dict again;
  again.tensor("weights", three, {2'000}, cairn::frozen);
  CHECK(linked(7, again));  // the same memory, whatever names it
  const auto stored = [&](std::int64_t step) {
    std::vector<float> back(2'000);
    cairn::state_dict state;
    state.tensor("weights", back, {2'000});
    cairn::checkpointer{store, quiet()}.load(state, step);
    return back;
  };
  CHECK(stored(2) == two);
  CHECK(stored(3) == two);
  CHECK(stored(4) == one);
  CHECK(stored(5) == three);
  CHECK(stored(7) == three);
}

TEST_CASE("two states that are saved in turn never link what retention removes") {
  const cairn::memory_store store;
  std::vector<float> one(2'000, 1.0F), two(2'000, 2.0F);
  cairn::state_dict a, b;
  a.tensor("one", one, {2'000}, cairn::frozen);
  b.tensor("two", two, {2'000}, cairn::frozen);
  auto options = quiet();
  SUBCASE("where a save waits for the earlier one") {}
  SUBCASE("where it does not") {
    options.when_busy = cairn::busy_policy::queue;
  }
  cairn::checkpointer ckpt{store, options, cairn::keep_last(1)};
  std::vector<cairn::save_handle> saves;
  for (std::int64_t step = 1; step <= 16; ++step) saves.push_back(ckpt.save(step % 2 == 0 ? a : b, step));
  for (const auto& save : saves) CHECK(failure_of(save) == error_id{});
}

TEST_CASE(
    "what stays as it is is found after two saves, and a change brings it back in the save that finds it") {
  const cairn::memory_store store;
  std::vector<float> base(600'000, 0.5F), other(100'000, 0.25F), learns(100'000);
  cairn::state_dict state;
  state.tensor("base", base, {600'000});
  state.tensor("other", other, {100'000});
  state.tensor("learns", learns, {100'000});
  auto options = quiet();
  options.link_unchanged = true;
  const auto loads_all = [&](std::int64_t step) {
    std::vector<float> a(600'000), b(100'000), c(100'000);
    cairn::state_dict back;
    back.tensor("base", a, {600'000});
    back.tensor("other", b, {100'000});
    back.tensor("learns", c, {100'000});
    cairn::checkpointer{store, quiet()}.load(back, step);
    return a == base && b == other && c == learns;
  };
  const auto test = [&](auto& ckpt) {
    std::int64_t step = 0;
    const auto linked = [&] {
      ++step;
      learns[0] = static_cast<float>(step);
      const auto save = ckpt.save(state, step);
      ckpt.before_update();
      save.wait();
      CHECK(loads_all(step));
      return save.report().linked_bytes;
    };
    CHECK(linked() == 0);
    CHECK(linked() == 0);  // found, and written apart
    CHECK(linked() > 2'800'000);
    CHECK(linked() > 2'800'000);
    base[599'999] = 7;  // in the last block
    CHECK(linked() == 0);
    const auto rest = linked();
    CHECK((rest > 400'000 && rest < 2'400'000));
    CHECK(linked() == rest);
    std::uint64_t last = 0;
    for (int i = 0; i < 5; ++i) last = linked();
    CHECK(last > 2'800'000);  // it stays as it is again
    ckpt.load(state, 1);      // where it was otherwise
    CHECK(linked() == 0);
    adapted another;
    ckpt.save(another.state, ++step).wait();
    for (int i = 0; i < 3; ++i) last = linked();
    CHECK(last > 2'800'000);
  };
  SUBCASE("") {
    cairn::checkpointer ckpt{store, options};
    test(ckpt);
  }
  SUBCASE("with overlapped saves") {
    cairn::checkpointer ckpt{store, options, cairn::overlapped{}};
    test(ckpt);
  }
}

TEST_CASE(
    "a frozen item whose elements come in another order is written anew, though it begins at the same "
    "address") {
  const cairn::memory_store store;
  std::vector<float> w(64);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i);
  cairn::state_dict state;
  state.tensor("weights", w.data(), {8, 8}, cairn::frozen);
  cairn::checkpointer ckpt{store, quiet()};
  const auto linked = [&](std::int64_t step) {
    const auto save = ckpt.save(state, step);
    save.wait();
    return save.report().linked_bytes > 0;
  };
  CHECK(!linked(1));
  CHECK(linked(2));
  auto transposed = cairn::contiguous_view(w.data(), cairn::dtype::f32, {8, 8});
  transposed.strides[0] = 1, transposed.strides[1] = 8;
  state.rebind("weights", transposed);
  CHECK(!linked(3));
  CHECK(linked(4));
  CHECK(ckpt.read<float>("weights", 2)[1] == 1);
  CHECK(ckpt.read<float>("weights", 4)[1] == 8);
}

TEST_CASE("overlapped saves link as well, and before_update() knows the names of frozen items") {
  const scratch_directory directory;
  const cairn::file_store store{directory.path()};
  adapted t;
  cairn::checkpointer ckpt{store, quiet(), cairn::overlapped{}};
  for (const std::int64_t step : {1, 2, 3}) {
    t.train(step);
    const auto save = ckpt.save(t.state, step);
    ckpt.before_update("base");
    ckpt.before_update("adapter");
    ckpt.before_update();
    save.wait();
    CHECK((save.report().linked_bytes > 0) == (step > 1));
  }
  CHECK(loads(store, 3));
}

TEST_CASE("checked{} tells that a frozen item has changed, and the next save writes it") {
  const cairn::memory_store store;
  adapted t(0, 1, 600'000);  // more than two blocks
  cairn::checkpointer ckpt{store, quiet(), cairn::checked{}};
  for (const std::int64_t step : {1, 2}) {
    t.train(step);
    const auto save = ckpt.save(t.state, step);
    save.wait();
    CHECK((save.report().linked_bytes > 0) == (step > 1));
  }
  t.base[300'000] += 1;
  const auto broken = ckpt.save(t.state, 3);
  CHECK(failure_of(broken) == error_id::usage_memory_changed);
  try {
    std::rethrow_exception(broken.failure());
  } catch (const cairn::error& e) {
    CHECK(e.fields().item == "base");
    CHECK(e.fields().offset == 1 << 20);
    CHECK(std::string(e.what()).find("cairn::frozen") != std::string::npos);
  }
  t.train(4);
  const auto anew = ckpt.save(t.state, 4);
  anew.wait();
  CHECK(anew.report().linked_bytes == 0);
  CHECK(ckpt.list() == std::vector<std::int64_t>{1, 2, 4});
  adapted loaded(0, 1, 600'000);
  cairn::checkpointer{store, quiet()}.load(loaded.state, 4);
  CHECK(loaded.base == t.base);
}

TEST_CASE("ranks link their own files each, and every world loads them") {
  const scratch_directory directory;
  const cairn::file_store store{directory.path()};
  cairn::thread_group group{2};
  const auto thrown = cairn_test::said_on_ranks(2, [&](int rank) {
    adapted t(rank, 2);
    cairn::checkpointer ckpt{store, group.communicator(rank), quiet()};
    for (const std::int64_t step : {1, 2, 3}) {
      t.train(step);
      const auto save = ckpt.save(t.state, step);
      save.wait();
      if ((save.report().linked_bytes > 0) != (step > 1)) throw std::runtime_error("not linked");
    }
  });
  for (const auto& why : thrown) CHECK_MESSAGE(why.empty(), why);
  std::filesystem::remove_all(directory.path() + "/" + cairn::step_directory(1));
  cairn::state_dict one;
  std::vector<float> base(12'000);
  one.tensor("base", base, {12'000});
  cairn::checkpointer{store, quiet()}.load(one, 3, cairn::partial);
  CHECK(base[5'999] == 5'999.0F);
  CHECK(base[11'999] == 1e6F + 5'999.0F);
}

TEST_CASE("where the file system refuses hard links, blocks are shared or copied") {
  const scratch_directory directory;
  struct no_links : cairn::posix_file_system {
    int link_across(int, const char*, int, const char*) const { return -EPERM; }
    int clone(int, int) const { return -EOPNOTSUPP; }
  };
  const cairn::basic_file_store<no_links> store{directory.path()};
  adapted t;
  {
    cairn::checkpointer ckpt{store, quiet()};
    for (const std::int64_t step : {1, 2}) {
      t.train(step);
      ckpt.save(t.state, step).wait();
    }
  }
  CHECK(status(data_files(directory.path(), 2)[1]).st_nlink == 1);
  CHECK(loads(store, 2));
  auto files = store;
  const auto link_by = [&](cairn::deadline until) { files.link("one", "late", until); };
  files.put_new("one", std::as_bytes(std::span(t.base)));
  CHECK_THROWS_AS(link_by(cairn::deadline::in(std::chrono::nanoseconds(0))), cairn::timeout_error);
  CHECK_FALSE(files.size("late").has_value());
  CHECK(files.leftovers("").empty());
  link_by(cairn::deadline::never());
  CHECK(files.size("late").has_value());
}

TEST_CASE("where hard links are refused and blocks can be shared, they are, and each step stands alone") {
  const loop_disk disk;
  if (!disk.mounted()) return;
  struct sharing : cairn::posix_file_system {
    int link_across(int, const char*, int, const char*) const { return -EPERM; }
    int clone(int from, int to) const {
      const int r = posix_file_system::clone(from, to);
      *clones += r == 0;
      return r;
    }
    std::shared_ptr<std::atomic<int>> clones = std::make_shared<std::atomic<int>>(0);
  };
  const sharing system;
  const cairn::basic_file_store<sharing> store{disk.path() + "/run", {}, system};
  adapted t(0, 1, 600'000);
  {
    cairn::checkpointer ckpt{store, quiet()};
    for (const std::int64_t step : {1, 2, 3}) {
      t.train(step);
      const auto save = ckpt.save(t.state, step);
      save.wait();
      CHECK((save.report().linked_bytes > 2'400'000) == (step > 1));
    }
  }
  CHECK(*system.clones == 2);
  std::filesystem::remove_all(disk.path() + "/run/" + cairn::step_directory(1));
  for (const std::int64_t step : {2, 3}) {
    CHECK(status(data_files(disk.path() + "/run", step)[1]).st_nlink == 1);
    adapted back(0, 1, 600'000);
    back.spoil();
    cairn::checkpointer{store, quiet()}.load(back.state, step);
    CHECK(back.is(step));
    cairn::safetensors_reader reader{cairn::any_store(store)};
    CHECK(cairn::verify_checkpoint(reader, step).good());
  }
}

TEST_CASE("a store that links nothing has frozen items among the others") {
  struct plain_store {
    using cairn_role = cairn::role::store;
    auto create(std::string_view key, std::uint64_t n) { return inner.create(key, n); }
    void read(std::span<const cairn::read_range> ranges) { inner.read(ranges); }
    bool publish_new(std::string_view key, std::span<const std::byte> b) { return inner.publish_new(key, b); }
    std::optional<std::uint64_t> size(std::string_view key) { return inner.size(key); }
    std::vector<cairn::listed_object> list(std::string_view prefix) { return inner.list(prefix); }
    void remove(std::string_view key) { inner.remove(key); }
    std::string describe() { return "plain"; }
    cairn::memory_store inner;
  };
  const plain_store store;
  adapted t;
  cairn::checkpointer ckpt{store, quiet()};
  for (const std::int64_t step : {1, 2}) {
    t.train(step);
    const auto save = ckpt.save(t.state, step);
    save.wait();
    CHECK(save.report().linked_bytes == 0);
  }
  auto inner = store.inner;
  CHECK(inner.list("step-00000002/rank-").size() == 2);  // one data file, one record
  CHECK(loads(inner, 2));
}

TEST_CASE("a save whose files to link are gone fails, leaves nothing, and the next one writes them anew") {
  cairn::memory_store memory;
  const auto faults = std::make_shared<store_faults>();
  const faulty_store<cairn::memory_store> store{memory, faults};
  adapted t;
  cairn::checkpointer ckpt{cairn::safetensors_storage{store}, quiet()};
  const auto save = [&](std::int64_t step) {
    t.train(step);
    return ckpt.save(t.state, step);
  };
  const auto remove_step = [&](std::int64_t step) {
    for (const auto& o : memory.list(cairn::step_directory(step) + "/")) memory.remove(o.key);
  };
  save(1).wait();
  SUBCASE("where the whole step was removed before") {
    remove_step(1);
    CHECK(failure_of(save(2)) == error_id::storage_not_found);
  }
  SUBCASE("where it is removed while the save is under way") {
    faults->add({.kind = store_call::link, .action = [&](std::string_view) { remove_step(1); }});
    CHECK(failure_of(save(2)) == error_id::storage_not_found);
    CHECK(faults->triggered() == 1);
  }
  CHECK(memory.list("step-00000002/rank").empty());
  const auto anew = save(3);
  anew.wait();
  CHECK(anew.report().linked_bytes == 0);
  const auto after = save(4);
  after.wait();
  CHECK(after.report().linked_bytes > 0);
  remove_step(3);
  CHECK(loads(memory, 4));
}

TEST_CASE("after a link that fails the next save writes everything, and after two such all do") {
  cairn::memory_store memory;
  const auto faults = std::make_shared<store_faults>();
  adapted t;
  cairn::checkpointer ckpt{cairn::safetensors_storage{faulty_store<cairn::memory_store>{memory, faults}},
                           quiet()};
  const auto fails = [&](std::int64_t step) {
    t.train(step);
    const auto save = ckpt.save(t.state, step);
    const auto why = failure_of(save);
    CHECK((why == error_id{} || why == error_id::storage_permission));
    return why != error_id{};
  };
  const auto refuse = [&] {
    faults->fail_at(store_call::link, 0, true, false, error_id::storage_permission);
  };
  CHECK(!fails(1));
  refuse();
  CHECK(fails(2));
  CHECK(!fails(3));
  SUBCASE("for the rest of the run") {
    CHECK(fails(4));
    for (const std::int64_t step : {5, 6, 7}) CHECK(!fails(step));
    CHECK(faults->count(store_call::link) == 2);
    CHECK(loads(memory, 7));
  }
  SUBCASE("unless one is linked between them") {
    faults->clear();
    CHECK(!fails(4));
    refuse();
    CHECK(fails(5));
    CHECK(!fails(6));
    faults->clear();
    CHECK(!fails(7));
    CHECK(faults->count(store_call::link) == 4);
    CHECK(loads(memory, 7));
  }
}

TEST_CASE("a save whose files are all linked is seen to be under way until it is committed") {
  const scratch_directory directory;
  const cairn::file_store files{directory.path()};
  const auto faults = std::make_shared<store_faults>();
  std::vector<float> weights(2'000, 1.0F);
  cairn::state_dict state;
  state.tensor("weights", weights, {2'000}, cairn::frozen);
  cairn::checkpointer ckpt{cairn::safetensors_storage{faulty_store<cairn::file_store>{files, faults}},
                           quiet()};
  cairn::safetensors_writer another{std::make_shared<cairn::file_store>(files)};
  ckpt.save(state, 1).wait();
  std::vector<std::size_t> seen;
  const auto look = [&](std::string_view) { seen.push_back(another.live_saves({}).size()); };
  faults->add({.kind = store_call::link, .action = look});
  faults->add({.kind = store_call::publish_new, .key_contains = "manifest", .action = look});
  const auto save = ckpt.save(state, 2);
  save.wait();
  CHECK(save.report().linked_bytes > 8'000);
  CHECK(seen == std::vector<std::size_t>{1, 1});
  CHECK(another.live_saves({}).empty());
  CHECK(cairn::any_store(files).leftovers("step-").empty());
}

TEST_CASE("no file is linked when the time of a save is over") {
  const cairn::any_store store{cairn::memory_store{}};
  cairn::save_context c;
  c.link_from = {{1, 1}};
  const std::vector<cairn::linked_file> files(1);
  cairn::detail::linked_files linked(store, {}, c, files, 0);
  const auto why = [&](cairn::deadline until) {
    try {
      linked.link(until);
    } catch (const cairn::error& e) {
      return e.id();
    }
    return error_id{};
  };
  CHECK(why(cairn::deadline::in(std::chrono::nanoseconds(0))) == error_id::timeout_write);
  CHECK(why(cairn::deadline::never()) == error_id::storage_not_found);
}

TEST_CASE("a fault at any call of a save that links leaves nothing of it, and the next one is right") {
  const std::uint64_t each = long_run() ? 1 : 3;
  for (std::uint64_t at = 0, calls = 1; at < calls; at += each) {
    CAPTURE(at);
    cairn::memory_store memory;
    const auto faults = std::make_shared<store_faults>();
    adapted t;
    {
      cairn::checkpointer ckpt{cairn::safetensors_storage{faulty_store<cairn::memory_store>{memory, faults}},
                               quiet()};
      t.train(1);
      ckpt.save(t.state, 1).wait();
      const auto before = faults->count();
      faults->fail_at(store_call::any, at, false, at % 2 == 1);
      t.train(2);
      const auto save = ckpt.save(t.state, 2);
      const bool failed = failure_of(save) != error_id{};
      faults->clear();
      calls = std::max(calls, faults->count() - before);
      t.train(3);
      ckpt.save(t.state, 3).wait();
      // A fault after the manifest is there is told, too.
      const bool stands = memory.size(cairn::manifest_key(2)).has_value();
      CHECK((stands || failed));
      if (stands)
        CHECK(loads(memory, 2));
      else
        CHECK(memory.list("step-00000002/rank").empty());
    }
    CHECK(loads(memory, 1));
    CHECK(loads(memory, 3));
  }
}
