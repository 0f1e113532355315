// SPDX-License-Identifier: Apache-2.0
// links: cairn::interprocess
// needs: inspect
// cost: 70
//
// The local tier: what is held survives the end of every process, whenever that comes; what is damaged is refused,
// and another source of the same step is taken; the store's delays cost training nothing; nothing stays after close().
#include <doctest/doctest.h>

#include <cairn/any_checkpointer.hpp>
#include <cairn/cairn.hpp>
#include <cairn/checkpointer/persist_schedule.hpp>
#include <cairn/comm/shared_memory_communicator.hpp>
#include <cairn/execute/process_executor.hpp>
#include <cairn/redundancy/new_slot.hpp>
#include <cairn/storage/manifest/names.hpp>
#include <cairn/system/populate.hpp>
#include <cairn/tiers/held_record.hpp>
#include <cairn/tiers/held_store.hpp>
#include <cairn/tiers/local_tier.hpp>
#include <cairn/tiers/tier_files.hpp>
#include <paths.hpp>
#include <support/faulty_store.hpp>
#include <support/on_all_ranks.hpp>
#include <support/process_ranks.hpp>
#include <support/sanitized.hpp>
#include <support/scratch_directory.hpp>
#include <support/small_disk.hpp>
#include <support/tier_archetype.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

void cairn_test_before_main(int argc, char** argv) {
  cairn::worker_main(argc, argv);
}

namespace {
using cairn_test::process_ranks;
using cairn_test::rank_process;
using cairn_test::scratch_directory;
namespace fs = std::filesystem;

/// In the process of a rank, where doctest's assertions do not belong.
void expect(bool is, const std::string& what) {
  if (!is) throw std::runtime_error("not so: " + what);
}

// --- A job ---------------------------------------------------------------------------------------------------------

/// The worker processes of this one.
std::vector<::pid_t> workers() {
  std::vector<::pid_t> found;
  const auto own = std::to_string(::getpid());
  for (const auto& process : fs::directory_iterator("/proc")) {
    const auto name = process.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto text_of = [&](const char* file) {
      std::string text;
      std::ifstream in(process.path() / file);
      std::getline(in, text, '\n');  // of a process that has ended meanwhile: nothing
      return text;
    };
    // "number (name) state parent ...", where a name may hold anything.
    const auto stat = text_of("stat");
    const auto end = stat.rfind(')');
    if (end != std::string::npos && stat.find(" " + own + " ", end) == end + 3 &&
        text_of("cmdline").find("cairn-worker") != std::string::npos)
      found.push_back(static_cast<::pid_t>(std::stol(name)));
  }
  return found;
}

/// At which change of the records a worker is killed.
struct worker_kill {
  std::string point = {};
  int count = 0;
  bool trainer_too = false;
};

/// Words that the ranks of a job share with the test.
enum word : std::size_t { resumed, passed_over, warned, from_tier, struck, promised };

/// Tells each change of a tier's records to the rank, which may be killed there, or its worker. Two threads make
/// changes.
class told_files final : public cairn::tier_files {
 public:
  told_files(rank_process& me, worker_kill kill) : me_(me), kill_(std::move(kill)) {}
  void put(const std::string& path, std::span<const std::byte> bytes) override {
    around("put", [&] { tier_files::put(path, bytes); });
  }
  void rename(const std::string& from, const std::string& to) override {
    around("rename", [&] { tier_files::rename(from, to); });
  }
  void remove(const std::string& path) override {
    around("remove", [&] { tier_files::remove(path); });
  }
  void write(const std::string& path, int file, std::uint64_t offset,
             std::span<const std::byte> bytes) override {
    around("write", [&] { tier_files::write(path, file, offset, bytes); });
  }
  void sync(const std::string& path, int file) override {
    around("sync", [&] { tier_files::sync(path, file); });
  }

 private:
  template <class Change>
  void around(const std::string& name, Change&& change) {
    const std::lock_guard lock(mutex_);
    point("before " + name);
    change();
    point("after " + name);
  }
  void point(const std::string& name) {
    me_.point(name);
    if (me_.rank() != 0 || name != kill_.point || --kill_.count != 0) return;
    for (const auto worker : workers()) {
      ::kill(worker, SIGKILL);
      ++me_.word(struck);
    }
    if (kill_.trainer_too) ::kill(::getpid(), SIGKILL);
  }
  rank_process& me_;
  worker_kill kill_;
  std::mutex mutex_;
};

class told_events {
 public:
  using cairn_role = cairn::role::observer;
  explicit told_events(rank_process& me) : me_(&me) {}
  void observe(const cairn::observation& what) noexcept {
    if (me_->rank() != 0) return;
    using event = cairn::observation::event;
    if (what.kind == event::fell_back) ++me_->word(passed_over);
    if (what.kind == event::warning) ++me_->word(warned);
    if (what.kind == event::loaded) me_->word(from_tier) = what.load->from_tier;
  }

