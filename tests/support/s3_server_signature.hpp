// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <support/s3_server_http.hpp>

/// Who may use the scripted S3 server, and the signature (version 4) that a request must carry.
namespace cairn_test::s3 {

struct credentials {
  std::string access_key = "AKIDCAIRNTESTS";
  std::string secret_key = "scripted/secret+key=of~the.tests";
  std::string session_token;  ///< where it is not empty, a request must carry it
  bool expired = false;       ///< answered with ExpiredToken
};

class signature_check {
 public:
  std::vector<credentials> accepted{credentials{}};
  std::string region = "us-east-1";
  std::int64_t allowed_skew_seconds = 900;
  bool allow_unsigned_payload = true;
  bool google = false;  ///< GOOG4-HMAC-SHA256, with x-goog- in place of x-amz-

  /// The error to answer, or nothing. `now` is the server's clock, seconds since 1970. The body is checked
  /// apart.
  [[nodiscard]] std::optional<http_reply> refuse(const http_request& request, std::time_t now) const {
    const auto* authorization = request.header("authorization");
    if (authorization == nullptr)
      return error_reply(403, "AccessDenied", "The request carries no Authorization");
    const std::string maker = google ? "GOOG4" : "AWS4";
    const std::string prefix = google ? "x-goog-" : "x-amz-";
    const std::string service = google ? "storage" : "s3";
    const std::string ending = google ? "goog4_request" : "aws4_request";
    const std::string scheme = maker + "-HMAC-SHA256 ";
    if (authorization->compare(0, scheme.size(), scheme) != 0) {
      return error_reply(400, "AuthorizationHeaderMalformed", "Only " + scheme + "is accepted");
    }
    std::map<std::string, std::string> fields;
    for (std::string_view rest = std::string_view(*authorization).substr(scheme.size()); !rest.empty();) {
      const auto comma = rest.find(',');
      const auto field = trimmed(rest.substr(0, comma));
      const auto equals = field.find('=');
      if (equals == std::string_view::npos) return malformed("a field without =");
      fields[std::string(field.substr(0, equals))] = field.substr(equals + 1);
      rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    }
    const auto scope = split(fields["Credential"], '/');
    if (scope.size() != 5 || scope[3] != service || scope[4] != ending) return malformed("a wrong scope");
    const auto key = std::find_if(accepted.begin(), accepted.end(),
                                  [&](const credentials& one) { return one.access_key == scope[0]; });
    if (key == accepted.end()) {
      return error_reply(403, "InvalidAccessKeyId", "The access key does not exist in our records.");
    }
    const auto* token = request.header(prefix + "security-token");
    if (key->expired) return error_reply(400, "ExpiredToken", "The provided token has expired.");
    if ((token == nullptr ? std::string() : *token) != key->session_token) {
      return error_reply(400, "InvalidToken", "The provided token is malformed or otherwise invalid.");
    }
    if (scope[2] != region) {
      return error_reply(400, "AuthorizationHeaderMalformed",
                         "The authorization header is malformed; the region '" + scope[2] +
                             "' is wrong; expecting '" + region + "'",
                         xml_element("Region", region));
    }
    const auto* date = request.header(prefix + "date");
    const auto time = date == nullptr ? std::nullopt : time_of(*date);
    if (!time)
      return error_reply(403, "AccessDenied", "AWS authentication requires a valid x-amz-date header");
    if (date->substr(0, 8) != scope[1]) return malformed("a date that is not that of x-amz-date");
    if (std::llabs(static_cast<long long>(*time - now)) > allowed_skew_seconds) {
      return error_reply(403, "RequestTimeTooSkewed",
                         "The difference between the request time and the current time is too large.");
    }
    const auto* payload = request.header(prefix + "content-sha256");
    if (payload == nullptr) {
      return error_reply(400, "InvalidRequest",
                         "Missing required header for this request: x-amz-content-sha256");
    }
    if (payload->rfind("STREAMING-", 0) == 0) {
      return error_reply(501, "NotImplemented", "Streaming signatures are not implemented");
    }
    const bool is_hash =
        payload->size() == 64 && payload->find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!is_hash && (*payload != "UNSIGNED-PAYLOAD" || !allow_unsigned_payload)) {
      return error_reply(400, "InvalidArgument",
                         "x-amz-content-sha256 must be UNSIGNED-PAYLOAD or a SHA-256");
    }

