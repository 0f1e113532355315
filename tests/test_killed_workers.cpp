// SPDX-License-Identifier: Apache-2.0
// links: cairn::interprocess cairn::links
// uses: cairn::parity
// cost: 15
// Jobs on four hosts, each of whose ranks has a worker process that writes to the store, and keeps pieces of what others
// hold: workers are killed at named steps, alone or with their trainer and the memory of its host. Ranks are processes,
// hosts are directories, links are TLS.
//   CAIRN_TEST_LONG=1     all steps
#include <doctest/doctest.h>

#include <cairn/any_checkpointer.hpp>
#include <cairn/cairn.hpp>
#include <cairn/comm/shared_memory_communicator.hpp>
#include <cairn/execute/process_executor.hpp>
#include <cairn/redundancy/partner_copies.hpp>
#include <cairn/tiers/local_tier.hpp>
#if CAIRN_USES_PARITY + 0
#include <cairn/redundancy/parity.hpp>
#endif
#include <support/job_on_hosts.hpp>
#include <support/process_ranks.hpp>
#include <support/processes.hpp>
#include <support/rounds.hpp>
#include <support/scripted_store.hpp>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

void cairn_test_before_main(int argc, char** argv) {
  cairn::worker_main(argc, argv);
}

namespace {
using namespace cairn;
using cairn_test::places;
using cairn_test::points;
using cairn_test::process_ranks;
using cairn_test::rank_process;
using cairn_test::scripted_store;
namespace fs = std::filesystem;

constexpr int ranks = 4;
constexpr std::int64_t elements = 60'000;
constexpr std::int64_t stored_step = 2;  // the first that goes to the store
constexpr std::int64_t last_step = 7;

/// What happens to a rank.
struct blow {
  int rank = 1;
  /// What its worker does while it writes the first save that goes to the store; see scripted_store.
  std::string script = {};
  /// From then on, at which step of the trainer the worker is killed; empty: by its script.
  std::string point = {};
  int count = 1;
  bool trainer_too = false;
};

/// Words that the ranks share with the test; each rank has one of the last four.
enum word : std::size_t {
  resumed,
  from_tier,
  waited,  // for processes of an earlier run
  fenced,
  struck,
  held,
  redundant = held + ranks,
  without = redundant + ranks,
  stored = without + ranks
};
/// How the first save that goes to the store ended.
enum class end : std::uint32_t { none, committed, lost, other };

class told_events {
 public:
  using cairn_role = role::observer;
  explicit told_events(rank_process& me) : me_(&me) {}
  void observe(const observation& what) noexcept {
    if (me_->rank() != 0) return;
    using event = observation::event;
    if (what.kind == event::loaded) me_->word(from_tier) = what.load->from_tier;
    if (what.kind == event::wait_began) ++me_->word(waited);
    if (what.kind == event::fenced) ++me_->word(fenced);
  }

 private:
  rank_process* me_;
};

/// Kills the worker of this process, of which nothing is left when this returns.
void kill_workers(rank_process& me) {
  for (const auto worker : cairn_test::workers()) {
    ::kill(worker, SIGKILL);
    ::siginfo_t end{};
    ::waitid(P_PID, static_cast<::id_t>(worker), &end, WEXITED | WNOWAIT);
    ++me.word(struck);
  }
}

/// Strikes when the rank comes to the point, once it is armed.
class striker {
 public:
  striker(rank_process& me, blow what) : me_(me), what_(std::move(what)) {}
  void arm() { armed_ = me_.rank() == what_.rank; }
  void pass(const std::string& name) {
    if (!armed_ || name != what_.point || --what_.count != 0) return;
    kill_workers(me_);
    if (what_.trainer_too) ::kill(::getpid(), SIGKILL);
  }

