// SPDX-License-Identifier: Apache-2.0
// group: checkpoints
// The commit protocol: who may publish a checkpoint, and what happens when ranks fail, are missing, or
// compete.
// threaded
// cost: 30
#include <cairn/model/save_journal.hpp>
#include <cairn/model/save_notes.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/storage/commit/commit_protocol.hpp>
#include <cairn/storage/manifest/manifest.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/basic_file_store.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/stores/memory_store.hpp>

#include "support/faulty_store.hpp"
#include "support/rounds.hpp"
#include "support/saved_world.hpp"
#include "support/scratch_directory.hpp"
#include "support/stored_sample.hpp"
#include "support/watched_file_system.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {
using namespace cairn_test;
using cairn::error_id;
using store = faulty_store<cairn::memory_store>;

constexpr cairn::run_id first_run{11, 12};
constexpr cairn::run_id second_run{21, 22};

/// The state of some ranks: a sharded tensor, a replicated one, values and blobs; all of it depends on a
/// seed.
class ranks {
 public:
  explicit ranks(int count, int seed = 1) {
    for (int r = 0; r < count; ++r) {
      auto& m = *memory_.emplace_back(std::make_unique<memory>());
      for (int i = 0; i < 600; ++i) m.sharded.push_back(static_cast<float>(seed * 1000 + r * 600 + i));
      for (int i = 0; i < 40; ++i) m.replicated.push_back(seed + i);
      m.rng.assign(static_cast<std::size_t>(10 + r), static_cast<unsigned char>(seed + r));
      m.step = seed;
      m.state.tensor("sharded", m.sharded, cairn::shard{{count * 20, 30}, {r * 20, 0}});
      m.state.tensor("replicated", m.replicated, {8, 5});
      m.state.value("step", m.step);
      m.state.bytes("rng", m.rng, cairn::per_rank);
    }
  }
  [[nodiscard]] std::vector<const cairn::state_dict*> states() const {
    std::vector<const cairn::state_dict*> all;
    for (const auto& m : memory_) all.push_back(&m->state);
    return all;
  }
  friend bool operator==(const ranks& a, const ranks& b) {
    for (std::size_t r = 0; r < a.memory_.size(); ++r) {
      const auto& x = *a.memory_[r];
      const auto& y = *b.memory_[r];
      if (x.sharded != y.sharded || x.replicated != y.replicated || x.rng != y.rng || x.step != y.step)
        return false;
    }
    return a.memory_.size() == b.memory_.size();
  }

 private:
  struct memory {
    std::vector<float> sharded;
    std::vector<std::int32_t> replicated;
    std::vector<unsigned char> rng;
    int step = 0;
    cairn::state_dict state;
  };
  std::vector<std::unique_ptr<memory>> memory_;
};

/// A storage whose calls can be disturbed.
struct disturbed {
  explicit disturbed(std::int32_t block_ranks = 128)
      : disturbed(cairn::commit_options{.block_ranks = block_ranks}) {}
  explicit disturbed(cairn::commit_options o) : options(o) {
    options.rival_timeout = std::chrono::milliseconds(20);
  }
  cairn::commit_options options;
  cairn::memory_store objects;
  std::shared_ptr<store_faults> faults = std::make_shared<store_faults>();
  cairn::safetensors_storage<store> storage{store{objects, faults}, options};
  cairn::safetensors_writer<store> writer = storage.writer();
  cairn::safetensors_reader reader = storage.reader();

  [[nodiscard]] bool holds(std::int64_t step, const ranks& expected, int count) {
    ranks loaded(count, 99);
    load_world(reader, step, loaded.states());
    return loaded == expected;
  }
  [[nodiscard]] std::vector<std::string> keys(std::string_view ending = "") {
    std::vector<std::string> found;
    for (const auto& o : objects.list(""))
      if (o.key.ends_with(ending)) found.push_back(o.key);
    return found;
  }
  /// Data files that no manifest names.
  [[nodiscard]] std::size_t strays() {
    std::size_t count = 0;
    for (const auto& key : keys(".safetensors")) {
      const auto parsed = cairn::parse_key(key);
      const auto bytes = objects.read_all(cairn::manifest_key(parsed->step), 1 << 30);
      bool named = false;
      if (bytes)
        for (const auto& r : cairn::decode_manifest(*bytes, key).records)
          named |= r.attempt == parsed->object.attempt && r.rank == parsed->object.rank &&
                   parsed->object.index < r.files;
      count += !named;
    }
    return count;
  }
};

/// A deadline that has passed: the call looks once and does not wait.
cairn::deadline at_once() {
  return cairn::deadline::in({});
}

TEST_CASE("a checkpoint exists from the commit on, and no step before") {
  disturbed d;
  const ranks state(3);
  world_save save(d.writer, state.states(), 5);
  for (int r = 0; r < 3; ++r) {
    save.write(r);
    CHECK(d.reader.list().empty());
    CHECK(failure_of([&] { (void)d.reader.fetch(5); }).id == error_id::storage_not_committed);
  }
  save.commit();
  CHECK(d.reader.list() == std::vector<std::int64_t>{5});
  for (int r = 1; r < 3; ++r) d.writer.await_commit(save.context(r), at_once());
  CHECK(d.holds(5, state, 3));
  CHECK(d.keys().size() == 3 + 3 + 1);
  CHECK(d.strays() == 0);
}

TEST_CASE("the coordinator may begin to wait before the others have written") {
  disturbed d;
  const ranks state(12);
  world_save save(d.writer, state.states(), 5);
  std::jthread coordinator([&] {
    save.write(0);
    save.commit();
  });
  std::vector<std::jthread> others;
  std::atomic<int> committed{0};
  for (int r = 1; r < 12; ++r) {
    auto image = save.image(r);
    others.emplace_back([&, r, image] {
      (void)d.writer.write(save.context(r), image, soon());
      d.writer.await_commit(save.context(r), soon());
      ++committed;
    });
  }
  others.clear();
  coordinator.join();
  CHECK(committed == 11);
  CHECK(d.holds(5, state, 12));
}

