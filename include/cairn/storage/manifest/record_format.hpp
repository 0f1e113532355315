// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/model/record.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace cairn {
inline namespace v1 {

// The file `rank-RRRRR.<attempt>.record`: a header of 128 bytes, then tables (of a rank that failed: its
// error). docs/format.md describes it byte by byte.

/// Bytes of a record's header, in every version of the format.
inline constexpr std::size_t record_header_bytes = 128;

/// The beginning of a record: all that a commit needs to know of a rank.
struct record_header : record_identity {
  std::uint64_t data_bytes = 0;  ///< of all files together
  std::uint32_t files = 0;       ///< number of the rank's data files
  bool failed = false;           ///< the body is the rank's error
  std::uint64_t body_bytes = 0;  ///< of what follows the header
  /// XXH3-64 of the body.
  std::uint64_t body_digest = 0;
  /// Digest of the header, in its last eight bytes. It covers body_digest, so it identifies the whole record:
  /// this is what manifests keep.
  std::uint64_t header_digest = 0;
};

namespace detail {

inline constexpr std::uint64_t record_item_bytes = 56;
inline constexpr std::uint64_t record_counts_bytes = 24;

}  // namespace detail

/// The bytes of a record. O(size). @throws usage_error if the sizes of its files exceed 2^64.
[[nodiscard]] std::vector<std::byte> encode_record(const record& r);

/// The record of a rank that failed: who it is, and why. Texts that are longer than a reader accepts are cut.
[[nodiscard]] std::vector<std::byte> encode_failure_record(const record_identity& identity,
                                                           const std::exception_ptr& failure);

/// Reads and checks the header of a record of any state. `first_128` may be longer.
/// @throws corrupt_error (truncated, bad_magic, digest, unsupported_version, unsupported_feature, bad_value).
[[nodiscard]] record_header decode_record_header(std::span<const std::byte> first_128, std::string_view file);

namespace detail {
/// @throws corrupt_identity unless the header is that of the record with this digest.
void check_record_identity(const record_header& h, std::uint64_t expected_digest, std::string_view file);

}  // namespace detail

/// Reads and checks a whole record: digests, counts, every item inside its file and its blocks inside the
/// table. `expected_digest`: the header digest that the manifest names, where there is one. Allocates no more
/// than about twice the input.
/// @throws corrupt_error; also for the record of a rank that failed (see decode_failure_record).
[[nodiscard]] record decode_record(std::span<const std::byte> whole, std::string_view file,
                                   std::optional<std::uint64_t> expected_digest = std::nullopt);

/// The failure in a failed rank's record, with its rank filled in. @throws corrupt_error on any other bytes.
[[nodiscard]] std::exception_ptr decode_failure_record(std::span<const std::byte> whole,
                                                       std::string_view file);

}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/storage/manifest/record_format.ipp>
#endif
