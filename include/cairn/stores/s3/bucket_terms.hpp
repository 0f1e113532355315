// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/options.hpp>
#include <cairn/stores/s3/request.hpp>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

namespace cairn {
inline namespace v1 {
namespace detail {

// What requests say of the terms that a bucket is kept on: how its objects are encrypted and in which class
// they lie, whose it is, and who pays.

/// The value of x-amz-server-side-encryption; "" where the bucket decides.
[[nodiscard]] std::string_view encryption_name(s3_encryption e) noexcept;

/// Whether a request makes an object, or begins an upload that becomes one: these say how it is kept, the
/// parts of an upload and its completion must not.
[[nodiscard]] bool creates_object(const s3_request& r) noexcept;

/// Adds the headers of a request's terms, which are signed with the others.
void add_terms(const s3_options& o, const s3_request& r, name_values& to);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/bucket_terms.ipp>
#endif
