// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/credentials.hpp>
#include <cairn/stores/s3/options.hpp>
#include <cairn/stores/s3/sigv4.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>
#include <cairn/system/wire.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

[[noreturn]] inline void fail_s3_option(std::string_view what) {
  fail(error_id::usage_bad_option, "s3_store: " + std::string(what));
}

/// Checks what is said of the terms on which a bucket is kept. @throws usage_bad_option
inline void check_terms(const s3_options& o) {
  const bool with_kms = o.encryption == s3_encryption::sse_kms || o.encryption == s3_encryption::dsse_kms;
  if (!with_kms && (!o.kms_key.empty() || !o.kms_context.empty()))
    fail_s3_option("kms_key and kms_context are for s3_encryption::sse_kms and dsse_kms");
  if (o.bucket_key && o.encryption != s3_encryption::sse_kms)
    fail_s3_option("bucket_key is for s3_encryption::sse_kms alone");
  if (!header_safe(o.kms_key) || o.kms_key.size() > 2048)
    fail_s3_option("kms_key is the id or the ARN of a key");
  std::size_t bytes = 0;
  for (const auto& [name, value] : o.kms_context) {
    bytes += name.size() + value.size();
    for (const auto* text : {&name, &value})
      for (const char c : *text)
        if (c < ' ' || c > '~') fail_s3_option("kms_context is printable ASCII");
    if (name.empty() || bytes > 1024)
      fail_s3_option("kms_context is made of pairs with names, of 1 KiB together");
  }
  for (const char c : o.storage_class)
    if (!((c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-'))
      fail_s3_option("storage_class is a name of capitals, such as STANDARD_IA");
  if (o.storage_class.size() > 64 || o.storage_class == "GLACIER" || o.storage_class == "DEEP_ARCHIVE")
    fail_s3_option(
        "no checkpoint can be loaded from this storage_class before it is restored: take STANDARD, "
        "STANDARD_IA, GLACIER_IR or another one that is read at once");
  if (!o.bucket_owner.empty() &&
      (o.bucket_owner.size() != 12 || o.bucket_owner.find_first_not_of("0123456789") != std::string::npos))
    fail_s3_option("bucket_owner is an account's number, of 12 digits");
  if (o.dialect == s3_dialect::google &&
      (o.encryption != s3_encryption::bucket || !o.bucket_owner.empty() || o.requester_pays))
    fail_s3_option(
        "encryption, bucket_owner and requester_pays are not in Google's dialect: set the bucket's default "
        "key");
}

/// Whether a host names this host itself, with its port or without.
[[nodiscard]] inline bool is_loopback(std::string_view host) noexcept {
  if (host == "[::1]" || host.starts_with("[::1]:")) return true;
  host = host.substr(0, host.find(':'));
  if (host == "localhost" || host.ends_with(".localhost")) return true;
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos;
}

CAIRN_BODY s3_address resolve(s3_options& o) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const auto first_of = [&](std::string& into, std::initializer_list<const char*> names,
                            std::string_view otherwise) {
    for (const auto* name : names)
      if (into.empty()) into = variable(name);
    if (into.empty()) into = otherwise;
  };
  if (o.bucket.size() < 3 || o.bucket.size() > 222)
    fail_s3_option("the bucket needs a name of 3 to 222 characters");
  for (const char c : o.bucket)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
          c == '-' || c == '_'))
      fail_s3_option("a bucket's name is made of letters, digits, '.', '-' and '_'");
  if (o.bucket.find("..") != std::string::npos || o.bucket.front() == '.')
    fail_s3_option("a bucket's name neither begins with a dot nor has two in a row");
  if (!o.prefix.empty() && (o.prefix.back() != '/' || o.prefix.front() == '/' || o.prefix.size() > 500))
    fail_s3_option("a prefix ends with '/', does not begin with one, and has at most 500 bytes");
  for (const char c : o.prefix)
    if (static_cast<unsigned char>(c) < ' ') fail_s3_option("a prefix has no control characters");
  if (("/" + o.prefix).find("/../") != std::string::npos ||
      ("/" + o.prefix).find("/./") != std::string::npos || o.prefix.find("//") != std::string::npos)
    fail_s3_option(
        "a prefix has no parts that are empty, '.' or '..': some servers take them for directories");

  const bool google = o.dialect == s3_dialect::google;
  first_of(o.region, {"AWS_REGION", "AWS_DEFAULT_REGION"}, google ? "auto" : "us-east-1");
  if (!header_safe(o.region) || o.region.size() > 64 || o.region.find('/') != std::string::npos)
    fail_s3_option("the region is no name of one");
  if (google && o.endpoint.empty()) o.endpoint = "https://storage.googleapis.com";
  first_of(o.endpoint, {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"},
           "https://s3." + o.region + ".amazonaws.com");

  s3_address a;
  a.region = o.region;
  std::string_view rest = o.endpoint;
  if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
    a.tls = false;
  } else {
    fail_s3_option("the endpoint begins with https:// (or, without protection, with http://)");
  }
  if (rest.ends_with('/')) rest.remove_suffix(1);
  if (rest.empty() || rest.size() > 255 || !header_safe(rest)) fail_s3_option("the endpoint has no host");
  if (rest.find_first_of("/@?#\\%\"<>^`{|}") != std::string_view::npos)
    fail_s3_option("the endpoint is https://host or https://host:port, without user, path or query");
  auto host = lower_case(rest);
  const auto own_port = std::string_view(a.tls ? ":443" : ":80");
  if (std::string_view(host).ends_with(own_port)) host.resize(host.size() - own_port.size());
  const bool is_aws = std::string_view(host).ends_with(".amazonaws.com") ||
                      std::string_view(host).ends_with(".amazonaws.com.cn");
  const bool in_host =
      o.addressing == s3_addressing::virtual_host ||
      (o.addressing == s3_addressing::automatic && is_aws && o.bucket.find('.') == std::string::npos);
  a.authority = in_host ? o.bucket + "." + host : host;
  a.base = in_host ? "/" : "/" + o.bucket + "/";
  const bool by_proxy =
      !variable("http_proxy").empty() || !variable("all_proxy").empty() || !variable("ALL_PROXY").empty();
  a.loopback = !a.tls && !by_proxy && is_loopback(a.authority);
  if (o.exclusive == s3_exclusive::probe && (is_aws || google)) o.exclusive = s3_exclusive::assumed;

  if (google && o.checksums == s3_checksum::crc64nvme)
    fail_s3_option("Google's interface takes CRC-32C alone: set checksums to s3_checksum::crc32c");

  check_terms(o);
  constexpr std::uint64_t least_part = std::uint64_t{5} << 20;
  constexpr std::uint64_t max_part = std::uint64_t{5} << 30;
  if (o.part_bytes != 0 && (o.part_bytes < least_part || o.part_bytes > max_part))
    fail_s3_option("part_bytes is 5 MiB to 5 GiB, or 0");
  if (o.in_flight == 0 || o.in_flight > 256) fail_s3_option("in_flight is 1 to 256");
  if (o.get_bytes != 0 && (o.get_bytes < (1u << 16) || o.get_bytes > max_part))
    fail_s3_option("get_bytes is 64 KiB to 5 GiB, or 0");
  if (o.gap_bytes > (1u << 20)) fail_s3_option("gap_bytes is at most 1 MiB");
  if (o.connect_timeout.count() <= 0 || o.stalled_after.count() <= 0 || o.timeout.count() <= 0 ||
      o.completion_timeout.count() <= 0 || o.first_pause.count() < 0 || o.max_pause < o.first_pause)
    fail_s3_option("timeouts are positive, and max_pause is no shorter than first_pause");
  // More is never: sums with times have room for it.
  constexpr std::chrono::hours never(24 * 365 * 10);
  for (auto* const time :
       {&o.connect_timeout, &o.timeout, &o.completion_timeout, &o.first_pause, &o.max_pause})
    *time = std::min<std::chrono::milliseconds>(*time, never);
  o.stalled_after = std::min<std::chrono::seconds>(o.stalled_after, never);
  if (o.max_attempts == 0 || o.retry_burst == 0 || !(o.retry_rate > 0))
    fail_s3_option("max_attempts, retry_burst and retry_rate are positive");
  return a;
}

