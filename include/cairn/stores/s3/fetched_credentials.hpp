// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/one_request.hpp>
#include <cairn/stores/s3/sigv4.hpp>
#include <cairn/stores/s3/xml.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/json_parser.hpp>

#include <arpa/inet.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

// The credentials that AWS gives to a machine, a container or a pod, asked for where its SDKs ask. Each
// function gives nothing where the environment does not speak of its source, and throws storage_permission
// where it does and the source does not give any. It blocks for some seconds at most.

[[nodiscard]] std::string environment_text(const char* name);

/// "2026-01-31T23:59:59Z" in seconds since 1970, with or without a fraction; nothing for anything else.
[[nodiscard]] std::optional<std::int64_t> time_of_iso(std::string_view text);

/// {"AccessKeyId": ..., "SecretAccessKey": ..., "Token": ..., "Expiration": ...}, as machines and containers
/// get it.
class credential_json final : public json_events {
 public:
  s3_credentials found;
  std::string code;  ///< of an error

  /// Nothing if the text is no such object.
  [[nodiscard]] static std::optional<credential_json> read(std::string_view text);

  const char* begin_object() override { return depth_++ == 0 ? nullptr : skip(); }
  const char* key(std::string_view text) override;
  const char* end_object() override;
  const char* begin_array() override;
  const char* end_array() override { return end_object(); }
  const char* string(std::string_view text) override;
  const char* number(std::uint64_t) override { return other(); }
  const char* other() override;

 private:
  static const char* skip() noexcept { return nullptr; }
  int depth_ = 0;
  std::string key_;
};

/// The credentials of the machine's role, from version 2 of the metadata service: with a token, which no
/// forged request of a proxy gets. `required`: a machine without a role is an error.
[[nodiscard]] std::optional<s3_credentials> credentials_of_instance(bool required);

/// True where a container's end point may be asked: over TLS, or on this host or link, as AWS's SDKs have it.
[[nodiscard]] bool is_allowed_endpoint(std::string_view url);

/// The credentials of a container's task or pod (ECS, EKS Pod Identity).
[[nodiscard]] std::optional<s3_credentials> credentials_of_container();

/// The credentials of a role that a web identity may take (IRSA on EKS, and whatever else writes a token to a
/// file).
[[nodiscard]] std::optional<s3_credentials> credentials_of_web_identity();

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/fetched_credentials.ipp>
#endif