TEST_CASE("a rank that fails is named, with its reason, on all ranks") {
  disturbed d;
  const ranks state(3);
  world_save save(d.writer, state.states(), 5);
  save.write(0), save.write(2);
  d.writer.abort(save.context(1),
                 cairn::make_failure(error_id::storage_no_space, "the disk is full", {.item = "w"}));
  const auto why = failure_of([&] { save.commit(); });
  CHECK(why.id == error_id::storage_no_space);
  CHECK(why.fields.rank == 1);
  CHECK(why.fields.item == "w");
  const auto told = failure_of([&] { d.writer.await_commit(save.context(2), at_once()); });
  CHECK(told.id == error_id::storage_no_space);
  CHECK(told.fields.rank == 1);
  for (int r = 0; r < 3; ++r)
    d.writer.abort(save.context(r), cairn::make_failure(error_id::storage_aborted, "aborted"));
  CHECK(d.reader.list().empty());
  CHECK(d.keys(".safetensors").empty());
  CHECK(d.keys(".record").empty());
  SUBCASE("the same step can be saved again") {
    world_save again(d.writer, state.states(), 5, {1, 2}, 1);
    again.run();
    CHECK(d.holds(5, state, 3));
    CHECK(d.keys().size() == 7 + 1);  // the mark stays until another run begins
  }
}

TEST_CASE("ranks that never report are named at the deadline") {
  disturbed d;
  const ranks state(4);
  world_save save(d.writer, state.states(), 5);
  save.write(0), save.write(2);
  const auto why = failure_of([&] { save.commit(at_once()); });
  CHECK(why.id == error_id::peer_lost);
  CHECK(why.fields.rank == 1);
  CHECK(why.text.find("ranks 1, 3 ") != std::string::npos);
  CHECK(failure_of([&] { d.writer.await_commit(save.context(2), at_once()); }).id == error_id::peer_lost);
  SUBCASE("one that comes too late removes what it wrote") {
    const auto files = d.keys().size();
    CHECK(failure_of([&] { save.write(3); }).id == error_id::peer_lost);
    CHECK(d.keys().size() == files);
  }
}

TEST_CASE("the other ranks notice a coordinator that says nothing") {
  disturbed d;
  const ranks state(2);
  world_save save(d.writer, state.states(), 5);
  save.write(0), save.write(1);
  CHECK(failure_of([&] { d.writer.await_commit(save.context(1), at_once()); }).id ==
        error_id::timeout_commit);
  SUBCASE("and cannot commit once a rank has given up") {
    d.writer.abort(save.context(1), cairn::make_failure(error_id::timeout_commit, "gave up", {.rank = 1}));
    CHECK(failure_of([&] { save.commit(); }).id == error_id::timeout_commit);
    CHECK(d.reader.list().empty());
  }
  SUBCASE("an abort after the commit changes nothing") {
    save.commit();
    for (int r = 0; r < 2; ++r)
      d.writer.abort(save.context(r), cairn::make_failure(error_id::timeout_commit, "gave up"));
    CHECK(d.holds(5, state, 2));
    CHECK(d.keys().size() == 5);
  }
}

TEST_CASE("ranks that have another plan, run or world are named") {
  disturbed d;
  const ranks state(3);
  world_save save(d.writer, state.states(), 5);
  save.write(0), save.write(1);
  auto c = save.context(2);
  SUBCASE("plan") {
    c.plan_digest ^= 1;
  }
  SUBCASE("run") {
    c.run.low ^= 1;
  }
  SUBCASE("world") {
    c.world_size = 7;
  }
  (void)d.writer.write(c, save.image(2), soon());
  const auto why = failure_of([&] { save.commit(); });
  CHECK(why.id == error_id::plan_disagreement);
  CHECK(why.fields.rank == 2);
  CHECK(d.reader.list().empty());
}

TEST_CASE("exactly one of two attempts is committed, and the files of the other are removed") {
  disturbed d;
  const ranks one(2, 1);
  const ranks two(2, 2);
  world_save first(d.writer, one.states(), 5, first_run);
  world_save second(d.writer, two.states(), 5, second_run);
  SUBCASE("one after the other") {
    first.run();
    CHECK(failure_of([&] { second.write(0); }).id == error_id::storage_already_committed);
    CHECK(d.holds(5, one, 2));
    CHECK(d.keys().size() == 5);
  }
  SUBCASE("both written, the first commits") {
    for (int r = 0; r < 2; ++r) first.write(r), second.write(r);
    first.commit();
    CHECK(d.strays() == 0);
    CHECK(failure_of([&] { second.commit(); }).id.has_value());
    CHECK(failure_of([&] { d.writer.await_commit(second.context(1), at_once()); }).id ==
          error_id::storage_aborted);
    for (int r = 0; r < 2; ++r)
      d.writer.abort(second.context(r), cairn::make_failure(error_id::storage_aborted, "x"));
    CHECK(d.holds(5, one, 2));
    CHECK(d.keys().size() == 5 + 1);  // and the mark of the other
  }
  SUBCASE("a rank of the loser comes late") {
    first.write(0), first.write(1), second.write(0);
    d.faults->add({.kind = store_call::finish, .after = true, .action = [&](auto) { first.commit(); }});
    CHECK(failure_of([&] { second.write(1); }).id.has_value());
    CHECK(d.holds(5, one, 2));
    CHECK(d.strays() == 0);
  }
  SUBCASE("what appears while the manifest is published is removed") {
    first.write(0), first.write(1);
    d.faults->add(
        {.kind = store_call::publish_new, .after = true, .key_contains = "manifest", .action = [&](auto) {
           d.objects.put_new(cairn::data_key(5, 0, 77, 0), {});
           d.objects.put_new("step-00000005/notes.txt", {});
         }});
    first.commit();
    CHECK(d.strays() == 0);
    CHECK(d.objects.size("step-00000005/notes.txt").has_value());
  }
}

