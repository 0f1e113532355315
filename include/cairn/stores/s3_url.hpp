// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/any_store.hpp>
#include <cairn/stores/s3_store.hpp>

#include <string>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {

/// Parses `s3://BUCKET[/PREFIX][?NAME=VALUE&...]`. The names are endpoint (with https:// or http://),
/// region, dialect=google, addressing=path|virtual, exclusive=single-writer,
/// checksums=crc32c|crc64nvme|none, encryption=sse-s3|sse-kms|dsse-kms, kms-key, bucket-key=on,
/// storage-class, bucket-owner, requester-pays=on. Values are not percent-encoded.
/// A URL never holds credentials: s3_credential_source finds them.
/// @throws usage_error (usage_bad_option)
[[nodiscard]] s3_options parse_s3_url(std::string_view url);

/// The type of open_store(). Portable, so that worker processes can write to it.
using url_store = any_store_of<file_store, s3_store>;

/// Returns the store that a URL names: s3://..., file:PATH, or a path. @throws usage_error (usage_bad_option)
[[nodiscard]] url_store open_store(std::string_view url);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3_url.ipp>
#endif
