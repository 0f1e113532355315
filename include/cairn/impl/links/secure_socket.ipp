// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/links/link_frame.hpp>
#include <cairn/links/link_key.hpp>
#include <cairn/links/secure_socket.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/owned.hpp>
#include <cairn/system/unforked_file.hpp>

#include <openssl/bio.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

// Public, the same for all jobs: the key alone decides.
inline constexpr unsigned char psk_identity[] = "cairn peer link";

struct tls_context::inside {
  explicit inside(const link_key& made_of) : key(made_of) {}
  inside(const inside&) = delete;
  inside& operator=(const inside&) = delete;
  ~inside() {
    ::SSL_CTX_free(context);
    ::BIO_meth_free(wire);
    ::EVP_MAC_free(poly1305);
    ::EVP_MAC_free(hmac);
  }

  link_key key;
  SSL_CTX* context = nullptr;
  BIO_METHOD* wire = nullptr;
  EVP_MAC* poly1305 = nullptr;
  EVP_MAC* hmac = nullptr;
};

struct secure_socket::inside {
  inside(owned<unforked_file> connected, side which) : socket(std::move(connected)), is(which) {}
  inside(const inside&) = delete;
  inside& operator=(const inside&) = delete;
  ~inside() { ::SSL_free(ssl); }

  /// What recv() or send() gave, as a progress.
  static socket_progress told(ssize_t moved, socket_progress::state when_full) noexcept {
    if (moved > 0) return {socket_progress::state::moved, static_cast<std::size_t>(moved)};
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {when_full, 0};
    return {socket_progress::state::ended, 0};
  }
  ssize_t receive(void* into, std::size_t bytes) const noexcept {
    ssize_t got;
    do got = ::recv(socket->get(), into, bytes, 0);
    while (got < 0 && errno == EINTR);
    return got;
  }
  ssize_t send(const void* from, std::size_t bytes) const noexcept {
    ssize_t put;
    do put = ::send(socket->get(), from, bytes, MSG_NOSIGNAL);
    while (put < 0 && errno == EINTR);
    return put;
  }
  /// What a call of OpenSSL gave, which returned `result`.
  socket_progress told_by_tls(int result, std::size_t bytes) noexcept {
    if (result == 1) return {socket_progress::state::moved, bytes};
    const int why = ::SSL_get_error(ssl, result);
    if (why == SSL_ERROR_WANT_READ) return {socket_progress::state::wants_read, 0};
    if (why == SSL_ERROR_WANT_WRITE) return {socket_progress::state::wants_write, 0};
    ::ERR_clear_error();
    return {socket_progress::state::ended, 0};
  }

  owned<unforked_file>
      socket;  // so that the other end learns of this process's end, whatever children it has
  side is;
  bool trusted = false;
  SSL* ssl = nullptr;
};

/// The transport of OpenSSL: its own raises SIGPIPE, and tells strangers why they are refused. A class, so that it
/// reaches what is private.
struct socket_bio {
  static secure_socket::inside& of(BIO* bio) noexcept {
    return *static_cast<secure_socket::inside*>(::BIO_get_data(bio));
  }
};

