// SPDX-License-Identifier: Apache-2.0
// threaded
// cost: 30
// links: cairn::links
// needs: helper_link_peer
//
// Links over TLS: what the suite of PeerLink asks, and what strangers, broken networks and lost processes do to them.
#include <doctest/doctest.h>

#include <cairn/comm/collectives.hpp>
#include <cairn/concepts/any_peer_link.hpp>
#include <cairn/links/link_frame.hpp>
#include <cairn/links/secure_socket.hpp>
#include <cairn/links/tls_link.hpp>
#include <cairn/system/file_descriptor.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/unforked_file.hpp>
#include <paths.hpp>
#include <support/certificates.hpp>
#include <support/link_peers.hpp>
#include <support/no_more_files.hpp>
#include <support/peer_link_conformance.hpp>
#include <support/thread_ranks.hpp>

#include <openssl/bio.h>
#include <openssl/ssl.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

using namespace cairn_test;
using namespace std::chrono_literals;
using cairn::deadline;
using cairn::error_id;
using cairn::detail::file_descriptor;
using cairn::detail::link_answer;
using cairn::detail::link_request;
using cairn::detail::secure_socket;
using moved = cairn::detail::socket_progress::state;

namespace {

struct encrypted_env : tls_job {
  encrypted_env() : tls_job(3) {}
};
struct authenticated_env : tls_job {
  authenticated_env() : tls_job(3, {.address = "127.0.0.1", .bulk = cairn::bulk_protection::authenticated}) {}
};
/// At all addresses of this host, with one connection and one thread.
struct narrow_env : tls_job {
  narrow_env() : tls_job(3, {.connections = 1, .threads = 1}) {}
};
struct erased_env {
  erased_env() {
    for (int rank = 0; rank < 3; ++rank) links.emplace_back(cairn::any_peer_link(std::move(job.at(rank))));
    job.links.clear();
  }
  cairn::any_peer_link& at(int rank) { return *links[static_cast<std::size_t>(rank)]; }
  void lose(int rank) { links[static_cast<std::size_t>(rank)].reset(); }
  tls_job job{3};
  std::vector<std::optional<cairn::any_peer_link>> links;
};

/// Waits for an event; a machine that is busy may take its time.
template <class Done>
void await(Done done) {
  const auto until = ample_time();
  while (!done()) {
    REQUIRE_FALSE(until.passed());
    std::this_thread::sleep_for(1ms);
  }
}

/// The bytes that a TLS client without the key begins with.
std::string client_hello() {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), SSL_free);
  BIO* const in = BIO_new(BIO_s_mem());
  BIO* const out = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl.get(), in, out);
  SSL_set_connect_state(ssl.get());
  static_cast<void>(SSL_do_handshake(ssl.get()));
  char bytes[4096];
  const int size = BIO_read(out, bytes, sizeof bytes);
  REQUIRE(size > 100);
  return {bytes, static_cast<std::size_t>(size)};
}

/// A peer by hand, which has the key.
struct hand_made_peer {
  hand_made_peer(const cairn::link_key& key, file_descriptor connected, secure_socket::side side)
      : context(key),
        socket(context,
               cairn::detail::make_owned<cairn::detail::unforked_file>(std::move(connected),
                                                                       cairn::detail::fork_pause()),
               side) {
    handshake = until_it_moves([&] { return socket.handshake(); });
  }
  template <class Call>
  bool until_it_moves(Call call) {
    for (;;) {
      const auto progress = call();
      if (progress.what == moved::moved) return true;
      if (progress.what == moved::ended) return false;
      const short events = progress.what == moved::wants_read ? POLLIN : POLLOUT;
      if (!cairn::detail::poll_one(socket.number(), events, ample_time()))
        throw std::runtime_error("nothing moves");
    }
  }
  bool write(std::span<const std::byte> bytes) {
    return until_it_moves([&] { return socket.write(bytes); });
  }
  bool read(std::span<std::byte> into) {
    while (!into.empty())
      if (!until_it_moves([&] {
            const auto progress = socket.read(into);
            into = into.subspan(progress.bytes);
            return progress;
          }))
        return false;
    return true;
  }
  std::optional<link_answer> answer() {
    cairn::detail::answer_frame frame;
    if (!read(frame)) return std::nullopt;
    return cairn::detail::decode_answer(frame);
  }
  cairn::detail::tls_context context;
  secure_socket socket;
  bool handshake = false;
};

