// SPDX-License-Identifier: Apache-2.0
// links: cairn::interprocess
// cost: 50
//
// Ranks that are processes of one host and meet in shared memory: that messages arrive, that nothing is left
// behind, and that a rank that dies or hangs is named on all others.
#include <doctest/doctest.h>

#include <cairn/checkpointer.hpp>
#include <cairn/comm/collectives.hpp>
#include <cairn/comm/shared_memory/job_rendezvous.hpp>
#include <cairn/comm/shared_memory/message_ring.hpp>
#include <cairn/comm/shared_memory/shared_world.hpp>
#include <cairn/comm/shared_memory_communicator.hpp>
#include <cairn/storage/safetensors_storage.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/system/process_limits.hpp>
#include <paths.hpp>
#include <support/communicator_conformance.hpp>
#include <support/on_all_ranks.hpp>
#include <support/process_ranks.hpp>
#include <support/rounds.hpp>
#include <support/sanitized.hpp>
#include <support/scratch_directory.hpp>
#include <support/shared_memory_jobs.hpp>
#include <support/training_state.hpp>

#include <dirent.h>
#include <malloc.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

using namespace cairn_test;
using namespace cairn_test::shared_memory_jobs;
using namespace std::chrono_literals;
using cairn::deadline;
using cairn::error_id;
using cairn::shared_memory_communicator;

static_assert(cairn::plays<shared_memory_communicator, cairn::role::communicator>);
static_assert(!std::copy_constructible<shared_memory_communicator>);
static_assert(std::is_nothrow_move_constructible_v<shared_memory_communicator>);

TEST_CASE_TEMPLATE_INVOKE(communicator_conformance, process_env<1>, process_env<2>, process_env<4>,
                          process_env<8>, process_env<3, 4096>, shared_thread_env<1>, shared_thread_env<3>);

// --- Messages

TEST_CASE("ranks that send more than a ring holds to each other at once do not wait for each other") {
  const nothing_left after;
  const auto job = job_name();
  expect_good(process_ranks(3).run([&](rank_process& me) {
    shared_memory_communicator comm(job, me.rank(), 3, {.ring_bytes = 64 << 10});
    for (int to = 0; to < 3; ++to) comm.send(to, of_size(1 << 20, me.rank()), ample());
    for (int from = 2; from >= 0; --from)
      expect(comm.receive(from, ample()) == of_size(1 << 20, from), "a large message differs");
  }));
}

TEST_CASE("a message that was given up half-way never arrives, and later ones do") {
  const nothing_left after;
  const auto job = job_name();
  const auto ends = process_ranks(2).run([&](rank_process& me) {
    shared_memory_communicator comm(job, me.rank(), 2, {.ring_bytes = 4096});
    if (me.rank() == 1) {
      comm.send(0, bytes_of("before"), ample());
      me.say(outcome_of([&] { comm.send(0, of_size(1 << 20, 1), deadline::in(20ms)); }));
      me.word(0) = 1;
      comm.send(0, bytes_of("after"), ample());
      static_cast<void>(comm.receive(0, ample()));
    } else {
      me.await(0, 1);
      expect(text_of(comm.receive(1, ample())) == "before", "the message before differs");
      expect(text_of(comm.receive(1, ample())) == "after", "the message after differs");
      comm.send(1, {}, ample());
    }
  });
  expect_good(ends);
  CHECK(ends[1].said == "timeout.peer 0");
}

TEST_CASE("a deadline ends a send to a rank that takes a message, but slowly") {
  const nothing_left after;
  const auto job = job_name();
  const auto ends = process_ranks(2).run([&](rank_process& me) {
    shared_memory_communicator comm(job, me.rank(), 2, {.ring_bytes = 4096});
    if (me.rank() == 1) {
      me.say(outcome_of([&] { comm.send(0, bytes(16 << 20), deadline::in(50ms)); }));
      me.word(0) = 1;
    } else {
      while (me.word(0) == 0) {
        me.say(outcome_of([&] { static_cast<void>(comm.receive(1, deadline::in(0ns))); }) == "ok" ? "all"
                                                                                                  : "");
        ::usleep(1000);
      }
    }
  });
  expect_good(ends);
  CHECK(ends[0].said.empty());
  CHECK(ends[1].said == "timeout.peer 0");
}

TEST_CASE("a late message of an earlier call is dropped") {
  const nothing_left after;
  const auto job = job_name();
  const auto ends = process_ranks(3).run([&](rank_process& me) {
    cairn::collectives all(join(job, me));
    const auto fold = [&](std::string_view what, deadline until) {
      const auto got = text_of(all.tree_reduce_broadcast(bytes_of(what), concatenate, until));
      expect(got == std::string(what) + std::string(what) + std::string(what), "a fold of " + got);
    };
    if (me.rank() == 2) me.await(0, 2);  // it comes when the others have given up
    // Rank 0 gives up and sends rank 1 the failure.
    me.say(outcome_of([&] { fold("old", me.rank() == 0 ? deadline::in(8s) : ample()); }) + "; ");
    ++me.word(0);
    me.await(0, 3);
    fold("new", ample());
  });
  expect_good(ends);
  CHECK(ends[0].said == "timeout.peer 2; ");
  CHECK(ends[1].said == "timeout.peer 2; ");
  CHECK(ends[2].said == "timeout.peer 2; ");
}

// --- Ranks that die or hang

