// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/comm/socket/socket_frame.hpp>
#include <cairn/concepts/communicator.hpp>
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

inline constexpr std::uint32_t socket_magic = 0x4B4F5343;  // "CSOK"
inline constexpr std::uint32_t socket_version = 1;

inline void put_place(wire_writer& out, const std::string& host, const link_address& from) {
  out.put(std::string_view(host));
  const auto address = encode(from);
  out.put(static_cast<std::uint32_t>(address.size())).raw(address);
}
inline socket_place get_place(wire_reader& in) {
  socket_place place;
  place.host = in.get_string(256);
  auto address = decode_address(in.take(in.get<std::uint32_t>()));
  if (!address) in.fail_here("an address is none");
  place.from = std::move(*address);
  return place;
}

CAIRN_BODY socket_head encode(const socket_frame& head) {
  wire_writer out;
  out.put(head.what).put(static_cast<std::uint8_t>(head.left)).put(std::uint16_t{0});
  out.put(head.rank).put(head.bytes);
  socket_head made;
  std::copy_n(out.view().begin(), made.size(), made.begin());
  return made;
}
CAIRN_BODY std::optional<socket_frame> decode_socket_head(std::span<const std::byte> bytes) {
  try {
    wire_reader in(bytes);
    socket_frame head;
    head.what = in.get_enum(socket_frame::kind::goodbye);
    const auto left = in.get<std::uint8_t>();
    if (left > 1 || in.get<std::uint16_t>() != 0) return std::nullopt;
    head.left = left != 0;
    head.rank = in.get<std::int32_t>();
    head.bytes = in.get<std::uint64_t>();
    const bool message = head.what == socket_frame::kind::message;
    if (head.bytes > (message ? max_message_bytes : max_control_bytes)) return std::nullopt;
    return head;
  } catch (const wire_error&) {
    return std::nullopt;
  }
}

CAIRN_BODY std::vector<std::byte> encode(const socket_hello& hello) {
  wire_writer out;
  out.put(socket_magic).put(socket_version).put(hello.listener).put(hello.rank).put(hello.size);
  out.put(std::string_view(hello.job));
  put_place(out, hello.host, hello.from);
  return out.take();
}
CAIRN_BODY std::optional<socket_hello> decode_socket_hello(std::span<const std::byte> bytes) {
  try {
    wire_reader in(bytes);
    if (in.get<std::uint32_t>() != socket_magic || in.get<std::uint32_t>() != socket_version)
      return std::nullopt;
    socket_hello hello;
    hello.listener = in.get<std::uint64_t>();
    hello.rank = in.get<std::int32_t>();
    hello.size = in.get<std::int32_t>();
    hello.job = in.get_string(1024);
    auto place = get_place(in);
    in.finish();
    hello.host = std::move(place.host);
    hello.from = std::move(place.from);
    return hello;
  } catch (const wire_error&) {
    return std::nullopt;
  }
}

CAIRN_BODY std::vector<std::byte> encode(const socket_answer& answer) {
  wire_writer out;
  out.put(socket_magic).put(socket_version).put(answer.what).put(answer.size);
  out.put(std::string_view(answer.text));
  return out.take();
}
CAIRN_BODY std::optional<socket_answer> decode_socket_answer(std::span<const std::byte> bytes) {
  try {
    wire_reader in(bytes);
    if (in.get<std::uint32_t>() != socket_magic || in.get<std::uint32_t>() != socket_version)
      return std::nullopt;
    socket_answer answer;
    answer.what = in.get_enum(socket_answer::status::given_up);
    answer.size = in.get<std::int32_t>();
    answer.text = in.get_string(1024);
    in.finish();
    return answer;
  } catch (const wire_error&) {
    return std::nullopt;
  }
}

CAIRN_BODY std::vector<std::byte> encode(const std::vector<socket_place>& places) {
  wire_writer out;
  out.put(static_cast<std::uint64_t>(places.size()));
  for (const auto& each : places) put_place(out, each.host, each.from);
  return out.take();
}
CAIRN_BODY std::optional<std::vector<socket_place>> decode_socket_places(std::span<const std::byte> bytes) {
  try {
    wire_reader in(bytes);
    std::vector<socket_place> places;
    const auto count = in.get_count(8);
    places.reserve(count);
    for (std::size_t i = 0; i < count; ++i) places.push_back(get_place(in));
    in.finish();
    return places;
  } catch (const wire_error&) {
    return std::nullopt;
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace cairn
