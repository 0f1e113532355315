// SPDX-License-Identifier: Apache-2.0
// group: checkpoints
// threaded
// What a save that fails leaves behind, and who hears of it, while the fault that failed it lasts; and what
// removes a step beside a save of it.
#include <doctest/doctest.h>
#include <cairn/cairn.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/stores/basic_file_store.hpp>

#include "support/faulty_file_system.hpp"
#include "support/faulty_store.hpp"
#include "support/recording_file_system.hpp"
#include "support/rounds.hpp"
#include "support/saved_world.hpp"
#include "support/training_state.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <semaphore>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using namespace cairn_test;
using cairn::error_id;

constexpr training_sizes small{.weights = 700, .rows = 9};

/// Two ranks, each with faults of its own on one disk.
struct two_ranks {
  using disk = faulty_file_system<recording_file_system>;
  using store = cairn::basic_file_store<disk>;

  recording_file_system platter;
  std::array<disk, 2> disks{disk{platter}, disk{platter}};
  cairn::thread_group group{2};
  std::array<training_state, 2> states{training_state(0, 2, small), training_state(1, 2, small)};
  std::array<cairn::any_checkpointer, 2> ckpts;

  two_ranks() {
    each([&](std::size_t r) {
      cairn::checkpointer_options options;
      options.timeout = std::chrono::hours(1);  // nothing here may wait for a deadline
      options.max_consecutive_failures = 0;
      options.quiet = true;
      ckpts[r] =
          cairn::checkpointer{store{"root", {}, disks[r]}, group.communicator(static_cast<int>(r)), options};
    });
  }
  template <class Body>
  static void each(Body body) {
    std::jthread other([&] { body(std::size_t{1}); });
    body(std::size_t{0});
  }
  /// Whether both ranks' handles of a save ended within a minute of its call, after how long, and of how many it was
  /// committed.
  struct outcome {
    bool told = true;
    std::chrono::duration<double> after{};
    int committed = 0;
  };
  outcome save(std::int64_t step, const std::function<void()>& when_one_knows = {}) {
    std::array<cairn::save_handle, 2> handles;
    const auto begin = std::chrono::steady_clock::now();
    each([&](std::size_t r) {
      states[r].fill(step);
      handles[r] = ckpts[r].save(states[r].state, step);
    });
    if (when_one_knows && soon_true([&] {
          return std::any_of(handles.begin(), handles.end(), [](const auto& h) { return ended(h); });
        }))
      when_one_knows();
    outcome o;
    for (auto& h : handles) try {
        h.wait(begin + std::chrono::minutes(1) - std::chrono::steady_clock::now());
        ++o.committed;
      } catch (const cairn::timeout_error&) {
        o.told = false;
      } catch (const cairn::error&) {
      }
    o.after = std::chrono::steady_clock::now() - begin;
    return o;
  }
  [[nodiscard]] static bool ended(const cairn::save_handle& h) { return h.committed() || h.failed(); }
  [[nodiscard]] std::vector<std::string> files(std::int64_t step, const std::string& part) const {
    std::vector<std::string> found;
    for (const auto& path : platter.files())
      if (path.find(cairn::step_directory(step)) != std::string::npos && path.find(part) != std::string::npos)
        found.push_back(path);
    return found;
  }
  /// The endings of a save that failed go on in the background.
  [[nodiscard]] static bool soon_true(const std::function<bool()>& condition) {
    for (int i = 0; i < 6000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
};

}  // namespace

TEST_CASE("a lasting fault from any call of a save on: all ranks learn of it, and its bytes go, at once") {
  struct row {
    int error;
    file_call call;
    std::array<bool, 2> hit;  ///< the disks of which ranks
  };
  const std::array both{true, true}, coordinator{true, false}, other{false, true};
  std::vector<row> rows{{ENOSPC, file_call::grows, both}, {ENOSPC, file_call::grows, other}};
  for (const auto& hit : {both, coordinator, other}) {
    rows.push_back({EDQUOT, file_call::grows, hit});
    for (const auto call :
         {file_call::grows, file_call::pwrite, file_call::sync, file_call::rename, file_call::sync_directory})
      rows.push_back({EIO, call, hit});
  }
  if (long_run())
    for (const int error : {ENOSPC, EDQUOT, EIO})
      for (const auto call : {file_call::grows, file_call::pwrite, file_call::sync, file_call::close,
                              file_call::rename, file_call::sync_directory})
        for (const auto& hit : {both, coordinator, other}) rows.push_back({error, call, hit});
  std::uint64_t cells = 0;
  std::chrono::duration<double> longest{};
  for (const auto& row : rows)
    for (std::size_t k = 1;; ++k, ++cells) {
      CAPTURE(row.error);
      CAPTURE(static_cast<int>(row.call));
      CAPTURE(row.hit[0]);
      CAPTURE(row.hit[1]);
      CAPTURE(k);
      two_ranks w;
      REQUIRE(w.save(1).committed == 2);
      for (std::size_t r = 0; r < 2; ++r)
        if (row.hit[r]) w.disks[r].fail({.call = row.call, .k = k, .error = row.error, .for_ever = true});
      const auto hits = [&] { return w.disks[0].hits() + w.disks[1].hits(); };
      const auto heal = [&] {
        for (auto& d : w.disks) d.heal();
      };
      // Where a rename, or what follows it, fails, it is unknown whether the record or manifest is published, and others
      // are told when it is known.
      const bool unknown = row.call == file_call::rename || row.call == file_call::sync_directory;
      const auto o = w.save(2, [&] {
        if (unknown) heal();
      });
      const bool hit = hits() != 0;
      CHECK_MESSAGE(o.told, "not all ranks know after " << o.after.count() << " s");
      longest = std::max(longest, o.after);
      if (!hit) {
        CHECK(o.committed == 2);
        break;
      }
      const bool stands = !w.files(2, "manifest.cairn").empty();
      CHECK((stands || o.committed == 0));
      if (!stands)
        CHECK_MESSAGE(two_ranks::soon_true([&] { return w.files(2, ".safetensors").empty(); }),
                      "data of the failed save stays: " << w.files(2, ".safetensors").size() << " files");
      heal();
      CHECK(w.save(3).committed == 2);
      two_ranks::each([&](std::size_t r) { w.ckpts[r].close(); });
      w.ckpts = {};
      if (!stands) CHECK(w.files(2, ".safetensors").empty());
      CHECK(w.platter.open_handles() == 0);
    }
  MESSAGE(cells << " faults; at most " << longest.count() << " s until all ranks knew");
}

TEST_CASE("a look of one rank that fails once: both ranks are told the same, and what the store shows") {
  std::uint64_t cells = 0;
  for (const auto call : {file_call::open, file_call::status, file_call::pread, file_call::list})
    for (const std::size_t rank : {std::size_t{1}, std::size_t{0}})
      for (std::size_t k = 1;; ++k, ++cells) {
        CAPTURE(static_cast<int>(call));
        CAPTURE(rank);
        CAPTURE(k);
        two_ranks w;
        REQUIRE(w.save(1).committed == 2);
        w.disks[rank].fail({.call = call, .k = k, .error = EIO});
        const auto o = w.save(2);
        const bool hit = w.disks[rank].hits() != 0;
        CHECK_MESSAGE(o.told, "not all ranks know after " << o.after.count() << " s");
        CHECK(o.committed == (w.files(2, "manifest.cairn").empty() ? 0 : 2));
        if (!hit) break;
        CHECK(w.save(3).committed == 2);
      }
  MESSAGE(cells << " faults");
}

namespace {

using memory = faulty_store<cairn::memory_store>;

/// Saves of one rank, by hand, on a store in memory whose calls can be disturbed.
struct by_hand {
  cairn::memory_store objects;
  std::shared_ptr<store_faults> faults = std::make_shared<store_faults>();
  cairn::safetensors_storage<memory> storage{memory{objects, faults},
                                             {.rival_timeout = std::chrono::milliseconds(20)}};
  cairn::safetensors_writer<memory> writer = storage.writer();
  cairn::safetensors_reader reader = storage.reader();
  std::vector<float> w = std::vector<float>(4096, 1.f);
  cairn::state_dict state;