 private:
  rank_process& me_;
  blow what_;
  std::atomic<bool> armed_{false};
};

end end_of(const save_handle& save) {
  try {
    save.wait();
    return end::committed;
  } catch (const error& e) {
    return e.id() == error_id::peer_lost ? end::lost : end::other;
  }
}

std::string scripts_of(const places& on, int rank) {
  auto scripts = on.disk.path() + "/scripts" + std::to_string(rank);
  fs::create_directories(scripts);
  return scripts;
}
template <class R>
any_checkpointer make_job(const places& on, const std::string& name, R by, points& at, rank_process& me) {
  by.failure_group = on.tier(me.rank());
  return any_checkpointer(checkpointer{
      scripted_store{file_store{on.disk.path() + "/store"}, scripts_of(on, me.rank())},
      local_tier{on.tier(me.rank()),
                 {.keep = 2, .copy = {.threads = 1}, .files = std::make_shared<cairn_test::told_files>(at)}},
      persist{.every = stored_step}, std::move(by), cairn_test::told_links{&at},
      shared_memory_communicator(name, me.rank(), me.size()), process_executor{}, overlapped{},
      told_events(me),
      // Longer than a test takes: what waits for one of them hangs.
      checkpointer_options{.timeout = std::chrono::minutes(20),
                           .peer_timeout = std::chrono::minutes(20),
                           .earlier_run_timeout = std::chrono::minutes(20),
                           .max_restarts = 0,
                           .quiet = true}});
}

/// Resumes, saves up to a step, each of which is held and redundant before the next one begins, and closes.
template <class R>
void train(const places& on, const std::string& name, R by, const blow& what, std::int64_t until,
           rank_process& me) {
  const auto self = static_cast<std::size_t>(me.rank());
  cairn_test::state_of_steps trained(me.rank(), me.size(), elements);
  const auto scripts = scripts_of(on, me.rank());
  const bool struck_here = me.rank() == what.rank && !what.script.empty();
  striker strike(me, what);
  points at(me, [&](const std::string& point) { strike.pass(point); });
  std::optional<any_checkpointer>
      job;  // lives when this process is killed: its end would wait for the others
  try {
    job.emplace(make_job(on, name, std::move(by), at, me));
    auto& ckpt = *job;
    const auto newest = ckpt.resume(trained.state).value_or(0);
    if (newest > 0) trained.require(newest);
    if (me.rank() == 0) me.word(resumed) = static_cast<std::uint32_t>(newest) + 1;
    save_handle first_stored;
    for (auto step = newest + 1; step <= until; ++step) {
      ckpt.before_update();
      trained.fill(step);
      if (step == stored_step && struck_here) scripted_store::write(scripts, what.script);
      const auto save = ckpt.save(trained.state, step);
      if (step == stored_step) {
        first_stored = save;
        ckpt.before_update();  // the worker has it
        if (struck_here && !what.point.empty()) scripted_store::wait_held(scripts), strike.arm();
      }
      save.wait_held();
      me.word(held + self) = static_cast<std::uint32_t>(step);
      if (save.wait_redundant(std::chrono::minutes(2)))
        me.word(redundant + self) = static_cast<std::uint32_t>(step);
      else
        ++me.word(without + self);
      static_cast<void>(ckpt.any_rank(false));  // as the collectives of a training step
      if (step == last_step - 2 && newest < stored_step)
        me.word(stored + self) = static_cast<std::uint32_t>(end_of(first_stored));
      if (step == last_step - 1 && newest < stored_step && end_of(save) != end::committed)
        throw std::runtime_error("a save after the one that lost its worker is not in the store");
    }
    ckpt.close();
  } catch (const peer_error&) {
    ::kill(::getpid(), SIGKILL);  // as a launcher does when a rank is gone
  }
}

struct outcome {
  std::vector<cairn_test::rank_end> ends;
  std::int64_t resumed = -1;  // -1: it did not come so far
  std::int64_t held = INT64_MAX;
  std::int64_t redundant = 0;  // as at least one rank was told
  bool from_tier = false;
  std::uint32_t waited = 0, fenced = 0, struck = 0, without = 0;
  std::vector<end> stored;
  [[nodiscard]] bool good() const {
    return std::all_of(ends.begin(), ends.end(), [](const auto& e) { return e.good(); });
  }
  [[nodiscard]] std::string text() const {
    std::string all;
    for (const auto& e : ends) all += e.text() + "; ";
    return all;
  }
};

template <class R>
outcome run(const places& on, const R& by, const blow& what, std::int64_t until = last_step) {
  process_ranks processes(ranks);
  const auto name = cairn_test::job_name();
  outcome o;
  o.ends = processes.run([&](rank_process& me) { train(on, name, by, what, until, me); });
  o.resumed = static_cast<std::int64_t>(processes.word(resumed).load()) - 1;
  o.from_tier = processes.word(from_tier) != 0;
  o.waited = processes.word(waited), o.fenced = processes.word(fenced), o.struck = processes.word(struck);
  for (std::size_t r = 0; r < ranks; ++r) {
    o.held = std::min<std::int64_t>(o.held, processes.word(held + r).load());
    o.redundant = std::max<std::int64_t>(o.redundant, processes.word(redundant + r).load());
    o.without += processes.word(without + r);
    o.stored.push_back(static_cast<end>(processes.word(stored + r).load()));
  }
  return o;
}

/// Workers whose trainer was killed come to this process when they end.
struct orphans {
  orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }
  orphans(const orphans&) = delete;
  orphans& operator=(const orphans&) = delete;
  ~orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 0); }
  /// Whether all of them end.
  [[nodiscard]] static bool end() {
    return cairn_test::eventually([] {
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      return cairn_test::children().empty();
    });
  }
};

