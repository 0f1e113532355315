// SPDX-License-Identifier: Apache-2.0
// group: files
// cost: 40
// A run of two ranks is killed with SIGKILL at every step of resume and save that has a name, and at every
// call that changes the disk. Whatever the moment: the next run loads the checkpoint that was being saved or
// the one before it, bit for bit, never an older one, and cleans up.
#include <doctest/doctest.h>
#include <cairn/cairn.hpp>
#include <cairn/manage/compare.hpp>
#include <cairn/manage/import_safetensors.hpp>
#include <cairn/manage/verify.hpp>
#include <cairn/safetensors_files.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/storage/safetensors/safetensors_header.hpp>
#include <cairn/storage/safetensors_reader.hpp>
#include <cairn/stores/basic_file_store.hpp>

#include "support/kill_points.hpp"
#include "support/killed_trainer.hpp"
#include "support/sanitized.hpp"
#include "support/scratch_directory.hpp"
#include "support/still_threads.hpp"
#include "support/training_state.hpp"
#include "support/watched_file_system.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {
using namespace cairn_test;
using namespace cairn_test::killed_trainer;
namespace fs = std::filesystem;

// A fork of a sanitized process is slow: there, some of the points are enough.
constexpr std::uint64_t thinned = CAIRN_TEST_ADDRESS_SANITIZED ? 4 : 1;
}  // namespace

TEST_CASE("a run that is killed at any named step of resume and save loses nothing that was committed") {
  const past before_it;
  std::set<std::string> names;
  std::uint64_t others = 0;
  std::uint64_t kills = 0;
  for (const auto how : modes)
    for (const auto& point : named_points(how == mode::shared)) {
      if (point.staged && how == mode::unstaged) continue;
      // Each point in one way of saving at least.
      const bool only_here = how == mode::shared && std::string_view(point.name).starts_with("shared: ");
      if (how != mode::buffered && ++others % thinned != 0 && !point.staged && !only_here) continue;
      const std::string way = mode_names[static_cast<int>(how)];
      CAPTURE(way);
      const std::string point_name = point.name;
      CAPTURE(point_name);
      const shared_page page;
      const auto root = before_it.copy();
      REQUIRE(dies(root, {how, true, {20, 30}}, {.at = point.at, .gate = point.gate}, page));
      check_next_run(root, page, how == mode::buffered);
      names.insert(point.name);
      ++kills;
    }
  CHECK(names.size() >= 25);
  MESSAGE(names.size() << " named kill points, " << kills << " kills in four ways of saving");
}

TEST_CASE("a run that is killed at any call that changes the disk loses nothing that was committed") {
  const past before_it;
  std::set<std::string> places;
  std::uint64_t kills = 0;
  for (const auto how : modes) {
    const std::string way = mode_names[static_cast<int>(how)];
    CAPTURE(way);
    std::uint64_t changes = 0;
    {
      const shared_page page;
      const auto root = before_it.copy();
      REQUIRE_FALSE(dies(root, {how, true, {20, 30}}, {}, page));
      REQUIRE(page->acknowledged == 30);
      check_next_run(root, page, true);
      changes = page->changes;
    }
    REQUIRE(changes > 100);
    // All of them in one way of saving, some in the others, which differ only until the bytes are staged.
    const std::uint64_t stride = (how == mode::buffered ? 1 : 5) * thinned;
    std::uint64_t tried = 0;
    for (std::uint64_t k = 1; k <= changes; k += stride) {
      CAPTURE(k);
      const shared_page page;
      const auto root = before_it.copy();
      if (dies(root, {how, true, {20, 30}}, {.at = {}, .gate = {}, .change = k}, page)) {
        ++kills;
        places.insert(page->where);
      }
      check_next_run(root, page, tried++ % 10 == 0);
    }
  }
  CHECK(kills > 200 / thinned);
  CHECK(places.size() > 80 / thinned);
  MESSAGE(kills << " kills, at " << places.size() << " different calls");
}