 private:
  rank_process* me_;
};

struct job_places {
  scratch_directory store;
  scratch_directory memory{"/dev/shm"};
  scratch_directory disk;
  bool on_disk = false;
  std::string host = "tier";  // each has a memory of its own
  [[nodiscard]] std::string tier() const { return (on_disk ? disk : memory).path() + "/" + host; }
  int runs = 0;
};
struct way {
  bool overlapped = false;
  bool worker = false;
  std::uint64_t every = 1000;
  int keep = 2;
  worker_kill kill = {};
  bool on_disk = false;
};

constexpr std::int64_t elements = 60'000;
float element(std::int64_t step, std::int64_t i) {
  return static_cast<float>((step * 7919 + i) % 65521);
}

cairn::any_checkpointer make_checkpointer(const std::string& store, const std::string& tier,
                                          const std::string& name, way how, rank_process& me) {
  using namespace cairn;
  const auto with = [&](auto... more) {
    return any_checkpointer(checkpointer{
        file_store{store},
        local_tier{
            tier,
            {.keep = how.keep, .copy = {.threads = 2}, .files = std::make_shared<told_files>(me, how.kill)}},
        persist{.every = how.every}, shared_memory_communicator(name, me.rank(), me.size()), told_events(me),
        checkpointer_options{.timeout = std::chrono::seconds(60),
                             .peer_timeout = std::chrono::seconds(60),
                             // The worker of a killed rank may wait for one that never had the save.
                             .earlier_run_timeout = std::chrono::seconds(2),
                             .quiet = true},
        std::move(more)...});
  };
  if (how.worker) return with(process_executor{}, overlapped{});
  if (how.overlapped) return with(overlapped{});
  return with();
}

/// Trains from what it resumes until `until` steps are done, saves each step, and closes.
void train(const std::string& store, const std::string& tier, const std::string& name, way how,
           rank_process& me, std::int64_t until) {
  const std::int64_t first = elements * me.rank() / me.size();
  const std::int64_t end = elements * (me.rank() + 1) / me.size();
  std::vector<float> part(static_cast<std::size_t>(end - first), -1.0F);
  std::vector<float> whole(5000, -1.0F);
  std::int64_t value = -1;
  cairn::state_dict state;
  state.tensor("part", part, cairn::shard{{elements}, {first}});
  state.tensor("whole", whole, {5000});
  state.value("value", value);
  const auto fill = [&](std::int64_t step) {
    for (std::size_t i = 0; i < part.size(); ++i)
      part[i] = element(step, first + static_cast<std::int64_t>(i));
    for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = element(step, static_cast<std::int64_t>(i));
    value = step * 3;
  };
  auto ckpt = make_checkpointer(store, tier, name, how, me);
  auto step = ckpt.resume(state).value_or(0);
  if (step > 0) {
    const auto part_read = part;
    const auto whole_read = whole;
    expect(value == step * 3, "the value is that of step " + std::to_string(step));
    fill(step);
    expect(part == part_read && whole == whole_read, "the tensors are those of step " + std::to_string(step));
  }
  if (me.rank() == 0) me.word(resumed) = static_cast<std::uint32_t>(step) + 1;
  try {
    while (step < until) {
      ckpt.before_update();
      fill(++step);
      const auto save = ckpt.save(state, step);
      save.wait_held();
      expect(save.held() && save.report().held_seconds > 0, "the save is held");
      me.word(promised + static_cast<std::size_t>(me.rank())) = static_cast<std::uint32_t>(step);
      static_cast<void>(ckpt.any_rank(false));  // as the collectives of a training step
    }
    ckpt.close();
  } catch (const cairn::peer_error&) {
    ::kill(::getpid(), SIGKILL);  // as a launcher does when a rank is gone
  }
}

struct outcome {
  std::vector<cairn_test::rank_end> ends;
  std::int64_t resumed = -1;  // -1: it did not come so far
  std::int64_t promised = 0;  // held by all ranks, as they were told
  std::uint32_t passed_over = 0;
  std::uint32_t warned = 0;
  bool from_tier = false;
  std::uint32_t struck = 0;  // workers that were killed
  [[nodiscard]] bool good() const {
    return std::all_of(ends.begin(), ends.end(), [](const auto& e) { return e.good(); });
  }
  [[nodiscard]] std::string text() const {
    std::string all;
    for (const auto& e : ends) all += e.text() + "; ";
    return all;
  }
};
outcome run(job_places& places, int ranks, way how, std::int64_t until, int killed = -1,
            const std::string& point = "", int count = 1) {
  process_ranks processes(ranks);
  if (killed >= 0) processes.kill_at(killed, point, count);
  const auto name = "tier" + std::to_string(::getpid()) + "x" + std::to_string(++places.runs);
  const auto store = places.store.path();
  places.on_disk = how.on_disk;
  const auto tier = places.tier();
  outcome o;
  o.ends = processes.run([=](rank_process& me) { train(store, tier, name, how, me, until); });
  o.resumed = static_cast<std::int64_t>(processes.word(resumed).load()) - 1;
  o.promised = INT64_MAX;
  for (int r = 0; r < ranks; ++r)
    o.promised =
        std::min<std::int64_t>(o.promised, processes.word(promised + static_cast<std::size_t>(r)).load());
  o.passed_over = processes.word(passed_over), o.warned = processes.word(warned);
  o.from_tier = processes.word(from_tier) != 0, o.struck = processes.word(struck);
  return o;
}
std::vector<std::string> left_in(const std::string& directory) {
  std::vector<std::string> names;
  if (!fs::exists(directory)) return names;
  for (const auto& e : fs::directory_iterator(directory)) names.push_back(e.path().filename());
  return names;
}
/// Kills a rank at a point, and resumes: what was promised, or something newer, is there. Returns whether the
/// point came so often.
bool kill_and_resume(int ranks, way how, int killed, const std::string& point, int count) {
  CAPTURE(ranks);
  CAPTURE(how.worker);
  CAPTURE(how.overlapped);
  CAPTURE(point);
  CAPTURE(count);
  job_places places;
  const auto first = run(places, ranks, how, 6, killed, point, count);
  CAPTURE(first.text());
  if (first.good()) {  // the point did not come so often
    CHECK(left_in(places.tier()).empty());
    return false;
  }
  REQUIRE(first.ends[static_cast<std::size_t>(killed)].killed());
  const auto second = run(places, ranks, how, 8);
  CAPTURE(second.text());
  CHECK(second.good());
  CHECK(second.resumed >= first.promised);
  CHECK(second.passed_over == 0);
  CHECK(left_in(places.tier()).empty());
  return true;
}

const std::array points{"before put",   "after put",     "before rename",
                        "after rename", "before remove", "after remove"};

// survives: trainer-killed
TEST_CASE("a trainer that is killed at any step of holding finds the newest save that was held") {
  int kills = 0;
  for (const auto* point : points)
    for (const int count : {1, 2, 3, 4, 5, 7, 9}) kills += kill_and_resume(1, {}, 0, point, count);
  CHECK(kills >= 38);
}
// survives: trainer-killed
TEST_CASE("overlapped saves are held as well, and with keep = 1") {
  int kills = 0;
  for (const auto* point : points)
    for (const int count : {2, 5})
      kills += kill_and_resume(1, {.overlapped = true, .keep = 1}, 0, point, count);
  CHECK(kills == 12);
}
// survives: rank-killed
TEST_CASE("one of two ranks that is killed leaves a step that both hold") {
  int kills = 0;
  for (const auto* point : points)
    for (const int count : {1, 3, 6}) {
      kills += kill_and_resume(2, {}, 0, point, count);
      kills += kill_and_resume(2, {.overlapped = true, .keep = 1}, 1, point, count);
    }
  CHECK(kills == 36);
}
// survives: rank-killed
TEST_CASE("with worker processes that write every second save to the store") {
  int kills = 0;
  for (const auto* point : {"after put", "after rename", "after remove"})
    for (const int count : {2, 5}) kills += kill_and_resume(2, {.worker = true, .every = 2}, 0, point, count);
  CHECK(kills == 6);
}

/// Whether the directory of tests is one in which a tier can lie.
bool tiers_can_lie_here() {
  scratch_directory place;
  try {
    cairn::local_tier tier{place.path() + "/tier"};
    tier.open({cairn::run_id{1, 1}, 0, 1, "a test"});
    tier.end();
    return true;
  } catch (const cairn::usage_error& e) {
    MESSAGE("skipped: " << e.what());
    return false;
  }
}
// survives: trainer-killed
TEST_CASE("a tier on a disk holds as well, whoever is killed at any step of it") {
  if (!tiers_can_lie_here()) return;
  int kills = 0;
  for (const auto* point : {"before write", "after write", "before sync", "after sync", "before rename",
                            "after rename", "after put", "before remove"})
    for (const int count : {1, 4, 6}) {
      kills += kill_and_resume(1, {.keep = 1, .on_disk = true}, 0, point, count);
      if (count == 4) kills += kill_and_resume(2, {.overlapped = true, .on_disk = true}, 1, point, count);
    }
  kills += kill_and_resume(1, {.worker = true, .every = 2, .on_disk = true}, 0, "after rename", 6);
  CHECK(kills >= 26);
}

/// Kills the worker of rank 0 at a point, and the trainer with it or not; resumes, and returns whether it killed one.
bool kill_worker_and_resume(int ranks, const char* point, int count, bool trainer_too) {
  CAPTURE(ranks);
  CAPTURE(point);
  CAPTURE(count);
  CAPTURE(trainer_too);
  job_places places;
  const auto first = run(places, ranks,
                         {.overlapped = true,
                          .worker = true,
                          .every = 2,
                          .kill = {.point = point, .count = count, .trainer_too = trainer_too}},
                         6);
  CAPTURE(first.text());
  // Without its worker the trainer goes on: what the store did not get, close() tells of.
  if (trainer_too)
    CHECK((first.struck == 0 || first.ends[0].killed()));
  else
    CHECK(first.promised == 6);
  const auto second = run(places, ranks, {.worker = true}, 8);
  CAPTURE(second.text());
  CHECK(second.good());
  CHECK(second.resumed >= first.promised);
  CHECK(second.passed_over == 0);
  CHECK(left_in(places.tier()).empty());
  return first.struck != 0;
}
// survives: worker-killed
TEST_CASE("a worker that is killed at any step of holding costs no step") {
  int kills = 0;
  for (const auto* point : points)
    for (const int count : {4, 7}) kills += kill_worker_and_resume(1, point, count, false);
  CHECK(kills >= 6);
}
// survives: worker-killed
TEST_CASE("a trainer and its worker that are killed together find the newest save that was held") {
  int kills = 0;
  for (const auto* point : points) {
    kills += kill_worker_and_resume(1, point, 4, true);
    kills += kill_worker_and_resume(2, point, 6, true);
  }
  CHECK(kills >= 6);
}

/// The newest save that is held, and its record of rank 0.
cairn::detail::held_name newest_held(const std::string& tier) {
  std::optional<cairn::detail::held_name> newest;
  for (const auto& each : left_in(tier))
    if (const auto name = cairn::detail::parse_held_name(each); name && name->rank == 0)
      if (!newest || name->step > newest->step) newest = name;
  REQUIRE(newest);
  return *newest;
}
void flip(const std::string& path, std::int64_t at) {
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(file >= 0);
  unsigned char byte = 0;
  REQUIRE(::pread(file, &byte, 1, at) == 1);
  byte ^= 4;
  REQUIRE(::pwrite(file, &byte, 1, at) == 1);
  ::close(file);
}
/// A job that was killed as its fifth save was held.
void killed_job(job_places& places, int ranks, way how, std::int64_t resumed_at = 0) {
  // The first of these renames are those of the job and of the two files of the plan.
  const auto first = run(places, ranks, how, 100, 0, "after rename", 8);
  CAPTURE(first.text());
  REQUIRE(first.ends[0].killed());
  REQUIRE(first.resumed == resumed_at);
  REQUIRE(newest_held(places.tier()).step == resumed_at + 5);
}

// survives: bit-flipped
TEST_CASE("a flipped bit in an image is found, and the save before it is taken") {
  job_places places;
  killed_job(places, 1, {});
  const auto name = newest_held(places.tier());
  flip(places.tier() + "/" + cairn::detail::slot_name(0, name.slot), 4096 + 100'000);
  const auto again = run(places, 1, {}, 6);
  CAPTURE(again.text());
  CHECK(again.good());
  CHECK(again.resumed == 4);
  CHECK(again.from_tier);
  CHECK(again.passed_over == 1);
}
// survives: bit-flipped
TEST_CASE("a flipped bit in an image on a disk is found, and the save before it is taken") {
  if (!tiers_can_lie_here()) return;
  job_places places;
  const way how{.on_disk = true};
  killed_job(places, 1, how);
  const auto name = newest_held(places.tier());
  flip(places.tier() + "/" + cairn::detail::slot_name(0, name.slot), 4096 + 100'000);
  const auto again = run(places, 1, how, 6);
  CAPTURE(again.text());
  CHECK(again.good());
  CHECK(again.resumed == 4);
  CHECK(again.from_tier);
  CHECK(again.passed_over == 1);
  CHECK(left_in(places.tier()).empty());
}
// survives: bit-flipped
TEST_CASE("a flipped bit anywhere in a record is found, and told") {
  for (const std::int64_t at : {3, 9, 40, 200, 300}) {
    CAPTURE(at);
    job_places places;
    killed_job(places, 1, {});
    flip(places.tier() + "/" + to_string(newest_held(places.tier())), at);
    const auto again = run(places, 1, {}, 6);
    CAPTURE(again.text());
    CHECK(again.good());
    CHECK(again.resumed == 4);
    CHECK(again.warned >= 1);
  }
}
/// A job that was killed when its third save was held and committed.
void stored_job(job_places& places) {
  {
    process_ranks one(1);
    const auto store = places.store.path();
    const auto tier = places.tier();
    const auto ends = one.run([=](rank_process& me) {
      std::vector<float> part(elements);
      std::vector<float> whole(5000);
      std::int64_t value = 0;
      cairn::state_dict state;
      state.tensor("part", part, {elements});
      state.tensor("whole", whole, {5000});
      state.value("value", value);
      cairn::checkpointer ckpt{cairn::file_store{store}, cairn::local_tier{tier},
                               cairn::checkpointer_options{.quiet = true}};
      for (std::int64_t step = 1; step <= 3; ++step) {
        for (std::size_t i = 0; i < part.size(); ++i) part[i] = element(step, static_cast<std::int64_t>(i));
        for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = element(step, static_cast<std::int64_t>(i));
        value = step * 3;
        const auto save = ckpt.save(state, step);
        save.wait();  // every save goes to the store without persist{}
        save.wait_held();
        expect(save.committed() && save.held(), "a save is held and committed");
      }
      me.word(promised) = 3;
      ::kill(::getpid(), SIGKILL);
    });
    REQUIRE(ends[0].killed());
  }
  REQUIRE(newest_held(places.tier()).step == 3);
}
// survives: bit-flipped
TEST_CASE("the same step is taken from the store before an older one is taken from the tier") {
  job_places places;
  stored_job(places);
  const auto name = newest_held(places.tier());
  flip(places.tier() + "/" + cairn::detail::slot_name(0, name.slot), 4096 + 50'000);
  const auto again = run(places, 1, {}, 4);
  CAPTURE(again.text());
  CHECK(again.good());
  CHECK(again.resumed == 3);
  CHECK(!again.from_tier);
  CHECK(again.passed_over == 1);
}
/// Flips a bit in the plan, in one of its two files or in both.
void flip_in_plan(const job_places& places, int of_ten, bool first, bool second) {
  int files = 0;
  for (const auto& each : left_in(places.tier())) {
    if (!each.starts_with("plan.")) continue;
    ++files;
    const auto plan = places.tier() + "/" + each;
    if (each.ends_with(".2") ? second : first)
      flip(plan, static_cast<std::int64_t>(fs::file_size(plan) - 1) * of_ten / 10);
  }
  REQUIRE(files == 2);
}
/// What the program inspect prints of a tier, and its exit status.
std::pair<std::string, int> inspected(const std::string& tier, const std::string& more = "") {
  const auto command = cairn_test::program("inspect") + " '" + tier + "' " + more + " 2>&1";
  std::FILE* out = ::popen(command.c_str(), "r");
  REQUIRE(out != nullptr);
  std::string text;
  std::array<char, 4096> part{};
  for (std::size_t got = 0; (got = std::fread(part.data(), 1, part.size(), out)) > 0;)
    text.append(part.data(), got);
  const int status = ::pclose(out);
  return {text, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}
TEST_CASE("inspect tells what a tier holds, and finds a flipped bit") {
  job_places places;
  killed_job(places, 2, {});
  const auto [text, status] = inspected(places.tier(), "--verify");
  CAPTURE(text);
  CHECK(status == 0);
  CHECK(text.find("a local tier of ") != std::string::npos);
  CHECK(text.find("step 4  held  2 ranks  ") != std::string::npos);
  CHECK(text.find("every digest is right") != std::string::npos);
  std::optional<cairn::detail::held_name> four;
  for (const auto& each : left_in(places.tier()))
    if (const auto name = cairn::detail::parse_held_name(each); name && name->rank == 1 && name->step == 4)
      four = name;
  REQUIRE(four);
  flip(places.tier() + "/" + cairn::detail::slot_name(1, four->slot), 4096 + 50'000);
  const auto [again, found] = inspected(places.tier(), "--verify");
  CAPTURE(again);
  CHECK(found == 4);
  CHECK(again.find("step 4  damaged: ") != std::string::npos);
  CHECK(inspected(places.tier(), "--step 4").second == 2);
}
// survives: plan-flipped
TEST_CASE("a flipped bit in one file of the plan costs nothing") {
  for (const int of_ten : {0, 5, 10})
    for (const bool first : {true, false}) {
      CAPTURE(of_ten);
      CAPTURE(first);
      job_places places;
      killed_job(places, 1, {});
      flip_in_plan(places, of_ten, first, !first);
      const auto again = run(places, 1, {}, 6);
      CAPTURE(again.text());
      CHECK(again.good());
      CHECK(again.resumed == 5);
      CHECK(again.from_tier);
    }
}
// survives: plan-flipped
TEST_CASE("flipped bits in both files of the plan are found, and what the tier holds of it is not loaded") {
  for (const int of_ten : {0, 1, 5, 10}) {
    CAPTURE(of_ten);
    job_places places;
    stored_job(places);
    flip_in_plan(places, of_ten, true, true);
    const auto again = run(places, 1, {}, 4);
    CAPTURE(again.text());
    CHECK(again.good());
    CHECK(again.resumed == 3);
    CHECK(!again.from_tier);
    CHECK(again.warned >= 1);
  }
  // With nothing in the store, the job does not begin anew as if there had been nothing.
  job_places places;
  killed_job(places, 1, {});
  flip_in_plan(places, 5, true, true);
  const auto again = run(places, 1, {}, 6);
  CAPTURE(again.text());
  CHECK(again.ends[0].code == 1);
  CHECK(again.ends[0].said.find("nothing was overwritten") != std::string::npos);
  CHECK(newest_held(places.tier()).step == 5);
}
TEST_CASE("an image whose process was killed before it had the memory is no image") {
  job_places places;
  killed_job(places, 1, {});
  std::ofstream(places.tier() + "/" + cairn::detail::slot_name(0, 17));
  fs::permissions(places.tier() + "/" + cairn::detail::slot_name(0, 17),
                  fs::perms::owner_read | fs::perms::owner_write);
  const auto again = run(places, 1, {}, 100, 0, "after rename", 4);
  CAPTURE(again.text());
  CHECK(again.ends[0].killed());
  CHECK(again.resumed == 5);
  CHECK(!fs::exists(places.tier() + "/" + cairn::detail::slot_name(0, 17)));
}
// --- What was left behind ------------------------------------------------------------------------------------------

// survives: left-behind, host-lost, memory-ends
TEST_CASE("a tier that stayed behind while the job went on elsewhere is not resumed, and says so") {
  for (const bool had_begun : {false, true}) {
    CAPTURE(had_begun);
    job_places places;
    if (had_begun) {
      const auto before = run(places, 1, {}, 1);
      REQUIRE(before.good());  // the store has step 1
    }
    killed_job(places, 1, {}, had_begun ? 1 : 0);
    const auto behind = newest_held(places.tier()).step;
    places.host = "elsewhere";
    const auto elsewhere = run(places, 1, {}, 3);
    CAPTURE(elsewhere.text());
    REQUIRE(elsewhere.good());
    CHECK(elsewhere.resumed == (had_begun ? 1 : 0));
    CHECK(!elsewhere.from_tier);
    places.host = "tier";
    REQUIRE(behind > 3);
    const auto back = run(places, 1, {}, 100, 0, "before rename", 1);
    CAPTURE(back.text());
    CHECK(back.resumed == 3);
    CHECK(!back.from_tier);
    CHECK(back.warned >= 1);
    // Nothing of it is left for the next start either.
    const auto again = run(places, 1, {}, 4);
    CAPTURE(again.text());
    CHECK(again.good());
    CHECK(again.resumed == 3);
    CHECK(left_in(places.tier()).empty());
  }
}
TEST_CASE("what another host held and nobody has is no reason to give up what this one holds") {
  job_places places;
  killed_job(places, 1, {});
  places.host = "elsewhere";
  const auto elsewhere = run(places, 1, {}, 100, 0, "after rename", 5);
  CAPTURE(elsewhere.text());
  REQUIRE(elsewhere.ends[0].killed());
  places.host = "tier";
  const auto back = run(places, 1, {}, 6);
  CAPTURE(back.text());
  CHECK(back.good());
  CHECK(back.resumed == 5);
  CHECK(back.from_tier);
}
TEST_CASE(
    "a job that is killed again and again goes on from what each run held, whoever saved the newest "
    "checkpoint") {
  job_places places;
  REQUIRE(run(places, 1, {}, 1).good());
  std::int64_t resumed_at = 1;
  for (int i = 0; i < 4; ++i) {
    CAPTURE(i);
    const auto next = run(places, 1, {}, 100, 0, "after rename", 7);
    CAPTURE(next.text());
    REQUIRE(next.ends[0].killed());
    CHECK(next.resumed >= resumed_at);
    CHECK(next.from_tier == (i != 0));
    resumed_at = std::max(next.promised, next.resumed + 1);
  }
  const auto last = run(places, 1, {}, resumed_at + 2);
  CAPTURE(last.text());
  CHECK(last.good());
  CHECK(last.resumed >= resumed_at);
}
TEST_CASE("a job that is started more often than a save names runs goes on from what the last of them held") {
  job_places places;
  const auto store = places.store.path();
  const auto faults = std::make_shared<cairn_test::store_faults>();
  // Resumes, saves so many steps, and ends without close(). Returns what was resumed.
  const auto start = [&](int saves) {
    std::vector<float> w(1000);
    cairn::state_dict state;
    state.tensor("w", w, {1000});
    cairn::checkpointer ckpt{
        cairn_test::faulty_store<cairn::file_store>{cairn::file_store{store}, faults},
        cairn::local_tier{places.tier()}, cairn::persist{.every = 1},
        cairn::checkpointer_options{.max_consecutive_failures = 0, .max_restarts = 0, .quiet = true}};
    const auto resumed = ckpt.resume(state).value_or(0);
    for (auto step = resumed + 1; step <= resumed + saves; ++step) {
      const auto save = ckpt.save(state, step);
      save.wait_held();
      try {
        save.wait();
      } catch (const cairn::storage_error&) {  // the tier holds it all the same
      }
    }
    return resumed;
  };
  constexpr int runs = 70;
  CHECK(start(1) == 0);  // two runs commit, and then none
  CHECK(start(1) == 1);
  faults->fail_at(cairn_test::store_call::publish_new, 0, true);
  std::int64_t held = 2;
  for (int i = 0; i < runs; ++i, ++held) REQUIRE(start(1) == held);
  faults->clear();
  SUBCASE("the newest checkpoint of the store is as it was") {}
  SUBCASE("the newest checkpoint of the store is gone") {
    cairn::checkpointer ckpt{cairn::file_store{store}, cairn::checkpointer_options{.quiet = true}};
    ckpt.remove(2);
  }
  SUBCASE("the job was elsewhere") {
    places.host = "elsewhere";
    CHECK(start(1) == 2);
    places.host = "tier";
    held = 3;
  }
  CHECK(start(0) == held);
}
/// Which takes no more records, or where the process dies before its nth change, where it is told so.
class breaking_files final : public cairn::tier_files {
 public:
  std::atomic<bool> full{false};
  std::atomic<int> left{-1};  // changes until it dies; negative: it lives
  void put(const std::string& path, std::span<const std::byte> bytes) override {
    if (full && path.find("/new-0") != path.npos) cairn::fail(cairn::error_id::storage_no_space, "full");
    change([&] { tier_files::put(path, bytes); });
  }
  void rename(const std::string& from, const std::string& to) override {
    change([&] { tier_files::rename(from, to); });
  }
  void remove(const std::string& path) override {
    change([&] { tier_files::remove(path); });
  }

 private:
  void change(auto&& made) {
    if (left == 0) ::kill(::getpid(), SIGKILL);
    if (left > 0) --left;
    made();
  }
};
/// A job with one tensor, which ends without close(), as a process that is killed.
struct small_job {
  job_places places;
  std::vector<float> w = std::vector<float>(1000);
  cairn::state_dict state;
  std::shared_ptr<breaking_files> files = std::make_shared<breaking_files>();
  small_job() { state.tensor("w", w, {1000}); }
  [[nodiscard]] auto start(std::uint64_t every = 1000, int max_restarts = 0) {
    return cairn::checkpointer{cairn::file_store{places.store.path()},
                               cairn::local_tier{places.tier(), {.files = files}},
                               cairn::persist{.every = every},
                               cairn::checkpointer_options{.max_restarts = max_restarts, .quiet = true}};
  }
  void save(auto& ckpt, std::int64_t step, float value) {
    std::fill(w.begin(), w.end(), value);
    const auto save = ckpt.save(state, step);
    save.wait_held();
    save.wait();
  }
};
TEST_CASE("a step that was saved again is not given up for the checkpoint that the store has of it") {
  for (const bool same_run : {false, true}) {
    CAPTURE(same_run);
    small_job job;
    {
      auto ckpt = job.start(2);
      job.save(ckpt, 1, 1.0F);
      job.save(ckpt, 2, 2.0F);  // the store has it
      job.save(ckpt, 3, 3.0F);
      job.save(ckpt, 4, 4.0F);  // the store has it
      if (same_run) {
        ckpt.load(job.state, 2);
        job.save(ckpt, 4, 40.0F);
      }
    }
    if (!same_run) {
      auto ckpt = job.start();
      ckpt.load(job.state, 2);
      job.save(ckpt, 4, 40.0F);
    }
    {
      auto ckpt = job.start();
      CHECK(ckpt.resume(job.state) == 4);
      CHECK(job.w.front() == 40.0F);
      ckpt.close();  // nothing is left to do
    }
    auto ckpt = job.start();
    CHECK(ckpt.resume(job.state) == 4);
    CHECK(job.w.front() == 40.0F);
  }
}
TEST_CASE("of a step that several runs saved, each of which went on from the last, the newest is resumed") {
  small_job job;
  {
    auto ckpt = job.start();
    job.save(ckpt, 7, 1.0F);
  }
  for (int run = 2; run <= 12; ++run) {
    CAPTURE(run);
    auto ckpt = job.start();
    REQUIRE(ckpt.resume(job.state) == 7);
    REQUIRE(job.w.front() == static_cast<float>(run - 1));
    // Of those before it none is left, for which it could be given up.
    int held = 0;
    for (const auto& each : left_in(job.places.tier())) held += each.starts_with("held.");
    CHECK(held == 1);
    std::fill(job.w.begin(), job.w.end(), static_cast<float>(run));
    ckpt.save(job.state, 7).wait_held();  // the store may have the step already, and refuse it
  }
}
// survives: went-back
TEST_CASE("a save after load() of an older step that fails to be held costs nothing that was held") {
  for (const bool to_store : {false, true}) {
    CAPTURE(to_store);
    small_job job;
    {
      auto ckpt = job.start(4);
      for (std::int64_t step = 1; step <= 10; ++step) job.save(ckpt, step, static_cast<float>(step));
      std::vector<float> other(1000);
      cairn::state_dict evaluated;
      evaluated.tensor("w", other, {1000});
      ckpt.load(evaluated, 4);
      job.files->full = true;
      const auto fail_to_save = [&](std::int64_t step) {
        CHECK_THROWS_AS(ckpt.save(job.state, step).wait(), cairn::storage_error);
      };
      fail_to_save(9);
      if (to_store) {  // which then has a save that goes on from step 4
        std::fill(job.w.begin(), job.w.end(), 90.0F);
        ckpt.save(job.state, 9).wait();
        fail_to_save(10);
      }
    }
    job.files->full = false;
    auto ckpt = job.start();
    CHECK(ckpt.resume(job.state) == (to_store ? 9 : 10));
    CHECK(job.w.front() == (to_store ? 90.0F : 10.0F));
  }
}
// survives: went-back
TEST_CASE("a job that is killed while it goes back has the newest save before that, or the first after it") {
  for (const int way : {0, 1, 2}) {  // the same run, a new one, a new one after one that committed nothing
    CAPTURE(way);
    for (int changes = 0, ended = 0; ended == 0; ++changes) {
      CAPTURE(changes);
      small_job job;
      const auto go_back = [&](auto& ckpt) {
        ckpt.load(job.state, 4);
        job.files->left = changes;
        job.save(ckpt, 5, 50.0F);
        ::_exit(0);
      };
      const auto die = [](auto&& body) {
        const auto child = ::fork();
        if (child == 0) body(), ::_exit(1);
        int status = 0;
        ::waitpid(child, &status, 0);
        return status;
      };
      int status = 0;
      const auto first = [&](bool goes_back) {
        auto ckpt = job.start(4);
        for (const std::int64_t step : {1, 2, 3, 4, 6, 7})
          if (step <= 4 || way != 2) job.save(ckpt, step, static_cast<float>(step));
        if (goes_back) go_back(ckpt);
        ::_exit(0);
      };
      status = die([&] { first(way == 0); });
      if (way == 2)
        status = die([&] {
          auto ckpt = job.start();
          static_cast<void>(ckpt.resume(job.state));
          for (std::int64_t step = 6; step <= 7; ++step) job.save(ckpt, step, static_cast<float>(step));
          ::_exit(0);
        });
      if (way != 0)
        status = die([&] {
          auto ckpt = job.start();
          go_back(ckpt);
        });
      REQUIRE((status == 0 || WIFSIGNALED(status)));
      ended = status == 0;
      bool is_held = false;
      for (const auto& each : left_in(job.places.tier()))
        if (const auto name = cairn::detail::parse_held_name(each)) is_held |= name->step == 5;
      auto ckpt = job.start();
      REQUIRE(ckpt.resume(job.state) == (is_held ? 5 : 7));
      REQUIRE(job.w.front() == (is_held ? 50.0F : 7.0F));
      REQUIRE((is_held || ended == 0));
    }
  }
}
TEST_CASE("a step that the tier alone has and that runs crash from is passed over, and stays as it is") {
  small_job job;
  const auto end_run = [&](int max_restarts, bool saves) {
    const auto child = ::fork();
    if (child == 0) {
      auto ckpt = job.start(1000, max_restarts);
      const auto resumed = ckpt.resume(job.state).value_or(0);
      if (resumed == 0)
        for (std::int64_t step = 1; step <= 3; ++step) job.save(ckpt, step, static_cast<float>(step));
      if (saves) job.save(ckpt, 3, 30.0F);
      ::_exit(static_cast<int>(resumed));
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  CHECK(end_run(3, false) == 0);
  for (int i = 0; i < 3; ++i) CHECK(end_run(3, false) == 3);
  CHECK(end_run(3, false) == 2);
  SUBCASE("as it is said of it") {
    CHECK(end_run(0, false) == 3);
  }
  SUBCASE("until something newer is saved") {
    CHECK(end_run(3, true) == 2);
    auto ckpt = job.start();
    CHECK(ckpt.resume(job.state) == 3);
    CHECK(job.w.front() == 30.0F);
  }
}
/// Descriptors of this process that lead to this file.
int descriptors_of(const std::string& path) {
  int count = 0;
  struct stat wanted {};
  if (::stat(path.c_str(), &wanted) != 0) return 0;
  for (const auto& each : fs::directory_iterator("/proc/self/fd")) {
    struct stat s {};
    count += ::stat(each.path().c_str(), &s) == 0 && s.st_ino == wanted.st_ino && s.st_dev == wanted.st_dev;
  }
  return count;
}
TEST_CASE("a job that is started while the one before it closes takes its place, and no third one does") {
  for (const bool stays : {false, true}) {
    CAPTURE(stays);  // the directory, such as where another rank has not ended
    small_job job;
    const auto lock = job.places.tier() + "/rank-00000.lock";
    std::optional<cairn::any_checkpointer> first(std::in_place, job.start());
    first->save(job.state, 1).wait();
    if (stays) std::ofstream(job.places.tier() + "/rank-of-another.lock").put('x');
    auto next = std::async(std::launch::async,
                           [&] { return std::make_unique<cairn::any_checkpointer>(job.start()); });
    while (descriptors_of(lock) < 2 && next.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
      std::this_thread::yield();
    first->close();
    first.reset();
    std::unique_ptr<cairn::any_checkpointer> second;
    CHECK_NOTHROW(second = next.get());
    if (second == nullptr) continue;
    CHECK_THROWS_AS(static_cast<void>(job.start()), cairn::usage_error);
    second->save(job.state, 2).wait();
  }
}
struct told_kinds {
  using cairn_role = cairn::role::observer;
  std::shared_ptr<std::vector<cairn::observation::event>> kinds;
  void observe(const cairn::observation& what) noexcept {
    if (what.kind >= cairn::observation::event::wait_began) kinds->push_back(what.kind);
  }
};
TEST_CASE("a save that lives is not waited for where the tier holds a newer one of its run") {
  job_places places;
  const auto store = places.store.path();
  const auto tier = places.tier();
  process_ranks trainer(1);
  trainer.kill_at(0, "held");
  static_cast<void>(trainer.run([=](rank_process& me) {
    std::vector<float> w(1000);
    cairn::state_dict state;
    state.tensor("w", w, {1000});
    std::promise<void> stopped, never;
    const auto faults = std::make_shared<cairn_test::store_faults>();
    faults->add(
        {.kind = cairn_test::store_call::publish_new, .key_contains = "manifest", .action = [&](auto) {
           stopped.set_value();
           never.get_future().wait();
         }});
    cairn::checkpointer ckpt{cairn_test::faulty_store<cairn::file_store>{cairn::file_store{store}, faults},
                             cairn::local_tier{tier}, cairn::persist{.every = 2},
                             cairn::checkpointer_options{.quiet = true}};
    for (std::int64_t step = 1; step <= 3; ++step) {
      w[0] = static_cast<float>(step);
      ckpt.save(state, step).wait_held();
      if (step == 2) stopped.get_future().wait();
    }
    me.point("held");
  }));
  const auto key = cairn::file_store{store}.list("step-00000002/").front().key;
  const auto attempt = cairn::parse_key(key)->object.attempt;
  const auto resume = [&](std::uint64_t of_attempt, std::chrono::nanoseconds timeout, bool waits) {
    // As a worker does that goes on.
    process_ranks next(1);
    const auto ends = next.run([=](rank_process&) {
      cairn::file_store files{store};
      const auto alive = files.create(cairn::data_key(2, 0, of_attempt, 9), 0);
      using event = cairn::observation::event;
      const auto kinds = std::make_shared<std::vector<event>>();
      std::vector<float> w(1000);
      cairn::state_dict state;
      state.tensor("w", w, {1000});
      cairn::checkpointer ckpt{
          cairn::file_store{store}, cairn::local_tier{tier}, told_kinds{kinds}, cairn::persist{.every = 1000},
          cairn::checkpointer_options{
              .peer_timeout = std::chrono::hours(3), .earlier_run_timeout = timeout, .quiet = true}};
      expect(ckpt.resume(state) == 3 && w[0] == 3.0F, "what is held is resumed");
      const auto expected =
          waits ? std::vector{event::wait_began, event::fenced} : std::vector{event::fenced};
      expect(*kinds == expected, "it is told what became of the save that lives");
      std::_Exit(0);  // the tier stays as it is
    });
    CHECK_MESSAGE(ends[0].good(), ends[0].text());
  };
  SUBCASE("of that run") {
    resume(attempt, std::chrono::hours(1), false);
  }
  SUBCASE("of another run") {
    resume(attempt + (std::uint64_t{1} << 40), std::chrono::milliseconds(10), true);
  }
}
// survives: went-back
TEST_CASE(
    "after load() of an older step the saves that follow it are resumed, not those that were given up") {
  for (const bool same_run : {true, false}) {
    CAPTURE(same_run);
    job_places places;
    process_ranks one(1);
    const auto store = places.store.path();
    const auto tier = places.tier();
    const auto train_with = [&](auto body) {
      const auto ends = one.run([=](rank_process&) {
        std::vector<float> w(30'000);
        cairn::state_dict state;
        state.tensor("w", w, {30'000});
        cairn::checkpointer ckpt{cairn::file_store{store}, cairn::local_tier{tier},
                                 cairn::persist{.every = 4}, cairn::checkpointer_options{.quiet = true}};
        const auto save = [&](std::int64_t step, float value) {
          std::fill(w.begin(), w.end(), value);
          const auto handle = ckpt.save(state, step);
          handle.wait_held();
          handle.wait();
        };
        body(ckpt, state, w, save);
      });
      return ends[0];
    };
    const auto first = train_with([=](auto& ckpt, auto& state, auto&, auto& save) {
      for (std::int64_t step = 1; step <= 6; ++step) save(step, static_cast<float>(step));  // the store has 4
      if (same_run) {
        ckpt.load(state, 4);
        save(5, 50.0F);
      }
      ::kill(::getpid(), SIGKILL);
    });
    REQUIRE(first.killed());
    if (!same_run) {
      const auto second = train_with([=](auto& ckpt, auto& state, auto&, auto& save) {
        ckpt.load(state, 4);
        save(5, 50.0F);
        ::kill(::getpid(), SIGKILL);
      });
      REQUIRE(second.killed());
    }
    const auto last = train_with([](auto& ckpt, auto& state, auto& w, auto&) {
      expect(ckpt.resume(state) == 5, "the save after load() is resumed");
      expect(w.front() == 50.0F && w.back() == 50.0F, "with its values");
      ckpt.close();
    });
    CHECK_MESSAGE(last.good(), last.text());
  }
}

TEST_CASE("a job that resumes its last step and has nothing left to do leaves it where it is") {
  job_places places;
  killed_job(places, 1, {});
  for (int i = 0; i < 2; ++i) {
    const auto nothing_to_do = run(places, 1, {}, 5);
    CAPTURE(nothing_to_do.text());
    CHECK(nothing_to_do.good());
    CHECK(nothing_to_do.resumed == 5);
    CHECK(newest_held(places.tier()).step == 5);
  }
  const auto again = run(places, 1, {}, 6);
  CHECK(again.resumed == 5);
  CHECK(left_in(places.tier()).empty());
  // What the store has is not kept in memory.
  const auto once_more = run(places, 1, {}, 6);
  CHECK(once_more.resumed == 6);
  CHECK(!once_more.from_tier);
  CHECK(left_in(places.tier()).empty());
}
TEST_CASE("another number of ranks resumes what is held: 8, 6, 1 and 8 again") {
  job_places places;
  killed_job(places, 8, {});
  std::int64_t held = 4;  // by all ranks
  for (const int ranks : {6, 1}) {
    const auto next = run(places, ranks, {}, 100, 0, "after rename", 4);
    CAPTURE(next.text());
    REQUIRE(next.ends[0].killed());
    CHECK(next.resumed >= held);
    CHECK(next.from_tier);
    held = std::max(next.promised, next.resumed);
  }
  const auto last = run(places, 8, {}, held + 4);
  CAPTURE(last.text());
  CHECK(last.resumed >= held);
  CHECK(last.from_tier);
  CHECK(last.good());
  CHECK(left_in(places.tier()).empty());
}
TEST_CASE("a job that ends with fewer ranks than it had leaves nothing of the others") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    job_places places;
    killed_job(places, 4, {});
    const auto last = run(places, ranks, {}, 8);
    CAPTURE(last.text());
    CHECK(last.good());
    CHECK(last.from_tier);
    CHECK(left_in(places.tier()).empty());
    CHECK(!fs::exists(places.tier()));
  }
}
// survives: other-job
TEST_CASE("a tier is one job's") {
  job_places places;
  killed_job(places, 1, {});
  scratch_directory other_store;
  process_ranks one(1);
  const auto store = other_store.path();
  const auto tier = places.tier();
  const auto ends = one.run([=](rank_process&) {
    try {
      cairn::checkpointer ckpt{cairn::file_store{store}, cairn::local_tier{tier},
                               cairn::checkpointer_options{.quiet = true}};
    } catch (const cairn::usage_error& e) {
      expect(std::string(e.what()).find("another job") != std::string::npos, e.what());
      return;
    }
    expect(false, "the tier of another job is refused");
  });
  CHECK_MESSAGE(ends[0].good(), ends[0].text());
  CHECK(newest_held(places.tier()).step == 5);

  // Whose it is cannot be read now: that is not nobody's.
  const auto job = tier + "/job";
  fs::remove(job);
  fs::create_symlink("job", job);
  const auto unread = one.run([=](rank_process&) {
    try {
      cairn::checkpointer ckpt{cairn::file_store{store}, cairn::local_tier{tier},
                               cairn::checkpointer_options{.quiet = true}};
    } catch (const cairn::error& e) {
      expect(e.fields().file == job, e.what());
      return;
    }
    expect(false, "a tier whose job cannot be read is refused");
  });
  CHECK_MESSAGE(unread[0].good(), unread[0].text());
  CHECK(fs::is_symlink(job));
}
TEST_CASE("what a local tier cannot be is refused with a sentence") {
  scratch_directory store;
  scratch_directory memory("/dev/shm");
  process_ranks one(1);
  const auto store_path = store.path();
  const auto tier = memory.path() + "/tier";
  const auto ends = one.run([=](rank_process&) {
    const auto refused = [&](const std::string& directory, int keep, const std::string& says) {
      try {
        cairn::checkpointer ckpt{cairn::file_store{store_path}, cairn::local_tier{directory, {.keep = keep}},
                                 cairn::checkpointer_options{.quiet = true}};
      } catch (const cairn::usage_error& e) {
        return expect(std::string(e.what()).find(says) != std::string::npos, e.what());
      }
      expect(false, directory + " is refused");
    };
    refused("relative", 2, "absolute path");
    refused(tier, 0, "at least 1 image");
    struct statfs s {};
    constexpr long tmpfs = 0x01021994;
    if (::statfs("/proc", &s) == 0 && static_cast<long>(s.f_type) != tmpfs) refused("/proc", 2, "tmpfs");
    // Who may write beside the directory could lead the job elsewhere.
    fs::create_directory(tier + "-real");
    fs::create_symlink(tier + "-real", tier + "-link");
    refused(tier + "-link", 2, "a link to another place");
    std::ofstream(tier + "-file") << "x";
    refused(tier + "-file", 2, "no directory");
    fs::create_directory(tier + "-open");
    fs::permissions(tier + "-open", fs::perms::all);
    refused(tier + "-open", 2, "nobody else may write there");
    // While a process lives, it is the rank.
    cairn::checkpointer lives{cairn::file_store{store_path}, cairn::local_tier{tier},
                              cairn::checkpointer_options{.quiet = true}};
    refused(tier, 2, "another process");
  });
  CHECK_MESSAGE(ends[0].good(), ends[0].text());
}
TEST_CASE("an image that finds no room in memory takes none from others") {
  const cairn_test::small_disk disk("size=20m");
  if (!disk.mounted()) return;
  const cairn::detail::file_descriptor file(
      ::open((disk.path() + "/image").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  CHECK(cairn::detail::allocate_new_file(file.get(), std::uint64_t{64} << 20) == ENOSPC);
  struct statfs now {};
  REQUIRE(::statfs(disk.path().c_str(), &now) == 0);
  CHECK(now.f_bavail == now.f_blocks);
}
TEST_CASE("of two images that are rebuilt in memory for one, one finds no room, and leaves nothing behind") {
  const cairn_test::small_disk disk("size=20m");
  if (!disk.mounted()) return;
  const auto files = std::make_shared<cairn::tier_files>();
  constexpr std::uint64_t bytes = std::uint64_t{14} << 20;
  std::vector<std::unique_ptr<cairn::detail::new_slot>> whole;
  int refused = 0;
  {
    std::vector<std::unique_ptr<cairn::detail::new_slot>> slots;
    const auto try_to = [&](const auto& work) {
      try {
        work();
      } catch (const cairn::storage_error& e) {
        ++refused;
        CHECK(std::string(e.what()).find("no room in the local tier") != std::string::npos);
      }
    };
    for (const int rank : {0, 1})
      try_to([&] {
        slots.push_back(std::make_unique<cairn::detail::new_slot>(files, disk.path(), rank, bytes));
      });
    for (auto& slot : slots)
      try_to([&] {
        std::memset(slot->at(0, bytes), 1, bytes);
        slot->keep();
        whole.push_back(std::move(slot));
      });
  }
  CHECK(refused >= 1);
  CHECK(whole.size() + static_cast<std::size_t>(refused) == 2);
  whole.clear();
  CHECK(std::distance(fs::directory_iterator(disk.path()), fs::directory_iterator()) == 2 - refused);
}
TEST_CASE("an image in memory that becomes shorter while it is mapped is read, and refused") {
  scratch_directory store;
  scratch_directory memory("/dev/shm");
  process_ranks one(1);
  one.kill_at(0, "held");
  const auto store_path = store.path();
  const auto tier = memory.path() + "/tier";
  static_cast<void>(one.run([=](rank_process& me) {
    std::vector<float> w(std::size_t{1} << 20);
    cairn::state_dict state;
    state.tensor("w", w, {static_cast<std::int64_t>(w.size())});
    cairn::checkpointer ckpt{cairn::file_store{store_path}, cairn::local_tier{tier},
                             cairn::persist{.every = 1000}, cairn::checkpointer_options{.quiet = true}};
    static_cast<void>(ckpt.resume(state));
    ckpt.save(state, 1).wait_held();
    me.point("held");
  }));
  std::vector<cairn::detail::held_name> names;
  for (const auto& entry : fs::directory_iterator(tier))
    if (const auto name = cairn::detail::parse_held_name(entry.path().filename().string()))
      names.push_back(*name);
  std::vector<std::string> damaged;
  const auto saves = cairn::detail::complete_saves(tier, names, damaged);
  REQUIRE(saves.size() == 1);
  const cairn::detail::held_store held(tier, saves[0], names);
  auto session = held.begin_reads();
  const auto key = cairn::data_key(1, 0, saves[0].attempt, 0);
  constexpr std::uint64_t mib = std::uint64_t{1} << 20;
  std::vector<std::byte> room(mib);
  if (!session.copy(key, 0, room, nullptr)) return;  // nothing is mapped here
  // A kernel before Linux 5.14 does not tell.
  if (::madvise(room.data() + 4096 - reinterpret_cast<std::uintptr_t>(room.data()) % 4096, 4096,
                cairn::detail::madvise_populate_read) != 0)
    return;
  fs::resize_file(tier + "/" + cairn::detail::slot_name(0, names[0].slot), 4096);
  CHECK_FALSE(session.copy(key, 2 * mib, room, nullptr));
  const cairn::read_range range{key, 2 * mib, room};
  CHECK_THROWS_AS(session.read({&range, 1}), cairn::corrupt_error);
}
TEST_CASE("a directory with files of something else is refused, and they stay") {
  scratch_directory store;
  scratch_directory memory("/dev/shm");
  for (const char* name : {"run-1.log", "plan.txt", "notes"})
    std::ofstream(memory.path() + "/" + name) << "x";
  process_ranks one(1);
  const auto store_path = store.path();
  const auto tier = memory.path();
  const auto ends = one.run([=](rank_process&) {
    try {
      cairn::checkpointer ckpt{cairn::file_store{store_path}, cairn::local_tier{tier},
                               cairn::checkpointer_options{.quiet = true}};
    } catch (const cairn::usage_error& e) {
      return expect(std::string(e.what()).find("something else") != std::string::npos, e.what());
    }
    expect(false, "a directory that is in use is refused");
  });
  CHECK_MESSAGE(ends[0].good(), ends[0].text());
  for (const char* name : {"run-1.log", "plan.txt", "notes"}) CHECK(fs::exists(memory.path() + "/" + name));
}
// survives: memory-full
TEST_CASE(
    "a tmpfs that is full fails the save with a sentence; what is held stays, and the next one that fits is "
    "held") {
  cairn_test::small_disk disk("size=24m");
  if (!disk.mounted()) return;
  const auto tier = disk.path() + "/tier";
  scratch_directory store;
  const auto store_path = store.path();
  const auto run_with = [&](auto body) {
    process_ranks one(1);
    return one.run([=](rank_process&) {
      // Images of 6 MiB and of 10; three of the one kind fit, and one of the other in place of one of them.
      std::vector<float> small(std::size_t{1} << 20);
      std::vector<float> large(std::size_t{2} << 20);
      cairn::state_dict small_state;
      cairn::state_dict large_state;
      small_state.tensor("w", small, {1 << 20});
      large_state.tensor("w", large, {2 << 20});
      cairn::checkpointer ckpt{cairn::file_store{store_path}, cairn::local_tier{tier, {.keep = 1}},
                               cairn::persist{.every = 1000}, cairn::checkpointer_options{.quiet = true}};
      body(ckpt, small, small_state, large_state);
    });
  };
  const auto first =
      run_with([=](auto& ckpt, std::vector<float>& small, auto& small_state, auto& large_state) {
        const auto held = [&] {
          std::set<std::int64_t> steps;
          for (const auto& each : left_in(tier))
            if (const auto name = cairn::detail::parse_held_name(each)) steps.insert(name->step);
          return steps;
        };
        ckpt.prepare(small_state);
        ckpt.save(small_state, 1).wait_held();
        ckpt.save(small_state, 2).wait_held();
        ckpt.save(large_state, 3).wait_held();
        for (const std::int64_t step : {4, 5}) {
          const auto save = ckpt.save(large_state, step);
          try {
            save.wait_held();
            expect(false, "a fourth and a fifth image do not fit");
          } catch (const cairn::storage_error& e) {
            expect(e.id() == cairn::error_id::storage_no_space, e.what());
            expect(std::string(e.what()).find("the size of the tmpfs") != std::string::npos, e.what());
          }
          expect(!save.held() && held().contains(2) && held().contains(3), "what was held stays");
        }
        std::fill(small.begin(), small.end(), 6.0F);
        ckpt.save(small_state, 6).wait_held();
        expect(held().contains(6), "the save that fits is held");
        ::kill(::getpid(), SIGKILL);
      });
  CHECK_MESSAGE(first[0].killed(), first[0].text());
  const auto second = run_with([](auto& ckpt, std::vector<float>& small, auto& small_state, auto&) {
    expect(ckpt.resume(small_state) == 6 && small.back() == 6.0F, "the save that fitted is resumed");
  });
  CHECK_MESSAGE(second[0].good(), second[0].text());
}
// survives: files-removed
TEST_CASE("a save whose image somebody removes says so, and the next one is held") {
  job_places places;
  process_ranks one(1);
  const auto store = places.store.path();
  const auto tier = places.tier();
  const auto run_with = [&](auto body) {
    return one.run([=](rank_process&) {
      std::vector<float> w(100'000);
      cairn::state_dict state;
      state.tensor("w", w, {100'000});
      cairn::checkpointer ckpt{cairn::file_store{store}, cairn::local_tier{tier, {.keep = 1}},
                               cairn::persist{.every = 1000}, cairn::overlapped{},
                               cairn::checkpointer_options{.quiet = true}};
      body(ckpt, state, w);
    })[0];
  };
  const auto first = run_with([=](auto& ckpt, auto& state, auto& w) {
    const auto save = [&](std::int64_t step, bool cleaned) {
      std::fill(w.begin(), w.end(), static_cast<float>(step));
      const auto handle = ckpt.save(state, step);
      if (cleaned)  // as when its user logs out
        for (const auto& each : left_in(tier))
          if (each.starts_with("slot-")) fs::remove(tier + "/" + each);
      ckpt.before_update();
      handle.wait_held();
    };
    save(1, false);
    try {
      save(2, true);
      expect(false, "the image of the second save is gone");
    } catch (const cairn::storage_error& e) {
      expect(e.id() == cairn::error_id::storage_not_found, e.what());
      expect(std::string(e.what()).find("RemoveIPC") != std::string::npos, e.what());
    }
    save(3, false);
    ::kill(::getpid(), SIGKILL);
  });
  CHECK_MESSAGE(first.killed(), first.text());
  const auto second = run_with([](auto& ckpt, auto& state, auto& w) {
    expect(ckpt.resume(state) == 3 && w.back() == 3.0F, "the save after it is resumed");
    ckpt.close();
  });
  CHECK_MESSAGE(second.good(), second.text());
}
// survives: files-removed
TEST_CASE("where all files of a tier are removed, or its directory, the saves that come later are held") {
  for (const bool directory : {false, true}) {
    CAPTURE(directory);
    small_job job;
    {
      auto ckpt = job.start();
      job.save(ckpt, 1, 1.0F);
      job.save(ckpt, 2, 2.0F);
      fs::remove_all(job.places.tier());
      if (!directory) fs::create_directory(job.places.tier());
      job.save(ckpt, 3, 3.0F);
      job.save(ckpt, 4, 4.0F);
      CHECK_THROWS_AS((void)job.start(), cairn::usage_error);  // it is in use
    }
    auto ckpt = job.start();
    CHECK(ckpt.resume(job.state) == 4);
    CHECK(job.w.front() == 4.0F);
    job.save(ckpt, 5, 5.0F);
    ckpt.close();
    CHECK(left_in(job.places.tier()).empty());
  }
}
TEST_CASE("plans that change with each save do not fill the memory") {
  scratch_directory memory("/dev/shm");
  process_ranks one(1);
  const auto tier = memory.path() + "/tier";
  const auto ends = one.run([=](rank_process&) {
    cairn::checkpointer ckpt{cairn::memory_store{}, cairn::local_tier{tier, {.keep = 1}},
                             cairn::persist{.every = 1000}, cairn::checkpointer_options{.quiet = true}};
    std::vector<float> w(1000);
    for (std::int64_t step = 1; step <= 20; ++step) {
      cairn::state_dict state;
      state.tensor("w", w.data(), {500 + step});
      ckpt.save(state, step).wait_held();
    }
    std::size_t plans = 0;
    for (const auto& each : left_in(tier)) plans += each.starts_with("plan.");
    expect(plans >= 2 && plans <= 12, std::to_string(plans) + " files of plans are left of 40");
    ckpt.close();
    expect(left_in(tier).empty(), "nothing is left in the tier");
  });
  CHECK_MESSAGE(ends[0].good(), ends[0].text());
}
TEST_CASE("memory that is short is asked for before it is taken, and named") {
  if (CAIRN_TEST_ADDRESS_SANITIZED) return;  // which takes all addresses
  scratch_directory store;
  scratch_directory memory("/dev/shm");
  process_ranks one(1);
  const auto store_path = store.path();
  const auto tier = memory.path() + "/tier";
  const auto ends = one.run([=](rank_process&) {
    std::vector<float> w(std::size_t{16} << 20);
    cairn::state_dict state;
    state.tensor("w", w, {static_cast<std::int64_t>(w.size())});
    cairn::checkpointer ckpt{cairn::file_store{store_path}, cairn::local_tier{tier},
                             cairn::checkpointer_options{.quiet = true}};
    rlimit limit{};
    ::getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = rlim_t{600} << 20;  // the four images have 256 MiB, and the process its own
    std::FILE* status = std::fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    expect(status != nullptr && std::fscanf(status, "%lu", &pages) == 1, "the size of this process");
    std::fclose(status);
    limit.rlim_cur = rlim_t{pages} * 4096 + (rlim_t{100} << 20);
    expect(::setrlimit(RLIMIT_AS, &limit) == 0, "a limit is set");
    try {
      ckpt.prepare(state);
    } catch (const cairn::storage_error& e) {
      expect(e.id() == cairn::error_id::storage_limit, e.what());
      expect(std::string(e.what()).find("RLIMIT_AS") != std::string::npos, e.what());
      for (const auto& name : left_in(tier)) expect(!name.starts_with("slot-"), "nothing is allocated");
      return;
    }
    expect(false, "four images do not fit");
  });
  CHECK_MESSAGE(ends[0].good(), ends[0].text());
}

// --- The store ---------------------------------------------------------------------------------------------------------

/// A store in memory that takes no object while its gate is closed, or refuses all.
class gated_store : public cairn::memory_store {
 public:
  struct gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = true;
    bool refuses = false;
    int waiting = 0;
    /// Changes it, and wakes who waits.
    template <class Change>
    void set(Change&& change) {
      {
        const std::lock_guard lock(mutex);
        change(*this);
      }
      changed.notify_all();
    }
  };
  explicit gated_store(std::shared_ptr<gate> g) : gate_(std::move(g)) {}
  [[nodiscard]] object_writer create(std::string_view key, std::uint64_t size_hint) {
    std::unique_lock lock(gate_->mutex);
    ++gate_->waiting;
    gate_->changed.notify_all();
    gate_->changed.wait(lock, [&] { return gate_->open; });
    --gate_->waiting;
    if (gate_->refuses) cairn::fail(cairn::error_id::storage_io, "the store is away");
    return memory_store::create(key, size_hint);
  }

 private:
  std::shared_ptr<gate> gate_;
};

// survives: store-away
TEST_CASE("while the store hangs every save is held, and the newest goes there when it answers") {
  scratch_directory memory("/dev/shm");
  process_ranks one(1);
  const auto tier = memory.path() + "/tier";
  const auto ends = one.run([=](rank_process&) {
    std::vector<float> w(100'000);
    cairn::state_dict state;
    state.tensor("w", w, {100'000});
    const auto gate = std::make_shared<gated_store::gate>();
    gated_store store(gate);
    cairn::checkpointer ckpt{store, cairn::local_tier{tier}, cairn::persist{.every = 3},
                             cairn::checkpointer_options{.quiet = true}};
    ckpt.prepare(state);
    {
      const std::lock_guard lock(gate->mutex);
      gate->open = false;
    }
    std::vector<cairn::save_handle> saves;
    const auto save = [&](std::int64_t step) {
      for (auto& x : w) x = static_cast<float>(step);
      saves.push_back(ckpt.save(state, step));
      saves.back().wait_held();
    };
    for (std::int64_t step = 1; step <= 12; ++step) save(step);
    for (std::int64_t step = 1; step <= 12; ++step) {
      const auto& s = saves[static_cast<std::size_t>(step) - 1];
      expect(s.held() && !s.committed() && !s.failed(), "a save is held");
      expect(s.report().persisted == (step == 3), "the third goes to the store alone");
      if (step != 3) s.wait();  // it has ended
    }
    {
      const std::lock_guard lock(gate->mutex);
      gate->open = true;
    }
    gate->changed.notify_all();
    saves[2].wait();
    expect(saves[2].committed(), "the third is committed when the store answers");
    save(13);
    saves.back().wait();
    expect(saves.back().committed(), "the next save goes to the store");
    save(14);
    saves.back().wait();
    expect(!saves.back().committed(), "and the one after it does not");
    expect((ckpt.list() == std::vector<std::int64_t>{3, 13}), "two are committed");
    ckpt.close();
    expect(left_in(tier).empty(), "nothing is left in the tier");
    cairn::checkpointer reads{store, cairn::read_only{}, cairn::checkpointer_options{.quiet = true}};
    expect((reads.list() == std::vector<std::int64_t>{3, 13, 14}), "close() wrote the last save");
    expect(reads.resume(state) == 14 && w[99'999] == 14.0F, "which loads");
  });
  CHECK_MESSAGE(ends[0].good(), ends[0].text());
}
/// The files of a tier, whose records get their names only while it is open.
class gated_files final : public cairn::tier_files {
 public:
  void rename(const std::string& from, const std::string& to) override {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return open_; });
    }
    tier_files::rename(from, to);
  }
  void set(bool open) {
    {
      const std::lock_guard lock(mutex_);
      open_ = open;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
};
TEST_CASE("with persist and skip, a slow store skips no save: only a tier that is late does") {
  bool overlapped = false;
  SUBCASE("saves that wait for the copy") {}
  SUBCASE("overlapped saves") {
    overlapped = true;
  }
  scratch_directory memory("/dev/shm");
  std::vector<float> w(100'000);
  cairn::state_dict state;
  state.tensor("w", w, {100'000});
  const auto gate = std::make_shared<gated_store::gate>();
  const auto files = std::make_shared<gated_files>();
  gated_store store(gate);
  const auto make = [&](auto... more) -> cairn::any_checkpointer {
    return cairn::checkpointer{
        store, cairn::local_tier{memory.path() + "/tier", {.files = files}}, cairn::persist{.every = 3},
        cairn::checkpointer_options{.when_busy = cairn::busy_policy::skip, .quiet = true}, more...};
  };
  auto ckpt = overlapped ? make(cairn::overlapped{}) : make();
  ckpt.prepare(state);
  const auto save = [&](std::int64_t step) {
    auto made = ckpt.save(state, step);
    ckpt.before_update();
    return made;
  };
  gate->set([](auto& g) { g.open = false; });
  cairn::save_handle hangs;
  for (std::int64_t step = 1; step <= 12; ++step) {
    CAPTURE(step);
    const auto made = save(step);
    CHECK_FALSE(made.skipped());
    if (made.skipped()) continue;
    made.wait_held();
    CHECK(made.report().persisted == (step == 3));
    if (step == 3) hangs = made;
  }
  files->set(false);
  const auto late = save(13);
  CHECK_FALSE(late.skipped());
  CHECK(save(14).skipped());
  files->set(true);
  if (!late.skipped()) late.wait_held();
  CHECK_FALSE(save(15).skipped());
  gate->set([](auto& g) { g.open = true; });
  REQUIRE(hangs.valid());
  hangs.wait();
  CHECK(hangs.committed());
  ckpt.close();
  cairn::checkpointer reads{store, cairn::read_only{}, cairn::checkpointer_options{.quiet = true}};
  CHECK(reads.list() == std::vector<std::int64_t>{3, 15});
}
TEST_CASE("the figures of a save that was held, and went to the store at close(), begin at save()") {
  /// Notes how long after save() the commit came.
  struct notes_commit {
    using cairn_role = cairn::role::observer;
    void observe(const cairn::observation& what) const noexcept {
      if (what.kind == cairn::observation::event::committed) *seconds = what.report->committed_seconds;
    }
    std::shared_ptr<double> seconds = std::make_shared<double>(0);
  };
  const auto asked = std::make_shared<std::vector<std::string>>();
  const notes_commit told;
  std::vector<float> w(1000);
  cairn::state_dict state;
  state.tensor("w", w, {1000});
  cairn::checkpointer ckpt{cairn::memory_store{}, cairn_test::tier_archetype::make(asked),
                           cairn::persist{.every = 2}, told, cairn::checkpointer_options{.quiet = true}};
  const auto save = ckpt.save(state, 1);
  const auto begun = std::chrono::steady_clock::now();
  save.wait();
  CHECK(*told.seconds == 0);
  std::this_thread::sleep_for(
      std::chrono::milliseconds(200));  // of training, for whose length it is only held
  const std::chrono::duration<double> held = std::chrono::steady_clock::now() - begun;
  ckpt.close();
  CHECK(*told.seconds > held.count());
}

// survives: store-away
TEST_CASE("a store that fails costs training nothing, and the tier keeps what it did not get") {
  scratch_directory memory("/dev/shm");
  process_ranks one(1);
  std::uint64_t every = 2;
  SUBCASE("where some saves go there") {}
  SUBCASE("where each save goes there") {
    every = 1;
  }
  const auto tier = memory.path() + "/tier";
  const auto ends = one.run([=](rank_process&) {
    std::vector<float> w(10'000);
    cairn::state_dict state;
    state.tensor("w", w, {10'000});
    const auto gate = std::make_shared<gated_store::gate>();
    gated_store store(gate);
    cairn::checkpointer ckpt{store, cairn::local_tier{tier}, cairn::persist{.every = every},
                             cairn::checkpointer_options{.quiet = true}};
    ckpt.prepare(state);
    gate->refuses = true;
    for (std::int64_t step = 1; step <= 20; ++step) {
      const auto save = ckpt.save(state, step);
      save.wait_held();
      if (save.report().persisted) {
        try {
          save.wait();
        } catch (const cairn::storage_error&) {
        }
        expect(save.failed() && save.held(), "what the store did not take is held");
      }
    }
    try {
      ckpt.close();
    } catch (const cairn::storage_error&) {
      expect(!left_in(tier).empty(), "the tier keeps the last save");
      return;
    }
    expect(false, "close() tells that the last save is not in the store");
  });
  CHECK_MESSAGE(ends[0].good(), ends[0].text());
}

TEST_CASE("with strict, a store that fails is an error of the next save, once, which is held all the same") {
  scratch_directory memory("/dev/shm");
  process_ranks one(1);
  const auto tier = memory.path() + "/tier";
  const auto ends = one.run([=](rank_process&) {
    std::vector<float> w(10'000);
    cairn::state_dict state;
    state.tensor("w", w, {10'000});
    const auto gate = std::make_shared<gated_store::gate>();
    gated_store store(gate);
    cairn::checkpointer ckpt{store, cairn::local_tier{tier}, cairn::persist{.every = 2, .strict = true},
                             cairn::checkpointer_options{.quiet = true}};
    ckpt.prepare(state);
    const auto refuse = [&](bool refuses) {
      const std::lock_guard lock(gate->mutex);
      gate->refuses = refuses;
    };
    refuse(true);
    ckpt.save(state, 1).wait();
    const auto failed = ckpt.save(state, 2);
    try {
      failed.wait();
      expect(false, "the store refuses");
    } catch (const cairn::storage_error&) {
    }
    refuse(false);
    try {
      static_cast<void>(ckpt.save(state, 3));
      expect(false, "the next save throws what the store said");
    } catch (const cairn::storage_error& e) {
      expect(std::string(e.what()).find("the store is away") != std::string::npos, e.what());
    }
    const auto last = ckpt.save(state, 4);
    last.wait();
    last.wait_held();  // and so the one before it, which is held first
    expect((ckpt.list() == std::vector<std::int64_t>{4}), "the next one that is due goes there");
    std::set<std::int64_t> held;
    for (const auto& each : left_in(tier))
      if (const auto name = cairn::detail::parse_held_name(each)) held.insert(name->step);
    expect(held.contains(3) && held.contains(4), "what threw is held");
    ckpt.close();
  });
  CHECK_MESSAGE(ends[0].good(), ends[0].text());
}
TEST_CASE("with strict, each save that fails is thrown, also where the next one is due") {
  scratch_directory memory("/dev/shm");
  std::vector<float> w(1000);
  cairn::state_dict state;
  state.tensor("w", w, {1000});
  const auto gate = std::make_shared<gated_store::gate>();
  gated_store store(gate);
  cairn::checkpointer ckpt{store, cairn::local_tier{memory.path() + "/tier"}, cairn::persist{.strict = true},
                           cairn::checkpointer_options{.quiet = true}};
  ckpt.prepare(state);
  gate->set([](auto& g) { g.refuses = true; });
  CHECK_THROWS_AS(ckpt.save(state, 1).wait(), cairn::storage_error);
  gate->set([](auto& g) { g.refuses = false; });
  CHECK_THROWS_AS(static_cast<void>(ckpt.save(state, 2)), cairn::storage_error);
  ckpt.save(state, 3).wait();
  CHECK(ckpt.list() == std::vector<std::int64_t>{2, 3});
  ckpt.close();
}
TEST_CASE(
    "with strict, a store that hangs is thrown once, by the save that waits for it, and blocks no other") {
  constexpr auto timeout = std::chrono::seconds(3);
  scratch_directory memory("/dev/shm");
  const auto tier = memory.path() + "/tier";
  std::vector<float> w(1000);
  cairn::state_dict state;
  state.tensor("w", w, {1000});
  const auto gate = std::make_shared<gated_store::gate>();
  gated_store store(gate);
  cairn::checkpointer ckpt{store, cairn::local_tier{tier}, cairn::persist{.every = 2, .strict = true},
                           cairn::checkpointer_options{.timeout = timeout, .quiet = true}};
  ckpt.prepare(state);
  gate->set([](auto& g) { g.open = false; });
  ckpt.save(state, 1).wait();
  const auto hangs = ckpt.save(state, 2);
  ckpt.save(state, 3).wait_held();
  try {
    static_cast<void>(ckpt.save(state, 4));
    FAIL("a save that waits in vain says so");
  } catch (const cairn::timeout_error& e) {
    CHECK(e.id() == cairn::error_id::timeout_commit);
    CHECK(std::string(e.what()).find("earlier save") != std::string::npos);
  }
  const auto begin = std::chrono::steady_clock::now();
  constexpr int more = 40;
  for (std::int64_t step = 5; step < 5 + more; ++step) {
    const auto save = ckpt.save(state, step);
    save.wait_held();
    CHECK_FALSE(save.report().persisted);
    std::set<std::int64_t> held;
    for (const auto& each : left_in(tier))
      if (const auto name = cairn::detail::parse_held_name(each)) held.insert(name->step);
    if (step == 5) CHECK(held.contains(4));  // what threw is held
  }
  CHECK(std::chrono::steady_clock::now() - begin < more * timeout / 2);  // they did not wait again
  gate->set([](auto& g) { g.open = true; });
  try {
    hangs.wait();
  } catch (const cairn::error&) {  // it may be too late
  }
  ckpt.save(state, 100).wait();  // and throws nothing about what was told
  CHECK(ckpt.list().back() == 100);
  ckpt.close();
}
/// What a checkpointer warns of.
class warnings {
 public:
  using cairn_role = cairn::role::observer;
  void observe(const cairn::observation& what) noexcept {
    if (what.kind != cairn::observation::event::warning) return;
    const std::lock_guard lock(all_->mutex);
    all_->texts.emplace_back(what.text);
  }
  [[nodiscard]] std::vector<std::string> with(const std::string& part) const {
    const std::lock_guard lock(all_->mutex);
    std::vector<std::string> found;
    for (const auto& each : all_->texts)
      if (each.find(part) != std::string::npos) found.push_back(each);
    return found;
  }

 private:
  struct texts_of {
    std::mutex mutex;
    std::vector<std::string> texts;
  };
  std::shared_ptr<texts_of> all_ = std::make_shared<texts_of>();
};
TEST_CASE("a store that hangs is told once a save is due, and again after 8 and 64 of them") {
  scratch_directory memory("/dev/shm");
  std::vector<float> w(1000);
  cairn::state_dict state;
  state.tensor("w", w, {1000});
  const auto gate = std::make_shared<gated_store::gate>();
  gated_store store(gate);
  std::int64_t step = 0;
  std::int64_t stored = 0;
  for (const bool resumed : {false, true}) {
    CAPTURE(resumed);
    const warnings said;
    cairn::checkpointer ckpt{store, cairn::local_tier{memory.path() + "/tier"}, cairn::persist{.every = 2},
                             said,
                             cairn::checkpointer_options{.timeout = std::chrono::seconds(3), .quiet = true}};
    REQUIRE(ckpt.resume(state).value_or(0) == step);
    const auto save = [&] {
      auto handle = ckpt.save(state, ++step);
      handle.wait_held();
      return handle;
    };
    const auto told = [&] { return said.with("See whether the store answers"); };
    if (!resumed) {
      save();
      save().wait();
      stored = step;
    }
    gate->set([](auto& g) { g.open = false; });
    auto hangs = save();
    if (!hangs.report().persisted) hangs = save();
    REQUIRE(hangs.report().persisted);
    CHECK(told().empty());
    for (const auto until = cairn::deadline::in(std::chrono::minutes(2)); told().empty() && !until.passed();)
      save();
    REQUIRE(told().size() == 1);
    CHECK_MESSAGE(
        told()[0].find("does not have step " + std::to_string(hangs.report().step)) != std::string::npos,
        told()[0]);
    CHECK_MESSAGE(told()[0].find("1 save that was due since") != std::string::npos, told()[0]);
    CHECK_MESSAGE(told()[0].find("all steps after " + std::to_string(stored)) != std::string::npos,
                  told()[0]);
    for (int kept = 2; kept <= 64; ++kept) {
      CAPTURE(kept);
      save();
      CHECK(told().size() == (kept < 8 ? 1U : kept < 64 ? 2U : 3U));
    }
    gate->set([](auto& g) { g.open = true; });
    try {
      hangs.wait();
    } catch (const cairn::error&) {  // it may be too late
    }
    const auto next = save();
    next.wait();
    CHECK(next.committed());
    stored = step;
    save();  // which the store lacks, for the next run
    CHECK(told().size() == 3);
  }
}
TEST_CASE("with strict, failures of the store count, and saves that are only held end no row of them") {
  scratch_directory memory("/dev/shm");
  const auto gate = std::make_shared<gated_store::gate>();
  std::vector<float> w(10'000);
  cairn::state_dict state;
  state.tensor("w", w, {10'000});
  cairn::checkpointer ckpt{gated_store(gate), cairn::local_tier{memory.path() + "/tier"},
                           cairn::persist{.every = 2, .strict = true},
                           cairn::checkpointer_options{.max_consecutive_failures = 2, .quiet = true}};
  ckpt.prepare(state);
  const auto let = [&](bool through) { gate->set([&](auto& g) { g.open = through, g.refuses = true; }); };
  std::vector<cairn::error_id> thrown;
  for (std::int64_t step = 1; step <= 5; ++step) {
    let(false);  // what the store says of a save comes after its save()
    std::optional<cairn::save_handle> save;
    try {
      save = ckpt.save(state, step);
    } catch (const cairn::error& e) {
      thrown.push_back(e.id());
    }
    let(true);
    if (!save) continue;
    save->wait_held();
    try {
      save->wait();
      CHECK_FALSE(save->report().persisted);
    } catch (const cairn::storage_error&) {
      CHECK(save->report().persisted);
    }
  }
  CHECK(thrown == std::vector{cairn::error_id::storage_io, cairn::error_id::usage_too_many_failures});
  CHECK_THROWS_AS(ckpt.close(), cairn::storage_error);
}

TEST_CASE(
    "saves go to the store by their number, or when so much time has passed, by what all ranks agree on") {
  using cairn::detail::persist_schedule;
  persist_schedule third({.every = 3});
  std::vector<std::uint64_t> went;
  for (std::uint64_t count = 1; count <= 12; ++count)
    if (third.asks(count) && third.goes(count, count == 6 || count == 7, 0, true)) went.push_back(count);
  CHECK(went == std::vector<std::uint64_t>{3, 8, 11});
  // What the store lacks goes besides.
  persist_schedule behind({.every = 3});
  behind.store_lacks_step();
  went.clear();
  for (std::uint64_t count = 1; count <= 7; ++count)
    if (behind.asks(count) && behind.goes(count, count == 1, 0, count > 2)) went.push_back(count);
  CHECK(went == std::vector<std::uint64_t>{2, 3, 6});
  // Until a save is committed, whatever the time; then by their numbers. Of the saves that are asked none is due by its
  // number, so that none waits for the store.
  persist_schedule failing({.every = 10, .seconds = 60});
  failing.store_lacks_step();
  went.clear();
  std::vector<std::uint64_t> asked_for;
  for (std::uint64_t count = 1; count <= 10; ++count) {
    CHECK(failing.due(count) == (count == 10));
    if (!failing.asks(count)) continue;
    asked_for.push_back(count);
    if (failing.goes(count, count == 2, count == 10 ? 60 : 0, count > 4)) went.push_back(count);
  }
  CHECK(asked_for == std::vector<std::uint64_t>{1, 2, 3, 4, 5, 10});
  CHECK(went == std::vector<std::uint64_t>{1, 3, 4, 10});
  // Saves at every second, then ten times as often.
  persist_schedule minute({.every = 1, .seconds = 60});
  went.clear();
  int asked = 0;
  double now = 0;
  double last = 0;
  for (std::uint64_t count = 1; count <= 3000; ++count) {
    now += count <= 600 ? 1 : 0.1;
    if (!minute.asks(count)) continue;
    ++asked;
    if (!minute.goes(count, false, now - last, true)) continue;
    CHECK(now - last >= 60);
    CHECK(now - last <= 62);
    last = now;
    went.push_back(count);
  }
  CHECK(went.size() >= 13);
  CHECK(asked <= 15 * static_cast<int>(went.size()));
  // Two saves close together, then one every 30 seconds: what the first two promised is not believed for long.
  persist_schedule slower({.every = 1, .seconds = 600});
  now = 0;
  double first = 0;
  for (std::uint64_t count = 1; count <= 100 && first == 0; ++count) {
    now += count <= 2 ? 0.5 : 30;
    if (slower.asks(count) && slower.goes(count, false, now, true)) first = now;
  }
  CHECK(first >= 600);
  CHECK(first <= 1300);
}
TEST_CASE("what the store lacks after resume() is owed to it until a save is committed, whoever fails") {
  using cairn_test::store_call;
  const scratch_directory memory("/dev/shm");
  const cairn::memory_store store;
  const auto faults = std::make_shared<cairn_test::store_faults>();
  const auto run = [&](auto&& saves) {
    const cairn::thread_group group(2);
    cairn_test::on_all_ranks(2, [&](int rank) {
      std::vector<float> w(1000);
      cairn::state_dict state;
      state.tensor("w", w, cairn::shard{{2000}, {1000 * rank}});
      cairn::checkpointer ckpt{cairn_test::faulty_store<cairn::memory_store>{store, faults},
                               cairn::local_tier{memory.path() + "/tier"}, cairn::persist{.every = 1000},
                               group.communicator(rank), cairn::checkpointer_options{.quiet = true}};
      const auto from = ckpt.resume(state).value_or(0);
      saves(from, [&](std::int64_t step) {
        const auto made = ckpt.save(state, step);
        made.wait_held();
        try {
          made.wait();
        } catch (const cairn::error&) {  // that of its own, or the one that the other rank had
        }
        return made;
      });
      static_cast<void>(ckpt.any_rank(false));  // both hold it
    });
  };
  run([&](std::int64_t from, const auto& save) {
    expect(from == 0, "a new job");
    for (std::int64_t step = 1; step <= 3; ++step) expect(!save(step).report().persisted, "none is due");
  });
  for (const auto* const key : {"step-00000004/rank-00001", "step-00000005/rank-00000"})
    faults->add({.kind = store_call::create, .key_contains = key, .action = [](std::string_view) {
                   cairn::fail(cairn::error_id::storage_io, "bad for a moment");
                 }});
  run([&](std::int64_t from, const auto& save) {
    expect(from == 3, "the tier has it");
    expect(save(4).failed() && save(5).failed(), "the store refuses the part of a rank");
    expect(save(6).committed(), "the next one goes there");
    expect(!save(7).report().persisted, "once one is there, those that are due go");
  });
  CHECK(faults->triggered() == 2);
  cairn::checkpointer reads{store, cairn::read_only{}, cairn::checkpointer_options{.quiet = true}};
  CHECK(reads.list() == std::vector<std::int64_t>{6});
}
TEST_CASE("a job that is restarted more often than saves are due goes to the store with each start") {
  for (const double seconds : {0.0, 1e6}) {
    CAPTURE(seconds);
    scratch_directory memory("/dev/shm");
    const cairn::memory_store store;
    std::vector<float> w(1000);
    cairn::state_dict state;
    state.tensor("w", w, {1000});
    /// Returns what was resumed. What does not end with close() leaves its images there.
    const auto run = [&](int saves, bool close) {
      cairn::checkpointer ckpt{store, cairn::local_tier{memory.path() + "/tier"},
                               cairn::persist{.every = 10, .seconds = seconds},
                               cairn::checkpointer_options{.quiet = true}};
      const auto from = ckpt.resume(state).value_or(0);
      for (std::int64_t step = from + 1; step <= from + saves; ++step) {
        const auto save = ckpt.save(state, step);
        save.wait();
        save.wait_held();
      }
      if (close) ckpt.close();
      return from;
    };
    const auto stored = [&] {
      cairn::checkpointer reads{store, cairn::read_only{}, cairn::checkpointer_options{.quiet = true}};
      return reads.list();
    };
    CHECK(run(9, false) == 0);
    CHECK(stored().empty());  // a new job begins to count
    CHECK(run(9, false) == 9);
    CHECK(stored() == std::vector<std::int64_t>{10});
    CHECK(run(0, false) == 18);
    CHECK(run(9, true) == 18);
    CHECK(stored() == std::vector<std::int64_t>{10, 19, 27});  // the last one by close()
    CHECK(run(9, false) == 27);
    CHECK(stored() == std::vector<std::int64_t>{10, 19, 27});  // the store had what it resumed
  }
}
/// A local tier that somebody else keeps as well.
class shared_tier final : public cairn::image_tier {
 public:
  using cairn_role = cairn::role::tier;
  using stager_type = cairn::tier_stager;
  explicit shared_tier(std::shared_ptr<cairn::local_tier> inner,
                       std::function<void()> before_going_on = nullptr)
      : inner_(std::move(inner)), before_going_on_(std::move(before_going_on)) {}
  std::string describe() const override { return inner_->describe(); }
  cairn::any_stager stager() override { return inner_->stager(); }
  void open(const cairn::tier_user& user) override { inner_->open(user); }
  std::uint64_t missing(const cairn::image_layout& layout) override { return inner_->missing(layout); }
  void check_room(std::uint64_t bytes) override { inner_->check_room(bytes); }
  void keep_plan(std::uint64_t digest, const cairn::metadata& m) override { inner_->keep_plan(digest, m); }
  cairn::any_writer writer() override { return inner_->writer(); }
  std::vector<cairn::held_step> held(std::vector<std::string>& damaged) override {
    return inner_->held(damaged);
  }
  cairn::any_reader reader(const cairn::held_step& which) override { return inner_->reader(which); }
  std::optional<cairn::held_image> image(const cairn::held_step& which) override {
    return inner_->image(which);
  }
  void when_held(cairn::detail::callback<void(const cairn::held_step&)> call) override {
    inner_->when_held(std::move(call));
  }
  void withdraw(const cairn::held_step& which) override { inner_->withdraw(which); }
  void go_on_from(const cairn::tier_base& base) override {
    if (before_going_on_) before_going_on_();
    inner_->go_on_from(base);
  }
  void end() noexcept override { inner_->end(); }

 private:
  std::shared_ptr<cairn::local_tier> inner_;
  std::function<void()> before_going_on_;
};
TEST_CASE("a rank that holds the first save after a load before rank 0 does keeps it") {
  scratch_directory memory("/dev/shm");
  scratch_directory store;
  process_ranks two(2);
  const auto path = memory.path() + "/tier";
  const auto store_path = store.path();
  const auto name = "tierload" + std::to_string(::getpid());
  const auto ends = two.run([=](rank_process& me) {
    constexpr std::size_t rank_1_holds = 0;
    const auto tier = std::make_shared<cairn::local_tier>(path, cairn::local_tier_options{.keep = 2});
    std::vector<float> w(10'000);
    cairn::state_dict state;
    state.tensor("w", w, cairn::shard{{20'000}, {10'000 * me.rank()}});
    cairn::checkpointer ckpt{
        cairn::file_store{store_path}, shared_tier(tier, [&] { me.await(rank_1_holds, 1); }),
        cairn::persist{.every = 1}, cairn::shared_memory_communicator(name, me.rank(), me.size()),
        cairn::checkpointer_options{.quiet = true}};
    ckpt.save(state, 1).wait();
    ckpt.save(state, 2).wait();
    ckpt.load(state, 1);
    const auto save = ckpt.save(state, 3);
    save.wait_held();
    if (me.rank() == 1) me.word(rank_1_holds) = 1;
    static_cast<void>(ckpt.any_rank(false));
    if (me.rank() == 0) {
      std::vector<std::string> damaged;
      const auto held = tier->held(damaged);
      expect(std::any_of(held.begin(), held.end(), [](const auto& each) { return each.step == 3; }),
             "both ranks hold the save after the load");
      expect(damaged.empty(), "nothing is damaged");
    }
    static_cast<void>(ckpt.any_rank(false));
    ckpt.close();
  });
  for (const auto& each : ends) CHECK_MESSAGE(each.good(), each.text());
}
/// Of which the next sync of a directory fails where it is told so.
class failing_names final : public cairn::tier_files {
 public:
  explicit failing_names(std::string directory) : directory_(std::move(directory)) {}
  void sync(const std::string& path, int file) override {
    if (path == directory_ && fails.exchange(false))
      cairn::fail(cairn::error_id::storage_io, "the names cannot be synced");
    tier_files::sync(path, file);
  }
  std::atomic<bool> fails{false};

 private:
  const std::string directory_;
};
TEST_CASE("a save whose name a disk does not take is not held, and not found") {
  if (!tiers_can_lie_here()) return;
  scratch_directory disk;
  process_ranks one(1);
  const auto path = disk.path() + "/tier";
  const auto ends = one.run([=](rank_process&) {
    const auto files = std::make_shared<failing_names>(path);
    std::vector<float> w(10'000);
    cairn::state_dict state;
    state.tensor("w", w, {10'000});
    cairn::checkpointer ckpt{cairn::memory_store{}, cairn::local_tier{path, {.keep = 2, .files = files}},
                             cairn::persist{.every = 1000}, cairn::checkpointer_options{.quiet = true}};
    const auto held = [&] {
      std::set<std::int64_t> steps;
      for (const auto& each : left_in(path))
        if (const auto record = cairn::detail::parse_held_name(each)) steps.insert(record->step);
      return steps;
    };
    ckpt.save(state, 1).wait_held();
    files->fails = true;
    const auto save = ckpt.save(state, 2);
    try {
      save.wait_held();
      expect(false, "the failure is told");
    } catch (const cairn::storage_error&) {
    }
    expect(!save.held() && held() == std::set<std::int64_t>{1}, "what failed is not found");
    ckpt.save(state, 3).wait_held();
    expect(held() == std::set<std::int64_t>{1, 3}, "the next one is held");
    ckpt.close();
    expect(left_in(path).empty(), "nothing is left in the tier");
  });
  CHECK_MESSAGE(ends[0].good(), ends[0].text());
}
TEST_CASE("close() removes the files as well that a killed run was writing") {
  scratch_directory memory("/dev/shm");
  process_ranks one(1);
  const auto path = memory.path() + "/tier";
  const auto ends = one.run([=](rank_process&) {
    std::vector<float> w(10'000);
    cairn::state_dict state;
    state.tensor("w", w, {10'000});
    cairn::checkpointer ckpt{cairn::memory_store{}, cairn::local_tier{path}, cairn::persist{.every = 1000},
                             cairn::checkpointer_options{.quiet = true}};
    ckpt.save(state, 1).wait_held();
    for (const auto* each : {"new-00000", "new-piece-0", "new-rebuilt-0", "new-piece-3", "new-plan-rebuilt"})
      std::ofstream(path + "/" + each) << "half";
    ckpt.close();
    expect(!fs::exists(path), "the directory is gone");
  });
  CHECK_MESSAGE(ends[0].good(), ends[0].text());
}
TEST_CASE(
    "who copies images elsewhere is told of each save that is held, and has its bytes until it lets them "
    "go") {
  scratch_directory memory("/dev/shm");
  process_ranks one(1);
  const auto path = memory.path() + "/tier";
  const auto ends = one.run([=](rank_process&) {
    const auto tier = std::make_shared<cairn::local_tier>(path, cairn::local_tier_options{.keep = 2});
    std::mutex mutex;
    std::vector<cairn::held_step> told;
    tier->when_held([&](const cairn::held_step& which) {
      const std::lock_guard lock(mutex);
      told.push_back(which);
    });
    const auto newest_told = [&] {
      const std::lock_guard lock(mutex);
      return told.back();
    };
    std::vector<float> w(100'000);
    cairn::state_dict state;
    state.tensor("w", w, {100'000});
    cairn::checkpointer ckpt{cairn::memory_store{}, shared_tier(tier), cairn::persist{.every = 1000},
                             cairn::checkpointer_options{.quiet = true}};
    const auto save = [&](std::int64_t step) {
      std::fill(w.begin(), w.end(), static_cast<float>(step));
      ckpt.save(state, step).wait();
    };
    ckpt.prepare(state);
    save(1);
    expect(ckpt.describe().find("a local tier in " + path + " (in memory, pages of ") != std::string::npos,
           ckpt.describe());
    const auto first = newest_told();
    expect(first.step == 1 && first.world_size == 1, "the first save is told");
    {
      const auto image = tier->image(first);
      expect(image && image->digests.size() == 1 && !image->plan.empty() && !image->description.empty(),
             "what is held can be read");
      const auto has = [&](float value) {
        std::size_t found = 0;
        for (std::size_t at = 0; at + sizeof value <= image->bytes.size(); at += sizeof value)
          found += std::memcmp(image->bytes.data() + at, &value, sizeof value) == 0;
        return found;
      };
      expect(has(1.0F) == 100'000, "it has the bytes of the first save");
      for (std::int64_t step = 2; step <= 9; ++step) save(step);
      expect(has(1.0F) == 100'000, "eight saves later it has them still");
      expect(tier->image(first).has_value(), "and the first save is still held");
    }
    for (std::int64_t step = 10; step <= 14; ++step) save(step);
    expect(!tier->image(first), "it was given up then");
    expect(tier->image(newest_told()).has_value(), "the newest is held");
    ckpt.close();
    expect(left_in(path).empty(), "nothing is left in the tier");
  });
  CHECK_MESSAGE(ends[0].good(), ends[0].text());
}

TEST_CASE("a tier of one's own needs what the concept names, and is asked in its order") {
  const auto asked = std::make_shared<std::vector<std::string>>();
  cairn::memory_store store;
  std::vector<float> w(1000);
  cairn::state_dict state;
  state.tensor("w", w, {1000});
  {
    cairn::checkpointer ckpt{store, cairn_test::tier_archetype::make(asked), cairn::persist{.every = 2},
                             cairn::checkpointer_options{.quiet = true}};
    CHECK(!ckpt.resume(state));
    for (std::int64_t step = 1; step <= 3; ++step) {
      const auto save = ckpt.save(state, step);
      save.wait();
      save.wait_held();
      CHECK(save.held());
      CHECK(save.committed() == (step == 2));
    }
    ckpt.close();
  }
  CHECK(*asked == std::vector<std::string>{"open 0", "from -1", "room 1", "plan", "plan", "plan", "end"});
  cairn::checkpointer reads{store, cairn::read_only{}, cairn::checkpointer_options{.quiet = true}};
  CHECK(reads.list() == std::vector<std::int64_t>{2, 3});
}

}  // namespace
