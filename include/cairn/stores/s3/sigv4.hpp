// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/hashes.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {

/// What signs requests; copies are wiped when they go. An empty session_token: a long-lived key.
struct s3_credentials {
  /// The id of the key; it is sent with each request.
  std::string access_key = {};
  /// Signs requests; it is never sent.
  std::string secret_key = {};
  /// Empty for credentials that do not expire.
  std::string session_token = {};
  std::int64_t expires = 0;  ///< seconds since 1970; 0: never, or unknown

  /// Wipes what is secret.
  ~s3_credentials();
};

/// Which dialect of the protocol a service speaks.
enum class s3_dialect : std::uint8_t {
  aws,     ///< AWS4-HMAC-SHA256, x-amz- headers, If-None-Match
  google,  ///< Google Cloud Storage's XML interface: GOOG4-HMAC-SHA256, x-goog- headers, generation
           ///< conditions
};

/// Headers or parameters of a request, in order.
using name_values = std::vector<std::pair<std::string, std::string>>;

/// One request as the signature sees it.
struct s3_request_text {
  /// "GET", "PUT" and so on.
  std::string_view method;
  std::string_view path;     ///< begins with '/', percent-encoded as it is sent
  const name_values* query;  ///< raw names and values, in any order
  const name_values*
      headers;  ///< all that are signed, `host` among them; the date's and the payload hash's are added
  std::string_view payload_hash;  ///< 64 hexadecimal digits, or UNSIGNED-PAYLOAD
};

namespace detail {

/// Percent-encodes all but the unreserved characters of RFC 3986, and '/' where `keep_slash`.
[[nodiscard]] std::string percent_encoded(std::string_view text, bool keep_slash);

/// The query as it is sent and signed: encoded, sorted by name and then by value.
[[nodiscard]] std::string canonical_query(const name_values& query);

/// Trimmed, with one space for each run of spaces.
[[nodiscard]] std::string canonical_value(std::string_view value);

[[nodiscard]] std::string lower_case(std::string_view text);

/// Whether a text may stand in a header, an address or a query as it is: printable, without spaces.
[[nodiscard]] bool header_safe(std::string_view text) noexcept;

}  // namespace detail

/// Signs requests by signature version 4 as S3 wants it: the path encoded once, the payload's hash in a
/// header. A value: copies are independent, const calls may be made by several threads.
class sigv4_signer {
 public:
  explicit sigv4_signer(std::string region, s3_dialect dialect = s3_dialect::aws)
      : region_(std::move(region)), google_(dialect == s3_dialect::google) {}

  /// What is hashed and signed, for tests and for messages: it holds no secret.
  [[nodiscard]] static std::string canonical_request(const s3_request_text& r, const name_values& headers);

  /// The headers to send: those of the request, the date, the hash of the payload, the session token and
  /// Authorization. Names in lower case. `now`: seconds since 1970.
  [[nodiscard]] name_values sign(const s3_request_text& r, const s3_credentials& who, std::int64_t now) const;

  /// The region for which it signs.
  [[nodiscard]] const std::string& region() const noexcept { return region_; }
  /// "x-amz-" or "x-goog-".
  [[nodiscard]] std::string prefix() const;

 private:
  static std::string names_of(const name_values& headers);
  std::string region_;
  bool google_;
};

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/sigv4.ipp>
#endif