TEST_CASE("a rank that dies in the middle of a message is named; what it had sent before comes") {
  const nothing_left after;
  const auto job = job_name();
  const auto ends = process_ranks(3).run([&](rank_process& me) {
    shared_memory_communicator comm(job, me.rank(), 3, {.ring_bytes = 64 << 10});
    if (me.rank() == 1) {
      const std::jthread killer([&] {
        me.await(0, 1);
        ::kill(::getpid(), SIGKILL);
      });
      comm.send(2, bytes_of("whole"), ample());
      comm.send(0, bytes_of("whole"), ample());
      comm.send(0, of_size(64 << 20, 1), ample());
    }
    if (me.rank() == 0) {
      // Two pieces of the long one are here, and its sender waits.
      while (outcome_of([&] { static_cast<void>(comm.receive(0, deadline::in(0ns))); }) == "ok") {
      }
      expect(text_of(comm.receive(1, ample())) == "whole", "the message before differs");
      me.say(outcome_of([&] { static_cast<void>(comm.receive(1, deadline::in(1ms))); }) + "; ");
      me.word(0) = 1;
    }
    const auto begin = deadline::clock::now();
    if (me.rank() == 2)
      expect(text_of(comm.receive(1, ample())) == "whole", "what the dead rank had sent differs");
    me.say(outcome_of([&] { static_cast<void>(comm.receive(1, ample())); }) + "; ");
    me.say(outcome_of([&] { comm.send(1, bytes_of("x"), ample()); }));
    expect(cairn::seconds_since(begin) < 50, "only the deadline told that the rank is gone");
  });
  CHECK(ends[0].said == "timeout.peer 1; peer.lost 1; peer.lost 1");
  CHECK(ends[1].killed());
  CHECK(ends[2].said == "peer.lost 1; peer.lost 1");
}

TEST_CASE("a rank that is killed in a collective is named on all others") {
  const nothing_left after;
  for (int victim = 0; victim < 4; ++victim) {
    CAPTURE(victim);
    const auto job = job_name();
    process_ranks ranks(4);
    // During its merge where it has children; else between two calls.
    const bool parent = victim % 2 == 0;
    ranks.kill_at(victim, parent ? "merge" : "call", 2);
    const auto ends = ranks.run([&](rank_process& me) {
      cairn::collectives all(join(job, me));
      const auto fold = [&](deadline until) {
        me.point("call");
        static_cast<void>(all.tree_reduce_broadcast(
            bytes_of("x"),
            [&](bytes left, const bytes& right) {
              if (left.size() == 1) me.point("merge");
              return concatenate(std::move(left), right);
            },
            until));
      };
      fold(ample());
      me.say(outcome_of([&] { fold(deadline::never()); }));
    });
    check_all_told(ends, victim, "peer.lost " + std::to_string(victim));
    CHECK(ends[static_cast<std::size_t>(victim)].killed());
  }
}

// Where a deadline has to come, all worlds wait for it at the same time, and for long: a busy machine may
// stop any rank for seconds.

TEST_CASE("a rank that hangs is named by the deadline on all others") {
  const nothing_left after;
  std::deque<process_ranks> worlds;
  for (int victim = 0; victim < 3; ++victim) {
    const auto job = job_name();
    worlds.emplace_back(3).hang_at(victim, "call", 2).start([&](rank_process& me) {
      cairn::collectives all(join(job, me));
      me.point("call");
      all.barrier(ample());
      me.point("call");
      // Ranks that wait for the victim itself give up and tell the others, whose timeout is longer.
      me.say(outcome_of([&] { all.barrier(me.rank() == 0 || victim == 0 ? deadline::in(8s) : ample()); }));
    });
  }
  for (int victim = 0; victim < 3; ++victim) {
    CAPTURE(victim);
    const auto ends = worlds[static_cast<std::size_t>(victim)].finish();
    check_all_told(ends, victim, "timeout.peer " + std::to_string(victim));
    CHECK(ends[static_cast<std::size_t>(victim)].hung);
  }
}

TEST_CASE("a rank that is stopped is told to be, with its host and its process") {
  const nothing_left after;
  const auto job = job_name();
  const auto ends = process_ranks(3).hang_at(1, "stopped").run([&](rank_process& me) {
    cairn::collectives all(join(job, me));
    if (me.rank() == 1) me.word(1) = static_cast<std::uint32_t>(::getpid());
    me.point("stopped");
    while (me.word(1) == 0) ::usleep(1000);
    const auto stat = "/proc/" + std::to_string(me.word(1)) + "/stat";
    while (cairn::detail::kernel_file(stat).value_or("").find(") T ") == std::string::npos) ::usleep(1000);
    me.say(message_of([&] { all.barrier(me.rank() == 0 ? deadline::in(50ms) : ample()); }) + " process " +
           std::to_string(me.word(1)));
  });
  std::array<char, 256> host{};
  REQUIRE(::gethostname(host.data(), host.size() - 1) == 0);
  for (const std::size_t rank : {0U, 2U}) {
    const auto& said = ends[rank].said;
    CAPTURE(said);
    const auto process = said.substr(said.rfind(' ') + 1);
    CHECK(said.find("timeout.peer") != std::string::npos);
    CHECK(said.find("rank 1 on " + std::string(host.data()).substr(0, 64) + ", process " + process +
                    ", which is stopped: kill -CONT " + process) != std::string::npos);
  }
}

TEST_CASE("a rank that never comes is named, on all that came") {
  const nothing_left after;
  std::deque<process_ranks> worlds;
  for (int victim = 0; victim < 4; ++victim) {
    const auto job = job_name();
    worlds.emplace_back(4).kill_at(victim, "start").start([&](rank_process& me) {
      me.point("start");
      // The others' timeout is longer: rank 0 tells them.
      me.say(outcome_of([&] { static_cast<void>(join(job, me, me.rank() == 0 || victim == 0 ? 8s : 60s)); }));
    });
  }
  const auto job = job_name();
  worlds.emplace_back(4).kill_at(1, "start").kill_at(3, "start").start([&](rank_process& me) {
    me.point("start");
    me.say(message_of([&] { static_cast<void>(join(job, me, me.rank() == 0 ? 8s : 60s)); }));
  });
  for (int victim = 0; victim < 4; ++victim) {
    CAPTURE(victim);
    check_all_told(worlds[static_cast<std::size_t>(victim)].finish(), victim,
                   "timeout.peer " + std::to_string(victim));
  }
  const auto ends = worlds.back().finish();
  for (const std::size_t rank : {0U, 2U})
    CHECK_MESSAGE(ends[rank].said.find("ranks did not come to the job by the deadline: 1, 3 (rank 1") !=
                      std::string::npos,
                  ends[rank].said);
}

