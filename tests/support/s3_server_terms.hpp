// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <support/s3_server_http.hpp>

/// The terms on which the scripted S3 server keeps a bucket: whose it is, who pays, how it is encrypted.
namespace cairn_test::s3 {

struct bucket_terms {
  std::string owner = "123456789012";
  bool requester_pays = false;      ///< requests that do not agree to pay are refused
  std::string must_encrypt;         ///< as a policy has it: what makes objects says this, or is refused
  bool versions = false;            ///< a removal leaves a delete marker
  std::string locked;               ///< objects whose key holds this are not removed; "": none is
  bool ignores_encryption = false;  ///< x-amz-server-side-encryption is read over, as by simple servers
};

[[nodiscard]] inline bool about_keeping(std::string_view header) {
  return header == "x-amz-storage-class" || header.starts_with("x-amz-server-side-encryption");
}

/// The error to answer, or nothing.
[[nodiscard]] inline std::optional<http_reply> refuse_terms(const bucket_terms& terms,
                                                            const http_request& request) {
  const auto denied = [](std::string_view why) { return error_reply(403, "AccessDenied", why); };
  if (const auto* owner = request.header("x-amz-expected-bucket-owner");
      owner != nullptr && *owner != terms.owner)
    return denied("Access Denied");
  const auto* payer = request.header("x-amz-request-payer");
  if (payer != nullptr && *payer != "requester")
    return error_reply(400, "InvalidArgument", "x-amz-request-payer is requester");
  if (terms.requester_pays && payer == nullptr) return denied("Access Denied");
  if (request.operation == "DeleteObject" && !terms.locked.empty() &&
      request.key.find(terms.locked) != std::string::npos)
    return denied("Access Denied because object protected by object lock.");
  const bool creates = request.operation == "PutObject" || request.operation == "CreateMultipartUpload";
  const auto* encryption = request.header("x-amz-server-side-encryption");
  if (creates && !terms.must_encrypt.empty() && (encryption == nullptr || *encryption != terms.must_encrypt))
    return denied("User is not authorized to perform: s3:PutObject with an explicit deny");
  const bool kms = encryption != nullptr && encryption->starts_with("aws:kms");
  for (const auto& [name, value] : request.headers) {
    if (!about_keeping(name)) continue;
    if (!creates)
      return error_reply(400, "InvalidArgument", name + " header is not supported for this operation.");
    if (name.starts_with("x-amz-server-side-encryption-") && !kms)
      return error_reply(400, "InvalidArgument", name + " is for aws:kms");
    if (name == "x-amz-server-side-encryption-aws-kms-key-id" && value.find("unknown") != std::string::npos)
      return error_reply(400, "KMS.NotFoundException", "Key '" + value + "' does not exist");
  }
  return std::nullopt;
}

}  // namespace cairn_test::s3
