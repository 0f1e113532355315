// SPDX-License-Identifier: Apache-2.0
// links: cairn::mpi
//
// What test_mpi.py starts with mpirun, on each rank:
//   helper_mpi_ranks suite DIR     the conformance suite and more; 4 ranks save in DIR, fewer resume from it
//   helper_mpi_ranks killed DIR    rank 2 kills itself; each other one writes the error that it got into DIR
//   helper_mpi_ranks plain         one rank: what is said before, without and after a proper initialisation
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cairn/checkpointer.hpp>
#include <cairn/comm/collectives.hpp>
#include <cairn/comm/mpi_communicator.hpp>
#include <cairn/stores/file_store.hpp>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <optional>
#include <support/communicator_conformance.hpp>
#include <support/training_state.hpp>
#include <thread>
#include <vector>

using namespace cairn_test;
using namespace std::chrono_literals;
using cairn::deadline;
using cairn::error_id;
using cairn::mpi_communicator;
using bytes = std::vector<std::byte>;

// --- MPI's profiling interface: calls are counted, and one of them fails on request
// -------------------------

namespace {
int sends = 0;
std::string failing_call;

int done_or(std::string_view call, int code) {
  return failing_call == call ? MPI_ERR_OTHER : code;
}
}  // namespace

extern "C" {
int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  ++sends;
  if (failing_call == "MPI_Isend") return MPI_ERR_OTHER;
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}
int MPI_Improbe(int from, int tag, MPI_Comm comm, int* found, MPI_Message* message, MPI_Status* status) {
  if (failing_call == "MPI_Improbe") return MPI_ERR_OTHER;
  return PMPI_Improbe(from, tag, comm, found, message, status);
}
int MPI_Imrecv(void* data, int count, MPI_Datatype type, MPI_Message* message, MPI_Request* request) {
  return done_or("MPI_Imrecv", PMPI_Imrecv(data, count, type, message, request));
}
int MPI_Get_count(const MPI_Status* status, MPI_Datatype type, int* count) {
  if (failing_call != "MPI_Get_count") return PMPI_Get_count(status, type, count);
  *count = MPI_UNDEFINED;  // what does not fit an int
  return MPI_SUCCESS;
}
int MPI_Ibarrier(MPI_Comm comm, MPI_Request* request) {
  return done_or("MPI_Ibarrier", PMPI_Ibarrier(comm, request));
}
}