CAIRN_BODY void encode(wire_writer& out, const s3_options& o) {
  out.put(o.bucket).put(o.prefix).put(o.endpoint).put(o.region).put(o.ca_file);
  out.put(o.kms_key).put(o.storage_class).put(o.bucket_owner);
  out.put(static_cast<std::uint64_t>(o.kms_context.size()));
  for (const auto& [name, value] : o.kms_context) out.put(name).put(value);
  out.put(static_cast<std::uint8_t>(o.encryption));
  out.put(static_cast<std::uint8_t>(o.addressing)).put(static_cast<std::uint8_t>(o.dialect));
  out.put(static_cast<std::uint8_t>(o.exclusive));
  out.put(static_cast<std::uint8_t>(o.checksums));
  for (const bool b : {o.sign_payload, o.verify_tls, o.bucket_key, o.requester_pays})
    out.put(static_cast<std::uint8_t>(b));
  for (const std::uint64_t n : {o.part_bytes, std::uint64_t{o.in_flight}, o.get_bytes, o.gap_bytes,
                                std::uint64_t{o.max_attempts}, std::uint64_t{o.retry_burst}})
    out.put(n);
  for (const std::int64_t n : {std::int64_t{o.connect_timeout.count()}, std::int64_t{o.stalled_after.count()},
                               std::int64_t{o.timeout.count()}, std::int64_t{o.completion_timeout.count()},
                               std::int64_t{o.first_pause.count()}, std::int64_t{o.max_pause.count()}})
    out.put(n);
  out.put(static_cast<std::uint64_t>(o.retry_rate * 1000));
}