/// A worker alone is killed: every save is held and gets its pieces, the save that it wrote is told to be lost, or is
/// finished by its trainer, and the next one that is due has a new worker.
template <class R>
void check_worker_killed(const R& by, const blow& what) {
  CAPTURE(what.script);
  CAPTURE(what.point);
  CAPTURE(what.count);
  const orphans left;
  const places on;
  const auto o = run(on, by, what);
  CAPTURE(o.text());
  CHECK(o.good());
  CHECK(o.without == 0);
  CHECK(o.redundant == last_step);
  if (!what.point.empty()) CHECK(o.struck == 1);
  for (const auto each : o.stored) {
    CHECK(each == o.stored.front());
    CHECK((each == end::lost || (each == end::committed && what.point.empty())));
  }
  CHECK(on.empty());
  CHECK(orphans::end());
  const auto next = run(on, by, {}, 0);
  CAPTURE(next.text());
  CHECK(next.good());
  CHECK(next.resumed == last_step);
  CHECK_FALSE(next.from_tier);
  CHECK(next.waited == 0);
  CHECK(on.empty());
  CHECK(orphans::end());
}

const std::vector<const char*> steps_of_pieces{
    "before put new",     "before rename held", "after rename held", "before offer",
    "after offer",        "before fetch",       "after fetch",       "before write piece",
    "before rename kept", "after rename kept",  "before withdraw"};
const std::vector<const char*> steps_of_persisting{
    "create before rank", "write before rank",           "finish before rank",
    "finish after rank",  "publish_new before manifest", "publish_new after manifest"};
constexpr const char* writes = "create before rank hold";

template <class R>
void check_workers_killed(const R& by, int first) {
  int n = first;
  for (const auto* point : steps_of_pieces)
    if (cairn_test::long_run() || n++ % 4 == 0)
      check_worker_killed(by, {.rank = n % ranks, .script = writes, .point = point, .count = 2});
  for (const auto* step : steps_of_persisting)
    if (cairn_test::long_run() || n++ % 3 == 0)
      check_worker_killed(by, {.rank = std::string(step).ends_with("manifest") ? 0 : n % ranks,
                               .script = step + std::string(" kill")});
}

// survives: worker-killed-redundant
TEST_CASE("a worker that is killed at any step costs no step and no pieces, with copies on partners") {
  check_workers_killed(partner_copies{}, 0);
}
#if CAIRN_USES_PARITY + 0
// survives: worker-killed-redundant
TEST_CASE("a worker that is killed at any step costs no step and no pieces, with parity") {
  check_workers_killed(parity{.data = 3, .losses = 1}, 2);
}
#endif

