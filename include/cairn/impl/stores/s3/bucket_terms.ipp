// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/bucket_terms.hpp>
#include <cairn/stores/s3/hashes.hpp>
#include <cairn/stores/s3/options.hpp>
#include <cairn/stores/s3/request.hpp>
#include <cairn/stores/s3/sigv4.hpp>
#include <cairn/system/algorithm.hpp>

#include <algorithm>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY std::string_view encryption_name(s3_encryption e) noexcept {
  switch (e) {
    case s3_encryption::sse_s3:
      return "AES256";
    case s3_encryption::sse_kms:
      return "aws:kms";
    case s3_encryption::dsse_kms:
      return "aws:kms:dsse";
    case s3_encryption::bucket:
      break;
  }
  return {};
}

/// The pairs of an encryption context as the header wants them: JSON in base 64.
[[nodiscard]] inline std::string encryption_context_text(const name_values& context) {
  const auto quoted = [](std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
    return out + '"';
  };
  std::string json = "{";
  for (const auto& [name, value] : context)
    json += (json.size() > 1 ? "," : "") + quoted(name) + ":" + quoted(value);
  json += '}';
  return base64_text({reinterpret_cast<const unsigned char*>(json.data()), json.size()});
}

CAIRN_BODY bool creates_object(const s3_request& r) noexcept {
  if (r.method == "PUT") return r.query.empty();
  return r.method == "POST" &&
         detail::any_of(r.query, [](const auto& field) { return field.first == "uploads"; });
}

CAIRN_BODY void add_terms(const s3_options& o, const s3_request& r, name_values& to) {
  if (!o.bucket_owner.empty()) to.emplace_back("x-amz-expected-bucket-owner", o.bucket_owner);
  if (o.requester_pays) to.emplace_back("x-amz-request-payer", "requester");
  if (!creates_object(r)) return;
  if (!o.storage_class.empty())
    to.emplace_back(o.dialect == s3_dialect::google ? "x-goog-storage-class" : "x-amz-storage-class",
                    o.storage_class);
  const auto encryption = encryption_name(o.encryption);
  if (encryption.empty()) return;
  to.emplace_back("x-amz-server-side-encryption", encryption);
  if (!o.kms_key.empty()) to.emplace_back("x-amz-server-side-encryption-aws-kms-key-id", o.kms_key);
  if (!o.kms_context.empty())
    to.emplace_back("x-amz-server-side-encryption-context", encryption_context_text(o.kms_context));
  if (o.bucket_key) to.emplace_back("x-amz-server-side-encryption-bucket-key-enabled", "true");
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