TEST_CASE("attempts that race for a step: one wins, whatever the order") {
  for (std::uint64_t round = 0; round < cairn_test::rounds(60); ++round) {
    disturbed d;
    const ranks one(2, 1);
    const ranks two(2, 2);
    const ranks three(2, 3);
    world_save first(d.writer, one.states(), 5, first_run);
    world_save second(d.writer, two.states(), 5, second_run);
    world_save third(d.writer, three.states(), 5, {31, 32});
    std::atomic<int> winner{0};
    std::atomic<int> winners{0};
    std::atomic<int> ready{0};
    const auto compete = [&](auto& save, int number) {
      std::vector<cairn::staged_image> images{save.image(0), save.image(1)};
      ++ready;
      while (ready < 3) std::this_thread::yield();
      try {
        for (int r = 0; r < 2; ++r)
          (void)d.writer.write(save.context(r), images[static_cast<std::size_t>(r)], soon());
        save.commit();
        ++winners;
        winner = number;
      } catch (const cairn::error&) {
        for (int r = 1; r >= 0; --r) d.writer.abort(save.context(r), std::current_exception());
      }
    };
    {
      std::jthread a([&] { compete(first, 1); });
      std::jthread b([&] { compete(second, 2); });
      std::jthread c([&] { compete(third, 3); });
    }
    REQUIRE(winners == 1);
    CHECK(d.holds(5, winner == 1 ? one : winner == 2 ? two : three, 2));
    CHECK(d.strays() == 0);
  }
}

TEST_CASE("a new run ends the attempts of the one before, for good") {
  disturbed d;
  const ranks state(2);
  world_save old(d.writer, state.states(), 5, first_run);
  SUBCASE("that was interrupted while writing") {
    old.write(1);
    CHECK(d.writer.clean(second_run) == 2);
    CHECK(d.keys(".safetensors").empty());
    CHECK(failure_of([&] { old.write(0); }).id == error_id::storage_aborted);
  }
  SUBCASE("that was about to commit") {
    old.write(0), old.write(1);
    CHECK(d.writer.clean(second_run) == 4);
    CHECK(failure_of([&] { old.commit(); }).id == error_id::storage_aborted);
  }
  SUBCASE("at the last moment before its manifest") {
    old.write(0), old.write(1);
    d.faults->add({.kind = store_call::publish_new, .key_contains = "manifest", .action = [&](auto) {
                     (void)d.writer.clean(second_run);
                   }});
    CHECK(failure_of([&] { old.commit(); }).id == error_id::storage_aborted);
  }
  SUBCASE("between the names of its files and its record") {
    d.faults->add({.kind = store_call::finish, .after = true, .action = [&](auto) {
                     (void)d.writer.clean(second_run);
                   }});
    CHECK(failure_of([&] { old.write(0); }).id == error_id::storage_aborted);
  }
  CHECK(d.reader.list().empty());
  CHECK(d.keys(".safetensors").empty());
  CHECK(d.keys(".record").empty());
  world_save next(d.writer, state.states(), 5, second_run);
  next.run();
  CHECK(d.holds(5, state, 2));
  CHECK(d.keys().size() == 5 + 1);  // and the mark
}

TEST_CASE("a run waits for a save of another one that lives, and for none that was ended for good") {
  const scratch_directory scratch;
  const cairn::file_store files{scratch.path()};
  const auto writer_there = [&] {
    return cairn::safetensors_writer{std::make_shared<cairn::file_store>(files)};
  };
  auto earlier = writer_there();
  const ranks state(2);
  world_save save(earlier, state.states(), 5, first_run);
  save.write(0);
  // Of a host that is lost, which nobody knows yet.
  const auto shown = earlier.announce(save.context(1));
  REQUIRE(shown.shown());
  std::vector<std::size_t> alive;
  const auto take_over = [&](const cairn::run_id& run) {
    alive.clear();
    return writer_there().take_over(run, [&](const std::vector<cairn::save_attempt>& now) {
      alive.push_back(now.size());
      return false;  // its time is over
    });
  };
  CHECK(take_over(second_run).steps == std::vector<std::int64_t>{});
  CHECK(alive == std::vector<std::size_t>{1});
  CHECK(take_over({31, 32}).steps == std::vector<std::int64_t>{});
  CHECK(alive == std::vector<std::size_t>{0});
  CHECK(failure_of([&] { save.write(1); }).id == error_id::storage_aborted);
  CHECK(writer_there().live_saves({31, 32}).empty());
}

TEST_CASE("clean leaves alone what is committed, what its own run does, and what is not of cairn") {
  disturbed d;
  const ranks state(2);
  world_save(d.writer, state.states(), 5, first_run).run();
  world_save running(d.writer, state.states(), 6, second_run, 3);
  running.write(0), running.write(1);
  world_save unusual(d.writer, state.states(), 7, second_run);
  auto c = unusual.context(0);
  c.attempt = 4711;  // not made by attempt_of: its record tells the run
  (void)d.writer.write(c, unusual.image(0), soon());
  d.objects.put_new("step-00000008/notes.txt", {});
  d.objects.put_new("readme", {});
  const auto before = d.keys();
  CHECK(d.writer.clean(second_run) == 0);
  CHECK(d.keys() == before);
  running.commit();
  CHECK(d.holds(5, state, 2));
  CHECK(d.holds(6, state, 2));
  SUBCASE("but not what lies beside a committed checkpoint") {
    d.objects.put_new(cairn::data_key(5, 0, 77, 0), {});
    d.objects.put_new(cairn::record_key(5, 1, 77), {});
    d.objects.put_new(cairn::data_key(5, 2, running.context(0).attempt, 0), {});
    CHECK(d.writer.clean(second_run) == 3);
    CHECK(d.holds(5, state, 2));
    CHECK(d.strays() == 1);  // of the unusual attempt
  }
  SUBCASE("nor marks that outlived their run") {
    d.objects.put_new(cairn::data_key(9, 0, 77, 0), {});
    CHECK(d.writer.clean(first_run) == 2 + 1);  // also the unusual attempt
    CHECK(d.writer.clean(first_run) == 0);
    CHECK(d.writer.clean({41, 42}) == 0);  // a writer that is late could still make step 9 the newest
    world_save(d.writer, state.states(), 10, second_run).run();
    CHECK(d.writer.clean(first_run) == 0);
    CHECK(d.writer.clean({41, 42}) == 2);
  }
}