CAIRN_BODY s3_options decode_s3_options(wire_reader& in) {
  s3_options o;
  o.bucket = in.get_string(), o.prefix = in.get_string(), o.endpoint = in.get_string(),
  o.region = in.get_string();
  o.ca_file = in.get_string();
  o.kms_key = in.get_string(), o.storage_class = in.get_string(), o.bucket_owner = in.get_string();
  o.kms_context.resize(in.get_count(2 * sizeof(std::uint32_t)));
  for (auto& [name, value] : o.kms_context) name = in.get_string(), value = in.get_string();
  o.encryption = in.get_enum(s3_encryption::dsse_kms);
  o.addressing = in.get_enum(s3_addressing::virtual_host);
  o.dialect = in.get_enum(s3_dialect::google);
  o.exclusive = in.get_enum(s3_exclusive::single_writer);
  o.checksums = in.get_enum(s3_checksum::crc64nvme);
  o.sign_payload = in.get<std::uint8_t>() != 0;
  o.verify_tls = in.get<std::uint8_t>() != 0;
  o.bucket_key = in.get<std::uint8_t>() != 0;
  o.requester_pays = in.get<std::uint8_t>() != 0;
  o.part_bytes = in.get<std::uint64_t>(), o.in_flight = in.get<std::uint64_t>();
  o.get_bytes = in.get<std::uint64_t>(), o.gap_bytes = in.get<std::uint64_t>();
  o.max_attempts = in.get<std::uint64_t>(), o.retry_burst = in.get<std::uint64_t>();
  o.connect_timeout = std::chrono::milliseconds(in.get<std::int64_t>());
  o.stalled_after = std::chrono::seconds(in.get<std::int64_t>());
  o.timeout = std::chrono::milliseconds(in.get<std::int64_t>());
  o.completion_timeout = std::chrono::milliseconds(in.get<std::int64_t>());
  o.first_pause = std::chrono::milliseconds(in.get<std::int64_t>());
  o.max_pause = std::chrono::milliseconds(in.get<std::int64_t>());
  o.retry_rate = static_cast<double>(in.get<std::uint64_t>()) / 1000;
  return o;
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