    const auto names = split(fields["SignedHeaders"], ';');
    if (!std::is_sorted(names.begin(), names.end())) return malformed("signed headers that are not sorted");
    std::string canonical_headers;
    for (const auto& name : names) {
      if (name != lower(name)) return malformed("signed headers that are not in lower case");
      const auto* value = request.header(name);
      if (value == nullptr) return no_match("the signed header " + name + " was not sent");
      canonical_headers += name + ":" + squeezed(*value) + "\n";
    }
    for (const auto& [name, value] : request.headers) {
      const bool must = name == "host" || name.rfind(prefix, 0) == 0;
      if (must && std::find(names.begin(), names.end(), name) == names.end()) {
        return error_reply(403, "AccessDenied",
                           "There were headers present in the request which were not signed",
                           xml_element("HeadersNotSigned", name));
      }
    }
    const auto path = percent_decoded(request.raw_path);
    if (!path) return error_reply(400, "InvalidURI", "Couldn't parse the specified URI.");
    name_values parameters;
    for (const auto& [name, value] : request.parameters) {
      parameters.emplace_back(percent_encoded(name, false), percent_encoded(value, false));
    }
    std::sort(parameters.begin(), parameters.end());
    std::string query;
    for (const auto& [name, value] : parameters) query += (query.empty() ? "" : "&") + name + "=" + value;
    const std::string canonical = request.method + "\n" + percent_encoded(*path, true) + "\n" + query + "\n" +
                                  canonical_headers + "\n" + fields["SignedHeaders"] + "\n" + *payload;
    const std::string to_sign = maker + "-HMAC-SHA256\n" + *date + "\n" + scope[1] + "/" + scope[2] + "/" +
                                service + "/" + ending + "\n" + hex_of(hash_of(EVP_sha256(), canonical));
    std::string signing_key = hmac_sha256(maker + key->secret_key, scope[1]);
    signing_key = hmac_sha256(signing_key, scope[2]);
    signing_key = hmac_sha256(signing_key, service);
    signing_key = hmac_sha256(signing_key, ending);
    if (hex_of(hmac_sha256(signing_key, to_sign)) != fields["Signature"]) {
      return no_match("the canonical request would be: " + canonical);
    }
    return std::nullopt;
  }

  /// After the body has come.
  [[nodiscard]] static std::optional<http_reply> refuse_body(const http_request& request) {
    const auto* payload = request.header("x-amz-content-sha256");
    if (payload == nullptr || *payload == "UNSIGNED-PAYLOAD" || *payload == request.body_sha256)
      return std::nullopt;
    return error_reply(400, "XAmzContentSHA256Mismatch",
                       "The provided 'x-amz-content-sha256' header does not match what was computed.");
  }

 private:
  static http_reply malformed(const std::string& what) {
    return error_reply(400, "AuthorizationHeaderMalformed", "The authorization header is malformed: " + what);
  }
  static http_reply no_match(const std::string& what) {
    return error_reply(
        403, "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided: " + what);
  }
  static std::vector<std::string> split(std::string_view text, char separator) {
    std::vector<std::string> out;
    for (;;) {
      const auto at = text.find(separator);
      out.emplace_back(text.substr(0, at));
      if (at == std::string_view::npos) return out;
      text.remove_prefix(at + 1);
    }
  }
  static std::string squeezed(std::string_view text) {
    std::string out;
    for (const char c : trimmed(text)) {
      if (c != ' ' || out.empty() || out.back() != ' ') out += c;
    }
    return out;
  }
  static std::optional<std::time_t> time_of(const std::string& text) {
    std::tm parts{};
    const char* end = ::strptime(text.c_str(), "%Y%m%dT%H%M%SZ", &parts);
    if (end == nullptr || *end != '\0') return std::nullopt;
    return ::timegm(&parts);
  }
};

}  // namespace cairn_test::s3
