// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <support/s3_server_http.hpp>

/// Google Cloud Storage's XML interface, as far as it differs from S3: its headers begin with x-goog-, a
/// condition is a generation, an upload in parts takes none (400 NotImplemented), a POST says how long its
/// body is (else 411 from the server in front, as a page), there is no removal of many objects by one
/// request, and one of an object that is not there is 404. The scripted server keeps what it knows of S3;
/// requests and replies are translated here.
namespace cairn_test::s3 {

/// Turns it into a request to S3; returns the error to answer if Google would refuse it.
inline std::optional<http_reply> from_google(http_request& request) {
  if (request.method == "POST" && request.header("content-length") == nullptr) {
    http_reply page;
    page.status = 411;
    page.code = "411";
    page.set("Content-Type", "text/html; charset=UTF-8");
    page.body = "<!DOCTYPE html><html lang=en><title>Error 411 (Length Required)!!1</title></html>";
    return page;
  }
  if (request.operation == "DeleteObjects")
    return error_reply(501, "NotImplemented", "A header or query you provided is not implemented");
  const bool writes = request.method == "PUT" || request.method == "POST";
  for (auto& [name, value] : request.headers) {
    if (name.rfind("x-amz-", 0) == 0)
      return error_reply(400, "ExcessHeaderValues", "Headers of two dialects in one request: " + name);
    const bool generation = name.rfind("x-goog-if-", 0) == 0;
    if (generation && request.operation != "PutObject")
      return error_reply(400, "NotImplemented", "Preconditions are not supported for XML multipart uploads");
    if (writes && (name == "if-none-match" || name == "if-match"))
      return error_reply(501, "NotImplemented", "Conditions by ETag are for reading");
    if (name.rfind("x-goog-", 0) != 0) continue;
    if (generation) {
      if (name != "x-goog-if-generation-match" || value != "0")
        return error_reply(400, "InvalidArgument", "The scripted server knows the generation 0 alone");
      name = "if-none-match";
      value = "*";
    } else if (name == "x-goog-hash") {
      if (value.rfind("crc32c=", 0) != 0)
        return error_reply(400, "InvalidArgument", "The scripted server knows crc32c alone");
      name = "x-amz-checksum-crc32c";
      value.erase(0, 7);
    } else {
      name.replace(0, 7, "x-amz-");
    }
  }
  return std::nullopt;
}

inline void to_google(http_reply& reply) {
  reply.remove("x-amz-checksum-type");
  for (auto& [name, value] : reply.headers) {
    if (name == "x-amz-checksum-crc32c") {
      name = "x-goog-hash";
      value = "crc32c=" + value + ",md5=AAAAAAAAAAAAAAAAAAAAAA==";
    } else if (name.rfind("x-amz-", 0) == 0) {
      name.replace(0, 6, "x-goog-");
    }
  }
}

}  // namespace cairn_test::s3
