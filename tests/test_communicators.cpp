// SPDX-License-Identifier: Apache-2.0
// threaded
// cost: 35
#include <doctest/doctest.h>

#include <cairn/comm/collectives.hpp>
#include <cairn/comm/nccl/basic_nccl_communicator.hpp>
#include <cairn/comm/shared_memory/message_ring.hpp>
#include <cairn/comm/single_process.hpp>
#include <cairn/comm/thread_communicator.hpp>
#include <cairn/concepts/any_communicator.hpp>
#include <cairn/system/spare_buffers.hpp>
#include <support/communicator_archetype.hpp>
#include <support/communicator_conformance.hpp>
#include <support/counting_communicator.hpp>
#include <support/nccl_double.hpp>
#include <support/on_all_ranks.hpp>
#include <support/rounds.hpp>
#include <support/simulated_time.hpp>
#include <support/thread_ranks.hpp>

#include <array>
#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace cairn_test;
using namespace std::chrono_literals;
using cairn::collectives;
using cairn::deadline;
using cairn::error_id;
using bytes = std::vector<std::byte>;

namespace {

// --- The concept refuses what it must
// ----------------------------------------------------------------------------

struct good {
  int rank() const { return 0; }
  int size() const { return 1; }
  void send(int, std::span<const std::byte>, deadline) {}
  bytes receive(int, deadline) { return {}; }
};
struct rank_is_not_const : good {
  int rank() { return 0; }
};
struct no_size : private good {
  using good::rank;
  using good::receive;
  using good::send;
};
struct send_without_deadline : good {
  void send(int, std::span<const std::byte>) {}
};
struct send_changes_the_bytes : good {
  void send(int, std::span<std::byte>, deadline) {}
};
struct send_returns_a_length : good {
  std::size_t send(int, std::span<const std::byte> all, deadline) { return all.size(); }
};
struct receive_gives_a_view : good {
  std::span<const std::byte> receive(int, deadline) { return {}; }
};
struct cannot_move : good {
  cannot_move() = default;
  cannot_move(cannot_move&&) = delete;
};
static_assert(cairn::Communicator<good>);
static_assert(!cairn::Communicator<rank_is_not_const>);
static_assert(!cairn::Communicator<no_size>);
static_assert(!cairn::Communicator<send_without_deadline>);
static_assert(!cairn::Communicator<send_changes_the_bytes>);
static_assert(!cairn::Communicator<send_returns_a_length>);
static_assert(!cairn::Communicator<receive_gives_a_view>);
static_assert(!cairn::Communicator<cannot_move>);
static_assert(!cairn::Communicator<int>);

static_assert(cairn::plays<cairn::single_process, cairn::role::communicator>);
static_assert(cairn::plays<cairn::thread_communicator, cairn::role::communicator>);
static_assert(!std::copy_constructible<cairn::thread_communicator>);
static_assert(cairn::Communicator<counting_communicator<cairn::single_process>>);

// --- The worlds that the conformance suite runs in
// ----------------------------------------------------------------

struct single_env {
  static int size() { return 1; }
  template <class Body>
  void run(Body body) {
    cairn::single_process comm;
    body(comm);
  }
};

template <int Size, class C = cairn::thread_communicator>
struct thread_env {
  static int size() { return Size; }
  template <class Body>
  void run(Body body) {
    thread_ranks<> world(Size);
    for (const auto& thrown : world.run([&](auto& all) { body(all.communicator().template get<C>()); }))
      if (thrown) std::rethrow_exception(thrown);
  }
};

// --- Helpers
// ----------------------------------------------------------------------------------------------------------

bytes concatenate(bytes left, const bytes& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}
bytes letter(int rank) {
  return {static_cast<std::byte>('!' + rank)};
}
std::string letters(int size) {
  std::string all;
  for (int rank = 0; rank < size; ++rank) all += static_cast<char>('!' + rank);
  return all;
}

/// The error inside, which must be a T; a usage_error that says so if it is not.
template <class T>
T caught(const std::exception_ptr& thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const T& e) {
    return e;
  } catch (const std::exception& e) {
    return T(error_id::usage_closed, std::string("thrown was: ") + e.what(), {});
  }
  return T(error_id::usage_closed, "nothing was thrown", {});
}

void check_none(const std::vector<std::exception_ptr>& thrown) {
  for (const auto& each : thrown) CHECK_NOTHROW(each ? std::rethrow_exception(each) : void());
}

/// The message that rank 1 of 2 sends in its next collective.
template <class Call>
bytes message_of(Call call) {
  thread_ranks<> world(2);
  try {
    call(world.at(1));
  } catch (const cairn::error&) {
  }
  return world.at(0).communicator().receive(1, deadline::in(0ns));
}

const std::vector<int> world_sizes{1, 2, 3, 4, 5, 7, 8, 16, 33};

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(communicator_conformance, single_env, thread_env<1>, thread_env<2>, thread_env<5>,
                          thread_env<3, cairn::any_communicator>);

TEST_CASE("the archetype is enough for every collective") {
  collectives all(communicator_archetype::make());
  CHECK(text_of(all.broadcast(0, bytes_of("b"), ample())) == "b");
  CHECK(text_of(all.gather(0, bytes_of("g"), ample()).at(0)) == "g");
  CHECK(text_of(all.all_gather(bytes_of("a"), ample()).at(0)) == "a");
  CHECK(text_of(all.scatter(0, {bytes_of("s")}, ample())) == "s");
  all.barrier(ample());
  CHECK(text_of(all.tree_reduce_broadcast(bytes_of("r"), concatenate, ample())) == "r");
  CHECK(all.epoch() == 6);
}

TEST_CASE("collectives of one process send nothing and never wait") {
  auto counts = std::make_shared<message_counts>();
  collectives all(counting_communicator(cairn::single_process{}, counts));
  CHECK(text_of(all.tree_reduce_broadcast(bytes_of("alone"), concatenate, deadline::never())) == "alone");
  all.barrier(deadline::never());
  const auto failure = cairn::make_failure(error_id::plan_overlap, "two chunks overlap");
  try {
    all.barrier(deadline::never(), failure);
    FAIL("the failure was not thrown");
  } catch (const cairn::plan_error& e) {
    CHECK(e.fields().rank == 0);
  }
  CHECK(counts->sent == 0);
  CHECK(counts->received == 0);
}

TEST_CASE("every collective on every size of world, from every root") {
  for (const int size : world_sizes) {
    CAPTURE(size);
    thread_ranks<> world(size);
    check_none(world.run([&](auto& all) {
      const int me = all.rank();
      // A merge that does not commute: only the rank order gives these letters.
      const auto folded = all.tree_reduce_broadcast(letter(me), concatenate, ample());
      expect(text_of(folded) == letters(size), "the fold is not in rank order: " + text_of(folded));
      const auto everything = all.all_gather(letter(me), ample());
      expect(everything.size() == static_cast<std::size_t>(size), "all_gather gave another count");
      for (int r = 0; r < size; ++r)
        expect(everything[static_cast<std::size_t>(r)] == letter(r), "all_gather");
      for (int root = 0; root < size; ++root) {
        const auto value = all.broadcast(root, bytes_of("from " + std::to_string(me)), ample());
        expect(text_of(value) == "from " + std::to_string(root), "broadcast gave " + text_of(value));

        const auto gathered = all.gather(root, bytes(static_cast<std::size_t>(me), std::byte{7}), ample());
        expect(gathered.size() == (me == root ? static_cast<std::size_t>(size) : 0U),
               "gather gave another count");
        for (std::size_t r = 0; r < gathered.size(); ++r)
          expect(gathered[r].size() == r, "gather mixed ranks");

        std::vector<bytes> pieces;
        if (me == root)
          for (int r = 0; r < size; ++r) pieces.push_back(concatenate(letter(r), letter(root)));
        expect(all.scatter(root, pieces, ample()) == concatenate(letter(me), letter(root)),
               "scatter mixed ranks");
        all.barrier(ample());
      }
    }));
  }
}

