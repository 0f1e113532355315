// SPDX-License-Identifier: Apache-2.0
// group: checkpoints
// threaded
#include <doctest/doctest.h>
#include <cairn/cairn.hpp>
#include <cairn/manage/copy.hpp>
#include <cairn/manage/prune.hpp>
#include <cairn/storage/manifest/manifest_format.hpp>
#include <cairn/storage/manifest/names.hpp>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <support/faulty_store.hpp>
#include <support/figures.hpp>
#include <support/rounds.hpp>
#include <support/scratch_directory.hpp>
#include <support/still_threads.hpp>
#include <thread>
#include <utility>
#include <vector>

// What policies of retention remove, and what they never do.

namespace {

using cairn_test::scratch_directory;

/// Options without fsync, where nothing has to survive a power loss.
const char* memory_disk() {
  return std::filesystem::exists("/dev/shm") ? "/dev/shm" : nullptr;
}
std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

const cairn::checkpointer_options quiet{
    .timeout = std::chrono::seconds(60), .peer_timeout = std::chrono::seconds(60), .quiet = true};

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
    if (o.kind == cairn::observation::event::warning) told->emplace_back(o.text);
  }
  std::vector<std::string>* told;
};

/// Collects warnings and what was verified; one can wait for these.
class scrub_ear {
 public:
  using cairn_role = cairn::role::observer;
  void observe(const cairn::observation& o) noexcept {
    const std::lock_guard lock(told_->mutex);
    if (o.kind == cairn::observation::event::read_back) told_->verified.push_back(o.step);
    if (o.kind == cairn::observation::event::warning) told_->warnings.emplace_back(o.text);
    told_->changed.notify_all();
  }
  [[nodiscard]] bool comes_to(std::int64_t step) const {
    std::unique_lock lock(told_->mutex);
    return told_->changed.wait_for(lock, std::chrono::seconds(60), [&] {
      return std::count(told_->verified.begin(), told_->verified.end(), step) != 0;
    });
  }
  /// Verifications that ended, in success or not.
  [[nodiscard]] std::size_t ended() const {
    const std::lock_guard lock(told_->mutex);
    return told_->ended();
  }
  [[nodiscard]] bool comes_to_end(std::size_t verifications) const {
    std::unique_lock lock(told_->mutex);
    return told_->changed.wait_for(lock, std::chrono::seconds(60),
                                   [&] { return told_->ended() >= verifications; });
  }
  [[nodiscard]] std::string comes_to_warn() const {
    std::unique_lock lock(told_->mutex);
    static_cast<void>(
        told_->changed.wait_for(lock, std::chrono::seconds(60), [&] { return !told_->warnings.empty(); }));
    return told_->warnings.empty() ? "" : told_->warnings.front();
  }
  [[nodiscard]] std::size_t warnings() const {
    const std::lock_guard lock(told_->mutex);
    return told_->warnings.size();
  }

 private:
  struct what_was_told {
    std::mutex mutex;
    std::condition_variable changed;
    steps verified;
    std::vector<std::string> warnings;
    [[nodiscard]] std::size_t ended() const {
      const auto failed = std::count_if(warnings.begin(), warnings.end(), [](const auto& w) {
        return w.find("could not be verified") != std::string::npos;
      });
      return verified.size() + static_cast<std::size_t>(failed);
    }
  };
  std::shared_ptr<what_was_told> told_ = std::make_shared<what_was_told>();
};