/// The address of a rank, with another port on this host.
std::vector<std::byte> behind(const std::vector<std::byte>& address, std::uint16_t port) {
  auto made = cairn::detail::decode_address(address).value();
  made.port = port;
  made.hosts = {"127.0.0.1"};
  return encode(made);
}
/// A link of rank 0 of two, whose way to rank 1 leads to this port.
cairn::tls_link link_to(std::uint16_t port, const cairn::link_key& key, const std::vector<std::byte>& peer,
                        cairn::tls_link_options options = {.address = "127.0.0.1"}) {
  cairn::tls_link_port own(std::move(options));
  const std::vector<std::vector<std::byte>> addresses{own.address(), behind(peer, port)};
  return {std::move(own), key, 0, addresses};
}
/// Another server at the same port of another address of this host, 127.0.0.2; null where somebody has it.
template <class Serve>
std::unique_ptr<own_server> beside(std::uint16_t port, Serve serve) {
  auto at = loopback(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  try {
    return std::make_unique<own_server>(serve, at);
  } catch (const std::runtime_error& e) {
    MESSAGE("skipped: " << e.what());
    return nullptr;
  }
}
/// A link of rank 0 of two, whose way to rank 1 leads to this port of 127.0.0.2 first and of 127.0.0.1 then.
cairn::tls_link link_by_two(std::uint16_t port, const cairn::link_key& key,
                            const std::vector<std::byte>& peer) {
  auto to = cairn::detail::decode_address(peer).value();
  to.port = port;
  to.hosts = {"127.0.0.2", "127.0.0.1"};
  cairn::tls_link_port own({.address = "127.0.0.1", .handshake_timeout = 240s});
  const std::vector<std::vector<std::byte>> addresses{own.address(), encode(to)};
  return {std::move(own), key, 0, addresses};
}

const cairn::offer_key image_key{"image", 1};

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(peer_link_conformance, encrypted_env, authenticated_env, narrow_env, erased_env);

// --- Making links --------------------------------------------------------------------------------------------------

TEST_CASE("the ranks of a job connect over its communicator") {
  thread_ranks<> world(3);
  const auto images = std::vector{numbered_bytes(1000, 0), numbered_bytes(1000, 1), numbered_bytes(1000, 2)};
  SUBCASE("and read from each other") {
    std::atomic<int> good{0};
    const auto thrown = world.run([&](cairn::collectives& job) {
      auto link = cairn::tls_link::connect(job, {.address = "127.0.0.1"}, ample_time());
      const auto rank = job.rank();
      offer_one(link, image_key, images[static_cast<std::size_t>(rank)]);
      const int next = (rank + 1) % 3;
      link.await_offer(next, image_key, ample_time());
      good += link.rank() == rank && link.size() == 3 &&
              fetch_one(link, next, image_key, 0, 1000) == images[static_cast<std::size_t>(next)];
      job.barrier(ample_time());
    });
    for (const auto& each : thrown) CHECK(each == nullptr);
    CHECK(good == 3);
  }
  SUBCASE("or none does") {
    const auto thrown = world.run([&](cairn::collectives& job) {
      static_cast<void>(cairn::tls_link::connect(
          job, {.address = job.rank() == 1 ? "no address" : "127.0.0.1"}, ample_time()));
    });
    for (const auto& each : thrown) {
      const auto e = ends([&] {
        if (each != nullptr) std::rethrow_exception(each);
      });
      CHECK(e.id == error_id::usage_bad_option);
      CHECK(e.rank == 1);
    }
  }
}

TEST_CASE("options of a link that make no sense are refused") {
  for (const auto& bad : std::vector<cairn::tls_link_options>{{.address = "localhost"},
                                                              {.ports = 0},
                                                              {.connections = 0},
                                                              {.connections = 65},
                                                              {.threads = 0},
                                                              {.lost_after = 1s},
                                                              {.handshake_timeout = 0s},
                                                              {.max_connections = 0},
                                                              {.max_strangers = 0}})
    CHECK(ends([&] { cairn::tls_link_port{bad}; }).id == error_id::usage_bad_option);
  // An address of the documentation (RFC 5737), which no host has.
  CHECK(ends([] { cairn::tls_link_port{{.address = "192.0.2.1"}}; }).id == error_id::usage_bad_option);

  const cairn::tls_link_port first({.address = "127.0.0.1"});
  const auto taken =
      ends([&] { cairn::tls_link_port{{.address = "127.0.0.1", .first_port = first.port()}}; });
  CHECK(taken.id == error_id::usage_bad_option);

  const auto key = cairn::link_key::random();
  const auto make = [&](int rank, const std::vector<std::vector<std::byte>>& addresses) {
    return ends(
               [&] { cairn::tls_link(cairn::tls_link_port({.address = "127.0.0.1"}), key, rank, addresses); })
        .id;
  };
  CHECK(make(0, {}) == error_id::usage_bad_option);
  CHECK(make(0, {{std::byte{1}}}) == error_id::usage_bad_option);
  CHECK(make(0, {first.address()}) == error_id::usage_bad_option);  // that of another link
}

TEST_CASE("a link takes a free port of its range") {
  // Ports may be taken by others at any time: a range in which two are free is looked for.
  for (std::uint16_t from = 20011; from < 32000; from = static_cast<std::uint16_t>(from + 97)) {
    std::optional<cairn::tls_link_port> first, second;
    const cairn::tls_link_options options{.address = "127.0.0.1", .first_port = from, .ports = 20};
    try {
      first.emplace(options);
      second.emplace(options);
    } catch (const cairn::usage_error&) {
      continue;
    }
    CHECK(first->port() != second->port());
    CHECK((first->port() >= from && first->port() < from + 20));
    CHECK((second->port() >= from && second->port() < from + 20));
    return;
  }
  FAIL("no range of 20 ports has two that are free");
}

TEST_CASE("links over IPv6") {
  std::optional<tls_job> job;
  try {
    job.emplace(2, cairn::tls_link_options{.address = "::1"});
  } catch (const cairn::error& e) {
    MESSAGE("skipped: this machine has no IPv6 (" << e.what() << ")");
    return;
  }
  const auto image = numbered_bytes(100'000, 1);
  offer_one(job->at(1), image_key, image);
  CHECK(fetch_one(job->at(0), 1, image_key, 0, image.size()) == image);
}

TEST_CASE("another link that listens at an address of a peer is none") {
  tls_job job(2);
  const auto key = job.key;
  // That of rank 2 on another host, as each host has 172.17.0.1.
  const auto serve = [&key](file_descriptor connected) {
    ::fcntl(connected.get(), F_SETFL, O_NONBLOCK);
    hand_made_peer server(key, std::move(connected), secure_socket::side::server);
    std::array<std::byte, cairn::detail::request_head_bytes> hello;
    if (server.handshake && server.read(hello))
      server.write(encode(link_answer{.what = link_answer::status::other_link}));
    std::byte end;
    static_cast<void>(server.read({&end, 1}));
  };
  SUBCASE("where it is the only one") {
    const own_server other(serve);
    auto link = link_to(other.port(), key, job.addresses[1]);
    const auto e = ends([&] { link.fetch(1, image_key, {}, ample_time()); });
    CHECK_MESSAGE(e.id == error_id::peer_lost, e.text);
    CHECK(e.rank == 1);
  }
  SUBCASE("and the next address is taken, by several connections at once as well") {
    const auto other = beside(job.ports[1], serve);
    if (other == nullptr) return;
    const auto image = numbered_bytes(std::size_t{20} << 20, 1);
    offer_one(job.at(1), image_key, image);
    for (const std::size_t bytes : {std::size_t{1000}, image.size()}) {
      auto link = link_by_two(job.ports[1], key, job.addresses[1]);
      const std::vector<std::byte> wanted(image.begin(), image.begin() + static_cast<std::ptrdiff_t>(bytes));
      CHECK(fetch_one(link, 1, image_key, 0, bytes) == wanted);
    }
  }
}

TEST_CASE("a peer that ended is lost, though another program refuses at one of its addresses") {
  // Nobody listens at the port, and nobody else gets it.
  const file_descriptor bound(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto at = loopback(0);
  socklen_t size = sizeof at;
  REQUIRE(::bind(bound.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
  REQUIRE(::getsockname(bound.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
  const auto port = ntohs(at.sin_port);
  const auto other = beside(port, [](file_descriptor connected) {
    static_cast<void>(!::send(connected.get(), "220 mail ready\r\n", 16, MSG_NOSIGNAL));
  });
  if (other == nullptr) return;
  const tls_job job(2);
  auto link = link_by_two(port, job.key, job.addresses[1]);
  const auto e = ends([&] { link.fetch(1, image_key, {}, ample_time()); });
  CHECK_MESSAGE(e.id == error_id::peer_lost, e.text);
  CHECK(link.is_gone(1));
}

TEST_CASE("bytes outside of TLS that nobody asked for are refused") {
  tls_job job(2);
  const own_server other([&](file_descriptor connected) {
    ::fcntl(connected.get(), F_SETFL, O_NONBLOCK);
    hand_made_peer server(job.key, std::move(connected), secure_socket::side::server);
    std::array<std::byte, cairn::detail::request_head_bytes> head;
    if (!server.handshake || !server.read(head) || !server.write(encode(link_answer{})) || !server.read(head))
      return;
    server.write(encode(link_answer{.plain_bulk = true, .bytes = 10}));
    std::byte more;
    while (server.read({&more, 1})) {
    }
  });
  auto link = link_to(other.port(), job.key, job.addresses[1]);
  const auto e = ends([&] { static_cast<void>(fetch_one(link, 1, image_key, 0, 10)); });
  CHECK_MESSAGE(e.id == error_id::peer_bad_message, e.text);
  CHECK(e.rank == 1);
}

// --- Strangers -----------------------------------------------------------------------------------------------------

TEST_CASE("a stranger gets nothing, learns nothing, is counted and dropped") {
  tls_job job(2, {.address = "127.0.0.1", .handshake_timeout = 1s});
  const auto image = numbered_bytes(100'000, 1);
  offer_one(job.at(1), image_key, image);
  const auto hello = client_hello();
  const std::vector<std::pair<const char*, std::string>> said{
      {"cleartext", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"},
      {"a request of a link, in the clear", std::string(cairn::detail::request_head_bytes, 'C')},
      {"zeros", std::string(20'000, '\0')},
      {"TLS without the key", hello},
      {"the half of a hello, then silence", hello.substr(0, hello.size() / 2)},
      {"one byte, then silence", hello.substr(0, 1)},
      {"a record that says it is long", std::string("\x16\x03\x01\x40\x00", 5)},
      {"silence", ""}};
  std::vector<stranger> strangers;
  for (const auto& each : said) {
    strangers.emplace_back(job.ports[1]);
    strangers.back().say(each.second);
  }
  for (std::size_t i = 0; i < said.size(); ++i) {
    CAPTURE(said[i].first);
    CHECK(strangers[i].hear_all().empty());
  }
  await([&] { return job.at(1).counts().strangers == said.size(); });
  CHECK(job.at(1).counts().accepted == 0);
  auto peer =
      link_to(job.ports[1], job.key, job.addresses[1], {.address = "127.0.0.1", .handshake_timeout = 240s});
  CHECK(fetch_one(peer, 1, image_key, 0, image.size()) == image);
  await([&] { return job.at(1).counts().accepted > 0; });
}

TEST_CASE("a flood of strangers leaves room for peers") {
  tls_job job(2, {.address = "127.0.0.1", .handshake_timeout = 240s, .max_strangers = 4});
  const auto image = numbered_bytes(100'000, 1);
  offer_one(job.at(1), image_key, image);
  std::vector<stranger> flood;
  for (int i = 0; i < 60; ++i) flood.emplace_back(job.ports[1]);
  // All but the four that came last are closed, long before their time is over.
  await([&] { return job.at(1).counts().strangers == 56; });
  CHECK(fetch_one(job.at(0), 1, image_key, 0, image.size()) == image);
}

TEST_CASE("peers that have another key refuse each other") {
  tls_job job(2);
  offer_one(job.at(1), image_key, {});
  auto other = link_to(job.ports[1], cairn::link_key::random(), job.addresses[1]);
  const auto e = ends([&] { other.fetch(1, image_key, {}, ample_time()); });
  CHECK_MESSAGE(e.id == error_id::peer_refused, e.text);
  CHECK(e.rank == 1);
  CHECK(job.at(1).counts().accepted == 0);
  CHECK(job.at(1).counts().strangers > 0);
  CHECK_FALSE(other.is_gone(1));
}

TEST_CASE("a server that does not use the key is refused, whatever certificate it has") {
  const auto authority = make_identity("127.0.0.1");
  std::atomic<int> asked{0};
  const own_server impostor([&](file_descriptor connected) {
    const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_server_method()),
                                                                    SSL_CTX_free);
    SSL_CTX_use_certificate(context.get(), authority.certificate.get());
    SSL_CTX_use_PrivateKey(context.get(), authority.key.get());
    const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), SSL_free);
    SSL_set_fd(ssl.get(), connected.get());
    ++asked;
    // No byte of the client comes after its hello.
    char byte;
    if (SSL_accept(ssl.get()) == 1) CHECK(SSL_read(ssl.get(), &byte, 1) <= 0);
  });
  tls_job job(2);
  auto link = link_to(impostor.port(), job.key, job.addresses[1]);
  const auto e = ends([&] { link.fetch(1, image_key, {}, ample_time()); });
  CHECK_MESSAGE(e.id == error_id::peer_refused, e.text);
  CHECK(asked > 0);
}

TEST_CASE("whoever listens in the peer's place and says nothing of TLS holds up nobody for long") {
  std::vector<file_descriptor> kept;
  std::mutex mutex;
  const own_server silent([&](file_descriptor connected) {
    const std::lock_guard lock(mutex);
    kept.push_back(std::move(connected));
  });
  tls_job job(2);
  auto link = link_to(silent.port(), job.key, job.addresses[1],
                      {.address = "127.0.0.1", .lost_after = 3s, .handshake_timeout = 50ms});
  const auto e = ends([&] { link.fetch(1, image_key, {}, ample_time()); });
  CHECK_MESSAGE(e.id == error_id::peer_lost, e.text);
  const auto late = ends([&] { link.fetch(1, image_key, {}, deadline::in(20ms)); });
  CHECK_MESSAGE(late.id == error_id::timeout_peer, late.text);
  const own_server clear([](file_descriptor connected) {
    static_cast<void>(!::send(connected.get(), "220 mail ready\r\n", 16, MSG_NOSIGNAL));
  });
  auto other = link_to(clear.port(), job.key, job.addresses[1]);
  CHECK(ends([&] { other.fetch(1, image_key, {}, ample_time()); }).id == error_id::peer_refused);
}

// --- Peers that have the key and do not behave ---------------------------------------------------------------------

TEST_CASE("a peer that sends what is no request is closed, and the others go on") {
  tls_job job(2);
  const auto image = numbered_bytes(100'000, 1);
  offer_one(job.at(1), image_key, image);
  const auto mine = cairn::detail::decode_address(job.addresses[1])->link;
  const auto request =
      encode(link_request{.what = link_request::kind::fetch, .link = mine, .length = 10, .key = image_key});
  std::vector<std::vector<std::byte>> wrong(5, request);
  wrong[0][0] ^= std::byte{1};  // the mark
  wrong[1][4] = std::byte{9};   // what it asks
  wrong[2][6] = std::byte{0};   // a fetch without a name
  wrong[3][7] = std::byte{1};   // what is always zero
  wrong[4] = std::vector<std::byte>(100'000, std::byte{0xff});
  std::uint64_t refused = 0;
  for (const auto& each : wrong) {
    hand_made_peer peer(job.key, stranger(job.ports[1]).release(), secure_socket::side::client);
    REQUIRE(peer.handshake);
    static_cast<void>(peer.write(each));
    std::byte byte;
    CHECK_FALSE(peer.read({&byte, 1}));
    ++refused;
    await([&] { return job.at(1).counts().refused == refused; });
  }
  // A good request over a connection of the same kind is answered.
  hand_made_peer peer(job.key, stranger(job.ports[1]).release(), secure_socket::side::client);
  REQUIRE(peer.write(request));
  const auto answer = peer.answer();
  REQUIRE(answer);
  CHECK(answer->what == link_answer::status::ok);
  CHECK(answer->bytes == image.size());
  std::vector<std::byte> got(11);
  REQUIRE(peer.read(got));
  CHECK(std::memcmp(got.data(), image.data(), 10) == 0);
  CHECK(job.at(1).counts().strangers == 0);
}

TEST_CASE("more connections of peers than max_connections are refused, until there is room") {
  tls_job job(2, {.address = "127.0.0.1", .max_connections = 2});
  offer_one(job.at(1), image_key, {});
  {
    std::vector<std::unique_ptr<hand_made_peer>> peers;
    for (int i = 0; i < 2; ++i) {
      peers.push_back(std::make_unique<hand_made_peer>(job.key, stranger(job.ports[1]).release(),
                                                       secure_socket::side::client));
      REQUIRE(peers.back()->handshake);
    }
    await([&] { return job.at(1).counts().accepted == 2; });
    const auto e = ends([&] { job.at(0).fetch(1, image_key, {}, ample_time()); });
    CHECK_MESSAGE(e.id == error_id::peer_refused, e.text);
    CHECK(job.at(1).counts().refused > 0);
    CHECK(job.at(1).counts().accepted == 2);
  }
  await([&] { return !ends([&] { job.at(0).fetch(1, image_key, {}, ample_time()); }).id; });
}

TEST_CASE("a peer that asks and does not read holds up neither a withdrawal nor others, and is dropped") {
  tls_job job(2, {.address = "127.0.0.1", .threads = 1, .lost_after = 3s});
  auto image = numbered_bytes(std::size_t{32} << 20, 1);
  offer_one(job.at(1), image_key, image);
  offer_one(job.at(1), {"other", 1}, image);
  const auto mine = cairn::detail::decode_address(job.addresses[1])->link;
  std::vector<std::unique_ptr<hand_made_peer>> stalled;
  for (int i = 0; i < 3; ++i) {
    stalled.push_back(std::make_unique<hand_made_peer>(job.key, stranger(job.ports[1]).release(),
                                                       secure_socket::side::client));
    REQUIRE(stalled.back()->write(encode(link_request{
        .what = link_request::kind::fetch, .link = mine, .length = image.size(), .key = image_key})));
    REQUIRE(stalled.back()->answer());  // the bytes are on their way, and fill the sockets
  }
  CHECK(fetch_one(job.at(0), 1, {"other", 1}, 5, 1000) ==
        std::vector(image.begin() + 5, image.begin() + 1005));
  job.at(1).withdraw(image_key, no_time());
  job.at(1).withdraw({"other", 1}, ample_time());
  std::fill(image.begin(), image.end(), std::byte{0});  // its memory is free
  await([&] { return job.at(1).counts().refused == 3; });
}

TEST_CASE("several connections share a large fetch, and one serves small ones") {
  for (const auto bulk : {cairn::bulk_protection::encrypted, cairn::bulk_protection::authenticated}) {
    tls_job job(2, {.address = "127.0.0.1", .bulk = bulk});
    const auto image = numbered_bytes((std::size_t{30} << 20) + 12345, 1);
    offer_one(job.at(1), image_key, image);
    for (int i = 0; i < 3; ++i) CHECK(fetch_one(job.at(0), 1, image_key, 77, 1000).size() == 1000);
    await([&] { return job.at(1).counts().accepted == 1; });
    CHECK(std::memcmp(fetch_one(job.at(0), 1, image_key, 1, image.size() - 1).data(), image.data() + 1,
                      image.size() - 1) == 0);
    CHECK(job.at(1).counts().accepted <= 4);
    CHECK(job.at(1).counts().bytes == 3000 + image.size() - 1);
  }
}

TEST_CASE("many waits for offers take no thread each") {
  tls_job job(2, {.address = "127.0.0.1", .threads = 1});
  std::atomic<int> there{0};
  std::vector<std::thread> waiting;
  for (std::uint64_t i = 0; i < 20; ++i)
    waiting.emplace_back([&, i] {
      const auto e = ends([&] { there += job.at(0).await_offer(1, {"image", i}, ample_time()) == i; });
      CHECK_MESSAGE(!e.id, e.text);
    });
  const auto bytes = numbered_bytes(20, 1);
  for (std::uint64_t i = 0; i < 20; ++i)
    offer_one(job.at(1), {"image", 19 - i}, std::span(bytes).first(19 - static_cast<std::size_t>(i)));
  for (auto& each : waiting) each.join();
  CHECK(there == 20);
}

// --- Networks and processes that fail ------------------------------------------------------------------------------

namespace {

/// A proxy between a link and its peer. Cuts the connection, or changes a byte, after so many bytes of the peer; once. Before
/// it hands on what the peer says first, it calls a function; once.
struct bad_network {
  bad_network(std::uint16_t to, std::size_t after, bool cut, std::function<void()> first_answer = {})
      : before_answer(std::move(first_answer)), server([this, to, after, cut](file_descriptor connected) {
          ++connections;
          relay(std::move(connected), stranger(to).release(), after, cut);
        }) {}
  void relay(file_descriptor client, file_descriptor peer, std::size_t after, bool cut) {
    std::size_t passed = 0;
    std::vector<char> some(64 * 1024);
    for (;;) {
      pollfd both[] = {{client.get(), POLLIN, 0}, {peer.get(), POLLIN, 0}};
      if (::poll(both, 2, 240'000) <= 0) return;
      for (const bool back : {false, true}) {
        if (both[back ? 1 : 0].revents == 0) continue;
        const auto got = ::recv(back ? peer.get() : client.get(), some.data(), some.size(), MSG_DONTWAIT);
        if (got < 0 && errno == EAGAIN) continue;
        if (got <= 0) return;
        const auto size = static_cast<std::size_t>(got);
        if (std::string_view(some.data(), size).find(secret) != std::string_view::npos) seen = true;
        if (back) {
          if (before_answer) std::exchange(before_answer, {})();
          if (!met && passed + size > after) {
            met = true;
            if (cut) return;
            some[after - passed] = static_cast<char>(some[after - passed] ^ 1);
          }
          passed += size;
        }
        for (std::size_t done = 0; done < size;) {
          const auto put =
              ::send(back ? client.get() : peer.get(), some.data() + done, size - done, MSG_NOSIGNAL);
          if (put < 0 && errno == EAGAIN) {
            pollfd one{back ? client.get() : peer.get(), POLLOUT, 0};
            ::poll(&one, 1, 240'000);
            continue;
          }
          if (put <= 0) return;
          done += static_cast<std::size_t>(put);
        }
      }
    }
  }
  static constexpr std::string_view secret = "the weights of a model";
  std::atomic<bool> met{false};
  std::atomic<bool> seen{false};  // the secret, in one piece
  std::atomic<int> connections{0};
  std::function<void()> before_answer;
  own_server server;
};

}  // namespace

TEST_CASE("a connection that breaks in the middle of a fetch, and a byte that changes on its way") {
  for (const auto bulk : {cairn::bulk_protection::encrypted, cairn::bulk_protection::authenticated})
    for (const bool cut : {true, false}) {
      CAPTURE(cut);
      CAPTURE((bulk == cairn::bulk_protection::encrypted));
      const cairn::tls_link_options options{.address = "127.0.0.1", .bulk = bulk, .connections = 1};
      tls_job job(2, options);
      const auto image = numbered_bytes(std::size_t{6} << 20, 1);
      offer_one(job.at(1), image_key, image);
      const bad_network between(job.ports[1], (std::size_t{5} << 20) + (std::size_t{1} << 19),
                                cut);  // within a block
      auto link = link_to(between.server.port(), job.key, job.addresses[1], options);
      const auto e = ends([&] { fetch_one(link, 1, image_key, 0, image.size()); });
      // What is changed inside of TLS ends the connection.
      const bool told = !cut && bulk == cairn::bulk_protection::authenticated;
      CHECK_MESSAGE(e.id == (told ? error_id::peer_bad_message : error_id::peer_lost), e.text);
      CHECK(e.rank == 1);
      CHECK(between.met.load());
      CHECK(fetch_one(link, 1, image_key, 0, image.size()) == image);
      CHECK_FALSE(link.is_gone(1));
    }
}

TEST_CASE("a peer that stands still while others connect to it is not lost, and goes on when it does") {
  tls_job job(2);
  const auto image = numbered_bytes(100'000, 1);
  offer_one(job.at(1), image_key, image);
  std::atomic<bool> stands{true};
  const bad_network between(job.ports[1], ~std::size_t{0}, false, [&] { await([&] { return !stands; }); });
  auto link = link_to(between.server.port(), job.key, job.addresses[1],
                      {.address = "127.0.0.1", .handshake_timeout = 200ms});
  const auto e = ends([&] { link.fetch(1, image_key, {}, deadline::in(700ms)); });
  CHECK_MESSAGE(e.id == error_id::timeout_peer, e.text);
  CHECK_FALSE(link.is_gone(1));
  stands = false;
  CHECK(fetch_one(link, 1, image_key, 0, image.size()) == image);
}

TEST_CASE("a process that has no descriptors says so, and declares no peer lost") {
  tls_job job(2);
  const auto image = numbered_bytes(100'000, 1);
  offer_one(job.at(1), image_key, image);
  std::exception_ptr failure;  // the sanitizers' look at it takes descriptors
  {
    const no_more_files none;
    try {
      job.at(0).fetch(1, image_key, {}, deadline::in(50ms));
    } catch (...) {
      failure = std::current_exception();
    }
  }
  REQUIRE(failure != nullptr);
  const auto e = ends([&] { std::rethrow_exception(failure); });
  CHECK_MESSAGE(e.id == error_id::storage_limit, e.text);
  CHECK(e.text.find("ulimit -n") != std::string::npos);
  CHECK_FALSE(job.at(0).is_gone(1));
  CHECK(fetch_one(job.at(0), 1, image_key, 0, image.size()) == image);
}

TEST_CASE("a flood of strangers pushes out no peer that has shown the key and takes a while to go on") {
  tls_job job(2, {.address = "127.0.0.1", .handshake_timeout = 240s, .max_strangers = 4});
  const auto image = numbered_bytes(100'000, 1);
  offer_one(job.at(1), image_key, image);
  std::vector<stranger> flood;
  const bad_network between(job.ports[1], ~std::size_t{0}, false, [&] {
    for (int i = 0; i < 60; ++i) flood.emplace_back(job.ports[1]);
    await([&] { return job.at(1).counts().strangers == 57; });
  });
  auto link = link_to(between.server.port(), job.key, job.addresses[1],
                      {.address = "127.0.0.1", .handshake_timeout = 240s});
  CHECK(fetch_one(link, 1, image_key, 0, image.size()) == image);
  CHECK(between.connections == 1);
}

TEST_CASE("what others see of the bytes of an offer") {
  using cairn::bulk_protection;
  std::string text;
  while (text.size() < 1'000'000) text += bad_network::secret;
  const auto image = std::as_bytes(std::span(text.data(), text.size()));
  for (const auto serves : {bulk_protection::encrypted, bulk_protection::authenticated})
    for (const auto asks : {bulk_protection::encrypted, bulk_protection::authenticated}) {
      tls_job job(2, {.address = "127.0.0.1", .bulk = serves});
      offer_one(job.at(1), image_key, image);
      const bad_network between(job.ports[1], ~std::size_t{0}, true);
      {
        auto link =
            link_to(between.server.port(), job.key, job.addresses[1], {.address = "127.0.0.1", .bulk = asks});
        const auto got = fetch_one(link, 1, image_key, 0, image.size());
        CHECK(std::memcmp(got.data(), image.data(), image.size()) == 0);
      }
      CHECK(between.seen.load() == (serves == bulk_protection::authenticated && asks == serves));
    }
}

TEST_CASE("a half-open peer, which proves who it is and then says nothing") {
  tls_job job(2);
  std::vector<std::unique_ptr<hand_made_peer>> kept;
  std::mutex mutex;
  const own_server frozen([&](file_descriptor connected) {
    ::fcntl(connected.get(), F_SETFL, O_NONBLOCK);
    auto peer = std::make_unique<hand_made_peer>(job.key, std::move(connected), secure_socket::side::server);
    std::array<std::byte, cairn::detail::request_head_bytes> hello;
    if (peer->handshake && peer->read(hello)) peer->write(encode(link_answer{}));
    const std::lock_guard lock(mutex);
    kept.push_back(std::move(peer));
  });
  auto link = link_to(frozen.port(), job.key, job.addresses[1], {.address = "127.0.0.1", .lost_after = 3s});
  const auto late = ends([&] { link.fetch(1, image_key, {}, deadline::in(50ms)); });
  CHECK_MESSAGE(late.id == error_id::timeout_peer, late.text);
  CHECK(ends([&] { link.await_offer(1, image_key, deadline::in(50ms)); }).id == error_id::timeout_peer);
  CHECK_FALSE(link.is_gone(1));
  const auto lost = ends([&] { link.fetch(1, image_key, {}, ample_time()); });
  CHECK_MESSAGE(lost.id == error_id::peer_lost, lost.text);
  CHECK(lost.rank == 1);
  CHECK(link.is_gone(1));
}

TEST_CASE("a peer in another process is killed while it is read") {
  const auto key = cairn::link_key::random();
  cairn::tls_link_port port({.address = "127.0.0.1"});
  peer_process peer(program("helper_link_peer"), key, port.address());
  const std::vector<std::vector<std::byte>> addresses{port.address(), peer.address()};
  cairn::tls_link link(std::move(port), key, 0, addresses);
  const auto image = image_of_peer();
  CHECK(link.await_offer(1, image_key, ample_time()) == image.size());
  CHECK(fetch_one(link, 1, image_key, 0, image.size()) == image);
  CHECK_FALSE(link.is_gone(1));
  std::atomic<int> begun{0};
  std::vector<ended_call> ended(3);
  std::vector<std::thread> readers;
  for (std::size_t i = 0; i < 2; ++i)
    readers.emplace_back([&, i] {
      std::vector<std::byte> into(image.size());
      const cairn::fetch_range ranges[] = {{0, into}};
      while (!ended[i].id) {
        ++begun;
        ended[i] = ends([&] { link.fetch(1, image_key, ranges, ample_time()); });
      }
    });
  readers.emplace_back([&] { ended[2] = ends([&] { link.await_offer(1, {"never", 1}, ample_time()); }); });
  await([&] { return begun.load() >= 5; });
  peer.signal(SIGKILL);
  for (auto& each : readers) each.join();
  for (const auto& each : ended) {
    CHECK_MESSAGE(each.id == error_id::peer_lost, each.text);
    CHECK(each.rank == 1);
  }
  CHECK(link.is_gone(1));
}

TEST_CASE("an end of a peer is known without a call") {
  tls_job job(2);
  offer_one(job.at(1), image_key, {});
  CHECK(job.at(0).await_offer(1, image_key, ample_time()) == 0);
  CHECK_FALSE(job.at(0).is_gone(1));
  job.lose(1);
  await([&] { return job.at(0).is_gone(1); });
}

TEST_CASE("a child of fork() is refused, and its parent goes on") {
  tls_job job(2);
  const auto image = numbered_bytes(1000, 1);
  offer_one(job.at(1), image_key, image);
  CHECK(fetch_one(job.at(0), 1, image_key, 0, image.size()) == image);
  const ::pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto e = ends([&] { job.at(0).fetch(1, image_key, {}, ample_time()); });
    const auto offering = ends([&] { job.at(1).offer({"child", 1}, {}); });
    job.at(1).withdraw(image_key, no_time());
    const bool gone = job.at(0).is_gone(1);
    job.links.clear();
    ::_exit(e.id == error_id::usage_wrong_process && offering.id == e.id && !gone ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  CHECK(fetch_one(job.at(0), 1, image_key, 0, image.size()) == image);
}
