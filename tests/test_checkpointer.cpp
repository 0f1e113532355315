// SPDX-License-Identifier: Apache-2.0
// group: checkpoints
// cost: 20
// threaded
#include <doctest/doctest.h>
#include <cairn/cairn.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/stores/any_store.hpp>
#include <cairn/system/rate_limiter.hpp>
#include <cairn/system/shared_event.hpp>

#include "support/rounds.hpp"
#include "support/sanitized.hpp"
#include "support/scratch_directory.hpp"
#include "support/small_trainings.hpp"
#include "support/still_threads.hpp"

#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace cairn_test::small_trainings;

TEST_CASE("a state comes back bit for bit in every way of saving") {
  SUBCASE("buffered, thread") {
    round_trip();
  }
  SUBCASE("buffered, inline") {
    round_trip(cairn::inline_executor{});
  }
  SUBCASE("unstaged, inline") {
    round_trip(cairn::no_staging{}, cairn::inline_executor{});
  }
  SUBCASE("unstaged, thread") {
    round_trip(cairn::thread_executor{}, cairn::no_staging{});
  }
  SUBCASE("overlapped, buffered") {
    round_trip(cairn::overlapped{});
  }
  SUBCASE("overlapped, unstaged") {
    round_trip(cairn::overlapped{}, cairn::no_staging{});
  }
}

TEST_CASE(
    "names, shapes and numbers at the ends of what is allowed save and load, and those beyond are refused") {
  const cairn_test::scratch_directory scratch;
  const auto directory = scratch.path() + "/run";
  std::vector<float> weights(8, 2.0F);
  std::vector<std::byte> bytes(3, std::byte{7});
  float scale = 3;
  cairn::checkpointer ckpt{cairn::file_store{directory}, quiet};
  const auto refused = [&](const std::string& name) {
    CHECK_THROWS_WITH_AS(
        [&] {
          cairn::state_dict state;
          state.tensor(name, weights, {8});
          ckpt.save(state, 1).wait();
        }(),
        doctest::Contains("usage.bad_name"), cairn::usage_error);
  };
  for (const std::string& name :
       {std::string("a\xff"), std::string("a\0b", 3), std::string(), std::string("__metadata__"),
        std::string("x@rank00000"), std::string(4097, 'n')})
    refused(name);
  CHECK(ckpt.list().empty());

  const auto comes_back = [&](const cairn::state_dict& state, std::int64_t step) {
    ckpt.save(state, step).wait();
    const auto saved = weights;
    std::fill(weights.begin(), weights.end(), 0.0F);
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    scale = 0;
    ckpt.load(state, step);
    CHECK(ckpt.list().back() == step);
    CHECK(weights == saved);
  };
  {
    cairn::state_dict state;  // one name ends as the second box of another one would
    state.tensor("x", weights.data(), {4});
    state.tensor("x.1", weights.data() + 4, {4});
    state.bytes("x.2", bytes, cairn::per_rank);
    comes_back(state, 2);
    CHECK(bytes == std::vector<std::byte>(3, std::byte{7}));
  }
  {
    cairn::state_dict state;
    state.tensor("none", weights.data(), {0, 5});
    state.tensor("scalar", &scale, {});
    scale = 3;
    ckpt.save(state, 3).wait();
    scale = 0;
    ckpt.load(state, 3);
    CHECK(scale == 3);
  }
  {
    cairn::state_dict state;
    ckpt.save(state, 4).wait();
    ckpt.load(state, 4);
    CHECK(ckpt.resume(state) == 4);
  }
  {
    cairn::state_dict state;
    state.tensor(std::string(4095, 'n') + "1", weights.data(), {4});
    state.tensor(std::string(4095, 'n') + "2", weights.data() + 4, {4});
    comes_back(state, 5);
  }
  {
    const std::int64_t count = cairn_test::long_run() ? 100'000 : 10'000;
    weights.resize(static_cast<std::size_t>(4 * count));
    std::iota(weights.begin(), weights.end(), 0.0F);
    cairn::state_dict state;
    for (std::int64_t i = 0; i < count; ++i)
      state.tensor("layer." + std::to_string(i) + ".w", weights.data() + 4 * i, {4});
    comes_back(state, 6);
  }
  weights.assign(8, 2.0F);
  cairn::state_dict state;
  state.tensor("x", weights, {8});
  comes_back(state, INT64_MAX);
}

TEST_CASE("what several ranks saved loads on any other number of ranks") {
  for (const int writers : {1, 3, 4}) {
    cairn::memory_store store;
    run_ranks(writers, [&](cairn::thread_communicator comm) {
      training t(comm.rank(), comm.size());
      cairn::checkpointer ckpt{store, std::move(comm), quiet};
      ckpt.prepare(t.state);
      ckpt.save(t.state, 5).wait();
      ckpt.save(t.state, 6);
      ckpt.close();
    });
    for (const int readers : {1, 2, 5}) {
      run_ranks(readers, [&](cairn::thread_communicator comm) {
        const int rank = comm.rank();
        training t(rank, comm.size(), false);
        const training expected(rank, comm.size());
        cairn::checkpointer ckpt{store, std::move(comm), quiet};
        if (readers > writers) {
          CHECK_THROWS_AS(ckpt.load(t.state, 6), cairn::plan_error);  // rank items that nobody wrote
          const auto report = ckpt.load(t.state, 6, cairn::partial);
          CHECK(report.missing.size() == (rank < writers ? 0u : 1u));
        } else {
          CHECK(ckpt.resume(t.state) == 6);
        }
        t.check_equal(expected);
        if (rank < writers) CHECK(t.generator == expected.generator);
      });
    }
  }
}

