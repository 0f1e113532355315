// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs of a toy training whose ranks are processes that are killed as a test says, and what they told before
// they died: a page of memory that outlives them stands for the log of an operator.
#include "kill_points.hpp"
#include "toy_training.hpp"

#include <cairn/any_checkpointer.hpp>
#include <cairn/cairn.hpp>
#include <cairn/comm/shared_memory_communicator.hpp>

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace cairn_test {

inline constexpr int most_ranks = 4;

/// The ways of saving. overlapped needs an executor beside training.
struct way_of_saving {
  const char* name;
  bool in_caller;
  bool staged;
  bool overlapped;
};
inline constexpr way_of_saving ways_of_saving[] = {
    {"inline, no staging", true, false, false},  {"inline, buffered", true, true, false},
    {"thread, no staging", false, false, false}, {"thread, buffered", false, true, false},
    {"thread, overlapped", false, true, true},
};
inline constexpr int ways = 5;

/// What the ranks of a run tell.
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
  std::atomic<bool> struck = false;
  std::atomic<std::int64_t> last_calls = 0;  ///< calls that change the disk which the survivors still make
  ::pid_t process[most_ranks] = {};
  rank_log rank[most_ranks];
  char where[240] = {};
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

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
  std::int64_t until = 0;                ///< counted from what was resumed, if `relative`
  bool relative = false;                 ///< then each step is saved
  std::vector<std::int64_t> saves = {};  ///< else these
  bool waits = true;                     ///< for each save to end before the next update but one
  std::chrono::milliseconds patience{60'000};
  std::map<std::int64_t, int> writers = {};  ///< on how many ranks a step was saved

  kill_plan plan = {};  ///< `change` counts those of `at_rank`
  int at_rank = 0;
  std::optional<std::chrono::microseconds> at_time = {};
  unsigned victims = 0;                    ///< a bit for each rank; none: the one where the moment comes
  std::int64_t last_calls = 0;             ///< after how many calls of theirs the survivors die, too
  std::chrono::microseconds grace{5'000};  ///< or after how long
  bool survivors_end = false;              ///< they live until they end by themselves
  bool has_rival = false;                  ///< saves may fail, since another run may save the same steps

  // What a broken library would do, for tests of the checks.
  bool tells_too_early = false;  ///< a step counts as acknowledged before it is saved
  bool removes_nothing = false;
};

/// How it ended.
struct run_end {
  bool struck = false;  ///< the moment to kill came
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
  template <class Writer>
  void submit(cairn::save_job<Writer> job) {
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
/// Ranks that find each other by the name of their job.
class process_world {
 public:
  explicit process_world(int size) : size_(size), job_(job()) {}
  [[nodiscard]] process_communicator communicator(int rank) const { return {job_, rank, size_}; }
  static std::string prefix() { return "kills-" + std::to_string(::getpid()) + "-"; }

 private:
  static std::string job() {
    static int count = 0;
    return prefix() + std::to_string(++count);
  }
  int size_;
  std::string job_;
};
/// Kills ranks when the moment comes, in the process where it does.
class run_watch final : public kill_watch {
 public:
  run_watch(run_log& log, const run_order& order, int rank)
      : kill_watch(order.plan, log.gate_open), log_(log), order_(order), rank_(rank) {}

  file_decision before(file_call call, const std::string& path) override {
    const auto decided = kill_watch::before(call, path);
    return order_.removes_nothing && call == file_call::unlink ? file_decision::leave_out : decided;
  }

 private:
  std::uint64_t count() override {
    const auto n = ++log_.rank[rank_].changes;
    if (log_.struck && !order_.survivors_end && --log_.last_calls < 0) end();
    return rank_ == order_.at_rank ? n : 0;
  }
  void strike(const std::string& where) override {
    if (log_.struck.exchange(true)) return;
    std::snprintf(log_.where, sizeof log_.where, "rank %d: %s", rank_, where.c_str());
    for (int r = 0; r < order_.world; ++r)
      if (r != rank_ && (order_.victims >> r & 1u) != 0) ::kill(log_.process[r], SIGKILL);
    if (order_.victims == 0 || (order_.victims >> rank_ & 1u) != 0) end();
  }
  [[noreturn]] static void end() {
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  }
  run_log& log_;
  const run_order& order_;
  int rank_;
};

using watched_store = cairn::basic_file_store<watched_file_system<>>;

inline cairn::any_checkpointer make_checkpointer(const run_order& order, watched_store files,
                                                 process_communicator comm) {
  cairn::safetensors_storage store(std::move(files), {.ranks_per_file = order.ranks_per_file});
  const auto& way = ways_of_saving[order.way];
  const cairn::checkpointer_options options{.patience = order.patience,
                                            .peer_patience = order.patience,
                                            .max_consecutive_failures = 0,
                                            .quiet = true};
  const cairn::keep_last keep(order.keep);
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

/// One rank.
class rank_run {
 public:
  rank_run(const run_order& order, run_log& log, int rank, const std::string& root)
      : order_(order), log_(log), own_(log.rank[rank]), rank_(rank), root_(root) {}

  void train(process_communicator comm) {
    auto watch = std::make_shared<run_watch>(log_, order_, rank_);
    kill_watch::of_this_process = watch.get();
    try {
      toy_training toy(rank_, order_.world);
      auto ckpt = make_checkpointer(order_,
                                    watched_store{root_, cairn::file_store_options{.write_bytes = 64u << 10},
                                                  watched_file_system<>{watch}},
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
        // Training goes on while the save is under way.
        if (step < until) update(ckpt, toy);
        if (saved && order_.waits) {
          saved->wait_written();
          mark("written", step);
          saved->wait();
          raise_to(log_.acknowledged, step);
          mark("committed", step);
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
      if (!log_.struck && !(order_.has_rival && resumed_))
        trouble(std::string("nobody was killed, and yet: ") + e.what());
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
  bool resumed_ = false;
};

}  // namespace detail

/// Starts runs and tells of the last one. The process has no threads.
class run_keeper {
 public:
  run_keeper()
      : memory_(::mmap(nullptr, sizeof(run_log), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    log_ = new (memory_) run_log;
  }
  run_keeper(const run_keeper&) = delete;
  run_keeper& operator=(const run_keeper&) = delete;
  ~run_keeper() { ::munmap(memory_, sizeof(run_log)); }

  [[nodiscard]] const run_log& log() const { return *log_; }

  run_end run(const std::string& root, const run_order& order) {
    start(root, order);
    return finish();
  }
  /// The first half of run().
  void start(const std::string& root, const run_order& what) {
    order_ = what;
    const auto& order = order_;
    log_ = new (memory_) run_log;
    log_->last_calls = order.last_calls;
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
        ::alarm(150);
        char nothing = 0;
        while (::read(gate[0], &nothing, 1) < 0 && errno == EINTR) {
        }
        try {
          detail::rank_run(order, *log_, rank, root).train(world.communicator(rank));
        } catch (const std::exception& e) {  // of the communicator
          auto& own = log_->rank[rank];
          std::snprintf(own.error, sizeof own.error, "%s", e.what());
          if (!log_->struck) std::snprintf(own.trouble, sizeof own.trouble, "rank %d: %s", rank, e.what());
        }
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
  void wait_for_one() { static_cast<void>(one_ends(lives_, clock::now() + std::chrono::seconds(100))); }
  /// The second half of run().
  run_end finish() { return wait_for(order_, lives_); }

 private:
  using clock = std::chrono::steady_clock;

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
    const auto limit = clock::now() + std::chrono::seconds(100);
    if (order.at_time) {
      const auto moment = clock::now() + *order.at_time;
      while (!all_ended(lives) && one_ends(lives, moment)) {
      }
      if (!all_ended(lives) && !log_->struck.exchange(true)) {
        std::snprintf(log_->where, sizeof log_->where, "after %lld us",
                      static_cast<long long>(order.at_time->count()));
        kill_ranks(lives, order.victims);
      }
    }
    bool hung = false;
    while (!all_ended(lives)) {
      if (one_ends(lives, limit)) {
        if (!log_->struck || order.survivors_end) continue;
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
    end.struck = log_->struck;
    for (int rank = 0; rank < order.world; ++rank) {
      int status = 0;
      while (::waitpid(log_->process[rank], &status, 0) < 0 && errno == EINTR) {
      }
      const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      end.killed += killed;
      const auto name = "rank " + std::to_string(rank);
      if (killed ? !end.struck : !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
        end.trouble += name + " ended with status " + std::to_string(status) + "; ";
      if (log_->rank[rank].trouble[0] != 0) end.trouble += std::string(log_->rank[rank].trouble) + "; ";
    }
    if (hung) end.trouble += "ranks did not end in time; ";
    return end;
  }

  void* memory_;
  run_log* log_ = nullptr;
  run_order order_;
  std::vector<pollfd> lives_;
};

}  // namespace cairn_test