TEST_CASE("ranks that are killed at any system call while they meet leave nothing, and are named") {
  const nothing_left after;
  // A rank that is traced, and killed before its n-th system call. Whether it was killed before it was
  // through.
  const auto die_at = [](int n, const auto& body) {
    const auto victim = ::fork();
    if (victim == 0) {
      ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      ::kill(::getpid(), SIGSTOP);
      body();
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(victim, &status, 0);
    ::ptrace(PTRACE_SETOPTIONS, victim, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    for (int stops = 0; !WIFEXITED(status) && !WIFSIGNALED(status);) {
      const bool call = WIFSTOPPED(status) && WSTOPSIG(status) == (SIGTRAP | 0x80);
      if (call && stops++ == 2 * n) {
        ::kill(victim, SIGKILL);
        ::waitpid(victim, &status, 0);
        return true;
      }
      if (::ptrace(PTRACE_SYSCALL, victim, nullptr, nullptr) != 0)
        throw std::runtime_error("cannot trace a process");
      ::waitpid(victim, &status, 0);
    }
    return false;
  };
  const auto job = job_name();
  for (const int victim : {0, 1}) {
    int n = 0;
    // Ends the test on a machine so slow that no two ranks ever meet in time.
    for (bool killed = true; killed && n < 300; n += sanitized || n >= 60 ? 3 : 1) {
      CAPTURE(victim);
      CAPTURE(n);
      const auto ends = process_ranks(2).run([&](rank_process& me) {
        if (me.rank() == victim)
          me.say(
              die_at(n,
                     [&] { static_cast<void>(outcome_of([&] { static_cast<void>(join(job, me, 60s)); })); })
                  ? "killed"
                  : "through");
        else
          me.say(outcome_of([&] { static_cast<void>(join(job, me, 60ms)); }));
      });
      expect_good(ends);
      const auto& told = ends[static_cast<std::size_t>(1 - victim)].said;
      const auto name = " " + std::to_string(victim);
      CHECK_MESSAGE((told == "ok" || told == "timeout.peer" + name || told == "peer.lost" + name), told);
      killed = ends[static_cast<std::size_t>(victim)].said == "killed";
      CHECK(sockets_of_jobs() == 0);
      // The name is free at once.
      CHECK(outcome_of([&] { static_cast<void>(shared_memory_communicator(job, 0, 1)); }) == "ok");
    }
    CHECK(n > 15);
  }
}

TEST_CASE("a child of fork() is no rank, and no rank notices its end") {
  const nothing_left after;
  const auto job = job_name();
  const auto ends = process_ranks(2).run([&](rank_process& me) {
    auto comm = join(job, me);
    if (me.rank() == 0) {
      const auto child = ::fork();
      if (child == 0) {
        const auto told = outcome_of([&] { comm.send(1, bytes_of("from the child"), ample()); });
        { const auto destroyed = std::move(comm); }
        ::_exit(told == "usage.wrong_process -1" ? 7 : 8);
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      expect(WIFEXITED(status) && WEXITSTATUS(status) == 7, "the child did not refuse");
      // A child that lives on must not keep this rank alive for the others.
      const auto orphan = ::fork();
      if (orphan == 0) {
        while (::getppid() != 1 && me.word(1) == 0) ::usleep(1000);
        me.await(1, 1);
        ::_exit(0);
      }
      comm.send(1, bytes_of("from the parent"), ample());
      me.await(0, 1);
      ::kill(::getpid(), SIGKILL);
    }
    expect(text_of(comm.receive(0, ample())) == "from the parent", "the message differs");
    me.word(0) = 1;
    me.say(outcome_of([&] { static_cast<void>(comm.receive(0, ample())); }));
    me.word(1) = 1;
  });
  CHECK(ends[0].killed());
  CHECK(ends[1].said == "peer.lost 0");
  // The name is free once the last child that rank 0 had is gone.
  CHECK(outcome_of([&] { static_cast<void>(shared_memory_communicator(job, 0, 1)); }) == "ok");
}

// --- Names, sizes, memory

TEST_CASE("impossible jobs are refused") {
  const auto tried = [](std::string_view job, int rank, int size, cairn::shared_memory_options options = {}) {
    return outcome_of([&] { shared_memory_communicator comm(job, rank, size, options); });
  };
  for (const char* job : {"", "a/b", "a b", "\xC3\xA4", "-@-"})
    CHECK(tried(job, 0, 1) == "usage.bad_name -1");
  CHECK(tried(std::string(65, 'x'), 0, 1) == "usage.bad_name -1");
  CHECK(tried(std::string("a\0b", 3), 0, 1) == "usage.bad_name -1");
  CHECK(tried(job_name() + std::string(64, 'x').substr(job_name().size()), 0, 1) == "ok");
  for (const int size : {0, -1, 257}) CHECK(tried(job_name(), 0, size) == "usage.bad_option -1");
  for (const int rank : {-1, 2}) CHECK(tried(job_name(), rank, 2) == "usage.bad_option -1");
  for (const std::size_t ring : {0U, 4095U, 6000U, 2048U, 1U << 27})
    CHECK(tried(job_name(), 0, 1, {.ring_bytes = ring}) == "usage.bad_option -1");
}

TEST_CASE("the second of two jobs of one name gets an error that the first one runs") {
  const nothing_left after;
  const auto job = job_name();
  const shared_memory_communicator first(job, 0, 1);
  const auto told = message_of([&] { shared_memory_communicator second(job, 0, 1, {.timeout = 50ms}); });
  CHECK(told.starts_with("[cairn.usage.bad_option] another job of this name runs on this host"));
  const auto late = message_of([&] { shared_memory_communicator other(job, 1, 2, {.timeout = 50ms}); });
  CHECK(late.starts_with(
      "[cairn.timeout.peer] rank 0 did not let this rank in by the deadline: a job of this name runs"));
}

TEST_CASE("ranks of other worlds, and a second rank for one place, are refused") {
  const nothing_left after;
  // Rank 0 waits for the ranks that do not come, the others as long as it takes.
  const auto timeout_of = [](int rank) { return rank == 0 ? 8s : 60s; };
  process_ranks other_size(2), two_for_one(3), one_for_two(2);
  const auto size_job = job_name(), two_job = job_name(), one_job = job_name();
  other_size.start([&](rank_process& me) {
    me.say(message_of([&] {
      shared_memory_communicator comm(size_job, me.rank(), me.rank() == 0 ? 2 : 3,
                                      {.timeout = timeout_of(me.rank())});
    }));
  });
  two_for_one.start([&](rank_process& me) {
    const int rank = me.rank() == 0 ? 0 : 1;
    me.say(outcome_of([&] {
      const auto comm = shared_memory_communicator(two_job, rank, 3, {.timeout = timeout_of(rank)});
    }));
  });
  one_for_two.start([&](rank_process& me) {
    const auto come_as = [&](int rank) {
      return outcome_of([&] {
        static_cast<void>(shared_memory_communicator(one_job, rank, 3, {.timeout = timeout_of(rank)}));
      });
    };
    if (me.rank() == 0) {
      me.say(come_as(0));
    } else {
      std::string second;
      std::thread other([&] { second = come_as(2); });
      const auto first = come_as(1);
      other.join();
      me.say(first < second ? first + ", " + second : second + ", " + first);
    }
  });
  {
    const auto ends = other_size.finish();
    CHECK(ends[0].said.find("ranks did not come to the job by the deadline: 1; process ") !=
          std::string::npos);
    CHECK(ends[0].said.find("came as rank 1 of 3 and was sent away") != std::string::npos);
    CHECK(ends[1].said.starts_with(
        "[cairn.usage.bad_option] rank 0 of this job expects another number of ranks"));
  }
  {
    const auto ends = two_for_one.finish();
    CHECK(ends[0].said == "timeout.peer 2");
    const auto others = ends[1].said + ", " + ends[2].said;
    CHECK_MESSAGE(
        (others == "timeout.peer 2, usage.bad_option 1" || others == "usage.bad_option 1, timeout.peer 2"),
        others);
  }
  {
    const auto ends = one_for_two.finish();
    CHECK(ends[0].said.starts_with("timeout.peer "));
    CHECK(ends[1].said.starts_with("timeout.peer "));
    CHECK(ends[1].said.find(", usage.bad_option ") != std::string::npos);
  }
}

TEST_CASE("a host without memory, or low limits, is a storage error") {
  const nothing_left after;
  SUBCASE("no memory at the start") {
    allocations_left = 0;
    const auto told = outcome_of([&] { shared_memory_communicator comm(job_name(), 0, 1); });
    allocations_left = -1;
    CHECK(told == "storage.no_space -1");
  }
  SUBCASE("no memory for a ring") {
    const auto job = job_name();
    const auto ends = process_ranks(2).run([&](rank_process& me) {
      auto comm = join(job, me);
      if (me.rank() == 0) {
        allocations_left = 0;
        me.say(outcome_of([&] { comm.send(1, bytes_of("x"), ample()); }));
        allocations_left = -1;
        comm.send(1, bytes_of("y"), ample());
      } else {
        expect(text_of(comm.receive(0, ample())) == "y", "the message differs");
      }
    });
    expect_good(ends);
    CHECK(ends[0].said == "storage.no_space -1");
  }
  SUBCASE("descriptors to begin the job, and none to let a rank in") {
    const auto job = job_name();
    const auto ends = process_ranks(2).run([&](rank_process& me) {
      const auto until = ample();
      const auto try_once = [&] { shared_memory_communicator comm(job, me.rank(), 2, {.timeout = 200ms}); };
      if (me.rank() == 1) {
        while (me.word(0) == 0 && !until.passed()) static_cast<void>(message_of(try_once));
        return;
      }
      const int next = ::dup(0);
      ::close(next);
      const auto limit_to = [&](rlim_t more) {
        const rlimit limit{static_cast<rlim_t>(next) + more, static_cast<rlim_t>(next) + 8};
        if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) throw std::runtime_error("a limit was not set");
      };
      for (rlim_t more = 1; me.word(0) == 0; more = more % 8 + 1) {
        std::exception_ptr failure;
        limit_to(more);
        try {
          try_once();
        } catch (...) {
          failure = std::current_exception();
        }
        limit_to(8);  // the sanitizers' look at an exception takes descriptors
        const auto said = message_of([&] {
          if (failure != nullptr) std::rethrow_exception(failure);
        });
        if (said.find("rank 0 could not take a connection: ") != std::string::npos &&
            said.find("ulimit -n") != std::string::npos)
          me.word(0) = 1;
        if (until.passed()) throw std::runtime_error("rank 0 never says that it has no descriptors: " + said);
      }
    });
    expect_good(ends);
  }
  SUBCASE("limits") {
    const auto limited = [&](auto which, rlim_t most) {
      return process_ranks(1)
          .run([&](rank_process& me) {
            const rlimit limit{most, most};
            if (::setrlimit(which, &limit) != 0) throw std::runtime_error("a limit was not set");
            me.say(outcome_of([&] { static_cast<void>(join(job_name(), me)); }));
          })[0]
          .said;
    };
    CHECK(limited(RLIMIT_FSIZE, 1 << 16) == "storage.limit -1");
    CHECK(limited(RLIMIT_NOFILE, 3) == "storage.limit -1");
  }
}

// --- Hostile bytes

TEST_CASE("damaged parts of a message are refused, and never become another message") {
  // What a writer makes: three messages, one of them in several pieces.
  bytes memory(4096);
  cairn::detail::ring_counters counters;
  cairn::detail::ring_writer writer(counters, memory);
  std::deque<bytes> sent{bytes_of("one"), {}, of_size(2500, 3)};
  for (const auto& each : sent) {
    cairn::detail::outgoing_message message{each};
    CHECK(writer.put(message));
    CHECK(message.done());
  }
  memory.resize(static_cast<std::size_t>(counters.written.load()));
  CHECK(cairn::detail::read_pieces(memory) == sent);
  // Where a message may be cut unnoticed: between pieces.
  const auto is_part = [&](const std::deque<bytes>& got) {
    return got.size() <= sent.size() && std::equal(got.begin(), got.end(), sent.begin());
  };
  std::size_t refused = 0;
  const auto feed = [&](const bytes& damaged) {
    try {
      const auto got = cairn::detail::read_pieces(damaged);
      CHECK(is_part(got));
    } catch (const cairn::wire_error&) {
      ++refused;
    }
  };
  for (std::size_t length = 0; length < memory.size(); ++length)
    feed({memory.begin(), memory.begin() + static_cast<std::ptrdiff_t>(length)});
  CHECK(refused >= memory.size() - 5);
  refused = 0;
  for (std::size_t at = 0; at < memory.size(); ++at)
    for (const unsigned flip : {0x01U, 0x80U, 0xFFU}) {
      auto damaged = memory;
      damaged[at] ^= static_cast<std::byte>(flip);
      feed(damaged);
    }
  CHECK(refused == 3 * memory.size());
}

TEST_CASE("a peer that writes garbage into shared memory is named, and harms nobody else") {
  const nothing_left after;
  struct range {
    std::byte* from;
    std::size_t size;
  };
  // Where this process has the memory of its only job.
  const auto shared = [] {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("memfd:cairn-ranks") == std::string::npos) continue;
      const auto from = std::stoull(line, nullptr, 16);
      const auto to = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
      return range{reinterpret_cast<std::byte*>(from), to - from};  // NOLINT
    }
    throw std::runtime_error("the shared memory is not mapped");
  };
  constexpr cairn::detail::world_layout layout{3, 4096};
  for (const std::string_view what : {"bytes", "written", "read", "all"}) {
    CAPTURE(what);
    const auto job = job_name();
    const auto ends = process_ranks(3).run([&](rank_process& me) {
      shared_memory_communicator comm(job, me.rank(), 3, {.ring_bytes = 4096});
      if (me.rank() == 1) {
        comm.send(0, bytes_of("good until now"), ample());
        const auto memory = shared();
        expect(memory.size == layout.total(), "the layout is another one");
        const std::size_t from_1_to_0 = 3;
        const std::size_t from_0_to_1 = 1;
        std::byte* at = memory.from;
        std::size_t count = 8;
        if (what == "bytes") {
          at += layout.rings_at() + from_1_to_0 * 4096;
          count = 64;
        } else if (what == "written") {
          at += layout.counters_at() + from_1_to_0 * sizeof(cairn::detail::ring_counters);
        } else if (what == "read") {
          at += layout.counters_at() + from_0_to_1 * sizeof(cairn::detail::ring_counters) + 64;
        } else {
          at += layout.counters_at();
          count = layout.rings_at() - layout.counters_at();
        }
        for (std::size_t i = 0; i < count; ++i) at[i] = static_cast<std::byte>(0xA5 + i);
        me.word(0) = 1;
        me.await(1, what == "all" ? 2 : 1);
      } else if (me.rank() == 0) {
        me.await(0, 1);
        me.say(outcome_of([&] { comm.send(1, bytes_of("x"), ample()); }) + "; ");
        me.say(outcome_of([&] { static_cast<void>(comm.receive(1, ample())); }) + "; ");
        me.say(outcome_of([&] { static_cast<void>(comm.receive(1, ample())); }) + "; ");
        if (what != "all") {
          comm.send(2, bytes_of("fine"), ample());
          expect(text_of(comm.receive(2, ample())) == "fine", "another pair was harmed");
        }
        ++me.word(1);
      } else if (what != "all") {
        comm.send(0, bytes_of("fine"), ample());
        expect(text_of(comm.receive(0, ample())) == "fine", "another pair was harmed");
      } else {
        me.await(0, 1);
        me.say(outcome_of([&] { static_cast<void>(comm.receive(0, ample())); }));
        ++me.word(1);
      }
    });
    expect_good(ends);
    const std::string bad = "peer.bad_message 1; ";
    if (what == "bytes" || what == "written") CHECK(ends[0].said == "ok; " + bad + bad);
    if (what == "read") CHECK(ends[0].said == bad + bad + bad);
    if (what == "all") {
      CHECK(ends[0].said == bad + bad + bad);
      CHECK(ends[2].said == "peer.bad_message 0");
    }
  }
}

