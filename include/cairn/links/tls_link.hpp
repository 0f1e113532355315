// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::links
#pragma once
#include <cairn/concepts/peer_link.hpp>
#include <cairn/concepts/roles.hpp>
#include <cairn/links/link_key.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {

class collectives;

/// How the bytes of offers travel between the hosts of a job.
enum class bulk_protection : std::uint8_t {
  encrypted,      ///< inside TLS: nobody on the way reads or changes them
  authenticated,  ///< in the clear, with a tag (Poly1305) for each MiB: nobody changes them, whoever sees the network reads them
};

/// Options of a tls_link. They may differ between ranks, but for what is said below.
struct tls_link_options {
  /// The numeric IPv4 or IPv6 address to listen at, which is told to the peers; empty: all addresses of this host.
  std::string address = {};
  /// The first of `ports` ports of which a link takes a free one, for firewalls; 0: one that the system chooses.
  std::uint16_t first_port = 0;
  std::uint16_t ports = 1;  ///< see first_port; at least as many as ranks on a host
  /// Both ends decide: bytes leave TLS only where both say `authenticated`. Requests, answers and tags never do.
  bulk_protection bulk = bulk_protection::encrypted;
  std::size_t connections = 4;  ///< that one fetch uses at once, 1 to 64
  std::size_t threads = 4;      ///< that serve this rank's offers, 1 to 64
  /// A peer that sends and takes nothing in the middle of a transfer, or does not answer who connects, for so long is
  /// lost; at least 3 s.
  std::chrono::nanoseconds lost_after = std::chrono::seconds(30);
  /// How long either end may take to prove that it is of this job.
  std::chrono::nanoseconds handshake_timeout = std::chrono::seconds(5);
  std::size_t max_connections = 4096;  ///< of peers at once; more are refused
  std::size_t max_strangers =
      64;  ///< connections at once that have yet to prove what they are; the oldest goes first that has shown no key
};

/// What a link has seen since it began.
struct tls_link_counts {
  std::uint64_t strangers = 0;  ///< connections that never proved to be of this job
  std::uint64_t refused =
      0;  ///< connections of peers that were closed for max_connections or for what they sent
  std::uint64_t accepted = 0;  ///< connections of peers
  std::uint64_t bytes = 0;     ///< of offers that were sent
};

/// A link that listens, and does not know its peers yet: each rank makes one, tells the others its address(), and makes a
/// tls_link of it. Peers that connect meanwhile wait. Movable.
class tls_link_port {
 public:
  /// @throws usage_error (usage_bad_option), storage_error (limits of the process)
  explicit tls_link_port(tls_link_options options = {});
  tls_link_port(tls_link_port&& other) noexcept;
  tls_link_port& operator=(tls_link_port&& other) noexcept;
  ~tls_link_port();
  /// Where it listens, as bytes for the other ranks. No secret.
  [[nodiscard]] std::vector<std::byte> address() const;
  /// The TCP port.
  [[nodiscard]] std::uint16_t port() const noexcept;

 private:
  friend class tls_link;
  struct inside;
  detail::owned<inside> in_;
};

/// A PeerLink between processes of any hosts, over TCP and TLS 1.3 with a key that the ranks of a job share.
///
///     cairn::tls_link link = cairn::tls_link::connect(job, {}, cairn::deadline::in(std::chrono::minutes(1)));
///
/// - Whoever connects proves that it has the key before it gets a byte, and so does who is connected to; a session with the
///   key has keys of its own, which later loss of the key does not reveal. Whoever does not is closed after handshake_timeout at
///   the latest, and counted. Who has the key may read everything that is offered, and is trusted in nothing else:
///   what it sends is checked.
/// - A rank connects to a peer at the first call for it, and keeps up to 2 * `connections` connections to it. A fetch of more
///   than 4 MiB uses several, each by a thread of its own.
/// - Serving takes `threads` threads, whatever the number of peers, which never push aside training. Memory: about 50 KiB for
///   each connection.
/// - A process that ends is gone at once for those that have a connection to it; a host that ends, after lost_after.
/// - In a child of fork() calls throw usage_error (usage_wrong_process), and the destructor does not affect the others.
class tls_link {
 public:
  /// `addresses`: that of each rank, in rank order, as tls_link_port::address() gives them.
  /// @throws usage_error (usage_bad_option) for a rank or addresses that are not those of a job; storage_error
  tls_link(tls_link_port port, const link_key& key, int rank,
           std::span<const std::vector<std::byte>> addresses);
  tls_link(tls_link&& other) noexcept;
  tls_link& operator=(tls_link&& other) noexcept;
  ~tls_link();

  /// Collective: makes a link of each rank of a job. Rank 0 makes the key; it and the addresses travel over the job's communicator,
  /// which must not be readable by others. @throws as the constructors, on all ranks alike; peer_error, timeout_error
  [[nodiscard]] static tls_link connect(collectives& job, const tls_link_options& options, deadline until);

  // See PeerLink.
  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;
  void offer(const offer_key& key, std::span<const std::span<const std::byte>> parts);
  void withdraw(const offer_key& key, deadline until) noexcept;
  /// See PeerLink.
  std::uint64_t await_offer(int peer, const offer_key& key, deadline until);
  /// See PeerLink. @throws besides peer_error (peer_bad_message) where bytes were changed on their way
  std::uint64_t fetch(int peer, const offer_key& key, std::span<const fetch_range> ranges, deadline until);
  [[nodiscard]] bool is_gone(int peer) const noexcept;

  /// Any thread.
  [[nodiscard]] tls_link_counts counts() const noexcept;

 private:
  struct inside;
  detail::owned<inside> in_;
};

/// The role link by tls_link: an argument of checkpointer, the same on all ranks.
///
///     cairn::tls_links{}                                      // any address of this host, any port
///     cairn::tls_links{{.address = "10.1.0.3", .first_port = 40000, .ports = 64}}
struct tls_links {
  using cairn_role = role::link;
  tls_link_options options = {};  ///< of the link of each rank

  /// See LinkMaker and tls_link::connect.
  [[nodiscard]] tls_link connect(collectives& job, deadline until) const {
    return tls_link::connect(job, options, until);
  }
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_LINKS)
#include <cairn/impl/links/tls_link.ipp>
#endif