CAIRN_BODY tls_context::tls_context(const link_key& key) : in_(detail::make_owned<inside>(key)) {
  const auto need = [](bool good) {
    if (good) return;
    ::ERR_clear_error();
    fail(error_id::storage_io,
         "OpenSSL refuses TLS 1.3 with a pre-shared key; links need OpenSSL 3.0 or later");
  };
  need((in_->context = ::SSL_CTX_new(::TLS_method())) != nullptr);
  auto* const c = in_->context;
  need(::SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) == 1);
  need(::SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256") == 1);
  // Without tickets nothing but the key resumes a session, and a server sends nothing of its own accord.
  need(::SSL_CTX_set_num_tickets(c, 0) == 1);
  // Without an id for sessions, a server that asks for a proof refuses them.
  need(::SSL_CTX_set_session_id_context(c, psk_identity, sizeof psk_identity) == 1);
  // Without the key a certificate would be asked for, and there is none.
  ::SSL_CTX_set_verify(c, SSL_VERIFY_PEER, nullptr);
  ::SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_mode(
      c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  ::SSL_CTX_set_read_ahead(c, 0);  // what follows a TLS message may be outside of TLS
  need(::SSL_CTX_set_ex_data(c, 0, in_.get()) == 1);
  struct made {
    static SSL_SESSION* session(SSL* ssl) noexcept {
      static const unsigned char suite[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
      const auto& own = *static_cast<const inside*>(::SSL_CTX_get_ex_data(::SSL_get_SSL_CTX(ssl), 0));
      SSL_SESSION* const s = ::SSL_SESSION_new();
      if (s == nullptr) return nullptr;
      const auto& bytes = own.key.bytes();
      if (::SSL_SESSION_set1_master_key(s, reinterpret_cast<const unsigned char*>(bytes.data()),
                                        bytes.size()) == 1 &&
          ::SSL_SESSION_set_cipher(s, ::SSL_CIPHER_find(ssl, suite)) == 1 &&
          ::SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION) == 1 &&
          ::SSL_SESSION_set1_id_context(s, psk_identity, sizeof psk_identity) == 1)
        return s;
      ::SSL_SESSION_free(s);
      return nullptr;
    }
  };
  ::SSL_CTX_set_psk_find_session_callback(
      c, [](SSL* ssl, const unsigned char* id, std::size_t size, SSL_SESSION** out) {
        *out = nullptr;
        if (size == sizeof psk_identity && std::memcmp(id, psk_identity, size) == 0)
          *out = made::session(ssl);
        return 1;
      });
  ::SSL_CTX_set_psk_use_session_callback(
      c, [](SSL* ssl, const EVP_MD*, const unsigned char** id, std::size_t* size, SSL_SESSION** out) {
        *id = psk_identity;
        *size = sizeof psk_identity;
        *out = made::session(ssl);
        return *out != nullptr ? 1 : 0;
      });

  static const int type = BIO_TYPE_SOURCE_SINK | ::BIO_get_new_index();  // OpenSSL has 127 of them
  need((in_->wire = ::BIO_meth_new(type, "cairn link")) != nullptr);
  ::BIO_meth_set_write_ex(in_->wire, [](BIO* bio, const char* from, std::size_t size, std::size_t* put) {
    auto& socket = socket_bio::of(bio);
    BIO_clear_retry_flags(bio);
    // A server has accepted the key before it has anything else to send than why it refuses.
    if (socket.is == secure_socket::side::server && !socket.trusted &&
        ::SSL_session_reused(socket.ssl) != 1) {
      *put = size;
      return 1;
    }
    const auto sent = socket.send(from, size);
    if (sent > 0) {
      *put = static_cast<std::size_t>(sent);
      return 1;
    }
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) BIO_set_retry_write(bio);
    return 0;
  });
  ::BIO_meth_set_read_ex(in_->wire, [](BIO* bio, char* into, std::size_t size, std::size_t* got) {
    auto& socket = socket_bio::of(bio);
    BIO_clear_retry_flags(bio);
    const auto received = socket.receive(into, size);
    if (received > 0) {
      *got = static_cast<std::size_t>(received);
      return 1;
    }
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) BIO_set_retry_read(bio);
    return 0;
  });
  ::BIO_meth_set_ctrl(in_->wire,
                      [](BIO*, int command, long, void*) -> long { return command == BIO_CTRL_FLUSH; });
  in_->poly1305 = ::EVP_MAC_fetch(nullptr, "POLY1305", nullptr);
  in_->hmac = ::EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  ::ERR_clear_error();
}
CAIRN_BODY bool tls_context::has_tags() const noexcept {
  return in_->poly1305 != nullptr && in_->hmac != nullptr;
}
CAIRN_BODY tls_context::~tls_context() = default;

CAIRN_BODY secure_socket::secure_socket(const tls_context& context, owned<unforked_file> connected,
                                        side which)
    : in_(detail::make_owned<inside>(std::move(connected), which)) {
  auto* const ssl = in_->ssl = ::SSL_new(context.in_->context);
  BIO* const bio = ssl != nullptr ? ::BIO_new(context.in_->wire) : nullptr;
  if (bio == nullptr) throw std::bad_alloc();
  ::BIO_set_data(bio, in_.get());
  ::BIO_set_init(bio, 1);
  ::SSL_set_bio(ssl, bio, bio);
  if (which == side::server)
    ::SSL_set_accept_state(ssl);
  else
    ::SSL_set_connect_state(ssl);
}
CAIRN_BODY secure_socket::~secure_socket() = default;

CAIRN_BODY int secure_socket::number() const noexcept {
  return in_->socket->get();
}
CAIRN_BODY bool secure_socket::trusted() const noexcept {
  return in_->trusted;
}
CAIRN_BODY bool secure_socket::has_shown_key() const noexcept {
  return ::SSL_session_reused(in_->ssl) == 1;
}