TEST_CASE("connections that belong to no rank keep no rank out") {
  const nothing_left after;
  const auto job = job_name();
  const auto ends = process_ranks(3).run([&](rank_process& me) {
    if (me.rank() < 2) {
      if (me.rank() == 1) me.await(0, 1);
      cairn::collectives all(shared_memory_communicator(job, me.rank(), 2));
      all.barrier(ample());
      return;
    }
    const cairn::detail::job_address where(job);
    std::vector<cairn::detail::file_descriptor> open;
    const auto call = [&](const void* data, std::size_t size) {
      const auto until = ample();
      auto socket = cairn::detail::job_socket();
      while (::connect(socket.get(), where.get(), where.length) != 0)
        expect(!until.passed(), "rank 0 does not listen");
      static_cast<void>(::send(socket.get(), data, size, MSG_NOSIGNAL));
      open.push_back(std::move(socket));
    };
    const auto answer = [&] {
      cairn::detail::rendezvous_reply reply;
      cairn::detail::file_descriptor memory;
      const int socket = open.back().get();
      expect(cairn::detail::poll_one(socket, POLLIN, ample()), "no answer");
      const bool good = cairn::detail::take_reply(socket, reply, memory);
      return std::to_string(good ? static_cast<int>(reply.answer) : -1) + (memory.open() ? "!" : " ");
    };
    const auto noise = of_size(4096, 9);
    for (std::size_t size = 0; size <= noise.size(); size += 97) call(noise.data(), size);
    call(noise.data(), 40);
    me.say(answer());
    using cairn::detail::rendezvous_hello;
    for (const auto& hello :
         {rendezvous_hello{.version = 2, .rank = 1, .size = 2}, rendezvous_hello{.rank = 1, .size = 3},
          rendezvous_hello{.rank = 2, .size = 2}, rendezvous_hello{.rank = -1, .size = 2},
          rendezvous_hello{.rank = 0, .size = 2}}) {
      call(&hello, sizeof hello);
      me.say(answer());
    }
    // A rank that is admitted and never attaches.
    const rendezvous_hello hello{.rank = 1, .size = 2};
    call(&hello, sizeof hello);
    me.say(answer());
    me.word(0) = 1;
  });
  expect_good(ends);
  CHECK(ends[2].said == "-1 1 2 3 3 3 0!");
}