TEST_CASE("no rank leaves a barrier before all have come") {
  thread_ranks<> world(7);
  std::atomic<int> come = 0;
  check_none(world.run([&](auto& all) {
    for (int round = 1; round <= 20; ++round) {
      ++come;
      all.barrier(ample());
      expect(come >= round * all.size(), "a rank left early");
      all.barrier(ample());
    }
  }));
}

TEST_CASE("a collective costs two messages for each rank, and the depth is logarithmic") {
  for (const int size : {2, 5, 16, 33}) {
    CAPTURE(size);
    auto counts = std::make_shared<message_counts>();
    thread_ranks<counting_communicator<cairn::thread_communicator>> world(
        size, [&](auto comm) { return counting_communicator(std::move(comm), counts); });
    // Without a deadline no rank says that it waits: the count is exact.
    check_none(world.run([](auto& all) { all.barrier(deadline::never()); }));
    CHECK(counts->sent == 2U * static_cast<unsigned>(size - 1));
    CHECK(counts->received == counts->sent);
    CHECK(counts->sent_bytes < counts->sent * 100);
  }
}

TEST_CASE("large values are passed through") {
  thread_ranks<> world(5);
  check_none(world.run([](auto& all) {
    expect(same_bytes(all.broadcast(3, large_message(all.rank()), ample()), large_message(3)),
           "the large value differs");
    const auto gathered = all.all_gather(large_message(all.rank()), ample());
    for (int r = 0; r < 5; ++r)
      expect(same_bytes(gathered[static_cast<std::size_t>(r)], large_message(r)), "all_gather");
  }));
}

TEST_CASE("a rank that fails is named on all ranks, with its error's type") {
  for (const int size : {1, 2, 5, 8}) {
    for (int failing = 0; failing < size; ++failing) {
      CAPTURE(size);
      CAPTURE(failing);
      thread_ranks<> world(size);
      const auto failure = [&](int me) -> std::exception_ptr {
        if (me != failing) return nullptr;
        return cairn::make_failure(error_id::plan_overlap, "two chunks overlap",
                                   {.item = "wte", .got = "[0, 4)"});
      };
      const auto own = [&](int me) {
        return cairn::collective_input::from([&] {
          if (const auto bad = failure(me)) std::rethrow_exception(bad);
          return letter(me);
        });
      };
      const auto check_all = [&](const std::vector<std::exception_ptr>& thrown) {
        for (const auto& each : thrown) {
          const auto e = caught<cairn::plan_error>(each);
          CHECK(e.id() == error_id::plan_overlap);
          CHECK(e.fields().rank == failing);
          CHECK(e.fields().item == "wte");
          CHECK(e.fields().got == "[0, 4)");
          CHECK(e.message() == "two chunks overlap");
        }
      };
      const int root = size / 2;
      check_all(world.run(
          [&](auto& all) { (void)all.tree_reduce_broadcast(own(all.rank()), concatenate, ample()); }));
      check_all(world.run([&](auto& all) { (void)all.broadcast(root, own(all.rank()), ample()); }));
      check_all(world.run([&](auto& all) { (void)all.gather(root, own(all.rank()), ample()); }));
      check_all(world.run([&](auto& all) { (void)all.all_gather(own(all.rank()), ample()); }));
      check_all(world.run([&](auto& all) {
        const std::vector<bytes> pieces(static_cast<std::size_t>(size), letter(0));
        (void)all.scatter(root, pieces, ample(), failure(all.rank()));
      }));
      check_all(world.run([&](auto& all) { all.barrier(ample(), failure(all.rank())); }));
      // The next call works.
      check_none(world.run([&](auto& all) {
        expect(text_of(all.tree_reduce_broadcast(letter(all.rank()), concatenate, ample())) == letters(size),
               "fold");
      }));
    }
  }
}

TEST_CASE("if several ranks fail, all ranks throw the failure of the lowest one") {
  thread_ranks<> world(8);
  const auto thrown = world.run([](auto& all) {
    const int me = all.rank();
    all.barrier(ample(),
                me == 3 || me == 6 ? cairn::make_failure(error_id::storage_no_space, "full") : nullptr);
  });
  for (const auto& each : thrown) CHECK(caught<cairn::storage_error>(each).fields().rank == 3);
}

TEST_CASE("a merge that throws is its rank's failure") {
  thread_ranks<> world(8);
  const auto thrown = world.run([](auto& all) {
    (void)all.tree_reduce_broadcast(
        letter(all.rank()),
        [&](bytes left, const bytes& right) {
          if (left == letter(4)) cairn::fail(error_id::plan_disagreement, "the halves do not fit");
          return concatenate(std::move(left), right);
        },
        ample());
  });
  for (const auto& each : thrown) {
    const auto e = caught<cairn::plan_error>(each);
    CHECK(e.id() == error_id::plan_disagreement);
    CHECK(e.fields().rank == 4);
  }
}

TEST_CASE("foreign exceptions and endless texts cross ranks too") {
  thread_ranks<> world(3);
  const auto run_with = [&](const std::exception_ptr& failure) {
    return world.run([&](auto& all) { all.barrier(ample(), all.rank() == 2 ? failure : nullptr); });
  };
  for (const auto& each : run_with(std::make_exception_ptr(std::bad_alloc()))) {
    CHECK(caught<cairn::storage_error>(each).id() == error_id::storage_out_of_memory);
    CHECK(caught<cairn::storage_error>(each).fields().rank == 2);
  }
  for (const auto& each : run_with(std::make_exception_ptr(std::runtime_error("odd"))))
    CHECK(caught<cairn::error>(each).message() == "odd");
  for (const auto& each : run_with(std::make_exception_ptr(17)))
    CHECK(caught<cairn::error>(each).fields().rank == 2);
  const std::string endless(1U << 20, 'x');
  for (const auto& each : run_with(cairn::make_failure(error_id::plan_overlap, endless, {.item = endless}))) {
    const auto e = caught<cairn::plan_error>(each);
    CHECK(e.id() == error_id::plan_overlap);
    CHECK(e.fields().rank == 2);
    CHECK(e.message() == endless.substr(0, 1000));
  }
  for (const auto& each : run_with(std::make_exception_ptr(std::runtime_error(endless))))
    CHECK(caught<cairn::error>(each).fields().rank == 2);
}