CAIRN_BODY socket_progress secure_socket::handshake() noexcept {
  ::ERR_clear_error();
  const auto progress = in_->told_by_tls(::SSL_do_handshake(in_->ssl), 0);
  if (progress.what != socket_progress::state::moved) return progress;
  // OpenSSL calls a session that began with the key a reused one. Another handshake proves nothing.
  in_->trusted = ::SSL_session_reused(in_->ssl) == 1 && ::SSL_version(in_->ssl) == TLS1_3_VERSION;
  return in_->trusted ? progress : socket_progress{};
}

CAIRN_BODY socket_progress secure_socket::read(std::span<std::byte> into) noexcept {
  ::ERR_clear_error();
  std::size_t got = 0;
  const int result = ::SSL_read_ex(in_->ssl, into.data(), into.size(), &got);
  return in_->told_by_tls(result, got);
}
CAIRN_BODY socket_progress secure_socket::write(std::span<const std::byte> bytes) noexcept {
  ::ERR_clear_error();
  std::size_t put = 0;
  const int result = ::SSL_write_ex(in_->ssl, bytes.data(), bytes.size(), &put);
  return in_->told_by_tls(result, put);
}
CAIRN_BODY socket_progress secure_socket::read_plain(std::span<std::byte> into) noexcept {
  return inside::told(in_->receive(into.data(), into.size()), socket_progress::state::wants_read);
}
CAIRN_BODY socket_progress secure_socket::write_plain(std::span<const std::byte> bytes) noexcept {
  return inside::told(in_->send(bytes.data(), bytes.size()), socket_progress::state::wants_write);
}
CAIRN_BODY void secure_socket::renew_key() noexcept {
  static_cast<void>(::SSL_key_update(in_->ssl, SSL_KEY_UPDATE_NOT_REQUESTED));
}

struct bulk_tag::inside {
  inside() = default;
  inside(const inside&) = delete;
  inside& operator=(const inside&) = delete;
  ~inside() {
    ::EVP_MAC_CTX_free(poly1305);
    ::EVP_MAC_CTX_free(hmac);
    ::OPENSSL_cleanse(secret, sizeof secret);
  }
  unsigned char secret[32] = {};
  std::uint64_t block = 0;
  EVP_MAC_CTX* poly1305 = nullptr;
  EVP_MAC_CTX* hmac = nullptr;
};

CAIRN_BODY bulk_tag::bulk_tag(const tls_context& context, secure_socket& socket)
    : in_(detail::make_owned<inside>()) {
  if (!context.has_tags()) throw std::bad_alloc();  // OpenSSL asks the missing ones without looking
  static const char label[] = "EXPORTER-cairn-link-bulk";
  if (::SSL_export_keying_material(socket.in_->ssl, in_->secret, sizeof in_->secret, label, sizeof label - 1,
                                   nullptr, 0, 0) != 1)
    throw std::bad_alloc();
  in_->poly1305 = ::EVP_MAC_CTX_new(context.in_->poly1305);
  in_->hmac = ::EVP_MAC_CTX_new(context.in_->hmac);
  if (in_->poly1305 == nullptr || in_->hmac == nullptr) throw std::bad_alloc();
}
CAIRN_BODY bulk_tag::~bulk_tag() = default;

CAIRN_BODY void bulk_tag::begin() {
  char sha256[] = "SHA256";
  const OSSL_PARAM with[] = {::OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, sha256, 0),
                             ::OSSL_PARAM_construct_end()};
  unsigned char number[8];
  std::memcpy(number, &in_->block, sizeof number);
  ++in_->block;
  unsigned char key[32];
  std::size_t size = 0;
  if (::EVP_MAC_init(in_->hmac, in_->secret, sizeof in_->secret, with) != 1 ||
      ::EVP_MAC_update(in_->hmac, number, sizeof number) != 1 ||
      ::EVP_MAC_final(in_->hmac, key, &size, sizeof key) != 1 || size != sizeof key ||
      ::EVP_MAC_init(in_->poly1305, key, sizeof key, nullptr) != 1)
    throw std::bad_alloc();
  ::OPENSSL_cleanse(key, sizeof key);
}
CAIRN_BODY void bulk_tag::add(std::span<const std::byte> bytes) noexcept {
  static_cast<void>(
      ::EVP_MAC_update(in_->poly1305, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}
CAIRN_BODY bulk_tag::tag bulk_tag::end() noexcept {
  tag made{};
  std::size_t size = 0;
  static_cast<void>(
      ::EVP_MAC_final(in_->poly1305, reinterpret_cast<unsigned char*>(made.data()), &size, made.size()));
  return made;
}
CAIRN_BODY bool bulk_tag::same(const tag& a, const tag& b) noexcept {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