TEST_CASE("remove takes all of a checkpoint, quarantine none of it") {
  disturbed d;
  const ranks state(2);
  world_save(d.writer, state.states(), 5, first_run).run();
  SUBCASE("remove") {
    d.writer.remove(5);
    CHECK(d.keys().empty());
    d.writer.remove(5);
  }
  SUBCASE("set aside") {
    CHECK(d.writer.quarantine(5));
    CHECK(d.reader.list().empty());
    CHECK(d.keys().size() == 5);
    CHECK(d.writer.clean(second_run) == 0);
    CHECK(d.keys().size() == 5);
    world_save again(d.writer, state.states(), 5, second_run);
    again.run();
    CHECK(d.holds(5, state, 2));
    CHECK(d.keys().size() == 10);  // both, whole
  }
  SUBCASE("a store that refuses") {
    d.faults->fail_at(store_call::publish_new, 0, true, false, error_id::storage_permission);
    CHECK_FALSE(d.writer.quarantine(5));
    CHECK(d.holds(5, state, 2));
  }
}

TEST_CASE("of a checkpoint of many files several are removed at once") {
  disturbed d;
  const ranks state(40);
  world_save(d.writer, state.states(), 5, first_run).run();
  std::mutex mutex;
  std::condition_variable changed;
  int inside = 0;
  bool together = false, in_vain = false;
  // Waits until another removal is under way, unless there was one already.
  const auto wait_for_another = [&](std::string_view) {
    std::unique_lock lock(mutex);
    together = together || ++inside > 1;
    changed.notify_all();
    in_vain =
        in_vain || !changed.wait_for(lock, std::chrono::minutes(1), [&] { return together || in_vain; });
    --inside;
  };
  d.faults->add({.kind = store_call::remove,
                 .for_ever = true,
                 .key_contains = ".safetensors",
                 .action = wait_for_another});
  d.writer.remove(5);
  CHECK(together);
  CHECK(d.keys().empty());
}

/// Lets a rank look once; true if it reports the checkpoint as committed.
bool looks(disturbed& d, const world_save<cairn::safetensors_writer<store>>& save, int rank) {
  return !failure_of([&] { d.writer.await_commit(save.context(rank), cairn::deadline::in({})); }).id;
}

TEST_CASE("in a large world, the first rank of each block hands on the headers of its block") {
  disturbed d(4);
  const ranks state(10);  // blocks of 4, 4 and 2
  world_save save(d.writer, state.states(), 5);
  for (int r = 0; r < 10; ++r) save.write(r);
  const auto all = [&] { return d.keys(".records"); };
  for (int r = 0; r < 10; ++r) CHECK_FALSE(looks(d, save, r));
  const auto attempt = save.context(0).attempt;
  using keys = std::vector<std::string>;
  CHECK(all() == keys{cairn::records_key(5, 4, attempt), cairn::records_key(5, 8, attempt)});
  const auto listings = d.faults->count(store_call::list);
  const auto reads = d.faults->count(store_call::read);
  save.commit();
  CHECK(d.faults->count(store_call::list) == listings + 2);  // for other attempts, before and after
  CHECK(d.faults->count(store_call::read) == reads + 2);     // its own block, and the other two
  for (int r = 1; r < 10; ++r) CHECK(looks(d, save, r));
  CHECK(d.holds(5, state, 10));
  CHECK(d.writer.clean(second_run) == 0);
  CHECK(d.holds(5, state, 10));
  d.writer.remove(5);
  CHECK(d.keys().empty());
}

TEST_CASE("in a large world, no rank is needed for the records of others") {
  disturbed d(4);
  const ranks state(10);
  world_save save(d.writer, state.states(), 5);
  for (int r = 0; r < 9; ++r) save.write(r);
  const auto damage = [&](std::int32_t first, std::size_t at) {
    const auto key = cairn::records_key(5, first, save.context(0).attempt);
    auto bytes = d.objects.read_all(key, 4096).value();
    d.objects.remove(key);
    if (at < bytes.size()) bytes[at] ^= std::byte{1};
    if (at != bytes.size()) d.objects.put_new(key, bytes);
  };
  SUBCASE("a first rank that went after its part was written") {
    save.write(9);
    save.commit(at_once());
  }
  SUBCASE("one that cannot put its object") {
    save.write(9);
    d.faults->fail_at(store_call::put_new, 0, true);
    for (const int r : {4, 8}) CHECK_FALSE(looks(d, save, r));
    d.faults->clear();
    CHECK(d.keys(".records").empty());
    save.commit(at_once());
  }
  SUBCASE("objects that are damaged, cut, or gone again") {
    save.write(9);
    for (const int r : {4, 8}) CHECK_FALSE(looks(d, save, r));
    damage(4, 130);
    SUBCASE("") {
      damage(8, 256);
    }
    SUBCASE("") {
      d.objects.remove(cairn::records_key(5, 8, save.context(0).attempt));
      d.objects.put_new(cairn::records_key(5, 8, save.context(0).attempt), std::vector<std::byte>(100));
    }
    save.commit(at_once());
  }
  SUBCASE("the ranks that are missing are named by the deadline") {
    for (const int r : {4, 8}) CHECK_FALSE(looks(d, save, r));
    const auto why = failure_of([&] { save.commit(at_once()); });
    CHECK(why.id == error_id::peer_lost);
    CHECK(why.text.find(" rank 9 ") != std::string::npos);
    return;
  }
  CHECK(d.holds(5, state, 10));
}

TEST_CASE("in a large world, all ranks learn of a failure at once, with its rank") {
  disturbed d(4);
  const ranks state(10);
  world_save save(d.writer, state.states(), 5);
  for (int r = 0; r < 9; ++r) save.write(r);
  const auto failure = cairn::make_failure(error_id::storage_no_space, "the disk is full");
  SUBCASE("by a mark") {
    d.writer.abort(save.context(9), failure);
    const auto told = failure_of([&] { d.writer.await_commit(save.context(5), at_once()); });
    CHECK(told.id == error_id::storage_no_space);
    CHECK(told.fields.rank == 9);
  }
  SUBCASE("by its record alone, where no mark can be made") {
    d.faults->fail_at(store_call::publish_new, 0);
    d.writer.abort(save.context(9), failure);
    CHECK_FALSE(looks(d, save, 8));
    CHECK(d.keys(".records").empty());
  }
  const auto why = failure_of([&] { save.commit(at_once()); });
  CHECK(why.id == error_id::storage_no_space);
  CHECK(why.fields.rank == 9);
  for (int r = 9; r >= 0; --r) d.writer.abort(save.context(r), failure);
  CHECK(d.keys(".safetensors").empty());
  CHECK(d.keys(".record").empty());
  CHECK(d.keys(".records").empty());
}

