// SPDX-License-Identifier: Apache-2.0
// group: checkpoints
// What users do wrong, and must be told of: nothing that is committed may be something else than its step.
#include <doctest/doctest.h>
#include <cairn/cairn.hpp>
#include <cairn/model/image_control.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/storage/commit/commit_parts.hpp>
#include <cairn/storage/commit/restart_notes.hpp>
#include <cairn/storage/manifest/names.hpp>

#include "support/faulty_store.hpp"
#include "support/scratch_directory.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

/// What a checkpointer told, in order.
struct listener {
  using cairn_role = cairn::role::observer;
  struct line {
    cairn::observation::event kind;
    std::int64_t step;
    std::string text;
  };
  void observe(const cairn::observation& o) noexcept {
    const std::lock_guard lock(*mutex);
    lines->push_back({o.kind, o.step, std::string(o.text)});
  }
  [[nodiscard]] std::vector<std::string> warnings() const {
    const std::lock_guard lock(*mutex);
    std::vector<std::string> found;
    for (const auto& l : *lines)
      if (l.kind == cairn::observation::event::warning) found.push_back(l.text);
    return found;
  }
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
  std::shared_ptr<std::vector<line>> lines = std::make_shared<std::vector<line>>();
};

cairn::checkpointer_options quiet() {
  return {.timeout = std::chrono::seconds(60), .peer_timeout = std::chrono::seconds(60), .quiet = true};
}
[[nodiscard]] bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
/// What `call` throws; fails the test where it throws nothing.
template <class Call>
std::optional<cairn::error> thrown_by(Call&& call) {
  try {
    call();
  } catch (const cairn::error& e) {
    return e;
  }
  FAIL_CHECK("nothing was thrown");
  return std::nullopt;
}

/// Gives away when all is copied, of which no handle has told.
struct watched_stager {
  using cairn_role = cairn::role::stager;
  std::shared_ptr<cairn::image_control>* control = nullptr;
  cairn::heap_stager heap = {};
  cairn::staged_image stage(std::shared_ptr<const cairn::image_layout> layout,
                            const cairn::source_table& sources, cairn::stage_options options,
                            cairn::deadline until) {
    auto image = heap.stage(std::move(layout), sources, options, until);
    *control = image.control();
    return image;
  }
  void prepare(const cairn::image_layout&, cairn::deadline) {}
  [[nodiscard]] int depth() const { return 1; }
};

