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
  std::string access_key = {};
  std::string secret_key = {};
  std::string session_token = {};
  std::int64_t expires = 0;  ///< seconds since 1970; 0: never, or unknown

  /// Wipes what is secret.
  ~s3_credentials() {
    for (auto* secret : {&secret_key, &session_token}) ::OPENSSL_cleanse(secret->data(), secret->size());
  }
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
  std::string_view method;
  std::string_view path;     ///< begins with '/', percent-encoded as it is sent
  const name_values* query;  ///< raw names and values, in any order
  const name_values*
      headers;  ///< all that are signed, `host` among them; the date's and the payload hash's are added
  std::string_view payload_hash;  ///< 64 hexadecimal digits, or UNSIGNED-PAYLOAD
};

namespace detail {

/// Percent-encodes all but the unreserved characters of RFC 3986, and '/' where `keep_slash`.
[[nodiscard]] inline std::string percent_encoded(std::string_view text, bool keep_slash) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto b = static_cast<unsigned char>(c);
    const bool plain = (b >= 'A' && b <= 'Z') || (b >= 'a' && b <= 'z') || (b >= '0' && b <= '9') ||
                       b == '-' || b == '.' || b == '_' || b == '~' || (keep_slash && b == '/');
    if (plain)
      out += c;
    else
      out.append({'%', digits[b >> 4], digits[b & 15]});
  }
  return out;
}

/// The query as it is sent and signed: encoded, sorted by name and then by value.
[[nodiscard]] inline std::string canonical_query(const name_values& query) {
  name_values encoded;
  for (const auto& [name, value] : query)
    encoded.emplace_back(percent_encoded(name, false), percent_encoded(value, false));
  std::sort(encoded.begin(), encoded.end());
  std::string out;
  for (const auto& [name, value] : encoded)
    out.append(out.empty() ? "" : "&").append(name).append("=").append(value);
  return out;
}

/// Trimmed, with one space for each run of spaces.
[[nodiscard]] inline std::string canonical_value(std::string_view value) {
  std::string out;
  bool space = false;
  for (const char c : value) {
    if (c == ' ' || c == '\t') {
      space = true;
      continue;
    }
    if (space && !out.empty()) out += ' ';
    space = false;
    out += c;
  }
  return out;
}

[[nodiscard]] inline std::string lower_case(std::string_view text) {
  std::string out(text);
  for (auto& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

/// Whether a text may stand in a header, an address or a query as it is: printable, without spaces.
[[nodiscard]] inline bool header_safe(std::string_view text) noexcept {
  for (const char c : text)
    if (c <= ' ' || c > '~') return false;
  return true;
}

/// "20130524T000000Z"; its first eight characters are the date.
[[nodiscard]] inline std::string compact_time(std::int64_t unix_seconds) {
  const auto when = static_cast<std::time_t>(unix_seconds);
  std::tm tm{};
  ::gmtime_r(&when, &tm);
  std::array<char, 32> text{};
  const auto n = std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &tm);
  return std::string(text.data(), n);
}

}  // namespace detail

/// Signs requests by signature version 4 as S3 wants it: the path encoded once, the payload's hash in a
/// header. A value: copies are independent, const calls may be made by several threads.
class sigv4_signer {
 public:
  explicit sigv4_signer(std::string region, s3_dialect dialect = s3_dialect::aws)
      : region_(std::move(region)), google_(dialect == s3_dialect::google) {}

  /// What is hashed and signed, for tests and for messages: it holds no secret.
  [[nodiscard]] static std::string canonical_request(const s3_request_text& r, const name_values& headers) {
    std::string out;
    out.append(r.method)
        .append("\n")
        .append(r.path)
        .append("\n")
        .append(detail::canonical_query(*r.query))
        .append("\n");
    for (const auto& [name, value] : headers) out.append(name).append(":").append(value).append("\n");
    out.append("\n").append(names_of(headers)).append("\n").append(r.payload_hash);
    return out;
  }

  /// The headers to send: those of the request, the date, the hash of the payload, the session token and
  /// Authorization. Names in lower case. `now`: seconds since 1970.
  [[nodiscard]] name_values sign(const s3_request_text& r, const s3_credentials& who,
                                 std::int64_t now) const {
    const auto time = detail::compact_time(now);
    const auto date = std::string_view(time).substr(0, 8);
    name_values signed_headers;
    for (const auto& [name, value] : *r.headers)
      signed_headers.emplace_back(detail::lower_case(name), detail::canonical_value(value));
    signed_headers.emplace_back(prefix() + "content-sha256", r.payload_hash);
    signed_headers.emplace_back(prefix() + "date", time);
    if (!who.session_token.empty())
      signed_headers.emplace_back(prefix() + "security-token", who.session_token);
    std::sort(signed_headers.begin(), signed_headers.end());

    const std::string service = google_ ? "storage" : "s3";
    const std::string ending = google_ ? "goog4_request" : "aws4_request";
    const std::string algorithm = google_ ? "GOOG4-HMAC-SHA256" : "AWS4-HMAC-SHA256";
    std::string scope(date);
    scope.append("/").append(region_).append("/").append(service).append("/").append(ending);
    const auto to_sign = algorithm + "\n" + time + "\n" + scope + "\n" +
                         detail::sha256_text(canonical_request(r, signed_headers));

    std::string first((google_ ? "GOOG4" : "AWS4") + who.secret_key);
    auto key =
        detail::hmac_sha256({reinterpret_cast<const unsigned char*>(first.data()), first.size()}, date);
    ::OPENSSL_cleanse(first.data(), first.size());
    for (const auto& step : {std::string_view(region_), std::string_view(service), std::string_view(ending)})
      key = detail::hmac_sha256(key, step);
    const auto signature = detail::hex_text(detail::hmac_sha256(key, to_sign));
    ::OPENSSL_cleanse(key.data(), key.size());

    auto authorization = algorithm + " Credential=" + who.access_key + "/" + scope +
                         ",SignedHeaders=" + names_of(signed_headers) + ",Signature=" + signature;
    signed_headers.emplace_back("authorization", std::move(authorization));
    return signed_headers;
  }

  [[nodiscard]] const std::string& region() const noexcept { return region_; }
  /// "x-amz-" or "x-goog-".
  [[nodiscard]] std::string prefix() const { return google_ ? "x-goog-" : "x-amz-"; }

 private:
  static std::string names_of(const name_values& headers) {
    std::string out;
    for (const auto& [name, value] : headers) out.append(out.empty() ? "" : ";").append(name);
    return out;
  }
  std::string region_;
  bool google_;
};

}  // namespace v1
}  // namespace cairn
