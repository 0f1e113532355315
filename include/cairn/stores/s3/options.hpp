// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/credentials.hpp>
#include <cairn/system/error.hpp>
#include <cairn/system/wire.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

/// The place of the bucket's name in an address.
enum class s3_addressing : std::uint8_t {
  automatic,     ///< in the host for AWS's own end points and names without dots, else in the path
  path,          ///< https://end.point/bucket/key
  virtual_host,  ///< https://bucket.end.point/key
};

/// Whether the store relies on conditional writes (If-None-Match: *), which let exactly one of two jobs
/// commit.
enum class s3_exclusive : std::uint8_t {
  probe,    ///< tested once, with an object that is removed again; AWS and Google are known to have them
  assumed,  ///< the service has them
  single_writer,  ///< it has not, and only one job at a time writes below the prefix: a look before each
                  ///< write
};

/// The checksum that is sent with each request, which the service checks on arrival. In any case loads
/// compare cairn's own digests.
enum class s3_checksum : std::uint8_t {
  none,
  crc32c,     ///< CRC-32C of each request's body
  crc64nvme,  ///< CRC-64/NVME of each request's body and, for an upload, of the whole object that the
              ///< service puts together; not in the dialect of Google
};

/// How the service encrypts objects. For all but `bucket`, a save fails with usage_bad_option if the
/// service does not confirm the encryption.
enum class s3_encryption : std::uint8_t {
  bucket,    ///< as the bucket's default says; requests say nothing
  sse_s3,    ///< SSE-S3: with keys of the service's own
  sse_kms,   ///< SSE-KMS: with a key of the key management service
  dsse_kms,  ///< DSSE-KMS: twice, with such a key
};

/// Options of an s3_store. The defaults are for one of several ranks on a host.
struct s3_options {
  /// The name of the bucket. It must exist.
  std::string bucket = {};
  std::string prefix = {};  ///< before every key, such as "team/run-7/"; "" or ends with '/'
  /// "https://host[:port]"; "": AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or the service's own.
  std::string endpoint = {};
  std::string region = {};  ///< "": AWS_REGION, AWS_DEFAULT_REGION, or "us-east-1" ("auto" for Google)
  /// Where the name of the bucket stands in an address.
  s3_addressing addressing = s3_addressing::automatic;
  /// The dialect of the protocol that the service speaks.
  s3_dialect dialect = s3_dialect::aws;
  /// Whether the store relies on conditional writes.
  s3_exclusive exclusive = s3_exclusive::probe;
  s3_checksum checksums = s3_checksum::crc32c;  ///< left out by itself where the service refuses it
  /// Sign the SHA-256 of what is sent over TLS, or to this host itself, too. Over plain http to another host
  /// it always is, since anybody between could change the bytes.
  bool sign_payload = false;
  bool verify_tls = true;    ///< check the server's certificate
  std::string ca_file = {};  ///< certificates of authorities, PEM; "": the system's

  /// How the service encrypts objects.
  s3_encryption encryption = s3_encryption::bucket;
  std::string kms_key = {};      ///< with KMS: the key's id or ARN; "": the account's own key for S3
  name_values kms_context = {};  ///< with KMS: pairs that are bound to the key's use and stand in its log
  bool bucket_key = false;       ///< with sse_kms: a key of the bucket's own under kms_key, so that not every
                                 ///< object asks KMS
  std::string storage_class = {};  ///< "STANDARD_IA", "INTELLIGENT_TIERING", ...; "": the service's default
  std::string bucket_owner = {};   ///< the account that must own the bucket, 12 digits; "": any
  bool requester_pays = false;     ///< agrees to pay for requests to somebody else's bucket

  std::uint64_t part_bytes = 0;  ///< of a multipart upload; 0: from the object's length, 8 MiB to 5 GiB
  std::size_t in_flight = 16;    ///< requests at a time, of all objects of this store together; 1 to 256
  std::uint64_t get_bytes = 0;   ///< most bytes that one ranged GET asks for; 0: from what the service shows
  std::uint64_t gap_bytes = std::uint64_t{32} << 10;  ///< ranges closer than this are fetched together

  // Of the times that follow, what is longer than ten years is never.
  /// For making a connection; then another one is tried. One that nothing answers is asked for anew after 0.25, 0.75 and
  /// 1.75 s already.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(10);
  /// After so long with less than 1 KiB/s, another connection is tried.
  std::chrono::seconds stalled_after = std::chrono::seconds(30);
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  ///< over all attempts of a request
  /// For putting together an upload.
  std::chrono::milliseconds completion_timeout = std::chrono::minutes(15);
  /// Before a second attempt, at most; doubles.
  std::chrono::milliseconds first_pause = std::chrono::milliseconds(100);
  /// The longest pause before another attempt.
  std::chrono::milliseconds max_pause = std::chrono::seconds(20);
  std::size_t max_attempts = 16;  ///< of a request
  /// Retries of all requests together at once; afterwards retry_rate a second.
  std::size_t retry_burst = 100;
  /// Retries per second, of all requests together, when the burst is spent.
  double retry_rate = 10;
};

namespace detail {

/// The checked address of a store, in parts.
struct s3_address {
  bool tls = true;
  bool loopback = false;  ///< the service is on this host and is reached through no proxy
  std::string authority;  ///< host[:port], without the scheme's own port
  std::string base;       ///< "/" or "/bucket/"; keys follow
  std::string region;
};

/// Checks the options and fills in defaults. @throws usage_bad_option
[[nodiscard]] s3_address resolve(s3_options& o);

void encode(wire_writer& out, const s3_options& o);
/// The inverse; the constructor of a store checks the values. @throws wire_error
[[nodiscard]] s3_options decode_s3_options(wire_reader& in);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED_S3)
#include <cairn/impl/stores/s3/options.ipp>
#endif
