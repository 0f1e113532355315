// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/any_store.hpp>
#include <cairn/stores/file_store.hpp>
#include <cairn/stores/s3/options.hpp>
#include <cairn/stores/s3/sigv4.hpp>
#include <cairn/stores/s3_store.hpp>
#include <cairn/stores/s3_url.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/error_ids.hpp>

#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {

CAIRN_BODY s3_options parse_s3_url(std::string_view url) {
  const auto refuse = [](std::string_view what, std::string_view got) {
    fail(error_id::usage_bad_option, what, {.got = std::string(got)});
  };
  static constexpr std::string_view scheme = "s3://";
  if (!url.starts_with(scheme)) refuse("the URL of a bucket begins with s3://", url.substr(0, 8));
  auto rest = url.substr(scheme.size());
  // What stands before an @ may be a secret: it is not repeated.
  const auto question = rest.find('?');
  if (rest.substr(0, question).find('@') != std::string_view::npos)
    refuse("credentials never stand in a URL; put them into the environment or the credentials file", {});
  auto query = question == std::string_view::npos ? std::string_view() : rest.substr(question + 1);
  rest = rest.substr(0, question);
  s3_options options;
  const auto slash = rest.find('/');
  options.bucket = rest.substr(0, slash);
  if (slash != std::string_view::npos) options.prefix = rest.substr(slash + 1);
  if (!options.prefix.empty() && options.prefix.back() != '/') options.prefix += '/';
  while (!query.empty()) {
    const auto end = query.find('&');
    const auto field = query.substr(0, end);
    query = end == std::string_view::npos ? std::string_view() : query.substr(end + 1);
    const auto equals = field.find('=');
    const auto name = field.substr(0, equals);
    const auto value = equals == std::string_view::npos ? std::string_view() : field.substr(equals + 1);
    if (value.empty())
      refuse("an option of an s3:// URL has no value", name);
    else if (name == "endpoint")
      options.endpoint = value;
    else if (name == "region")
      options.region = value;
    else if (name == "dialect" && value == "google")
      options.dialect = s3_dialect::google;
    else if (name == "addressing" && value == "path")
      options.addressing = s3_addressing::path;
    else if (name == "addressing" && value == "virtual")
      options.addressing = s3_addressing::virtual_host;
    else if (name == "exclusive" && value == "single-writer")
      options.exclusive = s3_exclusive::single_writer;
    else if (name == "checksums" && value == "crc32c")
      options.checksums = s3_checksum::crc32c;
    else if (name == "checksums" && value == "crc64nvme")
      options.checksums = s3_checksum::crc64nvme;
    else if (name == "checksums" && value == "none")
      options.checksums = s3_checksum::none;
    else if (name == "encryption" && value == "sse-s3")
      options.encryption = s3_encryption::sse_s3;
    else if (name == "encryption" && value == "sse-kms")
      options.encryption = s3_encryption::sse_kms;
    else if (name == "encryption" && value == "dsse-kms")
      options.encryption = s3_encryption::dsse_kms;
    else if (name == "kms-key")
      options.kms_key = value;
    else if (name == "bucket-key" && value == "on")
      options.bucket_key = true;
    else if (name == "storage-class")
      options.storage_class = value;
    else if (name == "bucket-owner")
      options.bucket_owner = value;
    else if (name == "requester-pays" && value == "on")
      options.requester_pays = true;
    else
      refuse(
          "an option of an s3:// URL is unknown, or has an unknown value; there are endpoint, region, "
          "dialect=google, addressing=path|virtual, exclusive=single-writer, "
          "checksums=crc32c|crc64nvme|none, "
          "encryption=sse-s3|sse-kms|dsse-kms, kms-key, bucket-key=on, storage-class, bucket-owner, "
          "requester-pays=on",
          name);
  }
  return options;
}

CAIRN_BODY url_store open_store(std::string_view url) {
  if (detail::scheme_of(url) == "s3") return url_store(s3_store(parse_s3_url(url)));
  return url_store(file_store(detail::path_of_url(url)));
}

}  // namespace v1
}  // namespace cairn
