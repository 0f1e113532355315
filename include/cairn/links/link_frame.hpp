// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/peer_link.hpp>
#include <cairn/system/compiler.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

/// What one end of a connection between two links asks of the other, which answers each request before it reads the
/// next one. All of it is little-endian.
///
/// A request is a head of request_head_bytes and a name. An answer is answer_bytes long; that of a fetch is followed by
/// the bytes, in blocks of bulk_block_bytes (the last one may be shorter), each of them followed by a block_end, which
/// says whether it is what was offered.
struct link_request {
  enum class kind : std::uint8_t { hello, await_offer, fetch };
  kind what = kind::hello;
  bool plain_bulk = false;   ///< the blocks may come outside of TLS, with a tag
  std::uint64_t link = 0;    ///< the number of the link that is meant: another one may listen at its address
  std::uint64_t offset = 0;  ///< of fetch, in the offer
  std::uint64_t length = 0;
  offer_key key = {};  ///< of await_offer and fetch; empty for hello
};
inline constexpr std::size_t request_head_bytes = 40;
inline constexpr std::size_t max_request_bytes = request_head_bytes + max_offer_name;

/// An answer; `bytes` is the size of the offer.
struct link_answer {
  enum class status : std::uint8_t { ok, not_offered, outside, other_link };
  status what = status::ok;
  bool plain_bulk = false;  ///< the blocks come outside of TLS
  std::uint64_t bytes = 0;
};
inline constexpr std::size_t answer_bytes = 16;
using answer_frame = std::array<std::byte, answer_bytes>;

inline constexpr std::size_t bulk_block_bytes = std::size_t{1} << 20;
inline constexpr std::size_t bulk_tag_bytes = 16;

[[nodiscard]] std::vector<std::byte> encode(const link_request& request);
/// The length of the whole request whose head this is; nothing where it is the head of none.
/// @pre head.size() == request_head_bytes
[[nodiscard]] std::optional<std::size_t> request_bytes(std::span<const std::byte> head);
/// Nothing where the bytes are no request. Reads hostile bytes.
[[nodiscard]] std::optional<link_request> decode_request(std::span<const std::byte> bytes);
[[nodiscard]] answer_frame encode(const link_answer& answer);
/// Nothing where the bytes are no answer. Reads hostile bytes.
[[nodiscard]] std::optional<link_answer> decode_answer(std::span<const std::byte> bytes);

/// Where a link listens, and who it is: what ranks tell each other before they use links.
struct link_address {
  std::uint64_t link = 0;          ///< a number that no other link has
  std::uint16_t port = 0;          ///< of all hosts below
  std::vector<std::string> hosts;  ///< numeric IPv4 and IPv6 addresses, the likeliest first
};
[[nodiscard]] std::vector<std::byte> encode(const link_address& address);
/// Nothing where the bytes are no address. Reads hostile bytes.
[[nodiscard]] std::optional<link_address> decode_address(std::span<const std::byte> bytes);

}  // namespace detail
}  // namespace v1
}  // namespace cairn

#if !defined(CAIRN_COMPILED)
#include <cairn/impl/links/link_frame.ipp>
#endif