namespace {

std::string directory;

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}
/// A message that MPI does not take by itself: its sender waits for the receiver.
bytes large(int mark) {
  return bytes(1U << 20, static_cast<std::byte>('a' + mark));
}
/// MPI's own words for the error that a call fails with on request.
std::string words_of_error() {
  std::string words(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(MPI_ERR_OTHER, words.data(), &length);
  words.resize(static_cast<std::size_t>(length));
  return words;
}
/// A barrier over the trainer's own communicator, so that no rank is in a call of cairn's.
void meet() {
  MPI_Barrier(MPI_COMM_WORLD);
}

/// The error that the call throws; one of usage_incomplete_object if it throws none.
template <class Call>
cairn::error caught(Call&& call) {
  try {
    call();
  } catch (const cairn::error& e) {
    return e;
  }
  return {error_id::usage_incomplete_object, "nothing was thrown", {}};
}
bool says(const cairn::error& e, std::string_view words) {
  return std::string_view(e.what()).find(words) != std::string_view::npos;
}

struct mpi_env {
  static int size() { return world_size(); }
  template <class Body>
  void run(Body body) {
    mpi_communicator comm{MPI_COMM_WORLD};
    body(comm);
    comm.free(ample());
  }
};

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(communicator_conformance, mpi_env);

TEST_CASE("ranks that send large messages to each other at once do not block each other") {
  mpi_communicator comm{MPI_COMM_WORLD};
  for (int to = 0; to < comm.size(); ++to) comm.send(to, large(comm.rank()), ample());
  for (int from = comm.size(); from-- > 0;) CHECK(comm.receive(from, ample()) == large(from));
}

TEST_CASE("messages of the trainer are not seen, nor does it see cairn's") {
  mpi_communicator comm{MPI_COMM_WORLD};
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  const int theirs = 4711;
  MPI_Request request{};
  MPI_Isend(&theirs, 1, MPI_INT, next, 0, MPI_COMM_WORLD, &request);
  meet();
  CHECK(caught([&] { static_cast<void>(comm.receive(previous, deadline::in(20ms))); }).id() ==
        error_id::timeout_peer);
  meet();
  comm.send(next, bytes_of("ours"), ample());
  int got = 0;
  MPI_Recv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  CHECK(got == 4711);
  CHECK(text_of(comm.receive(previous, ample())) == "ours");
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

TEST_CASE("a part of the ranks has a world of its own") {
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world_rank() % 2, -world_rank(), &half);
  {
    mpi_communicator comm{half};
    const int members = (world_size() + 1 - world_rank() % 2) / 2;
    REQUIRE(comm.size() == members);
    CHECK(comm.rank() == members - 1 - world_rank() / 2);
    comm.send((comm.rank() + 1) % members, bytes_of(std::to_string(world_rank() % 2)), ample());
    CHECK(text_of(comm.receive((comm.rank() + members - 1) % members, ample())) ==
          std::to_string(world_rank() % 2));
    comm.free(ample());
  }
  MPI_Comm_free(&half);
}

TEST_CASE("a send that nobody takes ends by its deadline, and the message still arrives whole") {
  mpi_communicator comm{MPI_COMM_WORLD};
  const int last = comm.size() - 1;
  if (last == 0) return;
  const int before = sends;
  if (comm.rank() == 0) {
    auto message = large(7);
    const auto e = caught([&] { comm.send(last, message, deadline::in(20ms)); });
    CHECK(e.id() == error_id::timeout_peer);
    CHECK(e.fields().rank == last);
    CHECK(says(e, "it may still arrive"));
    message.assign(message.size(), std::byte{1});
    const auto stuck = caught([&] { comm.send(last, bytes_of("never"), deadline::in(20ms)); });
    CHECK(stuck.id() == error_id::timeout_peer);
    CHECK(stuck.fields().rank == last);
    CHECK(says(stuck, "none was sent"));
    CHECK(sends == before + 1);
  }
  meet();
  if (comm.rank() == last) {
    CHECK(comm.receive(0, ample()) == large(7));
    comm.send(0, bytes_of("thanks"), ample());
    CHECK(text_of(comm.receive(0, ample())) == "after");
  }
  if (comm.rank() == 0) {
    CHECK(text_of(comm.receive(last, ample())) == "thanks");
    comm.send(last, bytes_of("after"), ample());
  }
}

TEST_CASE("a message that MPI still has when its communicator ends arrives whole") {
  const int last = world_size() - 1;
  if (last == 0) return;
  std::optional<mpi_communicator> comm(std::in_place, MPI_COMM_WORLD);
  if (comm->rank() == 0) {
    CHECK(caught([&] { comm->send(last, large(3), deadline::in(1ms)); }).id() == error_id::timeout_peer);
    comm.reset();
  }
  meet();
  if (comm && comm->rank() == last) CHECK(comm->receive(0, ample()) == large(3));
  meet();
}

TEST_CASE("a rank that hangs is named on all others, and its late messages are dropped") {
  cairn::collectives all(mpi_communicator{MPI_COMM_WORLD});
  const int hanging = all.size() - 1;
  if (hanging < 3) return;
  const auto own = large(all.rank());
  meet();
  const auto merge = [](bytes left, const bytes& right) { return left.size() < right.size() ? right : left; };
  // Rank 0 gives up, and tells the others, whose timeout is longer; also the one that hung.
  int given_up = 1;
  if (all.rank() == hanging) MPI_Recv(&given_up, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  const auto until = all.rank() == 0 ? deadline::in(8s) : ample();
  const auto e = caught([&] { static_cast<void>(all.tree_reduce_broadcast(own, merge, until)); });
  CHECK(e.id() == error_id::timeout_peer);
  CHECK(e.fields().rank == hanging);
  if (all.rank() == 0) MPI_Send(&given_up, 1, MPI_INT, hanging, 1, MPI_COMM_WORLD);
  for (int round = 0; round < 3; ++round) {
    const auto parts = all.all_gather(bytes_of(std::to_string(all.rank() + 10 * round)), ample());
    REQUIRE(parts.size() == static_cast<std::size_t>(all.size()));
    for (int rank = 0; rank < all.size(); ++rank)
      CHECK(text_of(parts[static_cast<std::size_t>(rank)]) == std::to_string(rank + 10 * round));
  }
}

TEST_CASE("an error of MPI breaks the communicator: this call and each further one tell it") {
  const int next = (world_rank() + 1) % world_size();
  if (world_size() == 1) return;
  for (const std::string call : {"MPI_Isend", "MPI_Improbe", "MPI_Imrecv", "MPI_Ibarrier"}) {
    CAPTURE(call);
    meet();
    mpi_communicator comm{MPI_COMM_WORLD};
    failing_call = call;
    const auto first = caught([&] {
      if (call == "MPI_Ibarrier") comm.free(ample());
      comm.send(next, bytes_of("x"), ample());  // takes in what has come, too
      static_cast<void>(comm.receive((comm.rank() + comm.size() - 1) % comm.size(), ample()));
    });
    failing_call.clear();
    CHECK(first.id() == error_id::peer_failed);
    CHECK(says(first, call + " failed: " + words_of_error()));
    CHECK((first.fields().rank >= 0) == (call == "MPI_Isend" || call == "MPI_Imrecv"));
    const int before = sends;
    for (int peer = 0; peer < comm.size(); ++peer) {
      const auto send = caught([&] { comm.send(peer, {}, deadline::never()); });
      const auto receive = caught([&] { static_cast<void>(comm.receive(peer, deadline::never())); });
      CHECK(std::string_view(send.what()) == first.what());
      CHECK(std::string_view(receive.what()) == first.what());
    }
    CHECK(sends == before);
  }
  meet();
}

TEST_CASE("a message that is longer than any of cairn's breaks the communicator") {
  if (world_size() == 1) return;
  mpi_communicator comm{MPI_COMM_WORLD};
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  failing_call = "MPI_Get_count";
  const auto first = caught([&] {
    comm.send((comm.rank() + 1) % comm.size(), bytes_of("x"), ample());
    static_cast<void>(comm.receive(previous, ample()));
  });
  failing_call.clear();
  CHECK(first.id() == error_id::peer_bad_message);
  CHECK(first.fields().rank == previous);
  CHECK(says(first, "longer than 1 GiB"));
  const auto next = caught([&] { static_cast<void>(comm.receive(previous, deadline::never())); });
  CHECK(next.id() == error_id::peer_failed);
  CHECK(says(next, "longer than 1 GiB; this communicator is broken"));
  meet();
}

TEST_CASE("what is not meant to be used refuses with a sentence") {
  CHECK(caught([] { mpi_communicator{MPI_COMM_NULL}; }).id() == error_id::usage_bad_option);
  mpi_communicator comm{MPI_COMM_WORLD};
  SUBCASE("moved from") {
    auto moved = std::move(comm);
    const auto e = caught([&] { comm.send(0, {}, ample()); });  // NOLINT(bugprone-use-after-move)
    CHECK(e.id() == error_id::usage_closed);
    CHECK(comm.rank() == moved.rank());
    comm = mpi_communicator{MPI_COMM_WORLD};
    comm.send(comm.rank(), bytes_of("x"), ample());
    CHECK(text_of(comm.receive(comm.rank(), ample())) == "x");
  }
  SUBCASE("freed") {
    comm.free(ample());
    CHECK(caught([&] { static_cast<void>(comm.receive(0, ample())); }).id() == error_id::usage_closed);
    CHECK(caught([&] { comm.free(ample()); }).id() == error_id::usage_closed);
  }
  SUBCASE("freed by some ranks only") {
    if (comm.size() == 1) return;
    if (comm.rank() == 0) {
      const auto e = caught([&] { comm.free(deadline::in(20ms)); });
      CHECK(e.id() == error_id::timeout_peer);
      CHECK(caught([&] { comm.send(0, {}, ample()); }).id() == error_id::peer_failed);
    }
    meet();
  }
  SUBCASE("too long a message") {
    const std::span<const std::byte> huge(reinterpret_cast<const std::byte*>(&comm),
                                          cairn::max_message_bytes + 1);
    CHECK(caught([&] { comm.send(0, huge, ample()); }).id() == error_id::usage_overflow);
  }
  SUBCASE("another thread than MPI's") {
    std::jthread([&] {
      const auto e = caught([&] { comm.send(comm.rank(), {}, ample()); });
      CHECK(e.id() == error_id::usage_bad_option);
      CHECK(says(e, "MPI_THREAD_FUNNELED"));
    });
  }
  SUBCASE("a child of fork") {
    comm.send(comm.rank(), bytes_of("x"), ample());
    const ::pid_t child = ::fork();
    if (child == 0) {
      const bool refused =
          caught([&] { comm.send(0, {}, ample()); }).id() == error_id::usage_wrong_process &&
          caught([&] { static_cast<void>(comm.receive(0, ample())); }).id() == error_id::usage_wrong_process;
      { const auto ended = std::move(comm); }
      ::_exit(refused ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
    CHECK(text_of(comm.receive(comm.rank(), ample())) == "x");
  }
  SUBCASE("two groups of ranks") {
    if (comm.size() != 2) return;
    MPI_Comm between = MPI_COMM_NULL;
    MPI_Intercomm_create(MPI_COMM_SELF, 0, MPI_COMM_WORLD, 1 - comm.rank(), 0, &between);
    CHECK(caught([&] { mpi_communicator{between}; }).id() == error_id::usage_bad_option);
    MPI_Comm_free(&between);
  }
}

TEST_CASE("8 ranks save and load, fewer resume") {
  const int size = world_size();
  training_state training(world_rank(), size);
  cairn::checkpointer ckpt{cairn::file_store{directory}, mpi_communicator{MPI_COMM_WORLD},
                           cairn::checkpointer_options{.peer_timeout = 60s, .quiet = true}};
  const auto step = ckpt.resume(training.state);
  if (size == 8) {
    CHECK(!step);
    for (int next = 1; next <= 2; ++next) {
      training.fill(next);
      const int before = sends;
      ckpt.save(training.state, next).wait();
      CHECK(sends == before);  // resume has planned already: this save sends no message
      training.spoil();
    }
    ckpt.load(training.state, 2);
    CHECK(training.is(2));
  } else {
    CHECK(step == 2);
    CHECK(training.is(2));
  }
  ckpt.close();
}

namespace {

/// Writes a file that appears as a whole.
void tell(const std::string& name, const std::string& text) {
  const auto path = directory + "/" + name;
  std::ofstream(path + ".part") << text;
  std::rename((path + ".part").c_str(), path.c_str());
}

int killed() {
  std::string told;
  {
    cairn::collectives all(mpi_communicator{MPI_COMM_WORLD});
    all.barrier(ample());
    if (all.rank() == 2) ::raise(SIGKILL);
    // Ranks 0 and 3 wait for the dead one themselves; rank 0 tells rank 1.
    told = caught([&] { all.barrier(all.rank() == 1 ? ample() : deadline::in(8s)); }).what();
  }
  // A new communicator cannot be made without the dead rank, either.
  told += "\n";
  told += caught([&] { mpi_communicator(MPI_COMM_WORLD, deadline::in(100ms)); }).what();
  tell(std::to_string(world_rank()), told);
  // End without MPI_Finalize, which would wait for the dead rank. mpirun may then end the other ranks as
  // well.
  const auto until = ample();
  for (const char* each : {"/0", "/1", "/3"})
    while (::access((directory + each).c_str(), F_OK) != 0 && !until.passed()) ::usleep(1000);
  ::_exit(0);
}

int plain() {
  const auto make = [] { mpi_communicator{MPI_COMM_WORLD}; };
  std::printf("%s\n", caught(make).what());
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SINGLE, &provided);
  if (provided == MPI_THREAD_SINGLE) std::printf("%s\n", caught(make).what());
  MPI_Finalize();
  std::printf("%s\n", caught(make).what());
  return 0;
}

int suite(const char* cases) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  doctest::Context context;
  context.setOption("no-intro", true);
  context.setOption("no-colors", true);
  if (cases != nullptr) context.setOption("test-case", cases);
  int failed = context.run();
  std::optional<mpi_communicator> late(std::in_place, MPI_COMM_WORLD);
  std::optional<mpi_communicator> unused(std::in_place, MPI_COMM_WORLD);
  MPI_Finalize();
  const auto e = caught([&] { late->send(0, {}, ample()); });
  if (e.id() != error_id::usage_closed) {
    std::printf("after MPI_Finalize: %s\n", e.what());
    failed = 1;
  }
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (argc > 2) directory = argv[2];
  if (mode == "suite" && argc == 3) return suite(nullptr);
  if (mode == "save" && argc == 3) return suite("8 ranks save*");
  if (mode == "plain" && argc == 2) return plain();
  if (mode == "killed" && argc == 3) {
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    return killed();
  }
  std::fprintf(stderr, "usage: helper_mpi_ranks suite DIR | save DIR | killed DIR | plain\n");
  return 2;
}
