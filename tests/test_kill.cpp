// SPDX-License-Identifier: Apache-2.0
// A run of two ranks is killed with SIGKILL at every step of resume and save that has a name, and at every
// call that changes the disk. Whatever the moment: the next run loads the checkpoint that was being saved or
// the one before it, bit for bit, never an older one, and cleans up.
#include <doctest/doctest.h>
#include <cairn/cairn.hpp>

#include "support/scratch_directory.hpp"
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
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using namespace cairn_test;
namespace fs = std::filesystem;
using store = cairn::basic_file_store<watched_file_system<>>;

// A fork of a sanitized process is slow: there, some of the points are enough.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t thinned = 4;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr std::uint64_t thinned = 4;
#else
constexpr std::uint64_t thinned = 1;
#endif
#else
constexpr std::uint64_t thinned = 1;
#endif

constexpr cairn::file_store_options small_requests{.write_bytes = 64u << 10};
constexpr training_sizes sizes{.weights = 40'000};

/// What the victim tells; shared memory, so that it survives its death.
struct told {
  std::atomic<std::int64_t> begun = 0;         ///< the last step that was given to save()
  std::atomic<std::int64_t> acknowledged = 0;  ///< the last step whose handle said that it is committed
  std::atomic<std::uint64_t> changes = 0;      ///< calls that change the disk
  std::atomic<bool> trouble = false;
  char where[240] = {};
};
class shared_page {
 public:
  shared_page()
      : memory_(::mmap(nullptr, sizeof(told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(memory_ != MAP_FAILED);
    value_ = new (memory_) told;
  }
  shared_page(const shared_page&) = delete;
  shared_page& operator=(const shared_page&) = delete;
  ~shared_page() { ::munmap(memory_, sizeof(told)); }
  told* operator->() const { return value_; }

 private:
  void* memory_;
  told* value_ = nullptr;
};

enum class moment : std::uint8_t { before, after, torn, mark };

/// An event: a call about a path that contains `path` (and `also`), or a mark of that name.
struct event {
  moment when = moment::before;
  file_call call = file_call::sync;
  std::string path = {};
  std::string also = {};
};

/// Where to kill: at an event, once `gate` has happened; or at the n-th call that changes the disk.
struct kill_plan {
  std::optional<event> at;
  std::optional<event> gate;
  std::uint64_t change = 0;
};

class killer final : public file_watch {
 public:
  killer(told& tell, kill_plan plan) : tell_(tell), plan_(std::move(plan)), open_(!plan_.gate) {}

  file_decision before(file_call call, const std::string& path) override {
    if (changes_disk(call, path)) {
      const auto n = ++tell_.changes;
      if (n == plan_.change) {
        if (call != file_call::pwrite || n % 2 == 0) die(name_of(call, path));
        tearing_ = true;
        return file_decision::tear;
      }
    }
    if (happens(moment::torn, call, path)) {
      tearing_ = true;
      return file_decision::tear;
    }
    if (happens(moment::before, call, path)) die(name_of(call, path));
    return file_decision::carry_out;
  }
  void after(file_call call, const std::string& path) override {
    if (call == file_call::pwrite && tearing_) die("torn " + name_of(call, path));
    if (happens(moment::after, call, path)) die(name_of(call, path));
  }
  void mark(const std::string& name) {
    if (happens(moment::mark, file_call::sync, name)) die(name);
  }

 private:
  static bool changes_disk(file_call call, const std::string& path) {
    switch (call) {
      case file_call::pwrite:
      case file_call::truncate:
      case file_call::allocate:
      case file_call::sync:
      case file_call::sync_directory:
      case file_call::make_directory:
      case file_call::rename:
      case file_call::link:
      case file_call::unlink:
      case file_call::remove_directory:
        return true;
      case file_call::open:
      case file_call::lock:
      case file_call::close:
        return path.ends_with(".part");
      default:
        return false;
    }
  }
  static bool same(const event& e, moment when, file_call call, const std::string& path) {
    return e.when == when && (when == moment::mark || e.call == call) &&
           path.find(e.path) != std::string::npos && path.find(e.also) != std::string::npos;
  }
  bool happens(moment when, file_call call, const std::string& path) {
    if (open_ && plan_.at && same(*plan_.at, when, call, path)) return true;
    if (!open_ && plan_.gate && same(*plan_.gate, when, call, path)) open_ = true;
    return false;
  }
  static std::string name_of(file_call call, const std::string& path) {
    auto name = path;  // without the numbers that differ from run to run
    for (std::size_t i = 0; i + 16 <= name.size(); ++i)
      if (std::all_of(name.begin() + static_cast<std::ptrdiff_t>(i),
                      name.begin() + static_cast<std::ptrdiff_t>(i) + 16,
                      [](char c) { return std::strchr("0123456789abcdef", c) != nullptr; }))
        name.replace(i, 16, "*");
    const auto step = name.find("/step-");
    return std::to_string(static_cast<int>(call)) + (step == std::string::npos ? "" : name.substr(step));
  }
  [[noreturn]] void die(const std::string& where) {
    const std::lock_guard lock(mutex_);
    std::snprintf(tell_.where, sizeof tell_.where, "%s", where.c_str());
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  }

  told& tell_;
  kill_plan plan_;
  std::atomic<bool> open_;
  std::atomic<bool> tearing_ = false;
  std::mutex mutex_;
};

killer* marked = nullptr;  // in the victim alone
void mark(const std::string& name) {
  if (marked != nullptr) marked->mark(name);
}

/// Tells when a tensor is being copied.
struct telling_planner : cairn::basic_planner<telling_planner> {
  using base = cairn::basic_planner<telling_planner>;
  using base::resolve;
  [[nodiscard]] cairn::item_source resolve(const cairn::state_dict& state, const cairn::write_item& item) {
    auto source = base::resolve(state, item);
    if (item.name == "weights" && marked != nullptr)
      source.cast = [](const std::byte* from, std::byte* to, std::size_t elements) noexcept {
        std::memcpy(to, from, elements / 2 * sizeof(float));
        mark("copying");
        std::memcpy(to + elements / 2 * sizeof(float), from + elements / 2 * sizeof(float),
                    (elements - elements / 2) * sizeof(float));
      };
    return source;
  }
};

/// host_copy, and tells when an image is begun, and when its early items are copied.
class telling_engine {
 public:
  template <class M>
  static constexpr bool accepts = cairn::host_copy::accepts<M>;
  static constexpr bool digests = true;
  void check(const cairn::item_source& source) const { inner_.check(source); }
  void copy(std::shared_ptr<cairn::image_fill> fill, cairn::deadline until) {
    mark("staging begins");
    inner_.copy(std::move(fill), until);
    mark("early items are copied");
  }

 private:
  cairn::host_copy inner_{cairn::host_copy_options{.threads = 2}};
};
using telling_stager = cairn::buffered_stager<cairn::heap_memory, telling_engine>;

enum class mode : std::uint8_t { buffered, unstaged, overlapped };
constexpr mode modes[] = {mode::buffered, mode::unstaged, mode::overlapped};
constexpr const char* mode_names[] = {"buffered", "unstaged", "overlapped"};

const cairn::checkpointer_options quiet{
    .patience = std::chrono::seconds(60), .peer_patience = std::chrono::seconds(60), .quiet = true};

auto make_checkpointer(store s, cairn::thread_communicator comm) {
  return cairn::checkpointer{std::move(s),    telling_stager{},    telling_planner{},
                             std::move(comm), cairn::keep_last(2), quiet};
}

/// Calls with a checkpointer of the mode.
template <class Body>
void with_checkpointer(mode m, store s, cairn::thread_communicator comm, Body body) {
  if (m == mode::buffered) {
    auto ckpt = make_checkpointer(std::move(s), std::move(comm));
    body(ckpt);
  } else if (m == mode::unstaged) {
    cairn::checkpointer ckpt{std::move(s),    cairn::no_staging{}, telling_planner{},
                             std::move(comm), cairn::keep_last(2), quiet};
    body(ckpt);
  } else {
    cairn::checkpointer ckpt{std::move(s),
                             cairn::overlapped{},
                             telling_stager{},
                             telling_planner{},
                             std::move(comm),
                             cairn::keep_last(2),
                             quiet};
    body(ckpt);
  }
}

struct scenario {
  mode how = mode::buffered;
  bool resumes = true;
  std::vector<std::int64_t> steps;
};

/// Trains on two ranks, until it ends or is killed.
void train(const std::string& root, const scenario& run, const std::shared_ptr<killer>& watch, told& tell) {
  cairn::thread_group group{2};
  const auto rank_main = [&](int rank) {
    const auto of_rank = " on rank " + std::to_string(rank);
    try {
      with_checkpointer(run.how, store{root, small_requests, watched_file_system<>{watch}},
                        group.communicator(rank), [&](auto& ckpt) {
                          training_state t(rank, 2, sizes);
                          mark("opened" + of_rank);
                          if (run.resumes) {
                            static_cast<void>(ckpt.resume(t.state));
                            mark("resumed" + of_rank);
                          }
                          for (const auto step : run.steps) {
                            const auto text = " " + std::to_string(step) + of_rank;
                            t.fill(step);
                            tell.begun = std::max<std::int64_t>(tell.begun, step);
                            const auto handle = ckpt.save(t.state, step);
                            mark("save returned" + text);
                            ckpt.before_update();
                            mark("memory is free" + text);
                            t.spoil();
                            handle.wait_written();
                            mark("written" + text);
                            handle.wait();
                            tell.acknowledged = std::max<std::int64_t>(tell.acknowledged, step);
                            mark("committed" + text);
                          }
                          ckpt.close();
                          mark("closed" + of_rank);
                        });
    } catch (const std::exception& e) {
      std::snprintf(tell.where, sizeof tell.where, "%s", e.what());
      tell.trouble = true;
    }
  };
  std::thread other(rank_main, 1);
  rank_main(0);
  other.join();
}

/// Runs it in a child. True if it was killed by itself; false if it came to its end.
bool dies(const std::string& root, const scenario& run, const kill_plan& plan, const shared_page& page) {
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(120);
    auto watch = std::make_shared<killer>(*page.operator->(), plan);
    marked = watch.get();
    train(root, run, watch, *page.operator->());
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  const std::string where = page->where;
  CAPTURE(where);
  CHECK_FALSE(page->trouble.load());
  CHECK((killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)));
  return killed;
}

/// Where an earlier run was stopped: the checkpoint of 12, a damaged one of 15, and at 25 the pieces of two
/// saves that were killed.
class past {
 public:
  past() {
    const shared_page page;
    const auto root = directory_.path() + "/past";
    REQUIRE_FALSE(dies(root, {mode::buffered, false, {10, 12, 15}}, {}, page));
    REQUIRE(page->acknowledged == 15);
    const auto manifest = root + "/" + cairn::manifest_key(15);
    fs::resize_file(manifest, fs::file_size(manifest) - 1);
    REQUIRE(dies(root, {mode::unstaged, false, {25}},
                 {.at = event{moment::torn, file_call::pwrite, "rank-00001", ".safetensors"}, .gate = {}},
                 page));
    REQUIRE(dies(root, {mode::buffered, false, {25}},
                 {.at = event{moment::after, file_call::rename, "rank-00000", ".record"}, .gate = {}}, page));
    int parts = 0, records = 0;
    for (const auto& file : fs::directory_iterator(root + "/" + cairn::step_directory(25))) {
      parts += file.path().extension() == ".part";
      records += file.path().extension() == ".record";
    }
    REQUIRE(parts >= 1);
    REQUIRE(records >= 1);
  }
  /// A copy of it, in place of the last one.
  [[nodiscard]] std::string copy() const {
    const auto to = directory_.path() + "/now";
    fs::remove_all(to);
    fs::copy(directory_.path() + "/past", to, fs::copy_options::recursive);
    return to;
  }

 private:
  // Kills need no disk: what was written stays.
  scratch_directory directory_{fs::exists("/dev/shm") ? "/dev/shm" : nullptr};
};

/// What should not be there after a resume, or nothing. `marks`: whether marks of ended attempts may be.
std::string litter(const std::string& root, bool marks) {
  store s{root, small_requests};
  std::set<std::string> named;
  std::set<std::string> set_aside;
  for (const auto& o : s.list("")) {
    const auto directory = o.key.substr(0, o.key.find('/'));
    if (o.key.find("/manifest.damaged.") != std::string::npos) set_aside.insert(directory);
    const auto known = cairn::parse_key(o.key);
    if (!known || known->object.kind != cairn::object_kind::manifest) continue;
    named.insert(o.key);
    const auto m = cairn::decode_manifest(*s.read_all(o.key, 1u << 20), o.key);
    for (const auto& r : m.records) {
      named.insert(cairn::record_key(r.step, r.rank, r.attempt));
      for (std::uint32_t k = 0; k < r.files; ++k) named.insert(cairn::data_key(r.step, r.rank, r.attempt, k));
    }
  }
  std::string found;
  for (const auto& file : fs::recursive_directory_iterator(root)) {
    if (!file.is_regular_file()) continue;
    const auto key = fs::relative(file.path(), root).string();
    if (named.count(key) != 0 || set_aside.count(key.substr(0, key.find('/'))) != 0) continue;
    if (marks && key.find("/aborted.") != std::string::npos) continue;
    found += key + " ";
  }
  return found;
}

/// The next run: loads, cleans up, and, if `goes_on`, saves and is resumed once more.
void check_next_run(const std::string& root, const shared_page& page, bool goes_on) {
  const std::int64_t committed = std::max<std::int64_t>(12, page->acknowledged);
  const std::int64_t begun = std::max<std::int64_t>(12, page->begun);
  const std::string where = page->where;
  CAPTURE(where);
  CAPTURE(committed);
  CAPTURE(begun);
  cairn::thread_group group{1};
  {
    training_state t(0, 1, sizes);
    auto ckpt = make_checkpointer(store{root, small_requests}, group.communicator(0));
    const auto step = ckpt.resume(t.state);
    REQUIRE(step.has_value());
    CHECK((*step == committed || *step == begun));
    CHECK(t.is(*step));
    CHECK(litter(root, true) == "");
    if (!goes_on) return;
    t.fill(40);
    ckpt.save(t.state, 40).wait();
  }
  training_state t(0, 1, sizes);
  auto ckpt = make_checkpointer(store{root, small_requests}, group.communicator(0));
  CHECK(ckpt.resume(t.state) == 40);
  CHECK(t.is(40));
  CHECK(litter(root, false) == "");
}

struct named_point {
  const char* name;
  event at;
  std::optional<event> gate = {};
  bool staged = false;  ///< only where images are staged
};

constexpr auto before = moment::before;
constexpr auto after = moment::after;
const char* const s20 = "step-00000020";
const char* const s12 = "step-00000012";
const char* const s25 = "step-00000025";
const char* const s15 = "step-00000015";

std::vector<named_point> named_points() {
  const auto file = [](moment when, file_call call, const char* step, const char* name) {
    return event{when, call, step, name};
  };
  const auto at_mark = [](const char* name) { return event{moment::mark, file_call::sync, name, {}}; };
  std::vector<named_point> all{
      // resume: what the killed run left, and the damaged checkpoint
      {"opened", at_mark("opened on rank 0")},
      {"clean: before the mark of a dead attempt", file(before, file_call::open, s25, "aborted.")},
      {"clean: the mark is torn", file(moment::torn, file_call::pwrite, s25, "aborted.")},
      {"clean: the mark stands", file(after, file_call::rename, s25, "aborted.")},
      {"clean: data of a dead attempt is removed", file(after, file_call::unlink, s25, ".safetensors")},
      {"clean: its record is removed", file(after, file_call::unlink, s25, ".record")},
      {"clean: before an unfinished file is removed", file(before, file_call::unlink, s25, ".part")},
      {"clean: an unfinished file is removed", file(after, file_call::unlink, s25, ".part")},
      {"set aside: before the copy", file(before, file_call::open, s15, "manifest.damaged")},
      {"set aside: the copy is written, not renamed",
       file(before, file_call::rename, s15, "manifest.damaged")},
      {"set aside: both stand", file(before, file_call::unlink, s15, "manifest.cairn")},
      {"set aside: the manifest is gone", file(after, file_call::unlink, s15, "manifest.cairn")},
      {"prepare: the ranks' common mark stands", file(after, file_call::rename, "shared-mark.", "")},
      {"resumed", at_mark("resumed on rank 0")},
      // save: staging
      {"staging begins", at_mark("staging begins"), {}, true},
      {"a tensor is half copied", at_mark("copying")},
      {"early items are copied", at_mark("early items are copied"), {}, true},
      {"save returned", at_mark("save returned 20 on rank 0")},
      {"save returned on the other rank", at_mark("save returned 20 on rank 1")},
      {"training has its memory back", at_mark("memory is free 20 on rank 0")},
      // save: data
      {"before the step's directory", file(before, file_call::make_directory, s20, "")},
      {"the step's directory is made, not fsynced", file(after, file_call::make_directory, s20, "")},
      {"data: an empty file", file(after, file_call::open, s20, ".safetensors")},
      {"data: space is reserved", file(after, file_call::allocate, s20, ".safetensors")},
      {"data: torn", file(moment::torn, file_call::pwrite, s20, "rank-00000")},
      {"data: torn on the other rank", file(moment::torn, file_call::pwrite, s20, "rank-00001")},
      {"data: written, not fsynced", file(before, file_call::sync, s20, ".safetensors")},
      {"data: fsynced, not renamed", file(before, file_call::rename, s20, ".safetensors")},
      {"data: renamed, directory not fsynced", file(after, file_call::rename, s20, "rank-00000")},
      {"data: renamed on the other rank", file(after, file_call::rename, s20, "rank-00001")},
      {"data: directory fsynced", file(after, file_call::sync_directory, s20, ""),
       file(after, file_call::rename, s20, ".safetensors")},
      // save: record
      {"record: an empty file", file(after, file_call::open, s20, ".record")},
      {"record: torn", file(moment::torn, file_call::pwrite, s20, ".record")},
      {"record: written, not fsynced", file(before, file_call::sync, s20, ".record")},
      {"record: fsynced, not renamed", file(before, file_call::rename, s20, ".record")},
      {"record: one rank's stands", file(after, file_call::rename, s20, ".record")},
      {"record: both ranks' stand", file(after, file_call::rename, s20, ".record"),
       file(after, file_call::rename, s20, ".record")},
      {"written", at_mark("written 20 on rank 0")},
      {"written on the other rank", at_mark("written 20 on rank 1")},
      // save: manifest
      {"manifest: an empty file", file(after, file_call::open, s20, "manifest.cairn")},
      {"manifest: torn", file(moment::torn, file_call::pwrite, s20, "manifest.cairn")},
      {"manifest: written, not fsynced", file(before, file_call::sync, s20, "manifest.cairn")},
      {"manifest: fsynced, not renamed", file(before, file_call::rename, s20, "manifest.cairn")},
      {"manifest: renamed, directory not fsynced", file(after, file_call::rename, s20, "manifest.cairn")},
      {"manifest: directory fsynced", file(after, file_call::sync_directory, s20, ""),
       file(after, file_call::rename, s20, "manifest.cairn")},
      // retention
      {"retention: before the old manifest is removed",
       file(before, file_call::unlink, s12, "manifest.cairn")},
      {"retention: the old manifest is removed", file(after, file_call::unlink, s12, "manifest.cairn")},
      {"retention: and its directory fsynced", file(after, file_call::sync_directory, s12, ""),
       file(after, file_call::unlink, s12, "manifest.cairn")},
      {"retention: some old data is removed", file(after, file_call::unlink, s12, ".safetensors")},
      {"retention: an old record is removed", file(after, file_call::unlink, s12, ".record")},
      {"retention: before the old directory is removed", file(before, file_call::remove_directory, s12, "")},
      {"retention: the old directory is removed", file(after, file_call::remove_directory, s12, "")},
      // between saves, and the end
      {"committed", at_mark("committed 20 on rank 0")},
      {"committed on the other rank", at_mark("committed 20 on rank 1")},
      {"the next save returned", at_mark("save returned 30 on rank 0")},
      {"closed", at_mark("closed on rank 0")},
  };
  return all;
}

}  // namespace

TEST_CASE("a run that is killed at any named step of resume and save loses nothing that was committed") {
  const past before_it;
  std::set<std::string> names;
  std::uint64_t others = 0;
  std::uint64_t kills = 0;
  for (const auto how : modes)
    for (const auto& point : named_points()) {
      if (point.staged && how == mode::unstaged) continue;
      // Each point in one way of saving at least.
      if (how != mode::buffered && ++others % thinned != 0 && !point.staged) continue;
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
  MESSAGE(names.size() << " named kill points, " << kills << " kills in three ways of saving");
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
