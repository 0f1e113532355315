// SPDX-License-Identifier: Apache-2.0
// opt-in: cairn::s3
#pragma once
#include <cairn/stores/s3/clock.hpp>
#include <cairn/stores/s3/sigv4.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// A piece of memory that a part of an answer goes to; without address: that part is passed over.
struct answer_piece {
  std::byte* to = nullptr;
  std::size_t bytes = 0;
};

/// One request to an object store, as its owner describes it; unchanged over its attempts.
struct s3_request {
  std::string method = {};
  std::string key = {};  ///< with the store's prefix; "" for the bucket
  name_values query = {};
  name_values headers = {};
  std::vector<std::span<const std::byte>> body = {};  ///< valid until the call has ended
  bool has_body = false;
  std::string body_hash = {};      ///< SHA-256, where signs_payload(); "" for no body
  std::string body_checksum = {};  ///< of the options' kind, in base 64; "": none
  std::uint64_t body_crc64 = 0;    ///< the same, where it is CRC-64/NVME
  bool completes = false;          ///< puts an upload together, which is slow
  /// Nobody wants its answer, but the connection that it leaves open: it is tried once, on one of its own, beside the
  /// `in_flight` others.
  bool opens_connection = false;
  /// It is small and comes too late if it waits for others: it begins at once, beside the `in_flight` others.
  bool urgent = false;
  s3_deadline until = {};  ///< of its owner, on the store's clock; the options' timeout holds, too
  std::string root = {};   ///< the document that is awaited: its root's name, or how that begins; "": none
  /// Where the answer goes: all to memory, at most this many bytes,
  std::uint64_t max_answer = std::uint64_t{1} << 20;
  /// or, if not empty, `length` bytes of the object from `offset` on, to these.
  std::vector<answer_piece> pieces = {};
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

}  // namespace detail
}  // namespace v1
}  // namespace cairn
