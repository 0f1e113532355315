// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::links
#pragma once
#include <cairn/concepts/peer_link.hpp>
#include <cairn/links/link_frame.hpp>
#include <cairn/links/secure_socket.hpp>
#include <cairn/system/deadline.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/thread_pool.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What a link_client is told.
struct link_client_options {
  bool plain_bulk = false;      ///< blocks may come outside of TLS
  std::size_t connections = 4;  ///< that one fetch uses at once
  std::chrono::nanoseconds handshake_timeout = std::chrono::seconds(5);
  std::chrono::nanoseconds lost_after = std::chrono::seconds(30);
};

/// Fetches from one peer. Keeps its connections for later calls. Any thread.
class link_client {
 public:
  /// The context and the threads outlive it. `rank`: that of the peer, for errors.
  link_client(int rank, link_address address, const tls_context& context, thread_pool& threads,
              const link_client_options& options);
  link_client(link_client&& other) noexcept;
  link_client& operator=(link_client&&) = delete;
  ~link_client();

  // See PeerLink.
  std::uint64_t await_offer(const offer_key& key, deadline until);
  std::uint64_t fetch(const offer_key& key, std::span<const fetch_range> ranges, deadline until);
  [[nodiscard]] bool is_gone() const noexcept;

 private:
  struct inside;
  owned<inside> in_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_LINKS)
#include <cairn/impl/links/link_client.ipp>
#endif