TEST_CASE("1024 ranks commit with few calls of the store for each") {
  constexpr std::int32_t world = 1024;
  const auto faults = std::make_shared<store_faults>();
  cairn::memory_store objects;
  const cairn::commit_protocol protocol(std::make_shared<store>(objects, faults));
  const auto context = [&](std::int32_t rank) {
    cairn::save_context c;
    c.run = first_run;
    c.step = 5;
    c.attempt = 7;
    c.rank = rank;
    c.world_size = world;
    return c;
  };
  auto calls = [&, last = std::uint64_t{0}]() mutable {
    const auto now = faults->count();
    return now - std::exchange(last, now);
  };
  for (std::int32_t r = 0; r < world; ++r) {
    cairn::record r_record;
    protocol.publish(context(r), r_record);
  }
  CHECK(calls() == 3 * world);
  const auto past = cairn::deadline::in({});
  for (std::int32_t r = 1; r < world; ++r)
    CHECK(failure_of([&] { protocol.await_commit(context(r), past); }).id == error_id::timeout_commit);
  CHECK(calls() == 2 * (world - 1) + 7 * (128 + 2));  // a look of each; seven first ranks of a block
  cairn::metadata content;
  content.world_size = world;
  protocol.commit(context(0), content, soon());
  CHECK(calls() < 128 + 7 + 20);
  for (std::int32_t r = 1; r < world; ++r) protocol.await_commit(context(r), soon());
  CHECK(calls() < 6 * world);
  CHECK(objects.list("").size() == world + 7 + 1);
}

