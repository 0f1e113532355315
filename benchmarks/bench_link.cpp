// SPDX-License-Identifier: Apache-2.0
// links: cairn::links
// test: --bytes 8MiB --pairs 1
// Fetching an image from another process over the loopback by a tls_link, with one connection and with several, encrypted
// and in the clear with a tag, against sockets by hand: the same cipher or tag, the same number of connections, each of
// which carries its share of the bytes in one piece. Both keep their connections. Rates, and processor time of both ends.
#include <cairn/links/link_key.hpp>
#include <cairn/links/tls_link.hpp>

#include <CLI/CLI.hpp>

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <support/bench.hpp>
#include <support/own_server.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace {

void need(bool good, const char* what) {
  if (!good) throw std::runtime_error(what);
}

// --- By hand -------------------------------------------------------------------------------------------------------

unsigned char secret[32];
constexpr unsigned char name_of_secret[] = "by hand";

SSL_SESSION* session(SSL* ssl) {
  static const unsigned char suite[] = {0x13, 0x01};  // as links: TLS_AES_128_GCM_SHA256
  SSL_SESSION* const s = SSL_SESSION_new();
  SSL_SESSION_set1_master_key(s, secret, sizeof secret);
  SSL_SESSION_set_cipher(s, SSL_CIPHER_find(ssl, suite));
  SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION);
  return s;
}
SSL_CTX* tls() {
  SSL_CTX* const c = SSL_CTX_new(TLS_method());
  SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION);
  SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256");
  SSL_CTX_set_num_tickets(c, 0);
  SSL_CTX_set_psk_find_session_callback(c,
                                        [](SSL* ssl, const unsigned char*, std::size_t, SSL_SESSION** out) {
                                          *out = session(ssl);
                                          return 1;
                                        });
  SSL_CTX_set_psk_use_session_callback(
      c, [](SSL* ssl, const EVP_MD*, const unsigned char** id, std::size_t* size, SSL_SESSION** out) {
        *id = name_of_secret;
        *size = sizeof name_of_secret;
        *out = session(ssl);
        return 1;
      });
  return c;
}

/// A blocking connection; `ssl` is null where bytes go in the clear, with a tag behind each MiB.
struct wire {
  int socket;
  SSL* ssl = nullptr;
  EVP_MAC_CTX* mac = nullptr;

  wire(int connected, SSL_CTX* context, bool server) : socket(connected) {
    const int on = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (context == nullptr) {
      EVP_MAC* const poly1305 = EVP_MAC_fetch(nullptr, "POLY1305", nullptr);
      mac = EVP_MAC_CTX_new(poly1305);
      EVP_MAC_free(poly1305);
      return;
    }
    ssl = SSL_new(context);
    SSL_set_fd(ssl, socket);
    need((server ? SSL_accept(ssl) : SSL_connect(ssl)) == 1, "the twin's handshake fails");
  }
  void all(std::byte* p, std::size_t size, bool in) const {
    while (size > 0) {
      std::size_t moved = 0;
      if (ssl != nullptr) {
        need((in ? SSL_read_ex(ssl, p, size, &moved) : SSL_write_ex(ssl, p, size, &moved)) == 1,
             "the twin's TLS fails");
      } else {
        const auto n = in ? ::recv(socket, p, size, 0) : ::send(socket, p, size, MSG_NOSIGNAL);
        need(n > 0, "the twin's connection ends");
        moved = static_cast<std::size_t>(n);
      }
      p += moved;
      size -= moved;
    }
  }
  /// A share of the image, in one direction.
  void share(std::byte* p, std::size_t size, bool in) const {
    if (ssl != nullptr) return all(p, size, in);
    for (std::size_t at = 0; at < size; at += std::size_t{1} << 20) {
      const auto block = std::min(size - at, std::size_t{1} << 20);
      unsigned char made[16], sent[16];
      std::size_t length = 0;
      EVP_MAC_init(mac, secret, sizeof secret, nullptr);
      // In pieces that stay in the cache between the tag and the socket.
      for (std::size_t done = 0; done < block;) {
        auto piece = std::min(block - done, std::size_t{256} << 10);
        if (in) {
          const auto got = ::recv(socket, p + at + done, piece, 0);
          need(got > 0, "the twin's connection ends");
          piece = static_cast<std::size_t>(got);
        }
        EVP_MAC_update(mac, reinterpret_cast<const unsigned char*>(p + at + done), piece);
        if (!in) all(p + at + done, piece, false);
        done += piece;
      }
      EVP_MAC_final(mac, made, &length, sizeof made);
      if (!in) {
        all(reinterpret_cast<std::byte*>(made), sizeof made, false);
      } else {
        all(reinterpret_cast<std::byte*>(sent), sizeof sent, true);
        need(std::memcmp(made, sent, sizeof made) == 0, "the twin's bytes were changed");
      }
    }
  }
};

