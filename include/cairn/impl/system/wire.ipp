// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/system/wire.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace cairn {
inline namespace v1 {

CAIRN_BODY wire_error::wire_error(const char* what, std::size_t at) : std::runtime_error(what), offset(at) {}

CAIRN_BODY std::string wire_reader::get_string(std::size_t cap) {
  const auto length = get<std::uint32_t>();
  if (length > cap) fail_here("a string is longer than allowed");
  const auto from = take(length);
  return {reinterpret_cast<const char*>(from.data()), from.size()};
}

CAIRN_BODY void wire_reader::fail_here(const char* why) const {
  throw wire_error(why, at_);
}

}  // namespace v1
}  // namespace cairn