/// Two large tensors and what is copied at once.
struct model {
  model() {
    state.tensor("wte", wte, {400'000});
    state.tensor("head.weight", head, {300'000});
    state.tensor("bias", bias, {16});
    state.value("rate", rate);
  }
  std::vector<float> wte = std::vector<float>(400'000, 1.0f);
  std::vector<float> head = std::vector<float>(300'000, 2.0f);
  std::vector<float> bias = std::vector<float>(16, 3.0f);
  double rate = 0.5;
  cairn::state_dict state;
};

/// Each way to end with an overlapped save of which training has told nothing.
template <class Make>
void last_saves(const Make& make, const std::function<std::vector<std::int64_t>()>& list) {
  model m;
  const auto refused = [&](auto&& end, const char* item) {
    const auto e = thrown_by(end);
    if (!e) return;
    CHECK(e->id() == cairn::error_id::usage_before_update_missing);
    CHECK(e->fields().item == item);
    CHECK(has(e->what(), "cairn::checked{}"));
  };
  const auto update = [](std::vector<float>& w) {
    for (auto& x : w) x += 1;
  };
  {  // unchanged: as ever
    auto ckpt = make();
    auto handle = ckpt.save(m.state, 1);
    m.rate = 7;  // was copied at once
    m.bias[3] = 7;
    ckpt.close();
    CHECK(handle.committed());
  }
  {  // changed, and nobody waited
    auto ckpt = make();
    auto handle = ckpt.save(m.state, 2);
    update(m.wte);
    refused([&] { ckpt.close(); }, "wte");
    CHECK_FALSE(handle.committed());
  }
  {  // waited: training confirms
    auto ckpt = make();
    auto handle = ckpt.save(m.state, 3);
    ckpt.before_update();
    update(m.wte);
    ckpt.close();
    CHECK(handle.committed());
  }
  {  // waited for one of them, and changed that
    auto ckpt = make();
    auto handle = ckpt.save(m.state, 4);
    ckpt.before_update("wte");
    update(m.wte);
    ckpt.close();
    CHECK(handle.committed());
  }
  {  // waited for one of them, and changed the other
    auto ckpt = make();
    auto handle = ckpt.save(m.state, 5);
    ckpt.before_update("wte");
    update(m.wte);
    update(m.head);
    refused([&] { ckpt.close(); }, "head.weight");
    CHECK_FALSE(handle.committed());
  }
  {  // changed, and only another step was removed meanwhile
    auto ckpt = make();
    auto handle = ckpt.save(m.state, 20);
    ckpt.remove(999);
    update(m.wte);
    refused([&] { ckpt.close(); }, "wte");
    CHECK_FALSE(handle.committed());
  }
  {  // told by the handle that it may
    auto ckpt = make();
    auto handle = ckpt.save(m.state, 6);
    handle.wait_released();
    update(m.head);
    ckpt.close();
    CHECK(handle.committed());
  }
  {  // waited until it was written
    auto ckpt = make();
    auto handle = ckpt.save(m.state, 9);
    handle.wait_written();
    update(m.wte);
    ckpt.close();
    CHECK(handle.committed());
  }
  {  // a load changes the memory, too
    auto ckpt = make();
    auto handle = ckpt.save(m.state, 7);
    update(m.head);
    ckpt.load(m.state, 6);
    REQUIRE(handle.failed());
    refused([&] { std::rethrow_exception(handle.failure()); }, "head.weight");
    handle = ckpt.save(m.state, 8);
    ckpt.load(m.state, 6);
    ckpt.close();
    CHECK(handle.committed());
  }
  CHECK(list() == std::vector<std::int64_t>{1, 3, 4, 6, 8, 9});
}

}  // namespace

TEST_CASE("a last save whose memory changed without before_update is never committed") {
  cairn::memory_store store;
  const auto list = [&] { return cairn::checkpointer{store, listener(), quiet()}.list(); };
  SUBCASE("copied and digested by threads") {
    last_saves([&] { return cairn::checkpointer{store, cairn::overlapped{}, listener(), quiet()}; }, list);
  }
  SUBCASE("digested by the writer") {
    auto options = quiet();
    options.checksum_in_writer = true;
    last_saves([&] { return cairn::checkpointer{store, cairn::overlapped{}, listener(), options}; }, list);
  }
  SUBCASE("written from training memory") {
    last_saves(
        [&] {
          return cairn::checkpointer{store, cairn::overlapped{}, cairn::no_staging{}, quiet()};
        },
        list);
  }
}

TEST_CASE("one element that changed after it was copied fails a last save, which names its block") {
  cairn::memory_store store;
  model m;
  std::shared_ptr<cairn::image_control> control;
  cairn::checkpointer ckpt{store, cairn::overlapped{}, watched_stager{&control}, quiet()};
  const auto handle = ckpt.save(m.state, 1);
  REQUIRE(control->wait_copied(cairn::deadline::in(std::chrono::seconds(60))));
  m.wte[399'999] += 1;
  const auto e = thrown_by([&] { ckpt.close(); });
  REQUIRE(e.has_value());
  CHECK(e->fields().item == "wte");
  CHECK(e->fields().offset == 1 << 20);
  CHECK_FALSE(handle.committed());
}

TEST_CASE("memory that is gone when a checkpointer is closed fails the save and not the process") {
  cairn::memory_store store;
  constexpr std::size_t bytes = std::size_t{8} << 20;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  cairn::state_dict state;
  state.tensor("mapped", static_cast<float*>(memory), {bytes / sizeof(float)});
  std::shared_ptr<cairn::image_control> control;
  cairn::checkpointer ckpt{store, cairn::overlapped{}, watched_stager{&control}, quiet()};
  const auto handle = ckpt.save(state, 1);
  REQUIRE(control->wait_copied(cairn::deadline::in(std::chrono::seconds(60))));
  REQUIRE(::munmap(memory, bytes) == 0);
  const auto e = thrown_by([&] { ckpt.close(); });
  REQUIRE(e.has_value());
  CHECK(e->id() == cairn::error_id::usage_before_update_missing);
  CHECK(e->fields().item == "mapped");
  CHECK_FALSE(handle.committed());
}

TEST_CASE("a warning about one item is in the singular, about two in the plural") {
  cairn::memory_store store;
  model m;
  cairn::checkpointer ckpt{store, listener(), quiet()};
  ckpt.save(m.state, 1).wait();
  double decay = 0;
  double warmup = 0;
  m.state.value("decay", decay);
  CHECK(
      has(thrown_by([&] { ckpt.load(m.state, 1); })->what(), "1 item of the state is not in the checkpoint"));
  m.state.value("warmup", warmup);
  CHECK(has(thrown_by([&] { ckpt.load(m.state, 1); })->what(),
            "2 items of the state are not in the checkpoint"));
  cairn::save_context world{.step = 7, .world_size = 4};
  const auto missing = [&](const std::vector<std::int32_t>& ranks) {
    return std::string(thrown_by([&] { cairn::detail::fail_missing(world, ranks); })->what());
  };
  CHECK(has(missing({1}),
            "rank 1 did not report that its part is written by the deadline; look for its errors"));
  CHECK(has(missing({1, 2}), "ranks 1, 2 did not report that their part is written"));
  // What retention leaves alone.
  for (const int others : {1, 2}) {
    cairn::memory_store both;
    listener told;
    cairn::checkpointer another{both, quiet()};
    for (int step = 1; step <= others; ++step) another.save(m.state, step).wait();
    cairn::checkpointer retaining{both, cairn::keep_last(1), told, quiet()};
    retaining.save(m.state, 9).wait();
    const std::string text =
        others == 1
            ? "retention leaves 1 checkpoint alone that is not of this run, step 1: it has neither "
              "committed it nor resumed from one at or after it; remove(1) removes it"
            : "retention leaves 2 checkpoints alone that are not of this run, the first of step 1: it "
              "has neither committed them nor resumed from one at or after them; remove(step) "
              "removes one";
    CHECK(told.warnings() == std::vector<std::string>{text});
  }
}

TEST_CASE("a pattern that matches nothing is an error that names it and similar names") {
  cairn::memory_store store;
  model m;
  cairn::checkpointer ckpt{store, listener(), quiet()};
  ckpt.save(m.state, 1).wait();
  const auto refused = [&](const char* pattern, const char* text, auto... options) {
    CAPTURE(pattern);
    const auto e = thrown_by([&] { ckpt.load(m.state, 1, cairn::only{"wte", pattern}, options...); });
    if (!e) return;
    CHECK(e->id() == cairn::error_id::usage_unknown_name);
    CHECK(e->fields().item == pattern);
    CHECK(has(e->what(), text));
  };
  refused("haed.weight", "near it: head.weight");
  refused("haed.*", "near it: head.weight");
  refused("model.bias", "near it: bias");
  refused("optimizer.*", "of the checkpoint (");  // nothing is near
  refused("weight", "near it: head.weight", cairn::partial);
  refused("", "cairn::only");
  CHECK(ckpt.load(m.state, 1, cairn::only{"wte", "he?d.*"}).unmatched.empty());
  // What only one of the two has is no slip.
  cairn::state_dict other;
  other.tensor("wte", m.wte, {400'000});
  CHECK(ckpt.load(other, 1, cairn::only{"wte", "head.*"}, cairn::partial).unexpected.size() == 1);
  double decay = 0;
  other.value("decay", decay);
  CHECK(ckpt.load(other, 1, cairn::only{"decay"}, cairn::partial).missing.size() == 1);

  auto overlapped = cairn::checkpointer{store, cairn::overlapped{}, listener(), quiet()};
  overlapped.prepare(m.state);
  const auto e = thrown_by([&] { overlapped.before_update("head.wieght"); });
  REQUIRE(e.has_value());
  CHECK(has(e->what(), "near it: head.weight"));
}

TEST_CASE("a pattern that matches on no rank is an error on all ranks") {
  cairn::memory_store store;
  cairn::thread_group group{2};
  const auto rank = [&](int r) {
    std::vector<float> w(100, 1.0f);
    cairn::state_dict state;
    state.tensor("stage" + std::to_string(r) + ".w", w, {100});
    cairn::checkpointer ckpt{store, group.communicator(r), listener(), quiet()};
    ckpt.save(state, 1).wait();
    double late = 0;
    if (r == 1) state.value("of_one_rank", late);
    CHECK(ckpt.load(state, 1, cairn::only{"stage0.*", "stage1.*"}).missing.empty());
    CHECK(ckpt.load(state, 1, cairn::only{"of_one_rank", "stage*"}, cairn::partial).unmatched.empty());
    const auto e = thrown_by([&] { ckpt.load(state, 1, cairn::only{"stage0.*", "stage1.*", "stage3.*"}); });
    REQUIRE(e.has_value());
    CHECK(e->id() == cairn::error_id::usage_unknown_name);
    CHECK(e->fields().item == "stage3.*");
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
}

TEST_CASE("a partial load names what kept its value, and what the checkpoint has instead") {
  cairn::memory_store store;
  model m;
  {
    cairn::checkpointer ckpt{store, listener(), quiet()};
    ckpt.save(m.state, 1).wait();
  }
  const listener told;
  cairn::checkpointer ckpt{store, told, quiet()};
  cairn::state_dict renamed;
  renamed.tensor("wpe", m.wte, {400'000});
  renamed.tensor("lm.head.weight", m.head, {300'000});
  renamed.tensor("bias", m.bias, {4, 4});
  renamed.value("rate", m.rate);
  const auto report = ckpt.load(renamed, 1, cairn::partial);
  CHECK(report.missing.size() == 2);
  REQUIRE(told.warnings().size() == 2);
  CHECK(told.warnings()[0] ==
        "2 items are not in the checkpoint of step 1 and keep their values: wpe (the checkpoint has wte), "
        "lm.head.weight (the checkpoint has head.weight)");
  CHECK(has(told.warnings()[1], "does not fit and keeps its value: bias: the checkpoint has another"));
  const auto shape = thrown_by([&] { ckpt.load(renamed, 1, cairn::only{"bias"}); });
  REQUIRE(shape.has_value());
  CHECK(has(shape->what(), "cairn::partial"));
  std::vector<double> wide(16);
  cairn::state_dict wider;
  wider.tensor("bias", wide, {16});
  const auto type = thrown_by([&] { ckpt.load(wider, 1, cairn::only{"bias"}); });
  REQUIRE(type.has_value());
  CHECK(has(type->what(), "register memory of that dtype"));
  cairn::state_dict many;
  std::vector<double> values(9);
  for (std::size_t i = 0; i < values.size(); ++i) many.value("v" + std::to_string(i), values[i]);
  many.value("rate", m.rate);
  ckpt.load(many, 1, cairn::partial);
  CHECK(told.warnings().back() ==
        "9 items are not in the checkpoint of step 1 and keep their values: v0, v1, v2, v3, v4 and 4 more");
  ckpt.load(m.state, 1);
  CHECK(told.warnings().size() == 3);
}

TEST_CASE("a destructor warns that it could not check the memory of a last save") {
  cairn::memory_store store;
  model m;
  const listener told;
  SUBCASE("of one that nobody confirmed") {
    { cairn::checkpointer{store, cairn::overlapped{}, told, quiet()}.save(m.state, 4); }
    REQUIRE(told.warnings().size() == 1);
    CHECK(has(told.warnings()[0], "(step 4)"));
    CHECK(has(told.warnings()[0], "close()"));
  }
  SUBCASE("not of one that was confirmed, closed, or copied at once") {
    {
      cairn::checkpointer ckpt{store, cairn::overlapped{}, told, quiet()};
      ckpt.save(m.state, 1);
      ckpt.before_update();
    }
    {
      cairn::checkpointer ckpt{store, cairn::overlapped{}, told, quiet()};
      ckpt.save(m.state, 2);
      ckpt.close();
    }
    {
      cairn::state_dict small;
      small.tensor("bias", m.bias, {16});
      cairn::checkpointer ckpt{store, cairn::overlapped{}, told, quiet()};
      ckpt.save(small, 3);
    }
    CHECK(told.warnings().empty());
  }
}

namespace {
/// Runs of one training over one store.
struct runs {
  cairn::memory_store store;
  listener told;
  model m;
  cairn::checkpointer_options options = quiet();

  [[nodiscard]] auto open() const { return cairn::checkpointer{store, told, options}; }
  void save(std::int64_t step) const { open().save(m.state, step).wait(); }
  /// A run that ends by an exception, after a save of `commits`, where that is a step; where it resumed.
  std::optional<std::int64_t> crash(std::int64_t commits = -1) const {
    std::optional<std::int64_t> step;
    try {
      auto ckpt = open();
      step = ckpt.resume(m.state);
      if (commits >= 0) ckpt.save(m.state, commits).wait();
      throw std::runtime_error("the loss is no number");
    } catch (const std::runtime_error&) {
    }
    return step;
  }
  [[nodiscard]] std::size_t notes() { return store.list("restart.").size(); }
  [[nodiscard]] std::vector<std::int64_t> passed_over() const {
    std::vector<std::int64_t> steps;
    for (const auto& l : *told.lines)
      if (l.kind == cairn::observation::event::fell_back) steps.push_back(l.step);
    return steps;
  }
};
using steps = std::vector<std::int64_t>;
}  // namespace

TEST_CASE("a checkpoint that loads and then ends each run is passed over after max_restarts") {
  runs r;
  for (const std::int64_t step : {10, 20, 30}) r.save(step);
  for (int i = 0; i < 3; ++i) CHECK(r.crash() == 30);
  CHECK(r.passed_over().empty());
  CHECK(r.crash() == 20);
  CHECK(r.passed_over() == steps{30});
  CHECK(r.open().list() == steps{10, 20, 30});  // it stays as it is
  SUBCASE("also when a run of the older one has committed, until there is something newer") {
    CHECK(r.crash(25) == 20);
    CHECK(r.crash() == 25);  // and not 30
    CHECK(r.crash(35) == 25);
    CHECK(r.notes() == 0);
    CHECK(r.crash() == 35);
  }
  SUBCASE("one after the other; when all are, the newest is taken, and that is told") {
    for (int i = 0; i < 2; ++i) CHECK(r.crash() == 20);
    for (int i = 0; i < 3; ++i) CHECK(r.crash() == 10);
    CHECK(r.told.warnings().empty());
    CHECK(r.crash() == 30);
    REQUIRE(r.told.warnings().size() == 1);
    CHECK(has(r.told.warnings()[0], "the newest is taken all the same"));
  }
  SUBCASE("within max_fallback") {
    r.options.max_fallback = 0;
    CHECK(r.crash() == 30);
    r.options.max_fallback = 1;
    for (int i = 0; i < 2; ++i) CHECK(r.crash() == 20);
    CHECK(r.crash() == 30);
  }
  SUBCASE("but not where no other loads: never from zero because of this") {
    for (const std::int64_t step : {10, 20}) {
      auto bytes = *r.store.read_all(cairn::manifest_key(step), 1 << 20);
      bytes[bytes.size() / 2] ^= std::byte{4};
      r.store.remove(cairn::manifest_key(step));
      r.store.put_new(cairn::manifest_key(step), bytes);
    }
    CHECK(r.crash() == 30);
  }
  SUBCASE("unless max_restarts is 0") {
    r.options.max_restarts = 0;
    CHECK(r.crash() == 30);
  }
}

TEST_CASE("a run that loads a step by its number and commits ends what is noted of it, too") {
  runs r;
  for (const std::int64_t step : {10, 20}) r.save(step);
  for (int i = 0; i < 3; ++i) CHECK(r.crash() == 20);
  CHECK(r.notes() == 3);
  {
    auto ckpt = r.open();
    SUBCASE("load()") {
      ckpt.load(r.m.state, 20);
    }
    SUBCASE("resume() among some steps") {
      CHECK(ckpt.resume(r.m.state, {10, 20}) == 20);
    }
    ckpt.save(r.m.state, 30).wait();
  }
  CHECK(r.notes() == 0);
}

TEST_CASE("a run that commits, or ends in good order, counts for nothing against its checkpoint") {
  runs r;
  r.save(10);
  for (int i = 0; i < 2; ++i) CHECK(r.crash() == 10);
  CHECK(r.notes() == 2);
  {
    auto ckpt = r.open();
    CHECK(ckpt.resume(r.m.state) == 10);
    CHECK(ckpt.resume(r.m.state) == 10);  // is one run
    CHECK(r.notes() == 3);
    ckpt.save(r.m.state, 20).wait();
    CHECK(r.notes() == 0);
  }
  for (int i = 0; i < 5; ++i) {
    auto ckpt = r.open();
    CHECK(ckpt.resume(r.m.state) == 20);
    CHECK(r.notes() == 1);
    if (i % 2 == 0) ckpt.close();
  }
  CHECK(r.notes() == 0);
  CHECK(r.passed_over().empty());
  for (const auto& warning : r.told.warnings()) FAIL_CHECK(warning);
}

TEST_CASE("a run whose saves the store fails counts for nothing against its checkpoint") {
  runs r;
  for (const std::int64_t step : {10, 20, 30}) r.save(step);
  for (int i = 0; i < 3; ++i) CHECK(r.crash() == 30);
  // 30 is passed over, and stands in the way of the saves of those that go on from 20.
  for (int i = 0; i < 4; ++i) {
    try {
      auto ckpt = r.open();
      CHECK(ckpt.resume(r.m.state) == 20);
      ckpt.save(r.m.state, 30).wait();
      FAIL_CHECK("30 was saved twice");
    } catch (const cairn::storage_error& e) {
      CHECK(e.id() == cairn::error_id::storage_already_committed);
    }
  }
  CHECK(r.crash() == 20);
}

TEST_CASE("a run whose save is too slow for the store's sake counts for nothing against its checkpoint") {
  const auto outcome = [](cairn::error_id how) {
    runs r;
    for (const std::int64_t step : {10, 20}) r.save(step);
    for (int i = 0; i < 3; ++i) {
      const auto faults = std::make_shared<cairn_test::store_faults>();
      faults->fail_at(cairn_test::store_call::create, 0, true, false, how);
      try {
        cairn::checkpointer ckpt{cairn_test::faulty_store(r.store, faults), r.told, r.options};
        CHECK(ckpt.resume(r.m.state) == 20);
        const auto save = ckpt.save(r.m.state, 30);
        CHECK_THROWS_AS(save.wait(), cairn::timeout_error);
        throw std::runtime_error("the job is killed");
      } catch (const std::runtime_error&) {
      }
    }
    return r.crash();
  };
  CHECK(outcome(cairn::error_id::timeout_write) == 20);
  CHECK(outcome(cairn::error_id::timeout_staging) == 10);  // training's doing, or another rank's
}

TEST_CASE("a run that an exception ends in mid-save counts against its checkpoint") {
  runs r;
  for (const std::int64_t step : {10, 20}) r.save(step);
  for (int i = 0; i < 3; ++i) {
    try {
      cairn::checkpointer ckpt{r.store, r.told, r.options, cairn::overlapped{}};
      CHECK(ckpt.resume(r.m.state) == 20);
      (void)ckpt.save(r.m.state, 30);
      throw std::runtime_error("the loss is no number");
    } catch (const std::runtime_error&) {
    }
  }
  CHECK(r.open().list() == steps{10, 20});
  CHECK(r.crash() == 10);
}

TEST_CASE("a run that loads after it resumed still stands on the checkpoint") {
  const cairn_test::scratch_directory directory;
  model m;
  const auto open = [&] {
    return cairn::checkpointer{cairn::file_store{directory.path() + "/checkpoints"}, quiet()};
  };
  for (const std::int64_t step : {10, 20}) open().save(m.state, step).wait();
  auto ckpt = open(), other = open();
  const auto notes = [&] {
    return cairn::file_store{directory.path() + "/checkpoints"}.list("restart.").size();
  };
  SUBCASE("the same one again") {
    CHECK(ckpt.resume(m.state, {10}) == 10);
    ckpt.load(m.state, 10);
    CHECK_THROWS_AS(other.remove(10), cairn::storage_error);
  }
  SUBCASE("with refresh(), of the same one") {
    CHECK(ckpt.resume(m.state) == 20);
    ckpt.refresh(m.state);
    CHECK(notes() == 1);
    CHECK_THROWS_AS(other.remove(20), cairn::storage_error);
  }
  SUBCASE("or has left it for another") {
    CHECK(ckpt.resume(m.state) == 20);
    CHECK(notes() == 1);
    ckpt.load(m.state, 10);
    CHECK(notes() == 0);
    other.remove(20);
  }
}

TEST_CASE("a checkpointer that only loads takes a lease when it is asked for one") {
  const cairn_test::scratch_directory directory;
  model m;
  cairn::checkpointer trainer{cairn::file_store{directory.path() + "/checkpoints"}, quiet()};
  trainer.save(m.state, 10).wait();
  cairn::checkpointer ckpt{cairn::file_store{directory.path() + "/checkpoints"}, cairn::read_only{}, quiet()};
  CHECK_THROWS_AS((void)ckpt.lease(20), cairn::storage_error);
  {
    const auto lease = ckpt.lease(10);
    CHECK(lease.held());
    CHECK_THROWS_AS(trainer.remove(10), cairn::storage_error);
  }
  trainer.remove(10);
}

TEST_CASE("a run that lives and still stands on a checkpoint counts for nothing against it") {
  const cairn_test::scratch_directory directory;
  model m;
  auto options = quiet();
  SUBCASE("by its lease on the checkpoint") {}
  SUBCASE("because it announces itself") {
    options.announce_run = true;
  }
  const auto open = [&] {
    return cairn::checkpointer{cairn::file_store{directory.path() + "/checkpoints"}, options};
  };
  for (const std::int64_t step : {10, 20}) open().save(m.state, step).wait();
  std::vector<decltype(open())> evaluations;
  for (int i = 0; i < 3; ++i) {
    evaluations.push_back(open());
    CHECK(evaluations.back().resume(m.state) == 20);
  }
  const auto resumes_and_crashes = [&](std::int64_t from) {
    const auto child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      try {
        model own;
        auto ckpt = open();
        ::_exit(ckpt.resume(own.state) == from ? 0 : 1);
      } catch (...) {
        ::_exit(2);
      }
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  };
  for (int i = 0; i < 3; ++i) resumes_and_crashes(20);
  resumes_and_crashes(10);  // those that have ended do count
  evaluations.clear();      // in good order
  resumes_and_crashes(10);
}

TEST_CASE("ranks pass over the same checkpoint, and names that are no notes count for nothing") {
  using notes = cairn::detail::restart_notes;
  const cairn::run_id run{1, 2};
  CHECK(notes::key_of(run, 300) == "restart.00000300.00000000000000010000000000000002");
  CHECK(notes::step_of(notes::key_of(run, 300)) == 300);
  CHECK(notes::step_of(notes::key_of(run, INT64_MAX)) == INT64_MAX);
  for (const char* key : {"restart.", "restart.00000300", "restart.300.00000000000000010000000000000002",
                          "restart.00000300.0000000000000001000000000000000g",
                          "restart.-0000300.00000000000000010000000000000002",
                          "restart.99999999999999999999.00000000000000010000000000000002",
                          "restart.00000300.00000000000000010000000000000002.x", "xrestart.00000300.0"})
    CHECK_FALSE(notes::step_of(key).has_value());

  runs r;
  r.save(10), r.save(20);
  for (int i = 0; i < 5; ++i) r.store.put_new("restart.00000020.junk" + std::to_string(i), {});
  for (int i = 0; i < 3; ++i) CHECK(r.crash() == 20);
  cairn::thread_group group{3};
  std::vector<std::optional<std::int64_t>> got(3);
  std::vector<std::thread> ranks;
  for (int k = 0; k < 3; ++k)
    ranks.emplace_back([&, k] {
      model own;
      cairn::checkpointer ckpt{r.store, group.communicator(k), listener(), quiet()};
      got[static_cast<std::size_t>(k)] = ckpt.resume(own.state);
      ckpt.save(own.state, 30).wait();
    });
  for (auto& rank : ranks) rank.join();
  for (const auto& step : got) CHECK(step == 10);
  CHECK(r.notes() == 5);  // the others' names stay
}

namespace fs = std::filesystem;

/// The directory of a store, which goes away as with the disk that is mounted there.
struct mounted_directory {
  cairn_test::scratch_directory scratch;
  fs::path root = fs::path(scratch.path()) / "run", away = fs::path(scratch.path()) / "away";
  [[nodiscard]] cairn::file_store store() const { return cairn::file_store{root.string()}; }
  void unmount() const { fs::rename(root, away); }
  void mount() const {
    fs::remove_all(root);
    fs::rename(away, root);
  }
  /// What is there, but for marks of saves that have failed.
  [[nodiscard]] std::vector<std::string> files() const {
    std::vector<std::string> found;
    if (!fs::exists(root)) return found;
    for (const auto& f : fs::recursive_directory_iterator(root))
      if (f.is_regular_file() && !f.path().filename().string().starts_with("aborted."))
        found.push_back(f.path().filename());
    return found;
  }
};

TEST_CASE("a store whose directory goes away while a run uses it is not taken for an empty one") {
  const mounted_directory disk;
  model m;
  cairn::checkpointer ckpt{disk.store(), quiet()};
  CHECK_FALSE(ckpt.resume(m.state).has_value());
  ckpt.save(m.state, 10).wait();
  bool commits = true;
  SUBCASE("after a commit") {}
  SUBCASE("after a load") {
    commits = false;
  }
  std::optional<cairn::checkpointer_for<cairn::file_store, cairn::checkpointer_options>> loads;
  if (!commits) {
    loads.emplace(disk.store(), quiet());
    CHECK(loads->resume(m.state) == 10);
  }
  auto& run = commits ? ckpt : *loads;
  disk.unmount();
  SUBCASE("and is not there") {}
  SUBCASE("and what is under the mount is there instead") {
    fs::create_directory(disk.root);
  }
  SUBCASE("and that has an older checkpoint") {
    cairn::checkpointer{disk.store(), quiet()}.save(m.state, 5).wait();
  }
  const auto other = fs::exists(disk.root);
  const auto before = disk.files();
  const auto refuses = [&](auto call) {
    const auto why = thrown_by(call);
    REQUIRE(why.has_value());
    CHECK(why->id() == cairn::error_id::storage_not_found);
    CHECK_MESSAGE(has(why->what(), "step 10"), why->what());
    CHECK_MESSAGE(has(why->what(), "is its disk mounted?"), why->what());
    CHECK_MESSAGE(has(why->what(), disk.root.string()), why->what());
  };
  refuses([&] { static_cast<void>(run.resume(m.state)); });
  refuses([&] { run.load(m.state, 10); });
  refuses([&] { static_cast<void>(run.refresh(m.state)); });
  CHECK(fs::exists(disk.root) == other);  // nothing was made
  refuses([&] { run.save(m.state, 20).wait(); });
  CHECK(disk.files() == before);
  disk.mount();
  CHECK(run.resume(m.state) == 10);
  run.save(m.state, 30).wait();
  CHECK(run.list() == std::vector<std::int64_t>{10, 30});
}

TEST_CASE("a directory that is another one, and has what the run knows of, is the same store") {
  const mounted_directory disk;
  model m;
  cairn::checkpointer ckpt{disk.store(), quiet()};
  ckpt.save(m.state, 10).wait();
  CHECK(ckpt.resume(m.state) == 10);
  disk.unmount();
  fs::copy(disk.away, disk.root, fs::copy_options::recursive);  // as where it was mounted anew
  CHECK(ckpt.resume(m.state) == 10);
  ckpt.load(m.state, 10);
  ckpt.save(m.state, 20).wait();
  disk.store().remove(cairn::manifest_key(10));
  cairn::checkpointer{disk.store(), quiet()}.save(m.state, 40).wait();
  CHECK(ckpt.resume(m.state) == 40);
}

TEST_CASE("a directory may go where nothing of a run is in it") {
  const mounted_directory disk;
  model m;
  cairn::checkpointer ckpt{disk.store(), quiet()};
  SUBCASE("as it has saved nothing") {
    CHECK_FALSE(ckpt.resume(m.state).has_value());
  }
  SUBCASE("as it has removed that itself") {
    ckpt.save(m.state, 10).wait();
    ckpt.remove(10);
  }
  disk.unmount();
  CHECK_FALSE(ckpt.resume(m.state).has_value());
  disk.unmount();
  ckpt.save(m.state, 20).wait();
  CHECK(ckpt.list() == std::vector<std::int64_t>{20});
}

TEST_CASE("a rank whose mount has gone since is named by the next resume") {
  const mounted_directory disk;
  const auto second = fs::path(disk.scratch.path()) / "second";  // where rank 1 has it
  const auto empty = fs::path(disk.scratch.path()) / "empty";
  fs::create_directory(disk.root), fs::create_directory(empty);
  fs::create_directory_symlink(disk.root, second);
  cairn::thread_group group{2};
  const auto rank = [&](int k) {
    model m;
    cairn::checkpointer ckpt{cairn::file_store{k == 0 ? disk.root.string() : second.string()},
                             group.communicator(k), listener(), quiet()};
    CHECK_FALSE(ckpt.resume(m.state).has_value());
    ckpt.save(m.state, 10).wait();
    CHECK(ckpt.resume(m.state) == 10);
    if (k == 1) fs::remove(second), fs::create_directory_symlink(empty, second);
    CHECK_FALSE(ckpt.any_rank(false));
    const auto why = thrown_by([&] { static_cast<void>(ckpt.resume(m.state)); });
    REQUIRE(why.has_value());
    CHECK(why->id() == cairn::error_id::storage_not_shared);
    CHECK(why->fields().rank == 1);
  };
  std::jthread other(rank, 1);
  rank(0);
}