TEST_CASE("each save finds memory where it lies now") {
  struct memory {
    std::vector<float> weights = std::vector<float>(600);
    std::vector<double> row = std::vector<double>(12);
    std::vector<double> columns = std::vector<double>(12);
    std::string loader;
    void fill(int step) {
      std::iota(weights.begin(), weights.end(), static_cast<float>(1000 * step));
      std::iota(row.begin(), row.end(), 100.0 * step);
      std::iota(columns.begin(), columns.end(), -100.0 * step);
      loader = "position " + std::to_string(step);
    }
    void describe(cairn::state_dict& state) {
      state.tensor("weights", weights, {30, 20});
      state.tensor("pointed", row.data(), {3, 4});
      state.bytes("loader", loader);
    }
  };
  cairn::memory_store store;
  cairn::checkpointer ckpt{store, quiet};
  memory now, loaded;
  cairn::state_dict state, target;
  now.describe(state);
  loaded.describe(target);
  int step = 0;
  const auto round = [&](const cairn::state_dict& saved, const memory& expected, bool columns = false) {
    auto handle = ckpt.save(saved, step);
    handle.wait();
    CHECK(handle.report().plan_cached == (step > 1));
    ckpt.load(target, step);
    CHECK(loaded.weights == expected.weights);
    CHECK(loaded.row == (columns ? expected.columns : expected.row));
    CHECK(loaded.loader == expected.loader);
  };
  for (int i = 0; i < 3; ++i) {  // nothing moves
    now.fill(++step);
    round(state, now);
  }
  std::vector<float> elsewhere(600);
  now.weights.swap(elsewhere);
  now.fill(++step);
  round(state, now);
  now.loader = "of another length, and elsewhere because it is long: " + std::to_string(++step);
  round(state, now);
  now.loader.back() = '0';  // of the same length
  ++step;
  round(state, now);

  cairn::state_dict copy = state;
  state.rebind("pointed", now.columns.data());
  now.fill(++step);
  round(state, now, true);
  ++step;
  round(copy, now);
  const std::vector<double> before = now.columns;
  auto turned = cairn::contiguous_view(now.columns.data(), cairn::dtype::f64, {3, 4});
  turned.strides[0] = 1, turned.strides[1] = 3;
  state.rebind("pointed", turned);
  for (std::size_t i = 0; i < 12; ++i) now.columns[i % 4 * 3 + i / 4] = before[i];
  memory wanted = now;
  wanted.columns = before;
  ++step;
  round(state, wanted, true);

  memory other;
  cairn::state_dict of_other;
  other.describe(of_other);
  other.fill(++step);
  round(of_other, other);
  const cairn::state_dict moved = std::move(of_other);
  ++step;
  round(moved, other);
  ++step;
  CHECK_THROWS_AS(ckpt.save(of_other, step), cairn::plan_error);  // NOLINT: nothing is in it any more
  ++step;
  round(state, wanted, true);
}

TEST_CASE("an overlapped save keeps the values of its step") {
  cairn::memory_store store;
  training t;
  cairn::checkpointer ckpt{store, cairn::overlapped{}, quiet};
  ckpt.prepare(t.state);
  ckpt.save(t.state, 1);
  t.learning_rate = 99;  // values and bytes are free at once
  t.loader = "changed, and longer than before";
  t.generator[0] = 77;
  ckpt.before_update();
  for (auto& w : t.weights) w = -1;
  for (auto& m : t.moments) m = -1;
  ckpt.close();
  training loaded(0, 1, false);
  const training expected;
  cairn::checkpointer reader{store, quiet};
  CHECK(reader.load(loaded.state, 1).missing.empty());
  loaded.check_equal(expected);
  CHECK(loaded.generator == expected.generator);
}

TEST_CASE("an overlapped save without before_update publishes nothing") {
  cairn::memory_store store;
  training t;
  cairn::checkpointer ckpt{store, cairn::overlapped{}, quiet};
  auto first = ckpt.save(t.state, 1);
  auto second = ckpt.save(t.state, 2);
  REQUIRE(first.failed());
  CHECK(id_of(first.failure()) == cairn::error_id::usage_before_update_missing);
  ckpt.before_update();
  ckpt.close();
  CHECK(second.committed());
  cairn::checkpointer reader{store, quiet};
  CHECK(reader.list() == std::vector<std::int64_t>{2});
}

TEST_CASE("resume passes over damaged checkpoints and never begins anew because of damage") {
  cairn::memory_store store;
  training t;
  {
    cairn::checkpointer ckpt{store, quiet};
    CHECK_FALSE(ckpt.resume(t.state).has_value());
    for (int step = 1; step <= 3; ++step) {
      t.learning_rate = step;
      ckpt.save(t.state, step).wait();
    }
  }
  const auto damage = [&](std::int64_t step) {
    auto bytes = *store.read_all(cairn::manifest_key(step), 1 << 20);
    bytes[bytes.size() / 2] ^= std::byte{4};
    store.remove(cairn::manifest_key(step));
    store.put_new(cairn::manifest_key(step), bytes);
  };
  damage(3);
  {
    cairn::checkpointer ckpt{store, quiet};
    CHECK(ckpt.resume(t.state) == 2);
    CHECK(t.learning_rate == 2);
    CHECK(ckpt.list() == std::vector<std::int64_t>{1, 2});
    ckpt.save(t.state, 3).wait();  // its number is free again
  }
  damage(1);
  damage(2);
  damage(3);
  cairn::checkpointer ckpt{store, quiet};
  try {
    static_cast<void>(ckpt.resume(t.state));
    FAIL("resume began anew");
  } catch (const cairn::storage_error& e) {
    CHECK(e.id() == cairn::error_id::storage_nothing_loads);
    CHECK(std::string(e.what()).find("step 2") != std::string::npos);
  }
}

TEST_CASE("keep_last removes old checkpoints after a commit") {
  cairn::memory_store store;
  training t;
  cairn::checkpointer ckpt{store, cairn::keep_last(2), quiet};
  for (int step = 1; step <= 5; ++step) ckpt.save(t.state, step).wait();
  CHECK(ckpt.list() == std::vector<std::int64_t>{4, 5});
  ckpt.remove(4);
  CHECK(ckpt.list() == std::vector<std::int64_t>{5});
  for (const auto& o : store.list("")) CHECK(o.key.find("step-00000005") == 0);
}

