// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/collectives.hpp>
#include <cairn/concepts/peer_link.hpp>
#include <cairn/links/link_client.hpp>
#include <cairn/links/link_frame.hpp>
#include <cairn/links/link_key.hpp>
#include <cairn/links/link_server.hpp>
#include <cairn/links/link_sockets.hpp>
#include <cairn/links/offer_table.hpp>
#include <cairn/links/secure_socket.hpp>
#include <cairn/links/tls_link.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/fork_guard.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/thread_pool.hpp>
#include <cairn/system/unforked_file.hpp>

#include <openssl/crypto.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

struct tls_link_port::inside {
  tls_link_options options;
  detail::link_address told;
  detail::owned<detail::unforked_file> listener;
};

namespace detail {
inline void check(const tls_link_options& o) {
  const auto refuse = [](const char* why, const std::string& got) {
    fail(error_id::usage_bad_option, why, {.got = got});
  };
  if (o.connections < 1 || o.connections > 64)
    refuse("tls_link_options::connections is 1 to 64", std::to_string(o.connections));
  if (o.threads < 1 || o.threads > 64)
    refuse("tls_link_options::threads is 1 to 64", std::to_string(o.threads));
  if (o.ports < 1) refuse("tls_link_options::ports is at least 1", "0");
  if (o.lost_after < std::chrono::seconds(3)) refuse("tls_link_options::lost_after is at least 3 s", "less");
  if (o.handshake_timeout <= std::chrono::nanoseconds(0))
    refuse("tls_link_options::handshake_timeout is longer than nothing", "no time");
  if (o.max_connections < 1 || o.max_strangers < 1)
    refuse("tls_link_options::max_connections and max_strangers are at least 1", "0");
}
/// The key that rank 0 has put before its address, which is left.
inline link_key take_link_key(std::vector<std::byte>& first) {
  std::array<std::byte, 32> bytes{};
  if (first.size() < bytes.size())
    fail(error_id::peer_bad_message, "rank 0 did not send the key of the links", {.rank = 0});
  std::copy_n(first.begin(), bytes.size(), bytes.begin());
  ::OPENSSL_cleanse(first.data(), bytes.size());
  first.erase(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(bytes.size()));
  const link_key shared(bytes);
  ::OPENSSL_cleanse(bytes.data(), bytes.size());
  return shared;
}
}  // namespace detail

CAIRN_BODY tls_link_port::tls_link_port(tls_link_options options) : in_(detail::make_owned<inside>()) {
  detail::check(options);
  in_->listener = detail::listen_at(options.address, options.first_port, options.ports, in_->told);
  in_->options = std::move(options);
  // Of the generator that keys come from: nobody else's.
  const auto number = link_key::random();
  for (std::size_t i = 0; i < 8; ++i)
    in_->told.link = in_->told.link << 8 | std::to_integer<std::uint64_t>(number.bytes()[i]);
}
CAIRN_BODY tls_link_port::tls_link_port(tls_link_port&& other) noexcept = default;
CAIRN_BODY tls_link_port& tls_link_port::operator=(tls_link_port&& other) noexcept = default;
CAIRN_BODY tls_link_port::~tls_link_port() = default;
CAIRN_BODY std::vector<std::byte> tls_link_port::address() const {
  return encode(in_->told);
}
CAIRN_BODY std::uint16_t tls_link_port::port() const noexcept {
  return in_->told.port;
}

struct tls_link::inside {
  inside(const link_key& key, int of) : rank(of), context(key) {}
  inside(const inside&) = delete;
  inside& operator=(const inside&) = delete;

  [[nodiscard]] detail::link_client& client(int peer) {
    process.check("a link does not work in a child of fork(); make one there");
    detail::check_peer(peer, static_cast<int>(clients.size()));
    return clients[static_cast<std::size_t>(peer)];
  }

  int rank;
  detail::fork_guard process;
  detail::tls_context context;
  detail::offer_table offers;
  detail::thread_pool threads;
  std::vector<detail::link_client> clients;
  detail::owned<detail::link_server> server;
};

