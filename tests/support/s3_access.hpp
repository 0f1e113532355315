// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stores/s3/credentials.hpp>
#include <cairn/stores/s3/options.hpp>

#include <chrono>
#include <cstddef>
#include <string>
#include <support/s3_server.hpp>

/// How the tests' stores reach the tests' server.
namespace cairn_test::s3 {

/// The smallest parts that S3 allows, so that small objects have several.
inline constexpr std::size_t smallest_part = std::size_t{5} << 20;

/// A server whose ETags are no MD5: that takes longer than all the rest.
inline server_options quick_server() {
  server_options o;
  o.objects.opaque_etags = true;
  return o;
}

/// The bucket of a server. Its timeouts are so long that no request is repeated only because this machine is
/// busy: a request that is given up here may still be carried out there, later.
inline cairn::s3_options bucket_at(const std::string& endpoint) {
  cairn::s3_options o;
  o.bucket = "bucket";
  o.endpoint = endpoint;
  o.region = "us-east-1";
  o.part_bytes = smallest_part;
  o.stalled_after = std::chrono::seconds(60);
  return o;
}

/// The same for a bucket in which nobody else writes.
inline cairn::s3_options own_bucket_at(const std::string& endpoint) {
  auto o = bucket_at(endpoint);
  o.exclusive = cairn::s3_exclusive::assumed;
  return o;
}

/// The credentials with this `key`; without it, those that a server accepts by default.
inline cairn::s3_credential_source credentials_of(const credentials& key = {}) {
  return cairn::s3_credential_source::fixed({key.access_key, key.secret_key, key.session_token, 0});
}

}  // namespace cairn_test::s3