TEST_CASE("ranks that do not come are named on all others soon after the deadline") {
  // In simulated time no thread that the machine holds up is taken for an absent one. The deadline, the same
  // for all, has passed: a collective asks no other clock then.
  const auto passed = deadline::at(deadline::clock::now() - 1h);
  const auto fold = [&](auto& all) {
    return text_of(all.tree_reduce_broadcast(letter(all.rank()), concatenate, passed));
  };
  for (int missing = 0; missing < 5; ++missing) {
    CAPTURE(missing);
    timed_ranks world(5);
    const auto thrown = world.run([&](auto& all) { (void)fold(all); }, {missing});
    for (int rank = 0; rank < 5; ++rank) {
      if (rank == missing) continue;
      const auto e = caught<cairn::timeout_error>(thrown[static_cast<std::size_t>(rank)]);
      CHECK(e.id() == error_id::timeout_peer);
      CHECK(e.fields().rank == missing);
      CHECK(e.message() == "rank " + std::to_string(missing) +
                               " did not arrive at tree_reduce_broadcast (collective 0) by the deadline");
    }
    CHECK(world.time().last() <= passed.time_point() + 1s);

    // The late rank learns that the others gave it up (or, as the root, finds all parts), and the next
    // collective has all ranks again.
    const auto late = world.run([&](auto& all) {
      if (all.epoch() == 0) (void)fold(all);
    })[static_cast<std::size_t>(missing)];
    if (missing == 0)
      CHECK(late == nullptr);
    else
      CHECK(caught<cairn::timeout_error>(late).fields().rank == missing);
    check_none(world.run([&](auto& all) { expect(fold(all) == letters(5), "fold"); }));
  }
  SUBCASE("all absent ranks that are known are listed") {
    timed_ranks world(8);
    const auto thrown = world.run([&](auto& all) { all.barrier(passed); }, {3, 5, 7});
    for (const int rank : {0, 1, 2, 4, 6}) {
      const auto e = caught<cairn::timeout_error>(thrown[static_cast<std::size_t>(rank)]);
      CHECK(e.fields().rank == 3);
      CHECK(e.message() == "ranks 3, 5, 7 did not arrive at barrier (collective 0) by the deadline");
    }
  }
  SUBCASE("a failure is told together with who is absent") {
    timed_ranks world(4);
    const auto thrown = world.run(
        [&](auto& all) {
          all.barrier(passed,
                      all.rank() == 2 ? cairn::make_failure(error_id::storage_io, "broken") : nullptr);
        },
        {1});
    for (const int rank : {0, 2, 3}) {
      const auto e = caught<cairn::storage_error>(thrown[static_cast<std::size_t>(rank)]);
      CHECK(e.fields().rank == 2);
      CHECK(e.message() == "broken; rank 1 did not arrive at barrier (collective 0) by the deadline");
    }
  }
}

TEST_CASE("no rank is given up before the deadline") {
  thread_ranks<> world(2);
  const auto begun = deadline::clock::now();
  const auto thrown = world.run([](auto& all) { all.barrier(deadline::in(500ms)); }, {1});
  CHECK(caught<cairn::timeout_error>(thrown[0]).fields().rank == 1);
  CHECK(deadline::clock::now() - begun >= 500ms);
}

TEST_CASE("a rank whose deadline is later than its parent's says for whom it waits") {
  // Rank 3 is a child of 2, and 2 is a child of 0. Rank 0 gives up first, and must not count rank 2 as
  // absent.
  std::vector<std::shared_ptr<message_counts>> counts;
  thread_ranks<counting_communicator<cairn::thread_communicator>> world(4, [&](auto comm) {
    return counting_communicator(std::move(comm), counts.emplace_back(std::make_shared<message_counts>()));
  });
  const auto await = [](auto condition) {
    for (const auto until = ample(); !condition() && !until.passed();) std::this_thread::sleep_for(1ms);
  };
  const auto thrown = world.run([&](auto& all) {
    // Rank 1 has come, and rank 2 has said that it waits.
    if (all.rank() == 0) await([&] { return counts[1]->sent > 0 && counts[2]->sent > 0; });
    // It comes when rank 0 has given it up, so that rank 2 does not wait for its own deadline.
    if (all.rank() == 3) await([&] { return counts[0]->sent == 2; });
    all.barrier(all.rank() == 0 ? deadline::in(1ms) : ample());
  });
  for (const auto& each : thrown) {
    const auto e = caught<cairn::timeout_error>(each);
    CHECK(e.message() == "rank 3 did not arrive at barrier (collective 0) by the deadline");
  }
}

TEST_CASE("a rank that is known to be gone is named at once") {
  for (int lost = 0; lost < 5; ++lost) {
    CAPTURE(lost);
    thread_ranks<> world(5);
    world.group().lose(lost);
    // Without a deadline: the wait ends only because the rank is known to be gone.
    const auto thrown = world.run([](auto& all) { all.barrier(deadline::never()); });
    for (const auto& each : thrown) {
      const auto e = caught<cairn::peer_error>(each);
      CHECK(e.id() == error_id::peer_lost);
      CHECK(e.fields().rank == lost);
    }
  }
}

namespace {
/// Rank 3 is gone when it has said its part: its parent, rank 2, sends it the verdict only then.
class leaving_communicator {
 public:
  using cairn_role = cairn::role::communicator;
  leaving_communicator(cairn::thread_communicator inner, std::shared_ptr<std::function<void()>> leave,
                       std::shared_ptr<std::latch> left)
      : inner_(std::move(inner)), leave_(std::move(leave)), left_(std::move(left)) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  void send(int to, std::span<const std::byte> bytes, deadline until) {
    if (to == 3) left_->wait();
    inner_.send(to, bytes, until);
  }
  [[nodiscard]] std::vector<std::byte> receive(int from, deadline until) {
    if (rank() == 3) (*leave_)();
    return inner_.receive(from, until);
  }

 private:
  cairn::thread_communicator inner_;
  std::shared_ptr<std::function<void()>> leave_;
  std::shared_ptr<std::latch> left_;
};
}  // namespace

