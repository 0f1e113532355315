// SPDX-License-Identifier: Apache-2.0
// group: checkpoints
// threaded
#include <doctest/doctest.h>
#include <cairn/cairn.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <support/faulty_store.hpp>
#include <vector>

// What keep_last(n) removes, and what it never does.

namespace {

const cairn::checkpointer_options quiet{
    .patience = std::chrono::seconds(60), .peer_patience = std::chrono::seconds(60), .quiet = true};

/// A state whose values tell its step.
struct small_state {
  explicit small_state(std::int64_t step = 0) {
    fill(step);
    state.tensor("weights", weights, {64});
    state.value("step", at);
  }
  void fill(std::int64_t step) {
    at = step;
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] = static_cast<double>(step) + 0.001 * static_cast<double>(i);
  }
  [[nodiscard]] bool is(std::int64_t step) const {
    return small_state(step).weights == weights && at == step;
  }
  std::vector<double> weights = std::vector<double>(64);
  std::int64_t at = 0;
  cairn::state_dict state;
};

using steps = std::vector<std::int64_t>;
/// Collects warnings.
struct warning_ear {
  using cairn_role = cairn::role::observer;
  void observe(const cairn::observation& o) noexcept {
    if (o.kind == cairn::observation::what::warning) told->emplace_back(o.text);
  }
  std::vector<std::string>* told;
};

}  // namespace

TEST_CASE("keep_last counts the branch that the run is on, and keeps what it was rolled back to") {
  cairn::memory_store store;
  small_state t;
  {
    cairn::checkpointer ckpt{store, quiet};
    for (const int step : {50, 100, 200, 300}) ckpt.save(t.state, step).wait();
  }
  std::vector<std::string> told;
  {
    cairn::checkpointer ckpt{store, cairn::keep_last(2), warning_ear{&told}, quiet};
    ckpt.load(t.state, 100);
    ckpt.save(t.state, 150).wait();
    CHECK(ckpt.list() == steps{100, 150, 200, 300});
    REQUIRE(told.size() == 1);
    CHECK(told[0].find("leaves 2 checkpoints alone") != std::string::npos);
    CHECK(told[0].find("step 200") != std::string::npos);
    // Beyond the numbers of the branch that was left: they neither count nor go.
    ckpt.save(t.state, 250).wait();
    ckpt.save(t.state, 350).wait();
    CHECK(ckpt.list() == steps{100, 200, 250, 300, 350});
    // Back again within the run: what it has just been told as committed stays.
    ckpt.load(t.state, 250);
    ckpt.save(t.state, 260).wait();
    CHECK(ckpt.list() == steps{250, 260, 300, 350});
    ckpt.save(t.state, 270).wait();
    ckpt.save(t.state, 280).wait();
    CHECK(ckpt.list() == steps{250, 270, 280, 300, 350});
  }
  // The next run goes on from the largest number, and all below it is its past.
  cairn::checkpointer next{store, cairn::keep_last(2), quiet};
  CHECK(next.resume(t.state) == 350);
  next.save(t.state, 400).wait();
  CHECK(next.list() == steps{350, 400});
  next.save(t.state, 500).wait();
  next.save(t.state, 600).wait();
  CHECK(next.list() == steps{350, 500, 600});
}

TEST_CASE("keep_last does not count a checkpoint that cannot be read, and keeps the one that loaded") {
  const auto faults = std::make_shared<cairn_test::store_faults>();
  const cairn::memory_store memory;
  small_state t;
  {
    cairn::checkpointer ckpt{memory, quiet};
    for (const int step : {100, 200, 300}) ckpt.save(t.state, step).wait();
  }
  {
    faults->add({.kind = cairn_test::store_call::read,
                 .for_ever = true,
                 .key_contains = "step-00000300",
                 .action = [](std::string_view key) {
                   cairn::fail(cairn::error_id::storage_io, "an injected fault", {.file = std::string(key)});
                 }});
    cairn::checkpointer ckpt{cairn::safetensors_storage{cairn_test::faulty_store{memory, faults}},
                             cairn::keep_last(1), quiet};
    CHECK(ckpt.resume(t.state) == 200);
    ckpt.save(t.state, 250).wait();
    CHECK(ckpt.list() == steps{200, 250, 300});
    ckpt.save(t.state, 350).wait();
    CHECK(ckpt.list() == steps{200, 300, 350});
  }
  cairn::checkpointer next{memory, quiet};
  CHECK(next.resume(t.state) == 350);
}

TEST_CASE("of two runs in one directory, neither removes what the other has committed") {
  cairn::memory_store store;
  small_state t;
  cairn::checkpointer ahead{store, cairn::keep_last(1), quiet};
  cairn::checkpointer behind{store, cairn::keep_last(1), quiet};
  for (int i = 1; i <= 3; ++i) {
    ahead.save(t.state, 9000 + i).wait();
    behind.save(t.state, 10 + i).wait();
    CHECK(ahead.list() == steps{10 + i, 9000 + i});
  }
}

TEST_CASE("keep_last(0) is refused") {
  try {
    cairn::checkpointer ckpt{cairn::memory_store{}, cairn::keep_last(0), quiet};
    FAIL("accepted");
  } catch (const cairn::usage_error& e) {
    CHECK(e.id() == cairn::error_id::usage_bad_option);
    CHECK(std::string(e.what()).find("leave keep_last out") != std::string::npos);
  }
}
