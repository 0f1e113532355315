// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::links
#pragma once
#include <cairn/links/offer_table.hpp>
#include <cairn/links/secure_socket.hpp>
#include <cairn/system/fork_guard.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/unforked_file.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What a link_server is told.
struct link_server_options {
  std::uint64_t link = 0;   ///< its number
  bool plain_bulk = false;  ///< blocks go outside of TLS to those who ask for it
  std::size_t threads = 4;
  std::size_t max_connections = 4096;  ///< of peers
  std::size_t max_strangers = 64;      ///< connections that have not proved to be a peer's
  std::chrono::nanoseconds handshake_timeout = std::chrono::seconds(5);
  std::chrono::nanoseconds lost_after = std::chrono::seconds(30);  ///< without a byte moving, in an answer
};
/// What a link_server has counted since it began.
struct link_server_counts {
  std::uint64_t strangers = 0;  ///< connections that were closed before they had proved to be a peer's
  std::uint64_t refused = 0;    ///< of peers that were closed for what they sent, or for max_connections
  std::uint64_t accepted = 0;   ///< connections of peers
  std::uint64_t bytes = 0;      ///< of offers that were sent
};

/// Serves the offers of a table to the peers that connect. A few threads, each of which goes on with whatever
/// connection is ready and waits for none: a peer that reads slowly, or says nothing, costs memory of a few KiB and no
/// thread. Any thread may call it.
class link_server {
 public:
  /// The table and the context outlive it. @throws storage_error where the system gives no thread or descriptor
  link_server(owned<unforked_file> listening, const tls_context& context, offer_table& offers,
              const link_server_options& options);
  link_server(const link_server&) = delete;
  link_server& operator=(const link_server&) = delete;
  /// Closes all connections.
  ~link_server();

  /// Answers those that await what was offered just now.
  void offered() noexcept;
  [[nodiscard]] link_server_counts counts() const noexcept;

 private:
  struct connection;
  struct inside;
  owned<inside> in_;
  fork_guard process_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_LINKS)
#include <cairn/impl/links/link_server.ipp>
#endif
