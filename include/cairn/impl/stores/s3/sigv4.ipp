// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/hashes.hpp>
#include <cairn/stores/s3/sigv4.hpp>
#include <cairn/system/algorithm.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {

CAIRN_BODY s3_credentials::~s3_credentials() {
  for (auto* secret : {&secret_key, &session_token}) ::OPENSSL_cleanse(secret->data(), secret->size());
}

namespace detail {

CAIRN_BODY std::string percent_encoded(std::string_view text, bool keep_slash) {
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

CAIRN_BODY std::string canonical_query(const name_values& query) {
  name_values encoded;
  for (const auto& [name, value] : query)
    encoded.emplace_back(percent_encoded(name, false), percent_encoded(value, false));
  detail::sort(encoded);
  std::string out;
  for (const auto& [name, value] : encoded)
    out.append(out.empty() ? "" : "&").append(name).append("=").append(value);
  return out;
}

CAIRN_BODY std::string canonical_value(std::string_view value) {
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

CAIRN_BODY std::string lower_case(std::string_view text) {
  std::string out(text);
  for (auto& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

CAIRN_BODY bool header_safe(std::string_view text) noexcept {
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

CAIRN_BODY std::string sigv4_signer::canonical_request(const s3_request_text& r, const name_values& headers) {
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

CAIRN_BODY name_values sigv4_signer::sign(const s3_request_text& r, const s3_credentials& who,
                                          std::int64_t now) const {
  const auto time = detail::compact_time(now);
  const auto date = std::string_view(time).substr(0, 8);
  name_values signed_headers;
  for (const auto& [name, value] : *r.headers)
    signed_headers.emplace_back(detail::lower_case(name), detail::canonical_value(value));
  signed_headers.emplace_back(prefix() + "content-sha256", r.payload_hash);
  signed_headers.emplace_back(prefix() + "date", time);
  if (!who.session_token.empty()) signed_headers.emplace_back(prefix() + "security-token", who.session_token);
  detail::sort(signed_headers);

  const std::string service = google_ ? "storage" : "s3";
  const std::string ending = google_ ? "goog4_request" : "aws4_request";
  const std::string algorithm = google_ ? "GOOG4-HMAC-SHA256" : "AWS4-HMAC-SHA256";
  std::string scope(date);
  scope.append("/").append(region_).append("/").append(service).append("/").append(ending);
  const auto to_sign = algorithm + "\n" + time + "\n" + scope + "\n" +
                       detail::sha256_text(canonical_request(r, signed_headers));

  std::string first((google_ ? "GOOG4" : "AWS4") + who.secret_key);
  auto key = detail::hmac_sha256({reinterpret_cast<const unsigned char*>(first.data()), first.size()}, date);
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

CAIRN_BODY std::string sigv4_signer::prefix() const {
  return google_ ? "x-goog-" : "x-amz-";
}

CAIRN_BODY std::string sigv4_signer::names_of(const name_values& headers) {
  std::string out;
  for (const auto& [name, value] : headers) out.append(out.empty() ? "" : ";").append(name);
  return out;
}

}  // namespace v1
}  // namespace cairn
