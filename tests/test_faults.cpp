// SPDX-License-Identifier: Apache-2.0
// group: checkpoints
// threaded
// cost: 60
// Bad input and faults, as a trainer meets them through its checkpointer.
#include <doctest/doctest.h>
#include <cairn/cairn.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/stores/basic_file_store.hpp>
#include <cairn/system/digest.hpp>

#include "support/counting_communicator.hpp"
#include "support/disturbed_runs.hpp"
#include "support/faulty_file_system.hpp"
#include "support/faulty_store.hpp"
#include "support/odd_file_system.hpp"
#include "support/on_all_ranks.hpp"
#include "support/rounds.hpp"
#include "support/scratch_directory.hpp"
#include "support/small_disk.hpp"
#include "support/training_state.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <semaphore>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

using namespace cairn_test;
using namespace cairn_test::disturbed_runs;
using std::chrono::milliseconds;

TEST_CASE("every flipped bit, cut and exchange of a manifest is an error of load, and resume falls back") {
  saved_twice s;
  auto ckpt = s.open();
  const auto key = cairn::manifest_key(2);
  const auto good = s.get(key);
  const auto loading = [&](std::span<const std::byte> bytes) {
    s.put(key, bytes);
    return thrown_by([&] { ckpt.load(s.t.state, 2); });
  };
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    if (!loading(bad).is(cairn::error_kind::corrupt)) FAIL_CHECK("bit " << bit << " went unnoticed");
    if (bit % 997 == 0) s.falls_back("cairn.corrupt.");
  }
  for (std::size_t length = 0; length < good.size(); ++length) {
    if (!loading({good.data(), length}).is(cairn::error_kind::corrupt)) FAIL_CHECK("cut at " << length);
    if (length % 97 == 0) s.falls_back("cairn.corrupt.");
  }
  auto longer = good;
  longer.resize(good.size() + (1u << 20), std::byte{0x5a});
  CHECK(loading(longer).is(cairn::error_kind::corrupt));
  s.falls_back("cairn.corrupt.");
  CHECK(loading(s.get(cairn::manifest_key(1))).id == error_id::corrupt_identity);
  s.falls_back("another step");
  CHECK(loading(s.get(s.keys("step-00000002", ".record").at(0))).id == error_id::corrupt_bad_magic);
  s.falls_back("cairn.corrupt.bad_magic");
  CHECK_FALSE(loading(good).id.has_value());
  CHECK(s.t.is(2));
}

TEST_CASE(
    "a manifest of another version of cairn is no damage: resume says so on all ranks, and moves nothing") {
  saved_twice s;
  const auto key = cairn::manifest_key(2);
  const auto good = s.get(key);
  auto newer = good;
  newer[8] ^= std::byte{0x80};  // the major version; the digest of the header is right again
  const auto right = cairn::digest(std::span<const std::byte>(newer).first(120));
  std::memcpy(newer.data() + 120, &right, sizeof right);
  s.put(key, newer);
  none_failed(s.ranks(2, [&](int rank, communicator comm) {
    training_state t(rank, 2, small);
    const listener ear;
    auto ckpt = s.open(std::move(comm), patient(), 1, ear);
    const auto why = thrown_by([&] { (void)ckpt.resume(t.state); });
    CHECK_MESSAGE(why.id == error_id::corrupt_unsupported_version, why.text);
    CHECK(why.fields.file == key);
    CHECK(ear.passed_over().empty());
    if (rank == 0) {
      const auto warnings = ear.warnings();
      CHECK(std::any_of(warnings.begin(), warnings.end(),
                        [](const auto& w) { return w.find("step 2 is not damaged") != std::string::npos; }));
    }
  }));
  CHECK(s.get(key) == newer);
  CHECK(s.keys("manifest.damaged").empty());
  s.put(key, good);
  CHECK(s.open().resume(s.t.state) == 2);
}