  by_hand() { state.tensor("w", w, {4096}); }
  [[nodiscard]] world_save<cairn::safetensors_writer<memory>> save(std::int64_t step, std::uint64_t run = 1,
                                                                   std::uint64_t count = 0) {
    return {writer, {&state}, step, {run, 2}, count};
  }
  [[nodiscard]] bool loads(std::int64_t step) {
    return !failure_of([&] { load_world(reader, step, {&state}); }).id;
  }
  [[nodiscard]] std::vector<std::string> keys() {
    std::vector<std::string> found;
    for (const auto& o : objects.list("")) found.push_back(o.key);
    return found;
  }
};
/// A save of step 5 by two ranks, half of a tensor each.
struct halves_by_hand {
  cairn::state_dict ranks[2];
  world_save<cairn::safetensors_writer<memory>> save;

  explicit halves_by_hand(by_hand& d) : save(d.writer, {&of(d, 0), &of(d, 1)}, 5, {1, 2}) {}

 private:
  cairn::state_dict& of(by_hand& d, std::int64_t rank) {
    ranks[rank].tensor("w", d.w, cairn::shard{{8192}, {4096 * rank}});
    return ranks[rank];
  }
};

}  // namespace

TEST_CASE(
    "remove beside a save of that step, at any call of it: the save fails, or its checkpoint is whole") {
  bool reached = true;
  std::uint64_t removed_meanwhile = 0;
  for (std::uint64_t k = 0; reached; ++k) {
    CAPTURE(k);
    by_hand d;
    const cairn::safetensors_writer<cairn::memory_store> other(
        std::make_shared<cairn::memory_store>(d.objects));
    reached = false;
    d.faults->add({.kind = store_call::any, .at = k, .action = [&](auto) {
                     reached = true;
                     auto tool = other;
                     tool.remove(5);
                   }});
    auto save = d.save(5);
    const auto why = failure_of([&] { save.run(); });
    d.faults->clear();
    if (why.id) {
      CHECK(why.id == error_id::storage_aborted);
      CHECK(why.text.find("removed") != std::string::npos);
      d.writer.abort(save.context(0), cairn::make_failure(*why.id, why.text));
      ++removed_meanwhile;
      CHECK(d.reader.list().empty());
    } else if (!d.reader.list().empty()) {
      CHECK(d.loads(5));
    }
    auto again = d.save(5, 1, 1);
    if (d.reader.list().empty()) {
      again.run();
      CHECK(d.loads(5));
    }
    d.writer.remove(5);
    CHECK(d.reader.list().empty());
    for (const auto& key : d.keys()) CHECK(key.find("aborted.") != std::string::npos);
  }
  CHECK(removed_meanwhile > 3);
}

TEST_CASE(
    "who ends a save that failed asks a store that does not answer once, and the rest goes on behind it") {
  by_hand d;
  auto save = d.save(5);
  save.write(0);
  std::atomic<int> own = 0, all = 0;
  const auto me = std::this_thread::get_id();
  d.faults->add({.kind = store_call::any, .for_ever = true, .action = [&](std::string_view key) {
                   own += std::this_thread::get_id() == me;
                   ++all;
                   cairn::fail(error_id::storage_unavailable, "no answer", {.file = std::string(key)});
                 }});
  d.writer.abort(save.context(0), cairn::make_failure(error_id::storage_unavailable, "no answer"));
  CHECK(own == 1);  // each of them may take as long as the store lets a call wait
  const auto until = cairn::deadline::in(std::chrono::minutes(2));
  while (all < 3 && !until.passed()) std::this_thread::yield();
  d.faults->clear();
  const auto aborted = [&] {
    for (const auto& key : d.keys())
      if (key.find(".safetensors") != std::string::npos) return false;
    return true;
  };
  while (!aborted() && !until.passed()) std::this_thread::yield();
  CHECK(aborted());
  CHECK(d.reader.list().empty());
}

TEST_CASE("remove waits for a save of that step by the same checkpointer") {
  const auto faults = std::make_shared<store_faults>();
  cairn::memory_store objects;
  std::vector<float> w(4096, 1.f);
  cairn::state_dict state;
  state.tensor("w", w, {4096});
  std::binary_semaphore begun{0};
  std::binary_semaphore go_on{0};
  faults->add({.kind = store_call::put_new, .key_contains = ".record", .action = [&](auto) {
                 begun.release();
                 (void)go_on.try_acquire_for(std::chrono::minutes(1));
               }});
  cairn::checkpointer ckpt{cairn::safetensors_storage<memory>{memory{objects, faults}},
                           cairn::checkpointer_options{.quiet = true}};
  const auto handle = ckpt.save(state, 5);
  REQUIRE(begun.try_acquire_for(std::chrono::minutes(1)));
  std::jthread lets_go([&] { go_on.release(); });
  ckpt.remove(5);
  CHECK(handle.committed());
  CHECK(ckpt.list().empty());
  CHECK(objects.list("step-00000005").empty());
}

TEST_CASE("a coordinator whose own data was removed commits nothing") {
  by_hand d;
  auto save = d.save(5);
  save.write(0);
  d.objects.remove(cairn::data_key(5, 0, save.context(0).attempt, 0));
  CHECK(failure_of([&] { save.commit(); }).id == error_id::storage_aborted);
  CHECK(d.reader.list().empty());
}

TEST_CASE("of ranks whose data another commit removed nothing is committed, though the mark is gone, too") {
  by_hand d;
  halves_by_hand halves(d);
  auto& save = halves.save;
  save.write(1);
  d.objects.remove(cairn::data_key(5, 1, save.context(1).attempt, 0));
  save.write(0);
  CHECK(failure_of([&] { save.commit(); }).id == error_id::storage_aborted);
  CHECK(d.reader.list().empty());
  CHECK_FALSE(d.objects.size(cairn::manifest_key(5)).has_value());
}

TEST_CASE("a look behind the manifest that fails for a moment is repeated, and the save is told as it is") {
  for (const auto kind : {store_call::read_all, store_call::size, store_call::list}) {
    CAPTURE(static_cast<int>(kind));
    by_hand d;
    auto save = d.save(5);
    save.write(0);
    d.faults->add(
        {.kind = store_call::publish_new, .after = true, .key_contains = "manifest", .action = [&](auto) {
           d.faults->fail_at(kind, 0);
         }});
    CHECK(failure_of([&] { save.commit(); }).text == "nothing");
    CHECK(d.faults->triggered() == 2);
    CHECK(d.loads(5));
  }
}

TEST_CASE("a manifest of which files are gone is no checkpoint, though the store refuses to take it back") {
  by_hand d;
  halves_by_hand halves(d);
  auto& save = halves.save;
  save.write(1);
  d.objects.remove(cairn::data_key(5, 1, save.context(1).attempt, 0));
  save.write(0);
  d.faults->add(
      {.kind = store_call::remove, .for_ever = true, .key_contains = "manifest", .action = [](auto) {
         cairn::fail(error_id::storage_unavailable, "nothing can be removed");
       }});
  CHECK(failure_of([&] { save.commit(); }).id == error_id::storage_aborted);
  CHECK(d.objects.size(cairn::manifest_key(5)).has_value());
  CHECK(d.reader.list().empty());
  CHECK(failure_of([&] { d.writer.await_commit(save.context(1), soon()); }).id == error_id::storage_aborted);
  d.faults->clear();
  d.save(5, 1, 1).run();
  CHECK(d.loads(5));
}

TEST_CASE(
    "ranks of a save that another one ended learn of it, though the checkpoint of that one was removed") {
  by_hand d;
  halves_by_hand halves(d);
  auto& save = halves.save;
  save.write(1);
  d.save(5, 1, 1).run();
  d.writer.remove(5);
  CHECK(d.reader.list().empty());
  CHECK(failure_of([&] { save.write(0); }).id == error_id::storage_aborted);
  CHECK(failure_of([&] { d.writer.await_commit(save.context(1), soon()); }).id == error_id::storage_aborted);
}

TEST_CASE("a manifest that arrives after its save failed is no checkpoint, and blocks nothing") {
  by_hand d;
  d.save(1).run();
  std::vector<std::byte> late;
  auto save = d.save(2);
  save.write(0);
  // The request is reported as failed, and takes effect later.
  d.faults->add(
      {.kind = store_call::publish_new, .after = true, .key_contains = "manifest", .action = [&](auto) {
         late = d.objects.read_all(cairn::manifest_key(2), 1 << 20).value();
         d.objects.remove(cairn::manifest_key(2));
         cairn::fail(error_id::storage_unavailable, "the answer was lost");
       }});
  CHECK(failure_of([&] { save.commit(); }).id == error_id::storage_unavailable);
  d.writer.abort(save.context(0), cairn::make_failure(error_id::storage_unavailable, "the answer was lost"));
  CHECK(d.keys().size() == 3 + 1);
  REQUIRE(d.objects.publish_new(cairn::manifest_key(2), late));
  CHECK(d.reader.list() == std::vector<std::int64_t>{1});
  CHECK(failure_of([&] { (void)d.reader.fetch(2); }).id == error_id::storage_not_committed);
  CHECK(d.loads(1));
  SUBCASE("the step can be saved again") {
    d.save(2, 1, 1).run();
    CHECK(d.reader.list() == std::vector<std::int64_t>{1, 2});
    CHECK(d.loads(2));
  }
  SUBCASE("a new run takes it away") {
    CHECK(d.writer.clean({41, 42}) != 0);
    CHECK_FALSE(d.objects.size(cairn::manifest_key(2)).has_value());
    CHECK(d.reader.list() == std::vector<std::int64_t>{1});
  }
  SUBCASE("and so does who removes the step") {
    d.writer.remove(2);
    CHECK(d.keys().size() == 3 + 1);
    // Even where the request takes effect twice: the mark is there until another run has begun.
    REQUIRE(d.objects.publish_new(cairn::manifest_key(2), late));
    CHECK(d.reader.list() == std::vector<std::int64_t>{1});
    CHECK(d.writer.clean({41, 42}) == 1);
    CHECK(d.keys().size() == 3);
  }
}

TEST_CASE("a mark that comes after the commit takes nothing away") {
  by_hand d;
  auto save = d.save(5);
  save.run();
  d.objects.put_new(cairn::aborted_key(5, save.context(0).attempt), {});
  CHECK(d.reader.list() == std::vector<std::int64_t>{5});
  CHECK(d.loads(5));
  CHECK(d.writer.clean({41, 42}) == 0);
  CHECK(d.loads(5));
}

TEST_CASE("a mark beside a checkpoint takes nothing away where a listing does not show all of its files") {
  by_hand d;
  auto save = d.save(5);
  save.run();
  d.objects.put_new(cairn::aborted_key(5, save.context(0).attempt), {});
  const auto keys = d.keys();
  for (const std::string hidden : {".safetensors", ".record"}) {
    CAPTURE(hidden);
    d.faults->hide_from_lists(hidden);
    CHECK(d.reader.list() == std::vector<std::int64_t>{5});
    CHECK(d.loads(5));
    CHECK(d.writer.clean({41, 42}) == 0);
    auto again = d.save(5, 1, 1);
    CHECK(failure_of([&] { again.write(0); }).id == error_id::storage_already_committed);
    CHECK(d.keys() == keys);
  }
  d.objects.remove(cairn::record_key(5, 0, save.context(0).attempt));  // now a look finds that it is none
  CHECK(d.reader.list().empty());
}

TEST_CASE("nothing is removed where nobody can look whether the manifest stands") {
  by_hand d;
  auto save = d.save(5);
  save.write(0);
  // As a directory whose fsync finds no space, behind a rename that worked.
  d.faults->fail_at(store_call::publish_new, 0, false, true, error_id::storage_no_space);
  CHECK(failure_of([&] { save.commit(); }).id == error_id::storage_no_space);
  d.faults->add(
      {.kind = store_call::read_all, .for_ever = true, .key_contains = "manifest", .action = [](auto) {
         cairn::fail(error_id::storage_io, "nothing can be read");
       }});
  d.writer.abort(save.context(0), cairn::make_failure(error_id::storage_no_space, "the disk is full"));
  CHECK(d.objects.size(cairn::record_key(5, 0, save.context(0).attempt)).has_value());
  d.faults->clear();
  CHECK(d.reader.list() == std::vector<std::int64_t>{5});
  CHECK(d.loads(5));
}

TEST_CASE("a manifest is removed only if it is the one that was looked at") {
  // Another run commits between the check and the removal.
  for (const bool aside : {false, true}) {
    CAPTURE(aside);
    by_hand d;
    auto first = d.save(5);
    first.run();
    d.faults->add(
        {.kind = store_call::remove, .key_contains = "manifest", .action = [&](auto) {
           const cairn::safetensors_writer<cairn::memory_store> plain(
               std::make_shared<cairn::memory_store>(d.objects));
           auto tool = plain;
           tool.remove(5);
           world_save<cairn::safetensors_writer<cairn::memory_store>> other(tool, {&d.state}, 5, {7, 8});
           other.run();
         }});
    if (aside)
      CHECK(d.writer.quarantine(5));
    else
      d.writer.remove(5);
    CHECK(d.reader.list() == std::vector<std::int64_t>{5});
    CHECK(d.loads(5));
  }
}