/// A host is lost while its worker writes: what the others' workers write can never be committed. The next run neither
/// waits for them, nor loses what was redundant.
template <class R>
void check_host_lost(const R& by, const blow& what) {
  CAPTURE(what.point);
  const orphans left;
  const places on;
  const auto first = run(on, by, what);
  CAPTURE(first.text());
  CHECK(first.struck == 1);
  CHECK(first.ends.at(static_cast<std::size_t>(what.rank)).killed());
  on.lose(what.rank);
  const auto second = run(on, by, {}, last_step + 2);
  CAPTURE(second.text());
  CHECK(second.good());
  CHECK(second.resumed >= first.redundant);
  CHECK(second.from_tier);
  CHECK(on.empty());
  CHECK(orphans::end());
}

// survives: host-lost-redundant
TEST_CASE(
    "a host that is lost with its worker costs no step that was redundant, and no wait for other workers") {
  for (const auto* point : {"before rename held", "after offer", "before write piece", "after rename kept"})
    check_host_lost(partner_copies{},
                    {.rank = 1, .script = writes, .point = point, .count = 2, .trainer_too = true});
}

/// Saves a step whose worker is held on one rank, which is killed then, with its worker or not; the others wait for the
/// end of the save.
void save_with_a_lost_rank(const places& on, const std::string& name, int lost, bool worker_too,
                           rank_process& me) {
  std::vector<float> part(1000, 1.0F);
  state_dict state;
  state.tensor("part", part, shard{{4000}, {1000 * me.rank()}});
  const auto scripts = scripts_of(on, me.rank());
  points at(me);
  auto job = make_job(on, name, partner_copies{}, at, me);
  static_cast<void>(job.resume(state));
  job.save(state, 1).wait_held();
  job.before_update();
  if (me.rank() == lost) scripted_store::write(scripts, writes);
  const auto save = job.save(state, stored_step);
  job.before_update();
  if (me.rank() == lost) {
    scripted_store::wait_held(scripts);
    if (worker_too) kill_workers(me);
    ::kill(::getpid(), SIGKILL);
  }
  me.word(stored + static_cast<std::size_t>(me.rank())) = static_cast<std::uint32_t>(end_of(save));
}
/// How the save ended on ranks that were left. `meanwhile`: when the rank was killed.
template <class Meanwhile>
std::vector<end> ends_with_a_lost_rank(const places& on, int lost, bool worker_too, Meanwhile meanwhile) {
  process_ranks processes(ranks);
  const auto name = cairn_test::job_name();
  processes.start([&](rank_process& me) { save_with_a_lost_rank(on, name, lost, worker_too, me); });
  ::siginfo_t ended{};
  ::waitid(P_PID, static_cast<::id_t>(processes.process(static_cast<std::size_t>(lost))), &ended,
           WEXITED | WNOWAIT);
  meanwhile();
  std::vector<end> all;
  const auto told = processes.finish();
  for (int rank = 0; rank < ranks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    CAPTURE(told[r].text());
    CHECK((rank == lost ? told[r].killed() : told[r].good()));
    if (rank != lost) all.push_back(static_cast<end>(processes.word(stored + r).load()));
  }
  return all;
}

// survives: worker-waits
TEST_CASE("a save ends on all ranks when one is lost with its worker: nobody waits for its part") {
  for (const int lost : {0, 2}) {
    CAPTURE(lost);
    const orphans left;
    const places on;
    for (const auto each : ends_with_a_lost_rank(on, lost, true, [] {})) CHECK(each == end::lost);
    CHECK(orphans::end());
  }
}
// survives: worker-waits
TEST_CASE("a save goes on while the worker of a rank lives that is gone") {
  for (const int lost : {0, 2}) {
    CAPTURE(lost);
    const orphans left;
    const places on;
    const auto let_go = [&] {
      // Whatever the others do until then, the save is committed; the longer, the more they have done.
      std::this_thread::sleep_for(std::chrono::seconds(1));
      scripted_store::let_go(scripts_of(on, lost));
    };
    for (const auto each : ends_with_a_lost_rank(on, lost, false, let_go)) CHECK(each == end::committed);
    CHECK(orphans::end());
  }
}

}  // namespace