/// Stops at a call of a store until it is told to go on.
struct stopped_call {
  std::function<void(std::string_view)> action() {
    return [this](std::string_view) {
      come.set_value();
      on.get_future().wait();
    };
  }
  void wait() { come.get_future().wait(); }
  void go_on() { on.set_value(); }
  std::promise<void> come, on;
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

TEST_CASE("a step that was passed over keeps its data beside a new save of that step") {
  cairn::memory_store store;
  const auto keys = [&](std::int64_t step) {
    std::vector<std::string> found;
    for (const auto& o : store.list(cairn::step_directory(step) + "/")) found.push_back(o.key);
    return found;
  };
  small_state t;
  {
    cairn::checkpointer ckpt{store, quiet};
    for (const int step : {1, 2}) {
      t.fill(step);
      ckpt.save(t.state, step).wait();
    }
  }
  const auto passed = keys(2);
  // A byte of the data is wrong for a while, as behind a bad mount.
  const auto data = *std::find_if(passed.begin(), passed.end(),
                                  [](const auto& key) { return key.ends_with(".safetensors"); });
  const auto replace = [&](const std::string& key, const std::vector<std::byte>& bytes) {
    store.remove(key);
    store.put_new(key, bytes);
  };
  const auto good = *store.read_all(data, 1u << 20);
  auto bad = good;
  bad.back() ^= std::byte{1};
  replace(data, bad);
  {
    cairn::checkpointer ckpt{store, quiet};
    CHECK(ckpt.resume(t.state) == 1);
    t.fill(20);
    ckpt.save(t.state, 2).wait();
  }
  cairn::checkpointer next{store, quiet};
  CHECK(next.resume(t.state) == 2);  // which cleans
  CHECK(t.is(20));
  const auto now = keys(2);
  for (const auto& key : passed) CHECK(std::count(now.begin(), now.end(), key) == 1);
  const auto aside = cairn::step_directory(2) + "/manifest.damaged.0";
  REQUIRE(std::count(now.begin(), now.end(), aside) == 1);
  // The mount works again: the old checkpoint comes back by its name.
  replace(data, good);
  replace(cairn::manifest_key(2), *store.read_all(aside, 1u << 20));
  next.load(t.state, 2);
  CHECK(t.is(2));
  next.remove(2);
  for (const auto& key : keys(2)) CHECK(key.find("/aborted.") != std::string::npos);  // for late writers
}

TEST_CASE("two runs in one directory do not remove what the other has committed") {
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

TEST_CASE("a run does not remove what another one has made of a step that it had committed") {
  cairn::memory_store store;
  cairn::checkpointer ckpt{store, cairn::keep_last(2), quiet};
  cairn::checkpointer other{store, quiet};
  small_state t;
  for (const int step : {1, 2}) ckpt.save(t.state, step).wait();
  other.remove(1);
  t.fill(9);
  other.save(t.state, 1).wait();
  for (const int step : {3, 4}) ckpt.save(t.state, step).wait();
  CHECK(ckpt.list() == steps{1, 3, 4});
  small_state loaded;
  other.load(loaded.state, 1);
  CHECK(loaded.weights == t.weights);
}

TEST_CASE("numbers that would keep nothing, or mean nothing, are refused") {
  try {
    cairn::checkpointer ckpt{cairn::memory_store{}, cairn::keep_last(0), quiet};
    FAIL("accepted");
  } catch (const cairn::usage_error& e) {
    CHECK(e.id() == cairn::error_id::usage_bad_option);
    CHECK(std::string(e.what()).find("leave keep_last out") != std::string::npos);
  }
  for (const auto& bad :
       {cairn::retention_policy(cairn::keep_every(0)), cairn::keep_last(1) | cairn::keep_best("loss", 0),
        cairn::keep_last(1) | cairn::keep_best("", 1), cairn::retention_policy(cairn::keep_last(-1)),
        cairn::retention_policy(cairn::keep_last(-1, cairn::verified)),
        cairn::keep_last(1) | cairn::keep_best("loss", -3), cairn::keep_last(1) | cairn::keep_every(-2),
        cairn::keep_last(1) | cairn::keep_within(std::chrono::duration<double>(std::nan(""))),
        cairn::keep_last(1) | cairn::keep_within(std::chrono::hours(-1)),
        cairn::keep_last(3) | cairn::keep_last(0), cairn::keep_last(0) | cairn::keep_last(3),
        cairn::keep_within(std::chrono::hours(-1)) | cairn::keep_within(std::chrono::hours(1)),
        cairn::keep_within(std::chrono::hours(1)) | cairn::keep_within(std::chrono::hours(-1))})
    CHECK_THROWS_AS((cairn::checkpointer{cairn::memory_store{}, bad, quiet}), cairn::usage_error);
}

namespace {
/// Saves the steps 1 to `last`, with a loss where `loss(step)` has a value.
template <class Loss>
void save_steps(cairn::checkpointer_base& ckpt, std::int64_t last, Loss loss) {
  for (std::int64_t step = 1; step <= last; ++step) {
    small_state t(step);
    if (const std::optional<cairn::annotation_value> said = loss(step)) ckpt.annotate({{"loss", *said}});
    ckpt.save(t.state, step).wait();
  }
}
/// As if the checkpoint had been committed so many hours earlier.
void make_older(cairn::memory_store& store, std::int64_t step, int hours) {
  const auto key = cairn::manifest_key(step);
  auto m = cairn::decode_manifest(*store.read_all(key, 1u << 20), key);
  m.unix_time -= hours * 3600;
  store.remove(key);
  store.put_new(key, cairn::encode_manifest(m));
}
}  // namespace

TEST_CASE("a checkpoint stays if any policy keeps it") {
  cairn::memory_store store;
  const auto text_is_no_loss = [](std::int64_t step) -> std::optional<cairn::annotation_value> {
    // 8, 7, then NaN, then none, then a text, 3, 2 and 9
    if (step == 3) return std::nan("");
    if (step == 4) return std::nullopt;
    if (step == 5) return "low";
    if (step < 3) return 9 - step;
    return step == 8 ? 9.0 : 9.0 - static_cast<double>(step);
  };
  SUBCASE("the last and each n-th") {
    cairn::checkpointer ckpt{store, cairn::keep_last(2) | cairn::keep_every(3), quiet};
    save_steps(ckpt, 8, text_is_no_loss);
    CHECK(ckpt.list() == steps{3, 6, 7, 8});
  }
  SUBCASE("the best alone, and what was just committed") {
    cairn::checkpointer ckpt{store, cairn::keep_best("loss", 2), quiet};
    save_steps(ckpt, 8, text_is_no_loss);
    CHECK(ckpt.list() == steps{6, 7, 8});
  }
  SUBCASE("the highest are the best, with each fourth") {
    cairn::checkpointer ckpt{store, cairn::keep_every(4) | cairn::keep_best("loss", 2, cairn::best::highest),
                             quiet};
    save_steps(ckpt, 8, text_is_no_loss);
    CHECK(ckpt.list() == steps{1, 4, 8});
  }
  SUBCASE("what is young, of an earlier run, too") {
    {
      cairn::checkpointer ckpt{store, quiet};
      save_steps(ckpt, 5, text_is_no_loss);
    }
    for (const int step : {1, 2, 3}) make_older(store, step, 7 - step);
    cairn::checkpointer ckpt{store, cairn::keep_within(std::chrono::minutes(5 * 60 - 30)), quiet};
    small_state t;
    CHECK(ckpt.resume(t.state) == 5);
    ckpt.save(t.state, 6).wait();
    CHECK(ckpt.list() == steps{3, 4, 5, 6});
  }
  SUBCASE("and what is pinned, whoever would remove it") {
    cairn::checkpointer ckpt{store, cairn::keep_last(1), quiet};
    small_state t;
    ckpt.save(t.state, 1).wait();
    ckpt.pin(1);
    ckpt.pin(1);
    ckpt.save(t.state, 2).wait();
    ckpt.save(t.state, 3).wait();
    CHECK(ckpt.list() == steps{1, 3});
    CHECK(ckpt.pinned() == steps{1});
    cairn::checkpointer other{store, quiet};
    try {
      other.remove(1);
      FAIL("removed");
    } catch (const cairn::storage_error& e) {
      CHECK(e.id() == cairn::error_id::storage_pinned);
    }
    try {
      ckpt.pin(2);
      FAIL("pinned what is gone");
    } catch (const cairn::storage_error& e) {
      CHECK(e.id() == cairn::error_id::storage_not_committed);
    }
    CHECK(other.pinned() == steps{1});
    other.unpin(1);
    other.unpin(1);
    ckpt.save(t.state, 4).wait();
    CHECK(ckpt.list() == steps{4});
    CHECK(store.list("pin.").empty());
  }
  SUBCASE("prune says the same of a whole store, and does it when it is told to") {
    {
      cairn::checkpointer ckpt{store, quiet};
      save_steps(ckpt, 8, text_is_no_loss);
      ckpt.pin(1);
    }
    const cairn::any_storage storage(cairn::safetensors_storage{store});
    const auto policy = cairn::keep_every(4) | cairn::keep_best("loss", 2);
    // A slip of the pen keeps none: all but the newest would go.
    try {
      (void)cairn::prune(storage, cairn::keep_every(4) | cairn::keep_best("los", 2),
                         {.remove = true, .live_seconds = 0});
      FAIL("a prune by an annotation that no checkpoint has was carried out");
    } catch (const cairn::usage_error& e) {
      CHECK(e.id() == cairn::error_id::usage_unknown_name);
      CHECK(e.fields().item == "los");
      CHECK(std::string(e.what()).find("near it: loss") != std::string::npos);
    }
    CHECK(cairn::checkpointer{store, quiet}.list() == steps{1, 2, 3, 4, 5, 6, 7, 8});
    const auto would = cairn::prune(storage, policy);
    std::vector<std::string> why;
    for (const auto& c : would.checkpoints) {
      CHECK_FALSE(c.removed);
      CHECK(c.bytes > 0);
      why.push_back(c.kept);
    }
    CHECK(why == std::vector<std::string>{"it is pinned", "", "", "divisible by 4", "",
                                          "one of the best 2 by loss", "one of the best 2 by loss",
                                          "divisible by 4"});
    cairn::checkpointer reader{store, quiet};
    CHECK(reader.list() == steps{1, 2, 3, 4, 5, 6, 7, 8});
    int asked = 0;
    const auto stopped =
        cairn::prune(storage, policy, {.remove = true, .stop = [&] { return ++asked == 2; }});
    CHECK_FALSE(stopped.complete);
    CHECK(reader.list() == steps{1, 3, 4, 5, 6, 7, 8});
    CHECK(cairn::prune(storage, policy, {.remove = true}).complete);
    CHECK(reader.list() == steps{1, 4, 6, 7, 8});
    // One whose manifest cannot be read neither counts nor goes; the newest that can stays.
    const auto key = cairn::manifest_key(8);
    store.remove(key);
    store.put_new(key, {});
    const auto pruned =
        cairn::prune(storage, cairn::keep_last(1), {.remove = true, .live_seconds = 0}).checkpoints;
    CHECK(reader.list() == steps{1, 7, 8});
    for (const auto& c : pruned) CHECK((c.fault != nullptr) == (c.step == 8));
    CHECK_THROWS_AS(std::rethrow_exception(pruned.back().fault), cairn::corrupt_error);
    CHECK_THROWS_AS((void)cairn::prune(storage, {}), cairn::usage_error);
  }
}

TEST_CASE("keep_best by an annotation that no checkpoint has says so once, before something goes") {
  for (const std::string name : {"Loss", "loss"}) {
    std::vector<std::string> told;
    cairn::checkpointer ckpt{cairn::memory_store{}, cairn::keep_last(2) | cairn::keep_best(name, 1),
                             warning_ear{&told}, quiet};
    save_steps(ckpt, 5, [](std::int64_t step) {
      return step > 1 ? std::optional<cairn::annotation_value>(step) : std::nullopt;
    });
    CHECK(told.size() == (name == "Loss" ? 1 : 0));
    for (const auto& each : told) CHECK(each.find("a number in the annotation Loss:") != std::string::npos);
  }
}

TEST_CASE(
    "a policy asks again for a manifest that the store did not give, and reads at most 64 at a commit") {
  cairn::memory_store store;
  const auto loss_is_step = [](std::int64_t step) { return std::optional<cairn::annotation_value>(step); };
  {
    cairn::checkpointer ckpt{store, quiet};
    save_steps(ckpt, 70, loss_is_step);
  }
  const auto faults = std::make_shared<cairn_test::store_faults>();
  cairn::checkpointer ckpt{cairn_test::faulty_store<cairn::memory_store>(store, faults),
                           cairn::keep_best("loss", 2), quiet};
  small_state t;
  CHECK(ckpt.resume(t.state) == 70);
  bool fails = true;
  faults->add({.for_ever = true, .key_contains = cairn::manifest_key(3), .action = [&](std::string_view key) {
                 if (fails)
                   cairn::fail(cairn::error_id::storage_io, "the store is busy", {.file = std::string(key)});
               }});
  ckpt.save(t.state, 71).wait();
  CHECK(ckpt.list().size() == 71);  // nothing is known of those from 3 on
  ckpt.save(t.state, 72).wait();
  CHECK(ckpt.list() == steps{1, 2, 3, 68, 69, 70, 71, 72});
  fails = false;
  ckpt.save(t.state, 73).wait();
  CHECK(ckpt.list() == steps{1, 2, 70, 73});
}

TEST_CASE("prune leaves alone what is read, what a run resumed from, and what it committed last") {
  const scratch_directory directory(memory_disk());
  const cairn::file_store store{directory.path()};
  const cairn::any_storage storage(cairn::safetensors_storage{store});
  small_state t;
  cairn::checkpointer first{store, quiet};
  for (const int step : {1, 2, 3, 4, 50}) first.save(t.state, step).wait();
  const auto lease = first.lease(1);
  cairn::checkpointer second{store, quiet};
  CHECK(second.resume(t.state, {2}) == 2);  // which leaves no note
  cairn::checkpointer third{store, quiet};
  CHECK(third.resume(t.state) == 50);
  for (const int step : {60, 70}) third.save(t.state, step).wait();
  second.save(t.state, 20).wait();
  const auto report = cairn::prune(storage, cairn::keep_last(1), {.remove = true});
  CHECK(third.list() == steps{1, 20, 50, 70});  // a lease; the last of the second, the first, the third
  CHECK(report.checkpoints.front().kept.starts_with("it is read by process "));
  // A run that has resumed from a step and committed nothing since.
  storage.writer().note_restart({1, 2}, 50);
  (void)cairn::prune(storage, cairn::keep_last(1), {.remove = true, .live_seconds = -1});
  CHECK(third.list() == steps{1, 50, 70});
}

TEST_CASE("what a run resumed from stays until it has committed, whoever else tidies up") {
  const scratch_directory directory(memory_disk());
  const cairn::file_store store{directory.path()};
  const cairn::any_storage storage(cairn::safetensors_storage{store});
  small_state t;
  cairn::checkpointer trainer{store, cairn::keep_last(1), quiet};
  trainer.save(t.state, 1).wait();
  cairn::checkpointer second{store, quiet};
  CHECK(second.resume(t.state, {1}) == 1);  // which leaves no note
  trainer.save(t.state, 2).wait();
  CHECK(trainer.list() == steps{1, 2});
  const auto report = cairn::prune(storage, cairn::keep_last(1), {.remove = true, .live_seconds = -1});
  CHECK(report.checkpoints.front().kept.starts_with("it is read by process "));
  SUBCASE("and goes after its commit") {
    second.save(t.state, 5).wait();
    trainer.save(t.state, 3).wait();
    CHECK(trainer.list() == steps{3, 5});
  }
  SUBCASE("or when it has gone on from another one") {
    second.load(t.state, 2);
    trainer.save(t.state, 3).wait();
    CHECK(trainer.list() == steps{2, 3});
  }
  SUBCASE("or when it ends") {
    second.close();
    trainer.save(t.state, 3).wait();
    CHECK(trainer.list() == steps{3});
    CHECK(names_in(directory.path()) == std::vector<std::string>{"step-00000003"});
  }
  SUBCASE("but the run itself may remove it") {
    second.remove(1);
    CHECK(trainer.list() == steps{2});
  }
}

TEST_CASE("what a run loaded stays until it has committed, whoever else tidies up") {
  const scratch_directory directory(memory_disk());
  const cairn::file_store store{directory.path()};
  const cairn::any_storage storage(cairn::safetensors_storage{store});
  small_state t(100);
  cairn::checkpointer other{store, cairn::keep_last(1), quiet};
  other.save(t.state, 100).wait();
  const auto faults = std::make_shared<cairn_test::store_faults>();
  cairn::checkpointer run{cairn::safetensors_storage{cairn_test::faulty_store{store, faults}}, quiet};
  const auto tidy_up = [&](int step) {
    other.save(t.state, step).wait();
    (void)cairn::prune(storage, cairn::keep_last(1), {.remove = true, .live_seconds = -1});
    return other.list();
  };
  small_state back;
  SUBCASE("and goes after its commit") {
    run.load(back.state, 100);
    CHECK(tidy_up(200) == steps{100, 200});
    run.load(back.state, 100);
    CHECK(back.is(100));
    run.save(back.state, 150).wait();
    CHECK(tidy_up(300) == steps{300});
  }
  SUBCASE("not that of a save that had begun before") {
    stopped_call commit;
    faults->add({.kind = cairn_test::store_call::publish_new,
                 .key_contains = "step-00000050/manifest",
                 .action = commit.action()});
    const auto saved = run.save(back.state, 50);
    commit.wait();
    run.load(back.state, 100);
    commit.go_on();
    saved.wait();
    CHECK(tidy_up(200) == steps{100, 200});
    run.save(back.state, 150).wait();
    CHECK(tidy_up(300) == steps{300});
  }
  SUBCASE("nor that of such a save of a step that is saved again since") {
    stopped_call commit;
    faults->add({.kind = cairn_test::store_call::publish_new,
                 .key_contains = "step-00000050/manifest",
                 .action = commit.action()});
    auto queued = quiet;
    queued.when_busy = cairn::busy_policy::queue;
    cairn::checkpointer trainer{cairn::safetensors_storage{cairn_test::faulty_store{store, faults}}, queued};
    const auto first = trainer.save(back.state, 50);
    commit.wait();
    trainer.load(back.state, 100);
    const auto second = trainer.save(back.state, 50);
    commit.go_on();
    first.wait();
    CHECK_THROWS_AS(second.wait(), cairn::storage_error);  // the first one is committed
    CHECK(tidy_up(200) == steps{100, 200});
  }
  SUBCASE("also after a remove() of it that was refused") {
    run.load(back.state, 100);
    const auto refused = [&]() -> std::optional<cairn::error_id> {
      try {
        run.remove(100);
        return std::nullopt;
      } catch (const cairn::storage_error& e) {
        return e.id();
      }
    };
    SUBCASE("as it is pinned") {
      run.pin(100);
      CHECK(refused() == cairn::error_id::storage_pinned);
      run.unpin(100);
      CHECK(tidy_up(200) == steps{100, 200});
    }
    SUBCASE("as somebody else reads it") {
      auto lease = other.lease(100);
      CHECK(refused() == cairn::error_id::storage_leased);
      lease.release();
      CHECK(tidy_up(200) == steps{100, 200});
    }
    run.remove(100);
    CHECK(run.list() == steps{200});
  }
  SUBCASE("or when it has loaded another one, or resumed from it") {
    run.load(back.state, 100);
    CHECK(tidy_up(200) == steps{100, 200});
    SUBCASE("load") {
      run.load(back.state, 200);
      CHECK(tidy_up(300) == steps{200, 300});
    }
    SUBCASE("resume") {
      CHECK(run.resume(back.state, {200}) == 200);
      CHECK(tidy_up(300) == steps{200, 300});
    }
    SUBCASE("refresh, by which one follows") {
      CHECK(run.refresh(back.state).step == 200);
      CHECK(tidy_up(300) == steps{300});
    }
  }
  SUBCASE("or when it ends") {
    run.load(back.state, 100);
    run.close();
    CHECK(tidy_up(200) == steps{200});
    CHECK(names_in(directory.path()) == std::vector<std::string>{"step-00000200"});
  }
  SUBCASE("also where its last save failed") {
    run.load(back.state, 100);
    faults->fail_at(cairn_test::store_call::create, 0);
    run.save(back.state, 150);
    CHECK_THROWS_AS(run.close(), cairn::storage_error);
    CHECK(tidy_up(200) == steps{200});
  }
  SUBCASE("but the run itself may remove it") {
    run.load(back.state, 100);
    run.remove(100);
    CHECK(run.list().empty());
  }
  SUBCASE("and not where the checkpointer only loads") {
    cairn::checkpointer evaluator{store, cairn::read_only{}, quiet};
    evaluator.load(back.state, 100);
    CHECK(tidy_up(200) == steps{200});
  }
}

TEST_CASE("prune removes what it judged, not what a run has made of the step meanwhile") {
  cairn::memory_store store;
  const cairn::any_storage storage(cairn::safetensors_storage{store});
  cairn::checkpointer ckpt{store, quiet};
  small_state t;
  for (const int step : {1, 2, 3, 4, 5, 6}) ckpt.save(t.state, step).wait();
  bool asked = false;
  const auto meanwhile = [&] {
    if (std::exchange(asked, true)) return false;
    ckpt.remove(2);
    t.fill(9);
    ckpt.save(t.state, 2).wait();
    ckpt.remove(3);
    CHECK(storage.writer().quarantine(4));
    storage.writer().note_restart({1, 2}, 5);
    return false;
  };
  const auto report = cairn::prune(storage, cairn::keep_last(1), {.remove = true, .stop = meanwhile});
  CHECK(ckpt.list() == steps{2, 5, 6});
  steps removed;
  for (const auto& c : report.checkpoints)
    if (c.removed) removed.push_back(c.step);
  CHECK(removed == steps{1});
  CHECK(report.checkpoints[1].kept.find("committed anew") != std::string::npos);
  CHECK(report.checkpoints[4].kept.find("resumed from it") != std::string::npos);
  CHECK_FALSE(store.list("step-00000004/").empty());  // its data, moved aside
  small_state loaded;
  ckpt.load(loaded.state, 2);
  CHECK(loaded.weights == t.weights);
}

TEST_CASE("a checkpoint that was set aside and restored is removed with its data when its time comes") {
  cairn::memory_store source, target;
  cairn::checkpointer ckpt{source, quiet};
  small_state t;
  for (const int step : {1, 2}) ckpt.save(t.state, step).wait();
  const cairn::safetensors_storage to{target};
  for (const int step : {1, 2}) (void)cairn::copy_checkpoint(source, to, step);
  REQUIRE(to.writer().quarantine(1));
  const auto aside = "step-00000001/manifest.damaged.0";
  SUBCASE("by a copy, which takes away the manifest that was set aside") {
    (void)cairn::copy_checkpoint(source, to, 1);
    CHECK_FALSE(target.size(aside).has_value());
  }
  SUBCASE("by hand, which leaves it") {
    target.put_new(cairn::manifest_key(1), *target.read_all(aside, 1u << 20));
  }
  CHECK(to.reader().list() == steps{1, 2});
  const auto report = cairn::prune(cairn::any_storage(to), cairn::keep_last(1), {.remove = true});
  REQUIRE(report.checkpoints.size() == 2);
  CHECK(report.checkpoints[0].removed);
  CHECK(target.list("step-00000001/").empty());
}

TEST_CASE("a checkpoint that is set aside again while it is removed keeps its data") {
  cairn::memory_store store;
  cairn::checkpointer ckpt{store, quiet};
  small_state t;
  for (const int step : {1, 2}) ckpt.save(t.state, step).wait();
  const auto manifest = store.read_all(cairn::manifest_key(1), 1u << 20).value();
  store.put_new("step-00000001/manifest.damaged.0", manifest);
  const auto faults = std::make_shared<cairn_test::store_faults>();
  faults->add({.kind = cairn_test::store_call::remove, .key_contains = "manifest", .action = [&](auto) {
                 store.put_new("step-00000001/manifest.damaged.1", manifest);
               }});
  const cairn::any_storage storage(
      cairn::safetensors_storage{cairn_test::faulty_store<cairn::memory_store>{store, faults}});
  const auto report = cairn::prune(storage, cairn::keep_last(1), {.remove = true});
  CHECK(faults->triggered() == 1);
  CHECK_FALSE(report.checkpoints.at(0).removed);
  CHECK(store.list("step-00000001/").size() == 4);  // a data file, a record, and two names of the manifest
}

TEST_CASE("a leased checkpoint stays until the lease ends, and remove() names the readers") {
  const scratch_directory directory(memory_disk());
  const cairn::file_store store{directory.path()};
  small_state t;
  std::vector<std::string> told;
  cairn::checkpointer ckpt{store, cairn::keep_last(1), warning_ear{&told}, quiet};
  cairn::any_checkpointer evaluator = cairn::checkpointer{store, cairn::read_only{}, quiet};
  ckpt.save(t.state, 1).wait();
  auto lease = evaluator.lease(1);
  CHECK(lease.held());
  CHECK(lease.step() == 1);
  ckpt.save(t.state, 2).wait();
  ckpt.save(t.state, 3).wait();
  CHECK(ckpt.list() == steps{1, 3});
  REQUIRE(told.size() == 1);
  CHECK(told[0].find("step 1 would go now") != std::string::npos);
  try {
    ckpt.remove(1);
    FAIL("removed");
  } catch (const cairn::storage_error& e) {
    CHECK(e.id() == cairn::error_id::storage_leased);
    CHECK(e.fields().got.starts_with("process " + std::to_string(::getpid()) + " on "));
  }
  evaluator.load(t.state, 1);
  CHECK(t.is(0));
  lease.release();
  CHECK_FALSE(lease.held());
  ckpt.save(t.state, 4).wait();
  CHECK(ckpt.list() == steps{4});
  try {
    static_cast<void>(evaluator.lease(1));
    FAIL("a lease on nothing");
  } catch (const cairn::storage_error& e) {
    CHECK(e.id() == cairn::error_id::storage_not_committed);
  }
  CHECK(names_in(directory.path()) == std::vector<std::string>{"step-00000004"});
}

TEST_CASE("the lease of another user, whose file a trainer may not write, keeps its checkpoint") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: a process of another user needs root");
    return;
  }
  const scratch_directory directory(memory_disk());
  REQUIRE(::chmod(directory.path().c_str(), 0777) == 0);
  int saved[2], leased[2];
  REQUIRE(::pipe(saved) == 0);
  REQUIRE(::pipe(leased) == 0);
  char signal = 0;
  cairn_test::await_still_threads();
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    int result = 9;
    try {
      ::close(leased[1]);
      if (::setresgid(61'321, 61'321, 61'321) != 0 || ::setresuid(61'321, 61'321, 61'321) != 0) ::_exit(8);
      small_state t;
      cairn::checkpointer trainer{cairn::file_store{directory.path()}, cairn::keep_last(1), quiet};
      trainer.save(t.state, 1).wait();
      if (::write(saved[1], &signal, 1) != 1 || ::read(leased[0], &signal, 1) != 1) ::_exit(7);
      trainer.save(t.state, 2).wait();
      trainer.save(t.state, 3).wait();
      result = trainer.list() == steps{1, 3} ? 0 : 1;
      if (::write(saved[1], &signal, 1) != 1 || ::read(leased[0], &signal, 1) != 1) ::_exit(6);
      trainer.save(t.state, 4).wait();
      result |= trainer.list() == steps{4} ? 0 : 2;
    } catch (...) {
    }
    ::_exit(result);
  }
  ::close(saved[1]);
  ::close(leased[0]);
  if (::read(saved[0], &signal, 1) == 1) {
    cairn::checkpointer evaluator{cairn::file_store{directory.path()}, quiet};
    auto lease = evaluator.lease(1);
    CHECK(lease.held());
    CHECK(::write(leased[1], &signal, 1) == 1);
    CHECK(::read(saved[0], &signal, 1) == 1);
    lease.release();
    CHECK(::write(leased[1], &signal, 1) == 1);
  }
  ::close(leased[1]);
  ::close(saved[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("a load and a resume keep what they read from being removed") {
  const scratch_directory directory(memory_disk());
  const cairn::file_store store{directory.path()};
  const auto faults = std::make_shared<cairn_test::store_faults>();
  cairn::checkpointer trainer{store, cairn::keep_last(1), quiet};
  small_state t(1);
  trainer.save(t.state, 1).wait();
  bool resumes = false;
  SUBCASE("load") {}
  SUBCASE("resume") {
    resumes = true;
  }
  // In the middle of the reading, the trainer commits two more.
  steps there;
  faults->add(
      {.kind = cairn_test::store_call::read, .key_contains = ".safetensors", .action = [&](std::string_view) {
         for (const int step : {2, 3}) {
           small_state next(step);
           trainer.save(next.state, step).wait();
         }
         there = trainer.list();
       }});
  cairn::checkpointer evaluator{cairn::safetensors_storage{cairn_test::faulty_store{store, faults}}, quiet};
  small_state back;
  if (resumes)
    CHECK(evaluator.resume(back.state) == 1);
  else
    evaluator.load(back.state, 1);
  CHECK(back.is(1));
  CHECK(there == steps{1, 3});
  trainer.save(t.state, 4).wait();
  CHECK(trainer.list() == steps{1, 4});  // a run stands on it then
}

TEST_CASE("resume takes a newer checkpoint where all that it listed were removed meanwhile") {
  const cairn::memory_store store;
  const auto faults = std::make_shared<cairn_test::store_faults>();
  cairn::checkpointer trainer{store, cairn::keep_last(1), quiet};
  small_state t(1);
  trainer.save(t.state, 1).wait();
  faults->add({.kind = cairn_test::store_call::read_all,
               .key_contains = "step-00000001/manifest.cairn",
               .action = [&](std::string_view) {
                 for (const int step : {2, 3}) {
                   small_state next(step);
                   trainer.save(next.state, step).wait();
                 }
               }});
  cairn::checkpointer evaluator{cairn::safetensors_storage{cairn_test::faulty_store{store, faults}},
                                cairn::checkpointer_options{.max_fallback = 0, .quiet = true}};
  small_state back;
  CHECK(evaluator.resume(back.state) == 3);
  CHECK(back.is(3));
  CHECK(trainer.list() == steps{3});
}

TEST_CASE("a checkpoint that is committed just before its save is ended for good is found") {
  cairn::memory_store store;
  const auto faults = std::make_shared<cairn_test::store_faults>();
  cairn::checkpointer trainer{store, quiet};
  small_state t(1);
  trainer.save(t.state, 1).wait();
  small_state newer(2);
  trainer.save(newer.state, 2).wait();
  // As it was before the commit, which comes when the next run has listed everything.
  const auto manifest = store.read_all(cairn::manifest_key(2), 1u << 20).value();
  store.remove(cairn::manifest_key(2));
  bool ended = false;
  faults->add({.kind = cairn_test::store_call::publish_new,
               .key_contains = "step-00000002/aborted.",
               .action = [&](std::string_view) {
                 ended = true;
                 store.put_new(cairn::manifest_key(2), manifest);
               }});
  cairn::checkpointer next{cairn::safetensors_storage{cairn_test::faulty_store{store, faults}}, quiet};
  small_state back;
  CHECK(next.resume(back.state) == 2);
  CHECK(back.is(2));
  CHECK(ended);
}

TEST_CASE("if a reader takes a lease while a run removes the checkpoint, exactly one of them succeeds") {
  const scratch_directory directory(memory_disk());
  const cairn::file_store store{directory.path()};
  cairn::checkpointer trainer{store, quiet};
  small_state t(1);
  std::atomic<int> turn{0};
  const auto rounds = static_cast<int>(cairn_test::rounds(60, 20));
  int leased = 0;
  for (int round = 1; round <= rounds; ++round) {
    trainer.save(t.state, round).wait();
    bool removed = false;
    std::thread remover([&] {
      cairn::safetensors_writer<cairn::file_store> writer(std::make_shared<cairn::file_store>(store));
      turn.fetch_add(1);
      while (turn.load() < 2) std::this_thread::yield();
      try {
        writer.remove(round);
        removed = true;
      } catch (const cairn::storage_error& e) {
        if (e.id() != cairn::error_id::storage_leased) throw;
      }
    });
    cairn::checkpoint_lease lease;
    {
      cairn::safetensors_writer<cairn::file_store> writer(std::make_shared<cairn::file_store>(store));
      turn.fetch_add(1);
      while (turn.load() < 2) std::this_thread::yield();
      try {
        lease = writer.lease(round, cairn::deadline::in(std::chrono::seconds(60)));
      } catch (const cairn::storage_error& e) {
        if (e.id() != cairn::error_id::storage_not_committed) throw;
      }
    }
    remover.join();
    turn = 0;
    CHECK(lease.held() != removed);
    CHECK(trainer.list().size() == (lease.held() ? 1u : 0u));
    leased += lease.held();
    lease.release();
    trainer.remove(round);
  }
  MESSAGE(leased << " leases and " << rounds - leased << " removals");
  CHECK(names_in(directory.path()).empty());
}

TEST_CASE("the lease of a process that died delays nobody, and nothing is left of it") {
  const scratch_directory directory(memory_disk());
  const cairn::file_store store{directory.path()};
  small_state t(1);
  cairn::checkpointer trainer{store, cairn::keep_last(1), quiet};
  trainer.save(t.state, 1).wait();
  trainer.save(t.state, 2).wait();
  cairn_test::await_still_threads();
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    try {
      cairn::checkpointer evaluator{cairn::file_store{directory.path()}, quiet};
      const auto lease = evaluator.lease(2);
      ::_exit(lease.held() ? 0 : 1);
    } catch (...) {
      ::_exit(2);
    }
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  CHECK(names_in(directory.path()).size() == 2);
  trainer.save(t.state, 3).wait();
  CHECK(trainer.list() == steps{3});
  cairn::checkpointer next{store, quiet};
  CHECK(next.resume(t.state) == 3);
  next.close();  // which removes the note of its restart
  CHECK(names_in(directory.path()) == std::vector<std::string>{"step-00000003"});
}

TEST_CASE("a reader without the right to write reads without a lease, and is warned once") {
  const scratch_directory directory(memory_disk());
  const cairn::file_store store{directory.path()};
  small_state t(1);
  {
    cairn::checkpointer trainer{store, quiet};
    trainer.save(t.state, 1).wait();
  }
  const auto faults = std::make_shared<cairn_test::store_faults>();
  faults->fail_at(cairn_test::store_call::create, 0, true, false, cairn::error_id::storage_permission);
  std::vector<std::string> told;
  cairn::checkpointer evaluator{cairn::safetensors_storage{cairn_test::faulty_store{store, faults}},
                                warning_ear{&told}, quiet};
  small_state back;
  evaluator.load(back.state, 1);
  CHECK(back.is(1));
  CHECK_FALSE(evaluator.lease(1).held());
  REQUIRE(told.size() == 1);
  CHECK(told[0].find("without a lease") != std::string::npos);
}

namespace {

/// Two runs in one directory, one after the other or beside each other, and readers. What each run was told
/// as committed last, what it stands on, and what a reader has a lease on must be there, and load, after each
/// call. Of another run's, only what this one does not count: what it committed itself or resumed beyond.
class two_runs {
 public:
  explicit two_runs(std::uint64_t seed) : dice_(seed), directory_(memory_disk()) {}

  /// What is wrong after some random calls, or "".
  [[nodiscard]] std::string play(int calls) {
    for (int i = 0; i < calls && wrong_.empty(); ++i) {
      auto& run = runs_[roll(2)];
      call(run);
      if (wrong_.empty()) look();
    }
    return wrong_.empty() ? "" : wrong_ + " after:" + told_;
  }
  std::uint64_t commits = 0, loads = 0, fall_backs = 0, leases = 0, removed = 0, pruned = 0;

 private:
  using store = cairn_test::faulty_store<cairn::file_store>;
  struct one_run {
    std::optional<cairn::checkpointer_for<cairn::safetensors_storage<store>, scrub_ear>> ckpt;
    scrub_ear ear;
    std::size_t keep = 0;                   ///< the last; 0: that policy is not among them
    bool verifies = false;                  ///< counts those that were verified
    std::int64_t every = 0;                 ///< 0: likewise
    std::size_t best = 0;                   ///< likewise
    bool within = false;                    ///< all that is an hour old
    bool knows = true;                      ///< no step of its line became another one's meanwhile
    std::optional<std::int64_t> committed;  ///< last
    std::optional<std::int64_t> stands_on;
    std::optional<std::int64_t> leases;  ///< the same, until it has committed
    std::set<std::int64_t> verified;     ///< committed and verified
    std::set<std::int64_t> own;          ///< committed since it stands there
    std::set<std::int64_t> line;         ///< these, and those before
    std::int64_t at = 0;
    [[nodiscard]] bool policies() const { return keep != 0 || every != 0 || best != 0 || within; }
  };

  std::size_t roll(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(dice_); }
  template <class Set>
  std::optional<std::int64_t> one_of(const Set& from) {
    if (from.empty()) return {};
    return *std::next(from.begin(), static_cast<std::ptrdiff_t>(roll(from.size())));
  }
  void tell(const one_run& run, const std::string& what) {
    told_ += " " + std::string(&run == &runs_[0] ? "A" : "B") + ":" + what;
  }

  void call(one_run& run) {
    const auto what = run.ckpt ? roll(19) : 15;
    if (what < 7)
      save(run);
    else if (what == 7)
      roll_back(run);
    else if (what < 10)
      break_or_mend();
    else if (what < 12)
      read();
    else if (what < 14)
      end_reading();
    else if (what < 16)
      restart(run);
    else if (what == 16)
      pin_or_unpin(run);
    else
      prune();
  }
  /// What the policies of a run keep of some steps.
  [[nodiscard]] std::set<std::int64_t> kept_by(const one_run& run, const std::set<std::int64_t>& line) const {
    std::set<std::int64_t> kept;
    if (run.within) kept = line;
    std::vector<std::pair<double, std::int64_t>> by_loss;
    for (const auto s : line) {
      if (run.every != 0 && s % run.every == 0) kept.insert(s);
      const auto loss = losses_.find(s);
      if (loss != losses_.end() && loss->second == loss->second) by_loss.emplace_back(loss->second, s);
    }
    std::sort(by_loss.begin(), by_loss.end());
    for (std::size_t i = 0; i < by_loss.size() && i < run.best && run.knows; ++i)
      kept.insert(by_loss[i].second);
    return kept;
  }
  [[nodiscard]] std::set<std::int64_t> present(const std::set<std::int64_t>& line) {
    std::set<std::int64_t> there;
    for (const auto s : reader_.list())
      if (line.count(s) != 0) there.insert(s);
    return there;
  }
  void save(one_run& run) {
    const auto step = run.at + 1 + static_cast<std::int64_t>(roll(30));
    small_state t(step);
    const auto before = reader_.list();
    const bool taken = std::count(before.begin(), before.end(), step) != 0;
    const auto line_before = present(run.line);
    const auto verifications = run.ear.ended();
    std::optional<double> loss;
    if (roll(4) != 0) loss = roll(8) == 0 ? std::nan("") : static_cast<double>(dice_() >> 11);
    if (loss) run.ckpt->annotate({{"loss", *loss}});
    try {
      run.ckpt->save(t.state, step).wait();
    } catch (const cairn::storage_error& e) {
      if (!taken && broken_->count(step) == 0) wrong_ = e.what();
      run.at = step;
      return;
    }
    if (taken) wrong_ = "step " + std::to_string(step) + " was replaced";
    tell(run, "save " + std::to_string(step));
    run.at = step;
    run.committed = step;
    run.leases.reset();
    run.own.insert(step);
    run.line.insert(step);
    losses_.erase(step);
    if (loss) losses_[step] = *loss;
    if (run.verifies) {
      if (!run.ear.comes_to_end(verifications + 1)) wrong_ = "a checkpoint is not verified";
      if (broken_->count(step) == 0)
        run.verified.insert(step);
      else
        run.verified.erase(step);
    }
    auto& other = &run == &runs_[0] ? runs_[1] : runs_[0];
    other.own.erase(step);  // one of this number was removed, this is another one
    if (other.line.count(step) != 0) other.knows = false;
    for (auto* theirs : {&other.committed, &other.stands_on})
      if (*theirs && *theirs != other.leases && run.line.count(**theirs) != 0) theirs->reset();
    ++commits;
    const auto there = reader_.list();
    removed += before.size() + 1 - there.size();
    if (!run.policies()) return;
    auto line_now = line_before;
    line_now.insert(step);
    const auto kept = kept_by(run, line_now);
    for (const auto s : kept)
      if (std::count(there.begin(), there.end(), s) == 0)
        wrong_ = "step " + std::to_string(s) + " is gone, which a policy keeps";
    if (!run.knows) return;
    if (run.verifies) {
      const auto stay = present(line_now);
      const auto counts =
          std::count_if(stay.begin(), stay.end(), [&](auto s) { return run.verified.count(s); });
      if (stay.size() < line_now.size() && static_cast<std::size_t>(counts) < run.keep)
        wrong_ = "only " + std::to_string(counts) + " that are verified are kept";
    }
    // Retention must act, too: of its own only the last n stay, what other policies keep, and what readers keep.
    if (run.within) return;
    std::size_t stay = 0;
    for (const auto s : run.own)
      if (!run.verifies || run.verified.count(s) != 0)
        stay += std::count(there.begin(), there.end(), s) != 0 && !is_leased(s) && s != run.stands_on &&
                kept.count(s) == 0 && pins_.count(s) == 0 && (run.best == 0 || broken_->count(s) == 0);
    if (stay > std::max<std::size_t>(run.keep, 1)) wrong_ = std::to_string(stay) + " of its own are kept";
  }
  void set_base_step(one_run& run, std::int64_t step) {
    run.stands_on = run.leases = step;
    run.knows = true;
    run.at = step;
    run.own.clear();
    run.line.clear();
    for (const auto s : reader_.list())
      if (s <= step) run.line.insert(s);
  }
  void roll_back(one_run& run) {
    const auto step = one_of(reader_.list());
    if (!step) return;
    small_state t;
    tell(run, "load " + std::to_string(*step));
    try {
      run.ckpt->load(t.state, *step);
    } catch (const cairn::storage_error&) {  // it cannot be read now
      if (broken_->count(*step) == 0) wrong_ = "step " + std::to_string(*step) + " does not load";
      return;
    }
    set_base_step(run, *step);
    if (!t.is(*step)) wrong_ = "step " + std::to_string(*step) + " loads with another state";
    ++loads;
  }
  void restart(one_run& run) {
    run = {};
    // All of nothing: no retention.
    cairn::retention_policy policy;
    if ((run.keep = roll(4)) != 0) {
      run.verifies = roll(4) == 0;
      policy =
          policy | (run.verifies ? cairn::keep_last(run.keep, cairn::verified) : cairn::keep_last(run.keep));
    }
    if (roll(3) == 0) policy = policy | cairn::keep_every(run.every = 2 + static_cast<std::int64_t>(roll(9)));
    if (roll(3) == 0) policy = cairn::keep_best("loss", run.best = 1 + roll(3)) | policy;
    if ((run.within = roll(12) == 0)) policy = policy | cairn::keep_within(std::chrono::hours(1));
    const cairn::safetensors_storage<store> storage{store{files_, faults_}};
    run.ckpt.emplace(storage, policy, run.ear, quiet);
    small_state t;
    tell(run, "resume with keep_last " + std::to_string(run.keep) + (run.verifies ? " verified" : "") +
                  " every " + std::to_string(run.every) + " best " + std::to_string(run.best) +
                  (run.within ? " within" : ""));
    const auto there = reader_.list();
    try {
      const auto step = run.ckpt->resume(t.state);
      if (!step && !there.empty()) wrong_ = "it began anew";
      if (!step) return;
      tell(run, "from " + std::to_string(*step));
      if (!t.is(*step)) wrong_ = "step " + std::to_string(*step) + " resumes with another state";
      fall_backs += *step != there.back();
      set_base_step(run, *step);
    } catch (const cairn::storage_error& e) {
      if (e.id() != cairn::error_id::storage_nothing_loads) wrong_ = e.what();
      run.ckpt.reset();
    }
  }
  void pin_or_unpin(one_run& run) {
    if (!pins_.empty() && (pins_.size() > 2 || roll(2) == 0)) {
      const auto step = *one_of(pins_);
      run.ckpt->unpin(step);
      pins_.erase(step);
      tell(run, "unpin " + std::to_string(step));
    } else if (const auto step = one_of(reader_.list())) {
      run.ckpt->pin(*step);
      pins_.insert(*step);
      tell(run, "pin " + std::to_string(*step));
    }
  }
  /// Somebody else's: what a run committed last stays, and what one resumed from, as long as there is a note of it.
  void prune() {
    one_run as;
    as.keep = 1 + roll(3), as.every = roll(2) == 0 ? 0 : 7, as.best = roll(3);
    cairn::retention_policy policy = cairn::keep_last(as.keep);
    if (as.every != 0) policy = policy | cairn::keep_every(as.every);
    if (as.best != 0) policy = policy | cairn::keep_best("loss", as.best);
    const auto before = reader_.list();
    const cairn::any_storage storage(cairn::safetensors_storage{files_});
    const auto resumed = storage.writer().restarts();
    told_ +=
        " prune " + std::to_string(as.keep) + "," + std::to_string(as.every) + "," + std::to_string(as.best);
    if (as.best != 0 && !before.empty() && std::none_of(before.begin(), before.end(), [&](auto s) {
          const auto loss = losses_.find(s);
          return loss != losses_.end() && loss->second == loss->second;
        })) {
      CHECK_THROWS_AS((void)cairn::prune(storage, policy, {.remove = true}), cairn::usage_error);
      if (reader_.list() != before) wrong_ = "prune removes by a loss that none has";
      return;
    }
    const auto report = cairn::prune(storage, policy, {.remove = roll(4) != 0});
    auto there = reader_.list();
    std::set<std::int64_t> all(before.begin(), before.end());
    auto kept = kept_by(as, all);
    if (!before.empty()) kept.insert(before.back());
    for (const auto s : resumed)
      if (all.count(s) != 0) kept.insert(s);
    for (const auto s : kept)
      if (std::count(there.begin(), there.end(), s) == 0) wrong_ = "prune removed step " + std::to_string(s);
    if (report.checkpoints.size() != before.size())
      wrong_ = "prune looks at other checkpoints than are there";
    for (const auto& c : report.checkpoints)
      if (c.removed == (std::count(there.begin(), there.end(), c.step) != 0) ||
          (c.removed && !c.kept.empty()))
        wrong_ = "prune says another thing of step " + std::to_string(c.step) + " than it did";
    pruned += before.size() - there.size();
    for (auto& run : runs_)
      if (run.stands_on && run.stands_on != run.leases &&
          std::count(there.begin(), there.end(), *run.stands_on) == 0)
        run.stands_on.reset();
  }
  void break_or_mend() {
    if (broken_->size() > 2 || roll(3) == 0) {
      if (!broken_->empty()) broken_->erase(*one_of(*broken_));
      return;
    }
    const auto there = reader_.list();
    if (there.empty()) return;
    const auto step = roll(2) == 0 ? there.back() : *one_of(there);
    broken_->insert(step);
    told_ += " break " + std::to_string(step);
  }
  void read() {
    const auto step = one_of(reader_.list());
    if (!step || readers_.size() > 3) return;
    readers_.push_back(reader_.lease(*step));
    if (!readers_.back().held()) wrong_ = "a lease is not held";
    told_ += " lease " + std::to_string(*step);
    ++leases;
  }
  void end_reading() {
    if (readers_.empty()) return;
    const auto at = readers_.begin() + static_cast<std::ptrdiff_t>(roll(readers_.size()));
    told_ += " release " + std::to_string(at->step());
    readers_.erase(at);
  }
  [[nodiscard]] bool is_leased(std::int64_t step) const {
    return std::any_of(runs_.begin(), runs_.end(), [&](const auto& r) { return r.leases == step; }) ||
           std::any_of(readers_.begin(), readers_.end(), [&](const auto& r) { return r.step() == step; });
  }
  void look() {
    std::set<std::int64_t> needed;
    for (const auto& run : runs_) {
      if (run.committed) needed.insert(*run.committed);
      if (run.stands_on) needed.insert(*run.stands_on);
      if (run.leases) needed.insert(*run.leases);
    }
    for (const auto& r : readers_) needed.insert(r.step());
    needed.insert(pins_.begin(), pins_.end());
    for (const auto step : needed) try {
        small_state t;
        reader_.load(t.state, step);
        if (!t.is(step)) wrong_ = "step " + std::to_string(step) + " holds another state";
      } catch (const cairn::error& e) {
        wrong_ = "step " + std::to_string(step) + " is lost: " + e.what();
      }
  }

  std::mt19937_64 dice_;
  scratch_directory directory_;
  cairn::file_store files_{directory_.path()};
  std::shared_ptr<std::set<std::int64_t>> broken_ = std::make_shared<std::set<std::int64_t>>();
  std::shared_ptr<cairn_test::store_faults> faults_ = [this] {
    auto faults = std::make_shared<cairn_test::store_faults>();
    faults->add({.kind = cairn_test::store_call::read,
                 .for_ever = true,
                 .key_contains = "step-",
                 .action = [broken = broken_](std::string_view key) {
                   const auto about = cairn::parse_key(key);
                   if (about && broken->count(about->step) != 0)
                     cairn::fail(cairn::error_id::storage_io, "an injected fault",
                                 {.file = std::string(key)});
                 }});
    return faults;
  }();
  cairn::checkpointer_for<cairn::file_store> reader_{files_, cairn::read_only{}, quiet};  // stands on nothing
  std::vector<cairn::checkpoint_lease> readers_;
  std::array<one_run, 2> runs_;
  std::map<std::int64_t, double> losses_;
  std::set<std::int64_t> pins_;
  std::string wrong_, told_;
};

}  // namespace

TEST_CASE(
    "whatever runs save, load and resume, and whoever reads, what was committed and is stood on stays") {
  const auto begin = std::chrono::steady_clock::now();
  const auto sequences = cairn_test::rounds(30, 100);
  std::uint64_t commits = 0, loads = 0, fall_backs = 0, leases = 0, removed = 0, pruned = 0, failures = 0;
  for (std::uint64_t i = 0; i < sequences && failures < 3; ++i) {
    const auto seed = cairn_test::test_seed() + i;
    two_runs runs(seed);
    const auto wrong = runs.play(30);
    CHECK_MESSAGE(wrong == "", "CAIRN_TEST_SEED=", seed, " repeats it: ", wrong);
    failures += wrong != "";
    commits += runs.commits, loads += runs.loads, fall_backs += runs.fall_backs;
    leases += runs.leases, removed += runs.removed, pruned += runs.pruned;
  }
  CHECK(removed > sequences);
  CHECK(fall_backs > sequences / 20);
  CHECK(pruned > sequences / 2);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  cairn_test::report_figures("retention", {{"sequences", sequences},
                                           {"commits", commits},
                                           {"loads", loads},
                                           {"fall_backs", fall_backs},
                                           {"leases", leases},
                                           {"removed", removed},
                                           {"pruned", pruned},
                                           {"failures", failures},
                                           {"seed", cairn_test::test_seed()},
                                           {"seconds", static_cast<std::uint64_t>(seconds.count())}});
}

TEST_CASE("keep_last(n, verified) removes a predecessor when the newer one was read back, not before") {
  const cairn::memory_store memory;
  const auto faults = std::make_shared<cairn_test::store_faults>();
  const scrub_ear ear;
  cairn::checkpointer ckpt{cairn::safetensors_storage{cairn_test::faulty_store{memory, faults}},
                           cairn::keep_last(1, cairn::verified), ear, quiet};
  small_state t;
  ckpt.save(t.state, 1).wait();
  REQUIRE(ear.comes_to(1));
  stopped_call reads;
  faults->add(
      {.kind = cairn_test::store_call::read, .key_contains = ".safetensors", .action = reads.action()});
  ckpt.save(t.state, 2).wait();
  reads.wait();
  CHECK(ckpt.list() == steps{1, 2});
  // Train on: nothing is removed as long as nothing newer is verified.
  ckpt.save(t.state, 3).wait();
  ckpt.save(t.state, 4).wait();
  CHECK(ckpt.list() == steps{1, 2, 3, 4});
  reads.go_on();
  REQUIRE(ear.comes_to(4));
  CHECK(ckpt.list() == steps{4});
  ckpt.close();
  CHECK(ear.warnings() == 0);
}

TEST_CASE(
    "what is committed while a verification lists the checkpoints counts, and goes when it is its turn") {
  const cairn::memory_store memory;
  const auto faults = std::make_shared<cairn_test::store_faults>();
  const scrub_ear ear;
  cairn::checkpointer ckpt{cairn::safetensors_storage{cairn_test::faulty_store{memory, faults}},
                           cairn::keep_last(1, cairn::verified), ear, quiet};
  small_state t;
  stopped_call reads, lists;
  faults->add(
      {.kind = cairn_test::store_call::read, .key_contains = ".safetensors", .action = reads.action()});
  ckpt.save(t.state, 1).wait();
  reads.wait();
  faults->add({.kind = cairn_test::store_call::list, .after = true, .action = lists.action()});
  reads.go_on();
  lists.wait();
  ckpt.save(t.state, 2).wait();
  lists.go_on();
  REQUIRE(ear.comes_to(2));
  ckpt.save(t.state, 3).wait();
  REQUIRE(ear.comes_to(3));
  CHECK(ckpt.list() == steps{3});
  ckpt.close();
  CHECK(ear.warnings() == 0);
}

TEST_CASE("a checkpoint that does not verify is reported with its file, and its predecessor stays") {
  const cairn::memory_store memory;
  const auto faults = std::make_shared<cairn_test::store_faults>();
  const scrub_ear ear;
  cairn::checkpointer ckpt{cairn::safetensors_storage{cairn_test::faulty_store{memory, faults}},
                           cairn::keep_last(1, cairn::verified), ear, quiet};
  small_state t;
  ckpt.save(t.state, 1).wait();
  REQUIRE(ear.comes_to(1));
  faults->add({.kind = cairn_test::store_call::read,
               .key_contains = ".safetensors",
               .action = [&](std::string_view key) {  // a byte of the disk flips before it is read
                 cairn::memory_store disk = memory;
                 auto bytes = *disk.read_all(key, 1u << 20);
                 bytes.back() ^= std::byte{1};
                 disk.remove(key);
                 disk.put_new(key, bytes);
               }});
  ckpt.save(t.state, 2).wait();
  const auto told = ear.comes_to_warn();
  CHECK(told.find("step 2 could not be verified") != std::string::npos);
  CHECK(told.find("step-00000002/rank-00000") != std::string::npos);
  CHECK(ckpt.list() == steps{1, 2});
  ckpt.save(t.state, 3).wait();
  REQUIRE(ear.comes_to(3));
  CHECK(ckpt.list() == steps{3});
}

TEST_CASE("close gives up a verification that is under way, and removes nothing") {
  cairn::memory_store memory;
  const scrub_ear ear;
  {
    cairn::checkpointer ckpt{memory, cairn::keep_last(1, cairn::verified_t{.bytes_per_second = 1}), ear,
                             quiet};
    small_state t;
    ckpt.save(t.state, 1).wait();  // takes its 520 bytes at once, and all that come next some minutes later
    REQUIRE(ear.comes_to(1));
    ckpt.save(t.state, 2).wait();
    ckpt.close();
  }
  CHECK(ear.warnings() == 0);
  cairn::checkpointer next{memory, quiet};
  CHECK(next.list() == steps{1, 2});
}