TEST_CASE("ranks of a large world do not poll in step, nor often") {
  using std::chrono::milliseconds;
  const auto polls_of = [](std::int32_t world, std::int32_t rank, milliseconds during) {
    cairn::detail::poll_backoff pause(4711, rank, world);
    std::vector<std::int64_t> at;  // in microseconds
    for (auto now = pause.next(); now < during; now += pause.next())
      at.push_back(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
    return at;
  };
  CHECK(polls_of(1024, 3, milliseconds(60'000)) == polls_of(1024, 3, milliseconds(60'000)));
  for (const std::int32_t world : {1024, 16'384}) {
    CAPTURE(world);
    std::vector<std::size_t> in_10_ms(1000);
    for (std::int32_t rank = 0; rank < world; ++rank)
      for (const auto at : polls_of(world, rank, milliseconds(10'000)))
        ++in_10_ms[static_cast<std::size_t>(at / 10'000)];
    CHECK(*std::max_element(in_10_ms.begin(), in_10_ms.end()) < 200);  // 20,000 in a second
    CHECK(polls_of(world, 5, milliseconds(60'000)).size() < 150);
    CHECK(polls_of(world, 5, milliseconds(1'800'000)).size() < 2000);
  }
  const auto small = polls_of(128, 5, milliseconds(1000));
  CHECK(small.size() > 20);
  CHECK(small.front() < 300);
  for (std::size_t i = 1; i < small.size(); ++i) CHECK(small[i] - small[i - 1] <= 62'500);
}

/// Counts calls about directories.
class directory_watch final : public file_watch {
 public:
  std::atomic<int> made{0}, root_synced{0};
  std::string root;
  file_decision before(file_call call, const std::string& path) override {
    if (call == file_call::make_directory && path.ends_with("step-00000005")) ++made;
    if (call == file_call::sync_directory && path == root) ++root_synced;
    return file_decision::carry_out;
  }
  void after(file_call, const std::string&) override {}
};

TEST_CASE("in a large world, one rank makes the step's directory, and makes it durable") {
  const scratch_directory scratch;
  using watched_store = cairn::basic_file_store<watched_file_system<>>;
  const auto watch = std::make_shared<directory_watch>();
  watch->root = scratch.path();
  const ranks state(6);
  cairn::commit_options options;
  options.block_ranks = 2;
  bool coordinator_comes = true;
  SUBCASE("the coordinator") {
    options.directory_timeout = std::chrono::minutes(1);
  }
  SUBCASE("whoever is there, where it does not come") {
    coordinator_comes = false;
    options.directory_timeout = std::chrono::milliseconds(20);
  }
  const auto storage_of = [&] {  // ranks stand for processes: none knows what another has made durable
    return cairn::safetensors_storage<watched_store>(
        watched_store(scratch.path(), {}, watched_file_system<>(watch)), options);
  };
  auto planning = storage_of().writer();
  world_save save(planning, state.states(), 5);
  std::vector<std::jthread> others;
  std::atomic<int> written{0};
  for (int r = 1; r < 6; ++r)
    others.emplace_back([&, r, image = save.image(r)] {
      (void)storage_of().writer().write(save.context(r), image, soon());
      ++written;
    });
  if (coordinator_comes) save.write(0);
  others.clear();
  CHECK(written == 5);
  CHECK(watch->made >= 1);
  if (!coordinator_comes) return;
  CHECK(watch->made == 1);
  CHECK(watch->root_synced == 1);
  save.commit();
  CHECK(watch->root_synced == 1);
}

/// A store whose objects several ranks can write, in memory.
struct shared_world {
  explicit shared_world(cairn::commit_options options) : storage(objects, options) {}
  cairn::memory_store objects;
  cairn::safetensors_storage<cairn::memory_store> storage;
  cairn::safetensors_writer<cairn::memory_store> writer = storage.writer();
  cairn::safetensors_reader reader = storage.reader();

  /// Every rank in its own thread does what an executor does; what failed on it, or nothing.
  template <class Before>
  std::vector<told_failure> save(world_save<decltype(writer)>& world, Before before, cairn::deadline until) {
    std::vector<told_failure> told(static_cast<std::size_t>(world.size()));
    std::vector<cairn::staged_image> images;
    for (int r = 0; r < world.size(); ++r) images.push_back(world.image(r));
    std::vector<std::jthread> threads;
    for (int r = 0; r < world.size(); ++r)
      threads.emplace_back([&, r] {
        const auto at = static_cast<std::size_t>(r);
        const auto c = world.context(r);
        told[at] = failure_of([&] {
          try {
            before(r);
            (void)writer.write(c, images[at], until);
            if (r == 0)
              writer.commit(c, world.world().stored, until);
            else
              writer.await_commit(c, until);
          } catch (...) {
            writer.abort(c, std::current_exception());
            throw;
          }
        });
      });
    threads.clear();
    return told;
  }
  [[nodiscard]] std::vector<std::string> keys() {
    std::vector<std::string> all;
    for (const auto& o : objects.list("")) all.push_back(o.key);
    return all;
  }
};

TEST_CASE("ranks that share files: one file for each so many, which is a safetensors file") {
  shared_world d({.block_ranks = 2, .ranks_per_file = 2});
  const ranks state(5);
  world_save save(d.writer, state.states(), 5);
  for (const auto& told : d.save(
           save, [](int) {}, soon()))
    CHECK(told.text == "nothing");
  const auto attempt = save.context(0).attempt;
  const cairn::file_placement place{.ranks_per_file = 2};
  using keys = std::vector<std::string>;
  CHECK(d.keys() == keys{cairn::manifest_key(5), cairn::data_key(5, 0, attempt, 0),
                         cairn::data_key(5, 2, attempt, 0), cairn::data_key(5, 4, attempt, 0)});
  CHECK(cairn::data_key(5, 3, attempt, 0, place) == d.keys()[2]);
  const auto file = d.objects.read_all(d.keys()[2], 1 << 20).value();
  const auto header = cairn::decode_safetensors_header(file, file.size(), "file");
  bool seen = false;
  for (const auto& e : header.entries)
    if (e.key == "sharded") {
      seen = true;
      CHECK(e.saved_offsets == cairn::extents{40, 0});
      CHECK(e.shape == cairn::extents{40, 30});  // of two ranks
      CHECK(e.global_shape == cairn::extents{100, 30});
    }
  CHECK(seen);
  CHECK(header.entries.back().key == "cairn.records@rank00002");
  ranks loaded(5, 99);
  load_world(d.reader, 5, loaded.states());
  CHECK(loaded == state);
  auto checkpoint = d.reader.open(5, d.reader.fetch(5));
  CHECK(d.reader.verify(checkpoint, soon()) > 0);
  CHECK(d.writer.clean(second_run) == 0);
  CHECK(d.keys().size() == 4);
  SUBCASE("a bit that changed anywhere in them is noticed") {
    for (std::size_t at = 0; at < file.size(); at += at < 1500 ? 7 : 61) {
      auto changed = file;
      changed[at] ^= std::byte{1};
      d.objects.remove(d.keys()[2]);
      d.objects.put_new(cairn::data_key(5, 2, attempt, 0), changed);
      auto again = d.reader.open(5, d.reader.fetch(5));
      CHECK_MESSAGE(failure_of([&] { d.reader.verify(again, soon()); }).id.has_value(), at);
    }
  }
  SUBCASE("a header that says another dtype or global shape than the manifest is noticed") {
    const auto changes = other_shapes_in(file);
    CHECK(changes.size() > 10);
    for (const auto& [at, byte] : changes) {
      auto changed = file;
      changed[at] = byte;
      d.objects.remove(d.keys()[2]);
      d.objects.put_new(cairn::data_key(5, 2, attempt, 0), changed);
      auto again = d.reader.open(5, d.reader.fetch(5));
      CHECK_MESSAGE(failure_of([&] { d.reader.verify(again, soon()); }).id.has_value(), at);
    }
  }
  SUBCASE("they go with their checkpoint") {
    d.writer.remove(5);
    CHECK(d.keys().empty());
  }
}

TEST_CASE("the files and directories of a large world are few") {
  shared_world d({.block_ranks = 4, .ranks_per_file = 3, .ranks_per_directory = 2});
  constexpr int world = 60;
  const ranks state(world);
  world_save save(d.writer, state.states(), 5);
  for (const auto& told : d.save(
           save, [](int) {}, soon()))
    CHECK(told.text == "nothing");
  const auto keys = d.keys();
  CHECK(keys.size() == world / 3 + 1 + 1);  // a block is 48 ranks
  std::map<std::string, int> entries;
  for (const auto& key : keys) ++entries[key.substr(0, key.rfind('/'))];
  CHECK(entries.size() == world / 6 + 1);
  for (const auto& [directory, count] : entries) CHECK_MESSAGE(count <= 3, directory);
  ranks loaded(world, 99);
  load_world(d.reader, 5, loaded.states());
  CHECK(loaded == state);
  CHECK(d.writer.clean(second_run) == 0);
  d.writer.remove(5);
  CHECK(d.keys().empty());
}

/// Counts what a save does to directories. `forgetful`: of a file system that keeps no permission bits.
class name_watch final : public file_watch {
 public:
  explicit name_watch(bool forgetful = false) : forgetful_(forgetful) {}
  file_decision before(file_call call, const std::string&) override {
    return forgetful_ && call == file_call::change_mode ? file_decision::leave_out : file_decision::carry_out;
  }
  void after(file_call call, const std::string& path) override {
    const std::lock_guard lock(mutex_);
    ++calls_[call];
    if (call == file_call::open && path.ends_with(".part")) files_.insert(path);
  }
  [[nodiscard]] int files() const { return static_cast<int>(files_.size()); }
  [[nodiscard]] int calls(file_call call) const {
    const auto at = calls_.find(call);
    return at == calls_.end() ? 0 : at->second;
  }

 private:
  bool forgetful_;
  std::mutex mutex_;
  std::map<file_call, int> calls_;
  std::set<std::string> files_;
};

TEST_CASE("ranks that share files touch their directory as often as there are files") {
  int world = 0;
  int per_file = 0;
  SUBCASE("64 ranks") {
    world = 64, per_file = 4;
  }
  SUBCASE("80 ranks") {
    world = 80, per_file = 2;
  }
  const scratch_directory scratch;
  using watched_store = cairn::basic_file_store<watched_file_system<>>;
  const auto watch = std::make_shared<name_watch>();
  const ranks state(world);
  const auto storage_of = [&] {  // ranks stand for processes: none knows what another has made durable
    return cairn::safetensors_storage<watched_store>(
        watched_store(scratch.path(), {}, watched_file_system<>(watch)),
        {.ranks_per_file = per_file,
         .directory_timeout = std::chrono::minutes(10),
         .durability_timeout = std::chrono::minutes(10)});
  };
  auto planning = storage_of().writer();
  world_save save(planning, state.states(), 5);
  std::vector<cairn::staged_image> images;
  for (int r = 0; r < world; ++r) images.push_back(save.image(r));
  // One that begins a file, and one that joins it.
  std::array<std::shared_ptr<cairn::save_journal>, 2> journals;
  for (std::size_t r = 0; r < journals.size(); ++r)
    images[r].notes().journal = journals[r] = std::make_shared<cairn::save_journal>();
  std::vector<std::jthread> others;
  std::atomic<int> committed{0};
  for (int r = 0; r < world; ++r)
    others.emplace_back([&, r] {
      auto writer = storage_of().writer();
      const auto c = save.context(r);
      (void)writer.write(c, images[static_cast<std::size_t>(r)], soon());
      if (r == 0)
        writer.commit(c, save.world().stored, soon());
      else
        writer.await_commit(c, soon());
      ++committed;
    });
  others.clear();
  CHECK(committed == world);
  const int files = world / per_file;
  CHECK(watch->files() == files + 1);
  CHECK(watch->calls(file_call::rename) == files + 1);
  CHECK(watch->calls(file_call::link) + watch->calls(file_call::unlink) == 0);
  CHECK(10 * (files + 1) <= 11 * files);
  // One fsync for the name of each file. Besides: making the step's directory, making it durable, checking
  // the root (once in a process), and the manifest's name. No rank repeats what the coordinator did.
  constexpr int beside = 4;
  const int operations = watch->calls(file_call::make_directory) + watch->calls(file_call::sync_directory) +
                         watch->calls(file_call::remove_directory);
  CHECK(watch->calls(file_call::make_directory) == 1);
  CHECK(operations <= files + beside);
  if (files >= 10 * beside) CHECK(10 * operations <= 11 * files);
  for (std::size_t r = 0; r < journals.size(); ++r) {
    std::map<cairn::span_kind, std::uint64_t> bytes;
    for (const auto& span : journals[r]->spans()) bytes[span.kind] += span.bytes;
    std::uint64_t items = 0;
    for (const auto& s : images[r].layout().segments) items += s.bytes;
    CHECK(bytes[cairn::span_kind::write] == items);
    using cairn::span_kind;
    for (const auto kind : {span_kind::await, span_kind::record, span_kind::sync})
      CHECK_MESSAGE(bytes.contains(kind), name_of(kind));
  }
}

TEST_CASE("the coordinator notes that the manifest's name lasts; who sees no note makes it last itself") {
  bool noted = true;
  SUBCASE("noted") {}
  SUBCASE("on a file system that does not keep the note") {
    noted = false;
  }
  const scratch_directory scratch;
  using watched_store = cairn::basic_file_store<watched_file_system<>>;
  const auto watch = std::make_shared<name_watch>(!noted);
  const ranks state(3);
  const auto storage_of = [&] {
    return cairn::safetensors_storage<watched_store>(
        watched_store(scratch.path(), {}, watched_file_system<>(watch)),
        {.durability_timeout = noted ? std::chrono::milliseconds(600'000) : std::chrono::milliseconds(1)});
  };
  auto planning = storage_of().writer();
  world_save save(planning, state.states(), 5);
  for (int r = 0; r < 3; ++r) save.write(r);
  save.commit();
  const auto mode_of = [&](const std::string& key) {
    cairn::posix_file_system fs;
    const int directory = fs.open_directory(scratch.path().c_str());
    cairn::file_status s;
    REQUIRE(fs.status_at(directory, key.c_str(), s) == 0);
    REQUIRE(fs.close(directory) == 0);
    return s.mode;
  };
  // Permissions stay as they are.
  const auto record = mode_of(cairn::record_key(5, 0, save.context(0).attempt));
  CHECK((record & 01000u) == 0);
  CHECK(mode_of(cairn::manifest_key(5)) == (record | (noted ? 01000u : 0u)));
  for (int r = 1; r < 3; ++r) {
    const auto before = watch->calls(file_call::sync_directory);
    storage_of().writer().await_commit(save.context(r), soon());
    CHECK(watch->calls(file_call::sync_directory) - before == (noted ? 0 : 1));
  }
  ranks loaded(3, 99);
  auto reader = storage_of().reader();
  load_world(reader, 5, loaded.states());
  CHECK(loaded == state);
  planning.remove(5);
  CHECK(storage_of().store().list("").empty());
}

TEST_CASE("ranks that share files: a rank that fails or does not come is named on all, and nothing is left") {
  shared_world d({.ranks_per_file = 2});
  const ranks state(4);
  world_save save(d.writer, state.states(), 5);
  const auto nothing_left = [&] {
    for (const auto& key : d.keys()) CHECK(key == cairn::aborted_key(5, save.context(0).attempt));
    world_save again(d.writer, state.states(), 5, {1, 2}, 1);
    for (const auto& t : d.save(
             again, [](int) {}, soon()))
      CHECK(t.text == "nothing");
    ranks loaded(4, 99);
    load_world(d.reader, 5, loaded.states());
    CHECK(loaded == state);
    auto left = d.keys();
    std::erase(left, cairn::aborted_key(5, save.context(0).attempt));
    CHECK(left.size() == 3);
  };
  int failing = -1;
  SUBCASE("rank 0 fails") {
    failing = 0;
  }
  SUBCASE("rank 1 fails") {
    failing = 1;
  }
  SUBCASE("rank 2 fails") {
    failing = 2;
  }
  SUBCASE("rank 3 fails") {
    failing = 3;
  }
  if (failing >= 0) {
    const auto before = [&](int r) {
      if (r == failing) cairn::fail(error_id::storage_no_space, "the disk is full");
    };
    for (const auto& told : d.save(save, before, soon())) CHECK(told.id == error_id::storage_no_space);
    nothing_left();
  }
  SUBCASE("does not come") {
    std::jthread other([&] {
      CHECK(failure_of([&] {
              (void)d.writer.write(save.context(1), save.image(1),
                                   cairn::deadline::in(std::chrono::milliseconds(50)));
            }).fields.rank == 0);
    });
    const auto why = failure_of([&] {
      (void)d.writer.write(save.context(2), save.image(2),
                           cairn::deadline::in(std::chrono::milliseconds(50)));
    });
    CHECK(why.id == error_id::peer_lost);
    CHECK(why.fields.rank == 3);
    other.join();
    d.writer.abort(save.context(2), cairn::make_failure(error_id::peer_lost, "rank 3"));
    nothing_left();
  }
}

namespace {

/// A store in memory in which the name of one shared file is reported as not made, and comes later: behind the next look
/// for it, or when the test says so.
class late_name_store : public cairn::memory_store {
  using shared_file = decltype(std::declval<cairn::memory_store&>().share({}, 0));

 public:
  struct late_name {
    std::string key;
    std::function<void()> comes;  ///< makes the name, which was reported as not made
    std::function<void()> then;
    void run() {
      if (const auto make = std::exchange(comes, {})) make(), then();
    }
  };
  class writer {
   public:
    writer(shared_file inner, std::string key, std::shared_ptr<late_name> late)
        : inner_(std::make_shared<shared_file>(std::move(inner))),
          key_(std::move(key)),
          late_(std::move(late)) {}
    void write(std::span<const cairn::write_range> parts) { inner_->write(parts); }
    void put(std::uint64_t offset, std::span<const std::byte> bytes) { inner_->put(offset, bytes); }
    bool read(std::uint64_t offset, std::span<std::byte> to) { return inner_->read(offset, to); }
    void sync() { inner_->sync(); }
    void finish(std::uint64_t bytes) {
      if (key_ != late_->key) return inner_->finish(bytes);
      late_->comes = [inner = inner_, bytes] { inner->finish(bytes); };
      cairn::fail(error_id::storage_io, "the answer was lost", {.file = key_});
    }

   private:
    std::shared_ptr<shared_file> inner_;
    std::string key_;
    std::shared_ptr<late_name> late_;
  };

  explicit late_name_store(std::shared_ptr<late_name> late) : late_(std::move(late)) {}
  writer share(std::string_view key, std::uint64_t tag) {
    return {cairn::memory_store::share(key, tag), std::string(key), late_};
  }
  std::optional<writer> join(std::string_view key, std::uint64_t tag) {
    auto joined = cairn::memory_store::join(key, tag);
    if (!joined) return std::nullopt;
    return writer(std::move(*joined), std::string(key), late_);
  }
  std::optional<std::uint64_t> size(std::string_view key) {
    const auto found = cairn::memory_store::size(key);
    if (!found && key == late_->key) late_->run();
    return found;
  }

 private:
  std::shared_ptr<late_name> late_;
};

}  // namespace

TEST_CASE("ranks that share files: a file that gets its name late stays in the checkpoint that names it") {
  const auto late = std::make_shared<late_name_store::late_name>();
  const cairn::commit_options options{.ranks_per_file = 2};
  const cairn::safetensors_storage<late_name_store> storage(late_name_store(late), options);
  auto writer = storage.writer();
  const ranks state(4);
  world_save save(writer, state.states(), 5);
  const auto together = [&](int first) {
    std::jthread other([&] { (void)save.write(first + 1); });
    (void)save.write(first);
  };
  together(0);
  late->key = cairn::record_key(5, 2, save.context(2).attempt, cairn::placement_of(options, 4));
  late->then = [&] { save.commit(); };
  CHECK(failure_of([&] { together(2); }).id == error_id::storage_io);
  late->run();  // the other ranks have committed it
  writer.abort(save.context(2), cairn::make_failure(error_id::storage_io, "the answer was lost"));
  auto reader = storage.reader();
  CHECK(reader.list() == std::vector<std::int64_t>{5});
  ranks loaded(4, 99);
  CHECK(failure_of([&] { load_world(reader, 5, loaded.states()); }).text == "nothing");
  CHECK(loaded == state);
}

TEST_CASE("options that cannot work are refused with a sentence") {
  const auto refused = [](cairn::commit_options o) {
    const auto why = failure_of([&] { (void)cairn::safetensors_storage(cairn::memory_store(), o); });
    CHECK(why.id == error_id::usage_bad_option);
  };
  refused({.block_ranks = 1});
  refused({.ranks_per_file = 0});
  refused({.ranks_per_file = 65});
  refused({.ranks_per_directory = 0});
  const auto why = failure_of([] {
    (void)cairn::safetensors_storage(store({}, std::make_shared<store_faults>()), {.ranks_per_file = 2});
  });
  CHECK(why.id == error_id::usage_bad_option);
  CHECK(why.text.find("several ranks") != std::string::npos);
}

/// A save in which every call may fail; each rank does what an executor does. True if it says it was
/// committed.
bool try_save(disturbed& d, const ranks& state, std::int64_t step, cairn::run_id run) {
  world_save save(d.writer, state.states(), step, run);
  bool committed = true;
  const auto part = [&](int rank, auto&& call) {
    try {
      call();
    } catch (...) {
      d.writer.abort(save.context(rank), std::current_exception());
      committed = false;
    }
  };
  part(1, [&] { save.write(1); });
  part(0, [&] {
    save.write(0);
    save.commit(at_once());
  });
  part(1, [&] { d.writer.await_commit(save.context(1), at_once()); });
  return committed;
}

TEST_CASE(
    "whatever call of a save fails: what was acknowledged loads, the rest is cleaned, and the next save "
    "works") {
  const ranks before(2, 1);
  const ranks state(2, 2);
  for (const bool for_ever : {false, true})
    for (const bool after : {false, true}) {
      std::uint64_t k = 0;
      for (bool reached = true; reached; ++k) {
        CAPTURE(k);
        CAPTURE(for_ever);
        CAPTURE(after);
        disturbed d;
        REQUIRE(try_save(d, before, 4, first_run));
        d.faults->fail_at(store_call::any, k, for_ever, after);
        const bool acknowledged = try_save(d, state, 5, first_run);
        reached = d.faults->triggered() > 0;
        d.faults->clear();
        const auto steps = d.reader.list();
        const bool exists = steps.size() == 2;
        REQUIRE(steps.size() >= 1);
        CHECK((exists || !acknowledged));
        CHECK(d.holds(4, before, 2));
        if (exists) CHECK(d.holds(5, state, 2));
        (void)d.writer.clean(second_run);
        CHECK(d.strays() == 0);
        if (!exists) CHECK(try_save(d, state, 5, second_run));
        CHECK(d.holds(5, state, 2));
      }
      CHECK(k > 20);
    }
}

}  // namespace
