// SPDX-License-Identifier: Apache-2.0
// threaded
// cost: 30
// links: cairn::links
//
// Ranks over sockets: what the suite of Communicator asks, how they find each other, and what strangers, false ranks,
// broken connections and lost processes do to them.
#include <doctest/doctest.h>

#include <cairn/comm/collectives.hpp>
#include <cairn/comm/socket/socket_gathering.hpp>
#include <cairn/comm/socket/socket_rendezvous.hpp>
#include <cairn/comm/socket/socket_world.hpp>
#include <cairn/comm/socket_communicator.hpp>
#include <cairn/concepts/any_communicator.hpp>
#include <cairn/links/link_sockets.hpp>
#include <cairn/system/backoff.hpp>
#include <support/communicator_conformance.hpp>
#include <support/link_peers.hpp>
#include <support/no_more_files.hpp>
#include <support/on_all_ranks.hpp>
#include <support/own_server.hpp>
#include <support/process_ranks.hpp>
#include <support/processes.hpp>
#include <support/rounds.hpp>
#include <support/scratch_directory.hpp>
#include <support/still_threads.hpp>

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace cairn_test;
using namespace std::chrono_literals;
using cairn::deadline;
using cairn::error_id;
using cairn::socket_communicator;
using cairn::socket_job;
using cairn::socket_options;