TEST_CASE(
    "a rank that dies before it has the verdict ends the next call on all others, and this one on none") {
  const auto leave = std::make_shared<std::function<void()>>();
  const auto left = std::make_shared<std::latch>(1);
  thread_ranks<leaving_communicator> world(
      4, [&](auto comm) { return leaving_communicator(std::move(comm), leave, left); });
  *leave = [&] {
    world.group().lose(3);
    left->count_down();
    cairn::fail(error_id::peer_lost, "this rank is killed", {.rank = 3});
  };
  std::array<int, 3> agreed{};
  const auto thrown = world.run([&](auto& all) {
    const auto value = text_of(all.tree_reduce_broadcast(letter(all.rank()), concatenate, ample()));
    agreed.at(static_cast<std::size_t>(all.rank())) += value == letters(4);
    all.barrier(ample());
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    CHECK(agreed[rank] == 1);
    CHECK(caught<cairn::peer_error>(thrown[rank]).fields().rank == 3);
  }
}

TEST_CASE("ranks that call in different order learn which rank is in which call") {
  SUBCASE("another operation") {
    thread_ranks<> world(2);
    const auto thrown = world.run([](auto& all) {
      if (all.rank() == 1)
        (void)all.gather(0, bytes_of("x"), ample());
      else
        all.barrier(ample());
    });
    const auto e = caught<cairn::peer_error>(thrown[0]);
    CHECK(e.id() == error_id::peer_bad_message);
    CHECK(e.fields().rank == 1);
    CHECK(
        e.message().starts_with("rank 1 is at gather (collective 0) with root 0 while rank 0 is at barrier "
                                "(collective 0) with root 0"));
    CHECK(caught<cairn::peer_error>(thrown[1]).fields().rank == 0);
  }
  SUBCASE("another root") {
    thread_ranks<> world(5);
    const auto thrown =
        world.run([](auto& all) { (void)all.broadcast(all.rank() == 3 ? 1 : 0, bytes_of("x"), ample()); });
    for (const int rank : {0, 1, 2, 4}) {
      const auto e = caught<cairn::peer_error>(thrown[static_cast<std::size_t>(rank)]);
      CHECK(e.fields().rank == 3);
      CHECK(e.message().starts_with("rank 3 is at broadcast (collective 0) with root 1 while rank 2 is at"));
    }
    CHECK(caught<cairn::peer_error>(thrown[3]).fields().rank == 2);
  }
  SUBCASE("a call that only one rank made") {
    thread_ranks<> world(2);
    const auto alone = world.run([](auto& all) { all.barrier(deadline::in(0ns)); }, {0});
    CHECK(caught<cairn::timeout_error>(alone[1]).fields().rank == 0);
    static_cast<void>(world.at(0).communicator().receive(1, ample()));  // drops the message of that call
    const auto thrown = world.run([](auto& all) { all.barrier(deadline::in(0ns)); }, {0});
    CHECK(thrown[1] != nullptr);
    const auto behind = world.run([](auto& all) { all.barrier(ample()); }, {1});
    const auto e = caught<cairn::peer_error>(behind[0]);
    CHECK(e.id() == error_id::peer_bad_message);
    CHECK(e.message().starts_with("rank 1 is at barrier (collective 1)"));
    // Its next call is the one that rank 1 has made.
    check_none(world.run([](auto& all) { all.barrier(ample()); }, {1}));
    check_none(world.run([](auto& all) { all.barrier(ample()); }));
  }
}

TEST_CASE("ranks that plan without the others end soon, and nobody else is disturbed") {
  const auto plan = [](auto& all, deadline until) {
    const auto found = text_of(all.on_demand_reduce(letter(all.rank()), concatenate, until));
    all.on_demand_barrier(until);
    return found;
  };
  for (const int size : {2, 3, 4, 5}) {
    for (int planning = 0; planning < 1 << size; ++planning) {
      CAPTURE(size);
      CAPTURE(planning);
      const auto plans = [&](auto& all) { return ((planning >> all.rank()) & 1) != 0; };
      const bool all_plan = planning == (1 << size) - 1;
      thread_ranks<> world(size);
      for (int round = 0; round < 2; ++round) {
        std::atomic<int> refused{0};
        // None of these waits ends by its deadline.
        check_none(world.run([&](auto& all) {
          if (plans(all)) {
            try {
              expect(plan(all, ample()) == letters(size), "the plan of all");
            } catch (const cairn::peer_error& e) {
              expect(e.id() == error_id::peer_bad_message, "another error");
              ++refused;
            }
          }
          all.barrier(ample());
          expect(
              text_of(all.tree_reduce_broadcast(letter(all.rank()), concatenate, ample())) == letters(size),
              "the next collective");
        }));
        CHECK(refused == (all_plan ? 0 : std::popcount(static_cast<unsigned>(planning))));
        check_none(
            world.run([&](auto& all) { expect(plan(all, ample()) == letters(size), "the next plan"); }));
      }
      // In simulated time: the others make no call at all until those who plan have given up.
      if (planning == 0 || all_plan) continue;
      const auto passed = deadline::at(deadline::clock::now() - 1h);
      std::vector<int> others;
      for (int rank = 0; rank < size; ++rank)
        if (((planning >> rank) & 1) == 0) others.push_back(rank);
      timed_ranks timed(size);
      for (int round = 0; round < 2; ++round) {
        const auto thrown = timed.run([&](auto& all) { static_cast<void>(plan(all, passed)); }, others);
        for (int rank = 0; rank < size; ++rank)
          CHECK((thrown[static_cast<std::size_t>(rank)] != nullptr) == (((planning >> rank) & 1) != 0));
        check_none(timed.run([&](auto& all) {
          all.barrier(passed);
          expect(text_of(all.tree_reduce_broadcast(letter(all.rank()), concatenate, passed)) == letters(size),
                 "the next collective");
        }));
        check_none(
            timed.run([&](auto& all) { expect(plan(all, passed) == letters(size), "the next plan"); }));
      }
    }
  }
  SUBCASE("who looks around leaves a wait that has no other end") {
    thread_ranks<> world(2);
    std::atomic<int> looks{0};
    const auto thrown = world.run(
        [&](auto& all) {
          static_cast<void>(all.on_demand_reduce(letter(1), concatenate, deadline::never(), [&] {
            ++looks;
            cairn::fail(error_id::plan_disagreement, "the others do not come");
          }));
        },
        {0});
    CHECK(caught<cairn::plan_error>(thrown[1]).message() == "the others do not come");
    CHECK(looks == 1);
    check_none(world.run([](auto& all) { all.barrier(ample()); }));
  }
}

TEST_CASE("messages of an earlier call are dropped") {
  thread_ranks<> world(3);
  for (int round = 0; round < 2; ++round) {
    const auto thrown = world.run([](auto& all) { (void)all.all_gather(letter(9), deadline::in(0ns)); }, {0});
    CHECK(caught<cairn::timeout_error>(thrown[1]).fields().rank == 0);
  }
  // Rank 0 makes the two calls late: it takes the parts that lie there, and the others drop its verdicts.
  check_none(world.run(
      [](auto& all) {
        for (int round = 0; round < 2; ++round)
          expect(all.all_gather(letter(9), ample()).size() == 3, "late");
      },
      {1, 2}));
  check_none(world.run([](auto& all) {
    expect(text_of(all.tree_reduce_broadcast(letter(all.rank()), concatenate, ample())) == letters(3),
           "fold");
  }));
}

TEST_CASE("messages of another run are dropped") {
  thread_ranks<> world(2);
  std::array<std::byte, 16> run{};
  run[3] = std::byte{1};
  world.at(1).set_run(run);
  const auto thrown = world.run([](auto& all) { all.barrier(deadline::in(0ns)); }, {0});
  CHECK(thrown[1] != nullptr);
  run[3] = std::byte{2};
  world.at(0).set_run(run);
  world.at(1).set_run(run);
  const auto other = world.run([](auto& all) { all.barrier(deadline::in(0ns)); }, {1});
  CHECK(caught<cairn::timeout_error>(other[0]).fields().rank == 1);
  check_none(world.run([](auto& all) { all.barrier(ample()); }));
}

TEST_CASE("a root outside of the world, and a scatter with too few pieces, are usage errors") {
  thread_ranks<> world(3);
  for (const int root : {-1, 3}) {
    const auto thrown = world.run([&](auto& all) { (void)all.broadcast(root, {}, ample()); });
    for (const auto& each : thrown)
      CHECK(caught<cairn::usage_error>(each).id() == error_id::usage_bad_option);
  }
  CHECK(world.at(0).epoch() == 0);
  const auto thrown = world.run([&](auto& all) { (void)all.scatter(1, {bytes(), bytes()}, ample()); });
  for (const auto& each : thrown) {
    CHECK(caught<cairn::usage_error>(each).id() == error_id::usage_bad_option);
    CHECK(caught<cairn::usage_error>(each).fields().rank == 1);
  }
}

TEST_CASE("damaged messages are errors and nothing else") {
  const std::size_t behind_epoch = 4 + 2 + 1 + 1 + 16 + 8;
  const auto gather = [](auto& all) { (void)all.all_gather(bytes_of("payload"), deadline::in(0ns)); };
  const auto barrier = [](auto& all) {
    all.barrier(deadline::in(0ns), cairn::make_failure(error_id::plan_overlap, "bad", {.item = "wte"}));
  };
  int rejected = 0;
  const auto feed = [&](const bytes& message, auto call) {
    thread_ranks<> world(2);
    world.at(1).communicator().send(0, message, ample());
    try {
      call(world.at(0));
    } catch (const cairn::error&) {
      ++rejected;
    }
  };
  const auto damage = [&](const bytes& message, auto call) {
    REQUIRE(message.size() > behind_epoch);
    for (std::size_t length = 0; length < message.size(); ++length)
      feed({message.begin(), message.begin() + static_cast<std::ptrdiff_t>(length)}, call);
    for (std::size_t at = 0; at < message.size(); ++at) {
      for (const unsigned flip : {0x01U, 0x80U, 0xFFU}) {
        auto changed = message;
        changed[at] ^= static_cast<std::byte>(flip);
        feed(changed, call);
      }
    }
  };
  const auto value = message_of(gather);
  damage(value, gather);
  const auto failure = message_of(barrier);
  damage(failure, barrier);
  CHECK(rejected > 500);

  SUBCASE("a message that is none of cairn's says so") {
    thread_ranks<> world(2);
    world.at(1).communicator().send(0, bytes_of("GET / HTTP/1.1"), ample());
    const auto thrown = world.run([](auto& all) { all.barrier(ample()); });
    for (const auto& each : thrown) {
      const auto e = caught<cairn::peer_error>(each);
      CHECK(e.id() == error_id::peer_bad_message);
      CHECK(e.fields().rank == 1);
    }
  }
  SUBCASE("on the way down") {
    // The pieces that rank 0 sends to rank 1, damaged behind the frame's call.
    const auto scatter = [](auto& all) {
      (void)all.scatter(0, {bytes_of("a"), bytes_of("bc")}, deadline::in(0ns));
    };
    thread_ranks<> world(2);
    check_none(world.run([&](auto& all) {
      if (all.rank() == 0)
        (void)all.scatter(0, {bytes_of("a"), bytes_of("bc")}, ample());
      else
        all.communicator().send(0, message_of(scatter), ample());
    }));
    const auto down = world.at(1).communicator().receive(0, ample());
    int failed = 0;
    for (std::size_t length = 0; length < down.size(); ++length) {
      thread_ranks<> other(2);
      other.at(0).communicator().send(1, std::span(down).first(length), ample());
      try {
        scatter(other.at(1));
      } catch (const cairn::peer_error&) {
        ++failed;
      }
    }
    CHECK(failed == static_cast<int>(down.size()));
  }
}

TEST_CASE("a thread_group knows its ranks") {
  CHECK_THROWS_AS(cairn::thread_group(0), cairn::usage_error);
  cairn::thread_group group(2);
  CHECK_THROWS_AS((void)group.communicator(2), cairn::usage_error);
  CHECK_THROWS_AS((void)group.communicator(-1), cairn::usage_error);
  CHECK_THROWS_AS(group.lose(2), cairn::usage_error);
  auto first = group.communicator(0);
  CHECK_THROWS_AS((void)group.communicator(0), cairn::usage_error);
  {
    auto second = group.communicator(1);
    second.send(0, bytes_of("last words"), ample());
    first.send(1, bytes_of("never read"), ample());
  }
  // The message that it had sent is received; then it is gone, until somebody takes the rank again.
  CHECK(text_of(first.receive(1, ample())) == "last words");
  CHECK_THROWS_AS((void)first.receive(1, ample()), cairn::peer_error);
  CHECK_THROWS_AS(first.send(1, bytes_of("x"), ample()), cairn::peer_error);
  auto again = group.communicator(1);
  first.send(1, bytes_of("welcome"), ample());
  CHECK(text_of(again.receive(0, ample())) == "welcome");
  group.lose(1);
  CHECK_THROWS_AS((void)again.receive(0, ample()), cairn::peer_error);
}

TEST_CASE("threads lend each other messages, in order with those that they send") {
  const cairn::thread_group group{2};
  auto a = group.communicator(0);
  auto b = group.communicator(1);
  const auto until = cairn::deadline::in(std::chrono::seconds(60));
  const std::shared_ptr<std::byte[]> data(new std::byte[3]{std::byte{1}, std::byte{2}, std::byte{3}});
  const cairn::lent_message lent{data, 3};
  const std::vector<std::byte> copy(data.get(), data.get() + 3);
  a.lend(1, lent, until);
  a.send(1, copy, until);
  a.lend(1, lent, until);
  a.lend(1, {}, until);
  const auto first = b.borrow(0, until);
  CHECK(first.lent.data.get() == data.get());
  CHECK(first.lent.size == 3);
  const auto second = b.borrow(0, until);
  CHECK(second.lent.data == nullptr);
  CHECK(second.sent == copy);
  CHECK(b.receive(0, until) == copy);
  CHECK(b.receive(0, until).empty());
  CHECK_THROWS_AS(a.lend(2, lent, until), cairn::usage_error);
  CHECK_THROWS_AS(static_cast<void>(b.borrow(2, until)), cairn::usage_error);
  SUBCASE("collectives take them as messages of an exchange") {
    cairn::collectives from{std::move(a)};
    cairn::collectives to{std::move(b)};
    from.begin_exchange();
    to.begin_exchange();
    auto head = from.message_head();
    head.push_back(std::byte{7});
    const std::shared_ptr<std::byte[]> message(new std::byte[head.size()]);
    std::copy(head.begin(), head.end(), message.get());
    for (const auto bytes_told : {head.size(), head.size() - 2}) {
      from.send_message(1, {message, bytes_told}, until);
      if (bytes_told == head.size())
        CHECK(to.take_message(0, until).data.get() == message.get());
      else
        CHECK_THROWS_AS(static_cast<void>(to.take_message(0, until)), cairn::peer_error);
    }
  }
}

TEST_CASE("a buffer that nobody has any more is filled again, until nobody takes it for a while") {
  cairn::detail::spare_buffers spares;
  constexpr auto length = std::size_t{1} << 20;
  CHECK(spares.take(length).empty());
  auto shared = spares.share(std::vector<std::byte>(length));
  const auto* const at = shared.get();
  auto copy = shared;
  shared.reset();
  CHECK(spares.take(length).empty());  // somebody has it
  copy.reset();
  CHECK(spares.take(length + 1).empty());  // it is shorter
  auto again = spares.take(length - 5);
  CHECK(again.data() == at);
  CHECK(again.size() == length - 5);
  CHECK(spares.take(length - 5).empty());
  static_cast<void>(spares.share(std::move(again)));
  spares.drop_unused();
  again = spares.take(length);
  CHECK(again.data() == at);
  CHECK(again.size() == length);
  static_cast<void>(spares.share(std::move(again)));
  spares.drop_unused();
  spares.drop_unused();
  CHECK(spares.take(length).empty());
  SUBCASE("it may outlive them") {
    auto own = std::make_unique<cairn::detail::spare_buffers>();
    const auto last = own->share(std::vector<std::byte>(length, std::byte{7}));
    own.reset();
    CHECK(last[length - 1] == std::byte{7});
  }
}

TEST_CASE("a communicator whose type is chosen at run time keeps its capabilities") {
  cairn::thread_group group(2);
  const auto until = ample();
  const std::shared_ptr<std::byte[]> data(new std::byte[3]{std::byte{1}, std::byte{2}, std::byte{3}});
  const cairn::lent_message lent{data, 3};
  SUBCASE("what it can") {
    cairn::any_communicator a{group.communicator(0)};
    auto second = group.communicator(1);
    auto b = std::make_unique<cairn::any_communicator>(std::move(second));
    CHECK(b->rank() == 1);
    CHECK(b->size() == 2);
    a.lend(1, lent, until);
    CHECK(b->borrow(0, until).lent.data.get() == data.get());
    const auto watch = a.watch_peers();
    REQUIRE(watch != nullptr);
    CHECK_FALSE(watch->is_gone(1));
    b.reset();
    CHECK(watch->is_gone(1));
    CHECK(a.get<cairn::thread_communicator>().rank() == 0);
    auto taken = std::move(a.get<cairn::thread_communicator>());
    CHECK_THROWS_AS((void)group.communicator(0), cairn::usage_error);  // it lives
  }
  SUBCASE("what it cannot") {
    auto counts = std::make_shared<message_counts>();
    cairn::any_communicator a{counting_communicator(group.communicator(0), counts)};
    cairn::any_communicator b{counting_communicator(group.communicator(1), counts)};
    a.lend(1, lent, until);
    const auto came = b.borrow(0, until);
    CHECK(came.lent.data == nullptr);
    CHECK(came.sent == bytes(data.get(), data.get() + 3));
    CHECK(counts->sent == 1);
    CHECK(counts->received == 1);
    CHECK(a.watch_peers() == nullptr);
  }
  SUBCASE("the least that offers it") {
    cairn::any_communicator lends{lending_archetype::make()};
    lends.lend(0, lent, until);
    CHECK(lends.borrow(0, until).lent.data.get() == data.get());
    CHECK(cairn::any_communicator{watching_archetype::make()}.watch_peers() == nullptr);
  }
}

TEST_CASE("a rank that goes away wakes those who wait for it") {
  cairn::thread_group group(2);
  auto first = group.communicator(0);
  auto second = std::make_unique<cairn::thread_communicator>(group.communicator(1));
  std::exception_ptr thrown;
  std::jthread waits([&] {
    try {
      static_cast<void>(first.receive(1, deadline::never()));
    } catch (...) {
      thrown = std::current_exception();
    }
  });
  second.reset();
  waits.join();
  CHECK(caught<cairn::peer_error>(thrown).id() == error_id::peer_lost);
  CHECK(caught<cairn::peer_error>(thrown).fields().rank == 1);
}

TEST_CASE("a ring hands messages of all lengths from one thread to another") {
  bytes memory(4096);
  cairn::detail::ring_counters counters;
  const auto message = [](std::size_t i) {
    bytes all(i * i * 7 % 20'011);
    for (std::size_t at = 0; at < all.size(); ++at) all[at] = static_cast<std::byte>(at * 13 + i);
    return all;
  };
  constexpr std::size_t count = 300;
  const auto until = ample();
  const std::jthread sender([&] {
    cairn::detail::ring_writer writer(counters, memory);
    for (std::size_t i = 0; i < count; ++i) {
      const auto all = message(i);
      cairn::detail::outgoing_message out{all};
      while (!out.done() && !until.passed())
        if (!writer.put(out)) std::this_thread::yield();
    }
  });
  cairn::detail::ring_reader reader(counters, memory);
  std::deque<bytes> got;
  std::size_t same = 0;
  while (same < count && !until.passed()) {
    if (reader.take(got) == 0) std::this_thread::yield();
    for (; !got.empty(); got.pop_front()) {
      if (got.front() != message(same)) break;
      ++same;
    }
    if (!got.empty()) break;
  }
  CHECK(same == count);
  CHECK(reader.available() == 0);
}

// --- Long messages by NCCL, on a double of it
// ----------------------------------------------------------------------

namespace {

using nccl = nccl_double;
using nccl_communicator = cairn::cuda::basic_nccl_communicator<nccl, cairn::thread_communicator>;
using cairn::cuda::nccl_failure_policy;
using cairn::cuda::nccl_options;
static_assert(cairn::Communicator<nccl_communicator>);
static_assert(cairn::plays<nccl_communicator, cairn::role::communicator>);
static_assert(cairn::DetectsLostPeers<nccl_communicator>);
using nccl_over_archetype = cairn::cuda::basic_nccl_communicator<nccl, communicator_archetype>;
static_assert(cairn::Communicator<nccl_over_archetype> && !cairn::DetectsLostPeers<nccl_over_archetype>);

/// Ranks with an nccl_communicator each, which live as long as this.
struct nccl_ranks {
  explicit nccl_ranks(
      int size, nccl_options options = {.min_bytes = 1, .buffer_bytes = 300'000, .transfer_timeout = 0ns},
      std::uint32_t seed = 1)
      : group(size), ranks(static_cast<std::size_t>(size)) {
    nccl::reset(seed);
    nccl::reset_nccl(seed);
    const auto thrown = in_threads([&](int rank) {
      auto mine = options;
      mine.device = rank % 2;
      at(rank).emplace(group.communicator(rank), mine);
    });
    for (const auto& each : thrown)
      if (each) std::rethrow_exception(each);
  }
  ~nccl_ranks() {
    ranks.clear();
    CHECK_FALSE(nccl::misused());
  }
  std::optional<nccl_communicator>& at(int rank) { return ranks[static_cast<std::size_t>(rank)]; }
  template <class Body>
  std::vector<std::exception_ptr> in_threads(Body body) {
    return cairn_test::thrown_on_ranks(group.size(), body);
  }
  /// body(communicator) on each rank at the same time.
  template <class Body>
  std::vector<std::exception_ptr> run(Body body) {
    return in_threads([&](int rank) { body(*at(rank)); });
  }
  cairn::thread_group group;
  std::vector<std::optional<nccl_communicator>> ranks;
};

template <int Size, std::uint64_t Least, std::uint64_t Piece>
struct nccl_env {
  static int size() { return Size; }
  template <class Body>
  void run(Body body) {
    nccl_ranks world(Size, {.min_bytes = Least, .buffer_bytes = Piece});
    for (const auto& thrown : world.run([&](auto& comm) { body(comm); }))
      if (thrown) std::rethrow_exception(thrown);
    for (int rank = 0; rank < Size; ++rank) CHECK(world.at(rank)->broken().empty());
  }
};

/// What `from` says to `to` in a round, of another length each time.
bytes said(int from, int to, int round) {
  bytes message(static_cast<std::size_t>((from * 7919 + to * 104729 + round * 1299709) % 100'000));
  for (std::size_t i = 0; i < message.size(); ++i)
    message[i] = static_cast<std::byte>((i * 31 + static_cast<std::size_t>(from * 5 + to * 3 + round)) >> 3);
  return message;
}
/// Every rank with every rank: in a ring where all send first, and in pairs.
void talk(nccl_communicator& comm, int rounds) {
  const int size = comm.size();
  const int me = comm.rank();
  for (int round = 0; round < rounds; ++round)
    for (int step = 0; step < size; ++step) {
      const int to = (me + step) % size;
      const int from = (me - step + size) % size;
      comm.send(to, said(me, to, round), ample());
      if (step % 2 == 1) comm.send(to, said(me, to, round + 100), ample());
      expect(comm.receive(from, ample()) == said(from, me, round), "a message differs");
      if (step % 2 == 1)
        expect(comm.receive(from, ample()) == said(from, me, round + 100), "a second message differs");
    }
}
/// Sends with longer and longer deadlines until the transfer was under way when one passed.
template <class Call>
cairn::timeout_error until_aborted(nccl_communicator& comm, Call call) {
  for (auto timeout = 50ms; timeout < 60s; timeout *= 2) {
    try {
      call(deadline::in(timeout));
    } catch (const cairn::timeout_error& e) {
      if (!comm.broken().empty()) return e;
    }
    if (!comm.broken().empty()) break;
  }
  throw std::logic_error("no transfer was aborted at the deadline");
}

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(communicator_conformance, nccl_env<1, 1, 4096>, nccl_env<2, 1, 1 << 20>,
                          nccl_env<3, 65536, 3'000'000>);

TEST_CASE("ranks that all send at once go on, and collectives by NCCL are those of any communicator") {
  for (std::uint32_t seed = 1; seed <= rounds(2); ++seed) {
    CAPTURE(seed);
    nccl::refuse_registrations(seed % 2 == 0);  // of memory: it makes no difference
    nccl_ranks world(5, {.min_bytes = 1, .buffer_bytes = 30'000}, seed);
    check_none(world.run([](auto& comm) { talk(comm, 1); }));
    CHECK(nccl::transfers_made() > 30);
    check_none(world.in_threads([&](int rank) {
      collectives all(std::move(*world.at(rank)));
      const auto gathered = all.all_gather(said(rank, 0, 3), ample());
      for (int r = 0; r < 5; ++r)
        expect(gathered[static_cast<std::size_t>(r)] == said(r, 0, 3), "all_gather");
      expect(text_of(all.tree_reduce_broadcast(letter(rank), concatenate, ample())) == letters(5), "fold");
      all.barrier(ample());
      // No rank leaves while another still receives.
      *world.at(rank) = std::move(all.communicator().get<nccl_communicator>());
    }));
  }
  nccl::refuse_registrations(false);
  CHECK(nccl::open_communicators() == 0);
  CHECK(nccl::pinned_ranges() == 0);
  CHECK(nccl::device_allocations() == 0);
  CHECK(nccl::live_events() == 0);
}

TEST_CASE("a send that hangs on the device is aborted at the deadline, and nothing of it is ever received") {
  nccl_ranks world(3);
  nccl::hang(0);
  std::string sent;
  check_none(world.run([&](auto& comm) {
    if (comm.rank() == 0) {
      const auto e = until_aborted(comm, [&](deadline until) { comm.send(2, large_message(0), until); });
      sent = e.what();
      expect(e.id() == error_id::timeout_peer && e.fields().rank == 2, "the peer is not named");
      comm.send(2, bytes_of("after"), ample());
      comm.send(2, large_message(7), ample());
    }
    if (comm.rank() == 2) {
      expect(text_of(comm.receive(0, ample())) == "after", "something of the aborted message came");
      expect(same_bytes(comm.receive(0, ample()), large_message(7)), "the long message after it differs");
      expect(!comm.broken().empty(), "its half was not aborted");
    }
  }));
  CHECK(sent.find("ncclSend with rank 2") != std::string::npos);
  CHECK(sent.find("ms after the call") != std::string::npos);
  CHECK(world.at(1)->broken().empty());
  // The collectives go on, too.
  check_none(world.run([](auto& comm) { talk(comm, 1); }));
}

TEST_CASE(
    "a receive that hangs on the device is aborted at the deadline, and the message comes another way") {
  for (const bool upwards : {true, false}) {
    CAPTURE(upwards);
    nccl_ranks world(2);
    nccl::hang(0);
    const int from = upwards ? 0 : 1;
    std::string told;
    check_none(world.run([&](auto& comm) {
      if (comm.rank() == from) {
        comm.send(1 - from, large_message(3), ample());
        return;
      }
      const auto e = until_aborted(comm, [&](deadline until) { (void)comm.receive(from, until); });
      told = e.what();
      expect(e.fields().rank == from, "the peer is not named");
      expect(comm.receive(from, ample()) == large_message(3), "the message differs");
    }));
    // Or the deadline passed when this rank had promised the transfer, and the other had not begun it.
    const auto& broken = world.at(1 - from)->broken();
    CHECK((told.find("ncclRecv with rank") != std::string::npos || broken.find("a transfer with rank") == 0));
  }
}

TEST_CASE("errors that NCCL reports in the background: the control communicator takes over, or a refusal") {
  {
    nccl_ranks world(3);
    nccl::break_links();
    check_none(world.run([](auto& comm) { talk(comm, 1); }));
    // The first to notice tells the others.
    bool found = false;
    for (int rank = 0; rank < 3; ++rank)
      found = found ||
              world.at(rank)->broken().find(
                  "remote process exited or there was a network error (socket closed)") != std::string::npos;
    CHECK(found);
  }
  nccl_ranks world(2, {.buffer_bytes = 300'000, .on_failure = nccl_failure_policy::refuse});
  nccl::break_links();
  const auto thrown = world.run([](auto& comm) {
    if (comm.rank() == 0)
      comm.send(1, large_message(0), ample());
    else
      (void)comm.receive(0, ample());
  });
  for (const int rank : {0, 1}) {
    const auto e = caught<cairn::peer_error>(thrown[static_cast<std::size_t>(rank)]);
    CHECK(e.id() == error_id::peer_failed);
    CHECK(e.fields().rank == 1 - rank);
    CHECK(e.message().find("nccl") != std::string::npos);
  }
  check_none(world.run([](auto& comm) {
    if (comm.rank() == 1) {
      expect(text_of(comm.receive(0, ample())) == "short", "short messages still come");
      return;
    }
    try {
      comm.send(1, large_message(0), ample());
      expect(false, "NCCL was used again");
    } catch (const cairn::peer_error& e) {
      expect(e.id() == error_id::peer_failed && e.fields().rank == 1, "refused by another name");
    }
    comm.send(1, bytes_of("short"), ample());
  }));
}

TEST_CASE(
    "the k-th call of the device or of NCCL fails, once or for ever: every message comes as it was sent") {
  std::size_t broken = 0;
  for (const int status : {nccl::invalid_value, nccl::illegal_address})
    for (std::uint64_t k = 1;; k += 1 + k / rounds(1, 100)) {
      CAPTURE(status);
      CAPTURE(k);
      bool through = false;
      {
        nccl_ranks world(2, {.min_bytes = 1, .buffer_bytes = 30'000}, static_cast<std::uint32_t>(k));
        nccl::fail(k, status);
        check_none(world.run([](auto& comm) { talk(comm, 1); }));
        through = nccl::calls() < k;
        for (int rank = 0; rank < 2; ++rank) broken += world.at(rank)->broken().empty() ? 0U : 1U;
        nccl::fail(0, 0);
      }
      if (through) break;
      REQUIRE(k < 1'000'000);
    }
  CHECK(broken > 10);
  nccl::reset(1);
  CHECK(nccl::pinned_ranges() == 0);
  CHECK(nccl::open_communicators() == 0);
}

TEST_CASE(
    "a communicator of NCCL that does not open: its rank says why, the others who it is, as soon as they "
    "know") {
  nccl::reset(1);
  nccl::reset_nccl(1);
  nccl::fail_open_on(1);
  const cairn::thread_group group{2};
  const auto thrown = cairn_test::thrown_on_ranks(
      2, [&](int rank) { const nccl_communicator comm(group.communicator(rank), {.device = 0}); });
  const auto e = caught<cairn::error>(thrown[1]);
  CHECK(e.id() == error_id::peer_failed);
  CHECK(e.message().find("ncclCommInitRankConfig failed on rank 1: remote process exited") == 0);
  const auto told = caught<cairn::error>(thrown[0]);
  CHECK(told.id() == error_id::peer_lost);
  CHECK(told.fields().rank == 1);
  // A control communicator that does not know who is gone.
  using unwatched = counting_communicator<cairn::thread_communicator>;
  const cairn::thread_group others{2};
  const auto late = cairn_test::thrown_on_ranks(2, [&](int rank) {
    const cairn::cuda::basic_nccl_communicator<nccl, unwatched> comm(
        unwatched(others.communicator(rank), std::make_shared<message_counts>()),
        {.device = 0, .timeout = 300ms});
  });
  const auto waited = caught<cairn::error>(late[0]);
  CHECK(waited.id() == error_id::timeout_peer);
  CHECK(waited.fields().rank == -1);
  CHECK(nccl::open_communicators() == 0);
  CHECK(nccl::device_allocations() == 0);
  CHECK_THROWS_AS(nccl_communicator(cairn::thread_group{1}.communicator(0), {.buffer_bytes = 0}),
                  cairn::usage_error);
}

TEST_CASE("over NCCL it is known, too, who is gone, and where a rank is that does not come") {
  /// Ranks of threads, whose errors tell where a rank is, as those of sockets do.
  struct housed_communicator {
    int rank() const { return base.rank(); }
    int size() const { return base.size(); }
    void send(int to, std::span<const std::byte> message, deadline until) { base.send(to, message, until); }
    bytes receive(int from, deadline until) {
      try {
        return base.receive(from, until);
      } catch (const cairn::error& e) {
        cairn::fail(
            e.id(), e.message(),
            {.rank = from, .got = "rank " + std::to_string(from) + " on node" + std::to_string(from)});
      }
    }
    std::shared_ptr<const cairn::peer_watch> watch_peers() const { return base.watch_peers(); }
    cairn::thread_communicator base;
  };
  using over_housed = cairn::cuda::basic_nccl_communicator<nccl, housed_communicator>;
  nccl::reset(1);
  nccl::reset_nccl(1);
  const cairn::thread_group group{2};
  std::array<std::optional<over_housed>, 2> ranks;
  check_none(cairn_test::thrown_on_ranks(2, [&](int rank) {
    ranks[static_cast<std::size_t>(rank)].emplace(housed_communicator{group.communicator(rank)},
                                                  nccl_options{.device = rank});
  }));
  CHECK(ranks[0]->control().base.rank() == 0);
  cairn::any_communicator first{*std::move(ranks[0])};
  const auto watch = first.watch_peers();
  REQUIRE(watch != nullptr);
  CHECK_FALSE(watch->is_gone(1));
  const auto why = [&](auto call) {
    try {
      call();
    } catch (...) {
      return caught<cairn::error>(std::current_exception());
    }
    return caught<cairn::error>(nullptr);
  };
  const auto late = why([&] { (void)first.receive(1, deadline::in(0ns)); });
  CHECK(late.id() == error_id::timeout_peer);
  CHECK(late.fields().got == "rank 1 on node1");
  ranks[1].reset();
  CHECK(watch->is_gone(1));
  const auto lost = why([&] { first.send(1, large_message(0), ample()); });
  CHECK(lost.id() == error_id::peer_lost);
  CHECK(lost.fields().got == "rank 1 on node1");
}

TEST_CASE("an abort that never returns delays nobody, and what it may use is kept until it does") {
  {
    nccl_ranks world(2, {.min_bytes = 1, .buffer_bytes = 300'000, .abort_timeout = 20ms});
    nccl::hang(0);
    nccl::hold_aborts(true);
    check_none(world.run([](auto& comm) {
      if (comm.rank() == 0) {
        (void)until_aborted(comm, [&](deadline until) { comm.send(1, large_message(0), until); });
        comm.send(1, bytes_of("after"), ample());
      } else {
        expect(text_of(comm.receive(0, ample())) == "after", "something of the aborted message came");
      }
    }));
    CHECK(nccl::open_communicators() == 2);
    CHECK(nccl::device_allocations() == 4);
  }
  nccl::hold_aborts(false);
  const auto until = ample();
  while ((nccl::device_allocations() != 0 || nccl::pinned_ranges() != 0) && !until.passed())
    std::this_thread::yield();
  CHECK(nccl::device_allocations() == 0);
  CHECK(nccl::open_communicators() == 0);
}

TEST_CASE("a rank that dies in a transfer is lost to those who wait for it, and nobody else") {
  nccl_ranks world(3, {.buffer_bytes = 300'000});
  nccl::hang(1);
  std::atomic<bool> dead{false};
  const auto thrown = world.run([&](auto& comm) {
    if (comm.rank() == 0) comm.send(1, large_message(0), ample());
    if (comm.rank() == 1) {
      try {
        (void)comm.receive(0, ample());
      } catch (const cairn::peer_error&) {
        dead = true;
        throw;
      }
    }
    if (comm.rank() == 2) {
      // Both results are right, whether or not the transfer has begun.
      world.group.lose(1);
      comm.send(0, bytes_of("well?"), ample());
    }
  });
  CHECK(caught<cairn::peer_error>(thrown[0]).id() == error_id::peer_lost);
  CHECK(caught<cairn::peer_error>(thrown[0]).fields().rank == 1);
  CHECK(caught<cairn::peer_error>(thrown[1]).id() == error_id::peer_lost);
  CHECK(dead);
  CHECK(thrown[2] == nullptr);
  CHECK(text_of(world.at(0)->receive(2, ample())) == "well?");
}
