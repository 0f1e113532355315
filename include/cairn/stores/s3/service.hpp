// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/clock.hpp>
#include <cairn/stores/s3/options.hpp>
#include <cairn/stores/s3/pace.hpp>
#include <cairn/stores/s3/sigv4.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What all requests of a store share. Members below the line belong to the transport's thread.
struct s3_service final : credential_provider {
  s3_service(s3_options o, s3_credential_source source, std::shared_ptr<s3_clock> c);
  s3_options options;
  s3_address address;
  sigv4_signer signer;
  credential_cache credentials;
  std::shared_ptr<s3_clock> clock;
  std::atomic<bool> checksums{true};  ///< the service accepts them, or was not asked yet
  std::atomic<bool> checksums_known{false};
  std::atomic<bool> signs_bodies{true};     ///< what is sent goes with its SHA-256 signed
  std::atomic<bool> takes_unsigned{false};  ///< the service took a body without
  std::atomic<bool> keeps_removed{false};   ///< a removal left a delete marker
  std::atomic<bool> removes_many{true};  ///< it removes several objects by one request, or was not asked yet
  std::atomic<bool> told_of_hidden_signs{false};  ///< that it refuses to say which writers live
  std::atomic<std::int64_t> skew{0};              ///< the server's clock less ours, in seconds

  /// To a worker process that asks for credentials, other ones than those of the number that it names.
  [[nodiscard]] secret_bytes answer(std::span<const std::byte> question) override;

  s3_pace pace;                       ///< any thread
  std::atomic<std::size_t> calls{0};  ///< that were begun and have not ended

  retry_bucket retries;
};

/// Whether bytes are sent with their hash signed.
[[nodiscard]] inline bool signs_payload(const s3_service& s) noexcept {
  return s.signs_bodies.load();
}

/// The header that a body's checksum goes into.
[[nodiscard]] std::string_view checksum_header(const s3_options& o) noexcept;

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/service.ipp>
#endif
