// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/concepts/peer_link.hpp>
#include <cairn/links/link_frame.hpp>
#include <cairn/system/wire.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {
inline namespace v1 {
namespace detail {

inline constexpr std::uint32_t request_magic = 0x314b4c43;  // "CLK1"
inline constexpr std::uint32_t answer_magic = 0x314b4c41;   // "ALK1"

CAIRN_BODY std::vector<std::byte> encode(const link_request& request) {
  wire_writer out;
  out.reserve(request_head_bytes + request.key.name.size());
  out.put(request_magic)
      .put(request.what)
      .put(static_cast<std::uint8_t>(request.plain_bulk))
      .put(static_cast<std::uint8_t>(request.key.name.size()))
      .put(std::uint8_t{0})
      .put(request.link)
      .put(request.key.generation)
      .put(request.offset)
      .put(request.length)
      .raw(std::as_bytes(std::span(request.key.name.data(), request.key.name.size())));
  return out.take();
}

CAIRN_BODY std::optional<std::size_t> request_bytes(std::span<const std::byte> head) {
  try {
    wire_reader in(head);
    if (in.get<std::uint32_t>() != request_magic) return std::nullopt;
    const auto what = in.get_enum(link_request::kind::fetch);
    const auto plain = in.get<std::uint8_t>();
    const auto name = in.get<std::uint8_t>();
    if (plain > 1 || in.get<std::uint8_t>() != 0 || (name == 0) != (what == link_request::kind::hello))
      return std::nullopt;
    return request_head_bytes + name;
  } catch (const wire_error&) {
    return std::nullopt;
  }
}

CAIRN_BODY std::optional<link_request> decode_request(std::span<const std::byte> bytes) {
  if (bytes.size() < request_head_bytes) return std::nullopt;
  const auto size = request_bytes(bytes.first(request_head_bytes));
  if (!size || *size != bytes.size()) return std::nullopt;
  wire_reader in(bytes.subspan(sizeof request_magic));
  link_request request;
  request.what = in.get_enum(link_request::kind::fetch);
  request.plain_bulk = in.get<std::uint8_t>() != 0;
  const auto name = in.get<std::uint8_t>();
  static_cast<void>(in.get<std::uint8_t>());
  request.link = in.get<std::uint64_t>();
  request.key.generation = in.get<std::uint64_t>();
  request.offset = in.get<std::uint64_t>();
  request.length = in.get<std::uint64_t>();
  const auto text = in.take(name);
  request.key.name.assign(reinterpret_cast<const char*>(text.data()), text.size());
  return request;
}

CAIRN_BODY answer_frame encode(const link_answer& answer) {
  wire_writer out;
  out.put(answer_magic)
      .put(answer.what)
      .put(static_cast<std::uint8_t>(answer.plain_bulk))
      .put(std::uint16_t{0})
      .put(answer.bytes);
  answer_frame frame;
  std::copy_n(out.view().begin(), frame.size(), frame.begin());
  return frame;
}

CAIRN_BODY std::optional<link_answer> decode_answer(std::span<const std::byte> bytes) {
  try {
    wire_reader in(bytes);
    if (in.get<std::uint32_t>() != answer_magic) return std::nullopt;
    link_answer answer;
    answer.what = in.get_enum(link_answer::status::other_link);
    const auto plain = in.get<std::uint8_t>();
    if (plain > 1 || in.get<std::uint16_t>() != 0) return std::nullopt;
    answer.plain_bulk = plain != 0;
    answer.bytes = in.get<std::uint64_t>();
    in.finish();
    return answer;
  } catch (const wire_error&) {
    return std::nullopt;
  }
}

CAIRN_BODY std::vector<std::byte> encode(const link_address& address) {
  wire_writer out;
  out.put(address.link).put(address.port).put(static_cast<std::uint64_t>(address.hosts.size()));
  for (const auto& host : address.hosts) out.put(std::string_view(host));
  return out.take();
}

CAIRN_BODY std::optional<link_address> decode_address(std::span<const std::byte> bytes) {
  try {
    wire_reader in(bytes);
    link_address address;
    address.link = in.get<std::uint64_t>();
    address.port = in.get<std::uint16_t>();
    const auto hosts = in.get_count(sizeof(std::uint32_t));
    if (hosts > 64) return std::nullopt;
    for (std::size_t i = 0; i < hosts; ++i) address.hosts.push_back(in.get_string(64));
    in.finish();
    return address;
  } catch (const wire_error&) {
    return std::nullopt;
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