TEST_CASE(
    "a run with frozen items is killed at any call that changes the disk: what links there are, all is "
    "whole") {
  const scratch_directory directory(std::filesystem::exists("/dev/shm") ? "/dev/shm" : nullptr);
  const auto root = directory.path() + "/now";
  bool found = false;  // by themselves, after two saves
  SUBCASE("flagged") {}
  SUBCASE("found") {
    found = true;
  }
  std::vector<float> base(20'000, 0.5F), adapter(100);
  cairn::state_dict state;
  if (found)
    state.tensor("base", base, {20'000});
  else
    state.tensor("base", base, {20'000}, cairn::frozen);
  state.tensor("adapter", adapter, {100});
  auto options = quiet;
  options.link_unchanged = found;
  const auto loads = [&](auto& ckpt, std::int64_t step) {
    std::vector<float> a(20'000), b(100);
    cairn::state_dict back;
    back.tensor("base", a, {20'000});
    back.tensor("adapter", b, {100});
    ckpt.load(back, step);
    return a == base && b[99] == static_cast<float>(step);
  };
  const auto save = [&](auto& ckpt, std::int64_t step) {
    std::fill(adapter.begin(), adapter.end(), static_cast<float>(step));
    return ckpt.save(state, step);
  };
  std::uint64_t kills = 0;
  const auto is_killed = [&](const kill_plan& plan) {
    std::filesystem::remove_all(root);
    const shared_page page;
    const bool killed = dies(plan, page, [&](const std::shared_ptr<killer>& watch, run_report& report) {
      try {
        cairn::checkpointer ckpt{store{root, small_requests, watched_file_system<>{watch}},
                                 cairn::keep_last(1), options};
        for (const std::int64_t step : {1, 2, 3}) {
          report.begun = step;
          save(ckpt, step).wait();
          report.acknowledged = step;
        }
      } catch (const std::exception& e) {
        std::snprintf(report.where, sizeof report.where, "%s", e.what());
        report.trouble = true;
      }
    });
    kills += killed ? 1 : 0;
    const std::string where = page->where;
    CAPTURE(where);
    {
      cairn::checkpointer ckpt{store{root, small_requests}, cairn::read_only{}, quiet};
      const auto there = ckpt.list();
      for (const auto step : there) CHECK(loads(ckpt, step));
      // What was acknowledged goes when the one after it is committed.
      if (page->acknowledged > 0) CHECK((!there.empty() && there.back() >= page->acknowledged));
    }
    cairn::checkpointer next{store{root, small_requests}, cairn::keep_last(1), options};
    (void)next.resume(state);
    const std::int64_t last = found ? 6 : 5;
    for (std::int64_t step = 4; step <= last; ++step) {
      const auto saved = save(next, step);
      saved.wait();
      CHECK((saved.report().linked_bytes > 0) == (step == last));
    }
    CHECK(loads(next, last));
    CHECK(litter(root, true) == "");
    return killed;
  };
  for (const auto when : {moment::before, moment::after})
    CHECK(is_killed(
        {.at = event{when, file_call::link, found ? "step-00000003" : "step-00000002"}, .gate = {}}));
  for (std::uint64_t k = 1; is_killed({.at = {}, .gate = {}, .change = k}); k += (found ? 4 : 2) * thinned) {
  }
  CHECK(kills > 10);
}

TEST_CASE("an import that is killed at any call that changes the disk has made a whole checkpoint or none") {
  const scratch_directory directory(std::filesystem::exists("/dev/shm") ? "/dev/shm" : nullptr);
  const auto root = directory.path() + "/made";
  const auto model = directory.path() + "/model";
  std::vector<float> values(20'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  std::filesystem::create_directory(model);
  for (const bool first : {true, false}) {
    cairn::safetensors_header header;
    cairn::safetensors_entry e;
    e.key = first ? "a" : "b", e.type = cairn::dtype::f32, e.shape = {20'000};
    e.end = values.size() * sizeof(float);
    header.entries.push_back(e);
    auto file = cairn::encode_safetensors_header(header, 8);
    const auto bytes = std::as_bytes(std::span(values));
    file.insert(file.end(), bytes.begin(), bytes.end());
    std::ofstream(model + (first ? "/a.safetensors" : "/b.safetensors"), std::ios::binary)
        .write(reinterpret_cast<const char*>(file.data()), static_cast<std::streamsize>(file.size()));
  }
  const auto import_into = [&](store to) {
    return cairn::import_safetensors(cairn::safetensors_files(model).reader(),
                                     cairn::any_store(std::move(to)))
        .complete;
  };
  std::uint64_t kills = 0, whole = 0;
  const auto is_killed = [&](std::uint64_t change) {
    std::filesystem::remove_all(root);
    const shared_page page;
    const bool killed =
        dies({.at = {}, .gate = {}, .change = change}, page,
             [&](const std::shared_ptr<killer>& watch, run_report& report) {
               try {
                 report.trouble = !import_into(store{root, small_requests, watched_file_system<>{watch}});
               } catch (const std::exception& e) {
                 std::snprintf(report.where, sizeof report.where, "%s", e.what());
                 report.trouble = true;
               }
             });
    const std::string where = page->where;
    CAPTURE(where);
    cairn::safetensors_reader made{cairn::any_store(store{root, small_requests})};
    const bool there = !made.list().empty();
    kills += killed ? 1 : 0;
    whole += killed && there ? 1 : 0;
    if (!there) {
      CHECK(import_into(store{root, small_requests}));
      CHECK(litter(root, true) == "");
    }
    CHECK(cairn::verify_checkpoint(made, 0).good());
    cairn::readable_checkpoint copy{made, 0}, was{cairn::safetensors_files(model).reader()};
    CHECK(cairn::compare_checkpoints(copy, was).equal());
    return killed;
  };
  for (std::uint64_t k = 1; is_killed(k); k += thinned) {
  }
  CHECK(kills > 20 / thinned);
  CHECK(whole > 0);
  MESSAGE(kills << " kills, " << whole << " of them after the commit");
  CHECK(std::distance(std::filesystem::directory_iterator(model), {}) == 2);
}
