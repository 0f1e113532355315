// SPDX-License-Identifier: Apache-2.0
// links: cairn::interprocess cairn::links
// cost: 15
// Jobs on four hosts whose processes are killed at named steps, with the memory of their host or without it: what was
// redundant is resumed. Ranks are processes, hosts are directories, links are TLS.
//   CAIRN_TEST_LONG=1     all steps, and at random moments more often
//   CAIRN_TEST_LOSSES=N   at least so many hosts are lost at random
//   CAIRN_TEST_SECONDS=N  and more and more of them, until so long has passed
//   CAIRN_TEST_SEED=N     at other moments
#include <doctest/doctest.h>

#include <cairn/any_checkpointer.hpp>
#include <cairn/cairn.hpp>
#include <cairn/comm/shared_memory_communicator.hpp>
#include <cairn/links/tls_link.hpp>
#include <cairn/redundancy/partner_copies.hpp>
#include <cairn/tiers/local_tier.hpp>
#include <support/figures.hpp>
#include <support/job_on_hosts.hpp>
#include <support/process_ranks.hpp>
#include <support/rounds.hpp>

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {
using namespace cairn;
using cairn_test::places;
using cairn_test::points;
using cairn_test::process_ranks;
using cairn_test::rank_event;
using cairn_test::rank_process;
using cairn_test::told_communicator;
using cairn_test::told_files;
using cairn_test::told_links;
namespace fs = std::filesystem;

constexpr int ranks = 4;
constexpr std::int64_t elements = 60'000;

class told_store : public file_store {
 public:
  told_store(const std::string& directory, points& at) : file_store{directory}, at_(&at) {}
  [[nodiscard]] auto create(std::string_view key, std::uint64_t size_hint) {
    at_->pass("persist");
    return file_store::create(key, size_hint);
  }

 private:
  points* at_;
};

/// Words that the ranks share with the test; of `held` and `redundant` each rank has one.
enum word : std::size_t { resumed, from_tier, held, redundant = held + ranks };

class told_loads {
 public:
  using cairn_role = role::observer;
  explicit told_loads(rank_process& me) : me_(&me) {}
  void observe(const observation& what) noexcept {
    if (what.kind == observation::event::loaded && what.rank == 0)
      me_->word(from_tier) = what.load->from_tier;
  }

 private:
  rank_process* me_;
};

/// Connects again and again to all ports at which this process listens, sends what is no message of a link, and keeps the
/// connections.
class strangers {
 public:
  strangers() : thread_([this] { run(); }) {}
  strangers(const strangers&) = delete;
  strangers& operator=(const strangers&) = delete;
  ~strangers() {
    ended_ = true;
    thread_.join();
    for (const int each : held_) ::close(each);
  }
  /// Of all ports, so many were made.
  [[nodiscard]] int connections() const noexcept { return connections_; }

 private:
  void run() {
    std::vector<::sockaddr_storage> ports;
    for (int file = 3; file < 256; ++file) {
      int listens = 0;
      ::socklen_t length = sizeof listens;
      ::sockaddr_storage at{};
      if (::getsockopt(file, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0) continue;
      length = sizeof at;
      if (::getsockname(file, reinterpret_cast<::sockaddr*>(&at), &length) != 0) continue;
      if (at.ss_family == AF_INET6)
        reinterpret_cast<::sockaddr_in6&>(at).sin6_addr = in6addr_loopback;
      else if (at.ss_family == AF_INET)
        reinterpret_cast<::sockaddr_in&>(at).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      else
        continue;
      ports.push_back(at);
    }
    if (ports.empty()) connections_ = -1;
    const std::string garbage(300, 'x');
    while (!ended_ && !ports.empty())
      for (const auto& at : ports) {
        const int to = ::socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (to < 0) continue;
        static_cast<void>(::connect(to, reinterpret_cast<const ::sockaddr*>(&at), sizeof at));
        ::pollfd ready{.fd = to, .events = POLLOUT, .revents = 0};
        static_cast<void>(::poll(&ready, 1, 1000));
        // Every other one says nothing.
        if (connections_ % 2 == 0)
          static_cast<void>(::send(to, garbage.data(), garbage.size(), MSG_NOSIGNAL));
        ++connections_;
        held_.push_back(to);
        if (held_.size() < 100) continue;
        ::close(held_.front());
        held_.erase(held_.begin());
      }
  }
  std::atomic<bool> ended_{false};
  std::atomic<int> connections_{0};
  std::vector<int> held_;
  std::thread thread_;
};

/// Resumes, makes so many steps, each of which is held and redundant before the next one begins, and closes.
void train(const std::string& store, const std::string& tier, const std::string& name,
           std::uint64_t persisted, std::int64_t steps, bool flooded, rank_process& me) {
  const auto self = static_cast<std::size_t>(me.rank());
  cairn_test::state_of_steps trained(me.rank(), me.size(), elements);
  points at(me);
  bool resuming = false;
  std::optional<any_checkpointer>
      job;  // it lives when this process is killed: its end would wait for the others
  try {
    const auto files = std::make_shared<told_files>(at);
    job.emplace(checkpointer{
        told_store(store, at), local_tier{tier, {.keep = 2, .copy = {.threads = 1}, .files = files}},
        persist{.every = persisted, .strict = true}, partner_copies{.failure_group = tier}, told_links{&at},
        told_communicator(shared_memory_communicator(name, me.rank(), me.size()), at, resuming),
        told_loads(me),
        checkpointer_options{.peer_timeout = std::chrono::seconds(60), .max_restarts = 0, .quiet = true}});
    auto& ckpt = *job;
    resuming = true;
    const auto newest = ckpt.resume(trained.state).value_or(0);
    resuming = false;
    if (newest > 0) trained.require(newest);
    if (me.rank() == 0) me.word(resumed) = static_cast<std::uint32_t>(newest) + 1;
    std::optional<strangers> others;
    if (flooded) others.emplace();
    while (flooded && others->connections() < 50) {
      if (others->connections() < 0) throw std::runtime_error("this rank listens nowhere");
      std::this_thread::yield();
    }
    for (auto step = newest + 1; step <= newest + steps; ++step) {
      trained.fill(step);
      const auto save = ckpt.save(trained.state, step);
      save.wait_held();
      me.word(held + self) = static_cast<std::uint32_t>(step);
      if (save.wait_redundant(std::chrono::minutes(2)))
        me.word(redundant + self) = static_cast<std::uint32_t>(step);
      static_cast<void>(ckpt.any_rank(false));  // as the collectives of a training step
    }
    ckpt.close();
  } catch (const peer_error&) {
    ::kill(::getpid(), SIGKILL);  // as a launcher does when a rank is gone
  }
}

struct outcome {
  std::vector<cairn_test::rank_end> ends;
  std::int64_t resumed = -1;   // -1: it did not come so far
  std::int64_t held = 0;       // by all ranks
  std::int64_t redundant = 0;  // as at least one rank was told
  bool from_tier = false;
  [[nodiscard]] bool good() const {
    return std::all_of(ends.begin(), ends.end(), [](const auto& e) { return e.good(); });
  }
  /// Whether each rank ended well or was killed, perhaps by itself as it learned that another one was.
  [[nodiscard]] bool right() const {
    return std::all_of(ends.begin(), ends.end(), [](const auto& e) { return e.good() || e.killed(); });
  }
  [[nodiscard]] std::string text() const {
    std::string all;
    for (const auto& e : ends) all += e.text() + "; ";
    return all;
  }
};

outcome run(const places& on, std::int64_t steps, const std::vector<rank_event>& kills = {},
            std::uint64_t persisted = 1000, bool flooded = false) {
  process_ranks processes(ranks);
  for (const auto& each : kills) processes.kill_at(each.rank, each.point, each.count);
  const auto name = cairn_test::job_name();
  const auto store = on.disk.path() + "/store";
  outcome o;
  o.ends = processes.run(
      [&](rank_process& me) { train(store, on.tier(me.rank()), name, persisted, steps, flooded, me); });
  o.resumed = static_cast<std::int64_t>(processes.word(resumed).load()) - 1;
  o.from_tier = processes.word(from_tier) != 0;
  o.held = INT64_MAX;
  for (std::size_t r = 0; r < ranks; ++r) {
    o.held = std::min<std::int64_t>(o.held, processes.word(held + r).load());
    o.redundant = std::max<std::int64_t>(o.redundant, processes.word(redundant + r).load());
  }
  return o;
}

/// Kills a rank at a point, loses its host or not, and resumes. Returns whether the point came so often.
bool kill_and_resume(int rank, const std::string& point, int count, bool host_too,
                     std::uint64_t persisted = 1000) {
  CAPTURE(point);
  CAPTURE(count);
  CAPTURE(host_too);
  const places on;
  const auto first = run(on, 5, {{.rank = rank, .point = point, .count = count}}, persisted);
  CAPTURE(first.text());
  REQUIRE(first.right());
  if (first.good()) return false;
  if (host_too) on.lose(rank);
  const auto second = run(on, 2);
  CAPTURE(second.text());
  CHECK(second.good());
  CHECK(second.resumed >= (host_too ? first.redundant : first.held));
  CHECK((second.resumed == 0 || second.from_tier));
  CHECK(on.empty());
  return true;
}

// survives: host-lost-redundant
TEST_CASE(
    "a rank that is killed at any step of making pieces costs no step that was redundant, with its host or "
    "not") {
  int kills = 0;
  bool host_too = false;
  for (const auto* point :
       {"before offer", "after offer", "before fetch", "after fetch", "before withdraw", "before rename held",
        "after rename held", "before rename kept", "after rename kept"})
    for (const int count : {1, 3}) {
      host_too = !host_too;
      if (cairn_test::long_run())
        kills += kill_and_resume(1, point, count, !host_too);
      else if (count == 1)
        continue;
      kills += kill_and_resume(2, point, count, host_too);
    }
  CHECK(kills >= (cairn_test::long_run() ? 36 : 9));
}
// survives: host-lost-redundant
TEST_CASE("a host that is lost while it writes a checkpoint to the store costs no step that was redundant") {
  CHECK(kill_and_resume(1, "persist", 1, true, 2));
  CHECK(kill_and_resume(0, "persist", 3, true, 2));
}
// survives: killed-in-recovery
TEST_CASE("a process that is killed at any message of a recovery leaves what the next one finds") {
  const places on;
  auto newest = run(on, 3, {{.rank = 0, .point = "before rename held", .count = 3}}).redundant;
  REQUIRE(newest == 2);
  on.lose(3);
  int kills = 0;
  for (int message = 3; message <= 60; message += cairn_test::long_run() ? 1 : 19) {
    CAPTURE(message);
    const int rank = message % ranks;
    const auto killed = run(on, 0, {{.rank = rank, .point = "message", .count = message}});
    CAPTURE(killed.text());
    CHECK(killed.right());
    CHECK((killed.resumed == -1 || killed.resumed == newest));
    kills += !killed.good();
  }
  CHECK(kills >= 3);
  const auto last = run(on, 1);
  CAPTURE(last.text());
  CHECK(last.good());
  CHECK(last.resumed == newest);
  CHECK(on.empty());
}

// survives: killed-in-recovery
TEST_CASE("a process that is killed while it removes or rebuilds pieces leaves what the next one finds") {
  const places on;
  const auto newest = run(on, 3, {{.rank = 0, .point = "before rename held", .count = 3}}).redundant;
  REQUIRE(newest == 2);
  const std::vector<rank_event> kills{{.rank = 3, .point = "before write slot"},
                                      {.rank = 3, .point = "before put new-rebuilt"},
                                      {.rank = 3, .point = "after rename held"},
                                      {.rank = 2, .point = "before remove kept"},
                                      {.rank = 2, .point = "before remove piece"}};
  for (const auto& each : kills) {
    CAPTURE(each.point);
    on.lose(3);
    const auto killed = run(on, 0, {each});
    CAPTURE(killed.text());
    CHECK(killed.right());
    CHECK_FALSE(killed.good());
    CHECK((killed.resumed == -1 || killed.resumed == newest));
  }
  const auto last = run(on, 1);
  CAPTURE(last.text());
  CHECK(last.good());
  CHECK(last.resumed == newest);
  CHECK(on.empty());
}

// survives: ports-flooded
TEST_CASE("strangers that flood the ports of all ranks cost no step, and none its pieces") {
  const places on;
  const auto flooded = run(on, 4, {{.rank = 1, .point = "before rename held", .count = 4}}, 1000, true);
  CAPTURE(flooded.text());
  CHECK(flooded.right());
  CHECK(flooded.redundant == 3);
  on.lose(1);
  const auto again = run(on, 1);
  CAPTURE(again.text());
  CHECK(again.good());
  CHECK(again.resumed == 3);
  CHECK(on.empty());
}

std::uint64_t number_in(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}
// survives: host-lost-redundant
TEST_CASE("hosts that are lost at random moments cost no step that was redundant") {
  const auto seed = cairn_test::test_seed();
  const auto wanted = number_in("CAIRN_TEST_LOSSES", cairn_test::rounds(3, 20));
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::seconds(number_in("CAIRN_TEST_SECONDS", 0));
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t n) { return static_cast<int>(random() % n); };
  CAPTURE(seed);
  const places on;
  std::int64_t floor = 0;  // what must be there
  std::uint64_t starts = 0;
  std::uint64_t hosts = 0;
  std::uint64_t processes = 0;
  std::int64_t most_lost = 0;
  while (hosts < wanted || std::chrono::steady_clock::now() < until) {
    CAPTURE(starts);
    std::vector<rank_event> kills{{.rank = below(ranks), .point = "any", .count = 1 + below(250)}};
    // Another one dies as well, of another cause.
    if (below(4) == 0)
      kills.push_back(
          {.rank = (kills[0].rank + 1 + below(ranks - 1)) % ranks, .point = "any", .count = 1 + below(250)});
    const auto o = run(on, 8, kills, 7);
    CAPTURE(o.text());
    ++starts;
    CAPTURE(floor);
    CAPTURE(o.resumed);
    REQUIRE(o.right());
    REQUIRE((o.resumed == -1 || o.resumed >= floor));
    if (o.good()) {  // it was closed: the store has its last step
      CHECK(on.empty());
      floor = o.held;
      continue;
    }
    processes += static_cast<std::uint64_t>(std::count_if(kills.begin(), kills.end(), [&](const auto& k) {
      return o.ends[static_cast<std::size_t>(k.rank)].killed();
    }));
    const auto newest = std::max({floor, o.resumed, o.held});
    floor = newest;
    // Once it was redundant, and not before, one host may go with its memory.
    if (o.redundant == 0 || below(8) == 0) continue;
    on.lose(kills[0].rank);
    floor = o.redundant;
    most_lost = std::max(most_lost, newest - floor);
    ++hosts;
  }
  const auto last = run(on, 1);
  CAPTURE(last.text());
  CHECK(last.good());
  CHECK(last.resumed >= floor);
  CHECK(on.empty());
  cairn_test::report_figures("lost hosts", {{"hosts", hosts},
                                            {"processes", processes},
                                            {"starts", starts},
                                            {"last step", static_cast<std::uint64_t>(last.resumed)},
                                            {"most steps lost", static_cast<std::uint64_t>(most_lost)}});
}

}  // namespace