CAIRN_BODY tls_link::tls_link(tls_link_port port, const link_key& key, int rank,
                              std::span<const std::vector<std::byte>> addresses)
    : in_(detail::make_owned<inside>(key, rank)) {
  const auto size = static_cast<int>(addresses.size());
  detail::check_peer(rank, size);
  const auto& o = port.in_->options;
  // Without tags here, both ends encrypt.
  const bool plain = o.bulk == bulk_protection::authenticated && in_->context.has_tags();
  const detail::link_client_options to_peers{plain, o.connections, o.handshake_timeout, o.lost_after};
  in_->clients.reserve(addresses.size());
  for (int peer = 0; peer < size; ++peer) {
    auto address = detail::decode_address(addresses[static_cast<std::size_t>(peer)]);
    if (!address || address->hosts.empty())
      fail(error_id::usage_bad_option, "the address of a rank is not one of a tls_link_port", {.rank = peer});
    if (peer == rank && address->link != port.in_->told.link)
      fail(error_id::usage_bad_option,
           "the addresses name another link for this rank; give them in the order of ranks", {.rank = rank});
    in_->clients.emplace_back(peer, std::move(*address), in_->context, in_->threads, to_peers);
  }
  in_->server = detail::make_owned<detail::link_server>(
      std::move(port.in_->listener), in_->context, in_->offers,
      detail::link_server_options{port.in_->told.link, plain, o.threads, o.max_connections, o.max_strangers,
                                  o.handshake_timeout, o.lost_after});
}
CAIRN_BODY tls_link::tls_link(tls_link&& other) noexcept = default;
CAIRN_BODY tls_link& tls_link::operator=(tls_link&& other) noexcept = default;
CAIRN_BODY tls_link::~tls_link() {
  if (in_ == nullptr || !in_->process.in_child()) return;
  // The threads that may hold its locks, and use OpenSSL's objects, are in the parent: nothing is freed here.
  static_cast<void>(in_.release());
}

CAIRN_BODY tls_link tls_link::connect(collectives& job, const tls_link_options& options, deadline until) {
  std::optional<tls_link_port> port;
  std::optional<link_key> key;
  std::vector<std::byte> own;
  std::exception_ptr failure;
  try {
    port.emplace(options);
    own = port->address();
    if (job.rank() == 0) {
      key.emplace(link_key::random());
      own.insert(own.begin(), key->bytes().begin(), key->bytes().end());
    }
  } catch (...) {
    failure = std::current_exception();
  }
  auto all = failure != nullptr ? job.all_gather(failure, until) : job.all_gather(std::move(own), until);
  std::optional<tls_link> made;
  // A rank alone may have had no thread or no memory left.
  detail::on_each_rank(job, until, [&] {
    const auto shared = detail::take_link_key(all.front());
    made.emplace(std::move(*port), shared, job.rank(), all);
  });
  return std::move(*made);
}

CAIRN_BODY int tls_link::rank() const noexcept {
  return in_->rank;
}
CAIRN_BODY int tls_link::size() const noexcept {
  return static_cast<int>(in_->clients.size());
}

CAIRN_BODY void tls_link::offer(const offer_key& key, std::span<const std::span<const std::byte>> parts) {
  in_->process.check("a link does not work in a child of fork(); make one there");
  in_->offers.add(key, parts);
  in_->server->offered();
}
CAIRN_BODY void tls_link::withdraw(const offer_key& key, deadline until) noexcept {
  if (!in_->process.in_child()) in_->offers.withdraw(key, until);
}
CAIRN_BODY std::uint64_t tls_link::await_offer(int peer, const offer_key& key, deadline until) {
  detail::check(key);
  return in_->client(peer).await_offer(key, until);
}
CAIRN_BODY std::uint64_t tls_link::fetch(int peer, const offer_key& key, std::span<const fetch_range> ranges,
                                         deadline until) {
  detail::check(key);
  return in_->client(peer).fetch(key, ranges, until);
}
CAIRN_BODY bool tls_link::is_gone(int peer) const noexcept {
  return !in_->process.in_child() && peer >= 0 && peer < size() &&
         in_->clients[static_cast<std::size_t>(peer)].is_gone();
}
CAIRN_BODY tls_link_counts tls_link::counts() const noexcept {
  const auto counted = in_->server->counts();
  return {counted.strangers, counted.refused, counted.accepted, counted.bytes};
}

static_assert(PeerLink<tls_link>);

}  // namespace v1
}  // namespace cairn
