// SPDX-License-Identifier: Apache-2.0
// group: files
// Checkpoints that a job removes while they are loaded, verified, copied, compared, measured, resharded and exported: they
// are told as removed, never as damaged; and what is damaged is told as before.
#include <doctest/doctest.h>

#include <cairn/checkpointer.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/manage/compare.hpp>
#include <cairn/manage/copy.hpp>
#include <cairn/manage/export_safetensors.hpp>
#include <cairn/manage/reshard.hpp>
#include <cairn/manage/statistics.hpp>
#include <cairn/manage/verify.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/stores/memory_store.hpp>
#include <support/faulty_store.hpp>
#include <support/on_all_ranks.hpp>
#include <support/planner_conformance.hpp>
#include <support/scratch_directory.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

using cairn::error_id;
using cairn_test::failure_of;
using cairn_test::store_call;

namespace {

constexpr std::int64_t step = 1;
using disturbed_store = cairn_test::faulty_store<cairn::memory_store>;

cairn::checkpointer_options quiet() {
  return {.timeout = std::chrono::seconds(60), .peer_timeout = std::chrono::seconds(60), .quiet = true};
}
/// A checkpoint of more than 4 MiB, which a copy sends in parts, and of bytes, which are read as they are stored.
cairn::memory_store saved(float first = 0) {
  std::vector<float> w(1'500'000, first + 0.5F);
  std::vector<std::byte> text(1000);
  cairn::state_dict state;
  state.tensor("w", w, {1'500'000});
  state.bytes("text", text);
  cairn::memory_store store;
  cairn::checkpointer ckpt{store, quiet()};
  (void)ckpt.save(state, step).wait();
  return store;
}
/// The manifest first and then the files, as retention does.
void remove_step(cairn::memory_store store) {
  store.remove(cairn::manifest_key(step));
  for (const auto& o : store.list(cairn::step_directory(step) + "/")) store.remove(o.key);
}

using work = std::function<void(const disturbed_store&)>;

struct removals {
  std::uint64_t calls = 0;  ///< of the store, where nothing is removed
  int not_committed = 0;    ///< ended so
};
/// Runs it once for each of these calls, with the step removed before that call is carried out.
removals removed_at_each_call(const work& run) {
  removals r;
  const auto none = std::make_shared<cairn_test::store_faults>();
  run(disturbed_store{saved(), none});
  r.calls = none->count();
  for (std::uint64_t at = 0; at < r.calls; ++at) {
    CAPTURE(at);
    auto store = saved();
    const auto faults = std::make_shared<cairn_test::store_faults>();
    faults->add({.kind = store_call::any, .at = at, .action = [store](auto) { remove_step(store); }});
    try {
      run(disturbed_store{store, faults});  // all may have been read before
    } catch (const cairn::error& e) {
      CAPTURE(std::string(e.what()));
      CHECK(e.id() == error_id::storage_not_committed);
      ++r.not_committed;
    }
  }
  return r;
}

cairn::safetensors_reader reader_of(const disturbed_store& store) {
  return cairn::safetensors_reader(cairn::any_store(store));
}
void verify(const disturbed_store& store) {
  auto reader = reader_of(store);
  std::vector<std::string> told;
  const auto report = cairn::verify_checkpoint(
      reader, step, {.found = [&](const cairn::damage& d) { told.push_back(d.what); }});
  CHECK(report.good());
  CHECK(told.empty());
}
void copy(const disturbed_store& store) {
  auto from = store;
  cairn::memory_store target;
  const cairn::safetensors_storage to{target};
  cairn::copy_report report;
  try {
    report = cairn::copy_checkpoint(
        from, to, step, {.found = [](const cairn::damage& d) { FAIL_CHECK(cairn::to_string(d)); }});
  } catch (const cairn::error& e) {
    if (e.id() == error_id::storage_not_committed) CHECK(target.list("").empty());
    throw;
  }
  CHECK(report.ended == cairn::copy_report::outcome::copied);
  auto copied = to.reader();
  CHECK(cairn::verify_checkpoint(copied, step).good());
}
void compare(const disturbed_store& store) {
  const auto other = saved(1);
  cairn::readable_checkpoint a{reader_of(store), step};
  cairn::readable_checkpoint b{cairn::safetensors_reader(cairn::any_store(other)), step};
  const auto report = cairn::compare_checkpoints(a, b, {.values = true});
  CHECK(report.differences.size() == 1);
}
void measure(const disturbed_store& store) {
  cairn::readable_checkpoint from{reader_of(store), step};
  const auto report = cairn::measure_checkpoint(from, {});
  CHECK(report.items == 1);
}
void reshard(const disturbed_store& store) {
  cairn::readable_checkpoint from{reader_of(store), step};
  const cairn::memory_store to;
  const auto report = cairn::reshard_checkpoint(from, cairn::any_store(to), {.ranks = 2});
  CHECK(report.items == 2);
}
/// Bytes are read as they are stored, and not as numbers.
void reshard_bytes(const disturbed_store& store) {
  cairn::readable_checkpoint from{reader_of(store), step};
  (void)cairn::reshard_checkpoint(from, cairn::any_store(cairn::memory_store{}), {.items = {"text"}});
}
void export_it(const disturbed_store& store) {
  auto reader = reader_of(store);
  cairn::memory_store to;
  const auto report = cairn::export_safetensors(reader, step, to);
  CHECK(report.tensors == 1);
}

/// As the last ones, by a checkpointer of each of `ranks` ranks, which end alike.
template <class Run>
work by_ranks(int ranks, Run run) {
  return [ranks, run](const disturbed_store& store) {
    const cairn::thread_group group{ranks};
    std::vector<std::optional<error_id>> ids(static_cast<std::size_t>(ranks));
    std::exception_ptr first;
    cairn_test::thrown_on_ranks(
        ranks,
        [&](int rank) {
          try {
            cairn::checkpointer ckpt{store, quiet(), cairn::read_only{}, group.communicator(rank)};
            run(ckpt);
          } catch (const cairn::error& e) {
            ids[static_cast<std::size_t>(rank)] = e.id();
            throw;
          }
        },
        &first);
    for (const auto& id : ids) CHECK((id == ids[0]));
    if (first) std::rethrow_exception(first);
  };
}
struct restored {
  std::vector<float> w = std::vector<float>(1'500'000);
  std::vector<std::byte> text;
  cairn::state_dict state;
  restored() {
    state.tensor("w", w, {1'500'000});
    state.bytes("text", text);
  }
};
const auto load = [](auto& ckpt) {
  restored r;
  (void)ckpt.load(r.state, step);
};
const auto refresh = [](auto& ckpt) {
  restored r;
  (void)ckpt.refresh(r.state, step);
};
const auto read = [](auto& ckpt) { (void)ckpt.template read<float>("w", step); };

TEST_CASE("a step that is removed at any call of a load, a refresh or a read of it is told so on all ranks") {
  for (const int ranks : {1, 2})
    for (const auto& [name, run] :
         std::vector<std::pair<std::string, work>>{{"load", by_ranks(ranks, load)},
                                                   {"refresh", by_ranks(ranks, refresh)},
                                                   {"read", by_ranks(ranks, read)}}) {
      CAPTURE(ranks);
      CAPTURE(name);
      const auto removed = removed_at_each_call(run);
      CHECK(removed.calls >= 4);
      CHECK(removed.not_committed >= 3);
    }
}

TEST_CASE("a step that is removed at any call of what reads it is told as removed, and never as damaged") {
  for (const auto& [name, run] : std::vector<std::pair<std::string, work>>{{"verify", verify},
                                                                           {"copy", copy},
                                                                           {"compare", compare},
                                                                           {"measure", measure},
                                                                           {"reshard", reshard},
                                                                           {"export", export_it}}) {
    CAPTURE(name);
    const auto removed = removed_at_each_call(run);
    CHECK(removed.calls >= 4);
    CHECK(removed.not_committed >= 3);
  }
}

TEST_CASE("a step that is removed and saved again while it is read is told as removed") {
  auto store = saved();
  const auto faults = std::make_shared<cairn_test::store_faults>();
  faults->add({.kind = store_call::size, .key_contains = ".safetensors", .action = [&](auto) {
                 remove_step(store);
                 for (auto other = saved(2); const auto& o : other.list(cairn::step_directory(step) + "/"))
                   store.put_new(o.key, *other.read_all(o.key, o.bytes));
               }});
  CHECK(failure_of([&] { verify(disturbed_store{store, faults}); }).id() == error_id::storage_not_committed);
}

TEST_CASE("a step that is removed and saved again while it is loaded is told as removed") {
  for (const auto& run : {by_ranks(2, load), by_ranks(2, refresh), by_ranks(2, read)}) {
    auto store = saved();
    const auto faults = std::make_shared<cairn_test::store_faults>();
    faults->add({.kind = store_call::read, .key_contains = ".safetensors", .action = [&](auto) {
                   remove_step(store);
                   for (auto other = saved(2); const auto& o : other.list(cairn::step_directory(step) + "/"))
                     store.put_new(o.key, *other.read_all(o.key, o.bytes));
                 }});
    CHECK(failure_of([&] { run(disturbed_store{store, faults}); }).id() == error_id::storage_not_committed);
  }
}

TEST_CASE("a file that is missing while the manifest is there is damage, and so it is told") {
  auto store = saved();
  for (const auto& o : store.list(cairn::step_directory(step) + "/"))
    if (o.key.ends_with(".safetensors")) store.remove(o.key);
  const disturbed_store disturbed{store, std::make_shared<cairn_test::store_faults>()};
  auto reader = reader_of(disturbed);
  std::vector<std::string> told;
  const auto report = cairn::verify_checkpoint(
      reader, step, {.found = [&](const cairn::damage& d) { told.push_back(d.what); }});
  CHECK(report.damages == told.size());
  REQUIRE(told.size() >= 2);
  CHECK(told[0] == "a data file of the checkpoint is not there");
  CHECK(told[1] == "lost with its file");
  for (const auto& run : std::vector<work>{copy, measure, reshard, reshard_bytes, export_it})
    CHECK(failure_of([&] { run(disturbed); }).id() == error_id::corrupt_missing_file);
  for (const int ranks : {1, 2})
    for (const auto& run : {by_ranks(ranks, load), by_ranks(ranks, refresh), by_ranks(ranks, read)})
      CHECK(failure_of([&] { run(disturbed); }).id() == error_id::corrupt_missing_file);
}

TEST_CASE("what is lost with a file is told by item, part and rank") {
  cairn::memory_store store;
  const cairn::thread_group group{4};
  cairn_test::on_all_ranks(4, [&](int rank) {
    const std::int64_t sizes[] = {3, 1, 5, 2}, offsets[] = {0, 3, 4, 9};
    std::vector<float> part(static_cast<std::size_t>(sizes[rank]));
    double own = 0;
    cairn::state_dict state;
    state.tensor("w", part, cairn::shard{{11}, {offsets[rank]}});
    state.value("own", own, cairn::per_rank);
    cairn::checkpointer ckpt{store, quiet(), group.communicator(rank)};
    (void)ckpt.save(state, step).wait();
  });
  for (const auto& o : store.list(cairn::step_directory(step) + "/"))
    if (o.key.ends_with(".safetensors") &&
        (o.key.find("rank-00001") != o.key.npos || o.key.find("rank-00002") != o.key.npos))
      store.remove(o.key);
  cairn::safetensors_reader reader{cairn::any_store(store)};
  std::set<std::string> lost;
  (void)cairn::verify_checkpoint(reader, step, {.found = [&](const cairn::damage& d) {
                                   if (!d.item.empty()) lost.insert(d.item);
                                 }});
  const auto part = [](std::int64_t begin, std::int64_t count) {
    return "w (" + cairn::to_string(cairn::chunk{{begin}, {count}}) + ")";
  };
  CHECK(lost == std::set<std::string>{"own of rank 1", "own of rank 2", part(3, 1), part(4, 5)});
}

TEST_CASE("a copy keeps the job at the source from removing what it copies, where it may write there") {
  const cairn_test::scratch_directory directory;
  const cairn::file_store files{directory.path()};
  cairn::checkpointer job{files, quiet()};
  std::vector<float> w(1000);
  cairn::state_dict state;
  state.tensor("w", w, {1000});
  (void)job.save(state, step).wait();
  const auto at_source = std::make_shared<cairn_test::store_faults>();
  const auto at_target = std::make_shared<cairn_test::store_faults>();
  std::optional<error_id> refused;
  at_target->add({.kind = store_call::publish_new, .key_contains = "manifest", .action = [&](auto) {
                    try {
                      job.remove(step);
                    } catch (const cairn::error& e) {
                      refused = e.id();
                    }
                  }});
  cairn_test::faulty_store<cairn::file_store> from{files, at_source};
  const cairn::safetensors_storage to{disturbed_store{cairn::memory_store{}, at_target}};
  SUBCASE("where it may") {
    (void)cairn::copy_checkpoint(from, to, step);
    CHECK(refused == error_id::storage_leased);
    job.remove(step);  // the lease has ended
    CHECK(job.list().empty());
  }
  SUBCASE("where it may not") {
    at_source->fail_at(store_call::create, 0, true, false, error_id::storage_permission);
    (void)cairn::copy_checkpoint(from, to, step);
    CHECK_FALSE(refused.has_value());
    CHECK(at_target->triggered() == 1);
  }
  CHECK(to.reader().list() == std::vector<std::int64_t>{step});
}

TEST_CASE("who reads a checkpoint keeps the job from removing it meanwhile") {
  const cairn_test::scratch_directory directory;
  const cairn::file_store files{directory.path()};
  cairn::checkpointer job{files, quiet()};
  std::vector<float> w(1000);
  cairn::state_dict state;
  state.tensor("w", w, {1000});
  (void)job.save(state, step).wait();
  w[0] = 1;
  (void)job.save(state, step + 1).wait();
  const auto faults = std::make_shared<cairn_test::store_faults>();
  std::optional<error_id> refused;
  faults->add({.kind = store_call::read, .action = [&](auto) {
                 try {
                   job.remove(step);
                 } catch (const cairn::error& e) {
                   refused = e.id();
                 }
               }});
  const auto reader = [&] {
    return cairn::safetensors_reader(
        cairn::any_store(cairn_test::faulty_store<cairn::file_store>{files, faults}));
  };
  const auto checkpoint = [&](std::int64_t which) { return cairn::readable_checkpoint{reader(), which}; };
  SUBCASE("verify") {
    auto from = reader();
    CHECK(cairn::verify_checkpoint(from, step).good());
  }
  SUBCASE("export") {
    auto from = reader();
    cairn::memory_store to;
    CHECK(cairn::export_safetensors(from, step, to).tensors == 1);
  }
  SUBCASE("compare") {
    auto a = checkpoint(step), b = checkpoint(step + 1);
    CHECK(cairn::compare_checkpoints(a, b, {.values = true}).differences.size() == 1);
  }
  SUBCASE("measure") {
    auto from = checkpoint(step);
    CHECK(cairn::measure_checkpoint(from, {}).items == 1);
  }
  SUBCASE("reshard") {
    auto from = checkpoint(step);
    const cairn::memory_store to;
    CHECK(cairn::reshard_checkpoint(from, cairn::any_store(to), {.ranks = 2}).items == 1);
  }
  CHECK(refused == error_id::storage_leased);
  job.remove(step);  // the lease has ended
  CHECK(job.list() == std::vector<std::int64_t>{step + 1});
}

TEST_CASE("a manifest that came after its attempt was ended is no checkpoint to a copy, as to readers") {
  auto source = saved();
  cairn::memory_store target;
  const cairn::safetensors_storage to{target};
  (void)cairn::copy_checkpoint(source, to, step);
  // What a run that resumes at the target does before a copy that is then killed publishes the manifest.
  const auto key = cairn::manifest_key(step);
  const auto attempt = cairn::open_manifest(*target.read_all(key, 1u << 20), key).attempt;
  for (const auto& o : target.list(cairn::step_directory(step) + "/"))
    if (o.key != key) target.remove(o.key);
  target.put_new(cairn::aborted_key(step, attempt), {});
  REQUIRE(to.reader().list().empty());
  SUBCASE("at the target") {
    const auto report =
        cairn::copy_checkpoint(source, to, step, {.rival_timeout = std::chrono::milliseconds(20)});
    CHECK(report.ended == cairn::copy_report::outcome::copied);
    CHECK(to.reader().list() == std::vector<std::int64_t>{step});
    auto copied = to.reader();
    CHECK(cairn::verify_checkpoint(copied, step).good());
  }
  SUBCASE("at the source") {
    const cairn::safetensors_storage elsewhere{cairn::memory_store{}};
    CHECK(failure_of([&] { (void)cairn::copy_checkpoint(target, elsewhere, step); }).id() ==
          error_id::storage_not_committed);
  }
}

TEST_CASE("a copy commits nothing while a process that has ended an earlier one removes what that sent") {
  auto source = saved();
  const cairn_test::scratch_directory directory;
  const cairn::file_store files{directory.path()};
  const cairn::safetensors_storage to{files};
  bool sent = false;
  const auto first = cairn::copy_checkpoint(
      source, to, step,
      {.progress = [&](cairn::copy_phase phase, auto, auto) { sent = phase == cairn::copy_phase::read_back; },
       .stop = [&] { return sent; }});
  REQUIRE(first.ended == cairn::copy_report::outcome::stopped);
  std::optional<cairn::copy_report::outcome> ended;
  std::optional<error_id> refused;
  const auto copy_again = [&] {
    try {
      ended =
          cairn::copy_checkpoint(source, to, step, {.rival_timeout = std::chrono::milliseconds(20)}).ended;
    } catch (const cairn::error& e) {
      refused = e.id();
    }
  };
  // A process that has ended the first copy, and seen that no manifest of it stands, is about to remove its files.
  const auto faults = std::make_shared<cairn_test::store_faults>();
  faults->add({.kind = store_call::remove, .key_contains = "step-", .action = [&](auto) { copy_again(); }});
  const cairn_test::faulty_store<cairn::file_store> disturbed{files, faults};
  SUBCASE("a run that resumes") {
    cairn::checkpointer job{disturbed, quiet()};
    cairn::state_dict state;
    CHECK_FALSE(job.resume(state).has_value());
  }
  SUBCASE("a run that resumes after another one has made the mark") {
    const auto record = to.store().list("step-").front().key;
    const auto attempt = cairn::parse_key(record)->object.attempt;
    REQUIRE(cairn::any_store(files).publish_new(cairn::aborted_key(step, attempt), {}));
    cairn::checkpointer job{disturbed, quiet()};
    cairn::state_dict state;
    CHECK_FALSE(job.resume(state).has_value());
  }
  SUBCASE("who reshards into it") {
    cairn::checkpoint_catalog{cairn::any_store(disturbed)}.clean_abandoned(step, {41, 42});
  }
  SUBCASE("one that removes the step") {
    cairn::safetensors_storage{disturbed}.writer().remove(step);
  }
  CHECK(faults->triggered() == 1);
  CHECK(refused == error_id::storage_aborted);
  CHECK_FALSE(ended.has_value());
  CHECK(to.reader().list().empty());
  copy_again();
  CHECK(ended == cairn::copy_report::outcome::copied);
  auto copied = to.reader();
  CHECK(cairn::verify_checkpoint(copied, step).good());
}

TEST_CASE("a copy into a store that is not there says so, and nothing of the step that it copies") {
  auto from = saved();
  const auto faults = std::make_shared<cairn_test::store_faults>();
  faults->fail_at(store_call::any, 0, true, false, error_id::storage_not_found);
  const cairn::safetensors_storage to{disturbed_store{cairn::memory_store{}, faults}};
  CHECK(failure_of([&] { (void)cairn::copy_checkpoint(from, to, step); }).id() ==
        error_id::storage_not_found);
}

}  // namespace