TEST_CASE("misuse gives usage errors and loses nothing") {
  cairn::memory_store store;
  training t;
  cairn::checkpointer ckpt{store, quiet};
  SUBCASE("a negative step") {
    CHECK_THROWS_AS(ckpt.save(t.state, -1), cairn::usage_error);
  }
  SUBCASE("a container resized between saves") {
    ckpt.save(t.state, 1).wait();
    t.weights.resize(10);
    try {
      ckpt.save(t.state, 2);
      FAIL("accepted");
    } catch (const cairn::usage_error& e) {
      CHECK(e.id() == cairn::error_id::usage_size_changed);
      CHECK(e.fields().item == "weights");
    }
    t.weights.resize(50 * 700);
    ckpt.save(t.state, 3).wait();
  }
  SUBCASE("after close") {
    ckpt.close();
    CHECK_THROWS_AS(ckpt.save(t.state, 1), cairn::usage_error);
  }
  SUBCASE("after a move") {
    auto other = std::move(ckpt);
    CHECK_THROWS_AS(ckpt.save(t.state, 1), cairn::usage_error);  // NOLINT
    other.save(t.state, 1).wait();
    ckpt = std::move(other);
    ckpt.save(t.state, 2).wait();
  }
  SUBCASE("a step that is committed already") {
    ckpt.save(t.state, 1).wait();
    auto again = ckpt.save(t.state, 1);
    try {
      again.wait();
      FAIL("a checkpoint was replaced");
    } catch (const cairn::storage_error& e) {
      CHECK(e.id() == cairn::error_id::storage_already_committed);
    }
    training loaded(0, 1, false);
    ckpt.load(loaded.state, 1);
    loaded.check_equal(t);
  }
  SUBCASE("wrong shape or dtype on load") {
    ckpt.save(t.state, 1).wait();
    std::vector<double> weights(50 * 700);
    cairn::state_dict other;
    other.tensor("weights", weights, {50, 700});
    CHECK_THROWS_AS(ckpt.load(other, 1, cairn::only{"weights"}), cairn::plan_error);
    cairn::state_dict shape;
    shape.tensor("weights", t.weights, {700, 50});
    CHECK_THROWS_AS(ckpt.load(shape, 1, cairn::only{"weights"}), cairn::plan_error);
    CHECK_THROWS_AS(ckpt.load(t.state, 7), cairn::storage_error);
  }
}

TEST_CASE("load reads only the items that it is asked for") {
  cairn::memory_store store;
  training t;
  cairn::checkpointer ckpt{store, quiet};
  ckpt.save(t.state, 1).wait();
  training loaded(0, 1, false);
  ckpt.load(loaded.state, 1, cairn::only{"w*", "learning_r?te"});
  CHECK(loaded.weights == t.weights);
  CHECK(loaded.learning_rate == t.learning_rate);
  CHECK(loaded.loader.empty());
}