TEST_CASE("every damaged, cut, missing or exchanged record is an error of load, and resume falls back") {
  saved_twice s;
  auto ckpt = s.open();
  const auto key = s.keys("step-00000002", ".record").at(0);
  const auto good = s.get(key);
  const auto loading = [&] { return thrown_by([&] { ckpt.load(s.t.state, 2); }); };
  for (std::size_t at = 0; at < good.size(); ++at) {
    auto bad = good;
    bad[at] ^= static_cast<std::byte>(1u << at % 8);
    s.put(key, bad);
    if (!loading().is(cairn::error_kind::corrupt)) FAIL_CHECK("byte " << at << " went unnoticed");
    s.put(key, {good.data(), at});
    if (!loading().is(cairn::error_kind::corrupt)) FAIL_CHECK("cut at " << at);
    if (at % 101 == 0) s.falls_back("cairn.corrupt.");
  }
  auto longer = good;
  longer.resize(good.size() + 4'096);
  s.put(key, longer);
  CHECK(loading().is(cairn::error_kind::corrupt));
  s.put(key, s.get(s.keys("step-00000001", ".record").at(0)));
  CHECK(loading().is(cairn::error_kind::corrupt));
  s.falls_back(key);
  s.objects.remove(key);
  CHECK(loading().id == error_id::corrupt_missing_file);
  s.falls_back("cairn.corrupt.missing_file");
  s.put(key, good);
  CHECK_FALSE(loading().id.has_value());
  CHECK(s.t.is(2));
}

TEST_CASE("2,000 random bit flips in data: each makes load fail, or the loaded bits are right") {
  saved_twice s;
  auto ckpt = s.open();
  std::mt19937_64 random(seed());
  const auto files = s.keys("step-00000002", ".safetensors");
  std::vector<std::vector<std::byte>> good;
  for (const auto& file : files) good.push_back(s.get(file));
  const int flips = static_cast<int>(cairn_test::rounds(2'500));
  int found = 0, beside = 0, in_data = 0;
  for (int i = 0; i < flips; ++i) {
    const auto f = static_cast<std::size_t>(random() % files.size());
    auto bad = good[f];
    const auto at = random() % bad.size();
    bad[at] ^= static_cast<std::byte>(1u << random() % 8);
    s.put(files[f], bad);
    in_data += at >= 4'096;
    const auto e = thrown_by([&] { ckpt.load(s.t.state, 2); });
    s.put(files[f], good[f]);
    if (e.id == error_id::corrupt_digest && e.fields.file == files[f])
      ++found;
    else if (!e.id && s.t.is(2))
      ++beside;  // in the header, which load does not use, or in the padding
    else
      FAIL_CHECK("byte " << at << " of " << files[f] << ": " << e.text);
  }
  CHECK(found + beside == flips);
  CHECK(found > in_data * 9 / 10);
  CHECK(found >= 1'000);
}

TEST_CASE("a data file that is missing, shorter, longer, or of another step is reported and passed over") {
  saved_twice s;
  auto ckpt = s.open();
  const auto keys = s.keys("step-00000002", ".safetensors");
  const auto old_keys = s.keys("step-00000001", ".safetensors");
  REQUIRE(keys.size() == old_keys.size());
  for (std::size_t f = 0; f < keys.size(); ++f) {
    const auto good = s.get(keys[f]);
    const auto loading = [&] {
      auto e = thrown_by([&] { ckpt.load(s.t.state, 2); });
      CHECK(e.fields.file == keys[f]);
      return e.id;
    };
    s.objects.remove(keys[f]);
    CHECK(loading() == error_id::corrupt_missing_file);
    s.falls_back(keys[f]);
    s.put(keys[f], {good.data(), good.size() - 1});
    CHECK(loading() == error_id::corrupt_size_mismatch);
    s.falls_back(keys[f]);
    s.put(keys[f], {});
    CHECK(loading() == error_id::corrupt_size_mismatch);
    auto longer = good;
    longer.push_back(std::byte{0});
    s.put(keys[f], longer);
    CHECK(loading() == error_id::corrupt_size_mismatch);
    s.falls_back(keys[f]);
    auto old = s.get(old_keys[f]);
    old.resize(good.size());
    s.put(keys[f], old);
    CHECK(loading() == error_id::corrupt_digest);
    s.falls_back("cairn.corrupt.digest");
    s.put(keys[f], good);
  }
  ckpt.load(s.t.state, 2);
  CHECK(s.t.is(2));
}

TEST_CASE("hostile headers of data files: load believes nothing that they say, verification finds them") {
  saved_twice s;
  auto ckpt = s.open();
  const auto reader = s.disturbed().reader();
  const auto key = s.keys("step-00000002", ".safetensors").at(0);
  const auto good = s.get(key);
  const std::string hostile[] = {
      std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{", 9),
      std::string("\x20\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[9", 31),
      std::string("\x08\0\0\0\0\0\0\0[[[[[[[[", 16),
      std::string("\0\0\0\0\0\0\0\0", 8),
      std::string("\x0c\0\0\0\0\0\0\0{\"/etc/x\":1}", 20),
  };
  for (const auto& text : hostile) {
    auto bad = good;
    std::memcpy(bad.data(), text.data(), text.size());
    s.put(key, bad);
    s.t.spoil();
    ckpt.load(s.t.state, 2);
    CHECK(s.t.is(2));
    const auto found = thrown_by([&] {
      auto own = reader;
      auto opened = own.open(2, own.fetch(2));
      static_cast<void>(own.verify(opened, cairn::deadline::in(seconds(60))));
    });
    CHECK(found.is(cairn::error_kind::corrupt));
    CHECK(found.fields.file == key);
  }
}

TEST_CASE("absolute and .. names of items never become paths") {
  const scratch_directory directory;
  const auto root = directory.path() + "/inner/checkpoints";
  const std::string hostile[] = {"../../up", "/etc/cairn", "a/../../b",
                                 "..",       ".",          "step-00000009/manifest.cairn"};
  double values[std::size(hostile)] = {};
  cairn::state_dict state;
  for (std::size_t i = 0; i < std::size(hostile); ++i) {
    values[i] = static_cast<double>(i) + 0.5;
    state.value(hostile[i], values[i]);
  }
  std::filesystem::create_directory(directory.path() + "/inner");
  cairn::checkpointer ckpt{disk_at(root), alone(), listener{}, patient()};
  ckpt.save(state, 1).wait();
  for (auto& v : values) v = 0;
  ckpt.load(state, 1);
  for (std::size_t i = 0; i < std::size(hostile); ++i) CHECK(values[i] == static_cast<double>(i) + 0.5);
  CHECK(ckpt.list() == std::vector<std::int64_t>{1});
  ckpt.close();
  for (const auto& file : std::filesystem::recursive_directory_iterator(directory.path())) {
    const auto path = file.path().string().substr(directory.path().size());
    if (file.is_directory())
      CHECK((path == "/inner" || path == "/inner/checkpoints" || path == "/inner/checkpoints/step-00000001"));
    else
      CHECK(cairn::parse_key(path.substr(std::strlen("/inner/checkpoints/"))).has_value());
  }
}

TEST_CASE("a full disk: the save fails with what is needed and free, and works when there is room again") {
  const small_disk disk("size=2m");
  if (!disk.mounted()) return;
  training_state t(0, 1, large);
  auto ckpt = open_disk(disk_at(disk.path() + "/c"));
  t.fill(1);
  ckpt.save(t.state, 1).wait();
  const auto ballast = disk.path() + "/ballast";
  {
    std::ofstream file(ballast);
    file << std::string(1'400'000, 'x');
  }
  t.fill(2);
  const auto handle = ckpt.save(t.state, 2);
  const auto why = thrown_by([&] { handle.wait(); });
  CHECK(why.id == error_id::storage_no_space);
  CHECK(std::strtoull(why.fields.expected.c_str(), nullptr, 10) >= 400'000);
  CHECK(std::strtoull(why.fields.got.c_str(), nullptr, 10) < 400'000);
  CHECK(why.fields.got.find("free") != std::string::npos);
  CHECK(t.is(2));
  CHECK(ckpt.list() == std::vector<std::int64_t>{1});
  REQUIRE(std::filesystem::remove(ballast));
  t.fill(3);
  ckpt.save(t.state, 3).wait();
  for (const std::int64_t step : {1, 3}) {
    ckpt.load(t.state, step);
    CHECK(t.is(step));
  }
  CHECK(ckpt.list() == std::vector<std::int64_t>{1, 3});
}

TEST_CASE("a read-only store: it loads and resumes, damage is passed over, saves say why they fail") {
  const small_disk disk("size=4m");
  if (!disk.mounted()) return;
  training_state t(0, 1, small);
  {
    auto ckpt = open_disk(disk_at(disk.path()));
    for (const std::int64_t step : {1, 2}) {
      t.fill(step);
      ckpt.save(t.state, step).wait();
    }
  }
  std::filesystem::resize_file(disk.path() + "/" + cairn::manifest_key(2), 100);
  REQUIRE(disk.make_read_only());
  const listener ear;
  auto ckpt = open_disk(disk_at(disk.path()), ear);
  const auto refused = thrown_by([&] { static_cast<void>(ckpt.resume(t.state)); });
  CHECK(refused.id == error_id::storage_permission);
  CHECK_MESSAGE(refused.text.find("cairn::read_only") != std::string::npos, refused.text);
  CHECK(thrown_by([&] { ckpt.prepare(t.state); }).id == error_id::storage_permission);
  CHECK(ckpt.list() == std::vector<std::int64_t>{1, 2});
  ckpt.load(t.state, 1);  // without a warning that it only reads
  CHECK(t.is(1));
  CHECK(thrown_by([&] { ckpt.save(t.state, 3).wait(); }).id == error_id::storage_permission);
  t.fill(7);
  cairn::checkpointer reader{disk_at(disk.path()), cairn::read_only{}, patient(), ear};
  CHECK(reader.resume(t.state) == 1);
  CHECK(t.is(1));
  REQUIRE(ear.passed_over().size() == 1);
  CHECK(ear.passed_over()[0].second.find("moved aside") == std::string::npos);
}

TEST_CASE("where no checkpoint loads, each start says so, nothing is moved, and what is repaired loads") {
  const scratch_directory directory;
  training_state t(0, 1, small);
  for (const std::int64_t step : {1, 2}) {
    auto ckpt = open_disk(disk_at(directory.path()));
    t.fill(step);
    ckpt.save(t.state, step).wait();
  }
  const auto flip = [&](std::int64_t step) {
    const auto path = directory.path() + "/" + cairn::manifest_key(step);
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    char byte = 0;
    file.seekg(-1, std::ios::end).get(byte);
    file.seekp(-1, std::ios::end).put(static_cast<char>(byte ^ 1));
  };
  for (const std::int64_t step : {1, 2}) flip(step);
  for (int start = 0; start < 3; ++start) {
    auto ckpt = open_disk(disk_at(directory.path()));
    CHECK(thrown_by([&] { static_cast<void>(ckpt.resume(t.state)); }).id == error_id::storage_nothing_loads);
    CHECK(ckpt.list() == std::vector<std::int64_t>{1, 2});
  }
  flip(1);
  {
    auto ckpt = open_disk(disk_at(directory.path()));
    CHECK(ckpt.resume(t.state) == 1);
    CHECK(t.is(1));
    CHECK(ckpt.list() == std::vector<std::int64_t>{1});
  }
}

TEST_CASE("a read-only checkpointer changes nothing in a writable store, and saves nothing") {
  const scratch_directory directory;
  {
    double value = 0;
    cairn::state_dict state;
    state.value("value", value);
    cairn::checkpointer ckpt{disk_at(directory.path()), patient()};
    for (const std::int64_t step : {1, 2}) {
      value = static_cast<double>(step);
      ckpt.save(state, step).wait();
    }
  }
  std::filesystem::resize_file(directory.path() + "/" + cairn::manifest_key(2), 100);
  std::ofstream(directory.path() + "/step-00000001/x.0123456789abcdef.part") << "left by a dead writer";
  const auto names = [&] {
    std::set<std::string> all;
    for (const auto& e : std::filesystem::recursive_directory_iterator{directory.path()})
      all.insert(e.path().string());
    return all;
  };
  const auto before = names();
  on_ranks(2, [&](cairn::thread_communicator comm) {
    double value = 0;
    cairn::state_dict mine;
    mine.value("value", value);
    cairn::checkpointer reader{disk_at(directory.path()), cairn::read_only{}, patient(), std::move(comm)};
    CHECK(reader.resume(mine) == 1);
    CHECK(value == 1.0);
    CHECK_FALSE(reader.quarantine(2));
    for (const auto& refused :
         {thrown_by([&] { static_cast<void>(reader.save(mine, 3)); }),
          thrown_by([&] { reader.prepare(mine); }), thrown_by([&] { reader.remove(1); })})
      CHECK(refused.id == error_id::usage_bad_option);
    reader.close();
  });
  CHECK(names() == before);
}

TEST_CASE("a store that proves unsafe is refused before the first save, unless one job alone writes there") {
  struct row {
    oddity odd;
    std::optional<error_id> among_jobs;
    std::optional<error_id> alone;
    std::size_t lines;  // of one job alone
  };
  const row rows[] = {
      {oddity::none, {}, {}, 0},
      {oddity::nfs, {}, {}, 0},
      {oddity::rename_replaces, error_id::storage_unsafe, {}, 1},
      {oddity::no_links, error_id::storage_unsafe, error_id::storage_unsafe, 0},
      {oddity::lock_not_seen, {}, {}, 1},
      {oddity::unknown_kind, {}, {}, 1},
      {oddity::kernel_view, error_id::storage_unsafe, error_id::storage_unsafe, 0},
      {oddity::directory_sync_fails, error_id::storage_io, error_id::storage_io, 0},
  };
  for (const auto& row : rows)
    for (const bool alone : {false, true}) {
      CAPTURE(static_cast<int>(row.odd));
      const scratch_directory directory;
      training_state t(0, 1, small);
      const listener ear;
      cairn::checkpointer ckpt{
          odd_store{directory.path(), {.single_writer = alone}, odd_file_system{row.odd}}, ear, patient()};
      const auto why = thrown_by([&] { static_cast<void>(ckpt.resume(t.state)); });
      CHECK(why.id == (alone ? row.alone : row.among_jobs));
      if (alone) CHECK(ear.warnings().size() == row.lines);
      CHECK(std::filesystem::is_empty(directory.path()));
      if (why.id) continue;
      t.fill(1);
      CHECK_FALSE(thrown_by([&] { ckpt.save(t.state, 1).wait(); }).id);
      ckpt.prepare(t.state);  // not proven twice
      if (alone) CHECK(ear.warnings().size() == row.lines);
    }
}

TEST_CASE("a rank whose client remembers that names were absent is named; one job alone is told of it") {
  for (const bool alone : {false, true}) {
    const scratch_directory directory;
    std::atomic<int> refused{0};
    std::atomic<int> told{0};
    on_ranks(3, [&](cairn::thread_communicator comm) {
      const int rank = comm.rank();
      training_state t(0, 1, small);
      const odd_file_system fs{rank == 2 ? oddity::names_remembered_absent : oddity::none};
      const listener ear;
      cairn::checkpointer ckpt{odd_store{directory.path(), {.single_writer = alone}, fs}, std::move(comm),
                               ear, patient()};
      const auto why = thrown_by([&] { static_cast<void>(ckpt.resume(t.state)); });
      refused += why.id == error_id::storage_unsafe && why.fields.rank == 2;
      told += rank == 2 && ear.warnings().size() == 1;
    });
    CHECK(refused == (alone ? 0 : 3));
    CHECK(told == (alone ? 1 : 0));
    CHECK(std::filesystem::is_empty(directory.path()));
  }
}

TEST_CASE("a run that sees commits of another one names it once, and is silent about those it came after") {
  const scratch_directory directory;
  double value = 0;
  cairn::state_dict state;
  state.value("value", value);
  const auto begin = [&](const listener& ear) {
    cairn::checkpointer ckpt{disk_at(directory.path()), ear, patient()};
    static_cast<void>(ckpt.resume(state));
    return ckpt;
  };
  {
    auto earlier = begin({});
    earlier.save(state, 1).wait();
  }
  const listener ear;
  const listener other_ear;
  auto one = begin(ear);
  for (const std::int64_t step : {2, 3}) one.save(state, step).wait();
  CHECK(ear.warnings().empty());
  auto other = begin(other_ear);
  other.save(state, 10).wait();
  CHECK(other_ear.warnings().empty());  // what it came after
  for (const std::int64_t step : {4, 5, 6, 7, 8, 9}) one.save(state, step).wait();
  REQUIRE(ear.warnings().size() == 1);
  CHECK(ear.warnings()[0].find(" commits into the same store") != std::string::npos);
  CHECK(ear.warnings()[0].find("step 10;") != std::string::npos);
  other.save(state, 11).wait();
  CHECK(other_ear.warnings().size() == 1);
  one.close(), other.close();
}

TEST_CASE("a run that cleans up keeps the marks that another run is just looking for") {
  const scratch_directory directory;
  cairn::file_store shared{directory.path()};
  const auto storage = cairn::safetensors_storage{shared};
  auto one = storage.writer();
  auto other = storage.writer();
  const cairn::run_id run{1, 2};
  const cairn::run_id another{3, 4};
  one.look_up_mark(run);
  one.leave_mark(run);
  static_cast<void>(other.clean(another));
  CHECK(one.sees_mark(run) == cairn::mark_visibility::seen);
  one.remove_mark(run);
  CHECK(shared.list("").empty());
  {
    auto dead = cairn::safetensors_storage{shared}.writer();
    dead.leave_mark(run);
  }
  CHECK(other.clean(another) == 2);
  // A run of another host, whose locks may not be seen here: judged by the clock.
  const auto leave = [&](std::int64_t age) {
    cairn::wire_writer about;
    about.put(static_cast<std::int64_t>(std::time(nullptr) - age)).put(std::string("another host"));
    shared.put_new("shared-mark.x", about.take());
  };
  leave(60);
  CHECK(other.clean(another) == 0);
  shared.remove("shared-mark.x");
  for (const std::int64_t age : {-7200, 7200}) {
    leave(age);
    shared.put_new("shared-mark.y", {});
    CHECK(other.clean(another) == 2);
  }
  CHECK(shared.list("").empty());
}

TEST_CASE("short writes and reads, EINTR, and a disk that is full in the middle, seen by a trainer") {
  const scratch_directory directory;
  training_state t(0, 1, large);
  std::int64_t step = 0;
  std::vector<std::int64_t> kept;
  const auto run = [&](file_fault fault) {
    faulty_file_system<> fs;
    auto ckpt = open_disk(disk_at(directory.path(), fs));
    t.fill(++step);
    fs.fail(fault);
    const auto why = thrown_by([&] { ckpt.save(t.state, step).wait(); });
    CHECK(fs.hits() > 0);
    CHECK(t.is(step));
    if (!why.id) {
      ckpt.load(t.state, step);
      CHECK(t.is(step));
      kept.push_back(step);
    }
    fs.heal();
    CHECK(ckpt.list() == kept);
    t.fill(++step);  // training goes on
    ckpt.save(t.state, step).wait();
    kept.push_back(step);
    ckpt.load(t.state, step);
    CHECK(t.is(step));
    return why.id;
  };
  using manner = file_fault::manner;
  for (const auto call : {file_call::pwrite, file_call::pread})
    for (const bool for_ever : {false, true})
      CHECK_FALSE(run({.call = call, .for_ever = for_ever, .how = manner::half}).has_value());
  CHECK_FALSE(run({.call = file_call::pwrite, .how = manner::one_byte}).has_value());
  for (const auto call : {file_call::pwrite, file_call::open, file_call::open_directory, file_call::rename})
    CHECK_FALSE(run({.call = call, .error = EINTR}).has_value());
  for (const auto call : {file_call::pwrite, file_call::allocate})
    CHECK(run({.call = call, .error = ENOSPC}) == error_id::storage_no_space);
  CHECK(run({.call = file_call::sync, .error = EIO}) == error_id::storage_io);
  CHECK(run({.call = file_call::open, .error = EROFS, .for_ever = true}) == error_id::storage_permission);
}

TEST_CASE(
    "whatever call to the store fails in a save of two ranks: the handles say so, and training goes on") {
  for (const bool for_ever : {false, true}) {
    bool reached = true;
    std::uint64_t k = 0;
    // The order of the ranks' calls differs from run to run: each call is met in some run.
    for (; reached; ++k) {
      CAPTURE(k);
      CAPTURE(for_ever);
      place p;
      // It is waited for where the store fails behind a manifest.
      p.rival_timeout = std::chrono::milliseconds(200);
      std::barrier together(2);
      std::atomic<int> acknowledged = 0;
      const auto thrown = p.ranks(2, [&](int rank, communicator comm) {
        training_state t(rank, 2, small);
        auto ckpt = p.open(std::move(comm));
        t.fill(1);
        ckpt.save(t.state, 1).wait();
        together.arrive_and_wait();
        if (rank == 0) p.faults->fail_at(store_call::any, k, for_ever);
        together.arrive_and_wait();
        t.fill(2);
        const auto why = thrown_by([&] {
          ckpt.save(t.state, 2).wait();
          ++acknowledged;
        });
        if (why.text != "nothing" && !why.id) FAIL_CHECK(why.text);
        CHECK(t.is(2));
        together.arrive_and_wait();
        if (rank == 0) {
          reached = p.faults->triggered() > 0;
          p.faults->clear();
        }
        together.arrive_and_wait();
        t.fill(3);
        ckpt.save(t.state, 3).wait();
        ckpt.close();
      });
      none_failed(thrown);
      training_state t(0, 1, small);
      auto next = p.open();
      CHECK(next.resume(t.state) == 3);
      CHECK(t.is(3));
      const auto steps = next.list();
      const bool exists = std::find(steps.begin(), steps.end(), 2) != steps.end();
      CHECK((exists || acknowledged == 0));
      for (const auto step : steps) {
        next.load(t.state, step);
        CHECK(t.is(step));
      }
    }
    CHECK(k > 20);
  }
}

TEST_CASE("after max_consecutive_failures save throws, when its own save is under way") {
  place p;
  training_state t(0, 1, small);
  auto options = patient();
  options.max_consecutive_failures = 3;
  auto ckpt = p.open(alone(), options);
  // A writer goes on when save() has returned.
  std::counting_semaphore<8> returned(0);
  std::atomic<bool> broken = true;
  p.faults->add({.kind = store_call::create, .for_ever = true, .action = [&](std::string_view key) {
                   returned.acquire();
                   if (broken) cairn::fail(error_id::storage_io, "no spindle", {.file = std::string(key)});
                 }});
  for (const std::int64_t step : {1, 2, 3}) {
    t.fill(step);
    const auto handle = ckpt.save(t.state, step);
    returned.release();
    CHECK(thrown_by([&] { handle.wait(); }).id == error_id::storage_io);
    CHECK(handle.failed());
  }
  broken = false;
  t.fill(4);
  const auto why = thrown_by([&] { ckpt.save(t.state, 4); });
  CHECK(why.id == error_id::usage_too_many_failures);
  CHECK(why.text.find("no spindle") != std::string::npos);
  CHECK(why.text.find("save() throws after 3 saves in a row that failed (max_consecutive_failures") !=
        std::string::npos);
  returned.release(5);
  t.fill(5);
  ckpt.save(t.state, 5).wait();
  ckpt.close();
  CHECK(p.open().list() == std::vector<std::int64_t>{4, 5});
}

TEST_CASE("an overlapped save that has begun when save() throws is committed") {
  const cairn::memory_store store;
  const auto faults = std::make_shared<store_faults>();
  training_state t(0, 1, small);
  // What save() throws ends the checkpointer.
  const auto training = [&] {
    auto options = patient();
    options.max_consecutive_failures = 3;
    cairn::checkpointer ckpt{faulty_store(store, faults), cairn::overlapped{}, options};
    faults->fail_at(store_call::create, 0, true);
    for (const std::int64_t step : {1, 2, 3}) {
      t.fill(step);
      const auto handle = ckpt.save(t.state, step);
      ckpt.before_update();
      CHECK(thrown_by([&] { handle.wait(); }).id == error_id::storage_io);
    }
    faults->clear();
    t.fill(4);
    ckpt.save(t.state, 4);
  };
  CHECK(thrown_by(training).id == error_id::usage_too_many_failures);
  cairn::checkpointer reader{store, patient()};
  CHECK(reader.list() == std::vector<std::int64_t>{4});
  reader.load(t.state, 4);
  CHECK(t.is(4));
}

TEST_CASE("a save that reads the memory of training fails when save() no longer waits for it") {
  const cairn::memory_store store;
  const auto faults = std::make_shared<store_faults>();
  std::vector<float> weights(1 << 20, 1.0F);
  cairn::state_dict state;
  state.tensor("weights", weights, {1 << 20});
  auto options = patient();
  options.timeout = std::chrono::seconds(3);
  options.when_busy = cairn::busy_policy::queue;
  {
    cairn::checkpointer ckpt{faulty_store(store, faults), cairn::no_staging{}, options};
    std::binary_semaphore go_on(0);
    faults->add({.kind = store_call::publish_new, .action = [&](std::string_view) { go_on.acquire(); }});
    (void)thrown_by([&] { ckpt.save(state, 1); });
    std::fill(weights.begin(), weights.end(), 2.0F);
    cairn::save_handle second;
    CHECK_NOTHROW(second = ckpt.save(state, 2));  // its writer does not even begin to read in time
    std::fill(weights.begin(), weights.end(), 3.0F);
    go_on.release();
    REQUIRE(second.valid());
    CHECK(second.failed());
    CHECK(thrown_by([&] { second.wait(); }).id == error_id::timeout_staging);
    (void)thrown_by([&] { ckpt.close(); });
  }
  const auto steps = cairn::checkpointer{store, patient()}.list();
  CHECK(std::find(steps.begin(), steps.end(), 2) == steps.end());
}

TEST_CASE("prepare() waits for no buffer that an earlier save has") {
  const cairn::memory_store store;
  training_state t(0, 1, small), other(0, 1, {});
  auto options = patient();
  options.timeout = std::chrono::seconds(10);
  cairn::checkpointer ckpt{store, cairn::overlapped{}, options};
  t.fill(1);
  const auto handle = ckpt.save(t.state, 1);
  // The save has its buffer until before_update(), to which its trainer comes after this.
  ckpt.prepare(t.state);
  ckpt.prepare(other.state);
  ckpt.prepare(t.state);
  ckpt.before_update();
  handle.wait();
  CHECK(ckpt.list() == std::vector<std::int64_t>{1});
}

TEST_CASE("waiting for a buffer is told as no processor time") {
  const cairn::memory_store store;
  const auto faults = std::make_shared<store_faults>();
  training_state t(0, 1, small);
  auto options = patient();
  options.when_busy = cairn::busy_policy::queue;
  cairn::checkpointer ckpt{faulty_store(store, faults), cairn::overlapped{}, options};
  ckpt.prepare(t.state);
  faults->add({.kind = store_call::publish_new, .action = [&](std::string_view) {
                 std::this_thread::sleep_for(std::chrono::seconds(2));  // a store that is slow
               }});
  double longest = 0, cpu = 0;
  for (const std::int64_t step : {1, 2, 3, 4, 5}) {
    const auto handle = ckpt.save(t.state, step);
    ckpt.before_update();
    const auto report = handle.report();
    if (report.stage_seconds > longest) longest = report.stage_seconds, cpu = report.copying.cpu_seconds;
  }
  ckpt.close();
  REQUIRE(longest > 0.5);
  CHECK(cpu < longest / 2);
}

TEST_CASE("another dtype or shape on one rank alone is an error of load on all ranks") {
  place p;
  none_failed(p.ranks(2, [&](int rank, communicator comm) {
    training_state t(rank, 2, small);
    auto ckpt = p.open(std::move(comm));
    t.fill(1);
    ckpt.save(t.state, 1).wait();
    std::vector<float> weights(700);
    std::vector<double> doubles(700);
    cairn::state_dict dtype;
    cairn::state_dict shape;
    if (rank == 1) {
      dtype.tensor("weights", doubles, {700});
      shape.tensor("weights", weights, {7, 100});
    } else {
      dtype.tensor("weights", weights, {700});
      shape.tensor("weights", weights, {700});
    }
    const auto wrong_dtype = thrown_by([&] { ckpt.load(dtype, 1, cairn::only{"weights"}); });
    CHECK(wrong_dtype.id == error_id::plan_dtype_mismatch);
    CHECK(wrong_dtype.fields.item == "weights");
    const auto wrong_shape = thrown_by([&] { ckpt.load(shape, 1, cairn::only{"weights"}); });
    CHECK(wrong_shape.id == error_id::plan_shape_mismatch);
    CHECK(wrong_shape.fields.item == "weights");
    // resume does not look for an older checkpoint: none would fit.
    CHECK(thrown_by([&] { static_cast<void>(ckpt.resume(shape)); }).is(cairn::error_kind::plan));
    t.spoil();
    ckpt.load(t.state, 1);
    CHECK(t.is(1));
  }));
}

TEST_CASE("ranks that claim overlapping chunks are all told, before a byte is written") {
  place p;
  none_failed(p.ranks(4, [&](int rank, communicator comm) {
    std::vector<float> rows(4 * 8);
    cairn::state_dict state;
    const std::int64_t begin[] = {0, 4, 7, 12};  // rank 2 should begin at 8
    state.tensor("rows", rows, cairn::shard{{16, 8}, {begin[rank], 0}, {4, 8}});
    auto ckpt = p.open(std::move(comm));
    const auto why = thrown_by([&] { ckpt.save(state, 1); });
    CHECK(why.id == error_id::plan_overlap);
    CHECK(why.fields.item == "rows");
    CHECK(why.text.find("offsets [4, 0] sizes [4, 8] on rank 1") != std::string::npos);
    CHECK(why.text.find("offsets [7, 0] sizes [4, 8] on rank 2") != std::string::npos);
    CHECK(ckpt.list().empty());
  }));
  CHECK(p.objects.list("").empty());
  CHECK(p.faults->count(store_call::create) == 0);
}

TEST_CASE("a name given twice is refused, and the state saves as it was") {
  place p;
  training_state t(0, 1, small);
  t.fill(1);
  double other = 0;
  CHECK(thrown_by([&] { t.state.value("rate", other); }).id == error_id::usage_duplicate_name);
  CHECK(thrown_by([&] { t.state.tensor("weights", t.weights, {700}); }).id == error_id::usage_duplicate_name);
  auto ckpt = p.open();
  ckpt.save(t.state, 1).wait();
  t.spoil();
  ckpt.load(t.state, 1);
  CHECK(t.is(1));
}

TEST_CASE("a rank that does not come to plan is named on all others by the deadline") {
  place p;
  std::latch others_done(2);
  none_failed(p.ranks(3, [&](int rank, communicator comm) {
    training_state t(rank, 3, small);
    auto options = patient();
    if (rank == 0) options.peer_timeout = seconds(1);  // it gives up and sends rank 1 the failure
    auto ckpt = p.open(std::move(comm), options);
    if (rank == 2) return others_done.wait();
    // Rank 1 has sent its part: nothing else is awaited than that of rank 2.
    while (rank == 0 && p.counts->sent == 0) std::this_thread::sleep_for(milliseconds(1));
    const auto why = thrown_by([&] { ckpt.save(t.state, 1); });
    CHECK(why.is(cairn::error_kind::timeout));
    CHECK(why.fields.rank == 2);
    others_done.count_down();
  }));
  CHECK(p.objects.list("").empty());
}

TEST_CASE("memory resized on one rank: it throws there, and the others learn it long before any deadline") {
  place p;
  none_failed(p.ranks(3, [&](int rank, communicator comm) {
    training_state t(rank, 3, small);
    auto ckpt = p.open(std::move(comm), patient(std::chrono::hours(1)));
    t.fill(1);
    ckpt.save(t.state, 1).wait();
    const auto length = t.rows.size();
    if (rank == 1) t.rows.resize(length - 1);
    const auto why = thrown_by([&] {
      const auto handle = ckpt.save(t.state, 2);
      CHECK(rank != 1);
      handle.wait();
    });
    CHECK(why.id == error_id::usage_size_changed);
    CHECK(why.fields.item == "rows");
    if (rank != 1) CHECK(why.text.find("rank 1") != std::string::npos);
    t.rows.resize(length);
    t.fill(3);
    ckpt.save(t.state, 3).wait();
  }));
  CHECK(p.open().list() == std::vector<std::int64_t>{1, 3});
}

TEST_CASE("a rank whose writer fails: the others' handles say why and where") {
  place p;
  p.faults->add(
      {.kind = store_call::create, .key_contains = "rank-00001", .action = [](std::string_view key) {
         cairn::fail(error_id::storage_io, "the cable was pulled", {.file = std::string(key)});
       }});
  none_failed(p.ranks(3, [&](int, communicator comm) {
    const int rank = comm.rank();
    training_state t(rank, 3, small);
    auto ckpt = p.open(std::move(comm), patient(std::chrono::hours(1)));
    t.fill(1);
    const auto handle = ckpt.save(t.state, 1);
    const auto why = thrown_by([&] { handle.wait(); });
    CHECK(why.id == error_id::storage_io);
    CHECK(why.text.find("the cable was pulled") != std::string::npos);
    if (rank != 1) CHECK(why.fields.rank == 1);
    CHECK_FALSE(handle.committed());
    t.fill(2);
    ckpt.save(t.state, 2).wait();
  }));
  CHECK(p.open().list() == std::vector<std::int64_t>{2});
  CHECK(p.keys("step-00000001", ".safetensors").empty());
}

/// A file system under four ranks, of which two share a file. When rank 2 has written and looks for the first time whether
/// its save was ended, `look` runs and says how that look and each later one fails, or 0. Rank 0 makes no manifest before
/// `may_commit`.
struct file_system_of_sharers : cairn::posix_file_system {
  struct script {
    std::function<int()> look;
    std::latch may_commit{1};
    std::atomic<bool> looked{false};
    std::atomic<int> error{0};
  };
  int rank = 0;
  std::shared_ptr<script> all;

  int open_at(int directory, const char* name, int flags, unsigned mode) const {
    const std::string_view called(name);
    const bool makes = (flags & O_CREAT) != 0;
    if (rank == 0 && makes && called.starts_with("manifest.")) all->may_commit.wait();
    if (rank == 2 && !makes && called.starts_with("aborted.") && has_written(directory)) {
      if (!all->looked.exchange(true)) all->error = all->look();
      if (all->error != 0) return -all->error;
    }
    return posix_file_system::open_at(directory, name, flags, mode);
  }

 private:
  [[nodiscard]] bool has_written(int directory) const {
    std::vector<cairn::directory_entry> entries;
    return list(directory, entries) == 0 && std::any_of(entries.begin(), entries.end(), [](const auto& e) {
             return e.name.starts_with("rank-00002.") && e.name.ends_with(".0.safetensors");
           });
  }
};

TEST_CASE(
    "ranks that share files: one that cannot see how its save ended takes nothing from the checkpoint") {
  const scratch_directory root;
  const auto script = std::make_shared<file_system_of_sharers::script>();
  std::latch committed(1);
  bool stands = true;
  const auto attempt = [&] {
    for (const auto& o : cairn::file_store{root.path()}.list("step-00000001/"))
      if (const auto name = cairn::parse_key(o.key); name && name->object.attempt != 0)
        return name->object.attempt;
    return std::uint64_t{0};
  };
  SUBCASE("its look fails after the commit") {
    script->look = [&] {
      committed.wait();
      return EIO;
    };
  }
  SUBCASE("another rank marks the save as ended after the commit") {
    script->look = [&] {
      committed.wait();
      cairn::file_store{root.path()}.put_new(cairn::aborted_key(1, attempt()), {});
      return 0;
    };
  }
  SUBCASE("its look fails before the commit: then there is none, and nothing is left") {
    stands = false;
    script->look = [] { return EIO; };
  }
  if (stands) script->may_commit.count_down();
  cairn::thread_group group(4);
  std::array<std::vector<float>, 4> parts;
  std::array<bool, 4> told{};
  on_all_ranks(4, [&](int rank) {
    file_system_of_sharers fs;
    fs.rank = rank, fs.all = script;
    const auto at = static_cast<std::size_t>(rank);
    parts[at].assign(1000, static_cast<float>(rank + 1));
    cairn::state_dict state;
    state.tensor("part", parts[at], cairn::shard{{4000}, {1000 * rank}});
    cairn::checkpointer ckpt{
        cairn::safetensors_storage{
            cairn::basic_file_store<file_system_of_sharers>{root.path(), {}, fs},
            cairn::commit_options{.ranks_per_file = 2, .rival_timeout = std::chrono::milliseconds(50)}},
        group.communicator(rank),
        cairn::checkpointer_options{.timeout = std::chrono::seconds(20), .quiet = true}};
    const auto save = ckpt.save(state, 1);
    const auto why = thrown_by([&] { save.wait(); });
    if (rank == 2 && script->error != 0) {
      CHECK(why.id == error_id::storage_io);
      CHECK(why.text.find("which may be committed") != std::string::npos);
      script->error = 0;
    }
    told[at] = save.committed();
    if (rank == 0) committed.count_down();
    if (rank == 2 && !stands) script->may_commit.count_down();
    (void)thrown_by([&] { ckpt.close(); });
  });
  CHECK(script->looked);
  CHECK(told[0] == stands);
  CHECK_FALSE(told[2]);
  cairn::checkpointer next{cairn::file_store{root.path()}, cairn::checkpointer_options{.quiet = true}};
  if (!stands) {
    CHECK(next.list().empty());
    for (const auto& o : cairn::file_store{root.path()}.list("step-00000001/"))
      CHECK_MESSAGE(o.key == cairn::aborted_key(1, attempt()), o.key);
    return;
  }
  CHECK(next.list() == std::vector<std::int64_t>{1});
  std::vector<float> whole(4000);
  cairn::state_dict state;
  state.tensor("part", whole, {4000});
  next.load(state, 1);
  for (std::size_t i = 0; i < whole.size(); i += 500) CHECK(whole[i] == parts[i / 1000][0]);
}

TEST_CASE("before_update forgotten on all ranks: nothing of the save is published, and the next one is") {
  place p;
  none_failed(p.ranks(2, [&](int rank, communicator comm) {
    training_state t(rank, 2, small);
    auto ckpt = p.open_overlapped(std::move(comm));
    t.fill(1);
    const auto first = ckpt.save(t.state, 1);
    t.fill(2);
    const auto second = ckpt.save(t.state, 2);
    const auto why = error_of(first.failure());
    CHECK_MESSAGE(why.id == error_id::usage_before_update_missing, why.text);
    ckpt.before_update();
    second.wait();
  }));
  training_state t(0, 1, small);
  auto next = p.open();
  CHECK(next.resume(t.state) == 2);
  CHECK(t.is(2));
  CHECK(p.keys("step-00000001", ".safetensors").empty());
}

TEST_CASE("an exception while an overlapped save is not confirmed: nothing is committed") {
  place p;
  cairn::save_handle handle;
  training_state t(0, 1, small);
  t.fill(1);
  try {
    auto ckpt = p.open_overlapped();
    handle = ckpt.save(t.state, 1);
    throw std::runtime_error("the loss is no number");
  } catch (const std::runtime_error&) {
  }
  const auto why = error_of(handle.failure());
  CHECK(why.id == error_id::storage_aborted);  // nobody forgot a call
  CHECK_MESSAGE(why.text.find("an exception ended its checkpointer") != std::string::npos, why.text);
  CHECK(p.open().list().empty());
  CHECK(p.keys("manifest").empty());
}

TEST_CASE("failed notes of restarts do no harm, and a read-only store is not asked for them") {
  for (const auto id : {error_id::storage_io, error_id::storage_permission}) {
    place p;
    training_state t(0, 1, small);
    t.fill(1);
    {
      auto ckpt = p.open();
      ckpt.save(t.state, 1).wait();
    }
    for (const auto kind : {store_call::put_new, store_call::remove, store_call::list})
      p.faults->add({.kind = kind, .for_ever = true, .key_contains = "restart.", .action = [id](auto) {
                       cairn::fail(id, "an injected fault");
                     }});
    auto ckpt = p.open();
    CHECK(ckpt.resume(t.state) == 1);
    ckpt.save(t.state, 2).wait();
    ckpt.close();
    CHECK(p.faults->triggered() == 3);  // with all that a run looks at, alone, and the note itself
    CHECK(p.keys("restart.").empty());
    CHECK(p.open().resume(t.state) == 2);
  }
}

TEST_CASE("a checkpointer that is destroyed without close waits for its saves") {
  place p;
  training_state t(0, 1, small);
  t.fill(1);
  std::latch gate(1);
  p.faults->add({.kind = store_call::finish, .action = [&](std::string_view) { gate.wait(); }});
  cairn::save_handle handle;
  std::jthread opener;
  {
    auto ckpt = p.open();
    handle = ckpt.save(t.state, 1);
    CHECK_FALSE(handle.written());
    CHECK_FALSE(handle.committed());
    opener = std::jthread([&] { gate.count_down(); });
  }
  CHECK(handle.committed());
  t.spoil();
  CHECK(p.open().resume(t.state) == 1);
  CHECK(t.is(1));
}

/// A store whose calls can be made to fail, and then to answer nothing until they are told to.
struct silent_store : place {
  silent_store() {
    faults = {new store_faults, [left = left](store_faults* f) {
                delete f;
                left->release();
              }};
  }
  /// Every call fails from now on.
  void fail() {
    faults->add({.for_ever = true, .action = [silent = silent](auto) {
                   if (!*silent) cairn::fail(error_id::storage_io, "an injected fault");
                 }});
  }
  /// No call that begins from now on returns before answer().
  void hush() {
    faults->add({.for_ever = true, .action = [gate = gate, inside = inside](auto) {
                   inside->release();
                   gate->wait();
                 }});
    *silent = true;
  }
  /// Until a call has come that does not return.
  void await_call() { REQUIRE(inside->try_acquire_for(std::chrono::minutes(2))); }
  void answer() { gate->count_down(); }
  /// Whether nothing uses the store any more, at last.
  [[nodiscard]] bool is_left() {
    faults.reset();
    return left->try_acquire_for(std::chrono::minutes(2));
  }

  const std::shared_ptr<std::atomic<bool>> silent = std::make_shared<std::atomic<bool>>(false);
  const std::shared_ptr<std::latch> gate = std::make_shared<std::latch>(1);
  /// Of the calls that do not return.
  const std::shared_ptr<std::counting_semaphore<>> inside = std::make_shared<std::counting_semaphore<>>(0);
  const std::shared_ptr<std::binary_semaphore> left = std::make_shared<std::binary_semaphore>(0);
};

/// Has the store answer after two minutes, so that who waits for it is told instead of hanging.
class answers_at_last {
 public:
  explicit answers_at_last(std::latch& gate)
      : thread_([this, &gate] {
          if (over_.try_acquire_for(std::chrono::minutes(2))) return;
          late_ = true;
          gate.count_down();
        }) {}
  /// Whether it came to that.
  [[nodiscard]] bool late() {
    over_.release();
    thread_.join();
    return late_;
  }

 private:
  std::binary_semaphore over_{0};
  std::atomic<bool> late_ = false;
  std::jthread thread_;
};

TEST_CASE(
    "a store that has stopped answering: the next save() returns, and fails, and ends its save when it "
    "answers") {
  const auto next_save = [](cairn::busy_policy when_busy) {
    silent_store s;
    auto options = patient(std::chrono::seconds(1));
    options.when_busy = when_busy;
    training_state t(0, 1, small);
    t.fill(1);
    {
      auto ckpt = s.open(alone(), options);
      s.hush();
      const auto second = ckpt.save(t.state, 2);
      s.await_call();
      answers_at_last watch(*s.gate);
      const auto third = ckpt.save(t.state, 3);
      const auto fourth = ckpt.save(t.state, 4);
      if (watch.late()) {
        FAIL_CHECK("save() waits for a store that answers nothing");
        return;
      }
      const auto id =
          when_busy == cairn::busy_policy::block ? error_id::timeout_commit : error_id::timeout_staging;
      CHECK(error_of(third.failure()).id == id);
      CHECK(error_of(fourth.failure()).id == id);
      CHECK(s.keys("step-00000003").empty());
      s.answer();
    }
    CHECK(s.is_left());
    CHECK(s.keys("step-00000003/aborted.").size() == 1);
    CHECK(s.keys("step-00000004/aborted.").size() == 1);
  };
  std::jthread other(next_save, cairn::busy_policy::block);
  next_save(cairn::busy_policy::queue);
}

TEST_CASE(
    "who waits for the plans of other ranks gives up by the deadline, though the store answers nothing") {
  silent_store s;
  std::latch tried(1);
  none_failed(s.ranks(2, [&](int rank, communicator comm) {
    training_state t(rank, 2, small);
    auto options = patient();
    options.peer_timeout = std::chrono::seconds(3);
    auto ckpt = s.open(std::move(comm), options);
    if (rank == 1) return tried.wait();
    s.hush();
    answers_at_last watch(*s.gate);
    const auto why = thrown_by([&] { ckpt.save(t.state, 1); });
    s.await_call();  // who looks whether others write
    if (watch.late())
      FAIL_CHECK("save() waits for a store that answers nothing");
    else
      s.answer();
    CHECK(why.id == error_id::timeout_peer);
    CHECK(why.fields.rank == 1);
    tried.count_down();
  }));
  CHECK(s.is_left());
}

TEST_CASE("a checkpointer ends, although the store answers nothing to who ends its failed saves") {
  const auto end = [](bool reached) {  // the executor, before the store answered nothing
    silent_store s;
    training_state t(0, 1, small);
    t.fill(1);
    std::optional ckpt(s.open(alone(), patient(std::chrono::seconds(1))));
    if (reached) {
      s.fail();
      CHECK(thrown_by([&] { ckpt->save(t.state, 2).wait(); }).id);
    }
    s.hush();
    answers_at_last watch(*s.gate);
    if (!reached) {
      (void)ckpt->save(t.state, 2);
      CHECK(ckpt->save(t.state, 3).failed());
    }
    s.await_call();
    ckpt.reset();
    if (watch.late()) {
      FAIL_CHECK("the destructor waits for a store that answers nothing");
      return;
    }
    s.answer();
    CHECK(s.is_left());
    CHECK(s.keys("step-00000002", ".safetensors").empty());
  };
  std::jthread other(end, false);
  end(true);
}

/// A file system that stops answering those who remove files.
struct file_system_that_stops : cairn::posix_file_system {
  std::shared_ptr<std::atomic<bool>> silent = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<std::latch> gate = std::make_shared<std::latch>(1);

  [[nodiscard]] int unlink_at(int directory, const char* name) const {
    if (*silent) gate->wait();
    return posix_file_system::unlink_at(directory, name);
  }
};

TEST_CASE("a run that resumed ends, although the store does not take its lease back") {
  const auto end = [](bool closed) {
    const scratch_directory root;
    const file_system_that_stops fs;
    const auto open = [&] {
      return cairn::checkpointer{cairn::basic_file_store<file_system_that_stops>{root.path(), {}, fs},
                                 cairn::checkpointer_options{.announce_run = true, .quiet = true}};
    };
    training_state t(0, 1, small);
    t.fill(1);
    {
      auto first = open();
      first.save(t.state, 1).wait();
      first.close();
    }
    std::optional ckpt(open());
    CHECK(ckpt->resume(t.state) == 1);
    const auto others = [&] { return cairn::file_store{root.path()}.live_writers("").size(); };
    CHECK(others() == 2);  // the lease, and that the run lives
    answers_at_last watch(*fs.gate);
    *fs.silent = true;
    if (closed) (void)thrown_by([&] { ckpt->close(); });
    ckpt.reset();
    if (watch.late()) {
      FAIL_CHECK("the end of a run waits for a store that answers nothing");
      return;
    }
    *fs.silent = false;
    fs.gate->count_down();
    for (const auto until = cairn::deadline::in(std::chrono::minutes(2)); others() != 0 && !until.passed();)
      std::this_thread::yield();
    CHECK(others() == 0);
  };
  SUBCASE("by close()") {
    end(true);
  }
  SUBCASE("by its destructor") {
    end(false);
  }
}

TEST_CASE(
    "a step that is still being saved is removed after that: all ranks wait, longer than for a message") {
  place p;
  auto options = patient();
  options.peer_timeout = std::chrono::seconds(10);
  std::latch gate(1);
  p.faults->add(
      {.kind = store_call::finish, .key_contains = "rank-00000", .action = [&](auto) { gate.wait(); }});
  std::binary_semaphore returned{0};
  std::jthread late([&] {
    (void)returned.try_acquire_for(options.peer_timeout + std::chrono::seconds(3));
    gate.count_down();
  });
  none_failed(p.ranks(2, [&](int rank, communicator comm) {
    training_state t(rank, 2, small);
    t.fill(1);
    auto ckpt = p.open(std::move(comm), options);
    const auto handle = ckpt.save(t.state, 1);
    const auto why = thrown_by([&] { ckpt.remove(1); });
    if (rank == 1) returned.release();
    CHECK(why.text == "nothing");
    handle.wait();
    CHECK(ckpt.list().empty());
  }));
}

TEST_CASE("a save whose plan is cached sends no message") {
  place p;
  std::barrier together(4);
  none_failed(p.ranks(4, [&](int rank, communicator comm) {
    training_state t(rank, 4, small);
    auto ckpt = p.open(std::move(comm));
    auto first = ckpt.save(t.state, 1);
    first.wait();
    CHECK(!first.report().plan_cached);
    CHECK(first.report().plan_saved_seconds == 0);
    together.arrive_and_wait();
    const auto sent = p.counts->sent.load();
    CHECK(sent > 0);
    together.arrive_and_wait();
    for (const std::int64_t step : {2, 3, 4}) {
      t.fill(step);
      t.loader =
          std::string(static_cast<std::size_t>(rank * 100 + step), 'x');  // bytes may change their size
      auto handle = ckpt.save(t.state, step);
      handle.wait();
      CHECK(handle.report().plan_cached);
      CHECK(handle.report().plan_saved_seconds > 0);
    }
    ckpt.close();
    together.arrive_and_wait();
    CHECK(p.counts->sent.load() == sent);
    together.arrive_and_wait();
  }));
}

TEST_CASE("two checkpointers save the same step at once: exactly one wins, whole") {
  for (std::int64_t round = 1; round <= 30; ++round) {
    CAPTURE(round);
    place p;
    std::barrier together(2);
    std::atomic<std::int64_t> winners = 0;
    std::atomic<std::int64_t> content = 0;
    const auto job = [&](std::int64_t own) {
      training_state t(0, 1, small);
      auto ckpt = p.open();
      t.fill(own);
      ckpt.prepare(t.state);
      together.arrive_and_wait();
      const auto why = thrown_by([&] { ckpt.save(t.state, round).wait(); });
      if (!why.id) ++winners, content = own;
      CHECK_MESSAGE(
          (!why.id || why.id == error_id::storage_already_committed || why.id == error_id::storage_aborted),
          why.text);
    };
    std::jthread other(job, 100);
    job(200);
    other.join();
    CHECK(winners == 1);
    training_state t(0, 1, small);
    CHECK(p.open().resume(t.state) == round);
    CHECK(t.is(content));
    CHECK(p.keys("", ".safetensors").size() <= 2);
  }
}

TEST_CASE(
    "a checkpoint that retention removes while it is being loaded gives a typed error or its own bits") {
  bool reached = true;
  int errors = 0;
  std::uint64_t k = 0;
  for (; reached; ++k) {
    CAPTURE(k);
    place p;
    training_state t(0, 1, small);
    place trainer;
    trainer.objects = p.objects;
    auto saving = trainer.open(alone(), patient(), 1);
    t.fill(1);
    saving.save(t.state, 1).wait();
    p.faults->add({.at = k, .key_contains = "step-00000001", .action = [&](std::string_view) {
                     training_state newer(0, 1, small);
                     newer.fill(2);
                     saving.save(newer.state, 2).wait();
                   }});
    training_state loaded(0, 1, small);
    auto reader = p.open();
    const auto why = thrown_by([&] { reader.load(loaded.state, 1); });
    reached = p.faults->triggered() > 0;
    if (why.id) {
      CHECK((why.is(cairn::error_kind::storage) || why.is(cairn::error_kind::corrupt)));
      ++errors;
    } else {
      CHECK(why.text == "nothing");
      CHECK(loaded.is(1));
    }
    if (!reached) break;
    CHECK(reader.list() == std::vector<std::int64_t>{2});
    reader.load(loaded.state, 2);
    CHECK(loaded.is(2));
  }
  CHECK(k >= 3);
  CHECK(errors >= 2);
}