TEST_CASE("a rank takes nothing from a false rank 0") {
  const nothing_left after;
  using cairn::detail::file_descriptor;
  using cairn::detail::shared_world;
  const auto memory_of = [](std::size_t size, int seals, const void* data, std::size_t bytes_of_data) {
    file_descriptor file(::memfd_create("false", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    expect(::ftruncate(file.get(), static_cast<off_t>(size)) == 0, "no memory");
    expect(::pwrite(file.get(), data, bytes_of_data, 0) == static_cast<ssize_t>(bytes_of_data), "no memory");
    expect(::fcntl(file.get(), F_ADD_SEALS, seals) == 0, "no seal");
    return file;
  };
  const auto total = cairn::detail::world_layout{2, 4096}.total();
  const auto tried = [&](auto change, std::size_t size, int seals) {
    struct alignas(8) {
      std::uint64_t magic = cairn::detail::world_header::world_magic;
      std::uint32_t version = 1;
      std::uint32_t size = 2;
      std::uint64_t ring_bytes = 4096;
      std::uint64_t phase = 1;
    } header;
    change(header);
    return message_of([&] { shared_world world(memory_of(size, seals, &header, sizeof header), 2); });
  };
  const auto as_it_is = [](auto&) {};
  constexpr int sealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const std::string bad = "[cairn.peer.bad_message] the memory that ranks share was not made by cairn: ";
  CHECK(tried(as_it_is, total, sealed) == "nothing was thrown");
  CHECK(tried(as_it_is, total, F_SEAL_GROW) == bad + "its size may change (rank 0)");
  CHECK(tried(as_it_is, 100, sealed) == bad + "it is too short (rank 0)");
  CHECK(tried(as_it_is, total + 4096, sealed) == bad + "its size is not what its header says (rank 0)");
  CHECK(tried([](auto& h) { h.magic ^= 1; }, total, sealed) == bad + "the magic number is missing (rank 0)");
  CHECK(tried([](auto& h) { h.version = 2; }, total, sealed) == bad + "it has another version (rank 0)");
  CHECK(tried([](auto& h) { h.size = 1U << 31; }, total, sealed) ==
        bad + "it has another number of ranks (rank 0)");
  for (const std::uint64_t ring :
       {std::uint64_t{0}, std::uint64_t{4097}, std::uint64_t{1} << 63, ~std::uint64_t{0}})
    CHECK(tried([&](auto& h) { h.ring_bytes = ring; }, total, sealed) ==
          bad + "its rings have an impossible size (rank 0)");
  CHECK(tried([](auto& h) { h.ring_bytes = 8192; }, total, sealed) ==
        bad + "its size is not what its header says (rank 0)");
  const auto regular =
      message_of([] { shared_world world(file_descriptor(::open("/proc/self/exe", O_RDONLY)), 2); });
  CHECK(regular == bad + "its size may change (rank 0)");

  // A false rank 0 that sends nothing, nonsense, or a welcome without memory.
  for (const std::string_view what : {"", "nonsense", "welcome"}) {
    CAPTURE(what);
    const auto job = job_name();
    const auto ends = process_ranks(2).run([&](rank_process& me) {
      if (me.rank() == 1) {
        // A welcome ends the wait; the other two are to last until the deadline.
        const auto timeout = what == "welcome" ? std::chrono::nanoseconds(60s) : 300ms;
        me.say(outcome_of([&] { static_cast<void>(join(job, me, timeout)); }));
        me.word(0) = 1;
        return;
      }
      const cairn::detail::job_address where(job);
      const auto door = cairn::detail::job_socket();
      expect(::bind(door.get(), where.get(), where.length) == 0 && ::listen(door.get(), 9) == 0, "no name");
      while (me.word(0) == 0) {
        if (!cairn::detail::poll_one(door.get(), POLLIN, deadline::in(5ms))) continue;
        const file_descriptor guest(::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (what.empty()) me.await(0, 1);
        if (what == "welcome") {
          // Where what a guest said is not read before the end of the connection, it may not see the answer.
          std::array<char, 256> hello;
          static_cast<void>(cairn::detail::poll_one(guest.get(), POLLIN, deadline::in(1s)));
          static_cast<void>(::recv(guest.get(), hello.data(), hello.size(), MSG_DONTWAIT));
          cairn::detail::send_reply(guest.get(), {}, -1);
        } else {
          static_cast<void>(::send(guest.get(), what.data(), what.size(), MSG_NOSIGNAL));
        }
      }
    });
    expect_good(ends);
    CHECK(ends[1].said == (what == "welcome" ? "storage.limit -1" : "timeout.peer 0"));
  }
}

TEST_CASE("a communicator that was moved from throws an error that says so") {
  shared_memory_communicator comm(job_name(), 0, 1);
  auto moved = std::move(comm);
  CHECK(moved.size() == 1);
  CHECK(outcome_of([&] { static_cast<void>(comm.size()); }) == "usage.closed -1");               // NOLINT
  CHECK(outcome_of([&] { static_cast<void>(comm.receive(0, ample())); }) == "usage.closed -1");  // NOLINT
}

// --- Checkpoints

TEST_CASE("32 processes save and load, two resume, then one") {
  const nothing_left after;
  const scratch_directory directory;
  process_ranks all(32);
  expect_good(train(all, directory.path(), [](rank_process&, auto& ckpt, training_state& model) {
    expect(!ckpt.resume(model.state).has_value(), "there was a checkpoint");
    for (const int step : {1, 2}) {
      model.fill(step);
      ckpt.save(model.state, step).wait();
    }
    model.spoil();
    ckpt.load(model.state, 2);
    expect(model.is(2), "what 32 ranks loaded differs");
  }));
  process_ranks two(2);
  expect_good(train(two, directory.path(), [](rank_process&, auto& ckpt, training_state& model) {
    expect(ckpt.resume(model.state) == 2 && model.is(2), "what two ranks loaded differs");
    model.fill(3);
    ckpt.save(model.state, 3).wait();
  }));
  process_ranks one(1);
  expect_good(train(one, directory.path(), [](rank_process&, auto& ckpt, training_state& model) {
    expect(ckpt.resume(model.state) == 3 && model.is(3), "what one rank loaded differs");
  }));
  // A rank that dies before a load is named on the others, at once.
  process_ranks broken(4);
  broken.kill_at(2, "resume");
  const auto ends = train(broken, directory.path(), [](rank_process& me, auto& ckpt, training_state& model) {
    me.point("resume");
    me.say(outcome_of([&] { static_cast<void>(ckpt.resume(model.state)); }));
  });
  check_all_told(ends, 2, "peer.lost 2");
}

TEST_CASE("a rank that dies before its part is written is named by the save, long before any deadline") {
  const nothing_left after;
  for (const int victim : {0, 1, 2}) {
    CAPTURE(victim);
    const scratch_directory directory;
    process_ranks three(3);
    three.kill_at(victim, "save");
    const auto job = job_name();
    const auto ends = three.run([&](rank_process& me) {
      cairn::checkpointer ckpt{
          cairn::file_store{directory.path()}, join(job, me),
          cairn::checkpointer_options{.timeout = std::chrono::hours(1), .peer_timeout = 60s, .quiet = true}};
      training_state model(me.rank(), me.size());
      model.fill(1);
      ckpt.save(model.state, 1).wait();
      me.point("save");
      // The plan is there: no message tells who is gone.
      const auto save = ckpt.save(model.state, 2);
      me.say(outcome_of([&] { save.wait(); }));
    });
    check_all_told(ends, victim, "peer.lost " + std::to_string(victim));
    process_ranks one(1);
    expect_good(train(one, directory.path(), [](rank_process&, auto& ckpt, training_state& model) {
      expect(ckpt.resume(model.state) == 1, "another checkpoint than the one before was loaded");
    }));
  }
}

TEST_CASE("a process that changes its state alone is named on all others, and all go on together") {
  const nothing_left after;
  const scratch_directory directory;
  process_ranks three(3);
  expect_good(train(three, directory.path(), [](rank_process& me, auto& ckpt, training_state& model) {
    model.fill(1);
    ckpt.save(model.state, 1).wait();
    training_state other(me.rank(), me.size());
    int odd = 0;
    if (me.rank() == 1) other.state.value("odd", odd);
    expect(outcome_of([&] { ckpt.save(other.state, 2).wait(); }) == "plan.disagreement 1", "another outcome");
    expect(ckpt.list() == std::vector<std::int64_t>{1}, "another list");
    model.state.value("more", odd);
    ckpt.save(model.state, 3).wait();
  }));
}

TEST_CASE("32 processes fill 8 files, which two load") {
  const nothing_left after;
  const scratch_directory directory;
  process_ranks all(32);
  const auto save_and_load = [](rank_process&, auto& ckpt, training_state& model) {
    model.fill(1);
    ckpt.save(model.state, 1).wait();
    model.spoil();
    ckpt.load(model.state, 1);
    expect(model.is(1), "what 32 ranks loaded differs");
  };
  expect_good(train(all, directory.path(), save_and_load, 4));
  std::size_t files = 0, records = 0;
  for (const auto& name : names_in((directory.path() + "/step-00000001").c_str())) {
    files += name.ends_with(".0.safetensors");
    records += name.ends_with(".record");
  }
  CHECK(files == 8);
  CHECK(records == 0);
  process_ranks two(2);
  expect_good(train(two, directory.path(), [](rank_process&, auto& ckpt, training_state& model) {
    expect(ckpt.resume(model.state) == 1 && model.is(1), "what two ranks loaded differs");
  }));
}

TEST_CASE(
    "files that processes share are plain safetensors: the stock package reads every tensor from them") {
  const nothing_left after;
  const scratch_directory directory;
  process_ranks four(4);
  expect_good(train(
      four, directory.path(),
      [](rank_process&, auto& ckpt, training_state& model) {
        model.fill(1);
        ckpt.save(model.state, 1).wait();
      },
      2));
  const auto step = directory.path() + "/step-00000001";
  const auto hex = [](const auto& values) {
    std::string text;
    for (const auto b : std::as_bytes(std::span(values))) {
      char two[3];
      std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(b));
      text += two;
    }
    return text;
  };
  training_state whole;
  whole.fill(1);
  std::string expected = "{";
  const auto expect_tensor = [&](const std::string& key, const char* type, const std::string& shape,
                                 const auto& values) {
    expected += (expected.size() > 1 ? ", \"" : "\"") + key + "\": {\"dtype\": \"" + type +
                "\", \"shape\": [" + shape + "], \"hex\": \"" + hex(values) + "\"}";
  };
  expect_tensor("weights", "F32", "4000", whole.weights);
  expect_tensor("rows", "F64", "37, 61", whole.rows);
  expect_tensor("moments", "I32", "17, 59", whole.moments);
  expect_tensor("rate", "F64", "", std::array{whole.rate});
  expect_tensor("loader", "U8", std::to_string(whole.loader.size()), whole.loader);
  for (int r = 0; r < 4; ++r) {
    training_state of_rank(r, 4);
    of_rank.fill(1);
    expect_tensor("generator@rank0000" + std::to_string(r), "U8", "24", of_rank.generator);
  }
  std::ofstream(step + "/expected.json") << expected << "}";
  const auto check = [&] {
    const auto command = "'" + python() + "' '" + source_dir() + "/tests/python/check_safetensors.py' '" +
                         directory.path() + "' > '" + directory.path() + "/log' 2>&1";
    return std::system(command.c_str()) == 0;
  };
  const auto told = [&] {
    std::ifstream log(directory.path() + "/log");
    return std::string(std::istreambuf_iterator<char>(log), {});
  };
  CHECK_MESSAGE(check(), told());
  CHECK(told().find("records of 4 ranks") != std::string::npos);
  // A box with a wrong place would be noticed.
  auto wrong = expected;
  auto& digit = wrong[wrong.find("\"hex\": \"") + 8];
  digit = digit == '0' ? '1' : '0';
  std::ofstream(step + "/expected.json") << wrong << "}";
  CHECK_FALSE(check());
}

TEST_CASE("processes read a checkpoint once together, and a rank that dies in the meantime is named") {
  const nothing_left after;
  const scratch_directory directory;
  const training_sizes sizes{.weights = 1'300'000, .rows = 4'100, .moments = 1'003};
  const auto bytes = static_cast<std::uint32_t>(sizes.weights * 4 + sizes.rows * 61 * 8);
  const auto run = [&](process_ranks& ranks, auto body) {
    const auto job = job_name();
    return ranks.run([&](rank_process& me) {
      // Rings that hold less than a message, and memory for a few blocks at a time.
      dying_communicator comm{{job, me.rank(), me.size(), {.ring_bytes = 64 << 10}}, &me};
      cairn::checkpointer ckpt{
          cairn::file_store{directory.path()}, std::move(comm), cairn::keep_last(3),
          cairn::checkpointer_options{
              .timeout = 60s, .peer_timeout = 60s, .load_memory = 16 << 20, .quiet = true}};
      training_state model(me.rank(), me.size(), sizes);
      body(me, ckpt, model);
      ckpt.close();
    });
  };
  process_ranks four(4);
  expect_good(run(four, [](rank_process&, auto& ckpt, training_state& model) {
    model.fill(1);
    ckpt.save(model.state, 1).wait();
  }));
  process_ranks three(3);
  expect_good(run(three, [](rank_process& me, auto& ckpt, training_state& model) {
    me.word(0) += static_cast<std::uint32_t>(ckpt.load(model.state, 1).bytes_read);
    expect(model.is(1), "what three ranks loaded differs");
  }));
  CHECK(three.word(0) >= bytes);
  CHECK(three.word(0) < bytes + (64 << 10));  // records and small items
  process_ranks broken(3);
  broken.kill_at(1, "data", 3);
  const auto ends = run(broken, [](rank_process& me, auto& ckpt, training_state& model) {
    me.say(outcome_of([&] { static_cast<void>(ckpt.load(model.state, 1)); }));
  });
  CHECK(ends[1].killed());
  check_all_told(ends, 1, "peer.lost 1");
}

TEST_CASE("many saves take no more memory, descriptors and threads than few") {
  const nothing_left after;
  const scratch_directory directory("/dev/shm");
  const auto saves = static_cast<int>(rounds(100));
  process_ranks ranks(2);
  const auto ends = train(ranks, directory.path(), [&](rank_process& me, auto& ckpt, training_state& model) {
    resources first;
    for (int step = 1; step <= saves; ++step) {
      model.fill(step);
      ckpt.save(model.state, step).wait();
      if (step == 20) first = resources::now();
    }
    auto last = resources::now();
    // A thread that has ended stays on the list for a moment.
    for (const auto until = ample();
         !until.passed() && (last.descriptors > first.descriptors || last.threads > first.threads);) {
      ::usleep(1000);
      last = resources::now();
    }
    expect(last.descriptors <= first.descriptors, "descriptors are left open");
    expect(last.threads <= first.threads, "threads are left");
    // Two rings, and the page of what stands before them.
    expect(first.shared_kib == 2 * 256 + 4 && last.shared_kib == first.shared_kib, "what ranks share grew");
    me.say("PSS " + std::to_string(first.all_kib) + " KiB after 20 saves, " + std::to_string(last.all_kib) +
           " KiB after " + std::to_string(saves) + "; heap " + std::to_string(first.heap) + " and " +
           std::to_string(last.heap) + " bytes");
    expect(last.heap < first.heap + (64 << 10), "the heap grew");
    // Freed memory is kept for a while by the sanitizer.
    expect(sanitized || last.all_kib < first.all_kib + 1024, "memory grew");
  });
  expect_good(ends);
  MESSAGE(ends[0].said);
}