std::pair<std::size_t, std::size_t> share_of(std::size_t bytes, int part, int parts) {
  const auto begin = bytes * static_cast<std::size_t>(part) / static_cast<std::size_t>(parts);
  const auto end = bytes * static_cast<std::size_t>(part + 1) / static_cast<std::size_t>(parts);
  return {begin, end - begin};
}

// --- Both ways -----------------------------------------------------------------------------------------------------

/// One way of carrying bytes: a link of two ranks, and the twin's port.
struct way {
  way(bool encrypted, int parts, const cairn::link_key& shared)
      : encrypts(encrypted), connections(parts), key(shared) {
    listener = ::socket(AF_INET, SOCK_STREAM, 0);
    auto at = cairn_test::loopback(0);
    socklen_t size = sizeof at;
    need(::bind(listener, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0 &&
             ::listen(listener, 64) == 0 &&
             ::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size) == 0,
         "the twin has no port");
    twin_port = ntohs(at.sin_port);
  }
  [[nodiscard]] std::string name() const {
    return std::string(encrypts ? "encrypted/" : "tagged/") + std::to_string(connections) +
           (connections == 1 ? " connection" : " connections");
  }
  /// Makes the port of a rank, which no child of fork() keeps, and exchanges its address with the other process.
  void exchange_addresses(int rank, int other) {
    auto& own = addresses[static_cast<std::size_t>(rank)];
    auto& others = addresses[static_cast<std::size_t>(1 - rank)];
    port.emplace(cairn::tls_link_options{
        .address = "127.0.0.1",
        .bulk = encrypts ? cairn::bulk_protection::encrypted : cairn::bulk_protection::authenticated,
        .connections = static_cast<std::size_t>(connections),
        .threads = static_cast<std::size_t>(connections)});
    own = port->address();
    const auto moved = [&](auto call, void* data, std::size_t size, int flags) {
      need(call(other, data, size, flags) == static_cast<::ssize_t>(size), "the other process has ended");
    };
    auto size = own.size();
    moved(::send, &size, sizeof size, MSG_NOSIGNAL);
    moved(::send, own.data(), size, MSG_NOSIGNAL);
    moved(::recv, &size, sizeof size, MSG_WAITALL);
    others.resize(size);
    moved(::recv, others.data(), size, MSG_WAITALL);
  }
  void begin(int rank) {
    link.emplace(cairn::tls_link(std::move(*port), key, rank, addresses));
    port.reset();
    if (encrypts) context = tls();
  }
  void offer(std::span<const std::byte> image) {
    const std::span<const std::byte> parts[] = {image};
    link->offer({"image", 1}, parts);
  }
  void serve_by_hand(std::span<std::byte> image) {
    for (int i = 0; i < connections; ++i) {
      const int accepted = ::accept(listener, nullptr, nullptr);
      std::thread([this, accepted, i, image] {
        try {
          const wire one(accepted, context, true);
          const auto [begin, size] = share_of(image.size(), i, connections);
          for (std::byte asks;;) one.all(&asks, 1, true), one.share(image.data() + begin, size, false);
        } catch (const std::exception&) {
          // The other process has ended.
        }
      }).detach();
    }
  }
  void connect_twin() {
    for (int i = 0; i < connections; ++i) {
      const int made = ::socket(AF_INET, SOCK_STREAM, 0);
      const auto at = cairn_test::loopback(twin_port);
      need(::connect(made, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0,
           "the twin does not connect");
      wires.push_back(std::make_unique<wire>(made, context, false));
    }
  }
  void fetch(std::span<std::byte> into) {
    const cairn::fetch_range ranges[] = {{0, into}};
    link->fetch(1, {"image", 1}, ranges, cairn::deadline::in(std::chrono::minutes(10)));
  }
  void fetch_by_hand(std::span<std::byte> into) {
    std::vector<std::thread> others;
    std::exception_ptr failure;
    const auto one = [&](int i) {
      std::byte ask{1};
      const auto [begin, size] = share_of(into.size(), i, connections);
      wires[static_cast<std::size_t>(i)]->all(&ask, 1, false);
      wires[static_cast<std::size_t>(i)]->share(into.data() + begin, size, true);
    };
    for (int i = 1; i < connections; ++i) others.emplace_back(one, i);
    one(0);
    for (auto& each : others) each.join();
  }

  bool encrypts;
  int connections;
  cairn::link_key key;
  std::optional<cairn::tls_link_port> port;
  std::vector<std::vector<std::byte>> addresses = std::vector<std::vector<std::byte>>(2);
  std::optional<cairn::tls_link> link;
  int listener = -1;
  std::uint16_t twin_port = 0;
  SSL_CTX* context = nullptr;
  std::vector<std::unique_ptr<wire>> wires;
};

/// Processor seconds of a process so far.
double processor(::pid_t process) {
  clockid_t clock{};
  timespec used{};
  need(::clock_getcpuclockid(process, &clock) == 0 && ::clock_gettime(clock, &used) == 0,
       "no clock of a process");
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

void fill(std::span<std::byte> image) {
  for (std::size_t at = 0; at + 8 <= image.size(); at += 8) {
    const auto word = (at + 1) * 0x9e3779b97f4a7c15U;
    std::memcpy(image.data() + at, &word, 8);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t bytes = std::uint64_t{512} << 20;
  int turns = 7;
  std::vector<int> connections{1, 2, 4};
  std::string json;
  CLI::App app{"Fetching an image over a link, against sockets by hand", "bench_link"};
  app.add_option("--bytes", bytes, "bytes of the image")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{8} << 20, std::uint64_t{1} << 36));
  app.add_option("--pairs", turns, "turns of ours and the twin")->check(CLI::Range(1, 1000));
  app.add_option("--connections", connections, "numbers of connections")->check(CLI::Range(1, 64));
  app.add_option("--json", json, "file for the figures");
  CLI11_PARSE(app, argc, argv);

  try {
    const auto key = cairn::link_key::random();
    std::memcpy(secret, key.bytes().data(), sizeof secret);
    std::vector<std::unique_ptr<way>> ways;
    for (const bool encrypted : {false, true})
      for (const int parts : connections) ways.push_back(std::make_unique<way>(encrypted, parts, key));
    int pair[2] = {};
    need(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "no sockets");
    // Before there is any thread.
    const ::pid_t server = ::fork();
    need(server >= 0, "no other process");
    if (server == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::vector<std::byte> image(bytes);
      fill(image);
      for (const auto& each : ways) each->exchange_addresses(1, pair[1]);
      for (const auto& each : ways) each->begin(1);
      for (const auto& each : ways) each->offer(image);
      for (const auto& each : ways) each->serve_by_hand(image);
      for (;;) ::pause();
    }
    std::vector<std::byte> good(bytes), into(bytes);
    fill(good);
    cairn_bench::report report("link");
    ::close(pair[1]);
    for (const auto& each : ways) each->exchange_addresses(0, pair[0]);
    for (const auto& each : ways) {
      each->begin(0);
      each->link->await_offer(1, {"image", 1}, cairn::deadline::in(std::chrono::minutes(5)));
    }
    for (const auto& each : ways) each->connect_twin();
    const auto gibibytes = static_cast<double>(bytes) / static_cast<double>(std::uint64_t{1} << 30);
    for (const auto& each : ways) {
      for (const bool by_hand : {false, true}) {  // everything warm, and the same bytes
        std::fill(into.begin(), into.end(), std::byte{0});
        by_hand ? each->fetch_by_hand(into) : each->fetch(into);
        need(std::memcmp(into.data(), good.data(), bytes) == 0, "other bytes arrive");
      }
      std::vector<double> used[2];
      const auto counted = [&](bool by_hand) {
        const auto before = processor(server) + processor(::getpid());
        by_hand ? each->fetch_by_hand(into) : each->fetch(into);
        used[by_hand ? 1 : 0].push_back((processor(server) + processor(::getpid()) - before) / gibibytes);
      };
      const auto seconds = cairn_bench::interleaved(
          turns, [&] { counted(false); }, [&] { counted(true); });
      report.add(each->name(),
                 cairn_bench::make_pairs(cairn_bench::rates(bytes, seconds[0]),
                                         cairn_bench::rates(bytes, seconds[1])),
                 "B/s", cairn_bench::at_least(0.8));
      report.add(each->name() + ", processor time of a GiB", cairn_bench::make_pairs(used[0], used[1]), "s");
    }
    report.write(json);
    ::kill(server, SIGKILL);
    ::waitpid(server, nullptr, 0);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_link: %s\n", e.what());
    return 1;
  }
}
