// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/clock.hpp>
#include <cairn/stores/s3/credentials.hpp>
#include <cairn/stores/s3/options.hpp>
#include <cairn/stores/s3/service.hpp>
#include <cairn/stores/s3/sigv4.hpp>
#include <cairn/system/credential_broker.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace cairn {
inline namespace v1 {
namespace detail {

CAIRN_BODY s3_service::s3_service(s3_options o, s3_credential_source source, std::shared_ptr<s3_clock> c)
    : options(std::move(o)),
      address(resolve(options)),
      signer(address.region, options.dialect),
      credentials(std::move(source)),
      clock(std::move(c)),
      retries(options.retry_burst, options.retry_rate) {
  checksums.store(options.checksums != s3_checksum::none);
  signs_bodies.store(options.sign_payload || (!address.tls && !address.loopback));
}

CAIRN_BODY secret_bytes s3_service::answer(std::span<const std::byte> question) {
  std::uint64_t without = 0;
  if (question.size() == sizeof without) std::memcpy(&without, question.data(), sizeof without);
  const auto now = credentials.get(
      *clock, without != 0 ? std::optional<std::uint64_t>(without) : std::nullopt, skew.load());
  return s3_credential_source::encode(now.credentials, now.number);
}

CAIRN_BODY std::string_view checksum_header(const s3_options& o) noexcept {
  if (o.dialect == s3_dialect::google) return "x-goog-hash";
  return o.checksums == s3_checksum::crc64nvme ? "x-amz-checksum-crc64nvme" : "x-amz-checksum-crc32c";
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
