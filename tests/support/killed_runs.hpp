// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs of a toy training whose ranks are processes that are killed as a test says, and what they told before
// they died: a page of memory that outlives them stands for the log of an operator.
#include "kill_points.hpp"
#include "toy_training.hpp"

#include <cairn/any_checkpointer.hpp>
#include <cairn/cairn.hpp>
#include <cairn/comm/shared_memory_communicator.hpp>
#include <cairn/execute/process_executor.hpp>
#include <cairn/model/staged_image.hpp>
#include <cairn/stage/buffered_stager.hpp>
#include <cairn/stage/shared_memory.hpp>
#include <cairn/storage/commit/checkpoint_catalog.hpp>
#include <cairn/stores/basic_file_store.hpp>
#include <cairn/system/wire.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn_test {

inline constexpr int max_ranks = 4;

/// The ways of saving. overlapped needs an executor beside training.
struct way_of_saving {
  const char* name;
  bool in_caller;
  bool staged;
  bool overlapped;
  bool in_process = false;
};
inline constexpr way_of_saving ways_of_saving[] = {
    {"inline, no staging", true, false, false},  {"inline, buffered", true, true, false},
    {"thread, no staging", false, false, false}, {"thread, buffered", false, true, false},
    {"thread, overlapped", false, true, true},   {"process, shared and overlapped", false, true, true, true},
};
inline constexpr int ways = 5;  ///< without worker processes
inline constexpr int way_of_workers = 5;

/// What is killed first: a rank, or its worker alone, without which the ranks go on.
enum class blow : std::uint8_t { none, rank, worker };

/// What the ranks of a run report.
struct run_log {
  struct rank_log {
    static constexpr std::int64_t not_yet = -2, nothing = -1;
    std::atomic<std::int64_t> resumed = not_yet;
    std::atomic<bool> ended = false;
    std::atomic<std::uint64_t> changes = 0;  ///< calls that change the disk
    std::atomic<std::uint32_t> losses = 0;
    std::pair<std::int64_t, std::uint64_t> loss[64] = {};  ///< after which update
    char error[240] = {};                                  ///< that ended the rank
    char trouble[240] = {};                                ///< what must never be
  };
  std::atomic<std::int64_t> begun = 0;         ///< the last step that was given to save()
  std::atomic<std::int64_t> acknowledged = 0;  ///< the last step whose handle said that it is committed
  std::atomic<bool> gate_open = false;
  std::atomic<blow> struck = blow::none;
  std::atomic<std::int64_t> last_calls = 0;  ///< calls that change the disk which the survivors still make
  ::pid_t process[max_ranks] = {};
  rank_log rank[max_ranks];
  char where[240] = {};
  // For processes that are programs of their own: the run's number, and its order.
  std::uint64_t run = 0;
  std::atomic<::pid_t> worker[max_ranks] = {};
  std::uint32_t order_bytes = 0;
  std::byte order[32 * 1024] = {};

  [[nodiscard]] bool was_struck() const { return struck != blow::none; }
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);
static_assert(std::atomic<blow>::is_always_lock_free);

inline void raise_to(std::atomic<std::int64_t>& value, std::int64_t to) {
  auto now = value.load();
  while (now < to && !value.compare_exchange_weak(now, to)) {
  }
}

