// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/fetched_credentials.hpp>
#include <cairn/stores/s3/hashes.hpp>
#include <cairn/stores/s3/one_request.hpp>
#include <cairn/stores/s3/sigv4.hpp>
#include <cairn/stores/s3/xml.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/json_parser.hpp>

#include <arpa/inet.h>

#include <chrono>
#include <cstddef>
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

CAIRN_BODY std::string environment_text(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

/// A small file that holds a token, without the white space at its end; nothing where it cannot be read.
[[nodiscard]] inline std::optional<std::string> token_in_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (!file) return std::nullopt;
  std::string text(std::size_t{64} << 10, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  while (!text.empty() && static_cast<unsigned char>(text.back()) <= ' ') text.pop_back();
  return text;
}

[[noreturn]] inline void fail_fetching(std::string_view what, std::string got = {}) {
  fail(error_id::storage_permission, "there are no credentials for the object store: " + std::string(what),
       {.got = std::move(got)});
}

/// What may be said of an answer: its status, and an error's code, of which nobody makes a secret.
[[nodiscard]] inline std::string status_text(const std::optional<one_answer>& answer,
                                             std::string_view code = {}) {
  if (!answer) return "no answer in time";
  std::string out = "status " + std::to_string(answer->status);
  if (code.empty() || code.size() > 64) return out;
  for (const char c : code)
    if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.')) return out;
  return out + " " + std::string(code);
}

CAIRN_BODY std::optional<std::int64_t> time_of_iso(std::string_view text) {
  std::tm parts{};
  const std::string copy(text.substr(0, 64));
  const char* const end = ::strptime(copy.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (end == nullptr || (*end != '.' && *end != 'Z')) return std::nullopt;
  return static_cast<std::int64_t>(::timegm(&parts));
}

CAIRN_BODY std::optional<credential_json> credential_json::read(std::string_view text) {
  credential_json made;
  if (parse_json(text, made).what != nullptr) return std::nullopt;
  return made;
}

CAIRN_BODY const char* credential_json::key(std::string_view text) {
  if (depth_ == 1) key_ = text;
  return nullptr;
}

CAIRN_BODY const char* credential_json::end_object() {
  --depth_;
  return nullptr;
}

CAIRN_BODY const char* credential_json::begin_array() {
  return depth_++ == 0 ? "is no object" : skip();
}

CAIRN_BODY const char* credential_json::string(std::string_view text) {
  if (depth_ != 1) return depth_ == 0 ? "is no object" : nullptr;
  if (key_ == "AccessKeyId") found.access_key = text;
  if (key_ == "SecretAccessKey") found.secret_key = text;
  if (key_ == "Token") found.session_token = text;
  if (key_ == "Expiration") found.expires = time_of_iso(text).value_or(0);
  if (key_ == "Code" || key_ == "code") code = text;
  return nullptr;
}

CAIRN_BODY const char* credential_json::other() {
  return depth_ == 0 ? "is no object" : nullptr;
}

/// Credentials in an answer. @throws storage_permission
[[nodiscard]] inline s3_credentials credentials_in(const std::optional<one_answer>& answer,
                                                   std::string_view whose) {
  auto read = answer ? credential_json::read(answer->body) : std::nullopt;
  if (answer && answer->status == 200 && read && !read->found.access_key.empty() &&
      !read->found.secret_key.empty())
    return std::move(read->found);
  fail_fetching(whose, status_text(answer, read ? read->code : std::string()));
}

CAIRN_BODY std::optional<s3_credentials> credentials_of_instance(bool required) {
  if (lower_case(environment_text("AWS_EC2_METADATA_DISABLED")) == "true") return std::nullopt;
  auto base = environment_text("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  required = required || !base.empty();
  if (base.empty())
    base = lower_case(environment_text("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE")) == "ipv6"
               ? "http://[fd00:ec2::254]"
               : "http://169.254.169.254";
  while (base.ends_with('/')) base.pop_back();
  const auto token = ask_once({.method = "PUT",
                               .url = base + "/latest/api/token",
                               .headers = {"X-aws-ec2-metadata-token-ttl-seconds: 21600"}});
  // On a machine outside of AWS nothing answers, or something else does.
  if ((!token || token->status != 200) && !required) return std::nullopt;
  if (!token || token->status != 200 || token->body.empty() || !header_safe(token->body))
    fail_fetching(
        "the metadata service of this machine gives no token (IMDSv2); for a container its hop limit must be "
        "2",
        status_text(token));
  const std::string header = "X-aws-ec2-metadata-token: " + token->body;
  const auto roles = base + "/latest/meta-data/iam/security-credentials/";
  const auto names = ask_once({.url = roles, .headers = {header}});
  if (names && names->status == 404) {
    if (!required) return std::nullopt;
    fail_fetching("this machine has no IAM role", status_text(names));
  }
  auto role = names && names->status == 200 ? names->body.substr(0, names->body.find_first_of("\r\n")) : "";
  if (role.empty() || role.size() > 256)
    fail_fetching("the metadata service of this machine does not name its role", status_text(names));
  return credentials_in(ask_once({.url = roles + percent_encoded(role, false), .headers = {header}}),
                        "the metadata service gave none for this machine's role");
}

CAIRN_BODY bool is_allowed_endpoint(std::string_view url) {
  if (url.starts_with("https://")) return true;
  if (!url.starts_with("http://")) return false;
  url.remove_prefix(7);
  auto host = std::string(url.substr(0, url.find_first_of("/?#")));
  if (host.find('@') != std::string::npos) return false;
  if (host.starts_with('[')) {
    const auto end = host.find(']');
    if (end == std::string::npos || (end + 1 != host.size() && host[end + 1] != ':')) return false;
    host = host.substr(1, end - 1);
    in6_addr address{};
    in6_addr pod{};
    ::inet_pton(AF_INET6, "fd00:ec2::23", &pod);
    if (::inet_pton(AF_INET6, host.c_str(), &address) != 1) return false;
    return IN6_IS_ADDR_LOOPBACK(&address) || IN6_ARE_ADDR_EQUAL(&address, &pod);
  }
  host = host.substr(0, host.find(':'));
  in_addr address{};
  if (::inet_pton(AF_INET, host.c_str(), &address) != 1) return lower_case(host) == "localhost";
  return (ntohl(address.s_addr) >> 24) == 127 || host == "169.254.170.2" || host == "169.254.170.23";
}

CAIRN_BODY std::optional<s3_credentials> credentials_of_container() {
  const auto relative = environment_text("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  auto url = environment_text("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (relative.empty() && url.empty()) return std::nullopt;
  if (!relative.empty()) url = "http://169.254.170.2" + relative;
  if (!is_allowed_endpoint(url) || !header_safe(url) || (!relative.empty() && relative.front() != '/'))
    fail_fetching(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI must be https://, or http:// to this host or to the addresses of "
        "ECS "
        "and EKS");
  one_request request{.url = url};
  request.headers.push_back("Accept: application/json");
  auto token = environment_text("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const auto path = environment_text("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); !path.empty()) {
    auto read = token_in_file(path);  // it is replaced before it expires
    if (!read || read->empty())
      fail_fetching("the file of AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE cannot be read", path);
    token = std::move(*read);
  }
  for (const char c : token)
    if (c < ' ' || c > '~')
      fail_fetching("the authorization token of the container holds characters that no HTTP header may hold");
  if (!token.empty()) request.headers.push_back("Authorization: " + token);
  ::OPENSSL_cleanse(token.data(), token.size());
  auto answer = ask_once(request);
  if (!answer || answer->status >= 500)
    return credentials_in(ask_once(request), "the container's end point gave none");
  return credentials_in(answer, "the container's end point gave none");
}

CAIRN_BODY std::optional<s3_credentials> credentials_of_web_identity() {
  const auto path = environment_text("AWS_WEB_IDENTITY_TOKEN_FILE");
  const auto role = environment_text("AWS_ROLE_ARN");
  if (path.empty() || role.empty()) return std::nullopt;
  auto token = token_in_file(path);  // it is replaced before it expires
  if (!token || token->empty()) fail_fetching("the file of AWS_WEB_IDENTITY_TOKEN_FILE cannot be read", path);
  auto session = environment_text("AWS_ROLE_SESSION_NAME");
  if (session.empty()) session = "cairn-" + random_token().substr(0, 16);
  auto region = environment_text("AWS_REGION");
  if (region.empty()) region = environment_text("AWS_DEFAULT_REGION");
  auto url = environment_text("AWS_ENDPOINT_URL_STS");
  if (url.empty()) url = environment_text("AWS_ENDPOINT_URL");
  if (url.empty())
    url = "https://sts." + (region.empty() ? region : region + ".") + "amazonaws.com" +
          (region.starts_with("cn-") ? ".cn" : "");
  if (!header_safe(url) || !(url.starts_with("https://") || url.starts_with("http://")))
    fail_fetching("the address of the token service (AWS_ENDPOINT_URL_STS, AWS_REGION) is not valid");
  if (!url.ends_with('/')) url += '/';
  one_request request{
      .method = "POST",
      .url = url,
      .headers = {"Content-Type: application/x-www-form-urlencoded"},
      .body = "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=" + percent_encoded(role, false) +
              "&RoleSessionName=" + percent_encoded(session, false) +
              "&WebIdentityToken=" + percent_encoded(*token, false),
      .connect_timeout = std::chrono::seconds(2),
      .timeout = std::chrono::seconds(5),
      .direct = false};
  ::OPENSSL_cleanse(token->data(), token->size());
  auto answer = ask_once(request);
  const bool again = !answer || answer->status >= 500;
  const auto last = again ? ask_once(request) : std::move(answer);
  std::string code;
  try {
    const auto document = last ? xml_reader::read(last->body, "answer") : xml_element{};
    if (const auto* const error = document.child("Error")) code = error->text_of("Code");
    const auto* const result = document.child("AssumeRoleWithWebIdentityResult");
    if (const auto* const given = result != nullptr ? result->child("Credentials") : nullptr;
        given != nullptr && last->status == 200)
      return s3_credentials{
          std::string(given->text_of("AccessKeyId")), std::string(given->text_of("SecretAccessKey")),
          std::string(given->text_of("SessionToken")), time_of_iso(given->text_of("Expiration")).value_or(0)};
  } catch (const corrupt_error&) {  // the status must do
  }
  fail_fetching(
      "the token service gave no credentials for the role of AWS_ROLE_ARN (AssumeRoleWithWebIdentity)",
      status_text(last, code));
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