TEST_CASE("a child of fork cannot use the checkpointer and does not disturb its parent") {
  cairn::memory_store store;
  training t;
  cairn::checkpointer ckpt{store, quiet};
  ckpt.save(t.state, 1).wait();
  cairn_test::await_still_threads();
  const auto child = ::fork();
  if (child == 0) {
    int code = 1;
    try {
      ckpt.save(t.state, 2);
    } catch (const cairn::usage_error& e) {
      code = e.id() == cairn::error_id::usage_wrong_process ? 0 : 2;
    }
    { auto dying = std::move(ckpt); }
    ::_exit(code);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  ckpt.save(t.state, 3).wait();
}

TEST_CASE("any_checkpointer holds one") {
  cairn::memory_store store;
  training t;
  cairn::any_checkpointer ckpt = cairn::checkpointer{store, cairn::overlapped{}, quiet};
  REQUIRE(ckpt.has_value());
  CHECK_FALSE(ckpt.resume(t.state).has_value());
  auto handle = ckpt.save(t.state, 4);
  ckpt.before_update();
  handle.wait();
  // It takes the options of any checkpointer.
  const auto part = ckpt.load(t.state, 4, cairn::only{"weights"}, cairn::partial);
  CHECK(part.bytes == 50 * 700 * sizeof(float));
  CHECK(ckpt.load(t.state, 4, {"weights"}, false).bytes == part.bytes);
  CHECK(ckpt.load(t.state, 4).bytes > part.bytes);
  ckpt.close();
  CHECK(handle.committed());
  CHECK(ckpt.has_value());
  const cairn::any_checkpointer moved = std::move(ckpt);
  CHECK(moved.has_value());
  CHECK_FALSE(ckpt.has_value());
  CHECK_THROWS_AS(static_cast<void>(ckpt.list()), cairn::usage_error);
}

TEST_CASE("a worker makes the store of a URL again from what the writer over it says of itself") {
  const auto over = cairn::detail::default_storage_over(
      cairn::any_store_of<cairn::file_store>{cairn::file_store{"/nowhere"}});
  const cairn::any_writer writer = over.writer();
  const auto make = writer.maker();
  REQUIRE(static_cast<bool>(make));
  const cairn::any_writer again = make(writer.description());
  CHECK(again.fingerprint() == writer.fingerprint());
}

TEST_CASE("policies in any order name the same type") {
  using one = cairn::checkpointer_for<cairn::memory_store, cairn::overlapped, cairn::no_staging,
                                      cairn::thread_communicator>;
  using other = cairn::checkpointer_for<cairn::memory_store, cairn::thread_communicator,
                                        cairn::checkpointer_options, cairn::no_staging, cairn::overlapped>;
  static_assert(std::is_same_v<one, other>);
  static_assert(std::is_nothrow_move_constructible_v<one> && !std::is_copy_constructible_v<one>);
}

TEST_CASE("ranks agree to stop at one step, whichever of them was asked, and resume two states together") {
  cairn::memory_store policies, critics;
  std::atomic<int> stopped_at_4{0};
  for (const bool again : {false, true}) {
    cairn::thread_group others{3};  // each checkpointer has a communicator of its own
    run_ranks(3, [&](cairn::thread_communicator comm) {
      const int rank = comm.rank();
      training policy(rank, comm.size()), critic(rank, comm.size());
      cairn::checkpointer first{policies, std::move(comm), quiet};
      cairn::checkpointer second{critics, others.communicator(rank), quiet};
      const auto resumed = cairn::resume_together({{first, policy.state}, {second, critic.state}});
      CHECK(resumed == (again ? std::optional<std::int64_t>(3) : std::nullopt));
      CHECK(first.list().size() == (again ? 1 : 0));  // step 4, which the critic does not have, went aside
      std::int64_t step = resumed.value_or(0);
      for (bool stop = false; !stop && step < 10;) {
        ++step;
        stop = first.any_rank(rank == 2 && step >= 4);
        if (step < 3) continue;
        first.save(policy.state, step).wait();
        if (!stop || again) second.save(critic.state, step).wait();
      }
      if (step == 4) ++stopped_at_4;
    });
  }
  CHECK(stopped_at_4 == 6);
  CHECK(cairn::checkpointer{critics, quiet}.list() == std::vector<std::int64_t>{3, 4});
}

TEST_CASE(
    "a change on one rank alone is named on all ranks, long before the deadline; a change on all replans") {
  const int size = 3;
  for (int odd_one = 0; odd_one < size; ++odd_one) {
    CAPTURE(odd_one);
    cairn::memory_store store;
    run_ranks(size, [&](cairn::thread_communicator comm) {
      const int rank = comm.rank();
      training t(rank, comm.size());
      auto patient = quiet;
      patient.timeout = patient.peer_timeout = std::chrono::minutes(10);
      cairn::checkpointer ckpt{store, std::move(comm), patient};
      ckpt.save(t.state, 1).wait();
      int extra = 0;
      t.state.value("extra", extra);
      auto handle = ckpt.save(t.state, 2);  // on all ranks
      handle.wait();
      CHECK_FALSE(handle.report().plan_cached);
      int odd = 0;
      training other(rank, size);
      other.state.value("extra", extra);
      if (rank == odd_one) other.state.value("odd", odd);
      for (const bool together : {false, true}) {  // whether the others save, or are at the next call already
        try {
          auto alone = ckpt.save(other.state, together ? 4 : 3);
          if (together) CHECK(ckpt.list() == std::vector<std::int64_t>{1, 2});
          alone.wait();
          FAIL("a checkpoint without a rank was committed");
        } catch (const cairn::error& e) {
          CHECK_MESSAGE(
              (e.id() == cairn::error_id::plan_disagreement || e.id() == cairn::error_id::peer_bad_message),
              e.what());
          CHECK_MESSAGE(
              std::string(e.what()).find("has a structure that it had not before") != std::string::npos,
              e.what());
          if (!together) CHECK_MESSAGE(e.fields().rank == odd_one, e.what());
          if (together && rank == odd_one) CHECK(ckpt.list() == std::vector<std::int64_t>{1, 2});
        }
      }
      // The ranks are still in step: calls with messages work, and calls without.
      auto cached = ckpt.save(t.state, 5);
      cached.wait();
      CHECK(cached.report().plan_cached);
      int more = 0;
      t.state.value("more", more);
      ckpt.save(t.state, 6).wait();
      CHECK(ckpt.list() == std::vector<std::int64_t>{1, 2, 5, 6});
      ckpt.load(t.state, 6);
    });
    cairn::checkpointer ckpt{store, quiet};
    CHECK(ckpt.list() == std::vector<std::int64_t>{1, 2, 5, 6});
  }
}

TEST_CASE("a rank that has left is named by the save of the others, long before any deadline") {
  for (const int left : {0, 1, 2}) {
    CAPTURE(left);
    cairn::memory_store store;
    run_ranks(3, [&](cairn::thread_communicator comm) {
      const int rank = comm.rank();
      training t(rank, comm.size());
      auto patient = quiet;
      patient.timeout = std::chrono::hours(1);
      cairn::checkpointer ckpt{store, std::move(comm), patient};
      ckpt.save(t.state, 1).wait();
      if (rank == left) return;
      const auto handle = ckpt.save(t.state, 2);
      try {
        handle.wait();
        FAIL("a checkpoint without a rank was committed");
      } catch (const cairn::error& e) {
        CHECK_MESSAGE(e.id() == cairn::error_id::peer_lost, e.what());
        CHECK_MESSAGE(e.fields().rank == left, e.what());
      }
    });
    CHECK(cairn::checkpointer{store, quiet}.list() == std::vector<std::int64_t>{1});
  }
}

TEST_CASE("ranks that do not see one store are refused before a byte is written") {
  std::vector<cairn::memory_store> stores(3);
  std::atomic<int> refused{0};
  run_ranks(3, [&](cairn::thread_communicator comm) {
    const int rank = comm.rank();
    training t(rank, comm.size());
    // Rank 2 has a store of its own, as when a directory is on a local disk.
    cairn::checkpointer ckpt{stores[rank == 2 ? 1u : 0u], std::move(comm), quiet};
    try {
      ckpt.prepare(t.state);
    } catch (const cairn::storage_error& e) {
      if (e.id() == cairn::error_id::storage_not_shared && e.fields().rank == 2) ++refused;
    }
  });
  CHECK(refused == 3);
  CHECK(stores[0].list("").empty());
}

TEST_CASE("a rank without the others' store does not make them take their checkpoints for damaged") {
  cairn::memory_store shared;
  {
    training t;
    cairn::checkpointer ckpt{shared, quiet};
    ckpt.save(t.state, 5).wait();
  }
  std::atomic<int> refused{0};
  run_ranks(2, [&](cairn::thread_communicator comm) {
    const int rank = comm.rank();
    training t(rank, 2);
    cairn::checkpointer ckpt{rank == 0 ? shared : cairn::memory_store{}, std::move(comm), quiet};
    try {
      static_cast<void>(ckpt.resume(t.state));
    } catch (const cairn::storage_error& e) {
      if (e.id() == cairn::error_id::storage_not_shared && e.fields().rank == 1) ++refused;
    }
  });
  CHECK(refused == 2);
  cairn::checkpointer ckpt{shared, quiet};
  CHECK(ckpt.list() == std::vector<std::int64_t>{5});
}

TEST_CASE("a trainer that updates right after before_update saves what a synchronous one saves") {
  cairn::memory_store expected;
  {
    layers t;
    cairn::checkpointer ckpt{expected, quiet};
    train(ckpt, t, [](int) {});
  }
  cairn::memory_store store;
  layers t;
  const auto limited = [] {
    return cairn::heap_stager{{}, cairn::host_copy{{.threads = 2, .bytes_per_second = 2'000'000'000}}};
  };
  SUBCASE("before each layer") {
    cairn::checkpointer ckpt{store, cairn::overlapped{}, quiet};
    train(ckpt, t, [&](int i) { ckpt.before_update("layer" + std::to_string(i) + ".*"); });
  }
  SUBCASE("before each item, with a limit, checked") {
    cairn::checkpointer ckpt{store, cairn::overlapped{}, limited(), cairn::checked{}, quiet};
    train(ckpt, t, [&](int i) {
      const auto layer = "layer" + std::to_string(i);
      ckpt.before_update(layer + ".weight", layer + ".bias");
    });
  }
  SUBCASE("before all") {
    cairn::checkpointer ckpt{store, cairn::overlapped{}, cairn::checked{}, quiet};
    train(ckpt, t, [&](int) { ckpt.before_update(); });
  }
  SUBCASE("without staging, before each layer") {
    cairn::checkpointer ckpt{store, cairn::overlapped{}, cairn::no_staging{}, cairn::checked{}, quiet};
    train(ckpt, t, [&](int i) { ckpt.before_update("layer" + std::to_string(i) + ".*"); });
  }
  cairn::checkpointer reader{store, quiet}, other{expected, quiet};
  for (int step = 1; step <= 3; ++step) {
    layers got, wanted;
    reader.load(got.state, step);
    other.load(wanted.state, step);
    CHECK(got.equals(wanted));
  }
}

/// Threads of this process with such a name.
std::vector<std::string> threads_named(const std::string& name) {
  std::vector<std::string> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string its;
    std::ifstream file(task.path() / "comm");
    if (std::getline(file, its) && its == name) found.push_back(task.path().filename());
  }
  std::sort(found.begin(), found.end());
  return found;
}
TEST_CASE("prepare() starts the threads of saves, so that the first one need not") {
  std::vector<float> weight(1 << 20);
  cairn::state_dict state;
  state.tensor("weight", weight, {1 << 20});
  cairn::checkpointer ckpt{cairn::memory_store{}, cairn::overlapped{},
                           cairn::heap_stager{{}, cairn::host_copy{{.threads = 3}}}, quiet};
  ckpt.prepare(state);
  const auto until = cairn::deadline::in(std::chrono::seconds(30));
  while (threads_named("cairn copy").size() < 3 || threads_named("cairn save").empty()) {
    REQUIRE_FALSE(until.passed());
    std::this_thread::yield();
  }
  const auto copy = threads_named("cairn copy"), save = threads_named("cairn save");
  const auto saved = ckpt.save(state, 1);
  ckpt.before_update();
  saved.wait();
  CHECK(threads_named("cairn copy") == copy);
  CHECK(threads_named("cairn save") == save);
}
#if !CAIRN_TEST_ADDRESS_SANITIZED && !CAIRN_TEST_THREAD_SANITIZED
TEST_CASE("a thread that copies does not take the only processor from save()") {
  ::cpu_set_t before;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  ::cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(::sched_getcpu(), &one);
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);  // threads that it starts inherit it
  const auto preemptions = [] {
    ::rusage use{};
    REQUIRE(::getrusage(RUSAGE_THREAD, &use) == 0);
    return use.ru_nivcsw;
  };
  constexpr int saves = 40;
  int preempted = 0;
  {
    std::vector<std::vector<float>> tensors(8, std::vector<float>(1 << 20));
    cairn::state_dict state;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      state.tensor("weight" + std::to_string(i), tensors[i], {1 << 20});
    cairn::checkpointer ckpt{cairn::memory_store{}, cairn::overlapped{}, cairn::keep_last{1}, quiet};
    ckpt.prepare(state);
    for (int step = 1; step <= saves; ++step) {
      for (int i = 0; i < 10; ++i) std::this_thread::yield();  // to what is left of the save before
      // Whoever has computed for longer than its slice is set aside whenever the system looks.
      for (const auto begin = std::chrono::steady_clock::now();
           std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(6);) {
      }
      const auto until_here = preemptions();
      const auto save = ckpt.save(state, step);
      preempted += preemptions() != until_here;
      ckpt.before_update();
      save.wait();
    }
  }
  REQUIRE(::sched_setaffinity(0, sizeof before, &before) == 0);
  // Ticks of the system and other processes may do it, too; a copy thread would every time.
  CHECK(preempted < saves / 2);
}
#endif
TEST_CASE("before_update of an item waits for that item; a save is confirmed when all were waited for") {
  cairn::memory_store store;
  layers t;
  const auto clock = std::make_shared<stopped_clock>();
  cairn::checkpointer ckpt{store, cairn::overlapped{}, stopping_stager(clock), quiet};
  ckpt.before_update("anything");  // nothing is known yet, and nothing to wait for
  ckpt.prepare(t.state);
  const auto refused = [&](std::string_view name) {
    try {
      ckpt.before_update(name);
      return false;
    } catch (const cairn::usage_error& e) {
      return e.id() == cairn::error_id::usage_unknown_name && e.fields().item == name;
    }
  };
  CHECK(refused("layer1"));
  CHECK(refused("layers*"));
  auto first = ckpt.save(t.state, 1);
  CHECK(refused("layer9.weight"));
  ckpt.before_update("layer0.bias");  // copied by save()
  CHECK_FALSE(first.released());
  ckpt.before_update("layer7.*");  // the last one: nobody waits for those before it
  CHECK_FALSE(first.released());
  for (int i = 0; i < layers::count; ++i) {
    if (i == 5) continue;
    ckpt.before_update("layer" + std::to_string(i) + ".weight");
    t.update(i);
  }
  auto second = ckpt.save(t.state, 2);
  REQUIRE(first.failed());
  CHECK(id_of(first.failure()) == cairn::error_id::usage_before_update_missing);
  CHECK(fields_of(first.failure()).item == "layer5.weight");
  ckpt.before_update("layer*");
  CHECK(second.released());
  auto third = ckpt.save(t.state, 3);  // finds the second one confirmed
  CHECK(second.committed());
  ckpt.before_update("*");
  auto fourth = ckpt.save(t.state, 4);
  CHECK(third.committed());
  cairn::any_checkpointer any = std::move(ckpt);
  any.before_update("layer0.weight");
  any.close();
  CHECK(fourth.committed());
}

TEST_CASE("small tensors are copied by save(), but of many of them the smallest only") {
  cairn::memory_store store;
  auto options = quiet;
  struct memory {
    struct group {
      std::string name;
      std::vector<std::vector<float>> tensors;
      void fill(float with) {
        for (auto& t : tensors) std::fill(t.begin(), t.end(), with);
      }
    };
    // By falling size: 240,000, 40,000 and 16,000 bytes.
    std::vector<group> groups{{"big", std::vector(4, std::vector<float>(15'000))},
                              {"medium", std::vector(4, std::vector<float>(2'500))},
                              {"bias", std::vector(4, std::vector<float>(1'000))}};
    group always{"always", std::vector(2, std::vector<float>(15'000))};
    double rate = 0;
    cairn::state_dict state;
    memory() {
      for (auto& g : groups)
        for (std::size_t i = 0; i < g.tensors.size(); ++i)
          state.tensor(g.name + std::to_string(i), g.tensors[i], {g.tensors[i].size()});
      state.tensor("running", always.tensors[0], {15'000}, cairn::copy_now);
      state.tensor("generator", always.tensors[1], {15'000}, cairn::per_rank);
      state.value("rate", rate);
    }
    void fill(float with) {
      for (auto& g : groups) g.fill(with);
      always.fill(with);
      rate = with;
    }
    [[nodiscard]] bool is(float value) const {
      const auto all = [&](const group& g) {
        return std::all_of(g.tensors.begin(), g.tensors.end(), [&](const auto& t) {
          return std::all_of(t.begin(), t.end(), [&](float f) { return f == value; });
        });
      };
      return std::all_of(groups.begin(), groups.end(), all) && all(always) && rate == value;
    }
  };
  SUBCASE("what is beyond the bound is waited for like large tensors") {
    memory t, loaded;
    const std::array<std::uint64_t, 4> bounds{296'000, 56'000, 16'000, 15'999};
    std::int64_t step = 0;
    for (std::size_t late = 0; late < bounds.size(); ++late) {  // so many of the groups
      CAPTURE(late);
      options.small_tensor_bytes = bounds[late];
      cairn::checkpointer ckpt{store, cairn::overlapped{}, options};
      t.fill(1);
      auto first = ckpt.save(t.state, ++step);
      ckpt.before_update("running", "generator");
      for (std::size_t g = 0; g + 1 < late; ++g) ckpt.before_update(t.groups[g].name + "*");
      auto second = ckpt.save(t.state, ++step);  // was all of the first one waited for?
      CHECK(first.committed() == (late == 0));
      if (late != 0) {
        REQUIRE(first.failed());
        CHECK(id_of(first.failure()) == cairn::error_id::usage_before_update_missing);
        if (late != 1) CHECK(fields_of(first.failure()).item == t.groups[late - 1].name + "0");
      }
      for (auto g = late; g < t.groups.size(); ++g) t.groups[g].fill(2);
      t.always.fill(2);
      t.rate = 2;
      ckpt.before_update("running");
      for (std::size_t g = 0; g < late; ++g) {
        ckpt.before_update(t.groups[g].name + "*");
        t.groups[g].fill(2);
      }
      auto third = ckpt.save(t.state, ++step);
      CHECK(second.committed());
      ckpt.before_update();
      third.wait();
      loaded.fill(0);
      ckpt.load(loaded.state, step - 1);
      CHECK(loaded.is(1));
      ckpt.load(loaded.state, step);
      CHECK(loaded.is(2));
    }
  }
  SUBCASE("what is beyond the bound is not copied by save()") {
    for (const bool bounded : {false, true}) {
      std::vector<std::vector<float>> many(50, std::vector<float>(15'000, 1.0f));  // 3 MB
      cairn::state_dict state;
      for (std::size_t i = 0; i < many.size(); ++i) state.tensor(std::to_string(i), many[i], {15'000});
      options.small_tensor_bytes = bounded ? 2'999'999 : 3'000'000;
      cairn::checkpointer ckpt{store, cairn::overlapped{}, stopping_stager(std::make_shared<stopped_clock>()),
                               options};
      ckpt.save(state, bounded);
      many.back()[0] = 2.0f;  // not allowed, but it tells what was not copied: all but the first MiB
      ckpt.before_update();
      many.back()[0] = 0.0f;
      ckpt.close();
      ckpt = cairn::checkpointer{store, cairn::overlapped{}, cairn::heap_stager{}, quiet};
      ckpt.load(state, bounded);
      CHECK(many.back()[0] == (bounded ? 2.0f : 1.0f));
    }
  }
}

TEST_CASE("a limit of copying holds while training goes on, and ends where training waits") {
  cairn::memory_store store;
  layers t;
  SUBCASE("what was copied took the time that the limit says") {
    const auto clock = std::make_shared<counting_clock>();
    cairn::heap_stager stager{
        {}, cairn::host_copy{{.threads = 2, .bytes_per_second = 1'000'000, .clock = clock}}};
    cairn::checkpointer ckpt{store, cairn::overlapped{}, std::move(stager), quiet};
    auto handle = ckpt.save(t.state, 1);
    while (!handle.released()) std::this_thread::yield();
    // 3.2 MB, less the last unit of at most 1 MiB, which nobody waits for.
    CHECK(clock->seconds() > 2.0);
    CHECK(clock->seconds() < 3.3);
    ckpt.close();
  }
  SUBCASE("without overlap nothing is held up") {
    const auto clock = std::make_shared<stopped_clock>();
    cairn::checkpointer ckpt{store, stopping_stager(clock), quiet};
    ckpt.save(t.state, 1).wait();
    CHECK(clock->waits == 0);
  }
  SUBCASE("before_update, wait and close lift it, each for its save") {
    const auto clock = std::make_shared<stopped_clock>();
    cairn::checkpointer ckpt{store, cairn::overlapped{}, stopping_stager(clock), quiet};
    auto first = ckpt.save(t.state, 1);
    CHECK_FALSE(first.released());
    ckpt.before_update();
    CHECK(first.released());
    auto second = ckpt.save(t.state, 2);
    CHECK_FALSE(second.released());
    second.wait();
    auto third = ckpt.save(t.state, 3);
    CHECK_FALSE(third.released());
    ckpt.close();
    CHECK(third.committed());
  }
}

TEST_CASE("a limit of writing holds for each thread_executor") {
  cairn::memory_store store;
  layers t;
  SUBCASE("for staged images it is not lifted while training goes on") {
    const auto clock = std::make_shared<counting_clock>();
    cairn::thread_executor executor{{.thread = {.nice = 1}, .bytes_per_second = 500'000, .clock = clock}};
    cairn::checkpointer ckpt{store, std::move(executor), quiet};
    ckpt.save(t.state, 1).wait();
    CHECK(clock->seconds() > 4.0);  // 3.2 MB less 1 MiB
    CHECK(clock->seconds() < 6.6);
    layers got;
    got.update(3);
    ckpt.load(got.state, 1);
    CHECK(got.equals(t));
  }
  SUBCASE("when training has ended, nobody waits for it") {
    const auto clock = std::make_shared<stopped_clock>();
    const auto executor = [&] { return cairn::thread_executor{{.bytes_per_second = 1, .clock = clock}}; };
    {
      cairn::checkpointer ckpt{store, executor(), quiet};
      static_cast<void>(ckpt.save(t.state, 1));
      ckpt.close();
    }
    {
      cairn::checkpointer ckpt{store, executor(), quiet};
      static_cast<void>(ckpt.save(t.state, 2));
    }
    CHECK(cairn::checkpointer{store, quiet}.list() == std::vector<std::int64_t>{1, 2});
  }
  SUBCASE("where nothing is staged, training does not wait for it") {
    const auto clock = std::make_shared<stopped_clock>();
    const auto executor = [&] { return cairn::thread_executor{{.bytes_per_second = 1, .clock = clock}}; };
    {
      cairn::checkpointer ckpt{store, executor(), cairn::no_staging{}, quiet};
      ckpt.save(t.state, 1).wait();
    }
    cairn::checkpointer ckpt{store, executor(), cairn::no_staging{}, cairn::overlapped{}, quiet};
    auto handle = ckpt.save(t.state, 2);
    CHECK_FALSE(handle.released());
    ckpt.before_update();
    handle.wait();
  }
  SUBCASE("a save that cannot be written within its timeout fails by the deadline") {
    auto impatient = quiet;
    impatient.timeout = std::chrono::seconds(8);  // which copying has to keep, too
    cairn::checkpointer ckpt{store, cairn::thread_executor{{.bytes_per_second = 1}}, impatient};
    auto handle = ckpt.save(t.state, 1);
    CHECK_THROWS_AS(handle.wait(), cairn::timeout_error);
    CHECK(id_of(handle.failure()) == cairn::error_id::timeout_write);
  }
}

TEST_CASE("checked finds memory that changed before it was copied, names it, and publishes nothing") {
  cairn::memory_store store;
  layers t, before;
  const auto at_stage = std::make_shared<std::function<void()>>();
  const auto at_submit = std::make_shared<std::function<void()>>();
  const auto change_small = [&] {
    t.rate = -1;
    t.loader = "elsewhere";
    t.generator[1] = 0;
    t.biases[3][3] = -1;
  };
  const auto change_layer = [&] { t.weights[6][90'000] += 1; };
  const auto must_fail = [&](const cairn::save_handle& handle, const std::string& item) {
    REQUIRE(handle.failed());
    CHECK(id_of(handle.failure()) == cairn::error_id::usage_memory_changed);
    CHECK(fields_of(handle.failure()).item == item);
    CHECK(fields_of(handle.failure()).offset == 0);
  };
  const auto ended = [](const cairn::save_handle& handle) {
    try {
      handle.wait();
    } catch (const cairn::error&) {
    }
    return handle;
  };
  const auto try_all = [&](auto& ckpt, bool buffered, bool overlapped) {
    *at_stage = change_layer;
    auto handle = ckpt.save(t.state, 1);
    ckpt.before_update();
    must_fail(ended(handle), "layer6.weight");
    *at_stage = [&] { t.loader[0] = 'P'; };
    handle = ckpt.save(t.state, 2);
    ckpt.before_update();
    must_fail(ended(handle), "loader");
    *at_stage = nullptr;

    // Memory that save() has copied may change at once; the saved values are the old ones.
    t.loader = before.loader;
    t.weights[6] = before.weights[6];
    *at_submit = change_small;
    handle = ckpt.save(t.state, 3);
    ckpt.before_update();
    handle.wait();
    layers got;
    ckpt.load(got.state, 3);
    CHECK(got.equals(before));

    if (overlapped && buffered) return;  // copied by other threads meanwhile; see below
    *at_submit = change_layer;
    handle = ckpt.save(t.state, 4);
    ckpt.before_update();
    ended(handle);
    CHECK(handle.committed() == buffered);
    if (buffered) return;
    must_fail(handle, "layer6.weight");
    CHECK(ckpt.list() == std::vector<std::int64_t>{3});
  };
  for (const bool buffered : {true, false}) {
    CAPTURE(buffered);
    for (const bool in_caller : {true, false}) {
      CAPTURE(in_caller);
      t.weights = before.weights, t.biases = before.biases, t.rate = before.rate;
      t.loader = before.loader, t.generator = before.generator;
      *at_submit = nullptr;
      cairn::memory_store own;
      cairn::checkpointer ckpt{own, meddling_stager{buffered, at_stage},
                               meddling_executor{in_caller, at_submit}, cairn::checked{}, quiet};
      try_all(ckpt, buffered, false);
    }
    t.weights = before.weights, t.biases = before.biases, t.rate = before.rate;
    t.loader = before.loader, t.generator = before.generator;
    *at_submit = nullptr;
    cairn::memory_store own;
    cairn::checkpointer ckpt{own,
                             meddling_stager{buffered, at_stage},
                             meddling_executor{false, at_submit},
                             cairn::overlapped{},
                             cairn::checked{},
                             quiet};
    try_all(ckpt, buffered, true);
  }
}

TEST_CASE(
    "the writer digests where training waits for the copy alone, unless options or checked say otherwise") {
  const auto digests_in_copy = [](const char* told, std::optional<bool> option, auto... policies) {
    auto options = quiet;
    options.checksum_in_writer = option;
    const auto asked = std::make_shared<std::optional<bool>>();
    cairn::checkpointer ckpt{cairn::memory_store{}, asked_stager(asked), options, std::move(policies)...};
    CAPTURE(ckpt.describe());
    CHECK(ckpt.describe().find(told) != std::string::npos);
    layers t;
    std::vector<double> table(500'000, 0.5);
    t.state.tensor("table", table, {500'000});
    auto handle = ckpt.save(t.state, 1);
    ckpt.before_update();
    handle.wait();
    table.assign(table.size(), 0.0);
    ckpt.load(t.state, 1);  // compares with the digests
    CHECK(table == std::vector<double>(500'000, 0.5));
    return asked->value();
  };
  CHECK_FALSE(digests_in_copy("digests by the writer (chosen)", {}));
  CHECK(digests_in_copy("overlapped with training; digests in the pass that copies (chosen)", {},
                        cairn::overlapped{}));
  CHECK(digests_in_copy("digests in the pass that copies (chosen)", {}, cairn::inline_executor{}));
  CHECK(digests_in_copy("digests in the pass that copies (chosen)", {}, cairn::checked{}));
  CHECK(digests_in_copy("digests in the pass that copies (as asked for)", false));
  CHECK_FALSE(digests_in_copy("digests by the writer (as asked for)", true, cairn::overlapped{}));
  CHECK_FALSE(digests_in_copy("digests by the writer (as asked for)", true, cairn::inline_executor{}));
  CHECK(digests_in_copy("digests in the pass that copies (checked{} needs them there)", true,
                        cairn::checked{}));
}

TEST_CASE("checked finds what changed directly after an overlapped save") {
  cairn::memory_store store;
  layers t;
  const layers before;
  auto lasting = quiet;
  lasting.checksum_in_writer = true;  // no digests to compare with: the stager makes them all the same
  lasting.max_consecutive_failures = 0;
  const auto clock = std::make_shared<stopped_clock>();
  cairn::checkpointer ckpt{store, cairn::overlapped{}, stopping_stager(clock), cairn::checked{}, lasting};
  std::vector<double> table(500'000, 0.5);  // 4 MB, first in the file
  t.state.tensor("table", table, {500'000});
  SUBCASE("values, bytes, per-rank and small items may") {
    auto handle = ckpt.save(t.state, 1);
    t.rate = -1;
    t.loader = "elsewhere";
    t.generator[1] = 0;
    t.biases[3][3] = -1;
    handle.wait();
    ckpt.load(t.state, 1);
    CHECK(t.equals(before));
  }
  SUBCASE("tensors may not, and the block is named") {
    for (const bool by_handle : {false, true}) {
      auto handle = ckpt.save(t.state, 1);
      table[300'000] = 7;
      if (by_handle)
        CHECK_THROWS_AS(handle.wait(), cairn::usage_error);
      else
        ckpt.before_update();
      REQUIRE(handle.failed());
      CHECK(id_of(handle.failure()) == cairn::error_id::usage_memory_changed);
      CHECK(fields_of(handle.failure()).item == "table");
      CHECK(fields_of(handle.failure()).offset == 2 << 20);
      table[300'000] = 0.5;
    }
    ckpt.save(t.state, 2).wait();
    CHECK(ckpt.list() == std::vector<std::int64_t>{2});
  }
  SUBCASE("without it, the change is in the checkpoint") {
    cairn::checkpointer trusting{store, cairn::overlapped{}, stopping_stager(clock), cairn::checked{false},
                                 lasting};
    auto handle = trusting.save(t.state, 1);
    table[300'000] = 7;
    handle.wait();
    table[300'000] = 0;
    trusting.load(t.state, 1);
    CHECK(table[300'000] == 7);
  }
}

TEST_CASE("what is said about a save stands in its manifest alone, and rank 0 says it") {
  const cairn::memory_store store;
  run_ranks(2, [&](cairn::thread_communicator comm) {
    const int rank = comm.rank();
    cairn::checkpointer ckpt{store, std::move(comm), cairn::checkpointer_options{.quiet = true}};
    double value = 1;
    cairn::state_dict state;
    state.value("value", value);
    ckpt.annotate({{"by", rank}, {"loss", 3.5}});
    ckpt.annotate({{"loss", 2.25}});
    ckpt.save(state, 1).wait();
    ckpt.save(state, 2).wait();  // of which nothing was said
    ckpt.annotate({{"lost", true}});
    CHECK_THROWS_AS((void)ckpt.save(state, -1), cairn::usage_error);
    ckpt.annotate({{"commit", "abc"}});
    ckpt.save(state, 3).wait();
    CHECK(ckpt.annotations(1) == cairn::annotations{{"by", 0}, {"loss", 2.25}});
    CHECK(ckpt.annotations(2).empty());
    CHECK(ckpt.annotations(3) == cairn::annotations{{"commit", "abc"}});
    CHECK_THROWS_AS((void)ckpt.annotations(4), cairn::storage_error);
    ckpt.close();
    CHECK_THROWS_AS(ckpt.annotate({{"late", 1}}), cairn::usage_error);
  });
}