/// One run: what it does, and how it is killed.
struct run_order {
  int way = 3;
  int world = 1;
  int ranks_per_file = 1;
  std::size_t keep = 2;
  bool resumes = true;
  std::int64_t until = 0;                     ///< counted from what was resumed, if `relative`
  bool relative = false;                      ///< then each step is saved
  std::vector<std::int64_t> saves = {};       ///< else these
  bool waits = true;                          ///< for each save to end before the next update but one
  std::chrono::milliseconds timeout{60'000};  ///< shorter: the run may end by a deadline, killed or not
  std::map<std::int64_t, int> writers = {};   ///< on how many ranks a step was saved

  kill_plan plan = {};  ///< `change` counts those of `at_rank`
  int at_rank = 0;
  std::optional<std::chrono::microseconds> at_time = {};
  unsigned victims = 0;                    ///< a bit for each rank; none: the one where the moment comes
  std::int64_t last_calls = 0;             ///< after how many calls of theirs the survivors die, too
  std::chrono::microseconds grace{5'000};  ///< or after how long
  bool survivors_end = false;              ///< they live until they end by themselves
  bool has_rival = false;                  ///< saves may fail, since another run may save the same steps
  bool workers_outlive = false;            ///< victims die without their workers
  std::chrono::milliseconds earlier_run_timeout{30'000};

  [[nodiscard]] bool may_be_late() const { return timeout < std::chrono::minutes(1); }

  // Errors that a broken library would make, to test the checks.
  bool tells_too_early = false;  ///< a step counts as acknowledged before it is saved
  bool removes_nothing = false;
};

/// An order as bytes, for ranks and workers that are programs of their own.
inline std::vector<std::byte> encode(const run_order& o) {
  cairn::wire_writer out;
  const auto put_event = [&](const std::optional<event>& e) {
    out.put(static_cast<std::uint8_t>(e.has_value()));
    if (e)
      out.put(static_cast<std::uint8_t>(e->when))
          .put(static_cast<std::uint8_t>(e->call))
          .put(std::string_view(e->path))
          .put(std::string_view(e->also));
  };
  out.put(o.way).put(o.world).put(o.ranks_per_file).put(static_cast<std::uint64_t>(o.keep)).put(o.until);
  for (const bool flag : {o.resumes, o.relative, o.waits, o.survivors_end, o.has_rival, o.workers_outlive,
                          o.tells_too_early, o.removes_nothing})
    out.put(static_cast<std::uint8_t>(flag));
  out.put(static_cast<std::uint64_t>(o.saves.size()));
  for (const auto step : o.saves) out.put(step);
  out.put(static_cast<std::int64_t>(o.timeout.count()));
  out.put(static_cast<std::int64_t>(o.earlier_run_timeout.count()));
  out.put(static_cast<std::uint64_t>(o.writers.size()));
  for (const auto& [step, world] : o.writers) out.put(step).put(world);
  put_event(o.plan.at);
  put_event(o.plan.gate);
  out.put(o.plan.change).put(o.at_rank).put(o.victims);
  return out.take();
}
inline run_order decode_order(std::span<const std::byte> bytes) {
  cairn::wire_reader in(bytes);
  run_order o;
  const auto get_event = [&]() -> std::optional<event> {
    if (in.get<std::uint8_t>() == 0) return {};
    event e;
    e.when = static_cast<moment>(in.get<std::uint8_t>());
    e.call = static_cast<file_call>(in.get<std::uint8_t>());
    e.path = in.get_string();
    e.also = in.get_string();
    return e;
  };
  o.way = in.get<int>(), o.world = in.get<int>(), o.ranks_per_file = in.get<int>();
  o.keep = static_cast<std::size_t>(in.get<std::uint64_t>());
  o.until = in.get<std::int64_t>();
  for (bool* flag : {&o.resumes, &o.relative, &o.waits, &o.survivors_end, &o.has_rival, &o.workers_outlive,
                     &o.tells_too_early, &o.removes_nothing})
    *flag = in.get<std::uint8_t>() != 0;
  for (auto n = in.get_count(8); n > 0; --n) o.saves.push_back(in.get<std::int64_t>());
  o.timeout = std::chrono::milliseconds(in.get<std::int64_t>());
  o.earlier_run_timeout = std::chrono::milliseconds(in.get<std::int64_t>());
  for (auto n = in.get_count(12); n > 0; --n) {
    const auto step = in.get<std::int64_t>();
    o.writers[step] = in.get<int>();
  }
  o.plan.at = get_event();
  o.plan.gate = get_event();
  o.plan.change = in.get<std::uint64_t>();
  o.at_rank = in.get<int>();
  o.victims = in.get<unsigned>();
  in.finish();
  return o;
}

/// How the run ended.
struct run_end {
  bool struck = false;  ///< somebody was killed
  int killed = 0;       ///< ranks
  std::string trouble;  ///< what must never be; else empty
};

namespace detail {

/// Runs a save where `in_caller` says.
class either_executor {
 public:
  using cairn_role = cairn::role::executor;
  template <class Writer>
  static constexpr bool accepts = true;

  explicit either_executor(bool in_caller) : in_caller_(in_caller) {}
  void submit(cairn::save_job job) {
    if (in_caller_)
      caller_.submit(std::move(job));
    else
      thread_.submit(std::move(job));
  }
  [[nodiscard]] bool drain(cairn::deadline until) { return in_caller_ || thread_.drain(until); }

 private:
  bool in_caller_;
  cairn::inline_executor caller_;
  cairn::thread_executor thread_;
};

class either_stager {
 public:
  using cairn_role = cairn::role::stager;
  explicit either_stager(bool staged) : staged_(staged) {}
  [[nodiscard]] cairn::staged_image stage(std::shared_ptr<const cairn::image_layout> layout,
                                          std::vector<cairn::item_source> sources,
                                          cairn::stage_options options, cairn::deadline until) {
    return staged_ ? buffered_.stage(std::move(layout), std::move(sources), options, until)
                   : unstaged_.stage(std::move(layout), std::move(sources), options, until);
  }
  void prepare(const cairn::image_layout& layout, cairn::deadline until) {
    if (staged_)
      buffered_.prepare(layout, until);
    else
      unstaged_.prepare(layout, until);
  }
  [[nodiscard]] int depth() const { return staged_ ? buffered_.depth() : unstaged_.depth(); }

 private:
  bool staged_;
  telling_stager buffered_;
  cairn::no_staging unstaged_;
};

using process_communicator = cairn::shared_memory_communicator;
/// Ranks that meet by the name of their job.
class process_world {
 public:
  explicit process_world(int size) : process_world(size, make_job()) {}
  process_world(int size, std::string job) : size_(size), job_(std::move(job)) {}
  [[nodiscard]] const std::string& job() const { return job_; }
  [[nodiscard]] process_communicator communicator(int rank) const { return {job_, rank, size_}; }
  static std::string prefix() { return "kills-" + std::to_string(::getpid()) + "-"; }

 private:
  static std::string make_job() {
    static int count = 0;
    return prefix() + std::to_string(++count);
  }
  int size_;
  std::string job_;
};
/// Kills ranks and workers when the moment comes, in the process where it does.
class run_watch final : public kill_watch {
 public:
  run_watch(run_log& log, const run_order& order, int rank, bool in_worker = false)
      : kill_watch(order.plan, log.gate_open), log_(log), order_(order), rank_(rank), in_worker_(in_worker) {}

  file_decision before(file_call call, const std::string& path) override {
    const auto decided = kill_watch::before(call, path);
    return order_.removes_nothing && call == file_call::unlink ? file_decision::leave_out : decided;
  }

 private:
  std::uint64_t count() override {
    const auto n = ++log_.rank[rank_].changes;
    const bool outlives = order_.survivors_end || (in_worker_ && order_.workers_outlive);
    if (log_.struck == blow::rank && !outlives && --log_.last_calls < 0) end();
    return rank_ == order_.at_rank ? n : 0;
  }
  void strike(const std::string& where) override {
    auto none = blow::none;
    const bool alone = in_worker_ && order_.victims == 0;
    if (!log_.struck.compare_exchange_strong(none, alone ? blow::worker : blow::rank)) return;
    std::snprintf(log_.where, sizeof log_.where, "%s %d: %s", in_worker_ ? "worker" : "rank", rank_,
                  where.c_str());
    for (int r = 0; r < order_.world; ++r) {
      if ((order_.victims >> r & 1u) == 0) continue;
      if (r != rank_ || in_worker_) ::kill(log_.process[r], SIGKILL);
      if (!order_.workers_outlive && !(r == rank_ && in_worker_)) kill_worker(log_.worker[r]);
    }
    if (in_worker_ ? alone || !order_.workers_outlive
                   : order_.victims == 0 || (order_.victims >> rank_ & 1u) != 0)
      end();
  }
  /// The process id, if the process still runs.
  static void kill_worker(::pid_t worker) {
    if (worker <= 0) return;
    std::ifstream line("/proc/" + std::to_string(worker) + "/cmdline");
    const std::string text((std::istreambuf_iterator<char>(line)), {});
    if (text.find("cairn-worker") != std::string::npos) ::kill(worker, SIGKILL);
  }
  [[noreturn]] static void end() {
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  }
  run_log& log_;
  const run_order& order_;
  int rank_;
  bool in_worker_;
};

using watched_store = cairn::basic_file_store<watched_file_system<>>;

/// The log and the order of a run, in a process that is a program of its own; valid until that ends.
class run_memory {
 public:
  /// The log of the run of that number, or null if that run is over.
  static run_memory* find(const std::string& path, std::uint64_t run) {
    static std::map<std::uint64_t, std::unique_ptr<run_memory>> known;
    auto& found = known[run];
    if (found == nullptr) found.reset(new run_memory(path));
    return found->log_ != nullptr && found->log_->run == run ? found.get() : nullptr;
  }
  [[nodiscard]] run_log& log() const { return *log_; }
  [[nodiscard]] const run_order& order() const { return order_; }

 private:
  explicit run_memory(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    struct stat status {};
    if (::fstat(file, &status) == 0 && static_cast<std::size_t>(status.st_size) == sizeof(run_log)) {
      void* memory = ::mmap(nullptr, sizeof(run_log), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (memory != MAP_FAILED) log_ = static_cast<run_log*>(memory);
    }
    ::close(file);
    if (log_ != nullptr) order_ = decode_order({log_->order, log_->order_bytes});
  }
  run_log* log_ = nullptr;
  run_order order_;
};

/// A watched store that is sent to a worker, where the same run watches it. `log`: where the run's log is.
class crossing_store : public watched_store {
 public:
  using cairn_role = cairn::role::store;
  crossing_store(watched_store files, std::string root, std::string log, std::uint64_t run, int rank)
      : watched_store(std::move(files)),
        root_(std::move(root)),
        log_(std::move(log)),
        run_(run),
        rank_(rank) {}

  [[nodiscard]] std::vector<std::byte> description() const {
    cairn::wire_writer out;
    out.put(std::string_view(root_)).put(std::string_view(log_)).put(run_).put(rank_);
    return out.take();
  }
  [[nodiscard]] static crossing_store from_description(std::span<const std::byte> bytes) {
    cairn::wire_reader in(bytes);
    auto root = in.get_string();
    auto log = in.get_string();
    const auto run = in.get<std::uint64_t>();
    const auto rank = in.get<int>();
    in.finish();
    std::shared_ptr<file_watch> watch;
    if (auto* memory = run_memory::find(log, run)) {
      memory->log().worker[rank] = ::getpid();
      watch = std::make_shared<run_watch>(memory->log(), memory->order(), rank, true);
    }
    watched_store files{root, cairn::file_store_options{.write_bytes = 64u << 10},
                        watched_file_system<>{std::move(watch)}};
    return {std::move(files), std::move(root), std::move(log), run, rank};
  }

 private:
  std::string root_;
  std::string log_;
  std::uint64_t run_;
  int rank_;
};

inline cairn::any_checkpointer make_checkpointer(const run_order& order, crossing_store files,
                                                 process_communicator comm) {
  const auto& way = ways_of_saving[order.way];
  const cairn::checkpointer_options options{.timeout = order.timeout,
                                            .peer_timeout = order.timeout,
                                            .max_consecutive_failures = 0,
                                            .earlier_run_timeout = order.earlier_run_timeout,
                                            .max_restarts = 1'000'000,  // as often as it is killed
                                            .quiet = true};
  const cairn::keep_last keep(order.keep);
  const cairn::commit_options layout{.ranks_per_file = order.ranks_per_file};
  if (way.in_process)
    return cairn::checkpointer{cairn::safetensors_storage(std::move(files), layout),
                               std::move(comm),
                               cairn::overlapped{},
                               cairn::buffered_stager<cairn::shared_memory, telling_engine>(),
                               cairn::process_executor{},
                               telling_planner{},
                               keep,
                               options};
  cairn::safetensors_storage store(watched_store(std::move(files)), layout);
  if (way.overlapped)
    return cairn::checkpointer{std::move(store),
                               std::move(comm),
                               cairn::overlapped{},
                               either_stager(way.staged),
                               either_executor(way.in_caller),
                               telling_planner{},
                               keep,
                               options};
  return cairn::checkpointer{std::move(store),
                             std::move(comm),
                             either_stager(way.staged),
                             either_executor(way.in_caller),
                             telling_planner{},
                             keep,
                             options};
}

/// Runs one rank.
class rank_run {
 public:
  /// `log_path`: where a worker finds the log; for ways with workers.
  rank_run(const run_order& order, run_log& log, int rank, std::string root, std::string log_path = {})
      : order_(order),
        log_(log),
        own_(log.rank[rank]),
        rank_(rank),
        root_(std::move(root)),
        log_path_(std::move(log_path)) {}

  void train(process_communicator comm) {
    auto watch = std::make_shared<run_watch>(log_, order_, rank_);
    kill_watch::of_this_process = watch.get();
    try {
      toy_training toy(rank_, order_.world);
      const watched_store files{root_, cairn::file_store_options{.write_bytes = 64u << 10},
                                watched_file_system<>{watch}};
      auto ckpt = make_checkpointer(order_, crossing_store(files, root_, log_path_, log_.run, rank_),
                                    std::move(comm));
      mark("opened");
      std::int64_t first = 0;
      if (order_.resumes) first = resume(ckpt, toy);
      std::int64_t until = order_.relative ? first + order_.until : order_.until;
      std::vector<cairn::save_handle> pending;
      for (;;) {
        const auto step = toy.updates();
        std::optional<cairn::save_handle> saved;
        if (step > first && to_be_saved(step)) {
          raise_to(log_.begun, step);
          if (order_.tells_too_early) raise_to(log_.acknowledged, step);
          saved = ckpt.save(toy.state, step);
          mark("save returned", step);
          ckpt.before_update();
          mark("memory is free", step);
          pending.push_back(*saved);
        }
        // Train on while the save is under way.
        if (step < until) update(ckpt, toy);
        if (saved && order_.waits) {
          try {
            saved->wait_written();
            mark("written", step);
            saved->wait();
            raise_to(log_.acknowledged, step);
            mark("committed", step);
          } catch (const cairn::error& e) {
            // A save that lost its worker fails, and no other.
            if (log_.struck != blow::worker || failed_) throw;
            failed_ = true;
            pending.pop_back();
            std::snprintf(own_.error, sizeof own_.error, "%s", e.what());
          }
        }
        acknowledge(pending, false);
        if (step >= until) break;
      }
      acknowledge(pending, true);
      ckpt.close();
      mark("closed");
      own_.ended = true;
    } catch (const std::exception& e) {
      std::snprintf(own_.error, sizeof own_.error, "%s", e.what());
      if (log_.struck != blow::rank && !(order_.has_rival && resumed_) && !order_.may_be_late())
        trouble(std::string("no rank was killed, and yet: ") + e.what());
    }
  }

 private:
  std::int64_t resume(cairn::any_checkpointer& ckpt, toy_training& toy) {
    const auto step = ckpt.resume(toy.state);
    if (step) {
      const auto writers = order_.writers.find(*step);
      if (toy.join() && writers != order_.writers.end() && rank_ < writers->second)
        trouble("the generator of a rank that was there did not come back");
      if (const auto wrong = toy.wrong(*step); !wrong.empty())
        trouble("step " + std::to_string(*step) + " loads with other values: " + wrong);
    }
    own_.resumed = step.value_or(run_log::rank_log::nothing);
    resumed_ = true;
    mark("resumed");
    return step.value_or(0);
  }
  void update(cairn::any_checkpointer& ckpt, toy_training& toy) {
    ckpt.before_update();
    toy.update();
    const auto n = own_.losses.load();
    if (n >= std::size(own_.loss)) return;
    own_.loss[n] = {toy.updates(), toy.loss()};
    own_.losses = n + 1;
  }
  [[nodiscard]] bool to_be_saved(std::int64_t step) const {
    return order_.relative || std::find(order_.saves.begin(), order_.saves.end(), step) != order_.saves.end();
  }
  void acknowledge(std::vector<cairn::save_handle>& pending, bool all) {
    for (const auto& handle : pending) {
      if (all) handle.wait();
      if (handle.committed()) raise_to(log_.acknowledged, handle.step());
    }
    std::erase_if(pending, [](const auto& handle) { return handle.committed(); });
  }
  void mark(const char* what, std::int64_t step = -1) {
    kill_watch::mark_here(std::string(what) + (step < 0 ? "" : " " + std::to_string(step)) + " on rank " +
                          std::to_string(rank_));
  }
  void trouble(const std::string& what) {
    std::snprintf(own_.trouble, sizeof own_.trouble, "rank %d: %s", rank_, what.c_str());
  }

  const run_order& order_;
  run_log& log_;
  run_log::rank_log& own_;
  int rank_;
  std::string root_;
  std::string log_path_;
  bool resumed_ = false;
  bool failed_ = false;  // a save failed since its worker was killed
};

/// Runs a rank in its process, from the moment when the other end of the gate is closed.
inline void live_as_rank(const run_order& order, run_log& log, int rank, const std::string& root,
                         const std::string& log_path, const process_world& world, int gate) {
  char nothing = 0;
  while (::read(gate, &nothing, 1) < 0 && errno == EINTR) {
  }
  try {
    rank_run(order, log, rank, root, log_path).train(world.communicator(rank));
  } catch (const std::exception& e) {  // of the communicator
    auto& own = log.rank[rank];
    std::snprintf(own.error, sizeof own.error, "%s", e.what());
    if (log.struck != blow::rank)
      std::snprintf(own.trouble, sizeof own.trouble, "rank %d: %s", rank, e.what());
  }
}

inline constexpr std::string_view rank_role = "--killed-rank";

}  // namespace detail

/// The first call in main() of a test with worker processes; it does not return in a worker or a rank.
inline void serve_killed_runs(int argc, char** argv) {
  cairn::worker_main(argc, argv);
  if (argc != 9 || argv[1] != detail::rank_role) return;
  const auto number = [&](int i) {
    std::uint64_t value = 0;
    const std::string_view text(argv[i]);
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  };
  const auto rank = static_cast<int>(number(2));
  auto* const memory = detail::run_memory::find(argv[3], number(4));
  if (memory == nullptr) ::_exit(4);
  const auto gate = static_cast<int>(number(7)), life = static_cast<int>(number(8));
  ::fcntl(gate, F_SETFD, FD_CLOEXEC);
  ::fcntl(life, F_SETFD, FD_CLOEXEC);
  detail::live_as_rank(memory->order(), memory->log(), rank, argv[5], argv[3],
                       {memory->order().world, argv[6]}, gate);
  ::_exit(0);
}

/// Starts runs and gives the outcome of the last one. The process has no threads. With workers, its main
/// program begins with serve_killed_runs().
class run_keeper {
 public:
  run_keeper() { renew(); }
  run_keeper(const run_keeper&) = delete;
  run_keeper& operator=(const run_keeper&) = delete;
  ~run_keeper() {
    ::munmap(log_, sizeof(run_log));
    ::close(file_);
  }

  [[nodiscard]] const run_log& log() const { return *log_; }

  run_end run(const std::string& root, const run_order& order) {
    start(root, order);
    return finish();
  }
  /// The first half of run().
  void start(const std::string& root, const run_order& what) {
    order_ = what;
    const auto& order = order_;
    const bool workers = ways_of_saving[order.way].in_process;
    renew();
    log_->last_calls = order.last_calls;
    if (workers) {
      const auto bytes = encode(order);
      if (bytes.size() > sizeof log_->order) throw std::runtime_error("the order of a run is too long");
      std::memcpy(log_->order, bytes.data(), bytes.size());
      log_->order_bytes = static_cast<std::uint32_t>(bytes.size());
      ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // workers that outlive their ranks become children of this process
    }
    detail::process_world world(order.world);
    std::array<int, 2> gate{};
    make_pipe(gate);
    auto& lives = lives_;
    lives.clear();
    std::fflush(nullptr);
    const auto self = ::getpid();
    for (int rank = 0; rank < order.world; ++rank) {
      std::array<int, 2> life{};
      make_pipe(life);
      const auto child = ::fork();
      if (child < 0) throw std::runtime_error("no process for a rank");
      if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != self) ::_exit(3);
        ::close(gate[1]);
        ::close(life[0]);
        for (const auto& other : lives) ::close(other.fd);
        ::alarm(280);
        if (workers) become_rank(rank, root, world.job(), gate[0], life[1]);
        detail::live_as_rank(order, *log_, rank, root, {}, world, gate[0]);
        ::_exit(0);
      }
      ::close(life[1]);
      lives.push_back({life[0], POLLIN, 0});
      log_->process[rank] = child;
    }
    ::close(gate[0]);
    ::close(gate[1]);
  }
  /// Waits for a rank to end, after start().
  void wait_for_one() { static_cast<void>(one_ends(lives_, clock::now() + std::chrono::seconds(240))); }
  /// The second half of run().
  run_end finish() { return wait_for(order_, lives_); }
  /// Waits for workers whose ranks have ended, or kills them. False if one did not end in time.
  [[nodiscard]] static bool wait_for_workers(bool kills = false) {
    const auto limit = clock::now() + std::chrono::seconds(240);
    const auto self = std::to_string(::getpid());
    std::ifstream children("/proc/self/task/" + self + "/children");
    bool all = true;
    for (::pid_t child = 0; children >> child;) {
      std::ifstream line("/proc/" + std::to_string(child) + "/cmdline");
      const std::string text((std::istreambuf_iterator<char>(line)), {});
      if (!text.empty() && text.find("cairn-worker") == std::string::npos) continue;  // empty: it has ended
      if (kills) ::kill(child, SIGKILL);
      std::vector<pollfd> life{{static_cast<int>(::syscall(SYS_pidfd_open, child, 0)), POLLIN, 0}};
      if (life[0].fd >= 0 && one_ends(life, limit))
        ::waitpid(child, nullptr, 0);
      else
        all = false;
    }
    return all;
  }

 private:
  using clock = std::chrono::steady_clock;

  /// Begins another log, because a worker that outlives its rank still has the one of its run.
  void renew() {
    static std::uint64_t runs = 0;
    if (log_ != nullptr) {
      ::munmap(log_, sizeof(run_log));
      ::close(file_);
    }
    file_ = ::memfd_create("run", MFD_CLOEXEC);
    if (file_ < 0 || ::ftruncate(file_, sizeof(run_log)) != 0) throw std::bad_alloc();
    void* memory = ::mmap(nullptr, sizeof(run_log), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    log_ = new (memory) run_log;
    log_->run = ++runs;
  }
  /// In the process of a rank: starts the same program again, since a mere fork cannot start a worker.
  [[noreturn]] void become_rank(int rank, const std::string& root, const std::string& job, int gate,
                                int life) const {
    ::fcntl(gate, F_SETFD, 0);
    ::fcntl(life, F_SETFD, 0);
    const std::string role(detail::rank_role);
    const auto path = "/proc/" + std::to_string(::getppid()) + "/fd/" + std::to_string(file_);
    ::execl("/proc/self/exe", "rank", role.c_str(), std::to_string(rank).c_str(), path.c_str(),
            std::to_string(log_->run).c_str(), root.c_str(), job.c_str(), std::to_string(gate).c_str(),
            std::to_string(life).c_str(), nullptr);
    ::_exit(127);
  }

  static void make_pipe(std::array<int, 2>& ends) {
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe for a rank");
  }
  /// Waits until one more of them has ended; false if none had at that time.
  static bool one_ends(std::vector<pollfd>& lives, clock::time_point until) {
    for (;;) {
      const auto left = std::max(clock::duration(0), until - clock::now());
      const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
      const std::timespec time{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
      const int n = ::ppoll(lives.data(), lives.size(), &time, nullptr);
      if (n < 0 && errno == EINTR) continue;
      bool ended = false;
      for (auto& life : lives)
        if (n > 0 && life.fd >= 0 && life.revents != 0) {
          ::close(life.fd);
          life.fd = -1;  // poll() passes over it
          ended = true;
        }
      return ended;
    }
  }
  static bool all_ended(const std::vector<pollfd>& lives) {
    return std::all_of(lives.begin(), lives.end(), [](const auto& life) { return life.fd < 0; });
  }
  void kill_ranks(const std::vector<pollfd>& lives, unsigned which) {
    for (std::size_t r = 0; r < lives.size(); ++r)
      if (lives[r].fd >= 0 && (which >> r & 1u) != 0) ::kill(log_->process[r], SIGKILL);
  }

  run_end wait_for(const run_order& order, std::vector<pollfd>& lives) {
    run_end end;
    const auto limit = clock::now() + std::chrono::seconds(240);
    if (order.at_time) {
      const auto moment = clock::now() + *order.at_time;
      while (!all_ended(lives) && one_ends(lives, moment)) {
      }
      auto none = blow::none;
      if (!all_ended(lives) && log_->struck.compare_exchange_strong(none, blow::rank)) {
        std::snprintf(log_->where, sizeof log_->where, "after %lld us",
                      static_cast<long long>(order.at_time->count()));
        kill_ranks(lives, order.victims);
      }
    }
    bool hung = false;
    while (!all_ended(lives)) {
      if (one_ends(lives, limit)) {
        if (log_->struck != blow::rank || order.survivors_end) continue;
        const auto moment = clock::now() + order.grace;
        while (!all_ended(lives) && one_ends(lives, moment)) {
        }
      } else {
        hung = true;
      }
      kill_ranks(lives, ~0u);
      if (hung) break;
    }
    for (auto& life : lives)
      if (life.fd >= 0) ::close(life.fd);
    end.struck = log_->was_struck();
    for (int rank = 0; rank < order.world; ++rank) {
      int status = 0;
      while (::waitpid(log_->process[rank], &status, 0) < 0 && errno == EINTR) {
      }
      const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      end.killed += killed;
      if (killed && log_->struck == blow::worker) end.trouble += "a rank was killed that should not be; ";
      const auto name = "rank " + std::to_string(rank);
      if (killed ? !end.struck : !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
        end.trouble += name + " ended with status " + std::to_string(status) + "; ";
      if (log_->rank[rank].trouble[0] != 0) end.trouble += std::string(log_->rank[rank].trouble) + "; ";
    }
    if (hung) end.trouble += "ranks did not end in time; ";
    // Processes that are to die do so before the next run begins: nobody cleans up after a later death.
    if (log_->struck == blow::rank && ways_of_saving[order.way].in_process && !order.workers_outlive &&
        !wait_for_workers(true))
      end.trouble += "a worker did not end; ";
    return end;
  }

  int file_ = -1;
  run_log* log_ = nullptr;
  run_order order_;
  std::vector<pollfd> lives_;
};

}  // namespace cairn_test