namespace {

static_assert(cairn::plays<socket_communicator, cairn::role::communicator>);
static_assert(cairn::DetectsLostPeers<socket_communicator>);
static_assert(!std::copy_constructible<socket_communicator>);
static_assert(std::is_nothrow_move_constructible_v<socket_communicator>);

const std::string secret = "a secret of a test, which has more than 32 characters";

/// A job of this test whose ranks meet at one of 16 ports: as those that torchrun starts.
socket_job job_at_ports(int rank, int size, const std::string& name = "test") {
  socket_job job{.name = name, .rank = rank, .size = size, .host = "127.0.0.1"};
  job.port = static_cast<std::uint16_t>(20000 + ::getpid() % 750 * 16);
  job.ports = 16;
  job.key = secret;
  job.run = std::to_string(::getpid());
  return job;
}

void check_none(const std::vector<std::exception_ptr>& thrown) {
  for (const auto& each : thrown) CHECK_NOTHROW(each ? std::rethrow_exception(each) : void());
}
/// The error that a call throws; one of id usage_closed that says so where it throws none.
template <class Call>
std::unique_ptr<cairn::error> error_of(Call call) {
  try {
    call();
  } catch (const cairn::error& e) {
    return std::make_unique<cairn::error>(e);
  }
  return std::make_unique<cairn::error>(error_id::usage_closed, "nothing was thrown", cairn::error_fields{});
}
bool says(const cairn::error& e, const std::string& text) {
  return std::string(e.what()).find(text) != std::string::npos;
}

/// Ranks that are threads of this test and meet by a file.
template <int Size>
struct file_env {
  static int size() { return Size; }
  template <class Body>
  void run(Body body) {
    const scratch_directory place;
    for (const auto& each : thrown_on_ranks(Size, [&](int rank) {
           socket_communicator comm(socket_job::in_file(place.path() + "/job", rank, Size));
           body(comm);
         }))
      if (each) std::rethrow_exception(each);
  }
};
/// The same at a port, in the clear, behind the handle of any communicator.
struct plain_env {
  static int size() { return 3; }
  template <class Body>
  void run(Body body) {
    for (const auto& each : thrown_on_ranks(size(), [&](int rank) {
           cairn::any_communicator comm(socket_communicator(
               job_at_ports(rank, size()), {.protection = cairn::socket_protection::plaintext}));
           body(comm);
         }))
      if (each) std::rethrow_exception(each);
  }
};

/// Waits for the file of a job.
cairn::detail::job_file await_file(const std::string& path) {
  for (const auto until = ample();;) {
    if (auto file = cairn::detail::read_job_file(path)) return std::move(*file);
    if (!cairn::detail::sleep_for(1ms, until)) throw std::runtime_error("rank 0 writes no file");
  }
}

/// A copy of the file of a job, in which rank 0 listens at another port of this host.
socket_job job_by_proxy(cairn::detail::job_file file, const std::string& path, std::uint16_t port) {
  file.rank_0.port = port;
  file.rank_0.hosts = {"127.0.0.1"};
  cairn::detail::write_job_file(path, file);
  auto job = socket_job::in_file(path, 1, 2);
  job.name = "job";
  return job;
}

/// Carries what has come over one socket to another one, neither of which blocks: how many bytes, 0 at the end of either.
std::size_t carry(int from, int to) {
  std::vector<char> some(std::size_t{1} << 16);
  const auto got = ::recv(from, some.data(), some.size(), 0);
  if (got <= 0) return 0;
  for (::ssize_t done = 0; done < got;) {
    const auto put = ::send(to, some.data() + done, static_cast<std::size_t>(got - done), MSG_NOSIGNAL);
    if (put > 0) done += put;
    pollfd one{to, POLLOUT, 0};
    if (put < 0 && (errno != EAGAIN || ::poll(&one, 1, 60'000) <= 0)) return 0;
  }
  return static_cast<std::size_t>(got);
}

/// Stops a process, for as long as this lives.
struct stopped_process {
  explicit stopped_process(::pid_t of) : process(of) {
    ::kill(process, SIGSTOP);
    for (const auto until = ample(); state() != 'T';)
      if (!cairn::detail::sleep_for(1ms, until)) throw std::runtime_error("a process does not stop");
  }
  stopped_process(const stopped_process&) = delete;
  stopped_process& operator=(const stopped_process&) = delete;
  ~stopped_process() { ::kill(process, SIGCONT); }
  [[nodiscard]] char state() const {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    return text.at(text.rfind(')') + 2);
  }
  ::pid_t process;
};

/// A rank in a thread of its own, which makes a communicator and keeps it.
struct rank_in_thread {
  explicit rank_in_thread(const socket_job& job, const socket_options& options = {})
      : thread([this, job, options] {
          try {
            comm.emplace(job, options);
          } catch (...) {
            thrown = std::current_exception();
          }
          ended = true;
        }) {}
  socket_communicator& get() {
    if (thread.joinable()) thread.join();
    if (thrown) std::rethrow_exception(thrown);
    return *comm;
  }
  std::optional<socket_communicator> comm;
  std::exception_ptr thrown;
  std::atomic<bool> ended{false};
  std::jthread thread;
};

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(communicator_conformance, file_env<1>, file_env<2>, file_env<5>, plain_env);

TEST_CASE("collectives over sockets, and connections that are made when they are needed") {
  const scratch_directory place;
  check_none(thrown_on_ranks(9, [&](int rank) {
    cairn::collectives all{
        cairn::any_communicator(socket_communicator(socket_job::in_file(place.path() + "/job", rank, 9)))};
    for (int round = 0; round < 3; ++round) {
      all.barrier(ample());
      const auto text = text_of(all.broadcast(round, bytes_of("from " + std::to_string(rank)), ample()));
      expect(text == "from " + std::to_string(round), "broadcast gave " + text);
      const auto gathered = all.all_gather(bytes_of(std::to_string(rank)), ample());
      for (int r = 0; r < 9; ++r)
        expect(text_of(gathered[static_cast<std::size_t>(r)]) == std::to_string(r), "all_gather mixed ranks");
    }
    all.barrier(ample());
  }));
  // Nothing is left of how they met.
  CHECK(::access((place.path() + "/job").c_str(), F_OK) != 0);
}

TEST_CASE("ranks that send much to each other at once do not wait for each other") {
  const scratch_directory place;
  check_none(thrown_on_ranks(2, [&](int rank) {
    socket_communicator comm(socket_job::in_file(place.path() + "/job", rank, 2));
    const std::vector<std::byte> much(std::size_t{24} << 20, static_cast<std::byte>(rank + 1));
    comm.send(1 - rank, much, ample());
    const auto got = comm.receive(1 - rank, ample());
    expect(got.size() == much.size() && got.back() == static_cast<std::byte>(2 - rank), "it differs");
  }));
}

TEST_CASE("long messages are lent, and stay what they are while somebody has them") {
  const scratch_directory place;
  constexpr auto length = std::size_t{1} << 20;
  check_none(thrown_on_ranks(2, [&](int rank) {
    socket_communicator comm(socket_job::in_file(place.path() + "/job", rank, 2));
    const auto filled = [](int with) { return std::vector<std::byte>(length, static_cast<std::byte>(with)); };
    if (rank == 0) {
      const auto own = std::make_shared<std::vector<std::byte>>(filled(1));
      comm.lend(1, {{own, own->data()}, own->size()}, ample());
      for (const int i : {2, 3, 4}) comm.send(1, filled(i), ample());
      comm.send(1, bytes_of("short"), ample());
      return;
    }
    const auto is = [&](const cairn::borrowed_message& message, int with) {
      const auto bytes = message.lent.view();
      const auto wanted = filled(with);
      expect(std::equal(bytes.begin(), bytes.end(), wanted.begin(), wanted.end()) && message.sent.empty(),
             "a message is not what was sent: " + std::to_string(with));
    };
    const auto first = comm.borrow(0, ample());
    is(comm.borrow(0, ample()), 2);  // nobody has it any more
    const auto third = comm.borrow(0, ample());
    is(first, 1);
    is(third, 3);
    expect(comm.receive(0, ample()) == filled(4), "a message that is received differs");
    const auto last = comm.borrow(0, ample());
    expect(last.lent.data == nullptr && text_of(last.sent) == "short", "a short message is lent");
    is(first, 1);
    is(third, 3);
  }));
}

TEST_CASE(
    "a message comes where its receiver wants it, as far as it came in time, and nothing of another one") {
  namespace in = cairn::detail;
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  const in::tls_context context{cairn::link_key::random()};
  const auto connection = [&](int end, in::secure_socket::side side) {
    const in::fork_pause pause;
    return std::make_unique<in::socket_connection>(
        context, in::make_owned<in::unforked_file>(in::file_descriptor(end), pause), side, true);
  };
  const auto from = connection(ends[0], in::secure_socket::side::client);
  const auto to = connection(ends[1], in::secure_socket::side::server);
  in::spare_buffers spares;
  std::vector<std::vector<std::byte>> bodies;
  std::vector<bool> landed;
  const auto read = [&] {
    static_cast<void>(to->read(
        [&](in::received_frame&& frame) {
          landed.push_back(!frame.rest.empty());
          bodies.push_back(std::move(frame.body));
          return true;
        },
        cairn::max_message_bytes, spares));
  };
  std::vector<std::byte> message(50'000);
  for (std::size_t i = 0; i < message.size(); ++i) message[i] = static_cast<std::byte>(i % 251);
  constexpr std::size_t first = 100, half = 20'000;
  std::vector<std::byte> rest(message.size() - first, std::byte{255});
  const std::vector<std::byte> untouched = rest;
  const std::vector<std::byte> begin(message.begin(), message.begin() + first);
  const std::vector<std::byte> end(message.begin() + first, message.end());
  const auto head =
      in::encode(in::socket_frame{.what = in::socket_frame::kind::message, .bytes = message.size()});
  const auto all = std::span<const std::byte>(message);
  std::size_t sent = 0;
  const auto send_until = [&](std::size_t bytes) {
    // As a sender does whose socket takes no more.
    std::vector<std::byte> wire(head.begin(), head.end());
    wire.insert(wire.end(), all.begin(), all.end());
    while (sent < bytes) {
      const auto moved = ::send(from->number(), wire.data() + sent, bytes - sent, 0);
      REQUIRE(moved > 0);
      sent += static_cast<std::size_t>(moved);
      read();
    }
  };
  const auto whole = head.size() + message.size();
  SUBCASE("from its beginning") {
    to->land(first, rest);
    send_until(whole);
    CHECK((bodies == std::vector<std::vector<std::byte>>({begin}) && landed.front() && rest == end));
    sent = 0;
    send_until(whole);  // another one of the same length
    CHECK((bodies.size() == 2 && bodies.back() == message && !landed.back()));
  }
  SUBCASE("from its middle, or from within its first bytes") {
    for (const std::size_t already : {std::size_t{3}, std::size_t{40}, half}) {
      bodies.clear(), landed.clear();
      rest = untouched;
      sent = 0;
      send_until(already);
      to->land(first, rest);
      send_until(whole);
      CHECK((bodies == std::vector<std::vector<std::byte>>({begin}) && landed.front() && rest == end));
    }
  }
  SUBCASE("until the receiver gives up") {
    for (const std::size_t already : {std::size_t{3}, std::size_t{40}, half}) {
      bodies.clear(), landed.clear();
      sent = 0;
      to->land(first, rest);
      send_until(already);
      to->end_landing();
      rest = untouched;
      send_until(whole);
      CHECK(
          (bodies == std::vector<std::vector<std::byte>>({message}) && !landed.front() && rest == untouched));
    }
  }
  SUBCASE("one of another length does not") {
    rest.pop_back();
    to->land(first, rest);
    send_until(whole);
    CHECK((bodies == std::vector<std::vector<std::byte>>({message}) && !landed.front() &&
           rest.back() == std::byte{255}));
  }
}

TEST_CASE("messages that may come where they are wanted keep their order and their bytes") {
  const scratch_directory place;
  check_none(thrown_on_ranks(2, [&](int rank) {
    socket_communicator comm(socket_job::in_file(place.path() + "/job", rank, 2));
    constexpr std::size_t length = std::size_t{3} << 20, first = 50;
    constexpr int rounds = 12;
    const auto filled = [](int i) {  // some of them shorter
      return std::vector<std::byte>(length - static_cast<std::size_t>(i % 3 == 0 ? 1 : 0),
                                    static_cast<std::byte>(i));
    };
    if (rank == 0) {
      for (int i = 0; i < rounds; ++i) comm.send(1, filled(i), ample());
      static_cast<void>(comm.receive(1, ample()));
      return;
    }
    std::vector<std::byte> rest(length - first);
    for (int i = 0; i < rounds; ++i) {
      const auto message = comm.borrow_into(0, first, rest, ample());
      auto bytes = message.sent;
      if (message.landed) bytes.insert(bytes.end(), rest.begin(), rest.end());
      if (message.lent.data != nullptr) bytes.assign(message.lent.view().begin(), message.lent.view().end());
      expect(bytes == filled(i), "message " + std::to_string(i) + " is not what was sent");
    }
    comm.send(0, {}, ample());
  }));
}

TEST_CASE("long values of collectives arrive whole where long messages are lent") {
  const scratch_directory place;
  check_none(thrown_on_ranks(2, [&](int rank) {
    cairn::collectives all{socket_communicator(socket_job::in_file(place.path() + "/job", rank, 2))};
    const std::vector<std::byte> much(std::size_t{1} << 20, std::byte{5});
    expect(all.broadcast(0, much, ample()) == much, "broadcast gave something else");
    all.begin_exchange();
    if (rank == 0) {
      const auto message = std::make_shared<std::vector<std::byte>>(all.message_head());
      message->insert(message->end(), much.begin(), much.end());
      all.send_message(1, {{message, message->data()}, message->size()}, ample());
    } else {
      const auto message = all.take_message(0, ample());
      const auto bytes = message.view().subspan(all.message_head().size());
      expect(std::equal(bytes.begin(), bytes.end(), much.begin(), much.end()),
             "the exchange gave something else");
    }
    all.barrier(ample());
  }));
}

TEST_CASE("messages keep their order where two ranks connect to each other at the same time") {
  namespace in = cairn::detail;
  const auto key = cairn::link_key::random();
  const auto make = [&](int rank, const std::function<void(in::link_address&)>& change) {
    in::link_address own;
    auto listening = in::listen_at("127.0.0.1", 0, 1, own);
    own.link = static_cast<std::uint64_t>(rank) + 1;
    change(own);
    const in::socket_world_options told{
        .job = "test", .rank = rank, .size = 3, .plain = true, .handshake_timeout = 60s};
    return std::make_unique<in::socket_world>(told, key, std::move(listening), own);
  };
  std::uint16_t port_of_0 = 0;
  const auto zero = make(0, [&](auto& own) { port_of_0 = own.port; });
  std::unique_ptr<in::socket_world> two;
  // What the first connection from rank 1 to rank 2 goes through. It lets rank 2 connect to rank 1 before rank 1
  // has its answer, and then keeps back all that rank 1 writes.
  std::atomic<bool> keeps_back{true};
  std::atomic<std::uint16_t> port_of_2{0};
  std::atomic<in::socket_world*> rank_2{nullptr};
  const own_server between([&](in::file_descriptor from) {
    rank_2.load()->send(1, bytes_of("of 2"), ample());
    const auto to = stranger(port_of_2).release();
    ::fcntl(from.get(), F_SETFL, O_NONBLOCK);
    for (bool answered = false;;) {
      const bool closed = answered && keeps_back;
      pollfd both[] = {{from.get(), static_cast<short>(closed ? 0 : POLLIN), 0}, {to.get(), POLLIN, 0}};
      if (::poll(both, 2, 10) < 0) return;
      for (int side = 0; side < 2; ++side) {
        if (both[side].revents == 0) continue;
        char some[4096];
        const auto got = ::recv(both[side].fd, some, sizeof some, 0);
        if (got <= 0) return;
        static_cast<void>(!::send(both[1 - side].fd, some, static_cast<std::size_t>(got), MSG_NOSIGNAL));
        answered = answered || side == 1;
      }
    }
  });
  const auto one = make(1, [](auto&) {});
  struct release {
    std::atomic<bool>& flag;
    ~release() { flag = false; }
  };
  const release at_end{keeps_back};
  two = make(2, [&](auto& own) { port_of_2 = std::exchange(own.port, between.port()); });
  rank_2 = two.get();
  for (auto* const each : {one.get(), two.get()})
    CHECK(in::come(each->service(), "127.0.0.1", port_of_0, 0, ample()).came);
  in::gather(zero->service(), ample());
  for (auto* const each : {one.get(), two.get()}) in::await_begin(each->service(), ample());

  one->send(2, bytes_of("first"), ample());
  one->send(2, bytes_of("second"), ample());
  CHECK(text_of(two->receive(1, ample())) == "first");
  keeps_back = false;
  CHECK(text_of(two->receive(1, ample())) == "second");
  CHECK(text_of(one->receive(2, ample())) == "of 2");
}

TEST_CASE("two jobs of one secret share a range of ports, and never mix") {
  check_none(thrown_on_ranks(6, [&](int n) {
    const int rank = n % 3;
    const std::string name = n < 3 ? "one" : "two";
    socket_communicator comm(job_at_ports(rank, 3, name));
    cairn::collectives all{cairn::any_communicator(std::move(comm))};
    for (const auto& each : all.all_gather(bytes_of(name), ample()))
      expect(text_of(each) == name, "a rank of another job is here");
    all.barrier(ample());
  }));
}

TEST_CASE(
    "strangers, wrong secrets, false sizes and second ranks are refused, and the job begins without them") {
  const auto port_of = [](const std::string& path) { return await_file(path).rank_0.port; };
  const scratch_directory place;
  const auto path = place.path() + "/job";
  rank_in_thread zero(socket_job::in_file(path, 0, 2));
  const auto file = await_file(path);

  // One that speaks no TLS, one that says nothing it could be answered for: not a byte.
  const stranger talks(port_of(path));
  talks.say("GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n");
  CHECK(talks.hear_all().empty());

  // Another secret; and a second rank 0 where the port is taken.
  thrown_on_ranks(2, [&](int rank) {
    auto job = socket_job::at("job", rank, 2, "127.0.0.1:" + std::to_string(file.rank_0.port));
    job.key = secret;
    const auto refused = error_of([&] { socket_communicator{job, {.timeout = rank == 0 ? 1s : 240s}}; });
    CHECK(refused->id() == (rank == 0 ? error_id::usage_bad_option : error_id::peer_refused));
    CHECK((rank == 0 || (refused->fields().rank == 0 && says(*refused, "CAIRN_JOB_KEY"))));
  });

  auto e = error_of([&] { socket_communicator(socket_job::in_file(path, 1, 3)); });
  CHECK(e->id() == error_id::usage_bad_option);
  CHECK(says(*e, "another number of ranks"));

  // Of two that say that they are rank 1, one is.
  rank_in_thread one(socket_job::in_file(path, 1, 2));
  zero.get(), one.get();
  cairn::detail::write_job_file(path, file);
  e = error_of([&] { socket_communicator(socket_job::in_file(path, 1, 2)); });
  CHECK(e->id() == error_id::usage_bad_option);
  CHECK(says(*e, "come already"));

  one.get().send(0, bytes_of("here"), ample());
  CHECK(text_of(zero.get().receive(1, ample())) == "here");
}

TEST_CASE("a rank that never comes is named, on all that came") {
  const scratch_directory place;
  const auto path = place.path() + "/job";
  const auto thrown = thrown_on_ranks(3, [&](int n) {
    if (n == 2) return;
    socket_communicator(socket_job::in_file(path, n, 3), {.timeout = n == 0 ? 1500ms : 5000ms});
  });
  for (const int rank : {0, 1}) {
    const auto e = error_of([&] { std::rethrow_exception(thrown[static_cast<std::size_t>(rank)]); });
    CHECK(e->id() == error_id::timeout_peer);
    if (rank == 0) {
      CHECK(says(*e, "2"));
      CHECK(e->fields().rank > 0);
    }
  }
}

TEST_CASE("a rank that gives up a try before it has its answer comes again, seen to have gone or not") {
  namespace in = cairn::detail;
  for (const bool stays : {false, true}) {
    const auto key = cairn::link_key::random();
    const in::socket_world_options told{.job = "test", .rank = 0, .size = 2, .plain = true};
    in::link_address at_0, at_1;
    auto listening = in::listen_at("127.0.0.1", 0, 1, at_0);
    in::socket_world zero(told, key, std::move(listening), at_0);
    listening = in::listen_at("127.0.0.1", 0, 1, at_1);
    const auto hello =
        in::encode(in::socket_hello{.rank = 1, .size = 2, .job = "test", .host = "here", .from = at_1});
    const auto head =
        in::encode(in::socket_frame{.what = in::socket_frame::kind::hello, .bytes = hello.size()});
    std::optional<stranger> gives_up(std::in_place, at_0.port);
    gives_up->say(text_of({head.begin(), head.end()}) + text_of(hello));
    CHECK(gives_up->hears());
    if (!stays) gives_up.reset();
    auto as_rank_1 = told;
    as_rank_1.rank = 1;
    in::socket_world one(as_rank_1, key, std::move(listening), at_1);
    CHECK(in::come(one.service(), "127.0.0.1", at_0.port, 0, ample()).came);
    in::gather(zero.service(), ample());
    in::await_begin(one.service(), ample());
  }
}

TEST_CASE("a rank whose try by the file was admitted and got no answer comes with its next one") {
  const scratch_directory place;
  const auto path = place.path() + "/job", by_proxy = place.path() + "/proxy";
  const socket_options plain{.protection = cairn::socket_protection::plaintext};
  rank_in_thread zero(socket_job::in_file(path, 0, 2), plain);
  const auto file = await_file(path);
  std::vector<cairn::detail::file_descriptor> kept;
  std::atomic<bool> swallowed{false};
  const own_server proxy([&](cairn::detail::file_descriptor from) {
    auto to = stranger(file.rank_0.port).release();
    ::fcntl(from.get(), F_SETFL, O_NONBLOCK);
    for (;;) {
      pollfd both[] = {{from.get(), POLLIN, 0}, {to.get(), POLLIN, 0}};
      if (::poll(both, 2, 60'000) <= 0) return;
      if (both[1].revents != 0 && !swallowed) break;  // its answer, which is never handed on
      for (int side = 0; side < 2; ++side)
        if (both[side].revents != 0 && carry(both[side].fd, both[1 - side].fd) == 0) return;
    }
    kept.push_back(std::move(from));
    kept.push_back(std::move(to));
    swallowed = true;
  });
  auto quick = plain;
  quick.handshake_timeout = 300ms;
  rank_in_thread one(job_by_proxy(file, by_proxy, proxy.port()), quick);
  one.get().send(0, bytes_of("here"), ample());
  CHECK(text_of(zero.get().receive(1, ample())) == "here");
  CHECK(swallowed);
}

TEST_CASE("rank 0 waits for its port, which a process of the run before may have for a while") {
  cairn::detail::link_address at;
  auto before = cairn::detail::listen_at("127.0.0.1", 0, 1, at);
  auto job = job_at_ports(0, 2);
  job.port = at.port;
  job.ports = 1;
  rank_in_thread zero(job);
  // As long as where there are other ports.
  for (const auto until = deadline::in(2300ms); !until.passed() && !zero.ended;)
    static_cast<void>(cairn::detail::sleep_for(10ms, until));
  before.reset();
  if (zero.ended) zero.get();
  job.rank = 1;
  rank_in_thread one(job);
  one.get().send(0, bytes_of("here"), ample());
  CHECK(text_of(zero.get().receive(1, ample())) == "here");
}

TEST_CASE("what listens in rank 0's place and says nothing may be rank 0, which has no time yet") {
  std::vector<cairn::detail::file_descriptor> kept;
  const own_server silent(
      [&](cairn::detail::file_descriptor connected) { kept.push_back(std::move(connected)); });
  auto job = job_at_ports(1, 2);
  job.port = silent.port();
  job.ports = 1;
  const auto e = error_of([&] { socket_communicator(job, {.timeout = 2500ms, .handshake_timeout = 50ms}); });
  CHECK(e->id() == error_id::timeout_peer);
  CHECK(says(*e, "did not answer in time"));
}

TEST_CASE("where nothing answers the wish for a connection, others are begun beside it") {
  std::vector<cairn::detail::file_descriptor> kept;
  const full_port full(
      [&](cairn::detail::file_descriptor connected) { kept.push_back(std::move(connected)); });
  auto job = job_at_ports(1, 2);
  job.port = full.port();
  job.ports = 1;
  rank_in_thread one(job, {.timeout = 5s, .handshake_timeout = 4s});
  std::size_t most = 0;
  while (!one.ended && most < 4) {
    most = std::max(most, full.asking().size());
    static_cast<void>(cairn::detail::sleep_for(5ms, ample()));
  }
  CHECK(most == 4);
  CHECK_THROWS(one.get());
}

TEST_CASE("many processes meet, reduce and leave: rank 0 has a connection to each of them") {
  const int size = long_run() ? 128 : 24;
  const scratch_directory place;
  const auto path = place.path() + "/job";
  process_ranks ranks(size);
  await_still_threads();
  expect_good(ranks.run([&](rank_process& me) {
    cairn::collectives all{
        cairn::any_communicator(socket_communicator(socket_job::in_file(path, me.rank(), size)))};
    const auto concatenate = [](std::vector<std::byte> left, std::vector<std::byte> right) {
      left.insert(left.end(), right.begin(), right.end());
      return left;
    };
    const std::vector<std::byte> own{static_cast<std::byte>(me.rank())};
    const auto sum = all.tree_reduce_broadcast(own, concatenate, ample());
    expect(sum.size() == static_cast<std::size_t>(size), "a rank is missing");
    for (int rank = 0; rank < size; ++rank)
      expect(sum[static_cast<std::size_t>(rank)] == static_cast<std::byte>(rank), "the order is lost");
    all.barrier(ample());
    // Before any leaves, which would be news.
    me.word(0).fetch_add(1);
    me.await(0, static_cast<std::uint32_t>(size));
  }));
}

TEST_CASE("a connection that is cut in the middle of a message names the rank at its other end") {
  const scratch_directory place;
  const auto path = place.path() + "/job", by_proxy = place.path() + "/proxy";
  rank_in_thread zero(socket_job::in_file(path, 0, 2));
  const auto file = await_file(path);
  const auto port = file.rank_0.port;
  // Carries bytes both ways, and closes both ends once 4 MiB have gone to rank 0.
  const own_server proxy([port](cairn::detail::file_descriptor from) {
    const auto to = stranger(port).release();
    ::fcntl(from.get(), F_SETFL, O_NONBLOCK);
    for (std::size_t carried = 0; carried < (std::size_t{4} << 20);) {
      pollfd both[] = {{from.get(), POLLIN, 0}, {to.get(), POLLIN, 0}};
      if (::poll(both, 2, 60'000) <= 0) return;
      for (int side = 0; side < 2; ++side) {
        if (both[side].revents == 0) continue;
        const auto bytes = carry(both[side].fd, both[1 - side].fd);
        if (bytes == 0) return;
        if (side == 0) carried += bytes;
      }
    }
  });
  rank_in_thread one(job_by_proxy(file, by_proxy, proxy.port()));
  zero.get(), one.get();
  one.get().send(0, bytes_of("before"), ample());
  const auto sent = error_of([&] {
    const std::vector<std::byte> much(std::size_t{64} << 20);
    one.get().send(0, much, ample());
  });
  CHECK(sent->id() == error_id::peer_lost);
  CHECK(sent->fields().rank == 0);
  CHECK(text_of(zero.get().receive(1, ample())) == "before");
  const auto got = error_of([&] { static_cast<void>(zero.get().receive(1, ample())); });
  CHECK(got->id() == error_id::peer_lost);
  CHECK(got->fields().rank == 1);
  CHECK(says(*got, "closed its connection"));
  CHECK(zero.get().watch_peers()->is_gone(1));
}

TEST_CASE("a rank that has no descriptors says so, and declares nobody lost") {
  const scratch_directory place;
  std::vector<std::optional<socket_communicator>> ranks(3);
  check_none(thrown_on_ranks(3, [&](int rank) {
    ranks[static_cast<std::size_t>(rank)].emplace(socket_job::in_file(place.path() + "/job", rank, 3),
                                                  socket_options{.lost_after = 1s});
  }));
  {
    const no_more_files none;
    const auto e = error_of([&] { ranks[1]->send(2, bytes_of("early"), deadline::in(2s)); });
    CHECK(e->id() == error_id::storage_limit);
    CHECK(e->fields().rank == 1);
    CHECK(says(*e, "ulimit -n"));
  }
  CHECK(!ranks[1]->watch_peers()->is_gone(2));
  REQUIRE_NOTHROW(ranks[1]->send(2, bytes_of("late"), ample()));
  CHECK(text_of(ranks[2]->receive(1, ample())) == "late");
}

TEST_CASE("impossible jobs are refused") {
  const auto refused = [](const socket_job& job, const socket_options& options = {}) {
    const auto e = error_of([&] { socket_communicator(job, options); });
    return e->id() == error_id::usage_bad_option || e->id() == error_id::usage_bad_name;
  };
  ::unsetenv("CAIRN_JOB_KEY");
  auto job = job_at_ports(1, 2);
  CHECK(refused({.name = "a job"}));
  CHECK(refused({.name = "job", .rank = 2, .size = 2}));
  CHECK(refused({.name = "job", .rank = 0, .size = 2}));
  CHECK(refused(job, {.lost_after = 499ms}));
  CHECK(refused(job, {.stopped_after = 499ms}));
  job.key = "too short";
  CHECK(refused(job));
  job.key.clear();
  const auto e = error_of([&] { socket_communicator{job}; });
  CHECK(says(*e, "set CAIRN_JOB_KEY"));
  CHECK_THROWS_AS(static_cast<void>(socket_job::at("job", 0, 2, "node1")), cairn::usage_error);
  CHECK(socket_job::at("job", 0, 2, "[fd00::1]:99").host == "fd00::1");

  // A directory that others may read is no place for a key.
  const scratch_directory place;
  ::chmod(place.path().c_str(), 0755);
  CHECK(refused(socket_job::in_file(place.path() + "/job", 0, 2)));
}

TEST_CASE("what torchrun and srun say in the environment") {
  struct variable {
    variable(const char* called, const char* value) : name(called) { ::setenv(called, value, 1); }
    ~variable() { ::unsetenv(name); }
    const char* name;
  };
  CHECK_THROWS_AS(static_cast<void>(socket_job::torchrun()), cairn::usage_error);
  {
    const variable all[] = {{"RANK", "3"},
                            {"WORLD_SIZE", "8"},
                            {"MASTER_ADDR", "node1"},
                            {"MASTER_PORT", "29400"},
                            {"TORCHELASTIC_RUN_ID", "run-7"}};
    const auto job = socket_job::torchrun();
    CHECK(job.rank == 3);
    CHECK(job.size == 8);
    CHECK(job.host == "node1");
    CHECK(job.ports == 16);
    CHECK(job.port >= 20000);
    CHECK(job.port + job.ports <= 32000);
    CHECK(socket_job::torchrun("other").run == job.run);
    const variable later("TORCHELASTIC_RUN_ID", "run-8");
    CHECK(socket_job::torchrun().run != job.run);
  }
  CHECK_THROWS_AS(static_cast<void>(socket_job::slurm()), cairn::usage_error);
  const variable all[] = {{"SLURM_PROCID", "1"},
                          {"SLURM_NTASKS", "4"},
                          {"SLURM_JOB_ID", "99"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_JOB_NODELIST", "gpu[07-09,12],login1"}};
  CHECK(socket_job::slurm().host == "gpu07");
  CHECK(socket_job::slurm().size == 4);
  const variable step("SLURM_STEP_NODELIST", "rack1-[3]-ib,x");
  CHECK(socket_job::slurm().host == "rack1-3-ib");
  const variable alone("SLURM_STEP_NODELIST", "n1,n2");
  CHECK(socket_job::slurm().host == "n1");
}

TEST_CASE("a process that is killed is named on all others, with its host, and what it had sent comes") {
  const scratch_directory place;
  const auto path = place.path() + "/job";
  process_ranks ranks(4);
  ranks.kill_at(2, "in training");
  await_still_threads();
  const auto ends = ranks.run([&](rank_process& me) {
    socket_communicator comm(socket_job::in_file(path, me.rank(), 4));
    if (me.rank() == 2) comm.send(3, bytes_of("last words"), ample());
    me.point("in training");
    if (me.rank() == 3) expect(text_of(comm.receive(2, ample())) == "last words", "its message differs");
    // Each of them has a connection to it, or hears it from rank 0.
    const auto e = error_of([&] { static_cast<void>(comm.receive(2, ample())); });
    expect(e->id() == error_id::peer_lost && e->fields().rank == 2, std::string("not named: ") + e->what());
    expect(says(*e, "rank 2 on "), std::string("its host is not named: ") + e->what());
    expect(comm.watch_peers()->is_gone(2), "the watch does not know it");
    // Before any leaves, which would be news of another kind.
    me.word(0).fetch_add(1);
    me.await(0, 3);
  });
  for (const auto& each : ends) CHECK_MESSAGE((each.good() || each.killed()), each.text());
}

TEST_CASE("what a rank had sent comes, although nothing more can be written to it") {
  // Rank 0 has more for rank 1 than its socket takes. While rank 0 stands still, a last message of rank 1 arrives, and then a
  // reset: what rank 0 does first is to write, which fails.
  for (const bool in_send : {false, true}) {
    CAPTURE(in_send);
    const scratch_directory place;
    const auto path = place.path() + "/job", by_proxy = place.path() + "/proxy";
    process_ranks ranks(2);
    enum : std::size_t { process_of_0, step };
    await_still_threads();
    const auto rank_0 = [&](rank_process& me) {
      socket_communicator comm(socket_job::in_file(path, 0, 2), {.lost_after = 1h});
      me.word(process_of_0) = static_cast<std::uint32_t>(::getpid());
      me.await(step, 1);
      const std::vector<std::byte> much(std::size_t{64} << 20);
      const auto sends = [&](deadline until) { return error_of([&] { comm.send(1, much, until); })->id(); };
      if (!in_send) expect(sends(deadline::in(100ms)) == error_id::timeout_peer, "the send ends otherwise");
      me.word(step) = 2;
      if (in_send) expect(sends(ample()) == error_id::peer_lost, "the send ends otherwise");
      expect(text_of(comm.receive(1, ample())) == "last words", "another message");
      const auto e = error_of([&] { static_cast<void>(comm.receive(1, ample())); });
      expect(e->id() == error_id::peer_lost && e->fields().rank == 1, std::string("not named: ") + e->what());
    };
    const auto rank_1 = [&](rank_process& me) {
      const auto file = await_file(path);
      std::atomic<bool> one_way{false}, full{false}, closed{false};
      const auto wait_for = [](const std::atomic<bool>& flag) {
        for (const auto until = ample(); !flag;)
          if (!cairn::detail::sleep_for(1ms, until)) throw std::runtime_error("the proxy does not go on");
      };
      const own_server proxy([&](cairn::detail::file_descriptor from) {
        auto to = stranger(file.rank_0.port).release();
        ::fcntl(from.get(), F_SETFL, O_NONBLOCK);
        for (bool last = false; !last;) {
          pollfd both[] = {{from.get(), POLLIN, 0}, {to.get(), static_cast<short>(full ? 0 : POLLIN), 0}};
          if (::poll(both, 2, 10) < 0) break;
          if (both[1].revents != 0 && one_way) full = true;
          if (both[0].revents != 0) last = carry(from.get(), to.get()) == 0 || full;
          if (both[1].revents != 0 && !full) last = carry(to.get(), from.get()) == 0 || last;
        }
        to = cairn::detail::file_descriptor();  // a reset, as something was not read
        closed = true;
      });
      socket_communicator comm(job_by_proxy(file, by_proxy, proxy.port()), {.lost_after = 1h});
      one_way = true;
      me.word(step) = 1;
      me.await(step, 2);
      wait_for(full);
      const stopped_process rank_0_stands_still(static_cast<::pid_t>(me.word(process_of_0)));
      comm.send(0, bytes_of("last words"), ample());
      wait_for(closed);
    };
    const auto ends = ranks.run([&](rank_process& me) { me.rank() == 0 ? rank_0(me) : rank_1(me); });
    for (const auto& each : ends) CHECK_MESSAGE(each.good(), each.text());
  }
}

TEST_CASE("what a network loses is sent again several times before a rank passes for lost") {
  // In microseconds, of each connected TCP socket of this process; nothing where the system does not tell.
  const auto first_pauses = [] {
    std::vector<int> found;
    for (int number = 0; number < 4096; ++number) {
      sockaddr_storage is{};
      socklen_t size = sizeof is, bytes = sizeof(int);
      int pause = 0;
      if (::getpeername(number, reinterpret_cast<sockaddr*>(&is), &size) == 0 &&
          ::getsockopt(number, IPPROTO_TCP, 45 /* TCP_RTO_MIN_US */, &pause, &bytes) == 0)
        found.push_back(pause);
    }
    return found;
  };
  const auto of_ranks_with = [&](const socket_options& options) {
    const scratch_directory place;
    rank_in_thread zero(socket_job::in_file(place.path() + "/job", 0, 2), options);
    rank_in_thread one(socket_job::in_file(place.path() + "/job", 1, 2), options);
    zero.get(), one.get();
    return first_pauses();
  };
  const auto usual = of_ranks_with({});
  if (usual.empty()) {
    MESSAGE("skipped: this kernel has no such option; Linux 6.15 has it");
    return;
  }
  for (const auto& options : {socket_options{.lost_after = 1s}, socket_options{.stopped_after = 1s}}) {
    const auto quick = of_ranks_with(options);
    REQUIRE(quick.size() == usual.size());
    for (const int each : quick) CHECK((each > 0 && each <= 60'000));
  }
  for (const int each : usual) CHECK((each > 0 && each <= 60'000));
  CHECK(of_ranks_with({.lost_after = 5s, .stopped_after = 5s}) == usual);
  for (const int each : of_ranks_with({.stopped_after = 500ms})) CHECK((each > 0 && each <= 30'000));
}

TEST_CASE("a process that is stopped, and says nothing for as long as it may, is lost on all others") {
  const scratch_directory place;
  const auto path = place.path() + "/job";
  for (const int stopped : {0, 2}) {
    process_ranks ranks(3);
    ranks.hang_at(stopped, "stopped");
    await_still_threads();
    const auto ends = ranks.run([&](rank_process& me) {
      socket_communicator comm(socket_job::in_file(path, me.rank(), 3),
                               {.lost_after = 1h, .stopped_after = 2s});
      me.point("stopped");
      // One waits for it, another one has more for it than sockets hold.
      const auto e = error_of([&] {
        if (me.rank() == 1) comm.send(stopped, std::vector<std::byte>(std::size_t{64} << 20), ample());
        static_cast<void>(comm.receive(stopped, ample()));
      });
      expect(e->id() == error_id::peer_lost && e->fields().rank == stopped,
             std::string("not named: ") + e->what());
      me.word(0).fetch_add(1);
      me.await(0, 2);
    });
    for (int rank = 0; rank < 3; ++rank)
      CHECK_MESSAGE((rank == stopped ? ends[static_cast<std::size_t>(rank)].hung
                                     : ends[static_cast<std::size_t>(rank)].good()),
                    ends[static_cast<std::size_t>(rank)].text());
  }
}

TEST_CASE(
    "a connection to a process that is stopped ends with it: nobody waits for more of what it had sent") {
  const scratch_directory place;
  const auto path = place.path() + "/job";
  process_ranks ranks(3);
  ranks.hang_at(2, "stopped");
  enum : std::size_t { received, over };
  await_still_threads();
  const auto ends = ranks.run([&](rank_process& me) {
    socket_communicator comm(socket_job::in_file(path, me.rank(), 3),
                             {.lost_after = 1h, .stopped_after = 2s});
    if (me.rank() == 2) comm.send(1, bytes_of("before"), ample());
    if (me.rank() == 1) {
      expect(text_of(comm.receive(2, ample())) == "before", "its message differs");
      const auto open = open_files();
      me.word(received) = 1;
      const auto e = error_of([&] { static_cast<void>(comm.receive(2, ample())); });
      expect(e->id() == error_id::peer_lost && e->fields().rank == 2, std::string("not named: ") + e->what());
      for (const auto until = deadline::in(2min); open_files() >= open;)
        expect(cairn::detail::sleep_for(1ms, until), "the connection to it stays open");
      me.word(over) = 1;
    }
    me.await(me.rank() == 2 ? received : over, 1);
    me.point("stopped");
  });
  CHECK_MESSAGE((ends[0].good() && ends[1].good() && ends[2].hung), ends[1].text());
}

TEST_CASE(
    "two processes that are stopped, of which one is rank 0, are lost: nobody has to tell of the other") {
  // As a host does that stands still: its system answers, and takes connections.
  enum class does { receive, receive_over_a_connection, send };
  for (const auto what : {does::receive, does::receive_over_a_connection, does::send}) {
    CAPTURE(static_cast<int>(what));
    const scratch_directory place;
    const auto path = place.path() + "/job";
    process_ranks ranks(3);
    ranks.hang_at(0, "stopped").hang_at(1, "stopped");
    await_still_threads();
    const auto ends = ranks.run([&](rank_process& me) {
      socket_communicator comm(socket_job::in_file(path, me.rank(), 3),
                               {.lost_after = 1h, .stopped_after = 2s});
      if (what == does::receive_over_a_connection) {
        if (me.rank() == 1) comm.send(2, bytes_of("before"), ample());
        if (me.rank() == 2) expect(text_of(comm.receive(1, ample())) == "before", "its message differs");
      }
      me.word(0).fetch_add(1);
      me.await(0, 3);
      me.point("stopped");
      if (what == does::send)
        static_cast<void>(error_of([&] { static_cast<void>(comm.receive(0, ample())); }));
      const auto e = error_of([&] {
        if (what == does::send) comm.send(1, bytes_of("late"), ample());
        static_cast<void>(comm.receive(1, ample()));
      });
      expect(e->id() == error_id::peer_lost && e->fields().rank == 1, std::string("not named: ") + e->what());
      if (what != does::receive_over_a_connection)
        expect(says(*e, "its process is stopped"), std::string("not said what it does: ") + e->what());
    });
    CHECK_MESSAGE((ends[0].hung && ends[1].hung && ends[2].good()), ends[2].text());
  }
}

TEST_CASE(
    "a process that is stopped is named at the deadline, and one that forked leaves no child behind as a "
    "rank") {
  const scratch_directory place;
  const auto path = place.path() + "/job";
  process_ranks ranks(3);
  ranks.hang_at(2, "stopped");
  await_still_threads();
  const auto ends = ranks.run([&](rank_process& me) {
    socket_communicator comm(socket_job::in_file(path, me.rank(), 3), {.lost_after = 6s});
    if (me.rank() == 1) {
      await_still_threads();
      const auto child = ::fork();
      if (child == 0) {
        const auto e = error_of([&] { comm.send(0, {}, ample()); });
        ::_exit(e->id() == error_id::usage_wrong_process ? 0 : 1);
      }
      int status = -1;
      expect(::waitpid(child, &status, 0) == child && status == 0, "a child of fork() is a rank");
    }
    me.point("stopped");
    cairn::collectives all{cairn::any_communicator(std::move(comm))};
    const auto e = error_of([&] { all.barrier(me.rank() == 0 ? deadline::in(8s) : ample()); });
    expect(e->id() == error_id::timeout_peer && e->fields().rank == 2,
           std::string("not named: ") + e->what());
    expect(e->fields().got.starts_with("rank 2 on ") &&
               e->fields().got.find("its host answers, but its process has said nothing for ") !=
                   std::string::npos,
           std::string("not said what it does: ") + e->what());
    me.word(0).fetch_add(1);
    me.await(0, 2);
  });
  CHECK(ends[0].good());
  CHECK(ends[1].good());
  CHECK(ends[2].hung);
}
