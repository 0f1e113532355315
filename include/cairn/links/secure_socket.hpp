// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::links
#pragma once
#include <cairn/links/link_frame.hpp>
#include <cairn/links/link_key.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/unforked_file.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What TLS connections with one key have in common: TLS 1.3 alone, no certificates, the key as an external PSK with
/// an ephemeral key exchange. Any thread; outlives the sockets that are made of it.
class tls_context {
 public:
  /// @throws storage_error (storage_io) where OpenSSL refuses
  explicit tls_context(const link_key& key);
  tls_context(const tls_context&) = delete;
  tls_context& operator=(const tls_context&) = delete;
  ~tls_context();

  /// Whether OpenSSL has what a bulk_tag needs; it lacks Poly1305 where it is confined to FIPS 140.
  [[nodiscard]] bool has_tags() const noexcept;

 private:
  friend class secure_socket;
  friend class bulk_tag;
  struct inside;
  owned<inside> in_;
};

/// How far a call on a secure_socket came.
struct socket_progress {
  enum class state : std::uint8_t { moved, wants_read, wants_write, ended };
  state what = state::ended;
  std::size_t bytes = 0;  ///< that moved
};

/// One end of a TLS connection, over a TCP socket that does not block. Neither raises SIGPIPE. A server sends nothing, no
/// alert either, before the other end has proved that it has the key. One thread at a time.
class secure_socket {
 public:
  enum class side : std::uint8_t { client, server };
  /// @throws std::bad_alloc
  secure_socket(const tls_context& context, owned<unforked_file> connected, side which);
  ~secure_socket();

  [[nodiscard]] int number() const noexcept;
  /// Goes on with the handshake; `moved` when both ends have proved that they have the key.
  [[nodiscard]] socket_progress handshake() noexcept;
  /// Whether handshake() has ended well.
  [[nodiscard]] bool trusted() const noexcept;
  /// Of a server, before that: whether the first message was made with the key. It may be a copy of another one.
  [[nodiscard]] bool has_shown_key() const noexcept;
  [[nodiscard]] socket_progress read(std::span<std::byte> into) noexcept;
  /// After wants_write, the next call has at least as many bytes, and begins with the same, or with others of which the
  /// first take the place of those that wait already.
  [[nodiscard]] socket_progress write(std::span<const std::byte> bytes) noexcept;
  /// Outside of TLS: where the other end does the same between two TLS messages.
  [[nodiscard]] socket_progress read_plain(std::span<std::byte> into) noexcept;
  [[nodiscard]] socket_progress write_plain(std::span<const std::byte> bytes) noexcept;
  /// Takes new keys for what this end sends from now on: one key may encrypt only so much.
  void renew_key() noexcept;

 private:
  friend class bulk_tag;
  friend struct socket_bio;
  struct inside;
  owned<inside> in_;
};

/// Authenticates blocks that travel outside of TLS from the server to the client of a connection: Poly1305, each block
/// with a key of its own, which both ends derive from the connection. One thread at a time.
class bulk_tag {
 public:
  using tag = std::array<std::byte, bulk_tag_bytes>;
  /// @pre socket.trusted(), context.has_tags() @throws std::bad_alloc
  bulk_tag(const tls_context& context, secure_socket& socket);
  ~bulk_tag();
  /// Begins the next block. @throws std::bad_alloc
  void begin();
  void add(std::span<const std::byte> bytes) noexcept;
  /// The tag of what was added.
  [[nodiscard]] tag end() noexcept;
  /// Compares in constant time.
  [[nodiscard]] static bool same(const tag& a, const tag& b) noexcept;

 private:
  struct inside;
  owned<inside> in_;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_LINKS)
#include <cairn/impl/links/secure_socket.ipp>
#endif
